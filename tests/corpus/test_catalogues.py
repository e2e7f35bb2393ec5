from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedmt.corpus.catalogues import Layout, Message, Wheel
from fedmt.errors import CorpusError
from tests.corpus import wheels


def read(path: Path, layout: Layout, language: str) -> list[Message]:
    with Wheel(path, layout) as wheel:
        return list(wheel.messages(language))


def texts(found: list[Message]) -> list[tuple[str, str]]:
    return [(message.english, message.text) for message in found]


def test_po_gives_what_is_translated_and_counts_what_is_not_to_be_used(tmp_path: Path) -> None:
    content = wheels.po(
        'msgid "Open"\nmsgstr "Öffnen"\n\n'
        'msgid "Close"\nmsgstr ""\n\n'
        '#, fuzzy\nmsgid "Save"\nmsgstr "Speichern?"\n\n'
        '#~ msgid "Gone"\n#~ msgstr "Weg"\n'
    )
    path = wheels.write(tmp_path, {"app/locale/de/LC_MESSAGES/django.po": content})
    with Wheel(path, wheels.PO) as wheel:
        assert texts(list(wheel.messages("de"))) == [("Open", "Öffnen")]
        assert wheel.dropped == {"fuzzy": 1, "obsolete": 1}


def test_mo_and_po_of_the_same_catalogue_read_the_same(tmp_path: Path) -> None:
    content = wheels.po(
        'msgctxt "menu"\nmsgid "Open"\nmsgstr "Öffnen"\n\n'
        'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d Datei"\nmsgstr[1] "%d Dateien"\n'
    )
    path = wheels.write(
        tmp_path,
        {"app/locale/de/LC_MESSAGES/x.po": content, "app/locale/de/LC_MESSAGES/x.mo": wheels.mo(content)},
    )
    assert sorted(read(path, wheels.PO, "de")) == sorted(read(path, wheels.MO, "de"))
    assert ("%d files", "%d Dateien") in texts(read(path, wheels.MO, "de"))


@pytest.mark.parametrize(
    ("plural", "forms", "expected"),
    [
        # German: one Datei, five Dateien.
        ("nplurals=2; plural=(n != 1)", ["a", "b"], [("file", "a"), ("files", "b")]),
        # Polish: the form for five is the third; the second is for two to four.
        (
            "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2)",
            ["a", "b", "c"],
            [("file", "a"), ("files", "c")],
        ),
        # Slovene as Plone's and others' headers once had it: the form for five comes first, that for one second.
        (
            "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0)",
            ["a", "b", "c", "d"],
            [("file", "b"), ("files", "a")],
        ),
        # Japanese has one form, which stands for many.
        ("nplurals=1; plural=0", ["a"], [("files", "a")]),
        # A rule that is none is taken for the German one.
        ("nplurals=2; plural=EXPRESSION", ["a", "b"], [("file", "a"), ("files", "b")]),
    ],
)
def test_plural_forms_go_with_the_number_that_they_are_for(
    tmp_path: Path, plural: str, forms: list[str], expected: list[tuple[str, str]]
) -> None:
    lines = "".join(f'msgstr[{index}] "{form}"\n' for index, form in enumerate(forms))
    content = wheels.po(f'msgid "file"\nmsgid_plural "files"\n{lines}', plural)
    path = wheels.write(tmp_path, {"app/locale/xx/LC_MESSAGES/x.po": content})
    assert texts(read(path, wheels.PO, "xx")) == expected


def test_json_is_aligned_on_the_path_of_keys(tmp_path: Path) -> None:
    english = {"title": "Lamp", "step": {"user": {"title": "Add a lamp"}, "gone": "Old"}}
    german = {"step": {"user": {"title": "Lampe hinzufügen"}, "new": "Neu"}, "title": "Lampe"}
    path = wheels.write(
        tmp_path,
        {
            "app/parts/lamp/translations/en.json": json.dumps(english),
            "app/parts/lamp/translations/de.json": json.dumps(german),
            "app/parts/lamp/translations/sensor.de.json": json.dumps({"state": "an"}),
            "app/parts/fan/translations/de.json": json.dumps({"title": "Ventilator"}),
        },
    )
    assert sorted(texts(read(path, wheels.JSON, "de"))) == [("Add a lamp", "Lampe hinzufügen"), ("Lamp", "Lampe")]


