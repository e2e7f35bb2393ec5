"""The largest single values: of each side apart, exactly round(share × values) of them, by magnitude or by change.

The encoder, the decoder and what both share are ranked among themselves, else the largest embedding would decide for
all. Of equal magnitudes those that come first in the engine are taken. Knows no rounds and no messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedmt.choices import SelectTop
from fedmt.exchange.codec import pieces
from fedmt.place import Side

__all__ = ["top"]

_LOW = 16
_HIGHS, _LOWS = 1 << (31 - _LOW), 1 << _LOW


def top(
    settings: SelectTop, now: Mapping[str, Tensor], before: Mapping[str, Tensor], sides: Mapping[str, Side]
) -> dict[str, Tensor]:
    """A mask of each tensor. `before` is looked at only where the change counts."""
    masks: dict[str, Tensor] = {}
    for side in ("encoder", "decoder", "shared"):
        of_side = {name: tensor for name, tensor in now.items() if sides[name] == side}
        base = before if settings.by == "change" else None
        count = round(settings.share * sum(tensor.numel() for tensor in of_side.values()))
        masks.update(_largest(of_side, base, count))
    return masks


def _largest(tensors: Mapping[str, Tensor], base: Mapping[str, Tensor] | None, count: int) -> dict[str, Tensor]:
    threshold, ties = _threshold(tensors, base, count)
    masks: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        parts: list[Tensor] = []
        for bits in _bits(tensor, None if base is None else base[name]):
            mask = bits > threshold
            if ties:
                equal = torch.nonzero(bits == threshold).view(-1)[:ties]
                mask[equal] = True
                ties -= equal.numel()
            parts.append(mask)
        masks[name] = torch.cat(parts).view(tensor.shape)
    return masks


def _threshold(tensors: Mapping[str, Tensor], base: Mapping[str, Tensor] | None, count: int) -> tuple[int, int]:
    """The bits of the value above which all are taken, and how many of those equal to it are taken too.

    A histogram of the upper bits finds where the `count`-th largest stands, one of the lower bits which it is: two
    passes that sort nothing and keep nothing, twenty times as fast as to sort or to partition.
    """
    if count == 0:
        return (1 << 31) - 1, 0
    high = torch.zeros(_HIGHS, dtype=torch.int64)
    for name, tensor in tensors.items():
        for bits in _bits(tensor, None if base is None else base[name]):
            high += torch.bincount(bits >> _LOW, minlength=_HIGHS)
    prefix, left = _reach(high, count)
    low = torch.zeros(_LOWS, dtype=torch.int64)
    for name, tensor in tensors.items():
        for bits in _bits(tensor, None if base is None else base[name]):
            near = bits[(bits >> _LOW) == prefix]
            if near.numel():
                low += torch.bincount(near & (_LOWS - 1), minlength=_LOWS)
    rest, ties = _reach(low, left)
    return (prefix << _LOW) | rest, ties


def _reach(histogram: Tensor, count: int) -> tuple[int, int]:
    """The bin in which the `count`-th largest stands, and how many of that bin are still wanted."""
    above = histogram.flip(0).cumsum(0)
    bin_ = int(torch.searchsorted(above, count))
    beyond = int(above[bin_ - 1]) if bin_ else 0
    return histogram.numel() - 1 - bin_, count - beyond


def _bits(tensor: Tensor, base: Tensor | None) -> Iterator[Tensor]:
    """Magnitudes as integers, piece by piece: read as an integer, a float without its sign keeps its order."""
    if base is None:
        for piece in pieces(tensor):
            yield piece.float().view(torch.int32) & 0x7FFFFFFF
    else:
        for piece, old in zip(pieces(tensor), pieces(base), strict=True):
            yield (piece.float() - old.float()).view(torch.int32) & 0x7FFFFFFF
