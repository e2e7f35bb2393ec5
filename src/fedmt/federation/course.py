"""Where a model's training stands, as values: what is to be done, how far it is, who has what.

Knows nothing of how silos are asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from fedmt.exchange.update import Update
from fedmt.federation.checkpoint import State
from fedmt.federation.groups import Grouping
from fedmt.place import Side

__all__ = ["After", "Base", "Course", "Engines", "Grouper", "Plan", "Tally", "Tensors"]

Tensors: TypeAlias = Mapping[str, Tensor]
Engines: TypeAlias = Mapping[str, Tensors]
"""Of each silo, what is shared of its engine. Silos whose groups are the same have one and the same table."""
After: TypeAlias = Callable[[int, Engines], None]
Grouper: TypeAlias = Callable[[Mapping[str, Mapping[Side, Tensor]] | None], Grouping]
"""Who merges with whom; given the silos' gradients where the method goes by them."""


@dataclass(frozen=True)
class Base:
    """What silos need of the engine besides what is shared: its tensors, or none where each has them by a name."""

    tensors: Tensors
    digest: int


@dataclass(frozen=True)
class Course:
    """Where a model's training stands after `round` whole rounds.

    `tensors` go by their names in the groups. `losses[r]` is the dev loss of the engine after r rounds; silos measure
    it as they receive it, so the last engine's is known a round later. `known` are the silos that hold an engine to
    which a part can be sent, `based` those that hold the base. `state` is what methods must remember: the round before,
    masks, a threshold's network.
    """

    tensors: Tensors
    grouping: Grouping | None = None
    round: int = 0
    known: tuple[str, ...] = ()
    based: tuple[str, ...] = ()
    losses: tuple[float | None, ...] = ()
    state: State = State()  # noqa: RUF009

    def best(self) -> int | None:
        known = [round for round, loss in enumerate(self.losses) if loss is not None]
        return min(known, key=lambda round: (self.losses[round], round)) if known else None

    def stale(self, patience: int | None) -> bool:
        best = self.best()
        return patience is not None and best is not None and len(self.losses) - 1 - best >= patience


@dataclass(frozen=True)
class Plan:
    model: str
    silos: Sequence[str]
    rounds: int
    epochs: int
    personal: bool
    like: Tensors
    base: Base | None


@dataclass
class Tally:
    """The dev losses of one exchange, weighed as the merge weighs."""

    sum: float = 0.0
    weight: float = 0.0
    silos: list[str] = field(default_factory=list)

    def add(self, silo: str, update: Update) -> None:
        self.silos.append(silo)
        if (loss := update.metrics.get("dev_loss")) is not None:
            self.sum += update.weight * (loss if math.isfinite(loss) else math.inf)
            self.weight += update.weight

    def loss(self) -> float | None:
        return self.sum / self.weight if self.weight else None
