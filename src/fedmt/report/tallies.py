"""The tables of studies: each of one run as of several, one row a run, or three of times. Knows no files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedmt.report.studies import (
    AT_SERVER,
    AT_SILOS,
    BANDWIDTH,
    WAYS,
    WHAT,
    Study,
    cost,
    passed,
    saving,
    time,
    transfer,
)
from fedmt.report.tables import MISSING, Cell, Column, Table, amount, count

__all__ = ["costs", "percent", "savings", "seconds", "tables", "thresholds", "times", "transfers"]


def tables(studies: Sequence[Study], bandwidth: float = BANDWIDTH) -> list[Table]:
    """All that have a row."""
    some: Iterable[Table | None] = (
        savings(studies),
        costs(studies),
        transfers(studies, bandwidth),
        times(studies),
        *(thresholds(study) for study in studies),
    )
    return [table for table in some if table is not None and table.rows]


def savings(studies: Sequence[Study]) -> Table:
    columns = [Column("run", align="left"), Column("way", align="left")]
    columns += [Column(title, "sent") for title in WHAT]
    columns += [Column(title, "saved") for title in WHAT]
    columns += [Column(title, "of the engine") for title in ("parameters", "bytes")]
    rows = []
    for study in studies:
        for one in (saving(study, way) for way in WAYS):
            if one is None or (one.way == "down" and one.parameters == one.of_parameters):
                continue
            sent = [number / one.messages for number in (one.tensors, one.parameters, one.bytes)]
            row = [
                Cell(study.name if one.way == "up" else ""),
                Cell(one.way),
            ]
            row += [Cell(f"{sent[0]:,.1f}".removesuffix(".0")), Cell(count(round(sent[1]))), Cell(amount(sent[2]))]
            row += [Cell(percent(one.saved(what)), strong=True) for what in WHAT]
            row += [Cell(percent(one.saved_of_engine(what))) for what in ("parameters", "bytes")]
            rows.append(row)
    notes = [
        "Sent: by a silo in a round, on average. Saved: what did not travel, of all of the shared part; "
        "of the engine: the same, of the whole engine."
    ]
    return Table("Tensors, parameters and bytes saved", columns, rows, notes=notes)


def costs(studies: Sequence[Study]) -> Table:
    columns = [Column("run", align="left"), Column("part", align="left")]
    columns += [Column(title) for title in ("C-Cost", "T-Cost")]
    columns += [Column(title, "no embeddings") for title in ("C-Cost", "T-Cost")]
    columns += [Column("sent up"), Column("engine"), Column("engine / C")]
    rows = []
    for study in studies:
        if (one := cost(study)) is not None:
            numbers = (one.exchanged, one.trained, one.exchanged_bare, one.trained_bare, round(one.sent), one.engine)
            cells = [Cell(MISSING if number is None else count(number)) for number in numbers]
            ratio = MISSING if one.ratio is None else f"{one.ratio:.3g}×"
            rows.append([Cell(study.name), Cell(one.part), *cells, Cell(ratio)])
    notes = [
        "In parameters. C-Cost: of the part that is exchanged; T-Cost: trained at a silo; "
        "sent up: of C-Cost, what the selector let through, a silo and round."
    ]
    return Table("C-Cost and T-Cost", columns, rows, notes=notes)


def transfers(studies: Sequence[Study], bandwidth: float = BANDWIDTH) -> Table:
    columns = [Column("run", align="left"), Column("silos"), Column("bytes up")]
    groups = ("up", "down", "engine")
    columns += [Column(who, group) for group in groups for who in ("one silo", "all silos")]
    columns += [Column("sending")]
    rows = []
    for study in studies:
        if (one := transfer(study, bandwidth)) is not None:
            whole = one.seconds(one.whole_bytes) if one.whole_bytes else None
            row = [Cell(study.name), Cell(str(one.silos)), Cell(amount(one.up_bytes))]
            for each in (one.up, one.down, whole):
                row += [Cell(seconds(each)), Cell(seconds(None if each is None else each * one.silos))]
            rows.append([*row, Cell(percent(one.share))])
    notes = [
        f"Bytes · 8 / {bandwidth:g} Mbit/s, an exchange; all silos: one after the other, as they share the server's "
        "bandwidth; engine: as if all of it went. Sending: all silos' sending up, of that and a silo's training here."
    ]
    return Table(f"Transfer time at {bandwidth:g} Mbit/s", columns, rows, notes=notes)


def times(studies: Sequence[Study]) -> Table:
    columns = [Column("run", align="left"), Column("mean seconds", align="left")]
    columns += [Column(what, "silos") for what in AT_SILOS]
    columns += [Column(title, "server") for title in (*AT_SERVER, "rest", "round")]
    columns += [Column("less training")]
    rows = []
    for study in studies:
        if (one := time(study)) is not None:
            names = (*AT_SILOS, *AT_SERVER)
            less = one.whole - one.a_round.get("train", 0.0)
            each_silo = [Cell(seconds(one.a_silo.get(name))) for name in AT_SILOS]
            rows.append(
                [Cell(study.name), Cell("a silo"), *each_silo, *(Cell("") for _ in columns[2 + len(AT_SILOS) :])]
            )
            some = [*(one.a_round.get(name) for name in names), one.rest, one.whole, less]
            rows.append([Cell(""), Cell("all silos"), *(Cell(seconds(each)) for each in some)])
            parts = [percent(None if each is None or not one.whole else each / one.whole) for each in some]
            rows.append([Cell(""), Cell("of the round"), *(Cell(part, strong=True) for part in parts)])
    notes = ["Rest: messages, files and waiting. On this machine; what travels over a network comes on top."]
    return Table("Where a round's time goes", columns, rows, notes=notes)


def thresholds(study: Study) -> Table | None:
    """θ by rounds with what it let through; None where there is none."""
    rounds = [one for one in passed(study) if one.theta is not None]
    if not rounds:
        return None
    columns = [Column(title) for title in ("round", "θ", "tensors sent", "parameters sent")]
    rows = [[Cell(str(one.round)), Cell(f"{one.theta:.3f}"), Cell(percent(one.tensors)), Cell(percent(one.parameters))]
            for one in rounds]  # fmt: skip
    return Table(f"θ of {study.name}", columns, rows)


def seconds(value: float | None) -> str:
    """3.4 ms, 0.35 s, 19.5 s, 1,240 s."""
    if value is None:
        return MISSING
    if value >= 0.0995:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:,.0f} s"
    if value >= 0.00995:
        return f"{value * 1000:.0f} ms"
    return f"{value * 1000:.1f} ms" if value >= 0.00005 else "< 0.1 ms"


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value + 0.0:.1f} %".replace("-0.0 %", "0.0 %").replace("-", "−")
