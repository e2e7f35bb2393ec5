"""Dynamic pulling (Passban et al. 2022): whole tensors, by how much they changed since the sender's last engine.

The encoder's tensors are compared with the encoder's, the decoder's with the decoder's, since they "vary at different
scales"; what belongs to neither is sent always or never. The paper's threshold is the median of the norms, and the
norm of the whole difference grows with a tensor's size: the lower half then is biases and layer norms, 0.3 % of the
parameters. `median: tensors` with `norm: l2` or `l1` is that, to the letter; the defaults send half of the parameters.
Knows no rounds, no messages, and of an engine only its tensors' sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedmt.choices import SelectPulling, Send
from fedmt.exchange.codec import pieces
from fedmt.place import Side

__all__ = ["GROWN", "Norm", "changes", "pull"]

Norm: TypeAlias = Literal["mean_abs", "l1", "l2", "relative"]

# The relative change of what grew out of nothing: beyond any other, and still a number in float32.
GROWN = 1e30


def pull(
    settings: SelectPulling, now: Mapping[str, Tensor], before: Mapping[str, Tensor], sides: Mapping[str, Side]
) -> set[str]:
    """The names of the tensors to send."""
    chosen = {name for name in now if sides[name] == "shared" and settings.embedding == "always"}
    share = 0.5 if settings.share is None else settings.share
    for side in ("encoder", "decoder"):
        of_side = {name: tensor for name, tensor in now.items() if sides[name] == side}
        if not of_side:
            continue
        norms = changes(of_side, before, settings.norm)
        if settings.threshold is not None:
            chosen |= _beyond(norms, settings.threshold, settings.send)
        elif settings.median == "tensors":
            chosen |= _beyond(norms, _quantile(norms, share, settings.send), settings.send)
        else:
            sizes = {name: tensor.numel() for name, tensor in of_side.items()}
            chosen |= _nearest(norms, sizes, share, settings.send)
    return chosen


def changes(now: Mapping[str, Tensor], before: Mapping[str, Tensor], norm: Norm) -> dict[str, float]:
    """The norm of each tensor's change, summed up in float64.

    `relative` holds it against the old tensor's: 0/0 is 0, and x/0 is `GROWN`.
    """
    return {name: _change(tensor, before[name], norm) for name, tensor in now.items()}


def _change(now: Tensor, before: Tensor, norm: Norm) -> float:
    sum_, old = 0.0, 0.0
    for piece, base in zip(pieces(now), pieces(before), strict=True):
        difference = piece.float() - base.float()
        if norm in ("mean_abs", "l1"):
            sum_ += float(difference.abs_().sum(dtype=torch.float64))
        else:
            # A norm and not a sum of squares: in float32 the squares of small changes would vanish.
            sum_ += float(torch.linalg.vector_norm(difference, dtype=torch.float64)) ** 2
        if norm == "relative":
            old += float(torch.linalg.vector_norm(base, dtype=torch.float64)) ** 2
    match norm:
        case "mean_abs":
            return sum_ / max(now.numel(), 1)
        case "l1":
            return sum_
        case "l2":
            return math.sqrt(sum_)
        case "relative":
            if old:
                return min(math.sqrt(sum_ / old), GROWN)
            return GROWN if sum_ else 0.0


def _beyond(norms: Mapping[str, float], threshold: float, send: Send) -> set[str]:
    """Equations 2 and 3 of the paper: at least the threshold, or less than it."""
    return {name for name, norm in norms.items() if (norm >= threshold) == (send == "greater")}


def _quantile(norms: Mapping[str, float], share: float, send: Send) -> float:
    """The threshold that about `share` of the tensors pass, counted; half: the median."""
    if send == "less" and share == 1:
        return math.inf  # the largest is not less than itself
    values = torch.tensor(list(norms.values()), dtype=torch.float64)
    return float(torch.quantile(values, share if send == "less" else 1 - share))


def _nearest(norms: Mapping[str, float], sizes: Mapping[str, int], share: float, send: Send) -> set[str]:
    """As many of the most (the least) changed as come nearest to the share of the parameters; at least one."""
    sign = -1.0 if send == "greater" else 1.0
    # By name where norms are equal: the same choice in whatever order the tensors come.
    order = sorted(norms, key=lambda name: (sign * norms[name], name))
    goal = share * sum(sizes.values())
    have, best, miss = 0, 0, math.inf
    for count, name in enumerate(order, start=1):
        have += sizes[name]
        if abs(have - goal) < miss:
            best, miss = count, abs(have - goal)
    return set(order[:best])
