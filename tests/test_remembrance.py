"""Runs with a memory, from private text to translations that ask it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedmt import experiment, remembrance
from fedmt.corpus.pairs import Direction
from fedmt.engine import device, engine
from fedmt.engine.decoder import translate
from fedmt.errors import RecipeError, RunError
from fedmt.exchange.ledger import Ledger
from fedmt.federation.messages import Reply, Request, unwire
from fedmt.memory import store
from fedmt.memory.datastore import Records
from fedmt.memory.quantise import Quantiser
from fedmt.recipe import Compute, Decode
from fedmt.report.folder import RunFolder
from fedmt.score.rows import Results
from tests.engine import tiny
from tests.federation.canaries import Tapped
from tests.small import Done, files, small

CODES = {"code_bytes": 4, "lists": 4, "sample": 2000}
# Each value of one factor meets each architecture, or each part, once.
WAYS: dict[str, dict[str, Any]] = {
    "by itself": {"memory": CODES, "rounds": 0, "baselines": ["public", "memory"]},
    "behind rounds of all": {
        "memory": {**CODES, "gate": None, "probes": 2, "projection": "none"},
        "codec": {"kind": "fp16"},
        "rounds": 1,
        "baselines": ["weights", "personal"],
    },
    "behind adapters, pruned": {
        "memory": {**CODES, "prune": 2, "neighbours": 2},
        "part": {"kind": "adapters", "width": 4},
        "selector": {"up": {"kind": "top_k"}, "down": {"kind": "top_k"}},
        "rounds": 2,
    },
    "behind a threshold, the server too": {
        "memory": {**CODES, "temperature": 10.0, "projection": "opq", "dimension": 16},
        "selector": {"up": {"kind": "metasend"}},
        "server": True,
        "rounds": 1,
    },
}


def pretrained(folder: Path, kind: str, directions: list[tuple[str, str]]) -> dict[str, Any]:
    silos = [
        {**files(folder, f"toy-{number}", number), "name": f"toy-{number}", "from": source, "to": target}
        for number, (source, target) in enumerate(directions, 1)
    ]
    public = files(folder, "public", 9, train=80)
    return {"engine": {"pretrained": str(tiny.folder(kind))}, "public": public, "silos": silos}


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> list[Tapped]:
    taps: list[Tapped] = []

    def tapped(silos: Any) -> Tapped:
        taps.append(Tapped(silos))
        return taps[-1]

    monkeypatch.setattr(experiment, "InProcess", tapped)
    monkeypatch.setattr(remembrance, "InProcess", tapped)
    return taps


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_memory_goes_with_any_other_choice(way: dict[str, Any], tmp_path: Path, tape: list[Tapped]) -> None:
    done = Done(tmp_path / "run", **way)
    sent = [message for tap in tape for message in map(unwire, tap.tape) if message.model == "federated"]
    # The server's own silo is sent nothing over a wire.
    crossed = [message for message in sent if message.silo != "public"]
    entries = [entry for entry in Ledger(done.house.ledger).entries() if entry.model == "federated"]
    assert Counter((entry.step, entry.silo, entry.direction) for entry in entries) == Counter(
        (message.step, message.silo, "up" if isinstance(message, Reply) else "down") for message in crossed
    )
    steps = {message.step for message in sent if isinstance(message, Request)}
    assert steps >= {"invite", "remember", "recall", "tune", "recite"}
    assert ("fit" in steps) == bool(way["rounds"])
    rows = Results.read(done.house.scores).rows
    assert {row.silo for row in rows if row.model == "federated"} == {"toy-1", "toy-2"}
    made = engine.load(done.house.engine)
    (direction,) = store.directions(done.house.memory)
    memory = store.load(done.house.memory, direction, made)
    assert memory is not None
    machine = device.choose(Compute(device="cpu", precision="fp32", threads=1))
    translate(made, ["a b c"], direction, Decode(longest=6), machine, memory=memory)
    assert memory.asked > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mbart50", "m2m100", "nllb", "opus"])
def test_every_architecture_remembers_each_direction_apart(kind: str, tmp_path: Path) -> None:
    ways = [("de", "en"), ("fi", "en"), ("de", "en")] if kind != "opus" else [("de", "en")] * 3
    settings = pretrained(tmp_path, kind, ways)
    done = Done(tmp_path / "run", **settings, memory=CODES, rounds=0, train={"public_epochs": 0})
    found = store.directions(done.house.memory)
    assert found == list(dict.fromkeys(Direction(*way) for way in ways))
    quantiser = Quantiser.load(done.house.memory)
    for way in found:
        records = Records.open(done.house.memory / str(way), quantiser)
        assert set(records.about["sent"]) == {
            f"toy-{number}" for number, one in enumerate(ways, 1) if Direction(*one) == way
        }
        # A record for each word piece and each end; language codes have none.
        assert records.count == sum(records.about["sent"].values())
    # The engine is one that everybody has by its name: it did not cross.
    entries = [entry for entry in Ledger(done.house.ledger).entries() if entry.step == "remember"]
    assert {entry.parameters for entry in entries} == {0}


def test_a_run_that_was_killed_in_its_memory_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way: dict[str, Any] = {"memory": CODES, "rounds": 1, "baselines": ["memory"]}
    whole = Done(tmp_path / "whole", **way)

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    for place in ("Memories.recite", "Remembrance._keep"):
        name, method = place.split(".")
        with monkeypatch.context() as patch:
            patch.setattr(getattr(remembrance, name), method, kill)
            with pytest.raises(Killed):
                Done(tmp_path / "killed", resume=(tmp_path / "killed").exists(), **way)
    again = Done(tmp_path / "killed", resume=True, **way)
    assert again.engine() == whole.engine()

    def told(done: Done) -> list[dict[str, Any]]:
        rows = json.loads(done.house.scores.read_text())["rows"]
        return [{key: row[key] for key in ("model", "silo", "bleu", "chrf")} for row in rows]

    assert told(again) == told(whole)
    lines = [
        [(one.step, one.silo, one.direction) for one in Ledger(done.house.ledger).entries()] for done in (again, whole)
    ]
    assert lines[0] == lines[1]


def test_a_memory_of_one_silo_is_its_own(tmp_path: Path) -> None:
    """Federated with itself alone, a silo has what it has by itself."""
    silos = {"source": "toy", "silos": 1, "pairs": 60}
    done = Done(tmp_path, memory=CODES, rounds=0, baselines=["memory"], silos=silos)
    rows = {row.model: row for row in Results.read(done.house.scores).rows}
    assert rows["federated"].bleu == rows["memory:toy-1"].bleu
    assert rows["federated"].chrf == rows["memory:toy-1"].chrf


def test_a_memory_is_refused_for_another_engine(tmp_path: Path) -> None:
    done = Done(tmp_path / "one", memory=CODES, rounds=0)
    other = engine.load(tiny.folder("scratch"))
    (direction,) = store.directions(done.house.memory)
    with pytest.raises(RunError, match="belongs to the engine"):
        store.load(done.house.memory, direction, other)
    assert store.load(done.house.memory, Direction("de", "en"), other) is None
    assert store.load(tmp_path / "nothing", direction, other) is None
    (done.house.memory / "memory.json").write_text("[]")
    with pytest.raises(RunError, match=r"memory.json: not what fedmt wrote"):
        store.directions(done.house.memory)


def test_members_are_silos(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no silo court; allowed: toy-1, toy-2"):
        Done(tmp_path / "one", memory={**CODES, "members": ["court"]}, rounds=0)
    done = Done(tmp_path / "two", memory={**CODES, "members": ["toy-2"]}, rounds=0)
    house = RunFolder(tmp_path / "two")
    (direction,) = store.directions(house.memory)
    records = Records.open(house.memory / str(direction), Quantiser.load(house.memory))
    assert set(records.about["sent"]) == {"toy-2"}
    # Who takes no part is scored without.
    assert {row.silo for row in Results.read(done.house.scores).rows} == {"toy-1", "toy-2"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory": CODES, "groups": {"kind": "alone"}}, "memory: records of several engines do not mix"),
        ({"memory": CODES, "rounds": 0, "baselines": ["alone"]}, "alone trains for as many rounds"),
        ({"memory": CODES, "rounds": 0, "part": {"kind": "adapters"}}, "part: with rounds 0 nothing of it is trained"),
        ({"baselines": ["memory"]}, "baselines: memory wants a memory"),
        ({"server": True, "groups": {"kind": "alone"}}, "server: belongs to no group"),
        ({"memory": {**CODES, "neighbours": 3}}, "neighbours"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_trains(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        small(**changes)
