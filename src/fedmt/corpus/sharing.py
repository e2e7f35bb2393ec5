"""What becomes of the silos' training text between reading it and training on it: some is withheld, some changes hands.

A share of it, chosen by hash, stands in for silos that are poor; mixing turns silos that differ in what they hold into
silos that are alike. Dev and test sets are never touched, so that scores stay comparable. Functions from texts to
texts, which know nothing of recipes and files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Literal, TypeAlias

from fedmt.corpus.pairs import Direction, Pair, Text

__all__ = ["Deal", "mix", "share"]

Deal: TypeAlias = Literal["given", "equal"]


def share(texts: Sequence[Text], kept: float, low: Mapping[str, float] | None = None) -> list[Text]:
    """Each text with that share of its training pairs; those of `low`, by their names, with their own.

    A smaller share is a part of a larger one. What goes is counted under `share`.
    """
    low = low or {}
    return [_shared(text, low.get(text.name, kept)) for text in texts]


def _shared(text: Text, kept: float) -> Text:
    if kept >= 1:
        return text
    # Of anything, something stays: a silo without text is none.
    most = max(1, round(kept * len(text.train))) if text.train else 0
    chosen = _first(text.train, most, "share")
    train = [pair for index, pair in enumerate(text.train) if index in chosen]
    return replace(text, train=train, dropped={**text.dropped, "share": len(text.train) - len(train)})


def mix(texts: Sequence[Text], mixed: float, seed: int, deal: Deal = "given") -> list[Text]:
    """Each text gives that share of its training pairs into its direction's pool, and is dealt others from it.

    `given`: as many as it gave, so that silos stay as large as they are. `equal`: as many as every other in that
    direction, so that with a share of 1 silos are of one size. Nothing is lost and nothing doubled.
    """
    made = list(texts)
    by_direction: dict[Direction, list[int]] = {}
    for index, text in enumerate(texts):
        by_direction.setdefault(text.direction, []).append(index)
    for members in by_direction.values():
        # A pool of one silo would hand its pairs back, in another order.
        if mixed <= 0 or len(members) < 2:
            continue
        kept: list[list[Pair]] = []
        pool: list[tuple[bytes, Pair]] = []
        gave = []
        for index in members:
            text = texts[index]
            given = _first(text.train, round(mixed * len(text.train)), f"give/{seed}")
            kept.append([pair for at, pair in enumerate(text.train) if at not in given])
            # Shuffled by the hash of pair, giver and seed: the same on every machine, whatever the order of the silos.
            pool += [(_rank(text.train[at], f"deal/{seed}/{text.name}/{at}"), text.train[at]) for at in given]
            gave.append(len(given))
        dealt = [pair for _, pair in sorted(pool)]
        ends = _ends(gave, deal)
        for index, own, begin, end in zip(members, kept, [0, *ends], ends, strict=False):
            made[index] = replace(texts[index], train=[*own, *dealt[begin:end]])
    return made


def _ends(gave: Sequence[int], deal: Deal) -> list[int]:
    """Where in the pool each silo's part ends."""
    if deal == "given":
        return [sum(gave[: index + 1]) for index in range(len(gave))]
    return [sum(gave) * (index + 1) // len(gave) for index in range(len(gave))]


def _first(pairs: Sequence[Pair], most: int, salt: str) -> set[int]:
    """The places of so many pairs, by hash: the first lines of a corpus are seldom like the rest."""
    ranked = sorted(range(len(pairs)), key=lambda index: (_rank(pairs[index], salt), index))
    return set(ranked[:most])


def _rank(pair: Pair, salt: str) -> bytes:
    return blake2b("\0".join((salt, *pair)).encode(), digest_size=8, person=b"fedmt.sharing").digest()
