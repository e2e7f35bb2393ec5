"""Several runs in one table: average scores of each model, whether they differ, and what each cost in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedmt.report import views
from fedmt.report.folder import RunFolder
from fedmt.report.tables import Cell, Column, Table, amount, count, number, signed, stars
from fedmt.score.bootstrap import Difference
from fedmt.score.rows import MACRO, Measured, Results, differ, order, own, same_test

__all__ = ["Compared", "Comparison", "compare", "short_names"]


@dataclass(frozen=True)
class Compared:
    """One model of one run, averaged over its silos; the differences are from the first run's."""

    run: str
    model: str
    silos: int
    n: int
    bleu: float
    chrf: float
    ter: float | None
    bleu_difference: Difference | None
    chrf_difference: Difference | None
    up_bytes: int
    down_bytes: int
    up_parameters: int
    down_parameters: int
    ratio: float | None


@dataclass(frozen=True)
class Comparison:
    rows: list[Compared]
    notes: list[str] = field(default_factory=list)

    def table(self) -> Table:
        columns = [Column("model", align="left"), Column("run", align="left")]
        columns += [Column(title) for title in ("BLEU", "Δ", "chrF++", "Δ", "up", "down", "parameters", "bytes")]
        rows = []
        before = ""
        for one in self.rows:
            total = one.up_bytes + one.down_bytes
            rows.append(
                [
                    Cell(one.model if one.model != before else ""),
                    Cell(one.run),
                    Cell(number(one.bleu)),
                    _gain(one.bleu_difference),
                    Cell(number(one.chrf)),
                    _gain(one.chrf_difference),
                    Cell(amount(one.up_bytes)) if total else Cell(),
                    Cell(amount(one.down_bytes)) if total else Cell(),
                    Cell(count(one.up_parameters + one.down_parameters)) if total else Cell(),
                    Cell("" if one.ratio is None else f"× {one.ratio:.3g}"),
                ]
            )
            before = one.model
        notes = list(self.notes)
        if any(one.bleu_difference for one in self.rows):
            notes.insert(0, "Δ is from the first run; paired bootstrap: * p < 0.05, ** p < 0.01.")
        return Table("", columns, rows, notes=notes)


def compare(folders: Sequence[RunFolder]) -> Comparison:
    """The first is what the others are compared with. Each must have been scored."""
    names = short_names(folders)
    results = [folder.read_scores() for folder in folders]
    measured = [folder.read_resamples() for folder in folders]
    notes = [
        f"{name}: does not pair with {names[0]}: {why}."
        for name, found, sent in list(zip(names, results, measured, strict=True))[1:]
        if (why := _unpaired(results[0], found, measured[0], sent))
    ]
    models = sorted(
        {model for found in results for model in found.families},
        key=lambda model: (model != views.subject(results[0]), order(model)),
    )
    rows = []
    for model in models:
        first: int | None = None
        for place, (name, folder, found) in enumerate(zip(names, folders, results, strict=True)):
            average = found.average(model)
            if average is None:
                continue
            members = [member for member in found.models if member == model or member.startswith(f"{model}:")]
            spent = folder.travelled(*members)
            total = spent.up_bytes + spent.down_bytes
            first = total if first is None else first
            gains: dict[str, Difference] = {}
            if place and not _unpaired(results[0], found, measured[0], measured[place]):
                pair = own(measured[place], model), own(measured[0], model)
                gains = {
                    one.metric: Difference(one.delta, one.low, one.high, one.p)
                    for one in differ(*pair, model, model)
                    if one.silo == _whole(pair[0])
                }
            rows.append(
                Compared(
                    run=name,
                    model=model,
                    silos=average.silos,
                    n=average.n,
                    bleu=average.bleu,
                    chrf=average.chrf,
                    ter=average.ter,
                    bleu_difference=gains.get("bleu"),
                    chrf_difference=gains.get("chrf"),
                    up_bytes=spent.up_bytes,
                    down_bytes=spent.down_bytes,
                    up_parameters=spent.up_parameters,
                    down_parameters=spent.down_parameters,
                    ratio=total / first if first and total else None,
                )
            )
    return Comparison(rows, notes)


def _unpaired(
    first: Results, other: Results, a: Mapping[tuple[str, str], Measured], b: Mapping[tuple[str, str], Measured]
) -> str:
    """Why two runs' scores cannot be paired; "" when they can."""
    if set(first.silos) != set(other.silos):
        return "it was scored on other silos"
    if not a or not b:
        return "there are no resamples"
    for silo in first.silos:
        one, two = _any(a, silo), _any(b, silo)
        if one is None or two is None:
            return f"there are no resamples of {silo}"
        if one.statistics.signatures != two.statistics.signatures:
            return f"{silo} was scored with another signature"
        if not same_test(one, two):
            return f"the test set of {silo} is another"
        if {name: len(samples) for name, samples in one.samples.items()} != {
            name: len(samples) for name, samples in two.samples.items()
        }:
            return "it was resampled another number of times"
    return ""


def _any(measured: Mapping[tuple[str, str], Measured], silo: str) -> Measured | None:
    return next((value for (_, where), value in measured.items() if where == silo), None)


def _whole(measured: Mapping[str, Measured]) -> str:
    """What stands for all silos among the differences: their average, or the only one."""
    return MACRO if len(measured) > 1 else next(iter(measured), MACRO)


def _gain(difference: Difference | None) -> Cell:
    if difference is None:
        return Cell("")
    note = f"p = {difference.p:.3f}; 95 % between {signed(difference.low)} and {signed(difference.high)}"
    shade = (1.0 if difference.delta > 0 else -1.0) if difference.p < 0.05 else 0.0
    return Cell(signed(difference.delta) + stars(difference.p), shade=shade, note=note)


def short_names(folders: Sequence[RunFolder]) -> list[str]:
    """Short names, where they tell the runs apart."""
    names = [folder.name for folder in folders]
    return [name if names.count(name) == 1 else str(folder.path) for name, folder in zip(names, folders, strict=True)]
