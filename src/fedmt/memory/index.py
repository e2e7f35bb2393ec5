"""What is looked up in: records by their codes, or whole states.

Records are added to FAISS as codes (`add_sa_codes`), each under its token's number, so that a search gives tokens; no
vector is made again. They are put in one order first, whatever order they came in: an index of several silos' records
answers exactly as one of all of them, ties among equal codes too. An index of whole states (`Exact`) asks the same
way: for a silo's own memory that never travels, and to measure what codes lose.

Knows nothing of engines, and nothing of where records come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmt.engine.steps import States
from fedmt.errors import RunError
from fedmt.memory.datastore import PART, Layout
from fedmt.memory.quantise import Floats, Quantiser, faiss, same_threads

__all__ = ["Codes", "Exact", "Found", "Index"]


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
        layout = Layout.of(quantiser)
        given = list(parts)
        for part in given:
            layout.unpack(part[:0])  # their length is right
        records = np.concatenate(given) if given else np.empty((0, layout.record_bytes), dtype=np.uint8)
        del given
        # As strings of bytes, of which equal ones are equal records: their order decides nothing.
        records.reshape(-1).view(f"S{layout.record_bytes}").sort()
        self._quantiser, self._index = quantiser, quantiser.empty()
        for start in range(0, len(records), PART):
            lists, codes, tokens = layout.unpack(records[start : start + PART])
            if int(lists.max()) >= quantiser.list_count or int(tokens.max()) >= vocabulary:
                raise RunError(
                    f"a record names list {int(lists.max())} and token {int(tokens.max())}; allowed are lists below "
                    f"{quantiser.list_count} and tokens below {vocabulary}"
                )
            self._index.add_sa_codes(quantiser.joined(lists, codes), tokens.astype(np.int64))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def most_probes(self) -> int:
        return self._quantiser.list_count

    def search(self, hidden: Floats, count: int, probes: int) -> Found:
        asked = faiss.SearchParametersIVF(nprobe=min(probes, self.most_probes))
        distances, tokens = self._index.search(self._quantiser.project(hidden), count, params=asked)
        return _found(distances, tokens)


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
