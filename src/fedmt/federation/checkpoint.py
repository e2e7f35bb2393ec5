"""State on disk, in one file: tensors and JSON-able numbers, whole or absent. Knows not what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["State"]


@dataclass(frozen=True)
class State:
    """What must outlive a process: named tensors of any dtype, and numbers that JSON can hold."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
