"""Requests and replies: identifiers, tensors and numbers, and the literal bytes that a transport sends.

There is no field for text. Identifiers are short and of a narrow alphabet, so that a sentence cannot pass for one; what
a refusal says is one of those too. Knows no network.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fedmt.exchange.codec import Payload

__all__ = ["Message", "Number", "Reply", "Request", "is_identifier", "reply_to", "size", "unwire", "wire"]

Number = int | float

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_MOST_NUMBERS = 256
_LARGEST = 2**63
_LONGEST_HEADER = 1 << 16
# The payload begins at a multiple of this, so that tensors in it are views.
_ALIGN = 64


@dataclass(frozen=True)
class Message:
    run: str
    model: str
    round: int
    step: str
    silo: str
    payload: Payload = field(default=b"", repr=False)
    numbers: Mapping[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("run", "model", "step", "silo"):
            _identifier(name, getattr(self, name))
        if type(self.round) is not int or not 0 <= self.round < 2**31:
            raise ValueError(f"a message's round is 0 or more, not {self.round!r:.40}")
        if len(self.numbers) > _MOST_NUMBERS:
            raise ValueError(f"a message has {len(self.numbers)} numbers; {_MOST_NUMBERS} are allowed")
        for name, value in self.numbers.items():
            _identifier("number", name)
            if type(value) not in (int, float) or (type(value) is int and abs(value) >= _LARGEST):
                raise ValueError(f"a message's {name} is no number of 64 bits")

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What a reply has in common with its request, besides the silo."""
        return self.run, self.model, self.round, self.step


@dataclass(frozen=True)
class Request(Message):
    """What the coordinator asks one silo."""


@dataclass(frozen=True)
class Reply(Message):
    """What the silo answers; `refused` is None, or why it did not do what was asked, as an identifier."""

    refused: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refused is not None:
            _identifier("refusal", self.refused)


def reply_to(
    request: Request,
    payload: Payload = b"",
    numbers: Mapping[str, Number] | None = None,
    refused: str | None = None,
) -> Reply:
    return Reply(
        request.run, request.model, request.round, request.step, request.silo, payload, numbers or {}, refused=refused
    )


def wire(message: Request | Reply) -> bytes:
    """The message as it is sent: a header of fixed form, then the payload."""
    return b"".join([header(message), message.payload])


def size(message: Request | Reply) -> int:
    """Bytes that `wire` would give, without joining them."""
    return len(header(message)) + memoryview(message.payload).nbytes


def header(message: Request | Reply) -> bytes:
    described: dict[str, Any] = {"kind": _KINDS[type(message)]}
    for part in fields(message):
        value = getattr(message, part.name)
        if part.name == "numbers":
            # Floats in full and always as wide as each other: a message's size does not depend on how long it took.
            described[part.name] = {
                name: struct.pack(">d", number).hex() if isinstance(number, float) else number
                for name, number in value.items()
            }
        elif part.name != "payload":
            described[part.name] = value
    text = json.dumps(described, separators=(",", ":")).encode("ascii")
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return struct.pack("<Q", len(text)) + text


def unwire(content: Payload) -> Request | Reply:
    """The message whose bytes these are; its payload is a view of them. Anything else is a ValueError."""
    view = memoryview(content).cast("B")
    if len(view) < 8:
        raise ValueError(f"a message of {len(view)} bytes is too short for a header")
    (length,) = struct.unpack("<Q", view[:8])
    if length > min(_LONGEST_HEADER, len(view) - 8):
        raise ValueError(f"a message's header of {length} bytes; {_LONGEST_HEADER} are allowed, {len(view) - 8} follow")
    try:
        described = json.loads(bytes(view[8 : 8 + length]))
    except (ValueError, RecursionError):
        raise ValueError("a message's header is not JSON") from None
    kind = described.pop("kind", None) if isinstance(described, dict) else None
    if kind not in _KINDS.values():
        raise ValueError("a message is a request or a reply")
    made: type[Request] | type[Reply] = Request if kind == "request" else Reply
    expected = {part.name for part in fields(made)} - {"payload"}
    if described.keys() != expected:
        raise ValueError(f"a {kind} has {', '.join(sorted(expected))}, and nothing else")
    numbers = described["numbers"]
    if not isinstance(numbers, dict):
        raise ValueError("a message's numbers are a table")
    described["numbers"] = {name: _number(name, number) for name, number in numbers.items()}
    return made(**described, payload=view[8 + length :])


_KINDS = {Request: "request", Reply: "reply"}


def _number(name: str, value: Any) -> Number:
    if type(value) is int:
        return value
    try:
        (number,) = struct.unpack(">d", bytes.fromhex(value))
    except (TypeError, ValueError, struct.error):
        raise ValueError(f"a message's number {name!r:.80} is neither an integer nor a float") from None
    return float(number)


def is_identifier(value: Any) -> bool:
    return isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None


def _identifier(what: str, value: Any) -> None:
    if not is_identifier(value):
        raise ValueError(f"a message's {what} is a short identifier of letters, digits and . _ : -, not {value!r:.80}")
