"""Canaries: sentences that must not be found in any byte that leaves a silo, and the search for them."""

from __future__ import annotations

import base64
import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fedmt.federation.messages import wire
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess

SENTENCES = [
    "Der Kanarienvogel des Patienten Zwölfmeier singt nur donnerstags.",
    "The canary of patient Zwoelfmeier sings on Thursdays only.",
]


class Tapped(InProcess):
    """Everything that goes by, as its literal bytes."""

    def __init__(self, silos: Iterable[Silo]) -> None:
        super().__init__(silos)
        self.tape: list[bytes] = []

    def ask(self, requests: Any, deadline: float | None = None) -> Iterator[Any]:
        self.tape += [wire(request) for request in requests]
        for reply in super().ask(requests, deadline):
            self.tape.append(wire(reply))
            yield reply


def disguises(text: str) -> Iterator[bytes]:
    """The ways in which a text could stand in bytes, short of being encrypted."""
    for name in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "latin-1", "utf-7", "cp500"):
        plain = text.encode(name, "replace")
        yield plain
        yield plain[::-1]
        yield plain.hex().encode()
        yield plain.hex().upper().encode()
        for shift in range(3):
            # The characters of base64 that depend on nothing before or after the text.
            for encoded in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode):
                yield encoded(b"\0" * shift + plain)[4 if shift else 0 : -8].rstrip(b"=")
    yield text.swapcase().encode()
    yield text.encode("unicode_escape")
    yield bytes(byte ^ 0xFF for byte in text.encode())
    yield bytes((byte + 13) % 256 for byte in text.encode())
    # One byte of text in each value of a tensor.
    for width in (2, 4, 8):
        yield b"".join(byte.to_bytes(width, "little") for byte in text.encode())
    yield torch.tensor(list(text.encode()), dtype=torch.float32).numpy().tobytes()
    yield torch.tensor(list(text.encode()), dtype=torch.float64).numpy().tobytes()
    yield torch.tensor([ord(letter) for letter in text], dtype=torch.float32).numpy().tobytes()


WORDS = ["Kanarienvogel", "Zwölfmeier", "donnerstags", "Zwoelfmeier", "Thursdays", "Patienten"]
NEEDLES = {needle for text in (*SENTENCES, *WORDS) for needle in disguises(text) if len(needle) >= 6}
PACKERS: dict[str, tuple[bytes, Callable[[bytes | memoryview], bytes]]] = {
    "gzip": (b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data)),
    # The four headers that a stream of the usual window may begin with.
    **{
        f"zlib {level!r}": (b"\x78" + level, lambda data: zlib.decompressobj().decompress(data))
        for level in (b"\x01", b"\x5e", b"\x9c", b"\xda")
    },
    "bz2": (b"BZh", lambda data: bz2.BZ2Decompressor().decompress(data)),
    "xz": (b"\xfd7zXZ", lambda data: lzma.LZMADecompressor().decompress(data)),
}


def found(content: bytes, packed: bool = True) -> bytes | None:
    """The first disguise of a canary that stands in these bytes, also inside anything compressed."""
    for needle in NEEDLES:
        if needle in content:
            return needle
    view = memoryview(content)
    for magic, unpack in PACKERS.values() if packed else ():
        at = content.find(magic)
        while at >= 0:
            try:
                inside = unpack(view[at:])
            except (zlib.error, OSError, lzma.LZMAError, EOFError):
                inside = b""
            if inside and (hit := found(inside, packed=False)):
                return hit
            at = content.find(magic, at + 1)
    return None
