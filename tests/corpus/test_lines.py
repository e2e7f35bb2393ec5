import gzip
from pathlib import Path

import pytest

from fedmt.corpus import lines
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def moses(prefix: Path, direction: Direction = DE_EN) -> list[Pair]:
    return list(lines.moses(str(prefix), direction))


def test_the_sides_are_paired_line_by_line(tmp_path: Path) -> None:
    put(tmp_path, train__de="Hallo\nWelt\n", train__en="Hello\nWorld\n")
    assert moses(tmp_path / "train") == [Pair("Hallo", "Hello"), Pair("Welt", "World")]
    assert moses(tmp_path / "train", Direction("en", "de")) == [Pair("Hello", "Hallo"), Pair("World", "Welt")]


def test_each_side_may_be_gzipped_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "train.de.gz").write_bytes(gzip.compress("Käse\n".encode()))
    (tmp_path / "train.en").write_bytes(gzip.compress(b"cheese\n"))
    assert moses(tmp_path / "train") == [Pair("Käse", "cheese")]


def test_a_variant_serves_where_the_exact_code_is_missing(tmp_path: Path) -> None:
    put(tmp_path, train__de_AT="Jänner\n", train__en="January\n", train__en_GB="other\n")
    assert moses(tmp_path / "train") == [Pair("Jänner", "January")]


def test_two_variants_are_a_question_and_not_a_choice(tmp_path: Path) -> None:
    put(tmp_path, train__de_AT="Jänner\n", train__de_DE="Januar\n", train__en="January\n")
    with pytest.raises(CorpusError, match="de_AT, de_DE all serve for de"):
        moses(tmp_path / "train")


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    put(tmp_path, x__de="a\u2028b\x0bc\x85d\r\ne\rf", x__en="1\r\n2")
    assert moses(tmp_path / "x") == [Pair("a\u2028b\x0bc\x85d", "1"), Pair("e\rf", "2")]


def test_an_empty_line_is_a_pair_for_the_cleaner(tmp_path: Path) -> None:
    put(tmp_path, x__de="a\n\nb\n", x__en="1\n2\n3\n")
    assert moses(tmp_path / "x") == [Pair("a", "1"), Pair("", "2"), Pair("b", "3")]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    put(tmp_path, x__de="\ufeffa\n", x__en="1\n")
    assert moses(tmp_path / "x") == [Pair("a", "1")]


def test_pairs_come_before_the_end_is_read(tmp_path: Path) -> None:
    put(tmp_path, x__de="a\nb\n", x__en="1\n")
    pairs = lines.moses(str(tmp_path / "x"), DE_EN)
    assert next(pairs) == Pair("a", "1")
    with pytest.raises(CorpusError, match=r"x\.de and .*x\.en: 2 and 1 lines; both must have as many"):
        next(pairs)


def test_unequal_sides_say_both_whole_lengths(tmp_path: Path) -> None:
    put(tmp_path, x__de="a\n", x__en="1\n2\n3\n4")
    with pytest.raises(CorpusError, match=r"1 and 4 lines"):
        moses(tmp_path / "x")


def test_a_pattern_names_the_language_anywhere(tmp_path: Path) -> None:
    put(tmp_path, **{"text.de.txt": "a\n", "text.en.txt": "1\n", "de/a.txt": "b\n", "en_GB/a.txt": "2\n"})
    assert moses(tmp_path / "text.{}.txt") == [Pair("a", "1")]
    assert moses(tmp_path / "{}/a.txt") == [Pair("b", "2")]
    (tmp_path / "de" / "b.txt.gz").write_bytes(gzip.compress(b"c\n"))
    put(tmp_path, **{"en_GB/b.txt": "3\n"})
    assert moses(tmp_path / "{}/b.txt") == [Pair("c", "3")]


def test_missing_sides_say_what_was_looked_for_and_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, x__fr="a\n", x__en="1\n")
    with pytest.raises(CorpusError, match=r"x\.de and .*x\.en: no such files for de.*there is en, fr"):
        moses(tmp_path / "x")


def test_a_folder_of_the_prefix_name_does_not_hide_the_files(tmp_path: Path) -> None:
    put(tmp_path, x__de="a\n", x__en="1\n")
    (tmp_path / "x").mkdir()
    assert moses(tmp_path / "x") == [Pair("a", "1")]


def test_a_wrong_byte_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"gut\nsch\xf6n\n")
    with pytest.raises(CorpusError, match=r"x:2: byte 0xf6 at position 4 is not UTF-8"):
        list(lines.numbered(tmp_path / "x"))


def test_a_wrong_byte_of_a_whole_file_is_named_with_its_place_too(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"x:3: byte 0xf6 at position 4 is not UTF-8"):
        lines.decode(b"gut\n\nsch\xf6n\n", tmp_path / "x", 1)
