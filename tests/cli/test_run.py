"""`fedmt run` and `fedmt demo`: where a run goes, what is seen of it, how it is stopped and resumed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedmt import experiment, reading
from fedmt.cli import live
from fedmt.events import Choice, Event, Listener, Note, Phase, Progress, Scored, Trained, Travelled, record
from fedmt.recipe import PypiSilos, Recipe
from fedmt.report.folder import RunFolder
from tests.conftest import Call
from tests.report.runs import build

EVENTS: list[Event] = [
    Phase("data", 1, 3),
    Choice("device", "cpu", "no accelerator was found"),
    Note("clinic: 100 pairs"),
    Phase("federated", 2, 3, "federated"),
    Progress("federated", "clinic", 1, 2, 5, 10, 3.25, 900.0),
    Trained("federated", "clinic", 1, 3.0, 2.5, 1000, 10, 65.0),
    Travelled("federated", "clinic", 1, 1_500_000, 10, 2_000_000, 10),
    Travelled("federated", "mail", 1, 500_000, 10, 1_000_000, 10),
    Phase("report", 3, 3),
    Scored("federated", "clinic", "test", 31.26, 50.04, 60),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `experiment.run` was asked for; in its stead a finished run stands in the folder."""
    calls: list[dict[str, Any]] = []

    def run(recipe: Recipe, folder: Path, *, resume: bool, listen: Listener) -> RunFolder:
        calls.append({"recipe": recipe, "folder": folder, "resume": resume})
        for event in EVENTS:
            listen(event)
        return RunFolder(folder) if folder.exists() else build(folder, n=4, resamples=10)

    monkeypatch.setattr(experiment, "run", run)
    return calls


@pytest.fixture
def recipe(here: Path) -> Path:
    path = here / "r.yaml"
    path.write_text(
        "name: courts\nengine: {size: toy}\npublic: {from: de, to: en, train: text}\n"
        "silos: [{name: captions, from: de, to: en, data: text}]\n"
    )
    return path


def test_a_run_goes_into_a_folder_of_its_name(call: Call, recipe: Path, asked: list[dict[str, Any]]) -> None:
    assert call("run", "r.yaml", "rounds=3", "--quiet").code == 0
    (one,) = asked
    assert one["folder"] == Path("runs/courts")
    assert one["resume"] is False
    assert one["recipe"] == reading.read(recipe, ["rounds=3"])


def test_out_and_resume_are_passed_on(call: Call, recipe: Path, asked: list[dict[str, Any]]) -> None:
    call("run", recipe, "--resume", "--out", "here/there", "-q")
    assert (asked[0]["folder"], asked[0]["resume"]) == (Path("here/there"), True)


def test_plain_lines_tell_what_is_done_and_end_in_the_table(
    call: Call, recipe: Path, asked: list[dict[str, Any]]
) -> None:
    done = call("run", recipe)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:6] == [
        "[1/3] data",
        "device: cpu (no accelerator was found)",
        "clinic: 100 pairs",
        "[2/3] federated",
        "federated, round 1, clinic: loss 3.000, dev loss 2.500; 10 steps in 1:05",
        "federated, round 1: silos sent 2.0 MB and received 3.0 MB",
    ]
    assert lines[7] == "federated, clinic test: BLEU 31.3, chrF 50.0 on 60 sentences"
    assert any(line.startswith("average") for line in lines)
    assert lines[-1] == "translate  fedmt translate runs/courts"
    assert len(asked) == 1


def test_every_line_of_json_is_an_event(call: Call, recipe: Path, asked: list[dict[str, Any]]) -> None:
    records = call("run", recipe, "--json").records
    assert records[: len(EVENTS)] == [record(event) for event in EVENTS]
    assert records[-1]["event"] == "done"
    assert records[-1]["folder"] == "runs/courts"
    assert {row["model"] for row in records[-1]["scores"]["rows"]} >= {"public", "federated", "alone:clinic"}
    assert len(asked) == 1