def test_english_of_a_comment_stands_for_a_name(tmp_path: Path) -> None:
    layout = Layout(wheels.PO.files, english="comment")
    content = wheels.po(
        '#. Default: "Say \\"hello\\""\nmsgid "label_hello"\nmsgstr "Hallo sagen"\n\n'
        '#. Default: ""\n#. "Two "\n#. "lines"\nmsgid "label_two"\nmsgstr "Zwei Zeilen"\n\n'
        'msgid "label_lost"\nmsgstr "Verloren"\n\n'
        'msgid "Plain English"\nmsgstr "Schlichtes Deutsch"\n'
    )
    path = wheels.write(tmp_path, {"app/locale/de/LC_MESSAGES/plone.po": content})
    with Wheel(path, layout) as wheel:
        assert texts(list(wheel.messages("de"))) == [
            ('Say "hello"', "Hallo sagen"),
            ("Two lines", "Zwei Zeilen"),
            ("Plain English", "Schlichtes Deutsch"),
        ]
        assert wheel.dropped == {"no English": 1}


def test_a_message_named_by_a_file_has_that_file_for_its_english(tmp_path: Path) -> None:
    layout = wheels.PO._replace(letters="app/templates/en")
    content = wheels.simple(
        {"list:user:notice:hold.txt": "Wartet", "list:user:notice:lost.txt": "Weg", "e-mail": "Post"}
    )
    path = wheels.write(
        tmp_path,
        {
            "app/locale/de/LC_MESSAGES/mailman.po": content,
            "app/templates/en/list:user:notice:hold.txt": "It waits\n",
        },
    )
    assert texts(read(path, layout, "de")) == [("It waits\n", "Wartet")]


def test_keys_are_the_same_in_every_language_even_if_a_file_begins_like_one(tmp_path: Path) -> None:
    contents = {
        f"app/locale/{language}/LC_MESSAGES/plone.po": wheels.simple({"Open": text})
        for language, text in {"pl": "Otwórz", "nl": "Openen"}.items()
    }
    path = wheels.write(tmp_path, contents)
    assert [message.key for message in read(path, wheels.PO, "pl")] == [
        message.key for message in read(path, wheels.PO, "nl")
    ]


def test_files_named_by_language_share_their_keys_too(tmp_path: Path) -> None:
    layout = Layout(rf"app/locale/{wheels.LANGUAGE}\.po")
    path = wheels.write(
        tmp_path,
        {
            "app/locale/de.po": wheels.simple({"Flu": "Grippe"}),
            "app/locale/fr.po": wheels.simple({"Flu": "Grippe (f)"}),
        },
    )
    assert read(path, layout, "de")[0].key == read(path, layout, "fr")[0].key


@pytest.mark.parametrize("content", [b"no zip", b""])
def test_a_file_that_is_no_wheel_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.whl"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"broken\.whl: not a readable wheel"):
        Wheel(path, wheels.PO)


@pytest.mark.parametrize(
    ("inner", "content"),
    [
        ("app/locale/de/LC_MESSAGES/x.po", b'msgid "a"\nmsgstr "\xff"\n'),
        ("app/locale/de/LC_MESSAGES/x.po", b'msgid "a"\nnonsense\n'),
        ("app/parts/x/translations/de.json", b"{"),
        ("app/locale/de/LC_MESSAGES/x.mo", b"\xde\x12\x04\x95\x00"),
    ],
)
def test_a_catalogue_that_cannot_be_read_is_named(tmp_path: Path, inner: str, content: bytes) -> None:
    path = wheels.write(tmp_path, {inner: content})
    layout = {"po": wheels.PO, "json": wheels.JSON, "mo": wheels.MO}[inner.rpartition(".")[2]]
    with pytest.raises(CorpusError, match=inner):
        read(path, layout, "de")
