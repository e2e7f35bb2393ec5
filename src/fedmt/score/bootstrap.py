"""Paired bootstrap (Koehn 2004): resampled scores where the text is, their comparison anywhere.

Two models resampled with the same seed over the same number of sentences drew the same sentences, so their arrays pair
up without the sentences. Draws and p-values follow sacreBLEU's paired test. Knows nothing of rows or run folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedmt.errors import Refused
from fedmt.score.statistics import METRICS, TOKENIZERS, WIDTHS, Setting, Statistics, scores_of

__all__ = [
    "Difference",
    "Samples",
    "as_tensors",
    "average",
    "compare",
    "from_tensors",
    "interval",
    "resample",
    "seed_of",
]

Samples: TypeAlias = dict[str, NDArray[np.float64]]

# Sentences drawn at a time, so that the memory does not grow with the number of resamples.
_BLOCK = 4_000_000


@dataclass(frozen=True)
class Difference:
    """`delta` is a − b; `low` and `high` hold 95 % of the resampled differences; `p` is two-sided."""

    delta: float
    low: float
    high: float
    p: float


def seed_of(silo: str) -> int:
    """A silo's own seed, so that silos are drawn apart; the same for every model and every run, so that all pair up."""
    return int.from_bytes(hashlib.sha256(silo.encode()).digest()[:8], "big")


def resample(statistics: Statistics, resamples: int, seed: int) -> Samples:
    """The scores of `resamples` test sets drawn with replacement, by metric."""
    assert statistics.by_sentence, "summed statistics cannot be resampled"
    drawn = {name: np.zeros((resamples, WIDTHS[name])) for name in statistics.counts}
    random = np.random.default_rng(seed)
    step = max(1, _BLOCK // max(statistics.n, 1))
    for start in range(0, resamples if statistics.n else 0, step):
        stop = min(start + step, resamples)
        indices = random.choice(statistics.n, size=(stop - start, statistics.n), replace=True)
        offsets = np.arange(stop - start)[:, None] * statistics.n
        times = np.bincount((indices + offsets).ravel(), minlength=offsets.size * statistics.n)
        weights = times.reshape(offsets.size, statistics.n).astype(np.float64)
        for name, counts in statistics.counts.items():
            drawn[name][start:stop] = weights @ counts
    return {name: scores_of(name, counts) for name, counts in drawn.items()}


def average(samples: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The resampled macro average of several silos."""
    return np.asarray(np.stack(samples).mean(axis=0))


def interval(samples: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 %, cut as sacreBLEU cuts it."""
    ordered = np.sort(samples)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[len(ordered) - cut - 1])


def compare(a_samples: NDArray[np.float64], b_samples: NDArray[np.float64], a: float, b: float) -> Difference | None:
    """Whether a differs from b, or None when there are no resamples, or they do not pair up."""
    if len(a_samples) != len(b_samples) or not len(a_samples):
        return None
    differences = a_samples - b_samples
    low, high = interval(differences)
    if not differences.any() and a == b:
        # sacreBLEU gives a model against itself the smallest p there is; equal models are no finding.
        return Difference(0.0, 0.0, 0.0, 1.0)
    sizes = np.abs(differences)
    above = int(np.sum(sizes - sizes.mean() > abs(a - b)))
    return Difference(a - b, low, high, (above + 1) / (len(sizes) + 1))


def as_tensors(statistics: Statistics, samples: Samples) -> dict[str, torch.Tensor]:
    """What a silo sends: the sums of its counts and the resampled scores. Numbers only, none of a single sentence."""
    setting = statistics.setting
    version = [int("".join(filter(str.isdigit, part)) or 0) for part in [*setting.version.split("."), "0", "0"][:3]]
    told = [statistics.n, *version, TOKENIZERS.index(setting.tokenizer), int(setting.asian)]
    tensors = {"setting": torch.tensor(told, dtype=torch.int64)}
    for name, counts in statistics.summed().counts.items():
        tensors[f"{name}.counts"] = torch.from_numpy(counts[0].copy())
    for name, values in samples.items():
        tensors[f"{name}.samples"] = torch.from_numpy(values.copy())
    return tensors


def from_tensors(tensors: Mapping[str, torch.Tensor], silo: str = "") -> tuple[Statistics, Samples]:
    """Read what `as_tensors` made; what a silo could not have measured is refused."""

    def take(name: str, dtype: torch.dtype, width: int | None) -> NDArray[np.float64]:
        tensor = tensors.get(name)
        if tensor is None:
            raise Refused(silo, f"its scores lack {name}")
        if tensor.dtype != dtype or tensor.ndim != 1 or (width is not None and len(tensor) != width):
            raise Refused(silo, f"{name} of its scores is {tensor.dtype} of shape {list(tensor.shape)}")
        if not bool(torch.isfinite(tensor).all()) or bool((tensor < 0).any()):
            raise Refused(silo, f"{name} of its scores holds a number that is no score")
        array: NDArray[np.float64] = tensor.cpu().numpy()
        return array

    n, *version, tokenizer, asian = (int(value) for value in take("setting", torch.int64, 6))
    if tokenizer >= len(TOKENIZERS) or asian > 1:
        raise Refused(silo, f"its scores were made with a tokenizer that is not known here (number {tokenizer})")
    metrics = [name for name in METRICS if name != "ter" or "ter.counts" in tensors]
    known = {"setting", *(f"{name}.{kind}" for name in metrics for kind in ("counts", "samples"))}
    if stray := sorted(set(tensors) - known):
        raise Refused(silo, f"its scores hold {stray[0]}, which is no score")
    counts = {name: take(f"{name}.counts", torch.int64, WIDTHS[name])[None].astype(np.int64) for name in metrics}
    samples = {name: take(f"{name}.samples", torch.float64, None) for name in metrics if f"{name}.samples" in tensors}
    if len({len(values) for values in samples.values()}) > 1:
        raise Refused(silo, "its metrics were resampled a different number of times")
    setting = Setting(TOKENIZERS[tokenizer], bool(asian), ".".join(map(str, version)))
    return Statistics(counts, n, setting), samples
