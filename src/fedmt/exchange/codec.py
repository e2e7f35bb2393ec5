"""How tensors are written: the safetensors format, in one copy, and read back as views of the bytes.

`encode` and `decode` are for what travels (fp32 in, fp32 out, whatever the codec stores); `pack`, `parts` and `unpack`
keep every dtype, for statistics and checkpoints. Bytes from elsewhere are checked before a tensor is made of them; what
is wrong with them is a ValueError of one line. Knows no network and no files.
"""

from __future__ import annotations

import json
import math
import struct
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedmt.choices import Codec
from fedmt.exchange.mask import masked, part_of, unmasked

__all__ = ["Payload", "decode", "decode_chosen", "encode", "pack", "parts", "pieces", "size", "unpack"]

Payload: TypeAlias = bytes | bytearray | memoryview

_PIECE = 1 << 16

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_STORED = {"fp32": torch.float32, "fp16": torch.float16}
_HALF_LARGEST = 65504.0

_LONGEST_HEADER = 1 << 26
_LONGEST_NAME = 1024
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 1 << 48
_ALIGN = 64


def encode(tensors: Mapping[str, Tensor], codec: Codec, masks: Mapping[str, Tensor] | None = None) -> memoryview:
    """The tensors, or of those with a mask the chosen values, as a .safetensors file in memory.

    fp16 saturates: what is too large for it becomes its largest.
    """
    stored = _STORED[codec.kind]
    if not masks:
        return _filled(tensors, stored, None)
    written = masked(tensors, masks)
    return _filled({name: _as(tensor, stored, name) for name, tensor in written.items()}, None, None)


def decode(payload: Payload, codec: Codec | None = None) -> dict[str, Tensor]:
    """The tensors of a payload as fp32. Those stored so are views of the payload: do not write into them.

    With a `codec` given, anything that it would not have stored is refused.
    """
    tensors, _ = unpack(payload)
    return {name: _decoded(name, tensor, codec) for name, tensor in tensors.items()}


def decode_chosen(
    payload: Payload, codec: Codec, like: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a payload whose values may be chosen ones: nought where none was sent, and the masks.

    `like` has the shapes of the whole tensors.
    """
    written, _ = unpack(payload)
    return unmasked(
        {name: tensor if part_of(name) else _decoded(name, tensor, codec) for name, tensor in written.items()}, like
    )


def _decoded(name: str, tensor: Tensor, codec: Codec | None) -> Tensor:
    wanted = list(_STORED.values()) if codec is None else [_STORED[codec.kind]]
    if tensor.dtype not in wanted:
        raise ValueError(f"tensor {name!r} is stored as {_NAMES[tensor.dtype]}, not {_spoken(wanted)}")
    return tensor.float()


def _as(tensor: Tensor, stored: torch.dtype, name: str) -> Tensor:
    if part_of(name) is not None or tensor.dtype == stored:
        return tensor
    made = torch.empty(tensor.shape, dtype=stored)
    _store(tensor, made.view(-1))
    return made


def size(tensors: Mapping[str, Tensor], codec: Codec) -> int:
    """Bytes that `encode` would give, without encoding."""
    stored = _STORED[codec.kind]
    return len(_header(tensors, stored, None)) + sum(tensor.numel() * stored.itemsize for tensor in tensors.values())


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> memoryview:
    """The tensors as they are, each in its own dtype."""
    return _filled(tensors, None, metadata)


def parts(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[memoryview]:
    """What `pack` gives, piece by piece and without a copy: for a file, that need not stand in memory first."""
    yield memoryview(_header(tensors, None, metadata))
    for tensor in _ordered(tensors, None).values():
        if tensor.numel():
            yield _raw(tensor.detach().cpu().contiguous())


def pieces(tensor: Tensor) -> Iterable[Tensor]:
    """The tensor flat, in pieces that stay in the cache: for passes that would make a temporary of all of it."""
    split: Iterable[Tensor] = torch.split(tensor.reshape(-1), _PIECE)
    return split


def unpack(payload: Payload) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Views of the payload's tensors, and its metadata."""
    view = memoryview(payload).cast("B")
    entries, metadata, start = _read_header(view)
    tensors: dict[str, Tensor] = {}
    with warnings.catch_warnings():
        # A payload that cannot be written to is none the worse: views of it are only read.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        for name, (dtype, shape, begin, end) in entries.items():
            if begin == end:
                tensors[name] = torch.empty(shape, dtype=dtype)
            elif (start + begin) % dtype.itemsize:
                own = bytearray(view[start + begin : start + end])
                tensors[name] = torch.frombuffer(own, dtype=dtype).view(shape)
            else:
                count = (end - begin) // dtype.itemsize
                flat = torch.frombuffer(view, dtype=dtype, count=count, offset=start + begin)
                tensors[name] = flat.view(shape)
    return tensors, metadata


def _filled(
    tensors: Mapping[str, Tensor], stored: torch.dtype | None, metadata: Mapping[str, str] | None
) -> memoryview:
    header = _header(tensors, stored, metadata)
    length = sum(tensor.numel() * (stored or tensor.dtype).itemsize for tensor in tensors.values())
    # Not a bytearray: that would be zeroed first, one more pass over the memory.
    buffer = torch.empty(len(header) + length, dtype=torch.uint8)
    view = _raw(buffer)
    view[: len(header)] = header
    at = len(header)
    for tensor in _ordered(tensors, stored).values():
        dtype = stored or tensor.dtype
        end = at + tensor.numel() * dtype.itemsize
        _store(tensor.detach(), buffer[at:end].view(dtype))
        at = end
    return view


def _store(tensor: Tensor, place: Tensor) -> None:
    if place.dtype != torch.float16 or tensor.dtype == torch.float16:
        place.view(tensor.shape).copy_(tensor)
        return
    for source, target in zip(pieces(tensor), pieces(place), strict=True):
        target.copy_(source.clamp(-_HALF_LARGEST, _HALF_LARGEST))


def _raw(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _ordered(tensors: Mapping[str, Tensor], stored: torch.dtype | None) -> dict[str, Tensor]:
    """Wider dtypes first, so that each tensor stands at a multiple of its own width."""
    if stored is not None:
        return dict(tensors)
    return dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))


