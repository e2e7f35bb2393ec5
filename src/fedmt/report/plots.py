"""The plots of a run, as inline SVG: scores by silo, learning curves, bytes by round, gain against size.

Each takes the width it is drawn for, so that letters have one size on a screen and on a telephone. Knows no files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmt.exchange.ledger import Entry
from fedmt.report.svg import Scale, drawing, element, fan, group, line, nice, path, say, settle, width_of
from fedmt.report.tables import amount, count, number, signed, stars
from fedmt.score.rows import FAMILIES, MACRO, Average, Results, Row, family

__all__ = ["Curve", "curves", "dots", "gains", "panel", "traffic"]


def mark(x: float, y: float, model: str, title: str = "") -> str:
    """A model's sign: told apart by form as well as by colour."""
    name = family(model)
    shape = {
        "public": element("circle", cx=x, cy=y, r=4.5, class_="hollow"),
        "alone": path([(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y), (x, y - 6)], "solid"),
        "chained": path([(x - 5.5, y + 4.5), (x + 5.5, y + 4.5), (x, y - 5.5), (x - 5.5, y + 4.5)], "solid"),
        "personal": element("circle", cx=x, cy=y, r=4.5, class_="solid"),
        "federated": element("circle", cx=x, cy=y, r=6.5, class_="solid"),
        "combined": element("rect", x=x - 4.5, y=y - 4.5, width=9, height=9, class_="hollow"),
    }.get(name, element("circle", cx=x, cy=y, r=4, class_="solid"))
    return group(shape, class_=f"model {name}", title=title)


def dots(results: Results, main: str, metric: str, title: str, width: float) -> str:
    """A row for each silo and one for their average; a sign for each model, with the 95 % its resamples hold."""
    names, narrow = results.families, width < 500
    silos = results.silos
    rows: list[tuple[str, list[tuple[str, Row | Average]], float | None, str]] = []
    found: list[tuple[str, Row | Average]]
    for silo in silos:
        found = [(name, row) for name in names if (row := results.row(name, silo)) is not None]
        gain = results.difference(main, results.against, silo, metric)
        rows.append((silo, found, gain.delta if gain else None, stars(gain.p) if gain else ""))
    if len(silos) > 1:
        found = [(name, average) for name in names if (average := results.average(name)) is not None]
        gain = results.difference(main, results.against, MACRO, metric)
        rows.append(("average", found, gain.delta if gain else None, stars(gain.p) if gain else ""))

    lane = 11
    height_of_row = 20 + lane * max(len(names) - 1, 1)
    left = 14 if narrow else 14 + max(width_of(name, 13.5) for name, *_ in rows)
    right = width - (58 if narrow else 92)
    ends = [
        end
        for _, found, *_ in rows
        for _, value in found
        for end in value.intervals.get(metric, (getattr(value, metric) or 0.0,))
    ]
    across = nice(ends, left, right, most=4 if narrow else 7)
    label = 22 if narrow else 0
    top = 50
    bottom = top + len(rows) * (height_of_row + label) + (10 if len(silos) > 1 else 0)

    parts = [_key(names, left, 14, width)]
    for tick in across.ticks():
        parts += [
            line(across(tick), top, across(tick), bottom, "grid"),
            say(across(tick), bottom + 16, f"{tick:g}", "tick", "middle"),
        ]
    parts.append(say((left + right) / 2, bottom + 34, title, "axis", "middle"))
    parts.append(say(width, top - 8, f"{main}" if not narrow else "", f"value model {main}", "end"))
    y = float(top)
    for name, found, delta, sure in rows:
        last = name == "average" and len(silos) > 1
        if last:
            y += 10
            parts.append(line(0, y, width, y, "rule"))
        elif y > top:
            parts.append(line(left if narrow else 0, y, right, y, "grid"))
        y += label
        middle = y + height_of_row / 2
        parts.append(
            say(left, y - 4, name, "name strong" if last else "name")
            if narrow
            else say(left - 14, middle + 4, name, "name strong" if last else "name", "end")
        )
        for place, (model, value) in enumerate(found):
            at = middle + (place - (len(found) - 1) / 2) * lane
            point = getattr(value, metric)
            if point is None:
                continue
            low, high = value.intervals.get(metric, (point, point))
            told = f"{model} on {name}: {number(point)} {title}"
            if high > low:
                told += f", 95 % between {number(low)} and {number(high)}"
                parts.append(line(across(low), at, across(high), at, f"whisker model {model}"))
            parts.append(mark(across(point), at, model, told))
            if model == main:
                parts.append(
                    say(width, middle + (4 if delta is None else -2), number(point), f"value model {main}", "end")
                )
        if delta is not None:
            parts.append(say(width, middle + 13, f"{signed(delta)}{sure}", "delta", "end"))
        y += height_of_row
    return drawing(width, bottom + 42, f"{title} of every model on every silo", *parts, class_="plot")


