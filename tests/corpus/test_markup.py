"""What holds for every XML format: encodings, damage, and what an enemy might write. Shown on TMX."""

import gzip
from pathlib import Path

import pytest

from fedmt.corpus import tmx
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def body(source: str = "Käse", target: str = "cheese") -> str:
    unit = f'<tu><tuv xml:lang="de"><seg>{source}</seg></tuv>\n<tuv xml:lang="en"><seg>{target}</seg></tuv></tu>'
    return f'<tmx version="1.4"><header/><body>\n{unit}\n</body></tmx>'


def read(folder: Path, content: bytes | str) -> list[Pair]:
    path = folder / "m.tmx"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(tmx.pairs(path, DE_EN))


def refused(folder: Path, content: bytes | str) -> str:
    with pytest.raises(CorpusError) as caught:
        read(folder, content)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(folder / "m.tmx"))
    return message.removeprefix(str(folder / "m.tmx"))


@pytest.mark.parametrize(
    ("stated", "encoding"),
    [
        ("UTF-8", "utf-8"),
        ("UTF-8", "utf-8-sig"),
        ("UTF-16", "utf-16"),
        ("utf-8", "utf-16"),  # the mark at its start is what counts
        ("Unicode", "utf-16"),
        ("UTF-32", "utf-32"),
        ("ISO-8859-1", "latin-1"),
        ("windows-1252", "cp1252"),
        ("GB18030", "gb18030"),
        ("EUC-JP", "euc-jp"),
    ],
)
def test_an_encoding_that_the_file_states_is_read(tmp_path: Path, stated: str, encoding: str) -> None:
    word = "チーズ" if encoding == "euc-jp" else "Käse"
    text = f'<?xml version="1.0" encoding="{stated}"?>\n' + body(word)
    assert read(tmp_path, text.encode(encoding)) == [Pair(word, "cheese")]


def test_a_character_split_between_two_reads_stays_whole(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="EUC-JP"?>' + body("a" + "チーズ" * 40_000)
    assert read(tmp_path, text.encode("euc-jp")) == [Pair("a" + "チーズ" * 40_000, "cheese")]


def test_a_segment_longer_than_any_buffer_stays_whole(tmp_path: Path) -> None:
    assert read(tmp_path, body("ä" * 300_000)) == [Pair("ä" * 300_000, "cheese")]


def test_references_and_sections_are_text(tmp_path: Path) -> None:
    assert read(tmp_path, body("&#x4b;&#228;se &amp; <![CDATA[<b>]]><!-- no --><?no ?>!")) == [
        Pair("Käse & <b>!", "cheese")
    ]


def test_an_external_dtd_is_accepted_and_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "tmx14.dtd").write_text('<!ENTITY who "the DTD">')
    assert read(tmp_path, HEAD + '<!DOCTYPE tmx SYSTEM "tmx14.dtd">' + body()) == [Pair("Käse", "cheese")]
    assert read(tmp_path, HEAD + '<!DOCTYPE tmx PUBLIC "x" "http://127.0.0.1:9/x.dtd">' + body()) == [
        Pair("Käse", "cheese")
    ]
    message = refused(tmp_path, HEAD + '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n' + body("&who;"))
    assert message.startswith(":4: refers to the entity &who;, which XML does not know")


@pytest.mark.parametrize(
    ("declaration", "name"),
    [
        ('<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">', "a"),
        ('<!ENTITY secret SYSTEM "file:///etc/passwd">', "secret"),
        ('<!ENTITY far SYSTEM "http://127.0.0.1:9/">', "far"),
        ('<!ENTITY % sub SYSTEM "http://127.0.0.1:9/evil.dtd"> %sub;', "sub"),
        ('<!ENTITY nbsp "&#160;">', "nbsp"),
    ],
)
def test_entity_declarations_are_refused(tmp_path: Path, declaration: str, name: str) -> None:
    message = refused(tmp_path, HEAD + f"<!DOCTYPE tmx [\n{declaration}\n]>" + body(f"&{name};"))
    assert message == f":3: declares the entity {name!r}; entity declarations are refused, whatever they hold"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (body().replace("</seg>", "", 1), ":2: not well-formed XML: mismatched tag"),
        (body("a < b"), ":2: not well-formed XML: not well-formed (invalid token)"),
        (body("a & b"), ":2: not well-formed XML: not well-formed (invalid token)"),
        (body("a &nbsp; b"), ":2: not well-formed XML: undefined entity"),
        (body("&#1;"), ":2: not well-formed XML: reference to invalid character number"),
        (body()[:60], ":2: the file ends too soon (unclosed token)"),
        (body().partition("Käse")[0], ":2: the file ends too soon (no element found)"),
        (body() + "<x/>", ":4: not well-formed XML: junk after document element"),
        ("de\ten\n", ":1: not well-formed XML: syntax error"),
        ("<html></html>", ":1: is not TMX: its root is <html>, should be <tmx>"),
        (b"\xef\xbb\xbf", ":1: the file ends too soon (no element found)"),
        (
            (HEAD + body("schön")).encode("latin-1"),
            ":3: byte 0xf6 at position 32 is not of its encoding (UTF-8 where it states none)",
        ),
        (
            body("sch\xf6n").encode("latin-1"),
            ":2: byte 0xf6 at position 32 is not of its encoding (UTF-8 where it states none)",
        ),
        ('<?xml version="1.0" encoding="klingon"?>' + body(), ":1: states the encoding 'klingon', which is not known"),
        ('<?xml version="1.0" encoding="base64"?>' + body(), ":1: states the encoding 'base64', which is not known"),
        (b'<?xml version="1.0" encoding="EUC-JP"?>\n\xff' + body().encode(), ": after line 1: byte 0xff is not EUC_JP"),
        (gzip.compress(body().encode())[:-20], ": the gzip file is cut off"),
        (gzip.compress(body().encode())[:-8] + b"8 bytes!", ": the gzip file is damaged"),
        (b"", ": is empty"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, content: bytes | str, message: str) -> None:
    assert refused(tmp_path, content).startswith(message)


def test_pairs_come_before_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.tmx"
    text = body()
    unit = text[text.index("<tu>") : text.index("</tu>") + 5]
    path.write_text(text.replace(unit, unit * 2000)[:-30])
    pairs = tmx.pairs(path, DE_EN)
    assert next(pairs) == Pair("Käse", "cheese")
    with pytest.raises(CorpusError, match="ends too soon"):
        list(pairs)
