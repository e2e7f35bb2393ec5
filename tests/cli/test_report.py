"""`fedmt report`, and the lines that a run says of its thresholds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedmt.cli.live import Lines
from fedmt.events import Chosen, Shifted, Spent
from fedmt.report.folder import RunFolder
from tests.conftest import Call
from tests.report.runs import ROUNDS, SILOS, build
from tests.report.test_studies import telling
from tests.small import Done


@pytest.fixture
def whole(tmp_path: Path) -> RunFolder:
    folder = build(tmp_path / "whole", n=8, resamples=20)
    telling(folder, theta=False)
    return folder


@pytest.fixture
def half(tmp_path: Path) -> RunFolder:
    folder = build(tmp_path / "half", n=8, resamples=20, seed=2, share=0.5)
    telling(folder)
    return folder


def test_one_runs_report_is_written_anew_and_told(call: Call, whole: RunFolder) -> None:
    assert not whole.report.exists()
    done = call("report", whole.path, "--bandwidth", "100")
    assert (done.code, done.err) == (0, "")
    assert "Studies</h2>" in whole.report.read_text()
    assert "Transfer time at 100 Mbit/s" in whole.report.read_text()
    for title in ("Tensors, parameters and bytes saved", "C-Cost and T-Cost", "Transfer time at 100 Mbit/s"):
        assert title in done.out
    assert done.out.splitlines()[-1] == f"report  {whole.report}"
    row = next(line for line in done.out.split("Transfer time")[1].splitlines() if line.startswith("whole"))
    # 28.8 MB at 12.5 MB a second, of one silo and of all five.
    assert re.split(r"\s{2,}", row)[1:5] == ["5", "28.8 MB", "2.30 s", "11.5 s"]


def test_several_runs_stand_together_beside_the_first(call: Call, whole: RunFolder, half: RunFolder) -> None:
    done = call("report", whole.path, half.path)
    assert (done.code, done.err) == (0, "")
    page = whole.path.parent / "studies.html"
    assert done.out.splitlines()[-1] == f"report  {page}"
    assert "Learning at equal steps" in page.read_text()
    assert not whole.report.exists()
    assert re.search(r"^whole +up .*^half +up ", done.out, re.M | re.S)
    assert "θ of half" in done.out
    assert "θ of whole" not in done.out


def test_a_folder_of_ones_own_for_the_page(call: Call, whole: RunFolder, half: RunFolder, tmp_path: Path) -> None:
    done = call("report", whole.path, half.path, "--out", tmp_path / "new" / "folder")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "new" / "folder" / "studies.html").is_file()
    assert not (tmp_path / "studies.html").exists()


def test_json_holds_what_the_tables_are_made_of(call: Call, half: RunFolder) -> None:
    found = call("report", half.path, "--json").records
    kinds = [one["event"] for one in found]
    assert kinds[:5] == ["saving", "saving", "cost", "transfer", "time"]
    assert kinds.count("passed") == kinds.count("learning") == ROUNDS
    assert found[-1] == {"event": "report", "file": str(half.report)}
    up = found[0]
    assert (up["way"], up["messages"], up["parameters"]) == ("up", ROUNDS * len(SILOS), up["of_parameters"])
    time = found[4]
    assert time["a_silo"] == pytest.approx({"train": 1.5, "choose": 0.01})
    assert time["a_round"]["train"] == pytest.approx(1.5 * len(SILOS))
    theta = [one["theta"] for one in found if one["event"] == "passed"]
    assert theta == [0.4, 0.4, 0.4, None, None]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["RUN", "--bandwidth", "0"], "a number above 0"),
        (["RUN", "--bandwidth", "fast"], "a number above 0"),
        (["RUN", "--bandwidth", "nan"], "a number above 0"),
        (["RUN", "--out", "x"], "is for several runs"),
        (["RUN", "RUN"], "is given twice"),
        (["RUN", "RUN/."], "is given twice"),
        (["RUN", "nowhere"], "there is no such folder"),
        ([], "missing argument"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(call: Call, whole: RunFolder, arguments: list[str], told: str) -> None:
    done = call("report", *(one.replace("RUN", str(whole.path)) for one in arguments))
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert len(done.err.splitlines()) == 1


def test_a_run_that_is_not_finished_says_how_to_finish_it(call: Call, whole: RunFolder) -> None:
    whole.scores.unlink()
    done = call("report", whole.path)
    assert done.code == 2
    assert "--resume" in done.err


def test_a_round_says_what_its_threshold_let_through_and_nothing_of_seconds() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    lines(Shifted("federated", "a", 3, ("x",), (0.1,), (0.1,)))
    lines(Spent("federated", "a", 3, {"train": 1.0}))
    lines(Chosen("federated", 3, 0.412, 0.5, 0.384))
    assert said == ["federated, round 3: θ 0.41 let 38 % of the parameters through"]


def test_a_real_run_of_a_threshold_is_told_whole(call: Call, tmp_path: Path) -> None:
    score = {"shifts": True, "resamples": 5}
    done = Done(tmp_path / "run", score=score, selector={"up": {"kind": "metasend"}})
    found = call("report", tmp_path / "run", "--json").records
    up = next(one for one in found if one["event"] == "saving")
    total = done.house.travelled("federated")
    assert (up["bytes"], up["parameters"]) == (total.up_bytes, total.up_parameters)
    # What the run itself said of each round is what the ledger says.
    chosen = {event.round: event for event in done.of(Chosen)}
    for one in (one for one in found if one["event"] == "passed"):
        event = chosen[one["round"]]
        assert (one["theta"], one["tensors"]) == (event.theta, pytest.approx(event.tensors))
        assert one["parameters"] == pytest.approx(event.parameters)
    page = done.house.report.read_text()
    assert "How far tensors went" in page
    assert "What passed, round by round" in page
