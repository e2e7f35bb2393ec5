"""The words of the corpus side: a pair of sentences, a direction, a silo's text. Knows nothing of engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Direction", "Pair", "Text"]


class Pair(NamedTuple):
    source: str
    target: str


class Direction(NamedTuple):
    """From one language to another, by their codes; `str` gives the `de-en` of `scores.json`."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True)
class Text:
    """The text of one silo (or of the public, or of all silos combined): three sets in one direction.

    `dropped` says how many pairs each cleaning rule took, by the rule's name; `notes` says where the text is from and
    under which licence.
    """

    name: str
    direction: Direction
    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]
    dropped: dict[str, int] = field(default_factory=dict)
    licence: str = ""
    origin: str = ""
