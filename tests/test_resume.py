"""A run that was stopped anywhere, in any way, goes on to the end that it would have had."""

from __future__ import annotations

import json
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.kill import RECIPE, Killing, Run, contents, differences

from fedmt import experiment, files
from fedmt.events import Event, Phase, Scored, Trained
from fedmt.recipe import Recipe
from tests.small import merged

TINY = merged(
    RECIPE,
    {
        "public": {"source": "toy", "pairs": 60},
        "silos": {"source": "toy", "silos": 2, "pairs": 60},
        "train": {"public_epochs": 1, "epochs": 1, "personal_epochs": 1, "checkpoint_seconds": 0.05},
        "rounds": 2,
        "decode": {"longest": 8},
        "score": {"resamples": 10},
        "compute": {"precision": "fp32"},
        "baselines": ["public", "alone", "personal"],
    },
)
SETTINGS = {
    "plain": TINY,
    "parts": merged(
        TINY,
        {
            "selector": {"up": {"kind": "random", "share": 0.5}, "down": {"kind": "random", "share": 0.5}},
            "codec": {"kind": "fp16"},
            "merge": {"kind": "mean", "rate": 1.5},
            "train": {"optimizer": "fresh", "keep": "last", "public_epochs": 0},
            "baselines": ["alone"],
        },
    ),
}


class Stopped(BaseException):
    """No one catches it, as no one catches a kill."""


# ── in this process ─────────────────────────────────────────────────────────────────────────────────────────────────


def go(folder: Path, settings: dict[str, Any], listen: Callable[[Event], None] = lambda _: None) -> None:
    experiment.run(Recipe.model_validate(settings), folder, resume=True, listen=listen)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Event]]]:
    found = {}
    for name, settings in SETTINGS.items():
        folder, events = tmp_path_factory.mktemp("undisturbed") / "run", list[Event]()
        go(folder, settings, events.append)
        found[name] = (folder, events)
    return found


def stopping_at(moments: list[int]) -> Iterator[Callable[[], None]]:
    """For each of these a function that stops the run the n-th time it is called."""
    for moment in moments:
        left = moment

        def check() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped

        yield check


