"""The usual tables of a run: scores, the cross table, bytes, text. Knows nothing of how a table looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fedmt.exchange.ledger import Entry, Totals
from fedmt.report.folder import About, Facts, RunFolder
from fedmt.report.tables import Cell, Column, Table, amount, count, number, signed, stars
from fedmt.score.rows import MACRO, Average, Difference, Results, Row, family, order

__all__ = ["TITLES", "cross", "fitting", "headline", "scores", "subject", "text", "travelled"]

TITLES = {"bleu": "BLEU", "chrf": "chrF++", "ter": "TER"}


def subject(results: Results) -> str:
    """The model the run is about: the federated one, or else the last that is not the one compared with."""
    if "federated" in results.families:
        return "federated"
    others = [name for name in results.families if name not in (results.against, "combined")]
    return others[-1] if others else results.against


def headline(results: Results, folder: RunFolder) -> list[str]:
    """What happened, in sentences for someone who has a minute."""
    main, against = subject(results), results.against
    after, before, alone, own = (results.average(name) for name in (main, against, "alone", "personal"))
    told = []
    if after is not None and before is not None and main != against:
        verb = "raised" if after.bleu > before.bleu else "lowered"
        gain = results.difference(main, against, MACRO) or results.difference(main, against, results.silos[0])
        if gain is not None and gain.p >= 0.05:
            verb = "did not surely change the average: it went" if len(results.silos) > 1 else "made no sure change:"
        else:
            verb += " the average"
        who = "Training together" if main == "federated" else f"The {main} engine"
        line = f"{who} {verb} from {number(before.bleu)} to {number(after.bleu)} BLEU"
        if alone is not None and main == "federated" and against != "alone":
            line += f", and to {number(own.bleu)} once each silo had trained on" if own is not None else ""
            line += f", where each silo alone reaches {number(alone.bleu)}"
        told.append(line + ".")
    elif after is not None:
        told.append(f"The {main} engine scores {number(after.bleu)} BLEU on average.")
    total = folder.travelled(main)
    if total.up_bytes + total.down_bytes:
        told.append(f"No sentence left a silo; {amount(total.up_bytes + total.down_bytes)} travelled.")
    return told


def fitting(folder: RunFolder, width: int) -> list[Table]:
    """The table of scores for a terminal: one, or one for each metric where that is too wide."""
    results, about, entries = folder.read_scores(), folder.read_about(), folder.entries()
    whole = scores(results, about, entries)
    if whole.width <= width:
        return [whole]
    first, second = scores(results, about, (), ("bleu",)), scores(results, None, entries, ("chrf",))
    return [replace(first, notes=[]), second]


def scores(
    results: Results,
    about: About | None = None,
    entries: Sequence[Entry] = (),
    metrics: Sequence[str] = ("bleu", "chrf"),
) -> Table:
    """Every family of models on every silo, and on average; the difference that training together made; bytes."""
    names, main = results.families, subject(results)
    rivals = [name for name in dict.fromkeys((results.against, "alone")) if name in names and name != main]
    gains = [(main, rival, f"Δ {rival}") for rival in rivals]
    if {"personal", "alone"} <= set(names) and main != "personal":
        gains.append(("personal", "alone", "Δ personal"))
    facts = {silo.name: silo for silo in about.silos} if about else {}
    spent = _by_silo(entries, main)
    directions = {row.silo: row.direction for row in results.rows}
    many = len(set(directions.values())) > 1

    columns = [Column("silo", align="left"), *([Column("direction", align="left")] if many else [])]
    columns += [Column("pairs")] if facts else []
    for metric in metrics:
        title = TITLES[metric] if len(metrics) > 1 else ""
        columns += [Column(name, title, swatch=name) for name in names]
        columns += [Column(told, title) for _, _, told in gains]
    columns += [Column("bytes")] if spent else []

    rows = []
    for silo in results.silos:
        row = [Cell(silo), *([Cell(directions[silo])] if many else [])]
        row += [Cell(count(facts[silo].train)) if silo in facts else Cell()] if facts else []
        for metric in metrics:
            row += _scores([results.row(name, silo) for name in names], names, metric)
            row += [_gain(results.difference(one, rival, silo, metric)) for one, rival, _ in gains]
        row += [Cell(amount(_sum(spent[silo]))) if silo in spent else Cell()] if spent else []
        rows.append(row)

    foot = []
    if len(results.silos) > 1:
        trained = [facts[silo].train for silo in results.silos if silo in facts]
        travelled = [_sum(total) for total in spent.values()]
        for kind in ("macro", "micro"):
            averages = [results.average(name, kind) for name in names]
            if not any(averages):
                continue
            share = max(len(results.silos), 1) if kind == "macro" else 1
            row = [Cell("average" if kind == "macro" else "all sentences"), *([Cell("")] if many else [])]
            row += [Cell(count(round(sum(trained) / share)))] if facts else []
            for metric in metrics:
                row += _scores(averages, names, metric)
                row += [
                    _gain(results.difference(one, rival, MACRO, metric)) if kind == "macro" else Cell("")
                    for one, rival, _ in gains
                ]
            row += [Cell(amount(sum(travelled) / share))] if spent else []
            foot.append(row)

    notes = []
    if gains and results.resamples:
        other = "; Δ personal is personal minus alone" if len(gains) > len(rivals) else ""
        notes.append(
            f"Δ is {main} minus the other{other}; paired bootstrap, {count(results.resamples)} resamples: "
            "* p < 0.05, ** p < 0.01."
        )
    return Table(TITLES[metrics[0]] if len(metrics) == 1 else "", columns, rows, foot, notes)


def cross(results: Results, metric: str = "bleu") -> Table:
    """Every model on every silo's test set; the tint says how far it is from the best there."""
    silos = results.silos
    columns = [Column("model", align="left"), *(Column(silo) for silo in silos), Column("average")]
    found = {(row.model, row.silo): float(getattr(row, metric)) for row in results.rows if _has(row, metric)}
    best = {silo: max((value for (_, where), value in found.items() if where == silo), default=0.0) for silo in silos}
    rows = []
    places = {silo: place for place, silo in enumerate(silos)}
    for model in sorted(results.models, key=lambda model: (order(model)[0], places.get(model.partition(":")[2], -1))):
        values = [found.get((model, silo)) for silo in silos]
        own = model.partition(":")[2]
        row = [Cell(model)]
        for silo, value in zip(silos, values, strict=True):
            shade = 0.0 if value is None or not best[silo] else max(value / best[silo], 0.0) ** 2
            row.append(Cell(number(value), strong=silo == own, shade=shade, note=f"{model} on {silo}"))
        known = [value for value in values if value is not None]
        row.append(Cell(number(sum(known) / len(known)) if len(known) == len(silos) else number(None)))
        rows.append(row)
    notes = ["A model named after a silo was trained there; its own test set stands out."]
    return Table("", columns, rows, notes=notes if any(":" in model for model in results.models) else [])


