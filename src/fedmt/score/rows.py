"""The rows of `scores.json`: every model on every silo's test set, averages over silos, and paired differences.

    {"schema": 1, "rows": [...], "averages": [...], "differences": [...], "bytes": {"up", "down"}, "seconds"}

Knows no sentences: it is made of what silos sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedmt import files
from fedmt.errors import Refused, RunError
from fedmt.score import bootstrap
from fedmt.score.bootstrap import Samples
from fedmt.score.statistics import METRICS, Statistics

__all__ = [
    "FAMILIES",
    "MACRO",
    "Average",
    "Bytes",
    "Difference",
    "Measured",
    "Results",
    "Row",
    "collect",
    "differ",
    "family",
    "order",
    "own",
    "read_measured",
    "same_test",
    "write_measured",
]

SCHEMA = 1
MACRO = "macro"

# As the tables show them: what there was before, what each has alone, what training together gives, and what all
# text in one place would give.
FAMILIES = ("public", "alone", "chained", "federated", "personal", "combined")


def family(model: str) -> str:
    """`alone:clinic` is one of the family `alone`; its members are each scored on their own silo for an average."""
    return model.partition(":")[0]


def order(model: str) -> tuple[int, str]:
    name = family(model)
    return (FAMILIES.index(name) if name in FAMILIES else len(FAMILIES), model)


class _Value(BaseModel):
    # Written by a newer version, a file may hold more than is read here.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Row(_Value):
    """One model on one silo's test set. `signature` is BLEU's, `signatures` has all; intervals hold 95 %."""

    model: str
    silo: str
    direction: str
    bleu: float
    chrf: float
    ter: float | None = None
    n: int = Field(ge=0)
    signature: str
    signatures: dict[str, str] = {}
    intervals: dict[str, tuple[float, float]] = {}


class Average(_Value):
    """Over silos: `macro` is the mean of their scores, `micro` the score of all their sentences as one test set."""

    model: str
    kind: Literal["macro", "micro"]
    silos: int = Field(ge=1)
    n: int = Field(ge=0)
    bleu: float
    chrf: float
    ter: float | None = None
    intervals: dict[str, tuple[float, float]] = {}


class Difference(_Value):
    """Of `model` minus `against`, paired by sentence; `silo` is "macro" for the average over silos."""

    model: str
    against: str
    silo: str
    metric: str
    delta: float
    low: float
    high: float
    p: float = Field(ge=0, le=1)


class Bytes(_Value):
    up: int = Field(0, ge=0)
    down: int = Field(0, ge=0)


@dataclass(frozen=True)
class Measured:
    """What one silo sent about one model: summed statistics and resampled scores."""

    statistics: Statistics
    samples: Samples = field(default_factory=dict)


class Results(_Value):
    """`scores.json`."""

    schema_: Literal[1] = Field(alias="schema")
    rows: list[Row]
    averages: list[Average] = []
    differences: list[Difference] = []
    bytes: Bytes = Bytes()
    seconds: float = 0.0
    against: str = "public"
    resamples: int = 0

    @property
    def silos(self) -> list[str]:
        return list(dict.fromkeys(row.silo for row in self.rows))

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(family(model) for model in sorted({row.model for row in self.rows}, key=order)))

    @property
    def models(self) -> list[str]:
        return sorted({row.model for row in self.rows}, key=order)

    def row(self, model: str, silo: str) -> Row | None:
        """Of a family (`alone`), the member that belongs to the silo."""
        names = (model, f"{model}:{silo}")
        return next((row for row in self.rows if row.silo == silo and row.model in names), None)

    def average(self, model: str, kind: str = MACRO) -> Average | None:
        return next((value for value in self.averages if (value.model, value.kind) == (model, kind)), None)

    def difference(self, model: str, against: str, silo: str, metric: str = "bleu") -> Difference | None:
        wanted = (model, against, silo, metric)
        return next(
            (value for value in self.differences if (value.model, value.against, value.silo, value.metric) == wanted),
            None,
        )

    def write(self, path: Path) -> None:
        files.write_json(path, self.model_dump(by_alias=True))

    @classmethod
    def read(cls, path: Path) -> Results:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{path}: there is no such file: the run has not been scored") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read as JSON: {_line(error)}") from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            found = content.get("schema") if isinstance(content, dict) else None
            raise RunError(f"{path}: its schema is {found!r}; this version of fedmt reads {SCHEMA}")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise RunError(f"{path}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def collect(
    measured: Mapping[tuple[str, str], Measured],
    directions: Mapping[str, str],
    against: str = "public",
    bytes_: Bytes | None = None,
    seconds: float = 0.0,
) -> Results:
    """Rows, averages and differences from what silos sent, keyed by (model, silo).

    Every family is compared with `against`, and what training together gives (`federated`, `personal`) with what each
    silo has alone.
    """
    models = sorted({model for model, _ in measured}, key=order)
    rows = [_row(model, silo, directions[silo], measured[model, silo]) for model, silo in _ordered(measured, models)]
    averages: list[Average] = []
    differences: list[Difference] = []
    names = list(dict.fromkeys(family(model) for model in models))
    pairs = [(name, family(against)) for name in names if name != family(against)]
    for together in ("federated", "personal"):
        if together in names and "alone" in names and (together, "alone") not in pairs:
            pairs.append((together, "alone"))
    for name in names:
        averages += _averages(name, own(measured, name))
    for model, other in pairs:
        differences += differ(own(measured, model), own(measured, other), model, other)
    return Results(
        schema=SCHEMA,
        rows=rows,
        averages=averages,
        differences=differences,
        bytes=bytes_ or Bytes(),
        seconds=seconds,
        against=family(against),
        resamples=max((len(array) for value in measured.values() for array in value.samples.values()), default=0),
    )


def differ(a: Mapping[str, Measured], b: Mapping[str, Measured], model: str, against: str) -> list[Difference]:
    """Paired differences on each silo that both were scored on, and on their average. Keyed by silo."""
    found = []
    shared = [silo for silo in a if silo in b and a[silo].statistics.n and same_test(a[silo], b[silo])]
    for metric in METRICS:
        kept = [silo for silo in shared if _paired(a[silo], b[silo], metric)]
        points = {silo: (_score(a[silo], metric), _score(b[silo], metric)) for silo in kept}
        for silo in kept:
            difference = bootstrap.compare(a[silo].samples[metric], b[silo].samples[metric], *points[silo])
            found.append(_difference(difference, model, against, silo, metric))
        if len(kept) > 1 and kept == shared and len({len(a[silo].samples[metric]) for silo in kept}) == 1:
            difference = bootstrap.compare(
                bootstrap.average([a[silo].samples[metric] for silo in kept]),
                bootstrap.average([b[silo].samples[metric] for silo in kept]),
                float(np.mean([points[silo][0] for silo in kept])),
                float(np.mean([points[silo][1] for silo in kept])),
            )
            found.append(_difference(difference, model, against, MACRO, metric))
    return [difference for difference in found if difference is not None]


def same_test(a: Measured, b: Measured) -> bool:
    """Whether both were measured on the same references, as far as their counts can tell."""
    one, other = a.statistics, b.statistics
    if one.n != other.n or one.setting != other.setting:
        return False
    lengths = one.counts["bleu"][:, 1].sum() == other.counts["bleu"][:, 1].sum()
    ngrams = (one.counts["chrf"][:, 1::3].sum(axis=0) == other.counts["chrf"][:, 1::3].sum(axis=0)).all()
    return bool(lengths and ngrams)


def write_measured(path: Path, measured: Mapping[tuple[str, str], Measured]) -> None:
    """All that silos sent about the models, as one safetensors file: enough to make `scores.json` anew."""
    tensors: dict[str, torch.Tensor] = {}
    for (model, silo), value in measured.items():
        for name, tensor in bootstrap.as_tensors(value.statistics, value.samples).items():
            tensors[f"{model}/{silo}/{name}"] = tensor
    files.write_bytes(path, save(tensors))


def read_measured(path: Path) -> dict[tuple[str, str], Measured]:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read as safetensors: {_line(error)}") from None
    grouped: dict[tuple[str, str], dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        parts = key.split("/")
        if len(parts) != 3:
            raise RunError(f"{path}: {key!r} is not model/silo/number")
        grouped.setdefault((parts[0], parts[1]), {})[parts[2]] = tensor
    try:
        return {key: Measured(*bootstrap.from_tensors(found, key[1])) for key, found in grouped.items()}
    except Refused as error:
        raise RunError(f"{path}: {error}") from None


def _ordered(measured: Mapping[tuple[str, str], Measured], models: Sequence[str]) -> list[tuple[str, str]]:
    silos = list(dict.fromkeys(silo for _, silo in measured))
    return [(model, silo) for model in models for silo in silos if (model, silo) in measured]


def own(measured: Mapping[tuple[str, str], Measured], name: str) -> dict[str, Measured]:
    """A family's scores by silo: `alone:x` counts on x only."""
    found = {silo: value for (model, silo), value in measured.items() if model in (name, f"{name}:{silo}")}
    # A mean must not depend on the order in which silos answered.
    return dict(sorted(found.items()))


