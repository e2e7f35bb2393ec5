from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmt.report.svg import Scale, element, fan, nice, say, settle, width_of

VALUES = st.floats(-1e6, 1e6, allow_nan=False)


def test_what_is_told_is_escaped() -> None:
    assert element("rect", x=1.0, rx=None, class_="a", title="<&>") == (
        '<rect x="1" class="a"><title>&lt;&amp;&gt;</title></rect>'
    )
    assert say(0, 0, "<script>") == '<text x="0" y="0">&lt;script&gt;</text>'


def test_a_scale_takes_its_ends_to_its_ends() -> None:
    assert [Scale(0, 10, 100, 200)(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert [Scale(1, 100, 0, 10, log=True)(value) for value in (1, 10, 100)] == [0, 5, 10]
    assert Scale(3, 3, 0, 10)(3) == 5


@given(st.lists(VALUES, min_size=1, max_size=9), st.integers(2, 8))
def test_a_nice_scale_holds_all_values_and_has_round_ticks(values: list[float], most: int) -> None:
    scale = nice(values, 0, 100, most=most)
    slack = (scale.high - scale.low) * 1e-6
    assert scale.low - slack <= min(values) <= max(values) <= scale.high + slack
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= most + 3
    assert ticks[0] == pytest.approx(scale.low)
    assert ticks[-1] == pytest.approx(scale.high)
    leading = scale.step / 10 ** math.floor(math.log10(scale.step) + 1e-9)
    assert any(leading == pytest.approx(factor) for factor in (1, 2, 2.5, 5, 10))


def test_a_scale_from_zero_holds_zero() -> None:
    scale = nice([12.0, 30.0], 0, 1, zero=True)
    assert (scale.low, scale.high) == (0, 30)
    assert 0 in nice([-3.0, 30.0], 0, 1, zero=True).ticks()


def test_decades_are_ticks_of_a_logarithm() -> None:
    assert Scale(200, 20_000, 0, 1, log=True).ticks() == [300, 1000, 3000, 10_000]
    assert Scale(106, 292, 0, 1, log=True).ticks() == [150, 200, 250]


@given(st.lists(st.floats(0, 300), max_size=12))
def test_labels_stand_apart_in_their_order_and_inside_when_they_fit(wanted: list[float]) -> None:
    places = fan(wanted, 13, 0, 300)
    ordered = sorted(range(len(wanted)), key=wanted.__getitem__)
    gaps = [places[after] - places[before] for before, after in pairwise(ordered)]
    assert all(gap >= 13 - 1e-6 for gap in gaps)
    assert all(-1e-6 <= place <= 300 + 1e-6 for place in places)


def test_labels_that_do_not_touch_stay() -> None:
    assert fan([10.0, 50.0, 30.0], 13, 0, 100) == [10.0, 50.0, 30.0]
    assert fan([50.0, 50.0], 10, 0, 100) == [45.0, 55.0]


def test_labels_of_near_points_do_not_cover_each_other() -> None:
    points = [(100.0, 100.0, "smart-home"), (104.0, 104.0, "clinic"), (60.0, 102.0, "ticketing")]
    settled = settle(points, 12, (0, 0, 200, 200), [])
    boxes = []
    for (x, y, anchor), (_, _, label) in zip(settled, points, strict=True):
        left = x - {"start": 0, "middle": width_of(label) / 2, "end": width_of(label)}[anchor]
        boxes.append((left, y - 9, left + width_of(label), y + 2))
    for place, one in enumerate(boxes):
        assert one[0] >= 0
        assert one[2] <= 200
        for other in boxes[:place]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
