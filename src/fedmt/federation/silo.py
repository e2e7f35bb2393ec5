"""A silo: answers requests about its own text with tensors and numbers, and answers the same request the same way twice.

Knows no file format of text, no Hugging Face and no network: text and engine are behind `Learner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedmt.federation.checkpoint import State

__all__ = ["FitOrder", "FitResult", "Learner", "State"]


@dataclass(frozen=True)
class FitOrder:
    """What a silo is asked to train. `seed` is already this silo's and this round's own."""

    model: str
    round: int
    rounds: int
    epochs: int
    seed: int
    personal: bool = False


@dataclass(frozen=True)
class FitResult:
    """Losses are per target token, in nats; `dev_loss` is the received engine's, before training (None: no dev set)."""

    train_loss: float
    dev_loss: float | None
    tokens: int
    steps: int
    seconds: float


class Learner(Protocol):
    """One silo's text bound to the one resident engine."""

    @property
    def samples(self) -> int:
        """Training pairs."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The live tensors of the trained part of the resident engine."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these into the resident engine, in place; those not named stay as they are."""

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
        """Train the resident engine, which holds what the coordinator sent.

        `state` is what this model's last fit here ended with (None: first fit, or a fresh optimiser), or what a killed
        fit of this very order gave to `keep`: then it holds the weights too, and training goes on from there to the
        same end. A long fit gives `keep` such a state now and then. Tensors of a state may be live: they are written
        down before `keep` returns, and before anyone else's fit begins.
        """

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:
        """Statistics of the resident engine on the set `dev` or `test`: numbers, never sentences."""
