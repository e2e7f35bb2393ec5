"""Dynamic pulling: half of the parameters by default, and why the paper's letter does not give that."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedmt.choices import SelectPulling, Send
from fedmt.exchange.pulling import GROWN, Norm, changes, pull
from fedmt.place import Side


def marian() -> dict[str, tuple[tuple[int, ...], Side]]:
    """The shapes of Marian's Transformer-base: 6 + 6 layers of 512, feed-forward 2048, 32,000 pieces."""
    table: dict[str, tuple[tuple[int, ...], Side]] = {"shared": ((32_000, 512), "shared")}
    sides: tuple[Side, Side] = ("encoder", "decoder")
    for side in sides:
        for layer in range(6):
            for block in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in ("q", "k", "v", "out"):
                    table[f"{side}.{layer}.{block}.{part}.weight"] = ((512, 512), side)
                    table[f"{side}.{layer}.{block}.{part}.bias"] = ((512,), side)
                table[f"{side}.{layer}.{block}.norm.weight"] = table[f"{side}.{layer}.{block}.norm.bias"] = (
                    (512,),
                    side,
                )
            table[f"{side}.{layer}.fc1.weight"] = ((2048, 512), side)
            table[f"{side}.{layer}.fc1.bias"] = ((2048,), side)
            table[f"{side}.{layer}.fc2.weight"] = ((512, 2048), side)
            table[f"{side}.{layer}.fc2.bias"] = ((512,), side)
            table[f"{side}.{layer}.norm.weight"] = table[f"{side}.{layer}.norm.bias"] = ((512,), side)
    return table


@pytest.fixture(scope="module")
def base() -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Side]]:
    generator = torch.Generator().manual_seed(1)
    shapes = marian()
    before = {name: torch.randn(shape, generator=generator) * 0.02 for name, (shape, _) in shapes.items()}
    # Each tensor moves at a pace of its own, drawn apart from its size.
    pace = torch.rand(len(shapes), generator=generator).tolist()
    now = {
        name: old + torch.randn(old.shape, generator=generator) * 0.001 * (0.5 + step)
        for (name, old), step in zip(before.items(), pace, strict=True)
    }
    return now, before, {name: side for name, (_, side) in shapes.items()}


def shares(
    settings: SelectPulling, base: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Side]], side: Side
) -> tuple[float, float]:
    """Of the side's tensors, and of its parameters, those that travel."""
    now, before, sides = base
    chosen = pull(settings, now, before, sides)
    of_side = [name for name in now if sides[name] == side]
    sent = [name for name in of_side if name in chosen]
    return len(sent) / len(of_side), sum(now[name].numel() for name in sent) / sum(now[n].numel() for n in of_side)


@pytest.mark.parametrize("send", ["greater", "less"])
@pytest.mark.parametrize("norm", ["mean_abs", "relative"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_by_default_half_of_each_side_travels(
    base: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Side]], norm: Norm, send: Send, side: Side
) -> None:
    settings = SelectPulling(kind="dynamic_pulling", send=send, norm=norm)
    assert shares(settings, base, side)[1] == pytest.approx(0.5, abs=0.03)
    third = SelectPulling(kind="dynamic_pulling", send=send, norm=norm, share=0.33)
    assert shares(third, base, side)[1] == pytest.approx(0.33, abs=0.03)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_to_the_letter_half_of_the_tensors_are_all_or_nothing(
    base: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Side]], norm: Norm, side: Side
) -> None:
    for send, low, high in (("greater", 0.99, 1.0), ("less", 0.0, 0.01)):
        settings = SelectPulling(kind="dynamic_pulling", send=send, norm=norm, median="tensors")
        of_tensors, of_parameters = shares(settings, base, side)
        assert of_tensors == pytest.approx(0.5, abs=0.01)
        assert low < of_parameters < high


