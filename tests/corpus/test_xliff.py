from pathlib import Path

import pytest

from fedmt.corpus import xliff
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
EN_DE = Direction("en", "de")
OLD = 'xmlns="urn:oasis:names:tc:xliff:document:1.2"'
NEW = 'xmlns="urn:oasis:names:tc:xliff:document:2.0"'


def read(folder: Path, text: str, direction: Direction, name: str = "file.xlf") -> list[Pair]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return list(xliff.pairs(path, direction))


def old(folder: Path, *units: str, direction: Direction = EN_DE, name: str = "file.xlf", file: str = "") -> list[Pair]:
    languages = file or 'source-language="en" target-language="de"'
    body = "\n".join(units)
    text = f'<xliff version="1.2" {OLD}><file original="x" {languages}><body>{body}</body></file></xliff>'
    return read(folder, text, direction, name)


def new(folder: Path, *units: str, direction: Direction = EN_DE, root: str = 'srcLang="en" trgLang="de"') -> list[Pair]:
    text = f'<xliff version="2.0" {NEW} {root}><file id="f">{"".join(units)}</file></xliff>'
    return read(folder, text, direction)


def unit(source: str, target: str, attributes: str = "", state: str = "") -> str:
    return f"<trans-unit id='1' {attributes}><source>{source}</source><target {state}>{target}</target></trans-unit>"


def segment(source: str, target: str, attributes: str = "") -> str:
    return f"<segment {attributes}><source>{source}</source><target>{target}</target></segment>"


# ── 1.2 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_unit_is_a_pair_and_turns_with_the_direction(tmp_path: Path) -> None:
    assert old(tmp_path, unit("Hello", "Hallo")) == [Pair("Hello", "Hallo")]
    assert old(tmp_path, unit("Hello", "Hallo"), direction=DE_EN) == [Pair("Hallo", "Hello")]


def test_units_in_groups_are_read_and_their_notes_are_not(tmp_path: Path) -> None:
    inner = unit("a", "b").replace(
        "</trans-unit>", "<note>no</note><context-group><context>no</context></context-group></trans-unit>"
    )
    assert old(tmp_path, f"<group><note>no</note><group>{inner}</group></group>", unit("c", "d")) == [
        Pair("a", "b"),
        Pair("c", "d"),
    ]


def test_language_variants_match(tmp_path: Path) -> None:
    assert old(tmp_path, unit("a", "b"), file='source-language="en-US" target-language="de_AT"') == [Pair("a", "b")]


def test_several_files_of_several_languages_are_told_apart(tmp_path: Path) -> None:
    def file(source: str, target: str, text: str) -> str:
        languages = f'source-language="{source}" target-language="{target}"'
        return f"<file original='x' {languages}><body>{unit(text, text.upper())}</body></file>"

    text = f'<xliff version="1.2" {OLD}>{file("en", "de", "a")}{file("en", "fr", "b")}{file("de", "en", "c")}</xliff>'
    assert read(tmp_path, text, EN_DE) == [Pair("a", "A"), Pair("C", "c")]


def test_alternatives_of_a_unit_are_no_translation(tmp_path: Path) -> None:
    alternative = "<alt-trans><source>x</source><target>y</target></alt-trans></trans-unit>"
    assert old(tmp_path, unit("a", "b").replace("</trans-unit>", alternative)) == [Pair("a", "b")]


@pytest.mark.parametrize(
    "left_out",
    [
        unit("a", "b", 'translate="no"'),
        f'<group translate="no">{unit("a", "b")}</group>',
        unit("a", "b", state='state="new"'),
        unit("a", "b", state='state="needs-translation"'),
        unit("a", "b", state='state="needs-review-translation"'),
        unit("a", ""),
        unit("a", "  "),
        "<trans-unit id='1'><source>a</source></trans-unit>",
        "<bin-unit id='1'><bin-source/><source>a</source><target>b</target></bin-unit>",
    ],
)
def test_what_is_not_translated_is_left_out(tmp_path: Path, left_out: str) -> None:
    assert old(tmp_path, left_out, unit("c", "d")) == [Pair("c", "d")]
    with pytest.raises(CorpusError, match="no pair of en-de"):
        old(tmp_path, left_out)


