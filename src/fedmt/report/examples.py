"""Sentences worth showing: where a model gained most on another, where it lost most, and where it did neither.

Looks at text that is on this machine; where it stays with its silo, there are no examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from fedmt.report.folder import RunFolder
from fedmt.score.statistics import measure, scores_of

__all__ = ["Example", "Examples", "choose", "marked"]


@dataclass(frozen=True)
class Example:
    """`gain` is in points of sentence chrF++."""

    silo: str
    source: str
    reference: str
    before: str
    after: str
    gain: float


@dataclass(frozen=True)
class Examples:
    best: list[Example]
    typical: list[Example]
    worst: list[Example]


def choose(folder: RunFolder, silos: Sequence[str], before: str, after: str, most: int = 4) -> Examples | None:
    found: list[Example] = []
    for silo in silos:
        lines = [
            folder.read_lines(name, silo) or (folder.read_lines(f"{name}:{silo}", silo))
            for name in ("source", "reference", before, after)
        ]
        source, reference, first, second = lines
        if not (source and reference and first and second) or len({len(part) for part in lines if part}) != 1:
            continue
        one, other = (scores_of("chrf", measure(part, reference, ter=False).counts["chrf"]) for part in (first, second))
        rows = zip(source, reference, first, second, (other - one).tolist(), strict=True)
        found += [Example(silo, *row) for row in rows]
    # A single word is a poor example, and a page of text is none.
    fit = [example for example in found if 3 <= len(example.reference.split()) <= 40] or found
    if not fit:
        return None
    ordered = sorted(fit, key=lambda example: (example.gain, example.source))
    middle = len(ordered) // 2
    near = ordered[max(0, middle - 50) : middle + 50]
    return Examples(
        best=_various([example for example in reversed(ordered) if example.gain > 0], most),
        typical=_various(sorted(near, key=lambda example: abs(example.gain - ordered[middle].gain)), 2),
        worst=_various([example for example in ordered if example.gain < 0], most),
    )


def marked(text: str, reference: str) -> list[tuple[str, bool]]:
    """The words of a text, each with whether the reference has it too, in the same order."""
    words, wanted = text.split(), reference.split()
    matcher = SequenceMatcher(a=words, b=wanted, autojunk=False)
    right = {place for block in matcher.get_matching_blocks() for place in range(block.a, block.a + block.size)}
    return [(word, place in right) for place, word in enumerate(words)]


def _various(examples: Sequence[Example], most: int) -> list[Example]:
    """The first few, no source twice, and no silo again before the others had their turn."""
    seen: set[str] = set()
    turns: dict[str, int] = {}
    kept: list[tuple[int, int, Example]] = []
    for place, example in enumerate(examples):
        if example.source in seen:
            continue
        seen.add(example.source)
        turn = turns[example.silo] = turns.get(example.silo, -1) + 1
        if turn < most:
            kept.append((turn, place, example))
    chosen = sorted(kept, key=lambda item: item[:2])[:most]
    return [example for _, _, example in sorted(chosen, key=lambda item: item[1])]