def test_the_halves_have_no_tensor_in_common_and_leave_none_out(
    base: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Side]],
) -> None:
    for more in ({"median": "tensors"}, {"threshold": 0.001}):
        greater = pull(SelectPulling.model_validate({"kind": "dynamic_pulling", "embedding": "never", **more}), *base)
        less = pull(
            SelectPulling.model_validate({"kind": "dynamic_pulling", "embedding": "never", "send": "less", **more}),
            *base,
        )
        assert greater
        assert less
        assert not greater & less
        assert greater | less == set(base[0]) - {"shared"}


def test_the_sides_are_compared_apart_and_the_embedding_goes_as_told() -> None:
    sides: dict[str, Side] = {"e1": "encoder", "e2": "encoder", "d1": "decoder", "d2": "decoder", "s": "shared"}
    before = {name: torch.zeros(4) for name in sides}
    # The decoder moves a thousand times as far: were they compared with each other, the encoder would send nothing.
    now = {name: torch.full((4,), step) for name, step in zip(sides, (0.001, 0.002, 1.0, 2.0, 9.0), strict=True)}
    always = SelectPulling(kind="dynamic_pulling")
    assert pull(always, now, before, sides) == {"e2", "d2", "s"}
    assert pull(always.model_copy(update={"send": "less"}), now, before, sides) == {"e1", "d1", "s"}
    assert pull(always.model_copy(update={"embedding": "never"}), now, before, sides) == {"e2", "d2"}


@pytest.mark.parametrize(
    ("send", "threshold", "expected"),
    [("greater", 0.0, "abc"), ("less", 0.0, ""), ("greater", 2.0, "bc"), ("less", 2.0, "a"), ("greater", 9.0, "")],
)
def test_a_fixed_threshold_is_met_by_what_equals_it(send: Send, threshold: float, expected: str) -> None:
    before = {name: torch.zeros(3) for name in "abc"}
    now = {name: torch.full((3,), float(step)) for step, name in enumerate("abc", start=1)}
    settings = SelectPulling(kind="dynamic_pulling", send=send, threshold=threshold)
    assert pull(settings, now, before, dict.fromkeys("abc", "encoder")) == set(expected)


def test_nothing_that_changed_alike_is_preferred_by_its_place() -> None:
    sides: dict[str, Side] = dict.fromkeys("abcd", "encoder")
    before = {name: torch.zeros(4) for name in sides}
    now = {name: torch.ones(4) for name in sides}
    settings = SelectPulling(kind="dynamic_pulling")
    assert pull(settings, now, before, sides) == pull(settings, dict(reversed(now.items())), before, sides)
    assert len(pull(settings, now, before, sides)) == 2


def test_a_side_sends_something_however_small_the_share() -> None:
    now = {"a": torch.ones(1000), "b": torch.full((1000,), 2.0)}
    settings = SelectPulling(kind="dynamic_pulling", share=0.01)
    assert pull(settings, now, {name: torch.zeros(1000) for name in now}, dict.fromkeys(now, "decoder")) == {"b"}


def test_the_norms() -> None:
    # Longer than one piece, so that the sums go over several.
    before, now = torch.full((100_000,), 2.0), torch.full((100_000,), 2.0)
    now[::2] += 0.5
    expected = {
        "mean_abs": 0.25,
        "l1": 25_000.0,
        "l2": math.sqrt(50_000 * 0.25),
        "relative": math.sqrt(50_000 * 0.25 / 400_000),
    }
    norms: tuple[Norm, ...] = ("mean_abs", "l1", "l2", "relative")
    for norm in norms:
        assert changes({"t": now}, {"t": before}, norm)["t"] == pytest.approx(expected[norm], rel=1e-9)


def test_small_changes_do_not_vanish_in_their_squares() -> None:
    before = {"t": torch.zeros(10)}
    assert changes({"t": torch.full((10,), 1e-30)}, before, "l2")["t"] == pytest.approx(1e-30 * math.sqrt(10), rel=1e-6)


def test_relative_to_nothing() -> None:
    nothing = {"t": torch.zeros(3), "u": torch.zeros(3)}
    assert changes({"t": torch.zeros(3), "u": torch.ones(3)}, nothing, "relative") == {"t": 0.0, "u": GROWN}