def test_a_unit_may_be_translatable_in_a_group_that_is_not(tmp_path: Path) -> None:
    inner = unit("a", "b", 'translate="yes"')
    assert old(tmp_path, f'<group translate="no">{inner}</group>') == [Pair("a", "b")]


@pytest.mark.parametrize("state", ["translated", "final", "signed-off", "x-mine"])
def test_other_states_are_translations(tmp_path: Path, state: str) -> None:
    assert old(tmp_path, unit("a", "b", state=f'state="{state}"')) == [Pair("a", "b")]


def test_segments_pair_by_their_mid(tmp_path: Path) -> None:
    text = (
        "<trans-unit id='1'><source>One. Two. Three.</source>"
        "<seg-source><mrk mtype='seg' mid='0'>One.</mrk> <mrk mtype='seg' mid='1'>Two <g id='1'>now</g>.</mrk> "
        "<mrk mtype='seg' mid='2'>Three.</mrk></seg-source>"
        "<target><mrk mtype='seg' mid='1'>Zwei <g id='1'>jetzt</g>.</mrk> <mrk mtype='seg' mid='0'>Eins.</mrk>"
        "<mrk mtype='seg' mid='2'/></target></trans-unit>"
    )
    assert old(tmp_path, text) == [Pair("One.", "Eins."), Pair("Two now.", "Zwei jetzt.")]


def test_segments_on_one_side_only_are_one_text(tmp_path: Path) -> None:
    text = unit("One. Two.", "<mrk mtype='seg' mid='0'>Eins.</mrk> <mrk mtype='seg' mid='1'>Zwei.</mrk>")
    assert old(tmp_path, text) == [Pair("One. Two.", "Eins. Zwei.")]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a <g id='1'>bold <g id='2'>x</g></g> b", "a bold x b"),
        ("a<x id='1'/>b<bx id='2'/>c<ex id='2'/>d", "abcd"),
        ("<bpt id='1'>&lt;b&gt;</bpt>a<ept id='1'>&lt;/b&gt;</ept>", "a"),
        ("a<ph id='1'>%s<sub>not</sub></ph>b<it id='2' pos='open'>&lt;i&gt;</it>c", "abc"),
        ("a<x id='1' ctype='lb'/>b<x id='2' ctype='x-lb'/>c", "a b c"),
        ("a <mrk mtype='term'>word <g id='1'>x</g></mrk> b", "a word x b"),
        ("a &amp; <![CDATA[<b>]]>", "a & <b>"),
    ],
)
def test_inline_markup_of_1_2_becomes_plain_text(tmp_path: Path, markup: str, text: str) -> None:
    assert old(tmp_path, unit(markup, "z")) == [Pair(text, "z")]


def test_the_target_language_may_stand_on_the_target_or_in_the_name(tmp_path: Path) -> None:
    source = 'source-language="en"'
    assert old(tmp_path, unit("a", "b", state='xml:lang="de-DE"'), file=source) == [Pair("a", "b")]
    assert old(tmp_path, unit("a", "b"), file=source, name="messages.de.xlf") == [Pair("a", "b")]
    with pytest.raises(CorpusError, match=r"no pair of en-de; the file has en → \?"):
        old(tmp_path, unit("a", "b"), file=source)


def test_prefixed_and_missing_namespaces_are_read_and_foreign_ones_are_not(tmp_path: Path) -> None:
    body = (
        "<{0}file original='x' source-language='en' target-language='de'><{0}body><{0}trans-unit id='1'>"
        "<{0}source>a</{0}source><{0}target>b<f:target>no</f:target></{0}target>"
        "<f:source>no</f:source><f:target>no</f:target></{0}trans-unit></{0}body></{0}file>"
    )
    prefixed = f'<q:xliff version="1.2" {OLD.replace("xmlns", "xmlns:q")} xmlns:f="urn:f">{body.format("q:")}</q:xliff>'
    plain = f'<xliff version="1.2" xmlns:f="urn:f">{body.format("")}</xliff>'
    assert read(tmp_path, plain, EN_DE)[0].source == "a"
    assert read(tmp_path, prefixed, EN_DE)[0].source == "a"


