"""Killed anywhere and resumed with fresh objects, a run ends in the same engine, scores and ledger, bit for bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt import files
from fedmt.exchange import ledger
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess
from fedmt.recipe import Recipe
from tests.federation.toy import Federation, Tensors, bits, recipe

SETTINGS = {
    "kept": recipe(train={"keep": "best"}),
    "fresh": recipe(train={"optimizer": "fresh", "patience": 2}, codec={"kind": "fp16"}),
    "parts": recipe(selector={key: {"kind": "random", "share": 0.5} for key in ("up", "down")}),
}


class Killed(BaseException):
    """No one catches it, as no one catches a kill."""


class Countdown:
    """Kills at the n-th of the moments that it is told of."""

    def __init__(self, moments: int | None) -> None:
        self.left = moments
        self.seen = 0

    def __call__(self, where: str = "") -> None:
        self.seen += 1
        if self.left is not None and self.seen > self.left:
            raise Killed(where)


def result(folder: Path | None, chosen: Recipe, check: Callable[[str], None] | None = None) -> Any:
    """Two models, one from the other, and their scores, as an experiment would."""

    class Halting(InProcess):
        def ask(self, *arguments: Any) -> Iterator[Any]:
            for reply in super().ask(*arguments):
                if check:
                    check("a reply is on its way")
                yield reply

    def transport(silos: list[Silo]) -> InProcess:
        return Halting(silos)

    federation = Federation(folder, chosen, goals=(1.0, 3.0), check=check, transport=transport)
    merged = federation.train(rounds=2)
    scored = federation.coordinator.score(
        "federated", dict.fromkeys(federation.names, merged), federation.names, "test"
    )
    own = federation.coordinator.train("personal:silo-0", merged, ["silo-0"], 1, 1, personal=True)["silo-0"]
    return frozen(merged), {silo: frozen(table) for silo, table in scored.items()}, frozen(dict(own)), lines(federation)


def frozen(tensors: Tensors) -> dict[str, Any]:
    return {name: bits(tensor) for name, tensor in tensors.items()}


def lines(federation: Federation) -> list[Any]:
    return list(federation.ledger.entries())


def killed_at(folder: Path, chosen: Recipe, countdown: Countdown) -> Any:
    """The result, or None if the countdown ended before. Kills around every write, and in the middle of it."""
    write = files.write_bytes
    fsync = os.fsync

    def halting_write(path: Path, content: Any) -> None:
        countdown("before a write")
        parts = content if isinstance(content, Iterable) else [content]

        def halting() -> Iterator[Any]:
            for part in parts:
                countdown("inside a write")
                yield part

        write(path, halting())
        countdown("after a write")

    def halting_fsync(handle: int) -> None:
        """Before it, a line of the ledger may have come to the disk in part."""
        try:
            countdown("in the ledger")
        except Killed:
            os.ftruncate(handle, os.fstat(handle).st_size - 20)
            raise
        fsync(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_bytes", halting_write)

        class LedgerOs:
            fsync = staticmethod(halting_fsync)

        patch.setattr(ledger, "os", LedgerOs)
        try:
            return result(folder, chosen, countdown)
        except Killed:
            return None


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {name: result(Path(folder) / name, chosen) for name, chosen in SETTINGS.items()}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1, 6))])
def test_killed_once_at_any_moment(tmp_path: Path, first: int, name: str, undisturbed: dict[str, Any]) -> None:
    never = Countdown(None)
    assert killed_at(tmp_path / "never", SETTINGS[name], never) == undisturbed[name]
    assert never.seen > 100
    for moment in range(first, never.seen, 6):
        folder = tmp_path / str(moment)
        assert killed_at(folder, SETTINGS[name], Countdown(moment)) is None
        assert result(folder, SETTINGS[name]) == undisturbed[name], f"killed at moment {moment}"


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(SETTINGS)), st.lists(st.integers(0, 150), min_size=2, max_size=8))
def test_killed_again_and_again(undisturbed: dict[str, Any], name: str, moments: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for moment in moments:
            killed_at(Path(folder), SETTINGS[name], Countdown(moment))
        assert result(Path(folder), SETTINGS[name]) == undisturbed[name]
        assert not list(Path(folder).rglob(".*.part"))


def test_a_killed_fit_goes_on_where_it_was(tmp_path: Path) -> None:
    """Not only to the same end: the steps that were kept are not trained again."""
    keeps = 0

    def third_keep(where: str) -> None:
        nonlocal keeps
        keeps += where == "after keep"
        if keeps == 3:
            raise Killed

    with pytest.raises(Killed):
        Federation(tmp_path, goals=[1.0], check=third_keep).train(rounds=1)
    steps: list[str] = []
    again = Federation(tmp_path, goals=[1.0], check=steps.append)
    again.train(rounds=1)
    assert steps.count("step") == 1


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from tests.federation.test_killed import SETTINGS, result

for delay in map(float, sys.argv[2:]):
    child = os.fork()
    if child == 0:
        result(Path(sys.argv[1]), SETTINGS["kept"], lambda _: time.sleep(0.004))
        os._exit(0)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_kill_minus_nine_at_random_moments(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """Five runs, each killed four times."""
    chance = random.Random(5)
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        delays = [f"{chance.uniform(0.05, 0.3):.3f}" for _ in range(4)]
        program = [sys.executable, "-c", PROGRAM, str(folder), *delays]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        root = Path(__file__).parents[2]
        done = subprocess.run(program, cwd=root, env=environment, capture_output=True, text=True, check=True)
        assert "-9" in done.stdout
        assert result(folder, SETTINGS["kept"]) == undisturbed["kept"]


def test_the_moments_cover_what_is_written(tmp_path: Path) -> None:
    """The countdown is told of every write of silo, coordinator and ledger; else the tests above would be blind."""
    told: list[str] = []

    class Listening(Countdown):
        def __call__(self, where: str = "") -> None:
            told.append(where)

    killed_at(tmp_path, SETTINGS["kept"], Listening(None))
    assert set(told) == {
        *("before a write", "inside a write", "after a write", "in the ledger", "a reply is on its way"),
        *("step", "before keep", "after keep", "score"),
    }
