"""Which sentence belongs to which set: a function of the source sentence alone, and so the same in every silo.

A sentence's key is a hash of its tidied, case-folded text; read as a number between 0 and 1 it is test below the test
share, dev below both shares together, and train above. No sentence then stands in two sets of a silo, nor in one silo's
training and another's test, whoever splits and whenever. Knows nothing of files and silos.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from hashlib import blake2b

from fedmt import recipe
from fedmt.corpus.clean import tidy
from fedmt.corpus.pairs import Pair

__all__ = ["key", "keys", "place", "split", "without"]

_ALL = 1 << 64


def key(text: str) -> int:
    """64 bits of the sentence, the same on every machine, however it is spaced, composed and capitalised."""
    folded = unicodedata.normalize("NFC", tidy(text).casefold())
    return int.from_bytes(blake2b(folded.encode(), digest_size=8, person=b"fedmt.split").digest())


def keys(pairs: Iterable[Pair]) -> set[int]:
    """The keys of the source sentences, for `without`."""
    return {key(pair.source) for pair in pairs}


def place(number: int, settings: recipe.Split) -> str:
    """The set of the sentence with this key: train, dev or test."""
    share = number / _ALL
    if share < settings.test:
        return "test"
    return "dev" if share < settings.test + settings.dev else "train"


def split(
    pairs: Iterable[Pair], settings: recipe.Split, dropped: dict[str, int] | None = None
) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Train, dev and test, each in the order of the pairs.

    Beyond `most_dev` and `most_test` the pairs with the smallest keys are kept. The others are dropped, and counted
    under those names in `dropped`: they cannot go back to training, because another silo may test on them.
    """
    train: list[Pair] = []
    held: dict[str, list[tuple[int, int, Pair]]] = {"dev": [], "test": []}
    for index, pair in enumerate(pairs):
        number = key(pair.source)
        where = place(number, settings)
        if where == "train":
            train.append(pair)
        else:
            held[where].append((number, index, pair))
    dev = _most(held["dev"], settings.most_dev, "most_dev", dropped)
    test = _most(held["test"], settings.most_test, "most_test", dropped)
    return train, dev, test


def without(pairs: Iterable[Pair], sources: AbstractSet[int]) -> Iterator[Pair]:
    """The pairs whose source sentence is none of these (see `keys`): what stands in a dev or test file."""
    return (pair for pair in pairs if key(pair.source) not in sources)


def _most(held: list[tuple[int, int, Pair]], most: int, rule: str, dropped: dict[str, int] | None) -> list[Pair]:
    # Pairs of one sentence differ in their target only; ordering by it keeps the choice free of the files' order.
    kept = sorted(held, key=lambda entry: (entry[0], entry[2].target))[:most]
    if dropped is not None:
        dropped[rule] = dropped.get(rule, 0) + len(held) - len(kept)
    return [pair for _, _, pair in sorted(kept, key=lambda entry: entry[1])]
