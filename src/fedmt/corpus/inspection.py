"""What cleaning and splitting would make of one source, counted as it streams by. Knows nothing of recipes' silos."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from fedmt import recipe
from fedmt.corpus.clean import Cleaner
from fedmt.corpus.pairs import Direction, Pair
from fedmt.corpus.split import key, place

__all__ = ["Inspection", "inspect"]


@dataclass(frozen=True)
class Inspection:
    """Words are what stands between spaces: Chinese and Thai have few. `sets` are those of a split by hash."""

    direction: Direction
    pairs: int
    kept: int
    dropped: dict[str, int]
    words: tuple[int, int]
    characters: tuple[int, int]
    sets: dict[str, int]
    examples: list[Pair]

    @property
    def mean_words(self) -> tuple[float, float]:
        return self.words[0] / max(self.kept, 1), self.words[1] / max(self.kept, 1)

    @property
    def mean_characters(self) -> tuple[float, float]:
        return self.characters[0] / max(self.kept, 1), self.characters[1] / max(self.kept, 1)


def inspect(
    source: Iterable[Pair],
    direction: Direction,
    clean: recipe.Clean | None = None,
    split: recipe.Split | None = None,
    examples: int = 5,
) -> Inspection:
    """Examples are drawn by hash from the whole source, in its order: its first lines are seldom like the rest."""
    shares = split or recipe.Split()
    cleaner = Cleaner(clean or recipe.Clean())
    read = kept = 0
    words, characters = [0, 0], [0, 0]
    sets: Counter[str] = Counter(train=0, dev=0, test=0)

    def counted() -> Iterator[Pair]:
        nonlocal read
        for pair in source:
            read += 1
            yield pair

    def ranked() -> Iterator[tuple[bytes, int, Pair]]:
        nonlocal kept
        for pair in cleaner.clean(counted()):
            kept += 1
            for side in (0, 1):
                words[side] += len(pair[side].split())
                characters[side] += len(pair[side])
            sets[place(key(pair.source), shares)] += 1
            yield blake2b("\0".join(pair).encode(), digest_size=8, person=b"fedmt.example").digest(), kept, pair

    shown = heapq.nsmallest(examples, ranked())
    sets["dev"], sets["test"] = min(sets["dev"], shares.most_dev), min(sets["test"], shares.most_test)
    return Inspection(
        direction,
        read,
        kept,
        dict(cleaner.dropped),
        (words[0], words[1]),
        (characters[0], characters[1]),
        dict(sets),
        [pair for _, _, pair in sorted(shown, key=lambda entry: entry[1])],
    )
