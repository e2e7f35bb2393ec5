"""Looking up while translating: the mixer that a search asks at each step, and learning how from dev text.

Knows nothing of text, and nothing of where records come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmt.engine.engine import Engine
from fedmt.engine.steps import States, logits_of
from fedmt.errors import Failure
from fedmt.memory import adaptive as learning
from fedmt.memory.adaptive import Adaptive, Looked, Weights
from fedmt.memory.datastore import MOST_LOGITS
from fedmt.memory.index import Index
from fedmt.recipe import Memory

__all__ = ["Explained", "Neighbour", "Retrieval", "Tuned", "explain", "tune"]

# Fewer probes do, if they lose no more than so many nats a token on the held-out dev text.
SLACK = 0.01
# Dev tokens that are enough to learn from.
MOST_DEV = 50_000


class Retrieval:
    """The `Mixer` of a search: looks up for all hypotheses of a step at once, where the gate lets it.

    Counts, over all searches, the tokens that it was `asked` for and those that it looked up.
    """

    def __init__(self, index: Index, adaptive: Adaptive) -> None:
        self.index, self.adaptive = index, adaptive.requires_grad_(False).eval()
        self.asked = self.looked_up = 0

    def __call__(self, hidden: Tensor, logits: Tensor, live: Tensor) -> Tensor:
        with torch.autocast(logits.device.type, enabled=False):
            log_probs = logits.float().log_softmax(-1)
            wanted = live
            if self.adaptive.threshold is not None:
                self._move(logits.device)
                wanted = live & self.adaptive.asks(learning.features(hidden, log_probs))
            rows = wanted.nonzero()[:, 0]
            self.asked += int(live.sum())
            self.looked_up += len(rows)
            if not len(rows):
                return log_probs
            every = len(rows) == len(log_probs)
            _, tokens, weights = self.look(hidden if every else hidden[rows])
            return learning.mix_rows(log_probs, None if every else rows, weights, tokens)

    def _move(self, device: torch.device) -> None:
        # Asked first: to go through all modules takes as long as to look up ten states.
        if self.adaptive.unit.device != device:
            self.adaptive.to(device)

    def look(self, hidden: Tensor) -> tuple[Tensor, Tensor, Weights]:
        """The neighbours' distances and tokens, and what each is worth; on the device of the states."""
        self._move(hidden.device)
        found = self.index.search(hidden.float().cpu().numpy(), self.adaptive.neighbours, self.adaptive.probes)
        distances, tokens = (torch.from_numpy(array).to(hidden.device) for array in found)
        return distances, tokens, self.adaptive.weights(distances, tokens)


# ── learning from dev text ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Tuned:
    """What was learnt, and what it does on the held-out fifth of the dev tokens: losses in nats a token."""

    adaptive: Adaptive
    tokens: int
    engine_loss: float
    loss: float
    looked_up: float


def tune(index: Index, engine: Engine, states: Iterable[States], settings: Memory, seed: int) -> Tuned:
    """Learn Meta-k, the temperature, how many probes will do, and the gate, from dev text of any one silo."""
    hidden, target = _gathered(states)
    if len(target) < 10:
        raise Failure(f"memory: {len(target)} tokens of dev text are too few to learn how to use it; at least 10")
    keys, count = hidden.cpu().numpy(), settings.neighbours

    def look(probes: int) -> Looked:
        distances, tokens = (torch.from_numpy(array) for array in index.search(keys, count, probes))
        return Looked(distances, tokens, target, target_log)

    target_log, seen = _judged(engine, hidden, target)
    most = min(settings.probes or settings.most_probes, index.most_probes)
    looked = look(most)
    adaptive = learning.fit(looked, hidden.shape[1], settings.temperature, most, seed)
    judged = learning.held_out(len(target))
    if settings.probes is None:
        goal, probes = float(learning.loss_of(adaptive, looked, judged)) + SLACK, 1
        while probes < most and float(learning.loss_of(adaptive, look(probes), judged)) > goal:
            probes *= 2
        if probes < most:
            looked = look(probes)
            adaptive = learning.fit(looked, hidden.shape[1], settings.temperature, probes, seed)
    looked_up = 1.0
    if settings.gate is not None:
        changed = _changed(engine, adaptive, hidden, looked)
        looked_up = learning.fit_gate(adaptive, seen, changed, settings.gate, seed)
    loss = float(learning.loss_of(adaptive, looked, judged))
    return Tuned(adaptive, len(target), -float(target_log[judged].mean()), loss, looked_up)


