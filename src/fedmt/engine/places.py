"""Where each tensor stands in its model: side, layer and role. Nothing else in fedmt matches on tensor names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from transformers import PreTrainedModel

from fedmt.engine.engine import ARCHITECTURES
from fedmt.errors import EngineError

__all__ = ["Place", "Role", "Side", "places"]

Side: TypeAlias = Literal["encoder", "decoder", "shared"]
Role: TypeAlias = Literal[
    "embedding", "attention", "cross_attention", "feedforward", "norm", "adapter", "controller", "lora", "head"
]


@dataclass(frozen=True)
class Place:
    """`layer` counts from 0 within its side; what stands before or behind the layers has none."""

    side: Side
    layer: int | None
    role: Role


_STACK = re.compile(r"(?:model\.)?(encoder|decoder)\.(?:(?:layers|block)\.(\d+)\.)?(.+)")
# Marian's, MBart's and M2M100's names, then T5's.
_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("norm", re.compile(r"(layer\.\d\.)?(\w+_)?layer_norm\.(weight|bias)|layernorm_embedding\.(weight|bias)")),
    ("attention", re.compile(r"(self_attn|layer\.0\.SelfAttention)\..+")),
    ("cross_attention", re.compile(r"(encoder_attn|layer\.1\.EncDecAttention)\..+")),
    ("feedforward", re.compile(r"(fc[12]|layer\.[12]\.DenseReluDense)\..+")),
    ("embedding", re.compile(r"embed_(tokens|positions)\.weight")),
)
_OUTSIDE = {
    "model.shared.weight": Place("shared", None, "embedding"),
    "shared.weight": Place("shared", None, "embedding"),
    "lm_head.weight": Place("decoder", None, "head"),
    "final_logits_bias": Place("decoder", None, "head"),
}


def places(model: PreTrainedModel) -> dict[str, Place]:
    """The place of every tensor in the model's state, tied ones once, under their first name."""
    if model.config.model_type not in ARCHITECTURES:
        raise EngineError(f"{model.config.model_type}: an unknown architecture; allowed are {', '.join(ARCHITECTURES)}")
    state = model.state_dict().keys()
    buffers = [name for name, _ in model.named_buffers() if name in state]
    return {name: _place(name) for name in [*(name for name, _ in model.named_parameters()), *buffers]}


def _place(name: str) -> Place:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    if found := _STACK.fullmatch(name):
        side, layer, rest = found.groups()
        for role, pattern in _ROLES:
            if pattern.fullmatch(rest):
                return Place("encoder" if side == "encoder" else "decoder", None if layer is None else int(layer), role)
    raise EngineError(f"{name}: a tensor that no known architecture has")
