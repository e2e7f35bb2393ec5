"""`fedmt data`: what stands in text, what is dropped, and the same text in another format."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmt.corpus import pypi, reader
from fedmt.corpus.pairs import Direction, Pair
from fedmt.events import Fetching, Listener
from tests.conftest import SENTENCES, Call

WAY = ["--from", "de", "--to", "en"]


def test_inspection_counts_what_each_rule_drops(call: Call, here: Path) -> None:
    (here / "a.tsv").write_text("Ja\tYes\nJa\tYes\nOK\tOK\nNein\tNo\n")
    done = call("data", "inspect", "a.tsv", *WAY, "-n", "1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:2] == ["a.tsv  de-en", "  4 pairs, 2 kept; dropped: copies 1, duplicates 1"]
    assert lines[3:5] == ["  de: 1.0 words, 3.0 characters a sentence", "  en: 1.0 words, 2.5 characters a sentence"]
    assert len(lines) == 7


def test_inspection_as_json(call: Call, here: Path) -> None:
    (one,) = call("data", "inspect", "text", *WAY, "--json").records
    assert (one["source"], one["direction"], one["pairs"], one["kept"]) == ("text", "de-en", 3, 3)
    assert sorted(map(tuple, one["examples"])) == sorted(SENTENCES)
    assert here.is_dir()


def test_a_recipe_is_inspected_silo_by_silo(call: Call, here: Path) -> None:
    (here / "r.yaml").write_text("public: {source: toy, pairs: 50}\nsilos: {source: toy, silos: 2, pairs: 80}\n")
    records = [one for one in call("data", "inspect", "r.yaml", "--json").records if one["event"] == "text"]
    assert [one["role"] for one in records] == ["public", "silo", "silo"]
    for one in records[1:]:
        assert one["train"] + one["dev"] + one["test"] <= 80
        assert one["train"] > 0
    assert "toy" in call("data", "inspect", "r.yaml").out


@pytest.mark.parametrize("name", ["out.tsv", "out.jsonl.gz", "out.tmx", "out.xlf", "out.po", "out"])
def test_text_is_the_same_in_every_format(call: Call, here: Path, name: str) -> None:
    done = call("data", "convert", "text", name, *WAY)
    assert (done.out, done.err) == (f"{name}: 3 pairs\n", "")
    assert list(reader.read(name, Direction("de", "en"))) == [Pair(*pair) for pair in SENTENCES]
    assert here.is_dir()


def test_conversion_may_clean(call: Call, here: Path) -> None:
    (here / "a.tsv").write_text("Ja\tYes\nJa\tYes\nOK\tOK\n")
    assert call("data", "convert", "a.tsv", "b.tsv", *WAY, "--clean").out == (
        "b.tsv: 1 pairs; dropped: copies 1, duplicates 1\n"
    )
    (one,) = call("data", "convert", "a.tsv", "c", *WAY, "--out-format", "jsonl", "--json").records
    assert (one["event"], one["pairs"]) == ("converted", 3)
    assert (here / "c").read_text().startswith('{"de"')


def test_the_list_names_every_package_with_its_licence(call: Call) -> None:
    out = call("data", "list").out
    for package in pypi.PACKAGES.values():
        line = next(line for line in out.splitlines() if line.startswith(package.name))
        assert package.licence in line
        assert package.organisation in line
    kinds = [one["event"] for one in call("data", "list", "--json").records]
    assert kinds == ["package"] * len(pypi.PACKAGES) + ["preset"] * len(pypi.PRESETS)


def test_a_preset_is_fetched_package_by_package(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(name: str, listen: Listener) -> Path:
        fetched.append(name)
        listen(Fetching(name, 5, 5))
        return Path(f"/cache/{name}.whl")

    monkeypatch.setattr(pypi, "fetch", fetch)
    done = call("data", "fetch", "german-english-8", "clinic", "pretix")
    assert done.code == 0
    preset = pypi.PRESETS["german-english-8"]
    assert fetched == list(dict.fromkeys(member.package for member in (*preset.silos, *preset.public)))
    assert "pretix 2026.8.0 (ticketing): AGPL-3.0-only with additional terms\n  /cache/pretix.whl\n" in done.out
    assert [one["event"] for one in call("data", "fetch", "mailman", "--json").records] == ["fetching", "fetched"]


def test_a_package_is_text_where_no_file_has_its_name(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi, "pairs", lambda name, *_: iter([Pair(f"{name} eins", f"{name} one")]))
    assert call("data", "convert", "netbox", "a.tsv", *WAY).out == "a.tsv: 1 pairs\n"
    assert call("data", "convert", "network-operations", "b.tsv", *WAY).out == "b.tsv: 1 pairs\n"
    assert (here / "a.tsv").read_text() == "de\ten\nnetbox eins\tnetbox one\n"
