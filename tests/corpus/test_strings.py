from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmt.corpus.pairs import Pair
from fedmt.corpus.strings import paragraphs, placeholders, sentences, without_ambiguous, without_mnemonic


def run(*messages: tuple[str, str], mnemonics: bool = False) -> tuple[list[Pair], dict[str, int]]:
    dropped: Counter[str] = Counter()
    return list(sentences(messages, dropped, mnemonics)), dict(dropped)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello {name}, {{ count }} new", ["count", "name"]),
        ("%(count)s of %(total)d", ["%(count)s", "%(total)d"]),
        ("%s has %d files, %.1f MB", ["%.1f", "%d", "%s"]),
        ("${name} and $name", ["name", "name"]),
        ("50 % der Fälle, 100 %", []),
        ("100%sure is no placeholder", []),
        ("{}", ["{}"]),
        ("costs $5", []),
        ("see %SITE% now", ["%SITE%"]),
    ],
)
def test_placeholders_are_found(text: str, expected: list[str]) -> None:
    assert placeholders(text) == expected


def test_placeholders_stay_in_the_text() -> None:
    found, dropped = run(("{name} löschen", "Delete {name}"), ("%(n)s von %(m)s", "%(n)s of %(m)s"))
    assert found == [Pair("{name} löschen", "Delete {name}"), Pair("%(n)s von %(m)s", "%(n)s of %(m)s")]
    assert dropped == {}


def test_their_order_and_spelling_may_differ() -> None:
    found, _ = run(("Von $owner für ${list}", "For $list by ${owner}"))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        ("Eine Datei", "%d file", "placeholders differ"),
        ("{name} {name}", "{name}", "no words"),
        ("Hallo {name} {name}", "Hello {name}", "placeholders differ"),
        ("Zum <b>Start</b>", "To the start", "markup"),
        ("Zum Start", "To the start<br/>", "markup"),
        ("Zum &lt;b&gt;Start&lt;/b&gt;", "To the start", "markup"),
        ("%(part1)s - %(part2)s", "%(part1)s - %(part2)s", "no words"),
        ("…", "...", "no words"),
        ("1.0", "1,0", "no words"),
    ],
)
def test_what_is_no_translation_is_dropped_and_counted(source: str, target: str, rule: str) -> None:
    assert run((source, target)) == ([], {rule: 1})


def test_angle_brackets_that_are_no_tags_stay() -> None:
    found, dropped = run(("Notizen nach <Datum>", "Notes after <date>"), ("a < b und b > c", "a < b and b > c"))
    assert len(found) == 2
    assert dropped == {}


def test_entities_become_characters() -> None:
    assert run(("Tipps&nbsp;&amp; Tricks", "Tips &amp; tricks&hellip;"))[0] == [
        Pair("Tipps & Tricks", "Tips & tricks…")
    ]


def test_paragraphs_become_pairs_where_both_sides_have_equally_many() -> None:
    found, _ = run(("Hallo,\n\nwir\nwarten.\n", "Hello,\n \nwe\nwait."))
    assert found == [Pair("Hallo,", "Hello,"), Pair("wir warten.", "we wait.")]


def test_otherwise_they_stay_one_pair() -> None:
    assert run(("Hallo, wir warten.", "Hello,\n\nwe wait."))[0] == [Pair("Hallo, wir warten.", "Hello, we wait.")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("_File", "File"),
        ("E_xit", "Exit"),
        ("_Größe:", "Größe:"),
        ("文件(_F)", "文件"),
        ("開啟 (_O)…", "開啟…"),
        ("Zu %(first_name)s _gehen", "Zu %(first_name)s gehen"),
        ("by %(first_name)s", "by %(first_name)s"),
        ("use show=option_name and name_here", "use show=option_name and name_here"),
        ("no mnemonic _ here", "no mnemonic _ here"),
        ("nothing", "nothing"),
    ],
)
def test_mnemonics_are_taken_out_and_names_left_alone(text: str, expected: str) -> None:
    assert without_mnemonic(text) == expected


def test_mnemonics_are_taken_out_on_both_sides_only_where_asked() -> None:
    pair = ("_Datei", "F_ile")
    assert run(pair, mnemonics=True)[0] == [Pair("Datei", "File")]
    assert run(pair)[0] == [Pair(*pair)]


def test_a_heading_that_stands_for_three_things_is_ambiguous_and_one_for_two_is_not() -> None:
    messages = [("Sturz: Zu Hause", "Home"), ("Feuer: Zu Hause", "Home"), ("Gift: Zu Hause", "Home")]
    messages += [("Sonstige Anämie", "Other anaemia"), ("Andere Anämie", "Other anaemia"), ("Cholera", "Cholera")]
    dropped: Counter[str] = Counter()
    assert without_ambiguous(messages, dropped) == messages[3:]
    assert without_ambiguous([(target, source) for source, target in messages], dropped) == [
        (target, source) for source, target in messages[3:]
    ]
    assert dropped == {"ambiguous": 6}


def test_the_same_message_many_times_is_not_ambiguous() -> None:
    assert len(without_ambiguous([("Ja", "Yes")] * 5, Counter())) == 5


TEXT = st.text(alphabet=st.sampled_from("ab _%s{}()$&;<>/\n1é文"), max_size=40)


@given(TEXT, TEXT)
def test_whatever_comes_nothing_but_words_without_markup_goes_out(source: str, target: str) -> None:
    dropped: Counter[str] = Counter()
    found = list(sentences([(source, target)], dropped, mnemonics=True))
    for pair in found:
        for text in pair:
            assert any(character.isalpha() for character in text)
            assert "\n" not in text
            assert text == text.strip()
        assert placeholders(pair.source) == placeholders(pair.target)
    assert found or dropped


@given(st.lists(st.text(alphabet="abc ", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=4))
def test_paragraphs_come_back_as_they_were_joined(parts: list[str]) -> None:
    assert paragraphs("\n\n".join(parts)) == [" ".join(part.split()) for part in parts]