@dataclass(frozen=True)
class Curve:
    model: str
    points: list[tuple[int, float]]


def curves(
    records: Sequence[Mapping[str, Any]], silos: Sequence[str], value: str, shift: int = 0
) -> dict[str, list[Curve]]:
    """By silo, what `trained` records (`dev_loss`) or `scored` records (`bleu`) say of each round, `shift` added."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for record in records:
        silo, round_, point = record.get("who", record.get("silo")), record.get("round"), record.get(value)
        model = family(str(record["model"]))
        # A stage of a chain is no curve: each of its silos was trained on at another time.
        if silo in silos and model in FAMILIES and round_ is not None and point is not None:
            found[silo, model][int(round_) + shift] = float(point)
    by_silo: dict[str, list[Curve]] = {}
    for silo in silos:
        drawn = [
            Curve(model, sorted(points.items()))
            for (where, model), points in sorted(found.items(), key=lambda item: item[0][1] == "federated")
            if where == silo and len(points) > 1
        ]
        if drawn:
            by_silo[silo] = drawn
    return by_silo


def panel(silo: str, drawn: Sequence[Curve], every: Mapping[str, Sequence[Curve]], unit: str, width: float) -> str:
    """One silo's curves, on the scale that all silos share."""
    height = 168.0
    rounds = [round_ for curve in (c for some in every.values() for c in some) for round_, _ in curve.points]
    values = [point for curve in (c for some in every.values() for c in some) for _, point in curve.points]
    right = width - 12 - max(width_of(curve.model, 11.5) for some in every.values() for curve in some)
    down = nice(values, height - 28, 34, most=4)
    across = Scale(min(rounds), max(rounds), 34, right)
    parts = [say(0, 13, silo, "name strong")]
    for tick in down.ticks():
        parts += [
            line(34, down(tick), right, down(tick), "grid"),
            say(28, down(tick) + 4, f"{tick:g}", "tick", "end"),
        ]
    for round_ in _few(sorted(set(rounds)), 6):
        parts.append(say(across(round_), height - 10, str(round_), "tick", "middle"))
    ends = fan([down(curve.points[-1][1]) for curve in drawn], 13, 38, height - 30)
    for curve, end in zip(drawn, ends, strict=True):
        way = [(across(round_), down(point)) for round_, point in curve.points]
        spots = [
            element(
                "circle",
                cx=x,
                cy=y,
                r=3,
                class_="spot",
                title=f"{curve.model}, {round_} rounds done: {point:.2f} {unit}",
            )
            for (x, y), (round_, point) in zip(way, curve.points, strict=True)
        ]
        parts.append(
            group(
                path(way, "curve"),
                *spots,
                say(way[-1][0] + 8, end + 4, curve.model, "label"),
                class_=f"model {curve.model}",
            )
        )
    return drawing(width, height, f"{unit} of {silo} by round", *parts, class_="plot panel")