def travelled(entries: Sequence[Entry], model: str = "federated") -> Table:
    """What crossed between the coordinator and each silo for one model."""
    spent = _by_silo(entries, model)
    columns = [
        Column("silo", align="left"),
        *(Column(title, group) for group in ("silo → server", "server → silo") for title in ("bytes", "parameters")),
    ]

    def row(name: str, total: Totals) -> list[Cell]:
        numbers = (total.up_bytes, total.up_parameters), (total.down_bytes, total.down_parameters)
        cells = [[Cell(amount(size), note=f"{count(size)} bytes"), Cell(count(parts))] for size, parts in numbers]
        return [Cell(name), *cells[0], *cells[1]]

    rows = [row(silo, total) for silo, total in spent.items()]
    return Table("", columns, rows, [row("all", sum(spent.values(), Totals()))] if len(rows) > 1 else [])


def text(about: About) -> Table:
    """The silos' text: how much, from where, under which licence. No sentence of it."""
    titles = ("train", "dev", "test", "dropped")
    columns = [Column("silo", align="left"), Column("direction", align="left"), *(Column(title) for title in titles)]
    columns += [Column("origin", align="left"), Column("licence", align="left")]

    def row(facts: Facts, name: str) -> list[Cell]:
        dropped = ", ".join(f"{rule}: {count(pairs)}" for rule, pairs in facts.dropped.items() if pairs)
        sizes = (facts.train, facts.dev, facts.test)
        cells = [Cell(name), Cell(facts.direction), *(Cell(count(size)) for size in sizes)]
        cells.append(Cell(count(sum(facts.dropped.values())), note=dropped))
        return [*cells, Cell(facts.origin or "–"), Cell(facts.licence or "not told")]

    public = [row(about.public, "public (server)")] if about.public else []
    return Table("", columns, [row(silo, silo.name) for silo in about.silos], public)


def _scores(values: Sequence[Row | Average | None], names: Sequence[str], metric: str) -> list[Cell]:
    """The best stands out; `combined`, which may not be had, takes no part in that."""
    points = [getattr(value, metric) if value is not None else None for value in values]
    rivals = [point for name, point in zip(names, points, strict=True) if point is not None and name != "combined"]
    best = (min if metric == "ter" else max)(rivals, default=None)
    cells = []
    for name, value, point in zip(names, values, points, strict=True):
        low, high = (value.intervals.get(metric, (None, None))) if value is not None else (None, None)
        note = f"95 % between {number(low)} and {number(high)}" if low is not None else ""
        strong = point is not None and point == best and name != "combined"
        cells.append(Cell(number(point), strong=strong and len(rivals) > 1, note=note))
    return cells


def _gain(difference: Difference | None) -> Cell:
    if difference is None:
        return Cell()
    better = -difference.delta if difference.metric == "ter" else difference.delta
    sure = difference.p < 0.05
    note = f"p = {difference.p:.3f}; 95 % between {signed(difference.low)} and {signed(difference.high)}"
    shade = (1.0 if better > 0 else -1.0) if sure else 0.0
    return Cell(signed(difference.delta) + stars(difference.p), shade=shade, note=note)


def _by_silo(entries: Sequence[Entry], model: str) -> dict[str, Totals]:
    spent: dict[str, Totals] = defaultdict(Totals)
    for entry in entries:
        if family(entry.model) == model:
            spent[entry.silo] += Totals.of(entry)
    return dict(spent)


def _sum(total: Totals) -> int:
    return total.up_bytes + total.down_bytes


def _has(row: Row, metric: str) -> bool:
    return getattr(row, metric) is not None
