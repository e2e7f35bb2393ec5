"""Adapters (Liu et al. 2023): a bottleneck `x + Up(ReLU(Down(x)))` behind every attention and feed-forward block.

An adapter is a child of the module whose output it changes, before that is added to what came in: of `self_attn`,
`encoder_attn` and `fc2`. A forward hook calls it, so that training and every way of decoding take it along. Up is zero
at first: the engine translates as it did before. Knows no engine, no files, and not what of it travels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fedmt.choices import PartAdapters
from fedmt.place import Place

__all__ = ["Adapter", "covered", "insert", "placed", "seeded", "takes", "third"]

M = TypeVar("M", bound=nn.Module)
THIRDS = ("input", "middle", "output")
# What a layer adds to its input comes out of these; an encoder's layer has no second attention.
BLOCKS = ("self_attn", "encoder_attn", "fc2")


class Adapter(nn.Module):
    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(torch.relu(self.down(x)))
        return x + added


def third(which: str, layers: int) -> range:
    """The layers of a stack that `which` names, counted from the input; thirds are as even as whole layers allow."""
    if which == "all":
        return range(layers)
    number = THIRDS.index(which)
    return range(number * layers // 3, (number + 1) * layers // 3)


def covered(part: PartAdapters, encoder_layers: int, decoder_layers: int) -> dict[str, range]:
    """The layers of each side that have adapters."""
    stacks = {"encoder": encoder_layers, "decoder": decoder_layers}
    return {side: third(part.third, count) for side, count in stacks.items() if part.sides in ("both", side)}


def takes(part: PartAdapters, place: Place, encoder_layers: int, decoder_layers: int) -> bool:
    """Whether the tensor at this place is trained and shared: adapters, and the norms that go with them.

    A stack's last norm goes with its output end. The norm behind an embedding goes with nothing: it stands before the
    layers, and Liu et al.'s count of parameters leaves it out.
    """
    if place.role == "adapter":
        return True
    layers = covered(part, encoder_layers, decoder_layers).get(place.side)
    if place.role != "norm" or not part.norms or layers is None:
        return False
    if place.layer is None:
        return place.end == "output" and part.third in ("all", "output")
    return place.layer in layers


def insert(model: PreTrainedModel, part: PartAdapters, seed: int) -> None:
    """Hang adapters on the model's blocks. The seed and each one's own name decide it, whatever else is inserted."""
    config = model.config
    for side, layers in covered(part, config.encoder_layers, config.decoder_layers).items():
        for layer in layers:
            prefix = f"model.{side}.layers.{layer}"
            for block, module in _blocks(model.get_submodule(prefix)):
                adapter = placed(lambda: Adapter(config.d_model, part.width), module).train(model.training)
                _begin(adapter, seeded(seed, f"{prefix}.{block}.adapter"))
                module.add_module("adapter", adapter)
                module.register_forward_hook(_through)


def seeded(seed: int, name: str) -> torch.Generator:
    """A generator for one tensor, or one module, alone: its draws depend on nothing that is drawn beside it."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def placed(make: Callable[[], M], beside: nn.Module) -> M:
    """A module made where another one is, and the program's own random state left alone."""
    like = next(beside.parameters())
    with torch.random.fork_rng(devices=[]), torch.device("meta" if like.is_meta else "cpu"):
        made = make()
    return made.to(like.device, like.dtype)


def _blocks(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for block in BLOCKS:
        if (module := getattr(layer, block, None)) is not None:
            yield block, module


def _begin(adapter: Adapter, draw: torch.Generator) -> None:
    """Down keeps the scale of what comes in, whatever the width. Drawn on the processor: every device begins alike."""
    down = torch.empty(adapter.down.weight.shape).normal_(0.0, adapter.down.in_features**-0.5, generator=draw)
    with torch.no_grad():
        adapter.down.weight.copy_(down)
        for zero in (adapter.down.bias, adapter.up.weight, adapter.up.bias):
            zero.zero_()


def _through(module: nn.Module, _: Any, output: Any) -> Any:
    """An attention gives its hidden states first of several things, a linear layer gives them alone."""
    adapter = module.get_submodule("adapter")
    return (adapter(output[0]), *output[1:]) if isinstance(output, tuple) else adapter(output)
