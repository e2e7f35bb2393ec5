"""What of the shared part travels this round: whole tensors, or single values of them by a mask.

Pure; a choice depends on the selector, the scene and the sender's state, and on nothing else: the same wherever and how
often it is made. Each method stands in the module of its name; here is what they have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from fedmt.choices import (
    SelectAll,
    SelectApf,
    SelectMetaSend,
    Selector,
    SelectPulling,
    SelectRandom,
    SelectTop,
)
from fedmt.exchange.freezing import freeze
from fedmt.exchange.metasend import deviations, passing, prune, scaled
from fedmt.exchange.pulling import pull
from fedmt.exchange.top import top
from fedmt.place import Side

__all__ = ["Chosen", "Mask", "Needs", "Scene", "needs", "select", "whole"]

# Of a tensor's values those to send, in its shape; None: all of them.
Mask: TypeAlias = Tensor | None
# The tensors to send, in the order of what there is; the others are absent.
Chosen: TypeAlias = dict[str, Tensor | None]


@dataclass(frozen=True)
class Scene:
    """What a choice is made from. `before` is the sender's last engine, in round 1 the first one."""

    now: Mapping[str, Tensor]
    before: Mapping[str, Tensor]
    sides: Mapping[str, Side]
    seed: int
    round: int
    who: str  # the silo; "" for the server
    theta: float | None = None  # for metasend alone: this round's threshold


@dataclass(frozen=True)
class Needs:
    """What a selector asks its sender to remember: its last engine, and what `select` gave back as state."""

    before: bool
    state: bool


def needs(selector: Selector) -> Needs:
    match selector:
        case SelectAll() | SelectRandom():
            return Needs(before=False, state=False)
        case SelectPulling():
            return Needs(before=True, state=False)
        case SelectTop(by=by):
            return Needs(before=by == "change", state=False)
        case SelectApf():
            return Needs(before=False, state=True)
        case SelectMetaSend(pruning=pruning):
            return Needs(before=True, state=pruning is not None)


def whole(selector: Selector) -> bool:
    """Whether it sends all of everything, whatever the scene."""
    return isinstance(selector, SelectAll)


def select(selector: Selector, scene: Scene, state: Mapping[str, Tensor]) -> tuple[Chosen, dict[str, Tensor]]:
    """The choice, and the state for the next; of a first one the state is empty. Neither argument is written to.

    For `all` and `random` only the sizes of `now` need be real.
    """
    match selector:
        case SelectAll():
            return dict.fromkeys(scene.now), {}
        case SelectRandom(share=share):
            return _ordered(scene, _random(scene.now, share, f"{scene.seed}/{scene.round}/{scene.who}")), {}
        case SelectPulling():
            return _ordered(scene, pull(selector, scene.now, scene.before, scene.sides)), {}
        case SelectTop():
            return _tidy(scene, top(selector, scene.now, scene.before, scene.sides)), {}
        case SelectApf():
            masks, after = freeze(selector, scene.now, scene.round, state)
            return _tidy(scene, masks), after
        case SelectMetaSend(pruning=pruning):
            if scene.theta is None:
                raise ValueError("metasend chooses by a threshold, and this round has none")
            raw = deviations(scene.now, scene.before)
            passed = passing(scaled(raw, selector.scale), scene.theta, selector.send)
            if pruning is None:
                return _ordered(scene, passed), {}
            kept, after = prune(pruning, scene.now, scene.before, raw, passed, f"{scene.seed}/{scene.who}", state)
            return _ordered(scene, kept), after


def _ordered(scene: Scene, names: Iterable[str]) -> Chosen:
    names = set(names)
    return {name: None for name in scene.now if name in names}


def _tidy(scene: Scene, masks: Mapping[str, Tensor | None]) -> Chosen:
    """A mask that passes all of a tensor is none, so that "everything passes" is the full exchange, bit for bit."""
    chosen: Chosen = {}
    for name in scene.now:
        mask = masks[name]
        if mask is None or bool(mask.all()):
            chosen[name] = None
        elif bool(mask.any()):
            chosen[name] = mask
    return chosen


def _random(tensors: Mapping[str, Tensor], share: float, seed: str) -> set[str]:
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
    return chosen
