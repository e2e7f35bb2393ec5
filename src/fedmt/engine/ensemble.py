"""Several engines as one: each step, the mean of their probabilities, by given weights.

All share one vocabulary, and each keeps its own keys and values. Knows nothing of how tokens are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fedmt.engine.steps import Steps

__all__ = ["Ensemble", "Voice"]


@dataclass(frozen=True)
class Voice:
    """`weight` is more than nothing; weights need not add up to 1."""

    model: PreTrainedModel
    weight: float = 1.0


class Ensemble:
    """Steps like one engine's; its states are the first voice's."""

    def __init__(self, voices: Sequence[Voice], source: Tensor, pad: int, cached: bool = True) -> None:
        self._steps = [Steps(voice.model, source, pad, cached) for voice in voices]
        total = sum(voice.weight for voice in voices)
        self._logs = [math.log(voice.weight / total) for voice in voices]

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The first voice's last hidden state, and the log-probabilities of the mean, which are logits too."""
        first: Tensor | None = None
        mixed: Tensor | None = None
        for steps, log in zip(self._steps, self._logs, strict=True):
            hidden, logits = steps.step(tokens)
            part = logits.log_softmax(-1) + log
            first = hidden if first is None else first
            mixed = part if mixed is None else torch.logaddexp(mixed, part)
        assert first is not None
        assert mixed is not None
        return first, mixed

    def keep(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        for steps in self._steps:
            steps.keep(rows, sentences)
