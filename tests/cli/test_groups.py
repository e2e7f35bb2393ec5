"""What a run leaves whose silos merge in groups: an engine each, that `translate` and `score` can be told to take."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedmt.engine import engine
from tests.conftest import Call
from tests.small import Done


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "grouped"
    part = {"kind": "adapters", "width": 4}
    return Done(folder, groups={"kind": "alone"}, part=part, train={"peak": 0.02}).house.path


def test_a_silo_is_scored_with_its_own_engine(call: Call, grouped: Path) -> None:
    done = call("score", grouped, "--json")
    assert done.code == 0
    own = {row["set"]: row["bleu"] for row in done.records}
    assert own.keys() == {"toy-1", "toy-2"}
    assert call("score", grouped, "--silo", "toy-2", "--json").records[1]["bleu"] == pytest.approx(own["toy-2"])


def test_a_silo_that_is_none_is_refused(call: Call, grouped: Path, toy_run: Path) -> None:
    done = call("translate", grouped, "--silo", "toy-9")
    assert (done.code, done.err.strip()) == (
        2,
        f"error: --silo: {grouped} has no engine of 'toy-9' apart; allowed: toy-1, toy-2",
    )
    done = call("translate", toy_run, "--silo", "toy-1")
    assert (done.code, "its silos have one engine together" in done.err) == (2, True)


def test_a_run_that_was_moved_still_finds_the_base_of_its_extensions(grouped: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(grouped, moved)
    before = engine.load(grouped / "engines" / "toy-1").hash
    hidden = grouped.rename(grouped.with_name("hidden"))
    try:
        assert engine.load(moved / "engines" / "toy-1").hash == before
    finally:
        hidden.rename(grouped)
