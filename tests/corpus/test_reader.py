import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmt.corpus import reader
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
TMX = (
    '<tmx version="1.4"><header/><body><tu><tuv xml:lang="de"><seg>Hallo</seg></tuv>'
    '<tuv xml:lang="en"><seg>Hello</seg></tuv></tu></body></tmx>'
)
XLIFF = (
    '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
    '<file original="x" source-language="de" target-language="en"><body>'
    '<trans-unit id="1"><source>Hallo</source><target>Hello</target></trans-unit></body></file></xliff>'
)
PO = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: de\\n"\n\nmsgid "Hello"\nmsgstr "Hallo"\n'
CONTENTS = {
    "x.tsv": "Hallo\tHello\n",
    "x.jsonl": '{"de": "Hallo", "en": "Hello"}\n',
    "x.tmx": TMX,
    "x.xlf": XLIFF,
    "x.po": PO,
}


@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_is_told_by_its_ending_and_read_plain_or_gzipped(tmp_path: Path, name: str) -> None:
    content = CONTENTS[name].encode()
    for path, written in ((tmp_path / name, content), (tmp_path / f"{name}.gz", gzip.compress(content))):
        path.write_bytes(written)
        assert list(reader.read(str(path), DE_EN)) == [Pair("Hallo", "Hello")]
        path.write_bytes(gzip.compress(content))  # packed, whatever the name says
        assert list(reader.read(str(path), DE_EN)) == [Pair("Hallo", "Hello")]


@pytest.mark.parametrize("name", CONTENTS)
def test_a_byte_order_mark_is_no_part_of_any_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + CONTENTS[name].encode())
    assert list(reader.read(str(tmp_path / name), DE_EN)) == [Pair("Hallo", "Hello")]


@pytest.mark.parametrize("name", CONTENTS)
def test_windows_line_ends_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENTS[name].replace("\n", "\r\n").encode())
    assert list(reader.read(str(tmp_path / name), DE_EN)) == [Pair("Hallo", "Hello")]


def test_a_format_may_be_named_by_argument_or_before_the_name(tmp_path: Path) -> None:
    (tmp_path / "dump.txt").write_text(CONTENTS["x.tsv"])
    assert list(reader.read(str(tmp_path / "dump.txt"), DE_EN, "tsv")) == [Pair("Hallo", "Hello")]
    assert list(reader.read(f"tsv:{tmp_path}/dump.txt", DE_EN)) == [Pair("Hallo", "Hello")]


@pytest.mark.parametrize(
    ("source", "format"),
    [
        ("a/b.TMX", "tmx"),
        ("b.sdlxliff.gz", "xliff"),
        ("locale/{}/app.mo", "po"),
        ("news/train", "moses"),
        ("news/train.v2", "moses"),
        ("text.{}.txt", "moses"),
        ("hub:somewhere", "hub"),
        ("opus:Europarl-v8", "opus"),
        ("tsv:x.tmx", "tsv"),
        ("odd:name", "moses"),
    ],
)
def test_the_format_is_detected_from_the_name(source: str, format: str) -> None:
    assert reader.detect(source) == format


def bad(name: str, content: bytes | str | None, message: str) -> Callable[[Path], tuple[str, str]]:
    def make(folder: Path) -> tuple[str, str]:
        path = folder / name
        if content is not None:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path), message

    return make


def moses(de: bytes | None, en: bytes | None, message: str) -> Callable[[Path], tuple[str, str]]:
    def make(folder: Path) -> tuple[str, str]:
        for code, content in (("de", de), ("en", en)):
            if content is not None:
                (folder / f"x.{code}").write_bytes(content)
        return str(folder / "x"), message

    return make


def absent(source: str, message: str) -> Callable[[Path], tuple[str, str]]:
    return lambda _: (source, message)


def folder_of(name: str) -> Callable[[Path], tuple[str, str]]:
    def make(folder: Path) -> tuple[str, str]:
        (folder / name).mkdir()
        return str(folder / name), "is a folder; give a file in it, or a Moses prefix"

    return make


