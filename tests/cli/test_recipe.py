"""`fedmt recipe check|show|schema`, and the recipes that come along."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedmt
from fedmt import reading
from fedmt.cli import recipe as recipes
from tests.conftest import Call, moses

PACKAGED = ["courts", "demo", "toy"]


def test_the_recipes_at_the_top_are_those_that_come_along() -> None:
    top = Path(fedmt.__file__).parents[2] / "recipes"
    there = sorted(str(path.relative_to(top).with_suffix("")) for path in top.rglob("*.yaml"))
    assert there == sorted(recipes.packaged())
    assert [name for name in there if "/" not in name] == PACKAGED


@pytest.mark.parametrize("name", PACKAGED)
def test_a_recipe_that_comes_along_is_good(call: Call, here: Path, name: str) -> None:
    if name == "courts":
        for prefix in ("news/train", "news/dev", "captions/train", "captions/dev", "captions/test"):
            (here / prefix).parent.mkdir(exist_ok=True)
            moses(here / prefix)
        call("data", "convert", "text", "koran.tmx", "--from", "de", "--to", "en")
        call("data", "convert", "text", "more.xlf.gz", "--from", "de", "--to", "en")
        (here / "courts.yaml").write_bytes(recipes.packaged()["courts"].read_bytes())
        name = "courts.yaml"
    done = call("recipe", "check", name)
    assert (done.code, done.err) == (0, "")
    assert ": good: " in done.out


def test_a_check_names_what_was_understood(call: Call, here: Path) -> None:
    (here / "r.yaml").write_text("name: one\nsilos: {source: toy, silos: 4}\nrounds: 2\nbaselines: []\n")
    assert call("recipe", "check", "r.yaml").out == "r.yaml: good: one, 4 toy silos, 2 rounds\n"
    assert call("recipe", "check", "r.yaml", "--json").records == [
        {"event": "checked", "recipe": "r.yaml", "name": "one"}
    ]


def test_what_is_shown_reads_back_and_needs_no_files(call: Call, here: Path) -> None:
    (here / "r.yaml").write_text("engine: {pretrained: x/y}\nsilos: [{name: a, from: no, to: de, data: gone.tmx}]\n")
    shown = call("recipe", "show", "r.yaml", "rounds=9").out
    (here / "again.yaml").write_text(shown)
    assert reading.read("again.yaml") == reading.read("r.yaml", ["rounds=9"])
    assert f"{here.resolve()}/gone.tmx" in shown
    assert call("recipe", "show", "r.yaml", "--json").records[0]["silos"][0]["from"] == "no"


def test_the_schema_is_json(call: Call) -> None:
    assert json.loads(call("recipe", "schema").out) == reading.schema()


def test_a_file_wins_over_a_recipe_that_comes_along(here: Path) -> None:
    assert recipes.find("toy") == recipes.packaged()["toy"]
    (here / "toy").write_text("silos: {source: toy}")
    assert recipes.find("toy") == Path("toy")


def test_every_file_that_is_missing_is_told_with_its_line(call: Call, here: Path) -> None:
    (here / "r.yaml").write_text(
        "public: {from: de, to: en, train: [text, nothing]}\n"
        "silos:\n"
        "  - {name: a, from: de, to: en, train: text, dev: gone.tmx}\n"
        "  - {name: b, from: de, to: en, data: [text, tsv:gone.txt]}\n"
    )
    done = call("recipe", "check", "r.yaml")
    assert [line.split(": ")[1:3] for line in done.err.splitlines()] == [
        ["r.yaml:1", "public.train"],
        ["r.yaml:3", "silos.a.dev"],
        ["r.yaml:4", "silos.b.data"],
    ]


def test_silos_that_a_preset_does_not_have_are_told(call: Call, here: Path) -> None:
    (here / "r.yaml").write_text("silos:\n  source: pypi\n  names:\n    - clinic\n    - clinik\n")
    assert call("recipe", "check", "r.yaml").err.startswith(
        "error: r.yaml:5: silos.names.1: german-english-8 has no 'clinik'; did you mean `clinic`? allowed: clinic, "
    )


def test_a_pretrained_folder_that_is_gone_is_told(call: Call, here: Path) -> None:
    (here / "r.yaml").write_text("engine: {pretrained: ./gone}\nsilos: {source: toy}\n")
    assert call("recipe", "check", "r.yaml").err == ("error: r.yaml:1: engine.pretrained: there is no folder ./gone\n")
