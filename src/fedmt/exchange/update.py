"""An update: named tensors, how much they weigh, and metrics. Pure; knows not where it came from or goes to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmt.exchange.codec import pieces

__all__ = ["Update", "change", "mismatch", "unfinite"]


@dataclass(frozen=True)
class Update:
    """What one silo contributes to a merge: tensors (not changes of tensors), and a weight above nought."""

    tensors: Mapping[str, Tensor]
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"an update's weight is above 0, not {self.weight}")

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())

    def only(self, names: Iterable[str]) -> Update:
        """The same update without its other tensors; names that it lacks are passed over."""
        return Update({name: self.tensors[name] for name in names if name in self.tensors}, self.weight, self.metrics)


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


def change(tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all that differs from `base`, in float64."""
    square = 0.0
    for name, tensor in tensors.items():
        for piece, old in zip(pieces(tensor), pieces(base[name]), strict=True):
            square += float((piece.double() - old.double()).square().sum())
    return math.sqrt(square)
