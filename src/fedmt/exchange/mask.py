"""Which values of a tensor travel, written in as few bytes as will do.

A mask is a bool tensor of the tensor's shape. On the wire it stands beside the chosen values, under the tensor's name
and a suffix: `@bits`, a bit a value; or `@gaps`, how many values are passed over before each chosen one, a byte each
(255: and more in the next byte). Bits cost an eighth of a byte a value, gaps about a byte a *chosen* value: below one
in eight the second is smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

__all__ = ["SUFFIXES", "masked", "part_of", "unmasked"]

SUFFIXES = ("@bits", "@gaps")
_MORE = 255


def masked(tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is to be written: whole tensors as they are, of the others the chosen values and where they stand."""
    written: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        mask = masks.get(name)
        if mask is None:
            written[name] = tensor
            continue
        flat = mask.reshape(-1).numpy()
        places = np.flatnonzero(flat)
        written[name] = tensor.detach().cpu().reshape(-1)[torch.from_numpy(places)]
        bits, gaps = (flat.size + 7) // 8, _gaps_size(places)
        suffix, code = ("@bits", np.packbits(flat)) if bits <= gaps else ("@gaps", _gaps(places))
        written[name + suffix] = torch.from_numpy(code)
    return written


def unmasked(written: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors (nought where nothing was sent) and masks again; what is wrong with them is a ValueError."""
    tensors: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name, values in written.items():
        if part_of(name) is not None:
            if part_of(name) not in written:
                raise ValueError(f"{name!r} belongs to no tensor")
            continue
        found = [suffix for suffix in SUFFIXES if name + suffix in written]
        if not found:
            tensors[name] = values
            continue
        if name not in like:
            raise ValueError(f"unknown tensor {name!r}")
        size = like[name].numel()
        code = written[name + found[0]]
        if len(found) > 1 or code.dtype != torch.uint8 or code.dim() != 1 or values.dim() != 1:
            raise ValueError(f"tensor {name!r}: its mask is not one list of bytes")
        mask = _from_bits(code.numpy(), size) if found[0] == "@bits" else _from_gaps(code.numpy(), size)
        if mask is None or int(mask.sum()) != values.numel():
            raise ValueError(f"tensor {name!r}: its mask does not fit {values.numel()} of {size} values")
        chosen = torch.from_numpy(mask)
        whole = torch.zeros(size, dtype=values.dtype)
        whole[chosen] = values
        tensors[name], masks[name] = whole.view(like[name].shape), chosen.view(like[name].shape)
    return tensors, masks


def part_of(name: str) -> str | None:
    """The tensor whose mask goes by this name."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), None)


def _distances(places: np.ndarray) -> np.ndarray:
    return np.diff(places, prepend=-1) - 1


def _gaps_size(places: np.ndarray) -> int:
    return int((_distances(places) // _MORE + 1).sum())


def _gaps(places: np.ndarray) -> np.ndarray:
    distances = _distances(places)
    ends = np.cumsum(distances // _MORE + 1)
    code = np.full(int(ends[-1]) if ends.size else 0, _MORE, dtype=np.uint8)
    code[ends - 1] = distances % _MORE
    return code


def _from_gaps(code: np.ndarray, size: int) -> np.ndarray | None:
    last = np.flatnonzero(code != _MORE)
    if code.size and (not last.size or last[-1] != code.size - 1):
        return None
    places = np.cumsum(code, dtype=np.int64)[last] + np.arange(last.size)
    if places.size and places[-1] >= size:
        return None
    mask = np.zeros(size, dtype=bool)
    mask[places] = True
    return mask


def _from_bits(code: np.ndarray, size: int) -> np.ndarray | None:
    if code.size != (size + 7) // 8:
        return None
    bits = np.unpackbits(code)
    return None if bits[size:].any() else bits[:size].astype(bool)
