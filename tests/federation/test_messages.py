"""A message is its bytes and back; it has no room for text; hostile bytes are a ValueError."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmt.choices import CodecFp32
from fedmt.exchange import codec
from fedmt.federation.messages import Reply, Request, size, unwire, wire

identifiers = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,20}\Z")
numbers = st.dictionaries(identifiers, st.integers(-(2**62), 2**62) | st.floats(allow_nan=False), max_size=8)
rounds = st.integers(0, 2**31 - 1)


def request(**changes: Any) -> Request:
    return Request(**{"run": "r", "model": "alone:a", "round": 3, "step": "fit", "silo": "a", **changes})


@given(identifiers, identifiers, rounds, identifiers, identifiers, st.binary(max_size=200), numbers)
def test_its_bytes_give_the_request_back(
    run: str, model: str, round: int, step: str, silo: str, payload: bytes, numbers: dict[str, float]
) -> None:
    sent = Request(run, model, round, step, silo, payload, numbers)
    assert unwire(wire(sent)) == sent
    assert size(sent) == len(wire(sent))


@given(numbers, st.none() | identifiers)
def test_its_bytes_give_the_reply_back(numbers: dict[str, float], refused: str | None) -> None:
    sent = Reply("r", "m", 1, "fit", "s", b"tensors", numbers, refused=refused)
    assert unwire(wire(sent)) == sent


def test_integers_stay_integers_and_floats_keep_every_bit() -> None:
    back = unwire(wire(request(numbers={"n": 1, "x": 1.0, "nan": math.nan, "tiny": 5e-324, "minus": -0.0})))
    assert type(back.numbers["n"]) is int
    assert type(back.numbers["x"]) is float
    assert math.isnan(back.numbers["nan"])
    assert back.numbers["tiny"] == 5e-324
    assert math.copysign(1, back.numbers["minus"]) == -1


@given(st.floats(), st.floats())
def test_the_size_does_not_depend_on_a_floats_value(one: float, other: float) -> None:
    assert size(request(numbers={"seconds": one})) == size(request(numbers={"seconds": other}))


def test_tensors_in_a_message_are_views_of_its_bytes() -> None:
    content = bytearray(wire(request(payload=codec.encode({"a": torch.ones(3)}, CodecFp32()))))
    tensor = codec.decode(unwire(content).payload)["a"]
    content[-4:] = struct.pack("<f", 7.0)
    assert tensor.tolist() == [1, 1, 7]


@pytest.mark.parametrize("field", ["run", "model", "step", "silo"])
@pytest.mark.parametrize("value", ["", "two words", "Straße", "line\n", "a" * 129, "-a", "a/b", None, 3])
def test_identifiers_are_too_narrow_for_sentences(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"a message's {field} is a short identifier"):
        request(**{field: value})


def test_neither_numbers_nor_refusals_hold_text() -> None:
    with pytest.raises(ValueError, match="no number"):
        request(numbers={"note": "Guten Tag"})
    with pytest.raises(ValueError, match="no number"):
        request(numbers={"true": True})
    with pytest.raises(ValueError, match="no number"):
        request(numbers={"huge": 2**63})
    with pytest.raises(ValueError, match="number is a short identifier"):
        request(numbers={"Guten Tag": 1})
    with pytest.raises(ValueError, match="257 numbers"):
        request(numbers={f"n{index}": 1 for index in range(257)})
    with pytest.raises(ValueError, match="refusal is a short identifier"):
        Reply("r", "m", 1, "fit", "s", refused="could not read: Guten Tag")


@pytest.mark.parametrize("round", [-1, 2**31, 1.0, True, "1"])
def test_a_round_is_a_natural_number(round: Any) -> None:
    with pytest.raises(ValueError, match="round is 0 or more"):
        request(round=round)


def framed(header: Any) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


PLAIN = {"kind": "request", "run": "r", "model": "m", "round": 1, "step": "fit", "silo": "s", "numbers": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (struct.pack("<Q", 50) + b"{}", "header of 50 bytes"),
        (framed(b" " * (1 << 17)), "65536 are allowed"),
        (framed(b"[" * 60_000), "not JSON"),
        (framed([1]), "a request or a reply"),
        (framed({**PLAIN, "kind": "order"}), "a request or a reply"),
        (framed({**PLAIN, "kind": []}), "a request or a reply"),
        (framed({**PLAIN, "text": "x"}), "nothing else"),
        (framed({**PLAIN, "refused": None}), "nothing else"),
        (framed({**PLAIN, "numbers": [1]}), "numbers are a table"),
        (framed({**PLAIN, "numbers": {"x": "Guten Tag"}}), "neither an integer nor a float"),
        (framed({**PLAIN, "numbers": {"x": None}}), "neither an integer nor a float"),
        (framed({**PLAIN, "numbers": {"x": "00"}}), "neither an integer nor a float"),
        (framed({**PLAIN, "round": "1"}), "round"),
        (framed({**PLAIN, "silo": ["s"]}), "silo is a short identifier"),
    ],
)
def test_hostile_bytes_are_one_clear_line(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unwire(content)


@given(st.data())
def test_damaged_messages_never_crash(data: st.DataObject) -> None:
    content = bytearray(wire(request(payload=b"tensors", numbers={"x": 1.5, "n": 2})))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        unwire(content)