# ── 2.0 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_segment_of_a_unit_is_a_pair(tmp_path: Path) -> None:
    text = (
        "<unit id='1'><notes><note>no</note></notes><originalData><data id='d'>no</data></originalData>"
        + segment("One.", "Eins.")
        + "<ignorable><source> </source><target> </target></ignorable>"
        + segment("Two.", "Zwei.", "state='final'")
        + "</unit>"
    )
    assert new(tmp_path, f"<group id='g'>{text}</group>") == [Pair("One.", "Eins."), Pair("Two.", "Zwei.")]
    assert new(tmp_path, text, direction=DE_EN) == [Pair("Eins.", "One."), Pair("Zwei.", "Two.")]


def test_matches_of_the_module_are_no_translation(tmp_path: Path) -> None:
    match = (
        "<mtc:matches xmlns:mtc='urn:oasis:names:tc:xliff:matches:2.0'><mtc:match>"
        "<source>x</source><target>y</target></mtc:match></mtc:matches>"
    )
    assert new(tmp_path, f"<unit id='1'>{match}{segment('a', 'b')}</unit>") == [Pair("a", "b")]


@pytest.mark.parametrize(
    "left_out",
    [
        f"<unit id='1' translate='no'>{segment('a', 'b')}</unit>",
        f"<group id='g' translate='no'><unit id='1'>{segment('a', 'b')}</unit></group>",
        "<unit id='1'>" + segment("a", "b", "state='initial'") + "</unit>",
        "<unit id='1'><segment><source>a</source></segment></unit>",
        f"<unit id='1'>{segment('a', '')}</unit>",
    ],
)
def test_what_is_not_translated_in_2_0_is_left_out(tmp_path: Path, left_out: str) -> None:
    assert new(tmp_path, left_out, f"<unit id='2'>{segment('c', 'd')}</unit>") == [Pair("c", "d")]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a <pc id='1'>bold <pc id='2'>x</pc></pc> b", "a bold x b"),
        ("a<ph id='1'/>b<sc id='2'/>c<ec startRef='2'/>d", "abcd"),
        ("a<ph id='1' type='fmt' subType='xlf:lb'/>b", "a b"),
        ("a <mrk id='m' translate='no'>word</mrk> <sm id='n'/>b<em startRef='n'/>", "a word b"),
        ("a<cp hex='001A'/>b<cp hex='1F600'/>", "a\x1ab😀"),
    ],
)
def test_inline_markup_of_2_0_becomes_plain_text(tmp_path: Path, markup: str, text: str) -> None:
    assert new(tmp_path, f"<unit id='1'>{segment(markup, 'z')}</unit>") == [Pair(text, "z")]


@pytest.mark.parametrize("code", ["", "xyz", "D800", "110000", "FFFFFFFFFFFFFFFFFF"])
def test_a_cp_that_names_no_character_is_refused(tmp_path: Path, code: str) -> None:
    with pytest.raises(CorpusError, match=r"file\.xlf:1: <cp hex='.*'> names no character"):
        new(tmp_path, "<unit id='1'>" + segment(f"<cp hex='{code}'/>", "z") + "</unit>")


# ── what is wrong ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_pair_says_what_the_file_has(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"file\.xlf: no pair of de-fr; the file has en → de"):
        old(tmp_path, unit("a", "b"), direction=Direction("de", "fr"))
    with pytest.raises(CorpusError, match="none of its 2 units of en → de is translated"):
        old(tmp_path, unit("a", ""), "<trans-unit id='1'><source>a</source></trans-unit>")
    with pytest.raises(CorpusError, match="it has no translatable unit"):
        old(tmp_path)
    with pytest.raises(CorpusError, match=r"file\.xlf:1: is not XLIFF: its root is <tmx>"):
        read(tmp_path, "<tmx/>", EN_DE)
