"""Token batches: pairs of like length together, so that little is padding. Knows token ids, and nothing of engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch", "Examples", "batches", "plan"]

Ids = NDArray[np.int32]

STEP = 4


@dataclass(frozen=True)
class Batch:
    """`source` and `target` are padded with `pad`; a target ends in the end-of-sentence id.

    `start` has, for each pair, what the decoder reads first; None: what the engine always begins with.
    """

    source: Tensor
    target: Tensor
    target_tokens: int
    start: Tensor | None = None


@dataclass(frozen=True)
class Examples:
    """Pairs as token ids, each side in one flat array: a million pairs cost no million small objects."""

    source: Ids
    target: Ids
    source_ends: NDArray[np.int64]
    target_ends: NDArray[np.int64]
    left_out: int = 0
    starts: Ids | None = None

    @classmethod
    def of(
        cls,
        sources: Iterable[Sequence[int]],
        targets: Iterable[Sequence[int]],
        longest: int | None = None,
        start: int | None = None,
    ) -> Examples:
        """Pairs longer than `longest` on either side are left out, and counted.

        `start` is what the decoder reads before each of these targets: in some engines it names their language.
        """
        kept = [(s, t) for s, t in zip(sources, targets, strict=True)]
        whole = len(kept)
        if longest is not None:
            kept = [(s, t) for s, t in kept if max(len(s), len(t)) <= longest]
        source, source_ends = _flat(s for s, _ in kept)
        target, target_ends = _flat(t for _, t in kept)
        starts = None if start is None else np.full(len(kept), start, dtype=np.int32)
        return cls(source, target, source_ends, target_ends, whole - len(kept), starts)

    @classmethod
    def join(cls, several: Sequence[Examples]) -> Examples:
        starts = [e.starts for e in several if e.starts is not None]
        assert len(starts) in (0, len(several))
        shifts = [np.cumsum([0] + [len(getattr(e, side)) for e in several[:-1]]) for side in ("source", "target")]
        return cls(
            np.concatenate([e.source for e in several]),
            np.concatenate([e.target for e in several]),
            np.concatenate([e.source_ends + shift for e, shift in zip(several, shifts[0], strict=True)]),
            np.concatenate([e.target_ends + shift for e, shift in zip(several, shifts[1], strict=True)]),
            sum(e.left_out for e in several),
            np.concatenate(starts) if starts else None,
        )

    def __len__(self) -> int:
        return len(self.source_ends)

    @property
    def source_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.source_ends, prepend=0)

    @property
    def target_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.target_ends, prepend=0)

    def batch(self, indices: NDArray[np.int64], pad: int) -> Batch:
        source = _padded(self.source, self.source_ends, indices, pad)
        target = _padded(self.target, self.target_ends, indices, pad)
        start = None if self.starts is None else torch.from_numpy(self.starts[indices].astype(np.int64))
        return Batch(source, target, int(self.target_lengths[indices].sum()), start)


def plan(
    source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64], batch_tokens: int, seed: int
) -> list[NDArray[np.int64]]:
    """Which pairs stand in which batch: sorted by width with ties at random, cut by tokens, batches in random order.

    A batch holds at most `batch_tokens` on its longer side, padding counted, and always at least one pair.
    """
    random = np.random.default_rng(seed)
    source, target = _width(source_lengths), _width(target_lengths)
    longer = np.maximum(source, target)
    # Sorting by the longer side first keeps both sides' padding small; the second key evens out the shorter side.
    order = np.lexsort((random.random(len(longer)), source, target, longer))
    cuts: list[NDArray[np.int64]] = []
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or int(longer[order[end]]) * (end + 1 - start) > batch_tokens:
            cuts.append(order[start:end])
            start = end
    return [cuts[i] for i in random.permutation(len(cuts))]


def batches(
    examples: Examples, pad: int, batch_tokens: int, seed: int, start: int = 0
) -> Iterator[tuple[int, int, Batch]]:
    """One epoch's batches from the `start`-th on, each with its place and how many there are."""
    planned = plan(examples.source_lengths, examples.target_lengths, batch_tokens, seed)
    for at in range(start, len(planned)):
        yield at, len(planned), examples.batch(planned[at], pad)


def _flat(sequences: Iterable[Sequence[int]]) -> tuple[Ids, NDArray[np.int64]]:
    listed = list(sequences)
    ends = np.cumsum([len(s) for s in listed], dtype=np.int64)
    flat = np.fromiter((i for s in listed for i in s), dtype=np.int32, count=int(ends[-1]) if len(ends) else 0)
    return flat, ends


def _width(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Few shapes, so that kernels and memory of one batch serve the next: 7 % more tokens a second, docs/log.md."""
    return -(-lengths // STEP) * STEP


def _padded(flat: Ids, ends: NDArray[np.int64], indices: NDArray[np.int64], pad: int) -> Tensor:
    starts = np.where(indices > 0, ends[indices - 1], 0)
    lengths = ends[indices] - starts
    columns = np.arange(int(_width(lengths).max()))
    mask = columns < lengths[:, None]
    padded = np.full(mask.shape, pad, dtype=np.int64)
    padded[mask] = flat[(starts[:, None] + columns)[mask]]
    return torch.from_numpy(padded)
