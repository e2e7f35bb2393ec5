"""What a silo's reply says, read and checked: nothing of it touches a sum before all of it is found good.

Anything else is `Refused`, with the reason. Knows no round and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedmt.errors import Refused
from fedmt.events import Trained
from fedmt.exchange import codec
from fedmt.exchange.update import Update, change, mismatch, unfinite
from fedmt.federation.merge import weight
from fedmt.federation.messages import Reply
from fedmt.federation.work import SPENT, because, is_statistic
from fedmt.place import Side
from fedmt.recipe import Recipe

__all__ = [
    "Judged",
    "bytes_of",
    "check_refusal",
    "gradients",
    "judged",
    "spent",
    "statistics",
    "trained",
    "update",
    "weight_of",
]

T = TypeVar("T")

_NEEDED = ("samples", "train_loss", "tokens", "steps", "seconds")
# A reply may be larger than the engine by its names and masks; statistics have a limit of their own.
_SLACK, _NAMES = 1 << 16, 512
_LARGEST_STATISTICS = 1 << 26


@dataclass(frozen=True)
class Judged:
    """What a silo says before a threshold is set: its loss, each tensor's deviation, and of the engine it was sent,
    how good it was and what each tensor had to do with that (none in a silo's first round)."""

    weight: float
    train_loss: float
    deviations: Tensor
    products: Tensor | None
    loss: float | None


def check_refusal(reply: Reply) -> None:
    if reply.refused is not None:
        raise Refused(reply.silo, because(reply.refused))


def update(reply: Reply, recipe: Recipe, base: Mapping[str, Tensor], whole: bool) -> Update:
    """The reply as an update of `base`; `whole`: no tensor may be missing."""
    check_refusal(reply)
    most = codec.size(base, recipe.codec)
    _check_size(reply, most + most // 8 + _SLACK + _NAMES * len(base))
    tensors, masks = _decoded(reply, lambda content: codec.decode_chosen(content, recipe.codec, base))
    if wrong := mismatch(tensors, base, whole):
        raise Refused(reply.silo, wrong)
    if (name := unfinite(tensors)) is not None:
        raise Refused(reply.silo, f"tensor {name!r} holds a value that is not finite")
    found = Update(tensors, weight_of(reply, recipe), reply.numbers, masks)
    largest = recipe.failures.largest_norm
    if largest is not None and (norm := change(found, base)) > largest:
        raise Refused(reply.silo, f"its change has norm {norm:.4g}, above {largest:g}")
    return found


def weight_of(reply: Reply, recipe: Recipe) -> float:
    if missing := [name for name in _NEEDED if name not in reply.numbers]:
        raise Refused(reply.silo, f"it does not say its {missing[0]}")
    samples = reply.numbers["samples"]
    if not isinstance(samples, int) or samples < 1:
        raise Refused(reply.silo, f"it claims {samples} training pairs")
    return weight(recipe.merge, samples)


def statistics(reply: Reply) -> dict[str, Tensor]:
    """Numbers under short names: of scores, gradients, losses."""
    check_refusal(reply)
    _check_size(reply, _LARGEST_STATISTICS)
    found = _decoded(reply, lambda content: codec.unpack(content)[0])
    if not all(is_statistic(name, tensor) for name, tensor in found.items()):
        raise Refused(reply.silo, "its statistics are not numbers under short names")
    return found


def bytes_of(reply: Reply, name: str) -> bytes:
    """The bytes that a reply holds under a name, and nothing besides."""
    check_refusal(reply)
    _check_size(reply, _LARGEST_STATISTICS)
    found = _decoded(reply, lambda content: codec.unpack(content)[0])
    if found.keys() != {name} or found[name].dtype != torch.uint8:
        raise Refused(reply.silo, f"it did not send its {name}")
    return bytes(found[name].numpy())


def gradients(reply: Reply) -> Mapping[Side, Tensor]:
    found = statistics(reply)
    sides: dict[Side, Tensor] = {}
    for side in ("encoder", "decoder"):
        vector = found.get(side)
        if vector is None or vector.dim() != 1 or unfinite({side: vector}) is not None or not bool(vector.any()):
            raise Refused(reply.silo, f"its gradient of the {side} is no direction")
        # A view would keep the whole reply.
        sides["encoder" if side == "encoder" else "decoder"] = vector.clone()
    return sides


def judged(reply: Reply, recipe: Recipe, tensors: int) -> Judged:
    found = statistics(reply)
    for name, vector in found.items():
        if name not in ("deviations", "products") or vector.shape != (tensors,) or unfinite({name: vector}) is not None:
            raise Refused(reply.silo, f"its {name} are not {tensors} finite numbers")
    if "deviations" not in found:
        raise Refused(reply.silo, "it does not say how far its tensors went")
    numbers = reply.numbers
    weight = weight_of(reply, recipe)
    return Judged(
        weight,
        float(numbers["train_loss"]),
        found["deviations"].clone(),
        found["products"].clone() if "products" in found else None,
        float(numbers["judged"]) if "judged" in numbers else None,
    )


def trained(model: str, round: int, reply: Reply) -> Trained:
    numbers = reply.numbers
    return Trained(
        model,
        reply.silo,
        round,
        float(numbers["train_loss"]),
        float(numbers["dev_loss"]) if "dev_loss" in numbers else None,
        int(numbers["tokens"]),
        int(numbers["steps"]),
        float(numbers["seconds"]),
    )


def spent(reply: Reply) -> dict[str, float]:
    """Seconds by what they went to, as the silo says."""
    found = {what: float(reply.numbers[f"{what}_seconds"]) for what in SPENT if f"{what}_seconds" in reply.numbers}
    return {"train": float(reply.numbers["seconds"]), **found} if found else {}


def _check_size(reply: Reply, largest: int) -> None:
    if (size := memoryview(reply.payload).nbytes) > largest:
        raise Refused(reply.silo, f"its reply has {size} bytes; {largest} are allowed")


def _decoded(reply: Reply, read: Callable[[codec.Payload], T]) -> T:
    try:
        return read(reply.payload)
    except ValueError as error:
        raise Refused(reply.silo, str(error)) from None
