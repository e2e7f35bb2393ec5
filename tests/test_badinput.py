# ruff: noqa: E501 - a case and what is said of it stand on one line
"""Bad input of every kind, through the program as a user calls it: one line that says where and what, and exit code 2.

What each reader says of a broken file is tested beside it; here nothing may come through as a traceback, as silence, or
as several lines.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Call

GOOD = """\
name: courts
engine: {size: toy}
public: {from: de, to: en, train: text}
silos:
  - {name: captions, from: de, to: en, data: text}
rounds: 1
"""
WAY = ["--from", "de", "--to", "en"]


@dataclass(frozen=True)
class Place:
    """Where a case is made: an empty folder but for the Moses pair `text`, an engine and a run beside it."""

    folder: Path
    engine: Path
    run: Path

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    def recipe(self, old: str = "", new: str = "", name: str = "r.yaml") -> str:
        assert old in GOOD
        return self.write(name, GOOD.replace(old, new) if old else GOOD)

    def copy_engine(self) -> Path:
        return Path(shutil.copytree(self.engine, self.folder / "engine"))

    def copy_run(self, name: str = "run") -> Path:
        return Path(shutil.copytree(self.run, self.folder / name))


Arguments = list[str]
Case = tuple[str, Callable[[Place], Arguments], str]


def inspect(name: str, content: str | bytes) -> Callable[[Place], Arguments]:
    return lambda place: ["data", "inspect", place.write(name, content), *WAY]


def check(old: str, new: str) -> Callable[[Place], Arguments]:
    return lambda place: ["recipe", "check", place.recipe(old, new)]


def args(*arguments: str) -> Callable[[Place], Arguments]:
    return lambda _: list(arguments)


def tmx(body: str, head: str = "") -> str:
    return f'<?xml version="1.0"?>{head}<tmx version="1.4"><header srclang="de"/><body>{body}</body></tmx>'


def units(source: str, target: str) -> str:
    return f'<tu><tuv xml:lang="de"><seg>{source}</seg></tuv><tuv xml:lang="en"><seg>{target}</seg></tuv></tu>'


BOMB = '<!DOCTYPE tmx [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>'
OUTSIDE = '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
XLIFF = '<xliff version="{}"><file source-language="de" target-language="en"><body></body></file></xliff>'


def safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def damaged_weights(place: Place) -> Arguments:
    folder = place.copy_engine()
    (folder / "model.safetensors").write_bytes(safetensors(b'{"x": {"dtype": "F32", "shape": [9], "data_offsets"'))
    return ["translate", str(folder), "--input", "text.de"]


def pickled_weights(place: Place) -> Arguments:
    folder = place.copy_engine()
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weight": 1}))
    return ["translate", str(folder), "--input", "text.de"]


def changed_json(name: str, **changes: object) -> Callable[[Place], Arguments]:
    def make(place: Place) -> Arguments:
        folder = place.copy_engine()
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **changes}))
        return ["translate", str(folder), "--input", "text.de"]

    return make


def without(name: str) -> Callable[[Place], Arguments]:
    def make(place: Place) -> Arguments:
        folder = place.copy_engine()
        (folder / name).unlink()
        return ["translate", str(folder), "--input", "text.de"]

    return make


def torn(name: str) -> Callable[[Place], Arguments]:
    def make(place: Place) -> Arguments:
        folder = place.copy_engine()
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        return ["translate", str(folder), "--input", "text.de"]

    return make


def unfinished(place: Place) -> Arguments:
    shutil.rmtree(place.copy_run() / "engine")
    return ["translate", "run", "--input", "text.de"]


def compared(scores: str | None, **others: str) -> Callable[[Place], Arguments]:
    def make(place: Place) -> Arguments:
        for name in ("one", "two"):
            folder = place.copy_run(name)
            if scores is not None:
                (folder / "scores.json").write_text(scores)
            for file, content in others.items():
                (folder / file.replace("_", ".")).write_text(content)
        return ["compare", "one", "two"]

    return make


def occupied(place: Place) -> Arguments:
    place.copy_run()
    return ["run", place.recipe(), "--out", "run"]


def another(place: Place) -> Arguments:
    place.copy_run()
    return ["run", place.recipe(), "--out", "run", "--resume"]


def filled(place: Place) -> Arguments:
    return ["run", place.recipe(), "--out", str(Path(place.write("thesis/chapter1.tex", "x")).parent)]


def uneven(place: Place) -> Arguments:
    place.write("text.en", "only one line\n")
    return ["data", "inspect", "text", *WAY]


def scored(*options: str) -> Callable[[Place], Arguments]:
    return lambda place: ["score", str(place.engine), *options]


RECIPES: list[Case] = [
    ("recipe is not there", args("recipe", "check", "nothing.yaml"), r"nothing\.yaml: no such file"),
    ("recipe name misspelt", args("run", "dmeo"), r"dmeo: no such file; did you mean `demo`\?"),
    ("recipe is a folder", lambda p: ["run", str(p.folder)], r"is a folder without a recipe\.yaml"),
    ("recipe is empty", lambda p: ["recipe", "check", p.write("r.yaml", "")], r"r\.yaml: is empty"),
    ("recipe is a list", lambda p: ["recipe", "check", p.write("r.yaml", "- a")], r"r\.yaml:1: is not a recipe"),
    ("recipe is no YAML", check("rounds: 1", "rounds: [1"), r"r\.yaml:7:1: is not YAML"),
    ("recipe indents by tabs", check("  - {", "\t- {"), r"r\.yaml:5:1: is not YAML: a tab"),
    ("recipe is binary", lambda p: ["recipe", "check", p.write("r.yaml", os.urandom(64) + b"\xff\x00")], r"r\.yaml:\d+"),
    ("recipe is a corpus", lambda p: ["recipe", "check", p.write("r.yaml", b"x" * 2**21)], r"at most 1 MB"),
    ("recipe runs code", check("rounds: 1", "rounds: !!python/object/apply:os.getcwd []"), r"r\.yaml:6: rounds: the tag"),
    ("key twice", check("rounds: 1", "rounds: 1\nrounds: 2"), r"r\.yaml:7: rounds: stands twice, first in line 6"),
    ("key unknown", check("rounds", "ronds"), r"r\.yaml:6: ronds: is not known here; did you mean `rounds`\?"),
    ("number is text", check("rounds: 1", "rounds: one"), r"r\.yaml:6: rounds: 'one' is not a whole number; allowed: "),
    ("number too small", check("rounds: 1", "rounds: -1"), r"r\.yaml:6: rounds: -1 is too small; allowed: "),
    ("kind unknown", check("rounds: 1", "merge: {kind: avrage}"), r"r\.yaml:6: merge\.kind: 'avrage' is not known"),
    ("silo's file is missing", check("data: text", "data: nothing.tmx"), r"r\.yaml:5: silos\.captions\.data: .*no such file"),
    ("Moses side is missing", check("to: en, data: text", "to: fr, data: text"), r"r\.yaml:5: silos\.captions\.data: .*text\.fr"),
    ("package unknown", check("{from: de, to: en, train: text}", "{source: pypi, name: pretx}"),
     r"r\.yaml:3: public\.name: no package is called 'pretx'; did you mean `pretix`\?"),
    ("override without a value", lambda p: ["run", p.recipe(), "rounds"], r"command line: 'rounds' is not of the form"),
    ("override of nothing", lambda p: ["run", p.recipe(), "silos.caption.to=en"], r"command line: silos\.caption: there is none"),
]  # fmt: skip

CORPORA: list[Case] = [
    ("corpus is not there", args("data", "inspect", "nothing.tmx", *WAY), r"nothing\.tmx: there is no such file"),
    ("corpus is empty", inspect("a.tsv", ""), r"a\.tsv: is empty"),
    ("corpus of no known ending", inspect("a.docx", "x"), r"a\.docx: its ending says no format"),
    ("Moses of uneven length", uneven, r"text\.de and text\.en: 3 and 1 lines"),
    ("TSV of one column", inspect("a.tsv", "only this\n"), r"a\.tsv:1: "),
    ("TSV in Latin-1", inspect("a.tsv", "Ja\tYes\nSchön\tFine\n".encode("latin-1")), r"a\.tsv:2: byte 0xf6"),
    ("JSONL that is none", inspect("a.jsonl", '{"de": "Ja", "en": "Yes"}\n{"de": \n'), r"a\.jsonl:2: "),
    ("JSONL without the language", inspect("a.jsonl", '{"de": "Ja", "fr": "Oui"}\n'), r"a\.jsonl: no pair of de-en"),
    ("TMX cut off", inspect("a.tmx", tmx(units("Ja", "Yes"))[:-20]), r"a\.tmx:\d+: "),
    ("TMX of other languages", inspect("a.tmx", tmx(units("Ja", "Yes")).replace('"en"', '"fr"')), r"a\.tmx: "),
    ("TMX with an entity bomb", inspect("a.tmx", tmx(units("&c;", "x"), BOMB)), r"a\.tmx:1: "),
    ("TMX that reads other files", inspect("a.tmx", tmx(units("&a;", "x"), OUTSIDE)), r"a\.tmx:1: "),
    ("XLIFF without a unit", inspect("a.xlf", XLIFF.format("1.2")), r"a\.xlf: no pair of de-en"),
    ("XLIFF that is HTML", inspect("a.xlf", "<html><body/></html>"), r"a\.xlf"),
    ("PO that is none", inspect("de.po", 'msgid "a\nmsgstr b\n'), r"de\.po"),
    ("MO that is none", inspect("de.mo", b"\x00" * 30), r"de\.mo"),
    ("gzip that is cut off", inspect("a.tsv.gz", gzip.compress(b"Ja\tYes\n" * 500)[:-9]), r"a\.tsv\.gz: the gzip file is cut off"),
    ("gzip that is damaged", inspect("a.tsv.gz", b"\x1f\x8b" + bytes(40)), r"a\.tsv\.gz: the gzip file is damaged"),
    ("format unknown", args("data", "inspect", "text", "--format", "docx", *WAY), r"--format: 'docx' is not known; allowed: moses"),
    ("converted to what cannot be written", args("data", "convert", "text", "out.mo", *WAY), r"out\.mo: .*cannot be written"),
    ("converted from what is not there", args("data", "convert", "nothing", "out.tmx", *WAY), r"nothing\.de"),
    ("package unknown to fetch", args("data", "fetch", "pretx"), r"no package or organisation is called pretx"),
    ("direction is missing", args("data", "inspect", "text"), r"--from and --to say which languages to read"),
    ("direction is half there", args("data", "inspect", "text", "--from", "de"), r"--from and --to go together"),
    ("language is none", args("data", "inspect", "text", "--from", "german", "--to", "en"), r"--from: 'german' is not a language code"),
]  # fmt: skip

ENGINES: list[Case] = [
    ("engine is not there", args("translate", "/nothing/here"), r"/nothing/here: .*no such folder"),
    ("engine is a file", args("translate", "text.de"), r"text\.de: is a file"),
    ("engine is an empty folder", lambda p: ["translate", str(p.folder)], r"is neither a run's folder .* nor an engine's"),
    ("engine without weights", without("model.safetensors"), r"engine: has no \.safetensors weights"),
    ("engine of pickled weights", pickled_weights, r"engine: has no \.safetensors weights; fedmt never loads pickled ones"),
    ("engine of damaged weights", damaged_weights, r"engine: cannot be loaded"),
    ("engine of cut weights", torn("model.safetensors"), r"engine: cannot be loaded"),
    ("engine of another kind", changed_json("config.json", model_type="bert"), r"engine: bert is not an architecture"),
    ("engine of another width", changed_json("config.json", d_model=32), r"engine: "),
    ("engine whose configuration is torn", torn("config.json"), r"config\.json: cannot be read"),
    ("engine of another direction", lambda p: ["translate", str(p.engine), "-i", "text.de", "--from", "fr", "--to", "en"],
     r"does not translate fr-en; it translates de-en"),
    ("text to translate in Latin-1", lambda p: ["translate", str(p.engine), "-i", p.write("a", "Ja\nSchön".encode("latin-1"))],
     r"a:2: byte 0xf6 at position 4 is not UTF-8"),
    ("input is not there", lambda p: ["translate", str(p.engine), "-i", "nothing"], r"--input: nothing: no such file"),
    ("output is a folder", lambda p: ["translate", str(p.engine), "-i", "text.de", "-o", str(p.folder)], r"--output: .* is a folder"),
    ("beam too wide", lambda p: ["translate", str(p.engine), "--beam", "65"], r"'--beam': '65'; allowed: a whole number from 1 to 64"),
    ("nothing to score on", scored(), r"is an engine, which has no test sets; give --data"),
    ("source without reference", scored("--source", "text.de"), r"--source and --reference go together"),
    ("reference too short", lambda p: scored("--source", "text.de", "--reference", p.write("short", "one\n"))(p),
     r"text\.de has 3 lines, short has 1"),
    ("test set in no format", lambda p: scored("--data", p.write("a.docx", "x"))(p), r"a\.docx: its ending says no format"),
]  # fmt: skip

SCORES = '{"schema": 1, "rows": [], "bytes": {"up": 0, "down": 0}, "seconds": 1}'

RUNS: list[Case] = [
    ("run is not there", args("compare", "nothing", "text.de"), r"nothing: there is no such folder"),
    ("run is a file", args("compare", "text.de", "text.en"), r"text\.de: is a file"),
    ("run is another folder", lambda p: ["compare", str(p.folder), str(p.engine)], r"is not a run folder: it holds no recipe\.yaml"),
    ("run has no scores", compared(None), r"one: the run has no scores yet"),
    ("run has no engine", unfinished, r"run: the run has no engine yet"),
    ("scores are torn", compared(SCORES[:30]), r"one/scores\.json"),
    ("scores of another schema", compared(SCORES.replace("1,", "9,", 1)), r"one/scores\.json"),
    ("scores are a list", compared("[]"), r"one/scores\.json"),
    ("recipe of the run is torn", compared(SCORES, recipe_yaml="silos: ["), r"one/recipe\.yaml"),
    ("one run compares with nothing", lambda p: ["compare", str(p.run)], r"one run compares with nothing"),
    ("out holds another run", occupied, r"--out: run holds a run already; go on with it by --resume"),
    ("resumed with another recipe", another, r"--resume: run was begun with another recipe: name was toy and is courts"),
    ("out holds something else", filled, r"--out: thesis is not empty and holds no run"),
    ("out lies in a file", lambda p: ["run", p.recipe(), "--out", "text.de/run"], r"text\.de/run: Not a directory"),
    ("name too long", args("run", "a" * 5000), r"aaa: File name too long"),
    ("out is a file", lambda p: ["run", p.recipe(), "--out", "text.de"], r"--out: text\.de is a file"),
]  # fmt: skip

COMMANDS: list[Case] = [
    ("command unknown", args("trian"), r"no such command 'trian'"),
    ("command of data unknown", args("data", "inpect"), r"no such command 'inpect'"),
    ("command missing", args("recipe"), r"missing command; see fedmt recipe --help"),
    ("argument missing", args("run"), r"missing argument .*RECIPE"),
    ("argument too many", args("recipe", "schema", "x"), r"unexpected extra argument"),
    ("option unknown", args("run", "demo", "--epochs", "3"), r"no such option:? '?--epochs"),
    ("option without a value", args("run", "demo", "--out"), r"option '--out' requires"),
    (
        "value of the wrong kind",
        args("translate", "x", "--beam", "wide"),
        r"'--beam': 'wide'; allowed: a whole number from 1 to 64",
    ),
]

CASES = [*RECIPES, *CORPORA, *ENGINES, *RUNS, *COMMANDS]


def test_there_are_many_kinds() -> None:
    assert len({name for name, _, _ in CASES}) == len(CASES) >= 40


@pytest.mark.parametrize(("make", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bad_input_is_one_line_and_exit_code_two(
    make: Callable[[Place], Arguments],
    said: str,
    call: Call,
    here: Path,
    toy_engine: Path,
    toy_run: Path,
) -> None:
    done = call(*make(Place(here, toy_engine, toy_run)))
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith("error: ")
    assert len(done.err) < 600
    assert "Traceback" not in done.err
    assert re.search(said, done.err), done.err


def test_many_mistakes_of_a_recipe_are_a_line_each(call: Call, here: Path) -> None:
    (here / "r.yaml").write_text(GOOD.replace("toy", "tiny").replace("rounds: 1", "rounds: x\nepochs: 2"))
    done = call("run", "r.yaml", "train.epochs=-1")
    assert done.code == 2
    assert [line.split(":")[1:3] for line in done.err.splitlines()] == [
        [" r.yaml", "2"],
        [" r.yaml", "6"],
        [" r.yaml", "7"],
        [" command line", " train.epochs"],
    ]


@pytest.mark.parametrize(
    "name", ["recipe is no YAML", "TMX with an entity bomb", "command unknown", "engine is not there"]
)
def test_the_installed_program_says_the_same(
    name: str,
    call: Call,
    here: Path,
    toy_engine: Path,
    toy_run: Path,
) -> None:
    make = next(case[1] for case in CASES if case[0] == name)
    arguments = make(Place(here, toy_engine, toy_run))
    expected = call(*arguments).err
    program = [sys.executable, "-m", "fedmt", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)
