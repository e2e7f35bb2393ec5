"""Adaptive parameter freezing (Chen et al. 2021): single values that have stopped moving do not travel for a while.

Every `window` rounds each value is looked at that was not frozen since the last look: by what did it move? Of these
moves two averages are kept, of the move and of its magnitude. Their quotient, the effective perturbation, is 1 of what
goes straight on and near 0 of what goes to and fro; below the threshold a value counts as stable. A stable value's
freeze grows by one window, as TCP's window does; that of a value which moves again is halved, to whole windows. While
it is frozen it is not sent, and the look at its end starts afresh from where the value then stands.

The paper looks at what all have merged, so that all freeze the same values, and puts a frozen value back after every
step. Here each sender looks at what it sends, and what trains on meanwhile is seen at the thaw. The look comes after
the sending, so that it bears on the next round, as in the paper. Knows no messages, and rounds only as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmt.choices import SelectApf
from fedmt.exchange.codec import pieces

__all__ = ["freeze"]

# Of the state; the kinds are followed by "/" and the tensor's name. All but the reference come with the first look.
_LOOK = "look"  # the round of the last look
_REFERENCE, _MOVE, _SIZE, _PERIOD, _LEFT = _KINDS = ("reference", "move", "size", "period", "left")
# A byte: at fourteen of them a value this is the largest thing that a silo keeps, and no run has 255 windows.
_COUNT = torch.uint8
_LONGEST = torch.iinfo(_COUNT).max  # of a freeze, in windows


def freeze(
    settings: SelectApf, now: Mapping[str, Tensor], round: int, state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor | None], dict[str, Tensor]]:
    """A mask of each tensor, by what was known before this round; and what is known after it. Writes to neither."""
    if not state:
        # Cloned, for the engine's own tensors are trained on.
        after = {f"{_REFERENCE}/{name}": tensor.detach().float().clone() for name, tensor in now.items()}
        return dict.fromkeys(now), {_LOOK: torch.tensor(round), **after}
    masks = {name: state[f"{_LEFT}/{name}"] == 0 if f"{_LEFT}/{name}" in state else None for name in now}
    # Not "every window-th round": a silo that missed the round looks in its next.
    if round - int(state[_LOOK]) < settings.window:
        return masks, dict(state)
    after = {_LOOK: torch.tensor(round)}
    for name, tensor in now.items():
        known = _look(settings, tensor, [_known(state, kind, name) for kind in _KINDS])
        after.update({f"{kind}/{name}": value for kind, value in zip(_KINDS, known, strict=True)})
    return masks, after


def _known(state: Mapping[str, Tensor], kind: str, name: str) -> Tensor:
    if f"{kind}/{name}" in state:
        return state[f"{kind}/{name}"]
    dtype = torch.float32 if kind in (_MOVE, _SIZE) else _COUNT
    return torch.zeros(state[f"{_REFERENCE}/{name}"].shape, dtype=dtype)


def _look(settings: SelectApf, now: Tensor, known: list[Tensor]) -> list[Tensor]:
    """What is known of one tensor after a look; piece by piece, so that the temporaries stay in the cache."""
    after = [torch.empty_like(value) for value in known]
    fade = 1 - settings.smoothing
    for value, *both in zip(*(pieces(tensor) for tensor in (now, *known, *after)), strict=True):
        old_reference, old_move, old_size, old_period, old_left, reference, move, size, period, left = both
        awake = old_left == 0
        # Also of those that sleep on: only one that was awake from look to look is held against it.
        reference.copy_(value)
        delta = reference - old_reference
        # What sleeps keeps its averages.
        fades = awake * fade
        torch.lerp(old_move, delta, fades, out=move)
        torch.lerp(old_size, delta.abs_(), fades, out=size)
        stable = move.abs() < size * settings.threshold
        if settings.threshold > 0:
            stable |= size == 0  # never moved
        longer = old_period.clamp(max=_LONGEST - 1) + 1
        torch.where(stable, longer, old_period >> 1, out=period)
        torch.where(awake, period, old_period, out=period)
        torch.where(awake, period, old_left - 1, out=left)
    return after
