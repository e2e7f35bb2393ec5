"""SVG as text: elements, scales, ticks, and labels that keep apart. Knows nothing of what is drawn.

Colours are classes; the page's style sheet gives them, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

__all__ = ["Scale", "drawing", "element", "fan", "group", "line", "nice", "path", "say", "settle", "width_of"]


def element(name: str, *inside: str, **attributes: object) -> str:
    """`class_` gives `class`; other underscores become hyphens. `title` becomes what hovering tells."""
    title = attributes.pop("title", None)
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    content = (f"<title>{escape(str(title))}</title>" if title else "") + "".join(inside)
    return f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>"


def group(*inside: str, **attributes: object) -> str:
    return element("g", *inside, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str) -> str:
    way = "M" + "L".join(f"{_plain(x)},{_plain(y)}" for x, y in points)
    return element("path", d=way, class_=class_)


def say(x: float, y: float, text: str, class_: str = "", anchor: str = "start") -> str:
    return element("text", escape(text), x=x, y=y, class_=class_, text_anchor=None if anchor == "start" else anchor)


def drawing(width: float, height: float, label: str, *inside: str, class_: str = "") -> str:
    return element(
        "svg",
        *inside,
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_=class_,
    )


@dataclass(frozen=True)
class Scale:
    """From values to places on the page, straight or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    step: float = 0.0

    def __call__(self, value: float) -> float:
        low, high, at = (self.low, self.high, value)
        if self.log:
            low, high, at = (math.log10(max(part, 1e-12)) for part in (low, high, at))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found: list[float] = []
            for factors in ((1, 3), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
                marks = sorted(factor * 10.0**power for power in powers for factor in factors)
                found = [mark for mark in marks if self.low <= mark <= self.high]
                if len(found) > 1:
                    break
            return found
        steps = round((self.high - self.low) / self.step) if self.step else 0
        return [round(self.low + index * self.step, 10) for index in range(steps + 1)]


def nice(values: Sequence[float], start: float, end: float, *, most: int = 5, zero: bool = False) -> Scale:
    """A straight scale that ends at round numbers and holds all the values."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-9:
        low, high = low - (0 if zero and low == 0 else 0.5), high + 0.5
    step = _step(low, high, most)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end, step=step)


def fan(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places as near as may be to the wanted ones, in their order, at least `apart`, inside the bounds if they fit."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    # Labels that touch form a block, which stands where its members would on average.
    blocks: list[tuple[float, int]] = []
    for index in order:
        centre, size = wanted[index], 1
        while True:
            half = (size - 1) * apart / 2
            centre = min(max(centre, low + half), max(high - half, low + half))
            if not blocks or centre - half - (blocks[-1][0] + (blocks[-1][1] - 1) * apart / 2) >= apart - 1e-9:
                break
            before, members = blocks.pop()
            centre = (centre * size + before * members) / (size + members)
            size += members
        blocks.append((centre, size))
    places = [0.0] * len(wanted)
    flat = [centre + (place - (size - 1) / 2) * apart for centre, size in blocks for place in range(size)]
    for index, place in zip(order, flat, strict=True):
        places[index] = place
    return places


Box: TypeAlias = tuple[float, float, float, float]


def settle(
    points: Sequence[tuple[float, float, str]], size: float, bounds: Box, taken: Sequence[Box]
) -> list[tuple[float, float, str]]:
    """Where each point's label stands (x, y, anchor): beside it, as little over others and `taken` as can be had."""
    boxes = [*taken, *((x - 7, y - 7, x + 7, y + 7) for x, y, _ in points)]
    settled = []
    for x, y, label in points:
        wide = width_of(label, size)
        best: tuple[float, float, float, str, Box] | None = None
        for rank, (right, down, anchor) in enumerate(_BESIDE):
            at, base = x + right, y + down + size / 3
            left = at - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
            box = (left, base - size * 0.8, left + wide, base + size * 0.2)
            cost = rank * 4 + sum(_shared(box, other) for other in boxes)
            cost += 50 * (wide * size - _shared(box, bounds) > 1e-6 + 0.05 * wide * size)
            cost += 1000 * (left < bounds[0] or left + wide > bounds[2])
            if best is None or cost < best[0]:
                best = (cost, at, base, anchor, box)
        assert best is not None
        settled.append(best[1:4])
        boxes.append(best[4])
    return settled


_BESIDE = [
    (11, 0, "start"), (-11, 0, "end"), (11, -12, "start"), (11, 12, "start"), (-11, -12, "end"), (-11, 12, "end"),
    (0, -16, "middle"), (0, 16, "middle"), (11, -24, "start"), (11, 24, "start"), (-11, -24, "end"), (-11, 24, "end"),
    (0, -30, "middle"), (0, 30, "middle"),
]  # fmt: skip


def _shared(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def width_of(text: str, size: float = 12) -> float:
    """About how wide a text is in a sans-serif face."""
    return sum(0.7 if letter.isupper() or letter in "mw" else 0.57 for letter in text) * size


def _step(low: float, high: float, most: int) -> float:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