def traffic(entries: Sequence[Entry], model: str, width: float) -> str:
    """Bytes of each round: up above the line, down below it, a band for each silo."""
    chosen = [entry for entry in entries if entry.model == model]
    rounds = sorted({entry.round for entry in chosen})
    silos = list(dict.fromkeys(entry.silo for entry in chosen))
    sizes: dict[tuple[str, int, str], int] = defaultdict(int)
    for entry in chosen:
        sizes[entry.direction, entry.round, entry.silo] += entry.bytes
    tall = {way: max(sum(sizes[way, at, silo] for silo in silos) for at in rounds) for way in ("up", "down")}
    narrow = width < 500
    height, top = 320.0, 30.0
    unit, name = next(
        (u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")) if max(*tall.values(), 1) >= u
    )
    scale = nice([-tall["down"] / unit, tall["up"] / unit], height - 34, top, most=6, zero=True)
    # Names too many to stand beside their bands are told by hovering, and by the table.
    named = len(silos) * 12 <= scale(0) - top + 8
    left, right = 46.0, width - (14 + max(width_of(silo, 11.5) for silo in silos) if named else 0)
    slot = (right - left) / len(rounds)
    bar = min(slot * 0.72, 64)

    parts = []
    for tick in scale.ticks():
        parts += [
            line(left, scale(tick), right, scale(tick), "grid" if tick else "zero"),
            say(left - 8, scale(tick) + 4, f"{abs(tick):g}", "tick", "end"),
        ]
    x = left
    for way, told in (("up", "↑ silos to server"), ("down", "↓ server to silos")):
        parts.append(say(x, 12, told, f"label model {way}"))
        x += width_of(told, 11.5) + 18
    parts.append(say(left - 8, 12, name, "axis", "end"))
    last: dict[str, tuple[float, float]] = {}
    for place, at in enumerate(rounds):
        x = left + slot * (place + 0.5) - bar / 2
        for way, sign in (("up", 1), ("down", -1)):
            reached = 0.0
            bands = []
            for index, silo in enumerate(silos):
                size = sizes[way, at, silo] / unit
                start, end = scale(sign * reached), scale(sign * (reached + size))
                reached += size
                if not size:
                    continue
                bands.append(
                    element(
                        "rect",
                        x=x,
                        y=min(start, end) + 0.5,
                        width=bar,
                        height=max(abs(end - start) - 1, 0.5),
                        rx=1,
                        class_=f"band tint{index % 2}",
                        title=f"{silo}, round {at}, {way}: {amount(size * unit)}",
                    )
                )
                if way == "up" and at == rounds[-1]:
                    last[silo] = (x + bar, (start + end) / 2)
            parts.append(group(*bands, class_=f"model {way}"))
        if at in _few(rounds, 6 if narrow else 12):
            parts.append(say(x + bar / 2, height - 16, str(at), "tick", "middle"))
    parts.append(say((left + right) / 2, height - 1, "round", "axis", "middle"))
    if named:
        places = fan([y for _, y in last.values()], 12, top, scale(0) + 8)
        for (silo, (x, _)), y in zip(last.items(), places, strict=True):
            parts.append(say(x + 8, y + 4, silo, "label"))
    return drawing(width, height + 4, "bytes that travelled, by round", *parts, class_="plot")


def gains(results: Results, sizes: Mapping[str, int], main: str, against: str, width: float) -> str:
    """What training together gave each silo, against how much text it has."""
    points = [
        (silo, sizes[silo], difference)
        for silo in results.silos
        if sizes.get(silo) and (difference := results.difference(main, against, silo)) is not None
    ]
    height, top = 300.0, 26.0
    left, right = 40.0, width - 16
    ends = [end for _, _, difference in points for end in (difference.low, difference.high)]
    down = nice(ends, height - 44, top, most=5, zero=True)
    pairs = [size for _, size, _ in points]
    across = Scale(min(pairs) / 1.5, max(pairs) * 1.7, left, right, log=True)
    parts = [say(0, 12, f"BLEU, {main} minus {against}", "axis")]
    for tick in down.ticks():
        parts += [
            line(left, down(tick), right, down(tick), "grid" if tick else "zero"),
            say(left - 8, down(tick) + 4, signed(tick, 0 if float(tick).is_integer() else 1), "tick", "end"),
        ]
    for tick in across.ticks():
        parts.append(say(across(tick), height - 24, count(int(tick)), "tick", "middle"))
    parts.append(say((left + right) / 2, height - 5, "training pairs of the silo", "axis", "middle"))
    drawn = [(across(size), down(difference.delta), silo) for silo, size, difference in points]
    whiskers = [
        (x - 2, down(difference.high), x + 2, down(difference.low))
        for (x, _, _), (_, _, difference) in zip(drawn, points, strict=True)
    ]
    labels = settle(drawn, 11.5, (left, top - 8, right, height - 44), whiskers)
    for (silo, size, difference), (x, at, _), label in zip(points, drawn, labels, strict=True):
        told = (
            f"{silo}, {count(size)} pairs: {signed(difference.delta)} BLEU, 95 % between {signed(difference.low)} and "
            f"{signed(difference.high)}, p = {difference.p:.3f}"
        )
        parts.append(
            group(
                line(x, down(difference.low), x, down(difference.high), "whisker"),
                element("circle", cx=x, cy=at, r=5.5, class_="solid" if difference.p < 0.05 else "hollow", title=told),
                say(label[0], label[1], silo, "label", label[2]),
                class_=f"model {main}",
            )
        )
    return drawing(width, height, f"gain of {main} over {against} against silo size", *parts, class_="plot")


def _key(names: Sequence[str], x: float, y: float, width: float) -> str:
    parts = []
    start = x
    for name in names:
        long = width_of(name, 12.5) + 32
        if x + long > width and x > start:
            x, y = start, y + 18
        parts += [mark(x + 6, y, name), say(x + 17, y + 4, name, f"label model {family(name)}")]
        x += long
    return group(*parts)


def _few(values: Sequence[int], most: int) -> list[int]:
    step = -(-len(values) // most)
    return [value for index, value in enumerate(values) if index % step == 0]
