"""`fedmt attack`, from a run's folder to its tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from fedmt.cli.attack import _parties
from fedmt.corpus.pairs import Direction, Text
from tests.conftest import Call
from tests.small import Done

WAYS = {"source": "toy", "silos": 3, "pairs": 60, "families": 2, "directions": "both"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two silos, without rounds: the public engine."""
    public = {"source": "toy", "pairs": 100}
    return Done(tmp_path_factory.mktemp("runs") / "run", rounds=0, public=public).house.path


def test_the_tables_tell_what_each_part_of_a_record_gives_away(call: Call, run: Path) -> None:
    done = call("attack", run, "--epochs", "1", "--limit", "10")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "toy-1 reads toy-2 (qaa-qtz)"
    rows = [line.split() for line in lines]
    reads = [row[:3] for row in rows if row[:1] in (["any"], ["ends"])]
    assert reads == [
        [attacked, given, "10"] for given in ("nothing", "token", "code", "state") for attacked in ("any", "ends")
    ]
    probes = [row[0] for row in rows[rows.index(["prefix", "of", "the", "nearest", "own", "record,", "%", "right"]) :]]
    assert probes[-4:] == ["nothing", "token", "code", "state"]
    assert "pairs of toy-2 were attacked" in done.out
    assert done.err.count("note: threat model given") == 4
    assert max(map(len, lines)) < 120


def test_json_has_a_line_a_figure_and_another_pair_is_another_attack(call: Call, run: Path) -> None:
    done = call("attack", run, "--silo", "toy-2", "--on", "toy-1", "--epochs", "1", "--limit", "5", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    about, *rest = done.records
    assert (about["event"], about["attacker"], about["victim"]) == ("attack", "toy-2", "toy-1")
    assert about["own"] > about["pairs"] > 20
    assert about["quantiser"]["code_bytes"] == 32
    reads = [line for line in rest if line["event"] == "read"]
    assert len(reads) == 8
    assert all(0 <= line[key] <= 100 for line in reads for key in ("source", "target", "both"))
    assert all(line["private"]["there"] >= line["foreign"]["there"] for line in reads)
    probes = {line["given"]: line["shares"] for line in rest if line["event"] == "probe"}
    assert list(probes) == ["nothing", "token", "code", "state"]
    assert all(set(shares) == {"1", "2", "4"} for shares in probes.values())


@pytest.mark.parametrize(
    ("attacker", "victim", "found"),
    [
        (None, None, ("a", "c")),
        ("b", None, ("b", "d")),
        (None, "a", ("c", "a")),
        (None, "d", ("b", "d")),
        ("e", "c", ("e", "c")),
    ],
)
def test_who_is_not_named_is_the_first_that_fits(
    attacker: str | None, victim: str | None, found: tuple[str, str]
) -> None:
    ways = {"a": "de", "b": "fr", "c": "de", "d": "fr", "e": "de"}
    silos = [Text(name, Direction(source, "en"), [], [], []) for name, source in ways.items()]
    own, theirs = _parties(silos, attacker, victim)
    assert (own.name, theirs.name) == found


def test_the_runs_own_quantiser_is_used(call: Call, run: Path, tmp_path: Path) -> None:
    from fedmt.memory import quantise
    from fedmt.recipe import Memory
    from tests.memory.test_quantise import states

    copy = Path(shutil.copytree(run, tmp_path / "run"))
    settings = Memory(lists=2, code_bytes=1, projection="pca", dimension=1)
    quantise.train([states(width=64)], settings, seed=1).save(copy / "memory")
    done = call("attack", copy, "--epochs", "1", "--limit", "5", "--quiet")
    assert done.code == 0, done.err
    assert "code: of 1 bytes and 2 lists" in done.out
    quantise.train([states(width=16)], settings, seed=1).save(copy / "memory")
    done = call("attack", copy, "--epochs", "1", "--limit", "5")
    assert done.code == 2
    assert "takes states of 16 numbers, not this engine's" in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gone"], "gone: is no run's folder: it holds no recipe.yaml"),
        (["text.de"], "text.de: is no run's folder"),
        (["RUN", "--silo", "toy-7"], "--silo: there is no silo 'toy-7'; did you mean `toy-"),
        (["RUN", "--on", "moon"], "--on: there is no silo 'moon'; allowed: toy-1, toy-2"),
        (["RUN", "--silo", "toy-1", "--on", "toy-1"], "--on: toy-1 is the attacker itself; allowed: toy-2"),
        (["RUN", "--epochs", "0"], "'--epochs': '0'; allowed: a whole number from 1 to 1000"),
        (["RUN", "--limit", "all"], "'--limit': 'all'; allowed: a whole number ≥ 1"),
    ],
)
def test_what_is_wrong_is_one_line(call: Call, run: Path, here: Path, arguments: list[str], told: str) -> None:
    done = call("attack", *(run if one == "RUN" else one for one in arguments))
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert here.is_dir()


def test_silos_of_other_directions_cannot_be_attacked(call: Call, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    recipe = yaml.safe_load((copy / "recipe.yaml").read_text())
    (copy / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "silos": WAYS}))
    done = call("attack", copy, "--silo", "toy-1")
    assert done.code == 2
    assert "--silo: no other silo goes in toy-1's direction" in done.err
    (copy / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "silos": {**WAYS, "families": 1, "silos": 4}}))
    done = call("attack", copy, "--silo", "toy-1", "--on", "toy-2")
    assert done.code == 2
    assert "only silos of one direction can be attacked; allowed: toy-3" in done.err
    assert done.err.count("\n") == 1
