"""Controllers (Roosta et al. 2021): a few layers, new to a stack or some that it has, that speak for the whole of it.

A new layer is of the stack's own kind. It begins as nothing at all (`identity`), as its neighbour, or at random.
Nothing at all is exact: where norms stand before the blocks, what the blocks add is zero; where they stand behind, as
in Marian, no weights of a layer pass its input through, and a gate does: `x + g·(L(x) − x)`, g = 0 at first.
Knows no engine, no files, and not what of it travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fedmt.choices import PartControllers
from fedmt.engine.adapters import placed, seeded
from fedmt.engine.engine import initialise_tensor

__all__ = ["NORMS_BEHIND", "gate", "gated", "insert", "mistakes", "positions", "warnings"]

SIDES = ("encoder", "decoder")
NORMS_BEHIND = ("marian",)
# What a layer adds to its input comes out of these.
_LAST = ("self_attn.out_proj", "encoder_attn.out_proj", "fc2")


def positions(part: PartControllers, layers: Mapping[str, int]) -> dict[str, list[int]]:
    """Where the controllers stand in the final stacks, from 0; `layers` are those of the stacks without new ones."""
    return {side: _positions(part, side, layers[side]) for side in SIDES}


def _positions(part: PartControllers, side: str, layers: int) -> list[int]:
    asked: list[int] | None = getattr(part, side)
    if asked is not None:
        return sorted(max(0, position) for position in asked)
    if part.how == "designated":
        return sorted({0, layers // 2})
    # Of two new layers: the second and the last but one of what is then `layers + 2`.
    return [1, layers]


def mistakes(part: PartControllers, layers: Mapping[str, int]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for side in SIDES:
        asked: list[int] | None = getattr(part, side)
        if asked is None:
            if part.how == "inserted" and layers[side] < 2:
                found.append((side, f"a stack of {layers[side]} has no second layer and last but one; name positions"))
            continue
        final = layers[side] + (len(asked) if part.how == "inserted" else 0)
        lowest = -1 if part.how == "inserted" else 0
        if outside := [position for position in asked if not lowest <= position < final]:
            found.append(
                (
                    side,
                    f"{outside[0]} is outside the final stack of {final} layers; allowed are {lowest} to {final - 1}",
                )
            )
        elif {-1, 0} <= set(asked):
            found.append((side, "-1 and 0 are the same place, before what was the first layer; name one of them"))
    return found


def warnings(part: PartControllers) -> list[str]:
    if part.how == "designated":
        return []
    return [
        f"part.{side}: a new layer before the first: Roosta et al. saw such engines diverge"
        for side in SIDES
        if {-1, 0} & set(getattr(part, side) or ())
    ]


def gated(part: PartControllers, architecture: str) -> bool:
    return part.how == "inserted" and part.begins == "identity" and architecture in NORMS_BEHIND


def insert(model: PreTrainedModel, part: PartControllers, where: Mapping[str, list[int]], seed: int) -> None:
    """Put new layers into the model's stacks, at these places of the final ones."""
    for side in SIDES:
        stack = model.get_submodule(f"model.{side}")
        old = list(stack.layers)
        for position in where[side]:
            # Of the layers that the stack had, the last one before the place.
            behind = sum(new < position for new in where[side])
            like = old[max(0, position - behind - 1)]
            layer = _fresh(side, like, position, model.config)
            layer.train(model.training)
            name = f"model.{side}.layers.{position}"
            if part.begins == "random":
                _randomise(layer, name, seed, model.config.pad_token_id)
            else:
                layer.load_state_dict(like.state_dict())
            if part.begins == "identity" and not gated(part, model.config.model_type):
                _silence(layer)
            stack.layers.insert(position, layer)
        # A cache is kept by this number: two layers of one number would read each other's keys.
        for number, layer in enumerate(stack.layers):
            for attention in (layer.self_attn, getattr(layer, "encoder_attn", None)):
                if attention is not None and attention.layer_idx is not None:
                    attention.layer_idx = number
        setattr(model.config, f"{side}_layers", len(stack.layers))
    if gated(part, model.config.model_type):
        gate(model, where)


def gate(model: PreTrainedModel, where: Mapping[str, Iterable[int]]) -> None:
    """Give the layers at these places a gate, closed."""
    for side, layers in where.items():
        for position in layers:
            layer = model.get_submodule(f"model.{side}.layers.{position}")
            like = next(layer.parameters())
            layer.register_parameter("gate", nn.Parameter(torch.zeros(1, dtype=like.dtype, device=like.device)))
            layer.register_forward_hook(_through, with_kwargs=True)


def _fresh(side: str, like: nn.Module, position: int, config: Any) -> nn.Module:
    """A layer of the same kind. Decoders' layers know their number; encoders' keep no cache."""
    kind: type[nn.Module] = type(like)
    return placed(lambda: kind(config, layer_idx=position) if side == "decoder" else kind(config), like)


@torch.no_grad()
def _randomise(layer: nn.Module, name: str, seed: int, padding: int) -> None:
    """As an engine of random weights begins, each tensor by its own name; drawn on the processor, for every device."""
    for own, parameter in layer.named_parameters():
        drawn = torch.empty(parameter.shape)
        initialise_tensor(f"{name}.{own}", drawn, seeded(seed, f"{name}.{own}"), padding)
        parameter.copy_(drawn)


@torch.no_grad()
def _silence(layer: nn.Module) -> None:
    for name, parameter in layer.named_parameters():
        if name.rpartition(".")[0] in _LAST:
            parameter.zero_()


def _through(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    x: Tensor = given[0] if given else named["hidden_states"]
    first: Tensor = output[0] if isinstance(output, tuple) else output
    mixed = x + layer.get_parameter("gate") * (first - x)
    return (mixed, *output[1:]) if isinstance(output, tuple) else mixed
