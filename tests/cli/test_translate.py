"""Lines in, as many lines out; from stdin, from a file, at a prompt."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmt.cli import translate
from fedmt.cli.session import open_engine
from fedmt.corpus.pairs import Direction
from fedmt.errors import CorpusError
from fedmt.recipe import Decode
from tests.conftest import Call


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.BufferedWriter]:
    """The writing end of what the program reads."""
    reader, writer = os.pipe()
    with os.fdopen(reader, encoding="utf-8") as source, os.fdopen(writer, "wb") as sink:
        monkeypatch.setattr(sys, "stdin", source)
        yield sink


def test_stdin_goes_to_stdout_line_by_line(call: Call, toy_run: Path, stdin: io.BufferedWriter) -> None:
    stdin.write(b"Die Datei fehlt.\n\nGuten Tag!\r\n")
    stdin.close()
    done = call("translate", toy_run)
    assert (done.code, done.err) == (0, "")
    assert done.out == "The file is missing.\n\nGood day!\n"


def test_a_last_line_without_its_end_is_a_line(call: Call, toy_run: Path, stdin: io.BufferedWriter) -> None:
    stdin.write(b"Ja")
    stdin.close()
    assert call("translate", toy_run).out.count("\n") == 1


def test_nothing_gives_nothing(call: Call, toy_run: Path, stdin: io.BufferedWriter) -> None:
    stdin.close()
    done = call("translate", toy_run)
    assert (done.code, done.out) == (0, "")


def test_a_file_gives_the_same_as_stdin(call: Call, toy_run: Path, here: Path, stdin: io.BufferedWriter) -> None:
    stdin.write((here / "text.de").read_bytes())
    stdin.close()
    said = call("translate", toy_run).out
    assert call("translate", toy_run, "--input", "text.de", "--output", "out/text.en").out == ""
    assert (here / "out/text.en").read_text() == said


def test_the_engines_own_folder_does_as_well_as_the_runs(call: Call, toy_engine: Path, here: Path) -> None:
    done = call("translate", toy_engine, "--input", here / "text.de", "--beam", "2")
    assert done.out == (here / "text.en").read_text()


def test_json_lines_hold_source_and_translation(call: Call, toy_run: Path, here: Path) -> None:
    done = call("translate", toy_run, "-i", here / "text.de", "--json")
    assert [one["source"] for one in done.records] == (here / "text.de").read_text().splitlines()
    assert [one["translation"] for one in done.records] == (here / "text.en").read_text().splitlines()


def test_the_beam_is_the_recipes_unless_another_is_asked_for(toy_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedmt.engine import decoder

    engine, recipe = open_engine(str(toy_run))
    assert recipe is not None
    recipe = recipe.model_copy(update={"decode": Decode(beam=3)})
    seen: list[int] = []

    def fake(*given: Any, **_: Any) -> list[str]:
        seen.append(given[3].beam)
        return []

    monkeypatch.setattr(decoder, "translate", fake)
    for beam in (None, 5):
        translate.translator(engine, recipe, Direction("de", "en"), beam)([])
    translate.translator(engine, None, Direction("de", "en"), None)([])
    assert seen == [3, 5, 1]


def test_a_broken_byte_is_told_with_its_line_and_what_came_before_is_out(call: Call, toy_run: Path, here: Path) -> None:
    (here / "bad.de").write_bytes(b"Ja\nn\xffin\n")
    done = call("translate", toy_run, "--input", "bad.de")
    assert done.code == 2
    assert done.err == "error: bad.de:2: byte 0xff at position 2 is not UTF-8; convert the text to UTF-8\n"


def test_a_failed_output_leaves_no_half_file(call: Call, toy_run: Path, here: Path) -> None:
    (here / "bad.de").write_bytes(b"Ja\n" * 600 + b"\xff\n")
    assert call("translate", toy_run, "--input", "bad.de", "--output", "out.en").code == 2
    assert sorted(path.name for path in here.iterdir()) == ["bad.de", "text.de", "text.en"]


def test_a_line_is_answered_before_the_next_is_asked_for() -> None:
    """As a program does that speaks with another: whoever waits for a full batch waits for ever."""
    reader, writer = os.pipe()
    batches = translate._stream(reader)
    os.write(writer, b"one\n")
    assert next(batches) == ["one"]
    os.write(writer, b"two\nthr")
    assert next(batches) == ["two"]
    os.write(writer, b"ee\nfour\n")
    assert next(batches) == ["three", "four"]
    os.close(writer)
    assert list(batches) == []
    os.close(reader)


def test_a_batch_is_never_larger_than_its_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(translate, "BATCH", 3)
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(8)))
    handle = os.open(path, os.O_RDONLY)
    for found in (list(translate._file(path)), list(translate._stream(handle))):
        assert [len(batch) for batch in found] == [3, 3, 2]
        assert [line for batch in found for line in batch] == [str(number) for number in range(8)]
    os.close(handle)


def test_a_byte_order_mark_is_no_text_and_u2028_is_no_line_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffone\u2028still one\ntwo\n".encode())
    assert list(translate._file(tmp_path / "a")) == [["one\u2028still one", "two"]]
    with pytest.raises(CorpusError, match=r"^x:2: byte 0xe9 at position 3"):
        translate._decode(b"caf\xe9"[1:], "x", 2)


def test_the_prompt_answers_until_it_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["Guten Tag!", "   "])

    def answer(_: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    translate._prompt(lambda lines: [line.upper() for line in lines], Direction("de", "en"))
    assert capsys.readouterr().out == "en  GUTEN TAG!\n\n"


def test_who_stops_reading_is_not_told_of_it(toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "many.de").write_text("Ja\n" * 3000)
    program = [sys.executable, "-m", "fedmt", "translate", str(toy_run), "-i", str(tmp_path / "many.de")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 1
    assert said == b""


@pytest.mark.parametrize(
    ("known", "asked", "chosen"),
    [
        ([("de", "en")], None, ("de", "en")),
        ([("de", "en")], ("de", "en"), ("de", "en")),
        ([("de", "en")], ("de-AT", "en"), ("de", "en")),
        ([("de", "en"), ("en", "de")], ("en", "de"), ("en", "de")),
        ([], ("de", "en"), ("de", "en")),
    ],
)
def test_the_direction_is_the_one_asked_for_or_the_only_one(
    toy_engine: Path, known: list[tuple[str, str]], asked: tuple[str, str] | None, chosen: tuple[str, str]
) -> None:
    loaded, _ = open_engine(str(toy_engine))
    loaded = loaded.describe(directions=tuple(Direction(*one) for one in known))
    assert translate.way("toy", loaded, Direction(*asked) if asked else None) == chosen


def test_json_of_a_translation_is_not_escaped(toy_run: Path, here: Path, call: Call) -> None:
    (here / "a.de").write_text("Grüße\n", encoding="utf-8")
    line = call("translate", toy_run, "-i", "a.de", "--json").out
    assert '"Grüße"' in line
    assert json.loads(line)["source"] == "Grüße"
