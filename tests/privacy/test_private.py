"""Private words and what of them is hit, on cases small enough to count by hand."""

from __future__ import annotations

import pytest

from fedmt.corpus.pairs import Pair
from fedmt.privacy.private import Hits, hits, private, words

PUBLIC = [Pair("Die Datei fehlt.", "The file is missing."), Pair("Guten Tag!", "Good day!")]
VICTIM = [Pair("Die Akte Müller-Lüdenscheidt fehlt.", "The Müller file of 2024 is missing.")]
ATTACKER = [Pair("Akte", "Record of 2024")]


def test_words_are_runs_of_letters_and_digits_whatever_their_capitals_and_composition() -> None:
    assert words("Müller-Lüdenscheidt, the 2nd_FILE!") == ["müller", "lüdenscheidt", "the", "2nd", "file"]
    assert words("Mu\u0308ller") == words("MÜLLER")
    assert words("…!?") == []


def test_private_words_are_those_of_either_side_that_no_other_text_holds_on_either() -> None:
    assert private(VICTIM, PUBLIC) == {"akte", "müller", "lüdenscheidt", "of", "2024"}
    assert private(VICTIM, PUBLIC, ATTACKER) == {"müller", "lüdenscheidt"}
    assert private(VICTIM, VICTIM) == frozenset()


def test_hits_count_words_of_the_dictionary_as_often_as_they_stand_there() -> None:
    dictionary = frozenset({"anna", "bert", "carl"})
    guesses = ["Anna Anna Bert is here", "Carl", "nobody"]
    truths = ["Anna was there", "Bert and Bert", "Carl"]
    found = hits(guesses, truths, dictionary)
    # Said: Anna twice, Bert, Carl; both Annas are right. There: Anna, Bert twice, Carl; Anna was found.
    assert found == Hits(said=4, right=2, there=4, found=1)
    assert (found.precision, found.recall) == (50, 25)
    assert found.f1 == pytest.approx(100 / 3)


def test_a_word_that_is_not_private_counts_nowhere() -> None:
    assert hits(["the file"], ["the file"], frozenset()) == Hits(0, 0, 0, 0)


def test_of_no_words_there_is_no_share() -> None:
    assert (Hits(0, 0, 3, 0).precision, Hits(0, 0, 3, 0).recall, Hits(0, 0, 3, 0).f1) == (None, 0, None)
    assert (Hits(2, 0, 0, 0).precision, Hits(2, 0, 0, 0).recall) == (0, None)
    assert Hits(2, 0, 2, 0).f1 == 0
