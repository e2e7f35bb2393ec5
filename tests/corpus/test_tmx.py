import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedmt.corpus import tmx
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
EN_DE = Direction("en", "de")


def tuv(lang: str, text: str) -> str:
    return f'<tuv xml:lang="{lang}"><seg>{text}</seg></tuv>'


def read(folder: Path, *units: str, direction: Direction = DE_EN, header: str = '<header srclang="en"/>') -> list[Pair]:
    path = folder / "memory.tmx"
    text = "\n".join(f"<tu>{unit}</tu>" for unit in units)
    path.write_text(f'<tmx version="1.4">{header}<body>{text}</body></tmx>', encoding="utf-8")
    return list(tmx.pairs(path, direction))


def one(folder: Path, seg: str) -> str:
    """The plain text of a segment."""
    [pair] = read(folder, tuv("de", seg) + tuv("en", "x"))
    return pair.source


def test_a_unit_is_a_pair_in_either_order_and_direction(tmp_path: Path) -> None:
    units = (tuv("de", "Hallo") + tuv("en", "Hello"), tuv("en", "World") + tuv("de", "Welt"))
    assert read(tmp_path, *units) == [Pair("Hallo", "Hello"), Pair("Welt", "World")]
    assert read(tmp_path, *units, direction=EN_DE) == [Pair("Hello", "Hallo"), Pair("World", "Welt")]


@pytest.mark.parametrize("header", ['<header srclang="*all*"/>', '<header srclang="fr"/>', ""])
def test_the_source_language_of_the_header_binds_nothing(tmp_path: Path, header: str) -> None:
    assert read(tmp_path, tuv("de", "a") + tuv("en", "b"), header=header) == [Pair("a", "b")]


def test_variants_match_and_the_exact_code_wins(tmp_path: Path) -> None:
    units = (
        tuv("de-AT", "Jänner") + tuv("EN_us", "January"),
        tuv("de-AT", "Jänner") + tuv("de", "Januar") + tuv("en", "January"),
        tuv("de", "Januar") + tuv("de-AT", "Jänner") + tuv("en", "January"),
    )
    assert read(tmp_path, *units) == [Pair("Jänner", "January"), Pair("Januar", "January"), Pair("Januar", "January")]


def test_among_variants_the_one_that_the_file_had_first_wins_throughout(tmp_path: Path) -> None:
    units = (
        tuv("en-GB", "lorry") + tuv("de", "Laster"),
        tuv("en-US", "color") + tuv("en-GB", "colour") + tuv("de", "Farbe"),
        tuv("en-US", "fall") + tuv("de", "Herbst"),
    )
    assert read(tmp_path, *units) == [Pair("Laster", "lorry"), Pair("Farbe", "colour"), Pair("Herbst", "fall")]


def test_of_several_texts_of_one_code_the_first_counts(tmp_path: Path) -> None:
    assert read(tmp_path, tuv("de", "a") + tuv("de", "b") + tuv("en", "1") + tuv("en", "2")) == [Pair("a", "1")]


def test_units_without_both_languages_are_passed_over(tmp_path: Path) -> None:
    units = (tuv("de", "a") + tuv("fr", "b"), tuv("en", "c"), tuv("de", "d") + tuv("fr", "e") + tuv("en", "f"))
    assert read(tmp_path, *units) == [Pair("d", "f")]


def test_the_language_attribute_of_old_files_is_read(tmp_path: Path) -> None:
    old = '<tuv lang="DE-DE"><seg>a</seg></tuv><tuv lang="EN-US"><seg>b</seg></tuv>'
    assert read(tmp_path, old) == [Pair("a", "b")]


def test_notes_and_properties_are_no_text(tmp_path: Path) -> None:
    unit = (
        '<note xml:lang="en">no</note><prop type="x">no</prop>'
        '<tuv xml:lang="de"><note>no</note><prop type="y">no</prop><seg>a</seg></tuv>' + tuv("en", "b")
    )
    assert read(tmp_path, unit) == [Pair("a", "b")]


def test_white_space_and_empty_segments_are_left_to_the_cleaner(tmp_path: Path) -> None:
    assert read(tmp_path, tuv("de", " a\n b ") + tuv("en", "")) == [Pair(" a\n b ", "")]


@pytest.mark.parametrize(
    ("seg", "text"),
    [
        ('<bpt i="1">&lt;b&gt;</bpt>fett<ept i="1">&lt;/b&gt;</ept> und', "fett und"),
        ('vor <ph x="1">%s</ph> nach', "vor  nach"),
        ('ein<it pos="begin">&lt;i&gt;</it>e', "eine"),
        ("die <hi type='term'>wichtige <hi>Sache</hi></hi>!", "die wichtige Sache!"),
        ("a<ut>{\\b }</ut>b", "ab"),
        ("a<ph>&lt;img alt='<sub>ein <ph>x</ph> Bild</sub>'/&gt;</ph>b", "ab"),
        ("a <hi><bpt i='1'>x</bpt>b<ept i='1'>y</ept> c</hi> d", "a b c d"),
        ('Zeile<ph type="lb">&lt;br/&gt;</ph>Zeile', "Zeile Zeile"),
        ("a<ph/>b<ph></ph>c", "abc"),
    ],
)
def test_inline_markup_becomes_plain_text(tmp_path: Path, seg: str, text: str) -> None:
    assert one(tmp_path, seg) == text


def test_no_pair_says_what_the_file_has(tmp_path: Path) -> None:
    unit = tuv("fr-FR", "a") + tuv("en-US", "b") + "<tuv><seg>c</seg></tuv>"
    with pytest.raises(CorpusError, match="no pair of de-en; the file has fr-FR, en-US, text of no stated language"):
        read(tmp_path, unit)
    with pytest.raises(CorpusError, match="no pair of de-en; the file has no language"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["tu", "tuv", "seg"])
def test_a_unit_inside_a_segment_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorpusError, match=rf"memory\.tmx:1: <{name}> inside a <seg>"):
        one(tmp_path, f"a<{name}>b</{name}>")


@pytest.mark.slow
def test_a_large_memory_is_read_in_constant_memory_at_half_the_speed_of_bare_lxml() -> None:
    bench = Path(__file__).parents[2] / "bench" / "tmx.py"
    command = [sys.executable, str(bench), "--segments", "100000", "--runs", "3", "--json"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert result["ratio"]["all"] >= 0.5
    assert result["ratio"]["units"] >= 0.5
    assert result["mb"]["100000"] < result["mb"]["10000"] + 2
