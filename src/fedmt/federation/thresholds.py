"""A learned threshold in the rounds of a federation: what silos say goes to `exchange/metasend.py`, θ comes back.

A round's threshold learns from what became of the engine that it let through, which silos see when they are sent it:
in the next round. So the engine of the last round teaches nothing. Knows no transport.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedmt.choices import Missing, SelectMetaSend, Selector, ThetaLearned
from fedmt.exchange.metasend import Evidence, Threshold
from fedmt.federation.checkpoint import State, over, under
from fedmt.federation.replies import Judged

__all__ = ["Thresholds", "theta_of"]

_PLACE = "threshold"


def theta_of(selector: Selector, seed: int, round: int, learned: float | None = None) -> float | None:
    """A round's threshold where none needs to be learned first: fixed, random, or the last that was learned."""
    if not isinstance(selector, SelectMetaSend):
        return None
    if isinstance(selector.theta, ThetaLearned):
        return learned
    return Threshold(selector.theta, selector.send, "renormalise", torch.ones(1), [""], seed).theta(round, {})


class Thresholds:
    """Of one round. `keys`: of each silo, what its tensors are called among the groups."""

    def __init__(
        self,
        selector: SelectMetaSend,
        missing: Missing,
        sizes: Sequence[int],
        keys: Mapping[str, tuple[str, ...]],
        seed: int,
        state: State,
    ) -> None:
        self._threshold = Threshold(selector.theta, selector.send, missing, torch.tensor(sizes), list(keys), seed)
        if _PLACE in state.numbers:
            self._threshold.restore(under(_PLACE, state.tensors), state.numbers[_PLACE])
        self._last = under("deviations", state.tensors)
        self._keys = keys
        self._heard: dict[str, Judged] = {}

    @property
    def heard(self) -> list[str]:
        return list(self._heard)

    def hear(self, silo: str, judged: Judged) -> None:
        self._heard[silo] = judged

    def theta(self, round: int) -> float:
        """This round's threshold, after what the last one's engine has shown."""
        evidence = {
            silo: Evidence(judged.weight, self._last[silo], products, judged.loss, self._keys[silo])
            for silo, judged in self._heard.items()
            if silo in self._last and judged.loss is not None
            for products in [torch.zeros_like(self._last[silo]) if judged.products is None else judged.products]
        }
        if evidence:
            self._threshold.learn(evidence)
        return self._threshold.theta(round, {silo: judged.train_loss for silo, judged in self._heard.items()})

    def state(self) -> State:
        tensors, numbers = self._threshold.state()
        deviations = {silo: judged.deviations for silo, judged in self._heard.items()}
        return State({**over(_PLACE, tensors), **over("deviations", deviations)}, {_PLACE: numbers})