def _header(tensors: Mapping[str, Tensor], stored: torch.dtype | None, metadata: Mapping[str, str] | None) -> bytes:
    described: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, tensor in _ordered(tensors, stored).items():
        if name == "__metadata__":
            raise ValueError("a tensor may not be called __metadata__")
        dtype = stored or tensor.dtype
        end = at + tensor.numel() * dtype.itemsize
        described[name] = {"dtype": _NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(described, separators=(",", ":")).encode("ascii")
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return struct.pack("<Q", len(text)) + text


def _read_header(
    view: memoryview,
) -> tuple[dict[str, tuple[torch.dtype, list[int], int, int]], dict[str, str], int]:
    if len(view) < 8:
        raise ValueError(f"a payload of {len(view)} bytes is too short for a header")
    (length,) = struct.unpack("<Q", view[:8])
    if length > min(len(view) - 8, _LONGEST_HEADER):
        raise ValueError(f"its header claims {length} bytes, {len(view) - 8} follow and {_LONGEST_HEADER} are allowed")
    try:
        described = json.loads(bytes(view[8 : 8 + length]), object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not JSON: {str(error)[:80]}") from None
    if not isinstance(described, dict):
        raise ValueError("its header is not a table of tensors")
    metadata = described.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not strings")
    start = 8 + length
    entries = {name: _read_entry(name, entry) for name, entry in described.items()}
    at = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != at:
            raise ValueError(f"tensor {name!r} begins at byte {begin}, not at {at}: tensors overlap or leave a hole")
        at = end
    if at != len(view) - start:
        raise ValueError(f"its tensors take {at} bytes, {len(view) - start} follow the header")
    return entries, metadata, start


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands twice")
    return table


def _read_entry(name: str, entry: Any) -> tuple[torch.dtype, list[int], int, int]:
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"a tensor's name has {len(name)} characters; 1 to {_LONGEST_NAME} are allowed")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} needs dtype, shape and data_offsets, and nothing else")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"tensor {name!r} has an unknown dtype; known: {', '.join(_DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _naturals(shape) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"the shape of tensor {name!r} is not a list of at most {_MOST_DIMENSIONS} sizes")
    if math.prod(max(length, 1) for length in shape) > _MOST_ELEMENTS:
        raise ValueError(f"the shape of tensor {name!r} is beyond {_MOST_ELEMENTS} elements")
    if not _naturals(offsets) or len(offsets) != 2:
        raise ValueError(f"the offsets of tensor {name!r} are not a begin and an end")
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"tensor {name!r} of shape {shape} takes {math.prod(shape) * dtype.itemsize} bytes, "
            f"its offsets give {end - begin}"
        )
    return dtype, shape, begin, end


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _spoken(dtypes: list[torch.dtype]) -> str:
    return " or ".join(_NAMES[dtype] for dtype in dtypes)