def spread(count: int, times: int, seed: int) -> list[int]:
    """So many random moments, in parts of which about so many make up the whole."""
    chance = random.Random(seed)
    return [chance.randrange(2 * count // times) for _ in range(times)]


@pytest.mark.parametrize("name", SETTINGS)
def test_stopped_at_any_event_it_ends_the_same(
    tmp_path: Path, undisturbed: dict[str, tuple[Path, list[Event]]], name: str
) -> None:
    """As Ctrl-C may come: between the steps of a training, between silos, rounds, models, sentences."""
    wanted, events = undisturbed[name]
    for check in stopping_at(spread(len(events), 4, seed=1)):
        with pytest.raises(Stopped):
            go(tmp_path / "run", SETTINGS[name], lambda _, check=check: check())  # type: ignore[misc]
    go(tmp_path / "run", SETTINGS[name])
    assert not differences(contents(wanted), contents(tmp_path / "run"))


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stopped_at_any_write_it_ends_the_same(
    tmp_path: Path, undisturbed: dict[str, tuple[Path, list[Event]]], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Before a file stands in its place, and when it does and nobody knows yet."""
    wanted, _ = undisturbed["plain"]
    write, writes = files.write_bytes, 0

    def counted(*arguments: Any) -> None:
        write(*arguments)
        nonlocal writes
        writes += 1

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", counted)
        go(tmp_path / "counted", TINY)

    for check in stopping_at(spread(writes, 4, seed=2 + after)):

        def stopping(*arguments: Any, check: Callable[[], None] = check) -> None:
            if not after:
                check()
            write(*arguments)
            if after:
                check()

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_bytes", stopping)
            with pytest.raises(Stopped):
                go(tmp_path / "run", TINY)
    go(tmp_path / "run", TINY)
    assert not differences(contents(wanted), contents(tmp_path / "run"))


def test_what_was_done_is_not_done_again(tmp_path: Path, undisturbed: dict[str, tuple[Path, list[Event]]]) -> None:
    _, events = undisturbed["plain"]
    last = [index for index, event in enumerate(events) if isinstance(event, Phase) and event.model == "federated"]
    (check,) = stopping_at([last[0]])
    with pytest.raises(Stopped):
        go(tmp_path / "run", TINY, lambda _: check())
    again: list[Event] = []
    go(tmp_path / "run", TINY, again.append)
    assert {event.model.partition(":")[0] for event in again if isinstance(event, Trained)} == {"federated", "personal"}
    # Scores that were kept are told again, for a table that was closed.
    told = {(event.model, event.silo) for event in again if isinstance(event, Scored) and event.round is None}
    assert told == {(event.model, event.silo) for event in events if isinstance(event, Scored) and event.round is None}


def test_a_run_that_has_ended_is_left_as_it_is(undisturbed: dict[str, tuple[Path, list[Event]]]) -> None:
    folder, _ = undisturbed["plain"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again: list[Event] = []
    go(folder, TINY, again.append)
    assert again == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_report_that_was_lost_is_made_anew_without_training(
    tmp_path: Path, undisturbed: dict[str, tuple[Path, list[Event]]]
) -> None:
    wanted, _ = undisturbed["plain"]
    go(tmp_path / "run", TINY)
    for name in ("README.md", "report.html", "scores.json"):
        (tmp_path / "run" / name).unlink()
    again: list[Event] = []
    go(tmp_path / "run", TINY, again.append)
    assert not [event for event in again if isinstance(event, Trained)]
    assert not differences(contents(wanted), contents(tmp_path / "run"))


def test_what_a_kill_left_half_written_is_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("checkpoints/first/.model.part", ".engine.x1.part/model.safetensors", "silos/a/.midway.y.part"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"half")
    (folder / "checkpoints/first").rename(folder / "checkpoints/.first.z.part")
    go(folder, SETTINGS["parts"])
    assert not list(folder.rglob("*.part"))


# ── the program itself ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the program that was left alone."""
    folder = tmp_path_factory.mktemp("program")
    recipe = folder / "r.yaml"
    recipe.write_text(json.dumps(merged(TINY, {"train": {"checkpoint_seconds": 0.01}})))
    run = Run(recipe, folder / "undisturbed")
    run.finish(resume=False)
    return run


@pytest.mark.slow
def test_kill_minus_nine_at_random_moments(program: Run, tmp_path: Path) -> None:
    """In every stretch of a run, from the program's start to its report; `bench/kill.py` does it twenty times."""
    chance = random.Random(8)
    run = Run(program.recipe, tmp_path / "run")
    stages = [(None, 2.0), ("public", 0.3), ("alone", 0.5), ("federated", 0.5), ("personal", 0.5), ("report", 0.15)]
    killed = []
    for number, (stage, longest) in enumerate(stages):
        killed.append(Killing(stage, chance.uniform(0, longest)).on(run, resume=number > 0))
    # A slow kill may find the last stretch over.
    assert None not in killed[:-1]
    run.finish(resume=True)
    assert not differences(contents(program.folder), contents(run.folder))


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(program: Run, tmp_path: Path, sign: signal.Signals) -> None:
    run = Run(program.recipe, tmp_path / "a run")
    # What runs the tests may ignore Ctrl-C; the program must not inherit that.
    with run.start(resume=False, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        Killing("federated", 0).wait(process, run)
        process.send_signal(sign)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    said = "stopped; resume with: "
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert not list(run.folder.rglob("*.part"))
    name, *arguments = shlex.split(err.removeprefix(said))
    assert (name, arguments[-3:]) == ("fedmt", ["--out", str(run.folder), "--resume"])
    done = subprocess.run(
        [sys.executable, "-m", "fedmt", *arguments, "-q"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not differences(contents(program.folder), contents(run.folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kilobytes", "told"),
    [
        (50, r"error: .*/checkpoints/first: cannot be written: .*\n"),
        (900, r"error: .*, round 1, fit: 0 of 1 silos answered, 1 are needed \(.*: its disk is full, or .*\)\n"),
    ],
)
def test_a_full_disk_is_told_in_one_line_and_the_run_goes_on_when_there_is_room(
    program: Run, tmp_path: Path, kilobytes: int, told: str
) -> None:
    """As far as a limit on the size of a file can stand for it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    run = Run(program.recipe, tmp_path / "run")
    with run.start(resume=False, preexec_fn=limit) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert re.fullmatch(told, err)
    run.finish(resume=True)
    # A silo that was refused room keeps its own note of why; nothing else may differ.
    notes = list(run.folder.glob("silos/*/errors.log"))
    assert all("OSError" in note.read_text() for note in notes)
    for note in notes:
        note.unlink()
    assert not differences(contents(program.folder), contents(run.folder))


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_told_in_one_line(program: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Run(program.recipe, tmp_path / "file" / "run").start(resume=False) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1
    assert str(tmp_path / "file") in err
