"""Private words: those of a silo that public text does not hold; and how many of them somebody else has hit upon.

A word is a run of letters and digits, whatever its capitals. Knows nothing of engines and records.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from fedmt.corpus.pairs import Pair

__all__ = ["Hits", "hits", "private", "words"]

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Hits:
    """Private words `said`, of which `right` stand in the truth; those `there` in it, of which `found` were said."""

    said: int
    right: int
    there: int
    found: int

    @property
    def precision(self) -> float | None:
        """In percent; None where no private word was said."""
        return 100 * self.right / self.said if self.said else None

    @property
    def recall(self) -> float | None:
        return 100 * self.found / self.there if self.there else None

    @property
    def f1(self) -> float | None:
        precision, recall = self.precision, self.recall
        if precision is None or recall is None:
            return None
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).casefold())


def private(own: Iterable[Pair], *others: Iterable[Pair]) -> frozenset[str]:
    """The words of the one text, on either side, that none of the others holds on either side."""
    return frozenset(_all(own).difference(*map(_all, others)))


def hits(guesses: Sequence[str], truths: Sequence[str], dictionary: Set[str]) -> Hits:
    """Text against text, counting words of the dictionary only, each as often as it stands there."""
    said = right = there = found = 0
    for guess, truth in zip(guesses, truths, strict=True):
        ours, theirs = ([word for word in words(text) if word in dictionary] for text in (guess, truth))
        said, there = said + len(ours), there + len(theirs)
        right += sum(word in theirs for word in ours)
        found += sum(word in ours for word in theirs)
    return Hits(said, right, there, found)


def _all(pairs: Iterable[Pair]) -> set[str]:
    return {word for pair in pairs for side in pair for word in words(side)}
