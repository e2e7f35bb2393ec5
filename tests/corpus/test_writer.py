import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.corpus import reader, writer
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
EN_DE = Direction("en", "de")
NAMES = {"moses": "train", "tsv": "x.tsv", "jsonl": "x.jsonl", "tmx": "x.tmx", "xliff": "x.xlf", "po": "x.po"}
EXACT = ("jsonl", "tmx", "xliff", "po")
NASTY = [
    Pair("Er sagte: \"Ja\" und 'nein'", "He said “yes”"),
    Pair("Tab\there", "new\nline\r\nand\rreturn"),
    Pair("a & b < c > d &amp; ]]> <seg>", "<!-- no --> <![CDATA[x]]> &#10;"),
    Pair("👩‍👩‍👧 Familie 𝄞", "family \U0001f600"),
    Pair("שלום, עולם \u202bx\u202c", "مرحبا، عالم \u200f"),
    Pair("\\n is no line break, \\\\ nor \\t", '%s {0} $x \\"'),
    Pair("  spaces  around ", "\u00a0no-break\u2028separators\u0085\x0b\x0c"),
    Pair("Hallo", "Hello"),
    Pair("Hallo", "Hi"),
    Pair("de", "en"),
]


def written(folder: Path, format: str, pairs: list[Pair], direction: Direction = DE_EN, ending: str = "") -> list[Pair]:
    path = str(folder / NAMES[format]) + ending
    assert writer.write(path, iter(pairs), DE_EN) == len(pairs)
    return list(reader.read(path.removesuffix(".gz") if format == "moses" else path, direction))


def without(pattern: str, pairs: list[Pair], by: str = " ") -> list[Pair]:
    return [Pair(re.sub(pattern, by, source), re.sub(pattern, by, target)) for source, target in pairs]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("format", EXACT)
def test_nasty_text_comes_back_as_it_was(tmp_path: Path, format: str, ending: str) -> None:
    expected = without("[\x0b\x0c]", NASTY, "") if format in ("tmx", "xliff") else NASTY
    assert written(tmp_path, format, NASTY, ending=ending) == expected
    assert written(tmp_path, format, NASTY, EN_DE, ending) == [Pair(target, source) for source, target in expected]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(("format", "breaks"), [("moses", "\r\n|[\r\n]"), ("tsv", "\r\n|[\r\n\t]")])
def test_in_lines_what_would_break_them_becomes_a_space(tmp_path: Path, format: str, breaks: str, ending: str) -> None:
    assert written(tmp_path, format, NASTY, ending=ending) == without(breaks, NASTY)


TEXT = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=40)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT).map(Pair._make), min_size=1, max_size=8))
def test_any_text_comes_back(pairs: list[Pair]) -> None:
    """XLIFF and PO take what is blank for untranslated, and XML has no control characters."""
    not_xml = "[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"
    with TemporaryDirectory() as name:
        folder = Path(name)
        assert written(folder, "jsonl", pairs) == pairs
        assert written(folder, "po", pairs) == pairs
        assert written(folder, "moses", pairs) == without("\r\n|[\r\n]", pairs)
        assert written(folder, "tsv", pairs) == without("\r\n|[\r\n\t]", pairs)
        plain = without(not_xml, pairs, "")
        assert written(folder, "tmx", pairs) == plain
        full = [pair for pair in plain if pair.source.strip() and pair.target.strip()]
        if full:
            assert written(folder, "xliff", pairs) == full


def test_a_pattern_may_be_written_too(tmp_path: Path) -> None:
    assert writer.write(tmp_path / "text.{}.txt", NASTY[:1], DE_EN, "moses") == 1
    assert (tmp_path / "text.en.txt").read_text(encoding="utf-8") == NASTY[0].target + "\n"


def test_gzip_is_chosen_by_the_name_and_is_the_same_each_time(tmp_path: Path) -> None:
    writer.write(tmp_path / "a.tmx.gz", NASTY, DE_EN)
    writer.write(tmp_path / "b.tmx.gz", NASTY, DE_EN)
    writer.write(tmp_path / "c.tmx", NASTY, DE_EN)
    assert (tmp_path / "a.tmx.gz").read_bytes() == (tmp_path / "b.tmx.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.tmx.gz").read_bytes()) == (tmp_path / "c.tmx").read_bytes()
    writer.write(tmp_path / "m.gz", NASTY, DE_EN)
    assert sorted(path.name for path in tmp_path.glob("m*")) == ["m.de.gz", "m.en.gz"]


def failing() -> Iterator[Pair]:
    yield Pair("new", "new")
    raise CorpusError("x.tmx:7: broken")


@pytest.mark.parametrize("format", writer.FORMATS)
def test_what_breaks_off_leaves_what_was_there(tmp_path: Path, format: str) -> None:
    written(tmp_path, format, NASTY)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CorpusError, match=r"x\.tmx:7"):
        writer.write(tmp_path / NAMES[format], failing(), DE_EN)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_pairs_are_written_as_they_come(tmp_path: Path) -> None:
    """A million pairs would not fit where a thousand do: the writer never holds them all."""
    alive = 0
    most = 0

    class Counted(str):
        __slots__ = ()

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def pairs() -> Iterator[Pair]:
        nonlocal alive, most
        for number in range(20_000):
            alive += 1
            most = max(most, alive)
            yield Pair(Counted(number), "x")

    for format, name in NAMES.items():
        assert writer.write(tmp_path / name, pairs(), DE_EN) == 20_000, format
    assert most < 3_000


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("x.mo", None, "a compiled catalogue cannot be written"),
        ("x", "hub", "the format 'hub' cannot be written; those that can are moses, tsv"),
        ("file/x.tmx", None, "cannot be written: "),
    ],
)
def test_what_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, name: str, format: str | None, message: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CorpusError) as caught:
        writer.write(tmp_path / name, NASTY, DE_EN, format)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
