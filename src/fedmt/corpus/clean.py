"""Cleaning, streamed: text is normalised, then five rules drop pairs and count what they drop.

Text becomes NFC, every run of white space (no-break and ideographic spaces, tabs, control characters) one space, and
what has no width (zero-width spaces, byte-order marks, soft hyphens, direction marks) nothing. The zero-width joiner
and non-joiner stay: Persian, the Indic scripts and emoji are spelt with them. Knows nothing of files and languages.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from fedmt import recipe
from fedmt.corpus.pairs import Pair

__all__ = ["RULES", "Cleaner", "tidy"]

# In the order they are asked: a pair is counted under the first that drops it.
RULES = ("empty", "copies", "longest", "ratio", "duplicates")

_WIDTHLESS = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff]"
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def tidy(text: str) -> str:
    """The text in the one form in which it is compared, counted and learnt from. Tidying twice changes nothing."""
    if not text.isascii():
        # First of all: what stands between a letter and its accent would keep them from being composed.
        text = unicodedata.normalize("NFC", _WIDTHLESS.sub("", text))
    return " ".join(_CONTROL.sub(" ", text).split())


class Cleaner:
    """Remembers what it has seen, so that one cleaner over all files of a silo finds duplicates between them."""

    def __init__(self, settings: recipe.Clean) -> None:
        self._settings = settings
        self._seen: set[int] = set()
        self.dropped = dict.fromkeys(RULES, 0)

    def clean(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        for raw in pairs:
            pair = Pair(tidy(raw.source), tidy(raw.target))
            rule = self._broken(pair)
            if rule is None:
                yield pair
            else:
                self.dropped[rule] += 1

    def _broken(self, pair: Pair) -> str | None:
        settings = self._settings
        if not pair.source or not pair.target:
            return "empty"
        if settings.copies and pair.source == pair.target:
            return "copies"
        shorter, longer = sorted((len(pair.source), len(pair.target)))
        if longer > settings.longest:
            return "longest"
        if settings.ratio is not None and longer > settings.ratio * shorter + settings.ratio_slack:
            return "ratio"
        if settings.duplicates:
            # Eight bytes a pair rather than its text: among ten million, two differ and collide once in 400,000 times.
            key = int.from_bytes(blake2b("\0".join(pair).encode(), digest_size=8).digest())
            if key in self._seen:
                return "duplicates"
            self._seen.add(key)
        return None