CUT = gzip.compress(TMX.encode())[:-12]
BOMB = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
BAD = {
    "tmx missing": bad("x.tmx", None, "there is no such file"),
    "tmx empty": bad("x.tmx", "", "is empty"),
    "tmx folder": folder_of("x.tmx"),
    "tmx mismatched tags": bad("x.tmx", TMX.replace("</tuv>", "", 1), "x.tmx:1: not well-formed XML: mismatched tag"),
    "tmx cut": bad("x.tmx", TMX[:-20], "x.tmx:1: the file ends too soon"),
    "tmx cut gzip": bad("x.tmx.gz", CUT, "the gzip file is cut off"),
    "tmx damaged gzip": bad("x.tmx.gz", gzip.compress(TMX.encode())[:-8] + b"8 bytes!", "the gzip file is damaged"),
    "tmx wrong byte": bad(
        "x.tmx", TMX.replace("Hallo", "Öl").encode("latin-1"), "x.tmx:1: byte 0xd6 at position 63 is not of its"
    ),
    "tmx entity bomb": bad("x.tmx", BOMB + TMX, "declares the entity 'a'"),
    "tmx external entity": bad(
        "x.tmx", '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + TMX, "the entity 'a'"
    ),
    "tmx unknown entity": bad("x.tmx", TMX.replace("Hallo", "&auml;"), "undefined entity"),
    "tmx is HTML": bad("x.tmx", "<html/>", "is not TMX: its root is <html>"),
    "tmx other languages": bad("x.tmx", TMX.replace('"de"', '"fr"'), "no pair of de-en; the file has fr, en"),
    "tmx unknown encoding": bad(
        "x.tmx", '<?xml version="1.0" encoding="klingon"?>' + TMX, "states the encoding 'klingon'"
    ),
    "xliff is TMX": bad("x.xlf", TMX, "is not XLIFF: its root is <tmx>"),
    "xliff other languages": bad("x.xlf", XLIFF.replace('"de"', '"fr"'), "no pair of de-en; the file has fr → en"),
    "xliff untranslated": bad("x.xlf", XLIFF.replace("Hello", ""), "none of its 1 units of de → en is translated"),
    "xliff broken": bad("x.xlf", XLIFF.replace("<target>", "<target"), "x.xlf:1: not well-formed XML"),
    "xliff entity": bad("x.xlf", BOMB.replace("tmx", "xliff") + XLIFF, "declares the entity 'a'"),
    "moses missing": moses(None, None, "no such files for de, neither with .gz nor of a variant"),
    "moses one side missing": moses(
        b"a\n", None, "no such files for en, neither with .gz nor of a variant; there is de"
    ),
    "moses unequal": moses(b"a\nb\n", b"1\n", "2 and 1 lines; both must have as many"),
    "moses wrong byte": moses(b"a\n\xfc\n", b"1\n2\n", "x.de:2: byte 0xfc at position 1 is not UTF-8"),
    "moses UTF-16": moses("a\n".encode("utf-16"), b"1\n", "x.de:1: is UTF-16 or UTF-32; convert the file to UTF-8"),
    "moses empty": moses(b"", b"", "x.de: is empty"),
    "moses packed twice over nothing": moses(gzip.compress(b""), b"1\n", "x.de: is empty"),
    "moses folder": folder_of("x"),
    "moses one side named": bad("x.de", "a\n", "if it is one side of a Moses pair, leave out its language"),
    "unknown ending": bad("x.docx", "a\n", "its ending says no format"),
    "tsv one column": bad("x.tsv", "a\tb\nc\n", "x.tsv:2: 1 column, should be two"),
    "tsv three columns": bad("x.tsv", "a\tb\tc\n", "x.tsv:1: 3 columns, should be two"),
    "tsv other header": bad("x.tsv", "fr\ten\na\tb\n", "x.tsv:1: no pair of de-en; the header names fr, en"),
    "tsv only a header": bad("x.tsv", "de\ten\n", "holds no pair below its header"),
    "tsv wrong byte": bad("x.tsv", b"a\tb\nc\t\xff\n", "x.tsv:2: byte 0xff at position 3 is not UTF-8"),
    "jsonl broken": bad("x.jsonl", '{"de": "a", "en": "b"}\n{"de"\n', "x.jsonl:2: not JSON"),
    "jsonl not objects": bad("x.jsonl", "[1]\n", "x.jsonl:1: is a list; each line must be one object"),
    "jsonl not text": bad("x.jsonl", '{"de": 1, "en": "b"}\n', "x.jsonl:1: 'de' is a number; it must be text"),
    "jsonl other languages": bad("x.jsonl", '{"fr": "a"}\n', "no pair of de-en; its keys are 'fr'"),
    "po broken": bad("x.po", PO + "msgstr\n", "x.po:6: not a PO file"),
    "po other language": bad("x.po", PO.replace(": de", ": fr"), "no pair of de-en; it translates en into fr"),
    "po language unknown": bad("x.po", PO.replace("Language: de\\n", ""), "its language is not stated"),
    "po keys": bad("x.po", PO.replace("Hello", "app.title"), "its msgids are keys ('app.title'), not text"),
    "po untranslated": bad("x.po", PO.replace("Hallo", ""), "none of its 1 entries is translated"),
    "po wrong byte": bad(
        "x.po", PO.replace("Hallo", "Öl").encode("latin-1"), "x.po:5: byte 0xd6 at position 9 is not UTF-8"
    ),
    "mo cut": bad("de.mo", b"\xde\x12\x04\x95\0\0\0\0\5\0\0\0\x1c\0\0\0\x1c\0\0\0", "not a whole MO file"),
    "hub nothing": absent("hub:nowhere", "nowhere: is no dataset saved on disk"),
    "no name": absent("", "a corpus without a name"),
    "unknown format": absent("x", "there is no format 'docx'; there are moses, tsv"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_clear_line_that_names_the_file(tmp_path: Path, case: str) -> None:
    source, message = BAD[case](tmp_path)
    with pytest.raises(CorpusError) as caught:
        list(reader.read(source, DE_EN, "docx" if case == "unknown format" else None))
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert Path(source).name.removeprefix("hub:") in text
    assert caught.value.exit_code == 2


def test_streaming_formats_give_their_first_pair_without_the_rest(tmp_path: Path) -> None:
    unit = TMX[TMX.index("<tu>") : TMX.index("</tu>") + 5]
    rows = json.dumps({"de": "Hallo", "en": "Hello"}) + "\n"
    many = {
        "x.tmx": TMX.replace(unit, unit * 5000)[:-9],
        "x.xlf": XLIFF.replace("</trans-unit>", "</trans-unit>" + " " * 200_000)[:-9],
        "x.tsv": "Hallo\tHello\n" * 5000 + "broken",
        "x.jsonl": rows * 5000 + "broken",
    }
    for name, content in many.items():
        (tmp_path / name).write_text(content)
        pairs = reader.read(str(tmp_path / name), DE_EN)
        assert next(pairs) == Pair("Hallo", "Hello")
        with pytest.raises(CorpusError):
            list(pairs)