def _row(model: str, silo: str, direction: str, value: Measured) -> Row:
    scores = value.statistics.scores()
    signatures = value.statistics.signatures
    return Row(
        model=model,
        silo=silo,
        direction=direction,
        bleu=scores.bleu,
        chrf=scores.chrf,
        ter=scores.ter,
        n=scores.n,
        signature=signatures["bleu"],
        signatures=signatures,
        intervals={name: bootstrap.interval(values) for name, values in value.samples.items() if len(values)},
    )


def _averages(model: str, mine: Mapping[str, Measured]) -> list[Average]:
    values = [value for value in mine.values() if value.statistics.n]
    if not values:
        return []
    means: dict[str, Any] = {}
    intervals = {}
    for metric in METRICS:
        if all(metric in value.statistics.counts for value in values):
            means[metric] = float(np.mean([_score(value, metric) for value in values]))
        samples = [value.samples.get(metric, np.empty(0)) for value in values]
        if len({len(array) for array in samples}) == 1 and len(samples[0]):
            intervals[metric] = bootstrap.interval(bootstrap.average(samples))
    n = sum(value.statistics.n for value in values)
    found = [Average(model=model, kind="macro", silos=len(values), n=n, intervals=intervals, **means)]
    # Test sets whose words are cut in different ways are no one test set.
    if len({(value.statistics.setting, tuple(value.statistics.counts)) for value in values}) == 1:
        pooled = reduce(add, (value.statistics for value in values)).scores()
        found.append(
            Average(
                model=model, kind="micro", silos=len(values), n=n, bleu=pooled.bleu, chrf=pooled.chrf, ter=pooled.ter
            )
        )
    return found


def _score(value: Measured, metric: str) -> float:
    score = getattr(value.statistics.scores(), metric)
    assert isinstance(score, float)
    return score


def _paired(a: Measured, b: Measured, metric: str) -> bool:
    one, other = a.samples.get(metric), b.samples.get(metric)
    return one is not None and other is not None and len(one) == len(other) and len(one) > 0


def _difference(
    value: bootstrap.Difference | None, model: str, against: str, silo: str, metric: str
) -> Difference | None:
    if value is None:
        return None
    return Difference(
        model=model,
        against=against,
        silo=silo,
        metric=metric,
        delta=value.delta,
        low=value.low,
        high=value.high,
        p=value.p,
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
