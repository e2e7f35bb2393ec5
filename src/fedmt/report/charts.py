"""The plots of studies, as inline SVG: how far tensors went, what passed a threshold, learning by steps.

Each takes the width it is drawn for. Knows no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedmt.report.shifts import Cut, Shifts
from fedmt.report.studies import Passed
from fedmt.report.svg import Scale, drawing, element, fan, group, line, nice, path, say, width_of
from fedmt.report.tables import count
from fedmt.report.tallies import percent

__all__ = ["RUNS", "colour", "histogram", "learning", "passed", "span"]

RUNS = 8  # colours there are; the ninth run has the first's, dashed
_BIN = 0.2  # decades


def span(every: Sequence[Shifts]) -> tuple[float, float]:
    """The decades that hold all values and thresholds of these panels, at the edges of bins."""
    values = [value for one in every for value in (*one.values, *(cut.at for cut in one.cuts))]
    low, high = math.floor(min(values) / _BIN + 1e-9), math.ceil(max(values) / _BIN - 1e-9)
    return low * _BIN, max(high, low + 5) * _BIN


def histogram(one: Shifts, every: Sequence[Shifts], measured: str, width: float) -> str:
    """How many of a silo's tensors went how far in one round; all panels share both scales."""
    low, high = span(every)
    bins = round((high - low) / _BIN)
    across = Scale(low, high, 26, width - 6)
    top = 32.0 + 13 * max(len(each.cuts) for each in every)
    height = top + 114
    down = nice([0.0, *(max(_counts(each, low, bins)) for each in every)], height - 36, top, most=3, zero=True)
    parts = [say(0, 13, f"round {one.round}", "name strong")]
    told = f"{count(round((len(one.values) + one.still) / max(one.silos, 1)))} tensors a silo"
    parts.append(say(width, 13, told, "tick", "end"))
    for tick in down.ticks():
        parts += [line(26, down(tick), width - 6, down(tick), "grid" if tick else "zero")]
        parts.append(say(20, down(tick) + 4, f"{tick:g}", "tick", "end"))
    whole = [float(power) for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    for power in whole or [low, high]:
        parts.append(say(across(power), height - 20, _power(power), "tick", "middle"))
    parts.append(say((26 + width - 6) / 2, height - 3, measured, "axis", "middle"))
    for index, many in enumerate(_counts(one, low, bins)):
        if many:
            start, end = across(low + index * _BIN), across(low + (index + 1) * _BIN)
            between = f"{10 ** (low + index * _BIN):.2g} to {10 ** (low + (index + 1) * _BIN):.2g}"
            parts.append(
                element(
                    "rect",
                    x=start + 0.5,
                    y=down(many),
                    width=end - start - 1,
                    height=max(down(0) - down(many), 0.5),
                    class_="bar",
                    title=f"{many:.3g} tensors went {between}",
                )
            )
    parts += _cuts(one.cuts, across, top, down(0), width)
    label = f"changes of {one.side} tensors in round {one.round}"
    return drawing(width, height, label, *parts, class_="plot panel")


def passed(rounds: Sequence[Passed], name: str, width: float) -> str:
    """θ, and the shares of tensors and parameters that it let through, round by round."""
    lines = {
        "tensors": [(one.round, one.tensors) for one in rounds],
        "parameters": [(one.round, one.parameters) for one in rounds],
        "theta": [(one.round, one.theta) for one in rounds if one.theta is not None],
    }
    drawn = {kind: points for kind, points in lines.items() if points}
    named = {"tensors": "tensors", "parameters": "parameters", "theta": "θ"}
    height, left = 176.0, 32.0
    right = width - 12 - max(width_of(named[kind], 11.5) for kind in drawn)
    down = nice([0.0, 1.0, *(y for points in drawn.values() for _, y in points)], height - 36, 30, most=4)
    across = Scale(rounds[0].round, rounds[-1].round, left, right)
    parts = [say(0, 13, name, "name strong")]
    for tick in down.ticks():
        parts += [line(left, down(tick), right, down(tick), "grid" if tick else "zero")]
        parts.append(say(left - 6, down(tick) + 4, f"{tick:g}", "tick", "end"))
    step = -(-len(rounds) // 6)
    parts += [say(across(one.round), height - 20, str(one.round), "tick", "middle") for one in rounds[::step]]
    parts.append(say((left + right) / 2, height - 3, "round", "axis", "middle"))
    ends = fan([down(points[-1][1]) for points in drawn.values()], 13, 36, height - 38)
    for (kind, points), end in zip(drawn.items(), ends, strict=True):
        way = [(across(x), down(y)) for x, y in points]
        spots = [
            element("circle", cx=x, cy=y, r=3, class_="spot", title=f"round {at}: {_told(kind, value)}")
            for (x, y), (at, value) in zip(way, points, strict=True)
        ]
        label = say(way[-1][0] + 8, end + 4, named[kind], "label")
        parts.append(group(path(way, "curve"), *spots, label, class_=f"passed {kind}"))
    return drawing(width, height, f"what passed in {name}", *parts, class_="plot panel")


def learning(curves: Mapping[str, Sequence[tuple[float, float]]], width: float) -> str:
    """A curve for each run: dev loss by the steps that a silo has done."""
    narrow = width < 500
    names = list(curves)
    steps = [x for points in curves.values() for x, _ in points]
    longest = max(width_of(name, 11.5) for name in names)
    # Names that would take much of the width, or stand too close to each other, are told above.
    beside = not narrow and longest < width / 4 and len(names) * 13 < 230
    left, right = 44.0, width - (18 + longest if beside else 10)
    key, rows = ([], 0) if beside else _key(names, width)
    top = 30.0 + 18 * rows
    height = top + 290
    down = nice([y for points in curves.values() for _, y in points], height - 44, top, most=5)
    across = nice([0.0, *steps], left, right, most=4 if narrow else 7, zero=True)
    across = Scale(0.0, max(*steps, 1.0), left, right, step=across.step)
    parts = [say(0, 12, "dev loss, nats a token", "axis"), *key]
    for tick in down.ticks():
        parts += [line(left, down(tick), right, down(tick), "grid")]
        parts.append(say(left - 8, down(tick) + 4, f"{tick:g}", "tick", "end"))
    for tick in across.ticks():
        if tick <= across.high + 1e-9:
            parts.append(say(across(tick), height - 26, count(round(tick)), "tick", "middle"))
    parts.append(say((left + right) / 2, height - 5, "training steps of a silo so far", "axis", "middle"))
    ends = fan([down(curves[name][-1][1]) for name in names], 13, top + 6, height - 46)
    for index, (name, end) in enumerate(zip(names, ends, strict=True)):
        points = curves[name]
        way = [(across(x), down(y)) for x, y in points]
        spots = [
            element("circle", cx=x, cy=y, r=3.2, class_="spot", title=_point(name, place, *points[place]))
            for place, (x, y) in enumerate(way)
        ]
        label = [say(right + 10, end + 4, name, "label")] if beside else []
        if beside and right - way[-1][0] > 24:
            label.append(line(way[-1][0] + 6, way[-1][1], right + 6, end, "grid"))
        parts.append(group(path(way, "curve"), *spots, *label, class_=colour(index)))
    return drawing(width, height, "dev loss of every run by training steps", *parts, class_="plot")


def colour(index: int) -> str:
    return f"run run{index % RUNS}" + (" again" if index >= RUNS else "")


def _key(names: Sequence[str], width: float) -> tuple[list[str], int]:
    """The runs' names with their colours, and on how many lines they stand."""
    parts = []
    x, y = 0.0, 32.0
    for index, name in enumerate(names):
        long = width_of(name, 11.5) + 36
        if x and x + long > width:
            x, y = 0.0, y + 18
        shown = [path([(x, y - 4), (x + 18, y - 4)], "curve"), say(x + 23, y, name, "label")]
        parts.append(group(*shown, class_=colour(index)))
        x += long
    return parts, round((y - 32) / 18) + 1


def _cuts(cuts: Sequence[Cut], across: Scale, top: float, bottom: float, width: float) -> list[str]:
    """Lines down from their names, each name on a line of its own and clear of the lines that come from above it.

    Names that have room go to the right of their lines, from left to right; what has none comes first, to the left.
    """
    placed = [(across(cut.at), cut) for cut in cuts]
    crowded = [one for one in placed if one[0] + 5 + width_of(one[1].name, 11.5) > width]
    rows = sorted(crowded, key=lambda one: -one[0])
    rows += sorted((one for one in placed if one not in crowded), key=lambda one: one[0])
    parts = []
    for row, (x, cut) in enumerate(rows):
        y = top - 13 * (len(rows) - row)
        away, anchor = (-5, "end") if (x, cut) in crowded else (5, "start")
        shown = [line(x, y - 9, x, bottom, ""), say(x + away, y, cut.name, "label", anchor)]
        parts.append(group(*shown, class_=f"cut {cut.kind}"))
    return parts


def _counts(one: Shifts, low: float, bins: int) -> list[float]:
    """Tensors in each bin, the mean over silos."""
    found = [0] * bins
    for value in one.values:
        found[min(max(math.floor((value - low) / _BIN + 1e-9), 0), bins - 1)] += 1
    return [many / max(one.silos, 1) for many in found]


def _power(power: float) -> str:
    """1, 0.1, 0.01, then 10⁻³."""
    if power > -3 and power < 4:
        return f"{10.0**power:g}" if float(power).is_integer() else f"{10.0**power:.2g}"
    return "10" + str(round(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _told(kind: str, value: float) -> str:
    return f"θ {value:.3f}" if kind == "theta" else f"{percent(value)} of the {kind} sent"


def _point(name: str, rounds: int, steps: float, loss: float) -> str:
    return f"{name}, {rounds} rounds done, {count(round(steps))} steps: {loss:.3f}"
