"""The nearest-prefix probe: another's record is taken for the attacker's own nearest one, and its prefix with it.

No training; what is right of the prefix is what nearness in the space of the keys tells. Knows nothing of engines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmt.memory.quantise import Floats, faiss, same_threads
from fedmt.privacy.observed import Numbers, Observed

__all__ = ["DEPTHS", "Probed", "alike", "anyhow", "nearest", "same_token"]

# So many last tokens of a prefix are compared.
DEPTHS = (1, 2, 4)
# Of what is drawn at random, over which is averaged.
DRAWS = 20


@dataclass(frozen=True)
class Probed:
    """By depth: the share of the prefix's last tokens that were right, in percent, and of how many records.

    Records with fewer tokens before them than the depth do not count; with none that do, the share is None.
    """

    shares: dict[int, float | None]
    records: dict[int, int]


def nearest(own: Floats, asked: Floats) -> Numbers:
    """Of each key asked for, the place of the own one nearest to it."""
    same_threads()
    index = faiss.IndexFlatL2(own.shape[1])
    index.add(np.ascontiguousarray(own, dtype=np.float32))
    _, found = index.search(np.ascontiguousarray(asked, dtype=np.float32), 1)
    places: Numbers = found[:, 0]
    return places


def alike(own: Observed, asked: Observed, found: Numbers) -> Probed:
    """How much of each record's prefix is that of the own record found for it; `found` may hold several tries."""
    tries = found.reshape(len(asked), -1)
    shares: dict[int, float | None] = {}
    records = {}
    for depth in DEPTHS:
        rows = np.flatnonzero(asked.place >= depth).tolist()
        theirs = np.array([asked.before(row)[-depth:] for row in rows]).reshape(len(rows), 1, depth)
        ours = np.array([[_last(own, place, depth) for place in tries[row].tolist()] for row in rows]).reshape(
            -1, depth
        )
        same = ours.reshape(len(rows), tries.shape[1], depth) == theirs
        shares[depth] = float(100 * same.mean()) if len(rows) else None
        records[depth] = len(rows)
    return Probed(shares, records)


def anyhow(own: Observed, asked: Observed, seed: int) -> Numbers:
    """Any own records, drawn for each one asked for: chance."""
    return np.random.default_rng(seed).integers(len(own), size=(len(asked), DRAWS))


def same_token(own: Observed, asked: Observed, seed: int) -> Numbers:
    """Any own records with the same token, where there are any: what a record tells without its key."""
    draw = np.random.default_rng(seed)
    order = np.argsort(own.tokens, kind="stable")
    first, last = (np.searchsorted(own.tokens[order], asked.tokens, side) for side in ("left", "right"))
    count = (last - first)[:, None]
    chance = draw.random((len(asked), DRAWS))
    by_token = order[np.minimum(first[:, None] + (chance * count).astype(np.int64), len(own) - 1)]
    return np.where(count > 0, by_token, (chance * len(own)).astype(np.int64))


def _last(observed: Observed, row: int, depth: int) -> list[int]:
    """The last tokens before a record; where there are too few, what is no token."""
    before = observed.before(row)[-depth:]
    return [-1] * (depth - len(before)) + before
