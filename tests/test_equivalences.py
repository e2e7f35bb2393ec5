"""Different recipes that are one and the same thing end bit for bit alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedmt.engine import engine
from fedmt.exchange.ledger import Ledger
from tests.small import Done

EVERYTHING_PASSES: dict[str, dict[str, Any]] = {
    "dynamic pulling at a threshold of 0": {"kind": "dynamic_pulling", "threshold": 0},
    "dynamic pulling of all": {"kind": "dynamic_pulling", "share": 1},
    "the top 100 % of the values": {"kind": "top_k", "share": 1},
    "the top 100 % of the changes": {"kind": "top_k", "by": "change", "share": 1},
    "metasend at 0": {"kind": "metasend", "theta": {"kind": "fixed", "value": 0}},
    "metasend of what changes less than anything": {
        "kind": "metasend",
        "send": "less",
        "theta": {"kind": "fixed", "value": 2},
    },
    "a freezer that freezes nothing": {"kind": "apf", "threshold": 0, "window": 1},
    "all at random": {"kind": "random", "share": 1},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("whole") / "run", rounds=3)


@pytest.mark.parametrize("ways", [("up",), ("up", "down")], ids="+".join)
@pytest.mark.parametrize("selector", EVERYTHING_PASSES.values(), ids=EVERYTHING_PASSES)
def test_where_everything_passes_it_is_the_full_exchange(
    whole: Done, selector: dict[str, Any], ways: tuple[str, ...], tmp_path: Path
) -> None:
    done = Done(tmp_path / "run", rounds=3, selector=dict.fromkeys(ways, selector))
    assert done.engine() == whole.engine()
    assert moved(done) == moved(whole)


def moved(done: Done) -> list[tuple[str, str, int, int]]:
    entries = Ledger(done.house.ledger).entries()
    return [(entry.silo, entry.direction, entry.parameters, entry.tensors) for entry in entries]


@pytest.mark.parametrize(
    "groups",
    [
        {"kind": "random", "count": 1},
        {"kind": "gradients", "count": 1},
        {"kind": "families"},
        {"kind": "explicit", "encoder": {"everyone": ["toy-1", "toy-2"]}},
    ],
    ids=lambda groups: str(groups["kind"]),
)
def test_one_group_of_all_is_no_group(whole: Done, groups: dict[str, Any], tmp_path: Path) -> None:
    """All toy silos here speak one language, so that their families are one too."""
    assert Done(tmp_path / "run", rounds=3, groups=groups).engine() == whole.engine()


def test_groups_of_one_are_each_silo_alone(tmp_path: Path) -> None:
    done = Done(tmp_path / "run", groups={"kind": "alone"}, baselines=["alone"])
    for name in ("toy-1", "toy-2"):
        own = engine.load(done.house.engines / name).tensors()
        assert {key: tensor.numpy().tobytes() for key, tensor in sorted(own.items())} == done.bits(f"alone:{name}")
    assert done.bits("alone:toy-1") != done.bits("alone:toy-2")


def test_what_is_shared_but_never_trained_changes_nothing(tmp_path: Path) -> None:
    """A-C of Roosta et al. sends the whole engine to train its controllers: the engine is C-C's."""
    part = {"kind": "controllers", "encoder": [1], "decoder": [1]}
    one = Done(tmp_path / "cc", part=part)
    other = Done(tmp_path / "ac", part={**part, "shares": "all"})
    assert one.engine_tensors() == other.engine_tensors()
    up = [sum(row[2] for row in moved(done) if row[1] == "up") for done in (one, other)]
    assert up[0] < up[1] / 2


def test_silos_that_send_only_their_adapters_leave_the_base_as_it_was(tmp_path: Path) -> None:
    done = Done(tmp_path / "run", part={"kind": "adapters", "width": 4, "norms": False})
    base, made = engine.load(done.house.base).tensors(), engine.load(done.house.engine).tensors()
    assert all(made[name].equal(tensor) for name, tensor in base.items())
    new = [name for name in made if name not in base]
    assert new
    assert any(bool(made[name].any()) for name in new if ".up." in name), "what began at nought was trained"
    alone = engine.load(done.house.extension)
    assert alone.hash == engine.load(done.house.engine).hash
