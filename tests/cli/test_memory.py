"""A run's memory on the command line: who takes part, translating with it, and why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Call
from tests.small import Done

CODES = {"code_bytes": 4, "lists": 4, "sample": 2000}


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a memory whose engine has seen some text; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("memory") / "run"
    silos = {"source": "toy", "silos": 3, "pairs": 80}
    Done(folder, memory=CODES, rounds=0, baselines=["public"], silos=silos, train={"public_epochs": 3})
    return folder


@pytest.fixture
def run(remembered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(remembered, tmp_path / "run"))


@pytest.fixture
def lines(remembered: Path, tmp_path: Path) -> Path:
    """Sentences of a silo's own test set."""
    path = tmp_path / "lines.txt"
    sources = sorted((remembered / "hypotheses" / "source").glob("toy-1*"))[0].read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(sources[:3]) + "\n", encoding="utf-8")
    return path


def test_who_takes_part_is_shown(call: Call, remembered: Path) -> None:
    done = call("memory", remembered)
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines() if line.startswith("toy-")]
    assert [row[0] for row in rows] == ["toy-1", "toy-2", "toy-3"]
    assert all(int(row[1].replace(",", "")) > 50 for row in rows)
    told = json.loads(call("memory", remembered, "--json").out)
    assert told["others"] == []
    assert {name: str(count) for name, count in told["members"].items()} == {
        row[0]: row[1].replace(",", "") for row in rows
    }


@pytest.mark.slow
def test_who_goes_is_left_out_and_who_comes_back_brings_the_same_scores(call: Call, run: Path) -> None:
    def scores() -> dict[str, tuple[float, float]]:
        rows = json.loads((run / "scores.json").read_text())["rows"]
        return {row["silo"]: (row["bleu"], row["chrf"]) for row in rows if row["model"] == "federated"}

    def asked(step: str) -> int:
        lines = map(json.loads, (run / "ledger.jsonl").read_text().splitlines())
        return sum(one["step"] == step and one["direction"] == "down" for one in lines)

    before, remembering = scores(), asked("remember")
    assert call("memory", run, "--without", "toy-2", "--quiet").code == 0
    told = json.loads(call("memory", run, "--json").out)
    assert (sorted(told["members"]), told["others"]) == (["toy-1", "toy-3"], ["toy-2"])
    assert asked("remember") == remembering
    public = {
        row["silo"]: row["bleu"]
        for row in json.loads((run / "scores.json").read_text())["rows"]
        if row["model"] == "public"
    }
    assert scores()["toy-2"][0] == public["toy-2"]
    assert call("memory", run, "--with", "toy-2", "--quiet").code == 0
    assert asked("remember") == remembering + 1
    assert scores() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--with", "court"], "--with: there is no silo 'court'; allowed: toy-1, toy-2, toy-3"),
        (["--without", "court"], "--without: there is no silo 'court'"),
        (["--without", "toy-1", "--without", "toy-2", "--without", "toy-3"], "nobody would be left"),
    ],
)
def test_a_change_that_cannot_be_is_refused(call: Call, remembered: Path, options: list[str], told: str) -> None:
    before = sorted(path.name for path in remembered.iterdir())
    done = call("memory", remembered, *options)
    assert done.code == 2
    assert told in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert sorted(path.name for path in remembered.iterdir()) == before


def test_a_run_without_a_memory_has_none(call: Call, toy_run: Path) -> None:
    for command in (["memory", toy_run], ["translate", toy_run, "--explain", "--input", "text.de"]):
        done = call(*command)
        assert done.code == 2
        assert len(done.err.strip().splitlines()) == 1


# ── translating ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_translate_asks_the_memory(call: Call, remembered: Path, lines: Path) -> None:
    with_it = call("translate", remembered, "--input", lines)
    without = call("translate", remembered, "--input", lines, "--no-memory")
    assert with_it.code == without.code == 0
    assert len(with_it.out.splitlines()) == len(without.out.splitlines()) == 3
    # Its records stand in the sentences' own language and domain; the engine has seen 3 epochs of other text.
    assert with_it.out != without.out


def test_score_is_what_the_run_scored(call: Call, remembered: Path) -> None:
    found = [json.loads(line) for line in call("score", remembered, "--json").out.splitlines()]
    rows = json.loads((remembered / "scores.json").read_text())["rows"]
    expected = {row["silo"]: row["bleu"] for row in rows if row["model"] == "federated"}
    assert {one["set"]: one["bleu"] for one in found} == pytest.approx(expected)


def test_each_token_is_explained(call: Call, remembered: Path, lines: Path) -> None:
    done = call("translate", remembered, "--explain", "--json", "--input", lines)
    assert done.code == 0
    told = [json.loads(line) for line in done.out.splitlines()]
    assert [one["translation"] for one in told] == call("translate", remembered, "--input", lines).out.splitlines()
    for one in told:
        assert one["tokens"][-1]["token"] == "⏎" or len(one["tokens"]) >= 12
        for token in one["tokens"]:
            assert 0 <= token["engine"] <= 1.0001
            assert 0 <= token["mixed"] <= 1.0001
            assert sum(token["shares"].values()) == pytest.approx(1, abs=1e-3)
            assert token["k"] == int(max(token["shares"], key=token["shares"].__getitem__))
            if not token["looked_up"]:
                assert token["mixed"] == pytest.approx(token["engine"])
    looked = [token for one in told for token in one["tokens"] if token["looked_up"]]
    assert looked
    for token in looked:
        # What the neighbours of this very token weigh is what it gains.
        own = sum(each["weight"] for each in token["neighbours"] if each["token"] == token["token"])
        assert token["mixed"] == pytest.approx(token["shares"]["0"] * token["engine"] + own, abs=0.02)
    shown = call("translate", remembered, "--explain", "--input", lines).out
    assert "neighbours" in shown
    assert told[0]["translation"] in shown


def test_a_silos_own_use_may_be_asked_for(call: Call, remembered: Path, lines: Path) -> None:
    assert call("translate", remembered, "--silo", "toy-3", "--input", lines).code == 0
    done = call("translate", remembered, "--silo", "court", "--input", lines)
    assert done.code == 2
    assert "allowed: toy-1, toy-2, toy-3" in done.err
