"""How updates become one: a running sum per tensor, so that memory does not grow with silos.

    merged_t = Σ_k w_k · t_k / Σ_k w_k      over the silos k that sent tensor t

The engine then goes from where it was to there, or by the recipe's `rate` beyond (the server learning rate of FedOpt,
Reddi et al. 2021): what silos learn apart cancels in part when it is averaged. A tensor that nobody sent stays as it
was. Sums are float64 and weights are held relative to the first update's, so that one update's merge is itself bit for
bit, and equal weights of any size merge exactly as the mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmt.choices import Merge, MergeMean, MergeSamples
from fedmt.exchange.codec import pieces
from fedmt.exchange.update import Update

__all__ = ["Fold", "weight"]


def weight(merge: Merge, samples: int) -> float:
    """What a silo with so many training pairs weighs."""
    match merge:
        case MergeSamples():
            return float(samples)
        case MergeMean():
            return 1.0


class Fold:
    """The running sum of one group's updates."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._unit: float | None = None
        self.count = 0

    def add(self, update: Update) -> None:
        if self._unit is None:
            self._unit = update.weight
        share = update.weight / self._unit
        for name, tensor in update.tensors.items():
            first = name not in self._sums
            if first:
                self._sums[name] = torch.empty(tensor.numel(), dtype=torch.float64)
            self._weights[name] = self._weights.get(name, 0.0) + share
            # Whole tensors at once would make a float64 copy of each, and leave the cache.
            for total, piece in zip(pieces(self._sums[name]), pieces(tensor), strict=True):
                if first:
                    total.copy_(piece).mul_(share)
                else:
                    total.add_(piece, alpha=share)
        self.count += 1

    def result(self, base: Mapping[str, Tensor], rate: float = 1.0) -> dict[str, Tensor]:
        """The merged tensors, in the order, shapes and dtypes of `base`. The sum is used up."""
        merged: dict[str, Tensor] = {}
        for name, before in base.items():
            if name not in self._sums:
                merged[name] = before
                continue
            sums, total = self._sums.pop(name), self._weights.pop(name)
            after = torch.empty(before.shape, dtype=before.dtype)
            for piece, start, target in zip(pieces(sums), pieces(before), pieces(after), strict=True):
                piece.div_(total)
                if rate != 1:
                    piece.sub_(start).mul_(rate).add_(start)
                target.copy_(piece)
            merged[name] = after
        return merged
