from __future__ import annotations

from fedmt import recipe
from fedmt.corpus.inspection import inspect
from fedmt.corpus.pairs import Direction, Pair
from fedmt.corpus.split import split

DE_EN = Direction("de", "en")


def test_it_counts_what_a_source_holds_after_cleaning() -> None:
    pairs = [
        Pair("Guten  Tag", "Hello"),
        Pair("OK", "OK"),
        Pair("Guten Tag", "Hello"),
        Pair("Bis bald also", "See you"),
    ]
    found = inspect(iter(pairs), DE_EN)
    assert (found.pairs, found.kept) == (4, 2)
    assert {rule: number for rule, number in found.dropped.items() if number} == {"copies": 1, "duplicates": 1}
    assert found.words == (5, 3)
    assert found.characters == (22, 12)
    assert found.mean_words == (2.5, 1.5)
    assert found.mean_characters == (11.0, 6.0)
    assert found.examples == [Pair("Guten Tag", "Hello"), Pair("Bis bald also", "See you")]


def test_its_sets_are_those_that_a_split_makes() -> None:
    pairs = [Pair(f"Satz {index}", f"sentence {index}") for index in range(2000)]
    shares = recipe.Split(most_dev=30)
    train, dev, test = split(pairs, shares)
    assert inspect(pairs, DE_EN, split=shares).sets == {"train": len(train), "dev": len(dev), "test": len(test)}
    assert len(dev) == 30


def test_examples_are_drawn_from_all_of_it_the_same_each_time() -> None:
    pairs = [Pair(f"Satz {index}", f"sentence {index}") for index in range(500)]
    found = inspect(pairs, DE_EN, examples=8).examples
    assert found == inspect(iter(pairs), DE_EN, examples=8).examples
    places = [pairs.index(pair) for pair in found]
    assert places == sorted(places)
    assert places[-1] > 100


def test_nothing_is_nothing() -> None:
    found = inspect([], DE_EN)
    assert (found.pairs, found.kept, found.examples, found.mean_words) == (0, 0, [], (0.0, 0.0))
