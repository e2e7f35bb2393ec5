"""An engine of 76 MB that no one trains: names and shapes of a transformer, 19 M parameters, random weights.

Plain standard library and, for `module`, torch: every peer's environment has it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

__all__ = ["SILOS", "module", "shapes"]

SILOS = 8
_WIDTH, _LAYERS, _PIECES = 384, 4, 6400


@functools.cache
def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"shared.weight": (_PIECES, _WIDTH)}
    for side in ("encoder", "decoder"):
        for layer in range(_LAYERS):
            at = f"{side}.layers.{layer}"
            for block in ("self_attn", *(["encoder_attn"] if side == "decoder" else [])):
                for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    found[f"{at}.{block}.{name}.weight"] = (_WIDTH, _WIDTH)
                    found[f"{at}.{block}.{name}.bias"] = (_WIDTH,)
                found[f"{at}.{block}_layer_norm.weight"] = (_WIDTH,)
                found[f"{at}.{block}_layer_norm.bias"] = (_WIDTH,)
            for name, shape in (("fc1", (4 * _WIDTH, _WIDTH)), ("fc2", (_WIDTH, 4 * _WIDTH))):
                found[f"{at}.{name}.weight"] = shape
                found[f"{at}.{name}.bias"] = shape[:1]
            found[f"{at}.final_layer_norm.weight"] = (_WIDTH,)
            found[f"{at}.final_layer_norm.bias"] = (_WIDTH,)
    return found


def parameters() -> int:
    return sum(math.prod(shape) for shape in shapes().values())


@functools.cache
def module() -> Any:
    """The engine as a torch module, once a process: who makes a new one for every silo pays for that besides."""
    import torch

    torch.manual_seed(1)
    holder = torch.nn.Module()
    for name, shape in shapes().items():
        # A module's parameter may have no dot in its name.
        holder.register_parameter(name.replace(".", "__"), torch.nn.Parameter(torch.randn(shape) * 0.02))
    return holder
