"""How far tensors went in a round, as distributions: Passban et al., Figure 1, and Chu et al., Figure 1, with θ.

From what was told of each silo's update (`Shifted`): of the tensors that it sent whole, against what it was sent. A
threshold lies between 0 and 1 on a scale of its own; `cut` says which change that is. Knows no drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from fedmt.report.studies import Study

__all__ = ["Cut", "Shifts", "cut", "every", "measure", "rounds_of", "shifts"]

Side = Literal["encoder", "decoder"]
Measure = Literal["relative", "mean_abs"]
SIDES: tuple[Side, ...] = ("encoder", "decoder")
_GROWN = 1e29  # what grew out of nothing says no change but a large number


@dataclass(frozen=True)
class Cut:
    """A threshold drawn into a distribution: log10 of a change."""

    name: str
    at: float
    kind: Literal["theta", "half"]


@dataclass(frozen=True)
class Shifts:
    """One round on one side: log10 of each tensor's change, of all silos together."""

    round: int
    side: Side
    values: list[float]
    silos: int
    still: int
    cuts: list[Cut]


def measure(study: Study) -> Measure:
    """What the run's selector goes by, or else the relative change."""
    up = study.recipe.get("selector", {}).get("up", {})
    return (
        "mean_abs" if up.get("kind") == "dynamic_pulling" and up.get("norm", "mean_abs") != "relative" else "relative"
    )


def every(study: Study) -> bool:
    """Whether all shared tensors are told of; else only those that were sent."""
    full = study.shared()
    return bool(study.shifted) and all(
        len(event["tensors"]) >= full[event["silo"]].tensors for event in study.shifted if event["silo"] in full
    )


def rounds_of(study: Study) -> list[int]:
    """The first round, the middle one and the last."""
    rounds = sorted({int(event["round"]) for event in study.shifted})
    return sorted({rounds[0], rounds[(len(rounds) - 1) // 2], rounds[-1]}) if rounds else []


def shifts(study: Study, others: Sequence[Study] = ()) -> list[Shifts]:
    """By side, then round. `others`: runs whose thresholds are drawn too, as if they had chosen among these tensors."""
    found = []
    by, whole = measure(study), every(study)
    for side in SIDES:
        for round_ in rounds_of(study):
            events = [event for event in study.shifted if event["round"] == round_]
            values: list[float] = []
            still = 0
            for event in events:
                here = [value for name, value in zip(event["tensors"], event[by], strict=True) if _side(name) == side]
                moved = [value for value in here if 0 < value < _GROWN]
                values += map(math.log10, moved)
                still += len(here) - len(moved)
            if not values:
                continue
            cuts = []
            if by == "relative":
                for one in (study, *(others if whole else ())):
                    theta = next((float(event["theta"]) for event in one.chosen if event["round"] == round_), None)
                    at = None if theta is None else cut(one.recipe, theta, events, whole)
                    if at is not None:
                        name = f"θ {theta:.2f}" + (f" of {one.name}" if others else "")
                        cuts.append(Cut(name, at, "theta"))
            if whole:
                # Dynamic pulling's threshold, by its letter: half of a side's tensors.
                cuts.append(Cut("half of them", median(values), "half"))
            found.append(Shifts(round_, side, values, len(events), still, cuts))
    return found


def cut(recipe: Mapping[str, Any], theta: float, events: Sequence[Mapping[str, Any]], whole: bool) -> float | None:
    """θ as log10 of a relative change, the mean over silos: each has a scale of its own, from its least changed tensor
    to its most changed.

    Where only what passed is told, the least change sent (or the most, of those that send what changed less).
    """
    up = recipe.get("selector", {}).get("up", {})
    scale, greater = up.get("scale", "log_minmax"), up.get("send", "greater") == "greater"
    found = []
    for event in events:
        # What did not change has no logarithm, and sets no scale of logarithms.
        values = [float(value) for value in event["relative"] if value < _GROWN and (value > 0 or scale == "minmax")]
        if not values:
            continue
        low, high = min(values), max(values)
        if scale == "raw":
            at = theta
        elif not whole:
            at = low if greater else high
        elif scale == "minmax":
            at = low + theta * (high - low)
        else:
            at = math.exp(math.log(low) + theta * (math.log(high) - math.log(low)))
        if at > 0:
            found.append(math.log10(at))
    return fmean(found) if found else None


def _side(name: str) -> Side | None:
    """Events tell names and no places; every architecture that we know has its stacks' names among the steps."""
    steps = name.split(".")
    return next((side for side in SIDES if side in steps), None)