def _gathered(states: Iterable[States]) -> tuple[Tensor, Tensor]:
    hidden, tokens, count = [], [], 0
    for part in states:
        hidden.append(part.hidden.float().clone())
        tokens.append(part.tokens.cpu().clone())
        count += len(part.tokens)
        if count >= MOST_DEV:
            break
    return (torch.cat(hidden), torch.cat(tokens)) if hidden else (torch.empty(0, 1), torch.empty(0, dtype=torch.long))


def _rows(engine: Engine) -> int:
    return max(1, MOST_LOGITS // int(engine.model.config.vocab_size))


def _judged(engine: Engine, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The engine's own log-probability of each right token, and what the gate sees of it."""
    logs, seen = [], []
    for states, right in zip(torch.split(hidden, _rows(engine)), torch.split(target, _rows(engine)), strict=True):
        log_probs = logits_of(engine, states).log_softmax(-1)
        logs.append(log_probs.cpu().gather(1, right[:, None])[:, 0])
        seen.append(learning.features(states, log_probs).cpu())
    return torch.cat(logs), torch.cat(seen)


def _changed(engine: Engine, adaptive: Adaptive, hidden: Tensor, looked: Looked) -> Tensor:
    """Where looking up makes another token the most probable."""
    found, size = [], _rows(engine)
    for states, distances, tokens in zip(
        torch.split(hidden, size), torch.split(looked.distances, size), torch.split(looked.tokens, size), strict=True
    ):
        log_probs = logits_of(engine, states).log_softmax(-1).cpu()
        mixed = learning.mix(log_probs, adaptive.weights(distances, tokens), tokens)
        found.append(mixed.argmax(-1) != log_probs.argmax(-1))
    return torch.cat(found)


# ── telling why ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Neighbour(NamedTuple):
    token: int
    distance: float
    weight: float


@dataclass(frozen=True)
class Explained:
    """Why a token: the engine's own probability of it, the mixture's, each k's share, and the neighbours."""

    token: int
    engine: float
    mixed: float
    looked_up: bool
    shares: dict[int, float]
    neighbours: list[Neighbour]


def explain(retrieval: Retrieval, engine: Engine, states: Iterable[States]) -> list[Explained]:
    """Of each token of a translation, in the order of its states: `forced` gives them for one sentence and its
    hypothesis. Where the gate would not have looked up, the neighbours are shown nevertheless, and count for nothing.
    """
    told: list[Explained] = []
    for part in states:
        log_probs = logits_of(engine, part.hidden).log_softmax(-1)
        asks = retrieval.adaptive.to(log_probs.device).asks(learning.features(part.hidden, log_probs))
        distances, tokens, weights = retrieval.look(part.hidden)
        mixed = torch.where(asks[:, None], learning.mix(log_probs, weights, tokens), log_probs)
        for row, token in enumerate(part.tokens.tolist()):
            near = zip(tokens[row].tolist(), distances[row].tolist(), weights.each[row].tolist(), strict=True)
            told.append(
                Explained(
                    token,
                    float(log_probs[row, token].exp()),
                    float(mixed[row, token].exp()),
                    bool(asks[row]),
                    dict(zip(retrieval.adaptive.candidates, weights.shares[row].tolist(), strict=True)),
                    [Neighbour(*one) for one in near if one[0] >= 0],
                )
            )
    return told