def test_quiet_is_quiet(call: Call, recipe: Path, asked: list[dict[str, Any]]) -> None:
    done = call("run", recipe, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert len(asked) == 1


def raises(error: BaseException) -> Callable[..., RunFolder]:
    def run(recipe: Recipe, folder: Path, **_: object) -> RunFolder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(reading.write(recipe))
        raise error

    return run


def test_what_a_stop_says_goes_on_with_the_run(
    call: Call, recipe: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(experiment, "run", raises(KeyboardInterrupt()))
        done = call("run", recipe, "rounds=3", "--out", "my runs/one")
    assert done.code == 130
    said = "stopped; resume with: "
    assert done.err.startswith(said)
    program, *arguments = shlex.split(done.err.removeprefix(said))
    assert program == "fedmt"
    assert call(*arguments, "--quiet").code == 0
    assert asked[0] == {"recipe": reading.read(recipe, ["rounds=3"]), "folder": Path("my runs/one"), "resume": True}


def test_a_runs_folder_is_enough_to_resume(
    call: Call, recipe: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(experiment, "run", raises(KeyboardInterrupt()))
        call("run", recipe)
    assert call("run", "runs/courts", "--resume", "-q").code == 0
    assert asked[0]["folder"] == Path("runs/courts")
    assert asked[0]["recipe"] == reading.read(recipe)


def test_a_run_is_not_resumed_with_other_numbers(call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "run", raises(KeyboardInterrupt()))
    call("run", recipe)
    done = call("run", recipe, "train.epochs=7", "silos.captions.name=films", "--resume")
    assert done.code == 2
    assert "another recipe: silos.0.name was captions and is films, train.epochs was 1 and is 7" in done.err


def test_an_unexpected_end_leaves_its_traceback_in_the_runs_folder(
    call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "run", raises(ZeroDivisionError("division by zero")))
    done = call("run", recipe)
    assert done.code == 1
    assert done.err.endswith("the traceback is in runs/courts/traceback.txt\n")
    assert "ZeroDivisionError" in Path("runs/courts/traceback.txt").read_text()


def test_the_demo_is_the_recipe_that_comes_along_and_goes_on_by_itself(
    call: Call, here: Path, asked: list[dict[str, Any]]
) -> None:
    assert call("demo", "-q").code == 0
    (one,) = asked
    assert (one["folder"], one["resume"]) == (Path("runs/demo"), True)
    assert isinstance(one["recipe"].silos, PypiSilos)
    assert len(one["recipe"].silos.names or ()) == 5
    assert {"public", "alone", "combined"} <= set(one["recipe"].baselines)
    assert (here / "runs/demo").is_dir()


@pytest.mark.slow
def test_the_whole_way_from_a_recipe_to_a_translation(call: Call, here: Path) -> None:
    small = ["public.pairs=60", "silos.pairs=60", "train.public_epochs=1", "rounds=1", "decode.longest=8"]
    small += ["engine.vocabulary=300", "silos.silos=2", "compute.threads=1", "score.resamples=20", "baselines=[public]"]
    done = call("run", "toy", *small)
    assert done.code == 0, done.err
    assert "federated" in done.out
    assert "runs/toy/report.html" in done.out
    again = call("run", "toy", *small, "--resume")
    assert again.out.splitlines()[-1] == done.out.splitlines()[-1]
    (here / "in.txt").write_text("ein\n\n")
    translated = call("translate", "runs/toy", "--input", "in.txt")
    assert (translated.code, translated.out.count("\n")) == (0, 2)
    scored = call("score", "runs/toy", "--json")
    assert [one["event"] for one in scored.records] == ["score", "score"]
    kept = {row["silo"]: row["bleu"] for row in RunFolder(Path("runs/toy")).read_scores().model_dump()["rows"]
            if row["model"] == "federated"}  # fmt: skip
    assert {one["set"]: one["bleu"] for one in scored.records} == pytest.approx(kept)


def test_what_travels_to_be_scored_is_told_apart() -> None:
    said: list[str] = []
    listen = live.Lines(said.append)
    listen(Travelled("federated", "clinic", 2, 10**6, 10, 10**6, 10))
    listen(Travelled("federated", "clinic", 2, 10**3, 0, 10**6, 10, "score:dev"))
    listen(Travelled("federated", "clinic", 0, 10**3, 0, 10**6, 10, "score:test"))
    listen(Note("so much"))
    assert [line.partition(": silos")[0] for line in said[:-1]] == [
        "federated, round 2",
        "federated, round 2, to be scored",
        "federated, to be scored",
    ]
