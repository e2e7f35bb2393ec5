"""Silos keep their text to themselves: every byte of every request and reply is looked at."""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedmt.federation.checkpoint import State
from fedmt.federation.messages import Request
from fedmt.federation.silo import Silo
from fedmt.federation.work import FitOrder, FitResult
from tests.federation.canaries import SENTENCES, WORDS, Tapped, found
from tests.federation.toy import Arithmetic, Engine, Federation, recipe


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


@pytest.mark.parametrize(
    "disguise",
    [
        *(SENTENCES[0].encode(), WORDS[1].encode("utf-16-le"), SENTENCES[1].encode()[::-1]),
        base64.b64encode(b"x" + SENTENCES[0].encode() + b"yz"),
        *(gzip.compress(SENTENCES[1].encode(), mtime=0), zlib.compress(SENTENCES[0].encode(), 9)),
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
    federation.coordinator.score("federated", dict.fromkeys(federation.names, merged), federation.names, "test")
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
