"""Token batches: every pair once, within the limit, the same by seed, padded on the right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmt.corpus.batches import STEP, Batch, Examples, batches, plan

PAD = 99
Sequences = list[list[int]]

sequence = st.lists(st.integers(0, 50), min_size=1, max_size=12)
pairs = st.lists(st.tuples(sequence, sequence), max_size=40)
limits = st.integers(16, 100)
seeds = st.integers(0, 2**63 - 1)


def examples(found: list[tuple[list[int], list[int]]], **settings: int) -> Examples:
    return Examples.of([source for source, _ in found], [target for _, target in found], **settings)


def planned(found: Examples, limit: int, seed: int) -> list[list[int]]:
    return [part.tolist() for part in plan(found.source_lengths, found.target_lengths, limit, seed)]


def rows(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch, without their padding."""

    def unpadded(side: torch.Tensor) -> Sequences:
        return [[index for index in row if index != PAD] for row in side.tolist()]

    return list(zip(unpadded(batch.source), unpadded(batch.target), strict=True))


@given(pairs, limits, seeds)
def test_every_pair_stands_in_exactly_one_batch(
    found: list[tuple[list[int], list[int]]], limit: int, seed: int
) -> None:
    told = planned(examples(found), limit, seed)
    assert sorted(index for part in told for index in part) == list(range(len(found)))
    assert all(told)


@given(pairs, limits, seeds)
def test_a_batch_of_several_pairs_is_within_the_limit_padding_counted(
    found: list[tuple[list[int], list[int]]], limit: int, seed: int
) -> None:
    for _, _, batch in batches(examples(found), PAD, limit, seed):
        assert len(batch.source) == 1 or max(batch.source.numel(), batch.target.numel()) <= limit


def test_a_pair_above_the_limit_stands_alone() -> None:
    found = examples([([1] * 50, [1]), ([1] * 2, [1] * 2), ([1], [1] * 40)])
    assert sorted(map(sorted, planned(found, 16, seed=0))) == [[0], [1], [2]]


@given(pairs, limits, seeds)
def test_the_seed_decides_the_batches_and_not_how_many(
    found: list[tuple[list[int], list[int]]], limit: int, seed: int
) -> None:
    """So the steps of a training are known before it begins."""
    known = examples(found)
    assert planned(known, limit, seed) == planned(known, limit, seed)
    assert len(planned(known, limit, seed)) == len(planned(known, limit, seed=1))


def test_another_seed_gives_other_batches_in_another_order() -> None:
    chance = np.random.default_rng(0)
    lengths = chance.integers(3, 9, 200), chance.integers(3, 9, 200)
    one, other = (plan(*lengths, 40, seed) for seed in (1, 2))
    assert {tuple(sorted(part)) for part in map(np.ndarray.tolist, one)} != {
        tuple(sorted(part)) for part in map(np.ndarray.tolist, other)
    }
    # Batches of short and of long pairs are mixed: an epoch does not go from the short to the long.
    longest = [int(np.maximum(*lengths)[part].max()) for part in one]
    assert longest != sorted(longest)


@given(st.lists(st.tuples(sequence, sequence), min_size=1, max_size=12), seeds)
def test_padding_stands_on_the_right_and_target_tokens_are_the_real_ones(
    found: list[tuple[list[int], list[int]]], seed: int
) -> None:
    seen = []
    for _, _, batch in batches(examples(found), PAD, 40, seed):
        assert batch.source.dtype == batch.target.dtype == torch.int64
        for side in (batch.source, batch.target):
            real = side.ne(PAD)
            assert torch.equal(real, real.long().cummin(1).values.bool())
            assert side.shape[1] % STEP == 0, "few widths"
            assert real[:, -STEP].any(), "and no more columns of padding only than that takes"
        assert batch.target_tokens == int(batch.target.ne(PAD).sum())
        seen += rows(batch)
    assert sorted(seen) == sorted(found)


def test_like_lengths_stand_together() -> None:
    """Shuffled pairs lose about half of each batch to padding; sorted ones little beyond the rounding of widths."""
    chance = np.random.default_rng(0)
    lengths = [int(length) for length in chance.integers(1, 60, 500)]
    found = examples([([1] * length, [2] * max(1, length - 3)) for length in lengths])
    told = [batch for _, _, batch in batches(found, PAD, 600, 0)]
    whole = sum(batch.source.numel() for batch in told)
    rounded = sum(-(-length // STEP) * STEP for length in lengths)
    assert rounded / whole > 0.95


@given(pairs, limits, seeds, st.integers(0, 10))
def test_an_epoch_goes_on_from_any_batch(
    found: list[tuple[list[int], list[int]]], limit: int, seed: int, start: int
) -> None:
    known = examples(found)
    whole = list(batches(known, PAD, limit, seed))
    rest = list(batches(known, PAD, limit, seed, start))
    assert [at for at, _, _ in rest] == list(range(start, len(whole)))
    assert all(of == len(whole) for _, of, _ in rest)
    for (_, _, one), (_, _, other) in zip(whole[start:], rest, strict=True):
        assert torch.equal(one.source, other.source)
        assert torch.equal(one.target, other.target)


def test_pairs_too_long_on_either_side_are_left_out_and_counted() -> None:
    found = examples([([1] * 3, [1]), ([1], [1] * 5), ([1] * 4, [1] * 4)], longest=4)
    assert (len(found), found.left_out) == (2, 1)
    assert found.source_lengths.tolist() == [3, 4]
    assert found.target_lengths.tolist() == [1, 4]


@given(st.lists(pairs, min_size=1, max_size=4))
def test_joined_examples_are_those_of_all_pairs(several: list[list[tuple[list[int], list[int]]]]) -> None:
    joined = Examples.join([examples(found, longest=8) for found in several])
    whole = examples([pair for found in several for pair in found], longest=8)
    for name in ("source", "target", "source_ends", "target_ends"):
        assert getattr(joined, name).tolist() == getattr(whole, name).tolist()
    assert joined.left_out == whole.left_out


def test_each_pair_keeps_what_its_decoder_reads_first() -> None:
    english, french = examples([([1], [2]), ([3, 3], [4])], start=7), examples([([5], [6])], start=8)
    joined = Examples.join([english, french])
    (first,) = (batch for _, _, batch in batches(joined, PAD, 16, 0))
    assert first.start is not None
    told = dict(zip([row[0] for row in first.source.tolist()], first.start.tolist(), strict=True))
    assert told == {1: 7, 3: 7, 5: 8}
    assert examples([([1], [2])]).batch(np.array([0]), PAD).start is None


def test_a_source_without_its_target_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Examples.of([[1], [2]], [[1]])
