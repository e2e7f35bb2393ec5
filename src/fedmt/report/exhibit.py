"""The studies as parts of a page: those of one run for its report, those of several on a page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from fedmt import files
from fedmt.report import charts, studies, tallies
from fedmt.report.compare import short_names
from fedmt.report.folder import RunFolder, versions
from fedmt.report.frame import PANEL, figure, frame, section
from fedmt.report.shifts import SIDES, every, measure, shifts
from fedmt.report.studies import Study
from fedmt.report.tables import Table

__all__ = ["PAGE", "inside", "page", "write"]

PAGE = "studies.html"


def write(folders: Sequence[RunFolder], out: Path, bandwidth: float = studies.BANDWIDTH) -> Path:
    """The page of several runs, in the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    some = [studies.gather(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    files.write_text(out / PAGE, page(some, bandwidth))
    return out / PAGE


def page(some: Sequence[Study], bandwidth: float = studies.BANDWIDTH) -> str:
    parts = [
        section("", _saved(some)),
        section("Learning at equal steps", _learning(some), _LEARNING) if _curves(some) else "",
        section("What an exchange costs", _costs(some, bandwidth)),
        section("Where a round's time goes", _times(some), "As Table IV of Chu et al.") if _times(some) else "",
        section("What passed, round by round", _passed(some), _PASSED) if _passed(some) else "",
        section("How far tensors went", _shifts(some)) if _shifts(some) else "",
    ]
    heading = f"{len(some)} runs side by side"
    told = ", ".join(one.name for one in some)
    return frame(told, f"fedmt studies <b>{escape(told)}</b>", heading, parts, versions().get("fedmt", ""))


def inside(study: Study, bandwidth: float = studies.BANDWIDTH) -> str:
    """One run's studies, for its report."""
    some = [study]
    parts = [_saved(some), _costs(some, bandwidth), _times(some)]
    if passed := _passed(some):
        parts.append(f"<h3>What passed, round by round</h3>{_note(_PASSED)}{passed}")
    if shifted := _shifts(some):
        parts.append(f"<h3>How far tensors went</h3>{shifted}")
    return "".join(parts)


_LEARNING = (
    "Dev loss of the merged engine, the mean over silos weighted by their training pairs; a sign for each round. "
    "Silos measure what they are sent, so the engine of the last round has no sign."
)
_PASSED = "The shares of the shared tensors and parameters that silos sent, and the threshold θ where there is one."


def _saved(some: Sequence[Study]) -> str:
    return _html(tallies.savings(some))


def _costs(some: Sequence[Study], bandwidth: float) -> str:
    return _html(tallies.costs(some)) + _html(tallies.transfers(some, bandwidth))


def _times(some: Sequence[Study]) -> str:
    table = tallies.times(some)
    return _html(replace(table, title="") if len(some) > 1 else table)


def _curves(some: Sequence[Study]) -> dict[str, list[tuple[float, float]]]:
    return {one.name: points for one in some if (points := studies.learning(one))}


def _learning(some: Sequence[Study]) -> str:
    curves = _curves(some)
    return figure(lambda width: charts.learning(curves, width))


def _passed(some: Sequence[Study]) -> str:
    """Of the runs that do not send all."""
    panels = []
    for one in some:
        rounds = studies.passed(one)
        if len(rounds) > 1 and any(each.theta is not None or each.parameters < 1 for each in rounds):
            panels.append(charts.passed(rounds, one.name if len(some) > 1 else "", PANEL))
    return f'<div class="panels three">{"".join(panels)}</div>' if panels else ""


def _shifts(some: Sequence[Study]) -> str:
    """Of the first run that tells of all its tensors, with the thresholds of all; else of the first that tells any."""
    told = [one for one in some if one.shifted]
    if not told:
        return ""
    study = next((one for one in told if every(one)), told[0])
    others = [one for one in some if one is not study]
    found = shifts(study, others)
    if not found:
        return ""
    measured = "relative change" if measure(study) == "relative" else "mean absolute change"
    parts = []
    for side in SIDES:
        if here := [one for one in found if one.side == side]:
            panels = "".join(charts.histogram(one, found, measured, PANEL) for one in here)
            parts.append(f'<h3>{side.capitalize()}</h3><div class="panels three">{panels}</div>')
    said = f"Of {study.name}: how many" if len(some) > 1 else "How many"
    said += " tensors of a silo, on average, changed how much in its training of that round, against what it was sent"
    said += " (" + ("‖change‖ / ‖before‖" if measured.startswith("rel") else "mean of |change|") + ")"
    said += "." if every(study) else "; only tensors that were sent are told of."
    if any(cut.kind == "theta" for one in found for cut in one.cuts):
        said += " θ is on a scale of its own at each silo, from the least changed tensor to the most; it is drawn at "
        said += (
            "the change that it means there" if every(study) else "the change where what was sent begins"
        ) + ", the mean over silos."
    if any(cut.kind == "half" for one in found for cut in one.cuts):
        said += " Dashed: half of these tensors, where dynamic pulling by its letter would cut."
    return _note(said) + "".join(parts)


def _html(table: Table) -> str:
    return table.html() if table.rows else ""


def _note(text: str) -> str:
    return f'<p class="lead">{escape(text)}</p>'
