"""An update: named tensors, how much they weigh, and metrics. Pure; knows not where it came from or goes to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmt.exchange.codec import pieces

__all__ = ["Update", "change", "mismatch", "unfinite"]


@dataclass(frozen=True)
class Update:
    """What one silo contributes to a merge: tensors (not changes of tensors), and a weight above nought.

    Of a tensor with a mask only the values where it is true were sent; the others are nought.
    """

    tensors: Mapping[str, Tensor]
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    masks: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"an update's weight is above 0, not {self.weight}")

    @property
    def parameters(self) -> int:
        """How many were sent."""
        masks = self.masks
        return sum(int(masks[name].sum()) if name in masks else tensor.numel() for name, tensor in self.tensors.items())

    def renamed(self, key: Callable[[str], str]) -> Update:
        """The same update, its tensors by other names."""
        return Update(
            {key(name): tensor for name, tensor in self.tensors.items()},
            self.weight,
            self.metrics,
            {key(name): mask for name, mask in self.masks.items()},
        )


def mismatch(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], whole: bool) -> str | None:
    """What is wrong with the names and shapes of `tensors`, held against `like`; `whole`: none may be missing."""
    for name, tensor in tensors.items():
        if name not in like:
            return f"unknown tensor {name!r}"
        if tensor.shape != like[name].shape:
            return f"tensor {name!r} has shape {list(tensor.shape)}, not {list(like[name].shape)}"
    if whole and len(tensors) != len(like):
        missing = [name for name in like if name not in tensors]
        return f"{len(missing)} of {len(like)} tensors missing, the first is {missing[0]!r}"
    return None


def unfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds a NaN or an infinity."""
    for name, tensor in tensors.items():
        # The extremes pass both on, and cost a twentieth of `isfinite`, which writes a mask.
        if tensor.numel() and not all(math.isfinite(extreme.item()) for extreme in torch.aminmax(tensor)):
            return name
    return None


def change(update: Update, base: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all that was sent and differs from `base`, in float64."""
    square = 0.0
    for name, tensor in update.tensors.items():
        mask = update.masks.get(name)
        sent = itertools.repeat(None) if mask is None else pieces(mask)
        for piece, old, here in zip(pieces(tensor), pieces(base[name]), sent, strict=False):
            difference = piece.double() - old.double()
            square += float((difference if here is None else difference[here]).square().sum())
    return math.sqrt(square)
