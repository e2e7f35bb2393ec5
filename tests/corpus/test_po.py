import gzip
from pathlib import Path

import polib
import pytest

from fedmt.corpus import po
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
EN_DE = Direction("en", "de")


def header(language: str = "de", *lines: str) -> str:
    fields = ["Content-Type: text/plain; charset=UTF-8", f"Language: {language}", *lines]
    return 'msgid ""\nmsgstr ""\n' + "".join(f'"{field}\\n"\n' for field in fields) + "\n"


def entry(msgid: str, msgstr: str, before: str = "") -> str:
    return f'{before}msgid "{msgid}"\nmsgstr "{msgstr}"\n\n'


def put(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def compiled(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    polib.pofile(text).save_as_mofile(str(path))
    return str(path)


def read(folder: Path, text: str, direction: Direction = EN_DE) -> list[Pair]:
    return list(po.pairs(put(folder / "app.po", text), direction))


HELLO = entry("Hello", "Hallo")


def test_the_msgid_is_english_and_the_header_says_the_other_language(tmp_path: Path) -> None:
    assert read(tmp_path, header("de_DE") + HELLO) == [Pair("Hello", "Hallo")]
    assert read(tmp_path, header() + HELLO, DE_EN) == [Pair("Hallo", "Hello")]


def test_the_header_may_name_another_source_language(tmp_path: Path) -> None:
    text = header("fr", "X-Source-Language: de") + entry("Hallo", "Bonjour")
    assert read(tmp_path, text, Direction("de", "fr")) == [Pair("Hallo", "Bonjour")]


def test_without_a_header_the_name_or_the_folder_says_the_language(tmp_path: Path) -> None:
    for name in ("de.po", "app.de.po", "de/LC_MESSAGES/app.po"):
        assert list(po.pairs(put(tmp_path / name, HELLO), EN_DE)) == [Pair("Hello", "Hallo")]


def test_fuzzy_obsolete_and_untranslated_entries_are_left_out(tmp_path: Path) -> None:
    text = (
        header()
        + entry("fuzzy", "x", "#, python-format, fuzzy\n")
        + '#~ msgid "old"\n#~ msgstr "alt"\n\n'
        + entry("empty", "")
        + HELLO
    )
    assert read(tmp_path, text) == [Pair("Hello", "Hallo")]


def test_continuations_and_escapes_are_text(tmp_path: Path) -> None:
    text = header() + 'msgid ""\n"one \\"two\\"\\n"\n"three\\t\\\\n"\nmsgstr "eins\\n"\n"zwei\u2028drei\x0b"\n'
    assert read(tmp_path, text) == [Pair('one "two"\nthree\t\\n', "eins\nzwei\u2028drei\x0b")]


def test_one_msgid_in_two_contexts_is_two_pairs(tmp_path: Path) -> None:
    text = header() + entry("May", "Mai", 'msgctxt "month"\n') + entry("May", "darf", 'msgctxt "verb"\n')
    assert read(tmp_path, text) == [Pair("May", "Mai"), Pair("May", "darf")]


PLURAL = 'msgid "{} file"\nmsgid_plural "{} files"\n'


@pytest.mark.parametrize(
    ("rule", "forms", "pairs"),
    [
        ("nplurals=2; plural=(n != 1);", ["1 Datei", "n Dateien"], [("{} file", "1 Datei"), ("{} files", "n Dateien")]),
        (None, ["1 Datei", "n Dateien"], [("{} file", "1 Datei"), ("{} files", "n Dateien")]),
        ("nplurals=1; plural=0;", ["n"], [("{} files", "n")]),
        (
            "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);",
            ["zero", "one", "two", "few", "many", "other"],
            [("{} file", "one"), ("{} files", "few")],
        ),
        ("nplurals=2; plural=(n != 1);", ["", "n Dateien"], [("{} files", "n Dateien")]),
    ],
)
def test_plural_forms_pair_by_the_rule(
    tmp_path: Path, rule: str | None, forms: list[str], pairs: list[tuple[str, str]]
) -> None:
    lines = [f"Plural-Forms: {rule}"] if rule else []
    text = header("de", *lines) + PLURAL + "".join(f'msgstr[{index}] "{form}"\n' for index, form in enumerate(forms))
    assert read(tmp_path, text) == pairs
    if all(forms):  # others do not get into a compiled catalogue
        assert list(po.pairs(compiled(tmp_path / "app.mo", text), EN_DE)) == pairs


def test_a_compiled_catalogue_reads_as_its_source(tmp_path: Path) -> None:
    text = header() + entry("May", "Mai", 'msgctxt "month"\n') + HELLO + entry("fuzzy", "x", "#, fuzzy\n")
    assert sorted(po.pairs(compiled(tmp_path / "app.mo", text), EN_DE)) == sorted(read(tmp_path, text))


def test_gzip_and_other_charsets_are_read(tmp_path: Path) -> None:
    text = header().replace("UTF-8", "ISO-8859-15") + entry("price", "10 €")
    path = tmp_path / "app.po.gz"
    path.write_bytes(gzip.compress(text.encode("iso-8859-15")))
    assert list(po.pairs(str(path), EN_DE)) == [Pair("price", "10 €")]


def test_a_default_in_a_comment_is_the_msgids_text(tmp_path: Path) -> None:
    text = header() + entry("label_login", "Anmelden", '#. Default: "Sign in to \\"${site}\\""\n')
    assert read(tmp_path, text) == [Pair('Sign in to "${site}"', "Anmelden")]


def test_keys_are_not_text(tmp_path: Path) -> None:
    text = header() + entry("login.title", "Anmelden") + entry("login.button.ok", "Gut") + HELLO
    with pytest.raises(
        CorpusError, match=r"its msgids are keys \('login\.title'\), not text; name the catalogues of both"
    ):
        read(tmp_path, text)


def test_where_the_header_states_the_source_language_the_msgids_are_text(tmp_path: Path) -> None:
    assert read(tmp_path, header("de", "X-Source-Language: en") + entry("and/or", "und/oder")) == [
        Pair("and/or", "und/oder")
    ]


def test_two_catalogues_of_one_project_are_joined_on_their_msgids(tmp_path: Path) -> None:
    put(tmp_path / "de" / "app.po", header() + entry("a.b", "Anmelden") + entry("c.d", "Nur deutsch"))
    put(tmp_path / "fr" / "app.po", header("fr") + entry("a.b", "Connexion") + entry("e.f", "Seulement"))
    put(tmp_path / "en" / "app.po", header("en") + entry("a.b", "Sign in"))
    pattern = str(tmp_path / "{}" / "app.po")
    assert list(po.pairs(pattern, Direction("de", "fr"))) == [Pair("Anmelden", "Connexion")]
    assert list(po.pairs(pattern, DE_EN)) == [Pair("Anmelden", "Sign in")]


def test_in_a_join_an_empty_catalogue_of_the_msgids_language_stands_for_the_msgids(tmp_path: Path) -> None:
    plural = PLURAL + 'msgstr[0] "{0}"\nmsgstr[1] "{1}"\n'
    put(tmp_path / "de.po", header() + HELLO + plural.replace("{0}", "Datei").replace("{1}", "Dateien"))
    put(tmp_path / "en.po", header("en") + entry("Hello", ""))
    assert list(po.pairs(str(tmp_path / "{}.po"), DE_EN)) == [
        Pair("Hallo", "Hello"),
        Pair("Datei", "{} file"),
        Pair("Dateien", "{} files"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (header("fr") + HELLO, ": no pair of en-de; it translates en into fr"),
        (HELLO, ": its language is not stated; give it a `Language:` header"),
        (header() + entry("a", ""), ": none of its 1 entries is translated"),
        (header() + "msgid Hello\n", ":6: not a PO file: should be a comment, or a keyword and a quoted string"),
        (header() + 'msgstr "b"\n', ":6: not a PO file: a line out of order"),
        (header() + HELLO + 'msgid "a\nmsgstr "b"\n', ":9: not a PO file: should be"),
        (header() + 'msgid "a "quoted" b"\nmsgstr "c"\n', ":6: not a PO file: should be"),
        (header() + HELLO + "Hallo Welt\n", ":9: not a PO file: should be"),
        (header().replace("UTF-8", "klingon") + HELLO, ": states the charset 'klingon', which is not known"),
        (header("de", "Plural-Forms: nplurals=2; plural=open(n);") + HELLO, ": the header Plural-Forms has no rule"),
        (header("de", "Plural-Forms: nplurals=2; plural=1/0;") + HELLO, ": the header Plural-Forms has no rule"),
        ("\ufeff", ": its language is not stated"),
    ],
)
def test_a_wrong_catalogue_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError) as caught:
        read(tmp_path, text)
    assert f"app.po{message}" in str(caught.value)


def test_a_wrong_byte_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "de.po"
    path.write_bytes((header() + entry("a", "ö")).encode("latin-1"))
    with pytest.raises(CorpusError, match=r"de\.po:7: byte 0xf6 at position 9 is not UTF-8"):
        list(po.pairs(str(path), EN_DE))


@pytest.mark.parametrize("kept", [4, 20, 40, -5])
def test_a_compiled_catalogue_that_is_cut_is_refused(tmp_path: Path, kept: int) -> None:
    path = Path(compiled(tmp_path / "de.mo", header() + HELLO))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CorpusError, match=r"de\.mo: "):
        list(po.pairs(str(path), EN_DE))
