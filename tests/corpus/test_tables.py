import json
from pathlib import Path

import pytest

from fedmt.corpus import tables
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
EN_DE = Direction("en", "de")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def tsv(file: Path, text: str, direction: Direction = DE_EN) -> list[Pair]:
    file.write_bytes(text.encode())
    return list(tables.tsv(file, direction))


def jsonl(file: Path, *rows: object, direction: Direction = DE_EN) -> list[Pair]:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(tables.jsonl(file, direction))


def test_two_columns_are_source_and_target(file: Path) -> None:
    assert tsv(file, 'Hallo\tHello\n"Zitat\t"quote\n') == [Pair("Hallo", "Hello"), Pair('"Zitat', '"quote')]


def test_a_header_of_languages_chooses_the_columns(file: Path) -> None:
    text = "id\ten-GB\tscore\tde\n7\tHello\t0.9\tHallo\n"
    assert tsv(file, text) == [Pair("Hallo", "Hello")]
    assert tsv(file, text, EN_DE) == [Pair("Hello", "Hallo")]


def test_the_exact_column_wins_over_a_variant(file: Path) -> None:
    assert tsv(file, "de-AT\tde\ten\nJänner\tJanuar\tJanuary\n") == [Pair("Januar", "January")]


def test_a_header_may_say_source_and_target(file: Path) -> None:
    assert tsv(file, "Target\tSource\nHello\tHallo\n") == [Pair("Hallo", "Hello")]


def test_a_first_row_of_words_is_no_header(file: Path) -> None:
    assert tsv(file, "nein\tno\nja\tyes\n") == [Pair("nein", "no"), Pair("ja", "yes")]


def test_blank_lines_are_passed_over_and_empty_cells_are_not(file: Path) -> None:
    assert tsv(file, "a\tb\r\n\r\n\tc\r\n") == [Pair("a", "b"), Pair("", "c")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\nc\n", ":2: 1 column, should be two, source and target"),
        ("a\tb\nc\td\te\n", ":2: 3 columns, should be two"),
        ("id\tde\ten\nc\td\n", ":2: 2 columns, should be 3, as the header has"),
        ("fr\ten\nbonjour\thello\n", ":1: no pair of de-en; the header names fr, en"),
        ("de\ten\n", ": holds no pair below its header"),
        ("\n\n", ": holds no pair"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(file: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError) as caught:
        tsv(file, text)
    assert f"{file}{message}" in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        {"de": "Hallo", "en": "Hello"},
        {"en-US": "Hello", "deu": "Hallo", "score": 0.5},
        {"id": 1, "translation": {"de": "Hallo", "en": "Hello"}},
        {"source": "Hallo", "target": "Hello"},
        {"src": "Hallo", "tgt": "Hello"},
    ],
)
def test_each_shape_of_row_is_known(file: Path, row: object) -> None:
    assert jsonl(file, row) == [Pair("Hallo", "Hello")]


def test_languages_turn_with_the_direction_and_source_and_target_do_not(file: Path) -> None:
    assert jsonl(file, {"de": "Hallo", "en": "Hello"}, direction=EN_DE) == [Pair("Hello", "Hallo")]
    assert jsonl(file, {"source": "Hello", "target": "Hallo"}, direction=EN_DE) == [Pair("Hello", "Hallo")]


def test_rows_without_both_sides_are_passed_over(file: Path) -> None:
    rows = [{"de": "a", "fr": "b"}, {"de": "c", "en": None}, {"de": "d", "en": "e", "fr": "f"}]
    assert jsonl(file, *rows) == [Pair("d", "e")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"de": "a", "en": "b"}\n{"de": "a"\n', ":2: not JSON: Expecting ',' delimiter at position 11"),
        ('["a", "b"]\n', ":1: is a list; each line must be one object"),
        ('"a"\n', ":1: is text; each line"),
        ('{"de": 3, "en": "b"}\n', ":1: 'de' is a number; it must be text"),
        ('{"de": {"x": 1}, "en": "b"}\n', ":1: 'de' is an object; it must be text"),
        ('{"de": "\\ud83d", "en": "b"}\n', ":1: 'de' holds half of a surrogate pair"),
        ('{"fr": "a", "en": "b"}\n', ": no pair of de-en; its keys are 'fr', 'en'"),
        ("\n", ": no pair of de-en; it has no row"),
        ("[" * 100_000 + "\n", ":1: not JSON"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(CorpusError) as caught:
        list(tables.jsonl(file, DE_EN))
    assert f"{file}{message}" in str(caught.value)
