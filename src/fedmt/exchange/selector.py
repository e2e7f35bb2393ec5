"""What of the trained part travels this round: names of tensors, chosen the same way wherever it is asked.

Pure; a choice depends on the selector, the tensors, the seed, the round and who sends, and on nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from fedmt.choices import SelectAll, Selector, SelectRandom

__all__ = ["select"]


def select(selector: Selector, tensors: Mapping[str, Tensor], seed: int, round: int, silo: str) -> list[str]:
    """The names of the tensors to send, in the order of `tensors`. Of `tensors` only the sizes need be real."""
    match selector:
        case SelectAll():
            return list(tensors)
        case SelectRandom(share=share):
            return _random(tensors, share, f"{seed}/{round}/{silo}")


def _random(tensors: Mapping[str, Tensor], share: float, seed: str) -> list[str]:
    """Tensors in a random order until the share is reached; the last is left out if that comes nearer to the share."""
    # By hash rather than by a generator: the same draw in every process, library and version, in any order of names.
    order = sorted(tensors, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    goal = share * sum(tensor.numel() for tensor in tensors.values())
    chosen: set[str] = set()
    have = 0
    for name in order:
        size = tensors[name].numel()
        if chosen and have + size - goal > goal - have:
            break
        chosen.add(name)
        have += size
        if have >= goal:
            break
    return [name for name in tensors if name in chosen]
