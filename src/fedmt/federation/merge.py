"""How updates become one: a running sum per tensor, so that memory does not grow with silos.

    merged_t = Σ_k w_k · t_k / Σ_k w_k      over the silos k that sent tensor t (under a mask, the value)

That is `renormalise`. Where a silo sent nothing, `keep_server` takes the server's value for it, and `literal`, equation
4 of Chu et al. 2024, nought: the sum is divided by the weight of all, and what was sent by few loses its size.
The engine then goes from where it was to there, or by the recipe's `rate` beyond (the server learning rate of FedOpt,
Reddi et al. 2021): what silos learn apart cancels in part when it is averaged. A tensor that nobody sent stays as it
was. Sums are float64 and weights are held relative to the first update's, so that one update's merge is itself bit for
bit, and equal weights of any size merge exactly as the mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedmt.choices import Merge, MergeBounded, MergeMean, MergeMedian, MergeSamples, MergeTrimmed, Missing
from fedmt.exchange.codec import pieces
from fedmt.exchange.update import Update, change
from fedmt.federation.ranking import Ranking

__all__ = ["Fold", "bounded", "folding", "weight"]


def weight(merge: Merge, samples: int) -> float:
    """What a silo with so many training pairs weighs."""
    match merge:
        case MergeSamples(power=power) | MergeBounded(power=power):
            return float(samples) if power == 1 else float(samples) ** power
        case MergeMean() | MergeTrimmed() | MergeMedian():
            return 1.0


def folding(merge: Merge, folder: Path | None) -> Fold | Ranking:
    """A sum where one will do; where values must be compared, updates wait in the folder."""
    return Ranking(merge, folder) if isinstance(merge, MergeTrimmed | MergeMedian) else Fold()


def bounded(update: Update, base: Mapping[str, Tensor], norm: float) -> tuple[Update, float]:
    """The update, its change scaled down to `norm` where it is longer; and how long it was."""
    length = change(update, base)
    if length <= norm:
        return update, length
    scale = norm / length
    tensors = {}
    for name, tensor in update.tensors.items():
        nearer = base[name] + (tensor - base[name]) * scale
        mask = update.masks.get(name)
        tensors[name] = nearer if mask is None else nearer * mask
    return replace(update, tensors=tensors), length


class Fold:
    """The running sum of updates, a sum for each name: silos of different groups call their tensors differently."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        # What was sent whole weighs the same everywhere; what was sent in part weighs for each value apart.
        self._weights: dict[str, float] = {}
        self._parts: dict[str, Tensor] = {}
        self._totals: dict[str, float] = {}
        self._unit: float | None = None
        self.count = 0

    def add(self, update: Update, could: Iterable[str] | None = None) -> None:
        """`could`: all the names under which this silo could have sent something (none: those that it did send)."""
        if self._unit is None:
            self._unit = update.weight
        share = update.weight / self._unit
        for name in update.tensors if could is None else could:
            self._totals[name] = self._totals.get(name, 0.0) + share
        for name, tensor in update.tensors.items():
            first = name not in self._sums
            if first:
                self._sums[name] = torch.empty(tensor.numel(), dtype=torch.float64)
            if name in update.masks:
                parts = self._parts.setdefault(name, torch.zeros(tensor.numel(), dtype=torch.float64))
                for weight, chosen in zip(pieces(parts), pieces(update.masks[name]), strict=True):
                    weight.add_(chosen, alpha=share)
            else:
                self._weights[name] = self._weights.get(name, 0.0) + share
            # Whole tensors at once would make a float64 copy of each, and leave the cache.
            for total, piece in zip(pieces(self._sums[name]), pieces(tensor), strict=True):
                if first:
                    total.copy_(piece).mul_(share)
                else:
                    total.add_(piece, alpha=share)
        self.count += 1

    def result(
        self, base: Mapping[str, Tensor], rate: float = 1.0, missing: Missing = "renormalise"
    ) -> dict[str, Tensor]:
        """The merged tensors, in the order, shapes and dtypes of `base`. The sum is used up."""
        merged: dict[str, Tensor] = {}
        for name, before in base.items():
            if name not in self._sums:
                merged[name] = before
                continue
            sums, total = self._sums.pop(name), self._totals.pop(name)
            weight, parts = self._weights.pop(name, 0.0), self._parts.pop(name, None)
            after = torch.empty(before.shape, dtype=before.dtype)
            weights: Iterable[float | Tensor] = (
                itertools.repeat(weight) if parts is None else (piece.add_(weight) for piece in pieces(parts))
            )
            for piece, start, target, sent in zip(pieces(sums), pieces(before), pieces(after), weights, strict=False):
                _divide(piece, start, sent, total, missing)
                if rate != 1:
                    piece.sub_(start).mul_(rate).add_(start)
                target.copy_(piece)
            merged[name] = after
        return merged


def _divide(sums: Tensor, start: Tensor, sent: float | Tensor, total: float, missing: Missing) -> None:
    """From a sum to what it merges to, in place; `sent` is the weight of those who sent, `total` of all who could."""
    if missing == "keep_server":
        if isinstance(sent, Tensor):
            sums.add_(start * (total - sent))
        elif sent != total:
            sums.add_(start, alpha=total - sent)
        sums.div_(total)
    else:
        sums.div_(total if missing == "literal" else sent)
    if isinstance(sent, Tensor):
        # What nobody sent stays as it was.
        nobody = sent == 0
        sums[nobody] = start[nobody].to(sums.dtype)
