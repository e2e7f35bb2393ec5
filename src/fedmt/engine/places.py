"""Where each tensor stands in its model: side, layer, role and end. Nothing else in fedmt matches on tensor names.

Which layers are controllers no name tells: the model's own configuration does, as `extension.py` wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from transformers import PreTrainedModel

from fedmt.engine.engine import ARCHITECTURES
from fedmt.errors import EngineError
from fedmt.place import End, Place, Role, Side

__all__ = ["End", "Place", "Role", "Side", "places"]

_STACK = re.compile(r"(?:model\.)?(encoder|decoder)\.(?:(?:layers|block)\.(\d+)\.)?(.+)")
# What fedmt adds, then Marian's, MBart's and M2M100's names, then T5's.
_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("adapter", re.compile(r"(self_attn|encoder_attn|fc2)\.adapter\.(down|up)\.(weight|bias)")),
    ("controller", re.compile(r"gate")),
    ("norm", re.compile(r"(layer\.\d\.)?(\w+_)?layer_norm\.(weight|bias)|layernorm_embedding\.(weight|bias)")),
    ("attention", re.compile(r"(self_attn|layer\.0\.SelfAttention)\..+")),
    ("cross_attention", re.compile(r"(encoder_attn|layer\.1\.EncDecAttention)\..+")),
    ("feedforward", re.compile(r"(fc[12]|layer\.[12]\.DenseReluDense)\..+")),
    ("embedding", re.compile(r"embed_(tokens|positions)\.weight")),
)
_BEFORE_LAYERS = re.compile(r"embed_(tokens|positions)\..+|layernorm_embedding\..+")
_OUTSIDE = {
    "model.shared.weight": Place("shared", None, "embedding"),
    "shared.weight": Place("shared", None, "embedding"),
    "lm_head.weight": Place("decoder", None, "head", "output"),
    "final_logits_bias": Place("decoder", None, "head", "output"),
}


def places(model: PreTrainedModel) -> dict[str, Place]:
    """The place of every tensor in the model's state, tied ones once, under their first name."""
    if model.config.model_type not in ARCHITECTURES:
        raise EngineError(f"{model.config.model_type}: an unknown architecture; allowed are {', '.join(ARCHITECTURES)}")
    state = model.state_dict().keys()
    buffers = [name for name, _ in model.named_buffers() if name in state]
    controllers: Mapping[str, list[int]] = (getattr(model.config, "fedmt", None) or {}).get("controllers") or {}
    found = {name: _place(name) for name in [*(name for name, _ in model.named_parameters()), *buffers]}
    return {
        name: replace(place, role="controller") if place.layer in controllers.get(place.side, ()) else place
        for name, place in found.items()
    }


def _place(name: str) -> Place:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    if found := _STACK.fullmatch(name):
        stack, number, rest = found.groups()
        side: Side = "encoder" if stack == "encoder" else "decoder"
        for role, pattern in _ROLES:
            if pattern.fullmatch(rest):
                if number is not None:
                    return Place(side, int(number), role)
                return Place(side, None, role, "input" if _BEFORE_LAYERS.fullmatch(rest) else "output")
    raise EngineError(f"{name}: a tensor that no known architecture has")
