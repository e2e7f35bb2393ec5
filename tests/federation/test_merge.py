"""The algebra of merging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from fedmt.choices import MergeMean, MergeSamples
from fedmt.exchange.update import Update
from fedmt.federation.merge import Fold, weight
from tests.federation.toy import same

Table = dict[str, Tensor]

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.integers(1, 2**40).map(float)
SHAPES = {"a": (2, 3), "b": (4,), "c": ()}
tables: st.SearchStrategy[Table] = st.fixed_dictionaries(
    {name: npst.arrays(np.float32, shape, elements=finite).map(torch.from_numpy) for name, shape in SHAPES.items()}
)
updates = st.lists(st.tuples(tables, weights), min_size=1, max_size=5)


def base() -> Table:
    return {name: torch.full(shape, -7.0) for name, shape in SHAPES.items()}


def merged(updates: Sequence[tuple[Table, float]]) -> Table:
    fold = Fold()
    for tensors, weighs in updates:
        fold.add(Update(tensors, weighs))
    return fold.result(base())


@given(tables, weights | st.floats(1e-6, 1e6))
def test_one_silos_merge_is_itself(tensors: Table, weight: float) -> None:
    assert same(merged([(tensors, weight)]), tensors)


@given(tables, st.lists(weights, min_size=1, max_size=6))
def test_silos_that_agree_merge_to_what_they_agree_on(tensors: Table, weights: list[float]) -> None:
    assert same(merged([(tensors, weight) for weight in weights]), tensors)


@given(updates, st.integers(1, 2**40))
def test_equal_weights_of_any_size_are_the_mean(updates: list[tuple[Table, float]], weight: int) -> None:
    plain = [tensors for tensors, _ in updates]
    assert same(merged([(tensors, float(weight)) for tensors in plain]), merged([(tensors, 1.0) for tensors in plain]))


@given(updates, st.randoms())
def test_the_order_does_not_matter_beyond_the_last_place(updates: list[tuple[Table, float]], random: object) -> None:
    shuffled = list(updates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = merged(updates), merged(shuffled)
    for name in one:
        largest = max(float(tensors[name].abs().max()) for tensors, _ in updates)
        torch.testing.assert_close(one[name], other[name], rtol=2**-23, atol=largest * 2**-45)


@given(updates)
def test_it_is_the_weighted_mean(updates: list[tuple[Table, float]]) -> None:
    total = sum(weight for _, weight in updates)
    for name, tensor in merged(updates).items():
        expected = sum(tensors[name].double() * (weight / total) for tensors, weight in updates)
        assert isinstance(expected, Tensor)
        largest = max(float(tensors[name].abs().max()) for tensors, _ in updates)
        torch.testing.assert_close(tensor.double(), expected, rtol=2**-23, atol=largest * 2**-45 + 1e-45)


def test_by_hand() -> None:
    one, other = {"b": torch.tensor([1.0, 2, 3, 4])}, {"b": torch.tensor([5.0, 2, -1, 0])}
    assert merged([(one, 1.0), (other, 3.0)])["b"].tolist() == [4, 2, 0, 1]


def test_a_tensor_is_averaged_over_its_senders_and_stays_where_nobody_sent_it() -> None:
    fold = Fold()
    fold.add(Update({"a": torch.full((2, 3), 2.0), "c": torch.tensor(1.0)}, 1.0))
    fold.add(Update({"c": torch.tensor(4.0)}, 2.0))
    fold.add(Update({}, 100.0))
    result = fold.result(base())
    assert list(result) == ["a", "b", "c"]
    assert result["a"].tolist() == [[2, 2, 2], [2, 2, 2]]
    assert result["b"].tolist() == [-7, -7, -7, -7]
    assert result["c"].item() == 3
    assert fold.count == 3


def test_nobody_is_the_servers_own() -> None:
    assert same(Fold().result(base()), base())


@given(updates, st.sets(st.sampled_from(sorted(SHAPES))))
def test_masks_cancel(updates: list[tuple[Table, float]], names: set[str]) -> None:
    """What is selected merges as if all had been sent."""
    whole = merged(updates)
    part = merged([({name: tensors[name] for name in names if name in tensors}, weight) for tensors, weight in updates])
    for name in SHAPES:
        assert torch.equal(part[name], whole[name] if name in names else base()[name])


def test_extremes_neither_overflow_nor_vanish() -> None:
    most, least = torch.finfo(torch.float32).max, 1e-45
    for value in (most, least):
        tensors = {"b": torch.full((4,), value)}
        assert torch.equal(merged([(tensors, 3.0), (tensors, 2.0**40)])["b"], tensors["b"])


def test_many_pieces_views_and_half_precision() -> None:
    tensor = torch.randn(400, 700, generator=torch.Generator().manual_seed(1))
    fold = Fold()
    fold.add(Update({"t": tensor.T}, 5.0))
    fold.add(Update({"t": tensor.T}, 6.0))
    assert torch.equal(fold.result({"t": torch.zeros(700, 400)})["t"], tensor.T)
    fold = Fold()
    fold.add(Update({"t": torch.tensor([1.0])}, 1.0))
    assert fold.result({"t": torch.zeros(1, dtype=torch.bfloat16)})["t"].dtype == torch.bfloat16


@pytest.mark.parametrize("samples", [1, 29_000])
def test_silos_weigh_by_their_samples_or_all_the_same(samples: int) -> None:
    assert weight(MergeSamples(), samples) == samples
    assert weight(MergeMean(kind="mean"), samples) == 1


@given(updates, st.sampled_from([0.5, 2.0]))
def test_a_rate_goes_so_far_towards_the_merge_or_beyond(updates: list[tuple[Table, float]], rate: float) -> None:
    small = [
        ({name: tensor.clamp(-1e6, 1e6) for name, tensor in tensors.items()}, weighs) for tensors, weighs in updates
    ]
    fold = Fold()
    for tensors, weighs in small:
        fold.add(Update(tensors, weighs))
    whole, start = merged(small), base()
    for name, tensor in fold.result(start, rate).items():
        expected = start[name].double() + rate * (whole[name].double() - start[name].double())
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-3)
