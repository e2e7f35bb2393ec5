"""What a coordinator may ask of a silo, step by step, and what a silo asks of text and engine.

Words that both sides share, and `Learner`, behind which text and engine stand. Does nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fedmt.federation.checkpoint import State
from fedmt.federation.messages import is_identifier
from fedmt.place import Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedmt.memory.index import Index
    from fedmt.memory.quantise import Quantiser
    from fedmt.memory.retrieve import Retrieval, Tuned

__all__ = [
    "ADMIT",
    "BASE",
    "FIT",
    "GRADIENT",
    "INTRODUCE",
    "INVITE",
    "LOSS",
    "MEMORY",
    "RECALL",
    "RECITE",
    "REMEMBER",
    "SEND",
    "SETS",
    "SPENT",
    "TUNE",
    "FitOrder",
    "FitResult",
    "Learner",
    "Refusal",
    "Scribe",
    "Written",
    "because",
    "is_statistic",
    "score_step",
]

BASE = "base"
GRADIENT = "gradient"
FIT = "fit"
SEND = "send"
LOSS = "loss"
# Of a memory: make a session, say one's key, let somebody in, seal one's records, open everyone's, learn their use, be
# scored with them.
MEMORY = ("invite", "introduce", "admit", "remember", "recall", "tune", "recite")
INVITE, INTRODUCE, ADMIT, REMEMBER, RECALL, TUNE, RECITE = MEMORY
SPENT = ("choose", "encode", "judge")
SETS = ("dev", "test")
_STATISTICS = (torch.float64, torch.float32, torch.int64, torch.int32)

_REASONS = {
    "over": "it has already finished a later round",
    "beyond": "the run has no such round",
    "other": "it has already done this round from other tensors or settings",
    "step": "it knows no such step",
    "payload": "it could not read the tensors it was sent",
    "mismatch": "the tensors it was sent are not those of its engine",
    "statistics": "its statistics are not numbers under short names",
    "missing": "it lacks the tensors that were not sent",
    "base": "the engine that it has is not the one the federation begins from",
    "untrained": "it has not trained in this round",
    "diverged": "its training diverged; lower the highest learning rate, train.peak or train.public_peak",
    "keys": "it has no key pair, or was not asked to share a memory",
    "uninvited": "the session's key is not wrapped for it, or not by a member that it knows",
    "stranger": "it knows nobody by the key that is to be let in",
    "quantiser": "the quantiser it was sent is not the one that was agreed on",
    "forgotten": "it has no records of this memory",
    "untuned": "it has not learnt how to use the memory",
    "dev": "it has no dev text, or too little, to learn from",
    "disk": "its disk is full, or its folder cannot be written",
    "unreadable": "what came from it is no message, or larger than is allowed",
    "welcome": "it does not know the run",
    "engine": "it has no engine with the hash of the one that the recipe names; it must be fetched there first",
    "recipe": "it cannot read the recipe, or began this run with another",
    "name": "it is called otherwise, or is not in the recipe",
    "direction": "it translates in another direction than the recipe says",
    "part": "its settings do not allow this part",
    "selector": "its settings do not allow this way of choosing what is sent",
    "groups": "its settings do not allow these groups",
    "memory": "its settings let no memory leave",
    "few": "its settings ask for more silos in a round",
    "epochs": "its settings allow fewer epochs",
    "rounds": "its settings allow fewer rounds",
}


class Refusal(Exception):
    """A silo's refusal on its way out; `reason` is an identifier."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def because(refused: str) -> str:
    """A refusal's identifier as a clause."""
    kind, _, name = refused.partition(":")
    if kind == "sealed":
        return f"the sealed records that it was sent are not as they were sealed ({name.replace('-', ' ')})"
    return f"it failed with {name}" if kind == "failed" else _REASONS.get(kind, refused)


def score_step(set: str) -> str:
    return f"score:{set}"


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
        """The live tensors of the resident engine that this silo works on: all that it trains or shares."""

    def shared(self) -> Sequence[str]:
        """The names of those that travel, in order; the others stay."""

    def side(self, name: str) -> Side:
        """Where a tensor stands."""

    def base(self, tensors: Mapping[str, Tensor], digest: int) -> bool:
        """Take over the rest of the engine, or, where nothing is sent, say whether it is that of this digest."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these into the resident engine, in place; those not named stay as they are."""

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
        """Train the resident engine, which holds what the coordinator sent.

        `state` is what this model's last fit here ended with (None: first fit, or a fresh optimiser), or what a killed
        fit of this very order gave to `keep`: then it holds the weights too, and training goes on from there to the
        same end. A long fit gives `keep` such a state now and then. Tensors of a state may be live: they are written
        down before `keep` returns, and before anyone else's fit begins.
        """

    def judge(self, batches: int, seed: int, slope: bool) -> tuple[float | None, Mapping[str, Tensor]]:
        """The loss of the resident engine on so many batches of the dev set (none: no dev set), and, if asked for, its
        gradient by the shared tensors."""

    def gradient(self, batches: int | None) -> Mapping[Side, Tensor]:
        """The mean gradient of the training loss by the layer norms of each side, as one vector of length 1."""

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:
        """Statistics of the resident engine on the set `dev` or `test`: numbers, never sentences."""


class Scribe(Learner, Protocol):
    """A learner that can also write its text down as records, and translate with everyone's."""

    @property
    def direction(self) -> str:
        """Of its text, as an identifier: only records of one direction are merged."""

    @property
    def dev_pairs(self) -> int: ...

    @property
    def vocabulary_size(self) -> int:
        """Of the resident engine's output: tokens that a record may name."""

    def records(self, quantiser: Quantiser) -> Written:
        """The training text as records of the resident engine's states, as they are made."""

    def tune(self, index: Index, seed: int) -> Tuned:
        """Learn from the dev text how much neighbours count."""

    def recite(self, model: str, memory: Retrieval) -> Mapping[str, Tensor]:
        """As `score` on the test set, with the memory."""


@dataclass
class Written:
    """Records part by part, and, when all are taken, how many of all were left out."""

    parts: Iterable[NDArray[np.uint8]]
    pruned: Callable[[], int]


def is_statistic(name: str, tensor: Tensor) -> bool:
    """Names are narrow and values wide, so that neither can carry a sentence unseen."""
    return is_identifier(name) and tensor.dtype in _STATISTICS
