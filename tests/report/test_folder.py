from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedmt.corpus.pairs import Direction, Pair, Text
from fedmt.errors import RunError
from fedmt.events import Note, Trained
from fedmt.report.folder import About, Facts, RunFolder, versions
from tests.report import runs


def trained(round_: int, loss: float) -> Trained:
    return Trained("federated", "clinic", round_, loss, loss, 10, 1, 1.0)


def test_a_folder_is_opened_and_read_back(run: RunFolder) -> None:
    opened = RunFolder.open(run.path, scored=True)
    about = opened.read_about()
    assert about is not None
    assert [silo.name for silo in about.silos] == list(runs.SILOS)
    assert about.public is not None
    assert about.public.dropped == {"duplicates": 431}
    assert opened.read_recipe()["rounds"] == runs.ROUNDS
    assert len(opened.read_resamples()) == 8 * 5
    assert opened.name == "demo"


def test_facts_of_a_text_are_numbers_and_no_sentence() -> None:
    pairs = [Pair("geheim", "secret")]
    facts = Facts.of(Text("clinic", Direction("de", "en"), pairs * 3, pairs, pairs * 2, {"copies": 4}, "MIT", "here"))
    assert facts == Facts("clinic", "de-en", 3, 1, 2, "MIT", "here", {"copies": 4})
    assert "geheim" not in repr(facts)


def test_versions_name_what_scores_depend_on() -> None:
    assert {"python", "torch", "transformers", "sacrebleu"} <= versions().keys()


def broken(run: RunFolder, tmp_path: Path, file: str, content: str | None) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_text(content)
    return copy


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("recipe.yaml", None, r"is not a run folder: it holds no recipe\.yaml"),
        ("recipe.yaml", "", r"recipe\.yaml: is empty or torn"),
        ("recipe.yaml", "name: [", r"recipe\.yaml: cannot be read"),
        ("scores.json", None, "the run has no scores yet; finish it with `fedmt run .*recipe.yaml --resume`"),
        ("scores.json", '{"schema": 9}', "its schema is 9; this version of fedmt reads 1"),
        ("scores.json", '{"schema": 1, "ro', "cannot be read as JSON"),
        ("run.json", '{"schema": 2}', r"run\.json: its schema is 2; this version of fedmt reads 1"),
        ("run.json", '{"schema": 1, "silos": [{"name": "a"}]}', r"run\.json: is torn"),
        ("run.json", "[1", r"run\.json: cannot be read as JSON"),
    ],
)
def test_what_is_no_run_folder_gives_one_line(
    run: RunFolder, tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    path = broken(run, tmp_path, file, content)
    with pytest.raises(RunError, match=message) as caught:
        RunFolder.open(path, scored=True)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_and_a_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file; a run is a folder"):
        RunFolder.open(tmp_path / "file")


def test_a_run_that_is_under_way_is_opened_without_scores(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("rounds: 1\n")
    folder = RunFolder.open(tmp_path)
    assert (folder.read_about(), folder.events(), folder.entries(), folder.read_resamples()) == (None, [], [], {})


def test_a_torn_last_event_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.tell(trained(1, 3.0))
    with folder.metrics.open("a") as file:
        file.write('{"event": "trai')
    assert [event["round"] for event in folder.events()] == [1]
    folder.tell(trained(2, 2.0))
    assert [event["round"] for event in folder.events()] == [1, 2]


def test_a_line_longer_than_a_block_is_mended_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.tell(Note("x" * 9000))
    with folder.metrics.open("a") as file:
        file.write('{"text": "' + "y" * 9000)
    folder.tell(Note("z"))
    assert [len(event["text"]) for event in folder.events("note")] == [9000, 1]


def test_a_round_told_again_after_a_resume_counts_as_last_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for event in (trained(1, 3.0), trained(2, 2.5), trained(2, 2.4), Note("a"), Note("a")):
        folder.tell(event)
    assert [event["train_loss"] for event in folder.events("trained")] == [3.0, 2.4]
    assert len(folder.events("note")) == 2


def test_a_torn_line_in_the_middle_is_told_with_its_number(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"event": "note"}\n{"ev\n{"event": "note"}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: "):
        folder.events()


def test_bytes_are_those_of_training_unless_scoring_is_asked_for(run: RunFolder) -> None:
    size, times = 4 * runs.PARAMETERS, runs.ROUNDS * len(runs.SILOS)
    total = run.travelled("federated")
    assert (total.down_bytes, total.up_bytes) == (size * times, (size + 812) * times)
    assert total.down_parameters == runs.PARAMETERS * times
    assert run.travelled("federated", scoring=True).down_bytes == size * (times + len(runs.SILOS))
    assert run.travelled().down_bytes == 2 * size * times


@pytest.mark.parametrize("line", [{"model": "federated"}, {"direction": "sideways"}])
def test_a_ledger_that_is_none_is_told(run: RunFolder, tmp_path: Path, line: dict[str, object]) -> None:
    whole = json.loads(run.ledger.read_text().splitlines()[0])
    content = line if len(line) == 1 and "model" in line else {**whole, **line}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(content) + "\n")
    with pytest.raises(RunError, match="is not a line of a ledger"):
        RunFolder(tmp_path).entries()


def test_hypotheses_are_one_a_line_whatever_they_hold(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_lines("alone:clinic", "clinic", ["a\nb", "", "c\u2028d"])
    assert (tmp_path / "hypotheses" / "alone.clinic" / "clinic.txt").exists()
    assert folder.read_lines("alone:clinic", "clinic") == ["a b", "", "c d"]
    assert folder.read_lines("public", "clinic") is None


def test_an_about_that_says_little_is_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_about(About([Facts("a", "de-en", 1, 2, 3)]))
    assert folder.read_about() == About([Facts("a", "de-en", 1, 2, 3)])
