import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmt.corpus.clean import RULES, Cleaner, tidy
from fedmt.corpus.pairs import Pair
from fedmt.recipe import Clean

TEXT = st.text(
    st.one_of(st.characters(), st.sampled_from(" \t\u00a0\u200b\u200d\u0301\u0308aäA\ufeff\x00\u1100\u1161\ud800")),
    max_size=30,
)


def clean(settings: Clean, *pairs: tuple[str, str]) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """What is kept, and what the rules that dropped something dropped."""
    cleaner = Cleaner(settings)
    kept = [tuple(pair) for pair in cleaner.clean(Pair(*pair) for pair in pairs)]
    return [(source, target) for source, target in kept], {rule: n for rule, n in cleaner.dropped.items() if n}


@pytest.mark.parametrize(
    ("text", "tidied"),
    [
        ("  a \t b\n", "a b"),
        ("a\u00a0b\u202fc\u3000d\u2003e", "a b c d e"),
        ("a\u2028b\u2029c\x85d", "a b c d"),
        ("a\x00b\x1fc\x7fd\x9be", "a b c d e"),
        ("a\u200bb\ufeffc\u00add\u2060e", "abcde"),
        ("\u202bשלום\u202c\u200f", "שלום"),
        ("u\u0308ber", "über"),
        ("u\u200b\u0308ber", "über"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("ﬁn ½", "ﬁn ½"),
        ("half \ud800 pair", "half pair"),
        (" \u200b\u00a0\ufeff ", ""),
    ],
)
def test_text_is_tidied(text: str, tidied: str) -> None:
    assert tidy(text) == tidied


@given(TEXT)
def test_tidying_twice_changes_nothing(text: str) -> None:
    once = tidy(text)
    assert tidy(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split())


def test_each_rule_drops_and_counts() -> None:
    kept, dropped = clean(
        Clean(ratio=2.0, ratio_slack=1, longest=12),
        ("Hallo", "Hello"),
        ("", "empty"),
        ("empty", " \u200b "),
        ("same\u00a0text", " same text"),
        ("a" * 13, "b" * 13),
        ("aaa", "b" * 8),
        ("aaa", "b" * 7),
        ("Hallo ", "Hello"),
        ("Hallo", "Hi"),
    )
    assert kept == [("Hallo", "Hello"), ("aaa", "b" * 7), ("Hallo", "Hi")]
    assert dropped == {"empty": 2, "copies": 1, "longest": 1, "ratio": 1, "duplicates": 1}


def test_a_pair_is_counted_under_the_first_rule_that_drops_it() -> None:
    _, dropped = clean(Clean(longest=3), ("same", "same"), ("same", "same"), ("", ""))
    assert dropped == {"copies": 2, "empty": 1}


def test_rules_may_be_switched_off() -> None:
    pairs = [("a", "a"), ("a", "a"), ("a", "b" * 900)]
    off = Clean(duplicates=False, copies=False, ratio=None)
    assert clean(off, *pairs) == (pairs, {})
    assert clean(Clean(), *pairs) == ([], {"copies": 2, "ratio": 1})


def test_the_ratio_holds_both_ways_and_is_lenient_by_its_slack() -> None:
    settings = Clean(ratio=4.0, ratio_slack=20)
    assert clean(settings, ("OK", "x" * 28), ("x" * 28, "OK"))[1] == {}
    assert clean(settings, ("OK", "x" * 29), ("x" * 29, "OK"))[1] == {"ratio": 2}


def test_duplicates_are_pairs_and_not_joined_texts() -> None:
    assert clean(Clean(), ("a b", "c"), ("a", "b c"), ("a b", "d"))[1] == {}


def test_one_cleaner_finds_duplicates_between_files() -> None:
    cleaner = Cleaner(Clean())
    assert list(cleaner.clean([Pair("a", "b")])) == [Pair("a", "b")]
    assert list(cleaner.clean([Pair("a", "b"), Pair("c", "d")])) == [Pair("c", "d")]
    assert cleaner.dropped == dict.fromkeys(RULES, 0) | {"duplicates": 1}


def test_cleaning_streams() -> None:
    def endless() -> object:
        number = 0
        while True:
            number += 1
            yield Pair(f"a{number}", f"b{number}")

    pairs = Cleaner(Clean()).clean(endless())  # type: ignore[arg-type]
    assert [next(pairs), next(pairs)] == [Pair("a1", "b1"), Pair("a2", "b2")]


@given(st.lists(st.tuples(TEXT, TEXT), max_size=12))
def test_cleaning_what_is_clean_drops_nothing_and_every_pair_is_accounted_for(pairs: list[tuple[str, str]]) -> None:
    settings = Clean(ratio=3.0, ratio_slack=2, longest=25)
    kept, dropped = clean(settings, *pairs)
    assert clean(settings, *kept) == (kept, {})
    assert len(kept) + sum(dropped.values()) == len(pairs)
