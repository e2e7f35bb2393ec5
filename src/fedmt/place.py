"""Where a tensor stands in its engine. `engine/places.py` finds it; selectors and groups go by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["End", "Place", "Role", "Side"]

Side: TypeAlias = Literal["encoder", "decoder", "shared"]
Role: TypeAlias = Literal[
    "embedding", "attention", "cross_attention", "feedforward", "norm", "adapter", "controller", "lora", "head"
]
End: TypeAlias = Literal["input", "output"]


@dataclass(frozen=True)
class Place:
    """`layer` counts from 0 within its side; what stands before or behind the layers has none, but an `end`."""

    side: Side
    layer: int | None
    role: Role
    end: End | None = None
