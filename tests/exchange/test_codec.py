"""What is encoded is a .safetensors file, decoding gives it back, and hostile bytes are a ValueError."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from fedmt.choices import CodecFp16, CodecFp32
from fedmt.exchange import codec

FP32, FP16 = CodecFp32(), CodecFp16(kind="fp16")

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
arrays = npst.arrays(np.float32, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=floats)
names = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")
tables = st.dictionaries(names, arrays.map(torch.from_numpy), max_size=5)


def bits(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {name: (t.dtype, tuple(t.shape), t.contiguous().numpy().tobytes()) for name, t in tensors.items()}


@given(tables)
def test_fp32_comes_back_bit_for_bit(tensors: dict[str, Tensor]) -> None:
    payload = codec.encode(tensors, FP32)
    assert bits(codec.decode(payload, FP32)) == bits(tensors)
    assert len(payload) == codec.size(tensors, FP32)


@given(tables)
def test_fp16_comes_back_within_its_bound(tensors: dict[str, Tensor]) -> None:
    back = codec.decode(codec.encode(tensors, FP16), FP16)
    for name, tensor in tensors.items():
        assert back[name].dtype == torch.float32
        assert torch.equal(back[name].isnan(), tensor.isnan())
        assert not back[name].isinf().any()
        clamped = tensor.clamp(-65504, 65504).double()
        # Half a unit in the eleventh binary place, or half of the smallest number there is.
        bound = torch.maximum(clamped.abs() * 2**-11, torch.tensor(2.0**-25, dtype=torch.float64))
        assert not ((back[name].double() - clamped).abs() > bound).any()


def test_fp16_saturates_over_many_pieces() -> None:
    tensor = torch.full((300_001,), 1e9)
    tensor[::2] = -1e9
    back = codec.decode(codec.encode({"t": tensor}, FP16))["t"]
    assert back[:3].tolist() == [-65504, 65504, -65504]
    assert (back.abs() == 65504).all()


@given(tables.filter(bool))
def test_the_safetensors_library_reads_it(tensors: dict[str, Tensor]) -> None:
    assert bits(safetensors.torch.load(bytes(codec.encode(tensors, FP32)))) == bits(tensors)


def mixed() -> dict[str, Tensor]:
    return {
        "flags": torch.tensor([True, False, True]),
        "bytes": torch.tensor([7], dtype=torch.uint8),
        "half": torch.tensor([[0.5], [2.0]], dtype=torch.float16),
        "brain": torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
        "counts": torch.tensor([2**40, -1]),
        "exact": torch.tensor(0.1, dtype=torch.float64),
        "none": torch.empty(0, 4),
    }


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_pack_keeps_every_dtype_and_the_library_agrees() -> None:
    packed = codec.pack(mixed(), {"about": "numbers"})
    tensors, metadata = codec.unpack(packed)
    assert equal(tensors, mixed())
    assert metadata == {"about": "numbers"}
    assert equal(safetensors.torch.load(bytes(packed)), mixed())
    assert b"".join(codec.parts(mixed(), {"about": "numbers"})) == packed


def test_it_reads_what_the_library_writes() -> None:
    tensors, metadata = codec.unpack(safetensors.torch.save(mixed(), {"format": "pt"}))
    assert equal(tensors, mixed())
    assert metadata == {"format": "pt"}


def test_decoding_copies_nothing() -> None:
    payload = codec.encode({"a": torch.ones(5), "b": torch.zeros(3, 2)}, FP32)
    begin = torch.frombuffer(payload, dtype=torch.uint8).data_ptr()
    for tensor in codec.decode(payload).values():
        assert begin < tensor.data_ptr() < begin + len(payload)


def test_bytes_that_cannot_be_written_and_stand_askew_are_read_too() -> None:
    tensors = {"a": torch.arange(5.0), "b": torch.ones(2, 2)}
    payload = bytes(codec.encode(tensors, FP32))
    assert bits(codec.decode(payload)) == bits(tensors)
    for shift in range(1, 8):
        assert bits(codec.decode(memoryview(b"x" * shift + payload)[shift:])) == bits(tensors)


def test_tensors_need_not_be_contiguous_nor_fp32_nor_without_gradient() -> None:
    table = {
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "double": torch.tensor([0.25], dtype=torch.float64),
        "leaf": torch.ones(2, requires_grad=True),
    }
    for one in (FP32, FP16):
        back = codec.decode(codec.encode(table, one))
        assert back["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert back["double"].tolist() == [0.25]
        assert back["leaf"].tolist() == [1, 1]


def file(header: Any, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), data_offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": data_offsets, **more}


HOSTILE = {
    "nothing": (b"", "too short"),
    "no header": (b"\1\2\3", "too short"),
    "a header beyond the end": (struct.pack("<Q", 100) + b"{}", "claims 100 bytes"),
    "an endless header": (struct.pack("<Q", 2**64 - 1) + b"{}", "claims"),
    "no JSON": (file(b"{nonsense"), "not JSON"),
    "no UTF-8": (file(b'{"\xff": 1}'), "not JSON"),
    "a bottomless list": (file(b"[" * 100_000), "not JSON"),
    "an endless number": (file(b'{"a": ' + b"9" * 10_000 + b"}"), "not JSON"),
    "a list": (file([1, 2]), "not a table"),
    "a name twice": (file(b'{"a": 1, "a": 2}'), "twice"),
    "no name": (file({"": entry()}), "characters"),
    "a long name": (file({"n" * 5000: entry()}), "5000 characters"),
    "no entry": (file({"a": 3}), "needs dtype"),
    "a further key": (file({"a": entry(code="x")}), "nothing else"),
    "an unknown dtype": (file({"a": entry(dtype="F8")}), "unknown dtype"),
    "a dtype that is a list": (file({"a": entry(dtype=["F32"])}), "unknown dtype"),
    "a negative size": (file({"a": entry(shape=[-2])}), "shape"),
    "a size that is true": (file({"a": entry(shape=[True, 2])}), "shape"),
    "a broken size": (file({"a": entry(shape=[2.0])}), "shape"),
    "sizes beyond all memory": (file({"a": entry(shape=[2**62, 2**62, 0], data_offsets=[0, 0])}, b""), "beyond"),
    "very many dimensions": (file({"a": entry(shape=[1] * 99)}), "at most 16"),
    "one offset": (file({"a": entry(data_offsets=[8])}), "begin and an end"),
    "offsets that run back": (file({"a": entry(data_offsets=[8, 0])}), "its offsets give"),
    "offsets beyond the end": (file({"a": entry(shape=[4], data_offsets=[0, 16])}), "8 follow"),
    "too few bytes for the shape": (file({"a": entry(shape=[3])}), "takes 12 bytes"),
    "overlapping tensors": (file({"a": entry(), "b": entry()}), "overlap"),
    "a hole": (file({"a": entry(data_offsets=[8, 16])}, b"\0" * 16), "hole"),
    "bytes left over": (file({"a": entry()}, b"\0" * 12), "12 follow"),
    "metadata of numbers": (file({"__metadata__": {"a": 1}, "a": entry()}), "not strings"),
    "metadata that are a list": (file({"__metadata__": ["a"], "a": entry()}), "not strings"),
}


@pytest.mark.parametrize(("payload", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_one_clear_line(payload: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        codec.decode(payload)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 6000


@given(st.data())
def test_damaged_payloads_never_crash(data: st.DataObject) -> None:
    payload = bytearray(codec.pack(mixed(), {"about": "numbers"}))
    if data.draw(st.booleans()):
        payload = payload[: data.draw(st.integers(0, len(payload)))]
    for _ in range(data.draw(st.integers(0, 4)) if payload else 0):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        tensors, _ = codec.unpack(payload)
    except ValueError:
        return
    for tensor in tensors.values():
        assert tensor.numel() * tensor.dtype.itemsize <= len(payload)
        tensor.clone()


def test_what_another_codec_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' is stored as F16, not F32"):
        codec.decode(codec.encode({"a": torch.ones(2)}, FP16), FP32)
    with pytest.raises(ValueError, match="'counts' is stored as I64, not F32 or F16"):
        codec.decode(codec.pack({"counts": torch.tensor([1])}))
