"""Silos keep their text to themselves: every byte of every request and reply is looked at."""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmt.federation.messages import Request, wire
from fedmt.federation.silo import FitOrder, FitResult, Silo, State
from fedmt.federation.transport import InProcess
from tests.federation.toy import Arithmetic, Engine, Federation, recipe

SENTENCES = [
    "Der Kanarienvogel des Patienten Zwölfmeier singt nur donnerstags.",
    "The canary of patient Zwoelfmeier sings on Thursdays only.",
]


class Reading(Arithmetic):
    """A learner that trains on sentences, keeps them in its state, and fails with them on its lips."""

    def __init__(self, engine: Engine, fails_at: tuple[str, int] | None) -> None:
        super().__init__(engine, goal=2.0)
        self.fails_at = fails_at

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
        if self.fails_at == ("fit", order.round):
            raise ValueError(f"cannot tokenize {SENTENCES[0]!r}")
        # What is trained does depend on the text.
        for tensor in self._engine.tensors.values():
            tensor.add_(sum(SENTENCES[0].encode()) * 1e-7)
        result, after = super().fit(order, state, keep)
        return result, State(after.tensors, {**after.numbers, "last": SENTENCES})

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:
        if self.fails_at == ("score", 0):
            raise OSError(f"no hypothesis for {SENTENCES[1]}")
        return {**super().score(model, set), "lengths": torch.tensor([len(one.split()) for one in SENTENCES])}


class Tapped(InProcess):
    """Everything that goes by, as its literal bytes."""

    def __init__(self, silos: list[Silo]) -> None:
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
PACKERS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data)),
    "zlib": (b"\x78", lambda data: zlib.decompressobj().decompress(data)),
    "bz2": (b"BZh", lambda data: bz2.BZ2Decompressor().decompress(data)),
    "xz": (b"\xfd7zXZ", lambda data: lzma.LZMADecompressor().decompress(data)),
}


def found(content: bytes, packed: bool = True) -> bytes | None:
    """The first disguise of a canary that stands in these bytes, also inside anything compressed."""
    for needle in NEEDLES:
        if needle in content:
            return needle
    for magic, unpack in PACKERS.values() if packed else ():
        at = content.find(magic)
        while at >= 0:
            try:
                inside = unpack(content[at:])
            except (zlib.error, OSError, lzma.LZMAError, EOFError):
                inside = b""
            if inside and (hit := found(inside, packed=False)):
                return hit
            at = content.find(magic, at + 1)
    return None


@pytest.mark.parametrize(
    "disguise",
    [
        *(SENTENCES[0].encode(), WORDS[1].encode("utf-16-le"), SENTENCES[1].encode()[::-1]),
        base64.b64encode(b"x" + SENTENCES[0].encode() + b"yz"),
        *(gzip.compress(SENTENCES[1].encode()), zlib.compress(SENTENCES[0].encode(), 9)),
        *(bz2.compress(SENTENCES[0].encode()), lzma.compress(SENTENCES[0].encode())),
        torch.tensor(list(SENTENCES[0].encode()), dtype=torch.float32).numpy().tobytes(),
    ],
)
def test_the_search_finds_what_is_hidden(disguise: bytes) -> None:
    assert found(b"\x78\0 ... " + disguise + b"\0\0 ...")
    assert not found(b"\x78\0 ... nothing of the kind" * 100)


@pytest.mark.parametrize("fails_at", [None, ("fit", 1), ("fit", 2), ("score", 0)])
def test_no_byte_of_any_message_holds_text(
    tmp_path: Path, fails_at: tuple[str, int] | None, capfd: pytest.CaptureFixture[str]
) -> None:
    taps: list[Tapped] = []
    engine = Engine()
    settings = recipe(failures={"quorum": 0.5})
    learners = [Arithmetic(engine, 1.0), Reading(engine, fails_at)]

    def tapped(_: list[Silo]) -> Tapped:
        silos = [Silo(f"silo-{i}", one, tmp_path / "silos" / f"silo-{i}", settings) for i, one in enumerate(learners)]
        taps.append(Tapped(silos))
        return taps[0]

    federation = Federation(tmp_path, settings, goals=(1.0, 2.0), transport=tapped)
    merged = federation.train(rounds=3)
    federation.coordinator.score("federated", merged, federation.names, "test")
    tape = taps[0].tape
    assert len(tape) == 2 * 2 * 4
    for message in tape:
        assert found(message) is None
    # Nor does it get into anything outside the silo's own folder, or onto the screen.
    for path in tmp_path.rglob("*"):
        if path.is_file() and "silos" not in path.parts:
            assert found(path.read_bytes()) is None
    assert found(repr(federation.events).encode()) is None
    assert found("".join(capfd.readouterr()).encode()) is None
    if fails_at is not None:
        # The text was there to be found: at home it stands in plain words.
        assert any(found(path.read_bytes()) for path in (tmp_path / "silos").rglob("*") if path.is_file())


def test_a_request_has_no_field_for_text() -> None:
    assert {name for name, kind in Request.__dataclass_fields__.items() if kind.type == "str"} == {
        *("run", "model", "step", "silo"),
    }
