"""The largest values: exactly so many, and the same as by sorting."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmt.choices import SelectTop
from fedmt.exchange.top import top
from fedmt.place import Side


def sorted_masks(magnitudes: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The plain way: a stable sort, so that of equals the first come first."""
    flat = torch.cat([value.reshape(-1) for value in magnitudes.values()])
    mask = torch.zeros(flat.numel(), dtype=torch.bool)
    mask[torch.sort(flat, descending=True, stable=True).indices[:count]] = True
    parts = torch.tensor_split(mask, torch.tensor([value.numel() for value in magnitudes.values()]).cumsum(0)[:-1])
    return {name: part.view(value.shape) for (name, value), part in zip(magnitudes.items(), parts, strict=True)}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.floats(0.001, 1),
    st.integers(0, 1000),
    st.sampled_from([1e-38, 0.02, 1.0]),
    st.booleans(),
)
def test_it_is_what_sorting_gives(
    shapes: list[tuple[int, int]], share: float, seed: int, scale: float, coarse: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    now = {f"t{index}": torch.randn(shape, generator=generator) * scale for index, shape in enumerate(shapes)}
    before = {name: torch.randn(value.shape, generator=generator) * scale for name, value in now.items()}
    if coarse:  # so that many are equal
        now = {name: (value / scale).round() for name, value in now.items()}
        before = {name: (value / scale).round() for name, value in before.items()}
    sides: dict[str, Side] = dict.fromkeys(now, "encoder")
    count = round(share * sum(value.numel() for value in now.values()))
    found = top(SelectTop(kind="top_k", share=share), now, {}, sides)
    moved = top(SelectTop(kind="top_k", share=share, by="change"), now, before, sides)
    expected = sorted_masks({name: value.abs() for name, value in now.items()}, count)
    expected_moved = sorted_masks({name: (value - before[name]).abs() for name, value in now.items()}, count)
    for name in now:
        assert torch.equal(found[name], expected[name])
        assert torch.equal(moved[name], expected_moved[name])


def test_large_tensors_of_many_pieces_are_exact() -> None:
    generator = torch.Generator().manual_seed(1)
    now = {name: torch.randn(300_000, generator=generator).half().float() for name in "ab"}
    masks = top(SelectTop(kind="top_k", share=0.3), now, {}, dict.fromkeys("ab", "decoder"))
    expected = sorted_masks({name: value.abs() for name, value in now.items()}, 180_000)
    assert all(torch.equal(masks[name], expected[name]) for name in now)


def test_each_side_has_its_own_share() -> None:
    sides: dict[str, Side] = {"e": "encoder", "d": "decoder", "s": "shared"}
    scales = {"e": 0.01, "d": 1.0, "s": 100.0}
    now = {name: torch.randn(5, 20) * scale for name, scale in scales.items()}
    masks = top(SelectTop(kind="top_k", share=0.25), now, {}, sides)
    assert {name: int(mask.sum()) for name, mask in masks.items()} == dict.fromkeys(sides, 25)


def test_of_equals_the_first() -> None:
    now = {"a": torch.tensor([1.0, -1.0, 0.5]), "b": torch.tensor([1.0, 1.0, 2.0])}
    masks = top(SelectTop(kind="top_k", share=0.5), now, {}, dict.fromkeys(now, "encoder"))
    assert masks["a"].tolist() == [True, True, False]
    assert masks["b"].tolist() == [False, False, True]


@pytest.mark.parametrize(("share", "count"), [(0.001, 0), (0.2, 2), (1.0, 10)])
def test_the_count(share: float, count: int) -> None:
    # Zeros throughout: all are equal, and the count must hold all the same.
    masks = top(SelectTop(kind="top_k", share=share), {"t": torch.zeros(10)}, {}, {"t": "encoder"})
    assert masks["t"].tolist() == [index < count for index in range(10)]
