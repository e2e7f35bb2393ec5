"""What is looked up in: records by their codes, or whole states.

Records are added to FAISS as codes, each under its token's number, so that a search gives tokens; no vector is made
again. They are put in one order first, whatever order they came in: an index of several silos' records answers exactly
as one of all of them, ties among equal codes too. Memory holds them once, and gives them up as FAISS takes them. An
index of whole states (`Exact`) asks the same way: for a silo's own memory that never travels, and to measure what
codes lose.

Knows nothing of engines, and nothing of where records come from.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmt.engine.steps import States
from fedmt.errors import RunError
from fedmt.memory.datastore import PART, Layout
from fedmt.memory.quantise import Floats, Quantiser, faiss, same_threads

__all__ = ["Codes", "Exact", "Found", "Index"]

# Records are sorted in so many bands, one after the other; and so many go to their bands together.
BANDS = 64
TOGETHER = 4 * PART


class Found(NamedTuple):
    """Of each state its neighbours, nearest first: squared distances (infinite: none) and tokens (-1: none)."""

    distances: Floats
    tokens: NDArray[np.int64]


class Index(Protocol):
    def __len__(self) -> int: ...
    @property
    def most_probes(self) -> int:
        """Lists that there are to search."""

    def search(self, hidden: Floats, count: int, probes: int) -> Found: ...


class Codes:
    """An index of records, of one silo or merged of many."""

    def __init__(self, quantiser: Quantiser, parts: Iterable[NDArray[np.uint8]], vocabulary: int) -> None:
        """`vocabulary` is the engine's size: a record whose token or list does not exist is refused."""
        self._quantiser, self._index = quantiser, quantiser.empty()
        for band in _banded(parts, quantiser, vocabulary):
            self._take(band)

    def _take(self, band: list[NDArray[np.uint8]]) -> None:
        """All records of some lists, out of `band`, which is emptied: what FAISS holds is not kept here too."""
        if not band:
            return
        records = np.concatenate(band)
        band.clear()
        # As strings of bytes, of which equal ones are equal records: their order decides nothing.
        records.reshape(-1).view(f"S{records.shape[1]}").sort()
        lists, codes, tokens = Layout.of(self._quantiser).unpack(records)
        codes, ids = np.ascontiguousarray(codes), tokens.astype(np.int64)
        starts = np.flatnonzero(np.diff(lists, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(lists)], strict=True):
            # A list at once, so that it has the memory that it needs; `add_sa_codes` adds one by one, and doubles.
            of_list = faiss.swig_ptr(ids[start:end]), faiss.swig_ptr(codes[start:end])
            self._index.invlists.add_entries(int(lists[start]), end - start, *of_list)
        self._index.ntotal += len(lists)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def most_probes(self) -> int:
        return self._quantiser.list_count

    def search(self, hidden: Floats, count: int, probes: int) -> Found:
        asked = faiss.SearchParametersIVF(nprobe=min(probes, self.most_probes))
        distances, tokens = self._index.search(self._quantiser.project(hidden), count, params=asked)
        return _found(distances, tokens)


def _banded(parts: Iterable[NDArray[np.uint8]], quantiser: Quantiser, vocabulary: int) -> list[list[NDArray[np.uint8]]]:
    """The records by the low bits of their lists: all of a list are in one band, and sorting copies one band alone."""
    layout = Layout.of(quantiser)
    bands: list[list[NDArray[np.uint8]]] = [[] for _ in range(BANDS)]
    for records in _together(parts, layout):
        lists, _, tokens = layout.unpack(records)
        if int(lists.max()) >= quantiser.list_count or int(tokens.max()) >= vocabulary:
            raise RunError(
                f"a record names list {int(lists.max())} and token {int(tokens.max())}; allowed are lists below "
                f"{quantiser.list_count} and tokens below {vocabulary}"
            )
        which = lists % BANDS
        records = records[np.argsort(which, kind="stable")]
        ends = np.cumsum(np.bincount(which, minlength=BANDS))
        for band, start, end in zip(bands, [0, *ends], ends, strict=False):
            if end > start:
                band.append(_apart(records[start:end]))
    return bands


def _apart(records: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy that the system has back when it is done with: in the holes that it would leave among the allocator's
    other memory, FAISS's lists would find no room."""
    copy = np.frombuffer(mmap.mmap(-1, records.nbytes), dtype=np.uint8).reshape(records.shape)
    copy[:] = records
    return copy


def _together(parts: Iterable[NDArray[np.uint8]], layout: Layout) -> Iterator[NDArray[np.uint8]]:
    """The same records, `TOGETHER` and never none: bands of a few records each would cost more than they
    hold. What is given is used up before the next is asked for."""
    room, filled = np.empty((TOGETHER, layout.record_bytes), dtype=np.uint8), 0
    for part in parts:
        layout.unpack(part[:0])  # their length is right
        done = 0
        while done < len(part):
            count = min(len(part) - done, TOGETHER - filled)
            room[filled : filled + count] = part[done : done + count]
            filled, done = filled + count, done + count
            if filled == TOGETHER:
                yield room
                filled = 0
    if filled:
        yield room[:filled]


class Exact:
    """An index of the states themselves: d × 4 bytes a token, nothing lost, every one of them compared."""

    def __init__(self, states: Iterable[States]) -> None:
        same_threads()
        self._index: Any = None
        tokens: list[NDArray[np.int64]] = []
        for part in states:
            hidden = part.hidden.float().cpu().numpy()
            self._index = self._index or faiss.IndexFlatL2(hidden.shape[1])
            self._index.add(np.ascontiguousarray(hidden))
            tokens.append(part.tokens.cpu().numpy().astype(np.int64))
        self._tokens = np.concatenate([*tokens, np.full(1, -1)])

    def __len__(self) -> int:
        return len(self._tokens) - 1

    @property
    def most_probes(self) -> int:
        return 1

    def search(self, hidden: Floats, count: int, probes: int) -> Found:  # noqa: ARG002 - there are no lists
        if self._index is None:
            empty = np.full((len(hidden), count), np.inf, dtype=np.float32)
            return Found(empty, np.full(empty.shape, -1))
        distances, places = self._index.search(np.ascontiguousarray(hidden, dtype=np.float32), count)
        return _found(distances, self._tokens[places])


def _found(distances: Floats, tokens: NDArray[np.int64]) -> Found:
    # Rounding may make a state's distance to itself a little less than nothing.
    return Found(np.where(tokens < 0, np.float32(np.inf), np.maximum(distances, 0)), tokens)
