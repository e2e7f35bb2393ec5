from hypothesis import given
from hypothesis import strategies as st

from fedmt.corpus import split
from fedmt.corpus.pairs import Pair
from fedmt.recipe import Split

MANY = [Pair(f"Satz Nummer {number}", f"sentence number {number}") for number in range(4000)]
PAIRS = st.lists(st.tuples(st.text(max_size=6), st.text(max_size=3)).map(Pair._make), max_size=40)
SHARES = Split(dev=0.2, test=0.3, most_dev=4, most_test=5)


def test_a_key_does_not_change_between_versions_and_machines() -> None:
    """Were it to change, a silo that updates would train on what another tests on."""
    assert split.key("Die Datei konnte nicht gelesen werden.") == 10135036870476543102
    assert split.key("") == 15630854612840485949


def test_a_key_is_blind_to_space_case_and_composition() -> None:
    assert split.key("Über  die\u00a0Brücke ") == split.key("u\u0308ber die BRÜCKE")
    assert split.key("Straße") == split.key("STRASSE")
    assert split.key("Brücke") != split.key("Bruecke")


def test_sets_are_disjoint_and_hold_every_pair_in_order() -> None:
    train, dev, test = split.split(MANY, Split())
    assert sorted([*train, *dev, *test]) == sorted(MANY)
    for part in (train, dev, test):
        assert part == sorted(part, key=MANY.index)


def test_shares_are_near_what_was_asked() -> None:
    """Of 4000 draws, four standard deviations are 55 at 5 % and 76 at 10 %."""
    _, dev, test = split.split(MANY, Split(dev=0.05, test=0.1))
    assert abs(len(dev) - 200) < 55
    assert abs(len(test) - 400) < 76


def test_the_same_sentence_falls_into_the_same_set_in_every_silo() -> None:
    others = [Pair(pair.source.upper(), "something else") for pair in MANY[::3]]
    mine, theirs = split.split(MANY, Split()), split.split(others, Split())
    for index in range(3):
        for other in range(3):
            if index != other:
                assert split.keys(mine[index]).isdisjoint(split.keys(theirs[other]))


def test_a_larger_dev_share_takes_from_training_and_not_from_test() -> None:
    small, large = (split.split(MANY, Split(dev=dev, most_dev=4000, most_test=4000)) for dev in (0.05, 0.3))
    assert small[2] == large[2]
    assert set(small[1]) < set(large[1])


def test_what_is_over_the_most_is_dropped_by_key_and_counted() -> None:
    dropped = {"empty": 3}
    train, dev, test = split.split(MANY, Split(most_dev=10, most_test=20), dropped)
    whole = split.split(MANY, Split())
    assert train == whole[0]
    assert (len(dev), len(test)) == (10, 20)
    assert split.keys(test) == set(sorted(split.keys(whole[2]))[:20])
    assert dropped == {"empty": 3, "most_dev": len(whole[1]) - 10, "most_test": len(whole[2]) - 20}


def test_silos_of_the_same_text_keep_the_same_test_set_whatever_their_order() -> None:
    settings = Split(most_dev=10, most_test=20)
    assert sorted(split.split(MANY, settings)[2]) == sorted(split.split(MANY[::-1], settings)[2])


@given(PAIRS)
def test_no_sentence_stands_in_two_sets(pairs: list[Pair]) -> None:
    dropped: dict[str, int] = {}
    train, dev, test = split.split(pairs, SHARES, dropped)
    keys = [split.keys(part) for part in (train, dev, test)]
    assert keys[0].isdisjoint(keys[1])
    assert keys[0].isdisjoint(keys[2])
    assert keys[1].isdisjoint(keys[2])
    assert len(train) + len(dev) + len(test) + sum(dropped.values()) == len(pairs)
    assert (len(dev) <= 4, len(test) <= 5) == (True, True)


@given(PAIRS, st.randoms(use_true_random=False))
def test_splitting_does_not_hang_on_order_nor_on_company(pairs: list[Pair], random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [sorted(part) for part in split.split(shuffled, SHARES)] == [
        sorted(part) for part in split.split(pairs, SHARES)
    ]
    train = split.split(pairs, SHARES)[0]
    assert split.split(train, SHARES) == (train, [], [])


def test_sentences_of_given_files_are_taken_out_of_training() -> None:
    test = [Pair("Guten Tag!", "Good day!"), Pair("Ja", "Yes")]
    train = [Pair("guten  tag!", "Hello!"), Pair("Nein", "No"), Pair("JA", "Yes"), Pair("Jawohl", "Yes")]
    assert list(split.without(train, split.keys(test))) == [Pair("Nein", "No"), Pair("Jawohl", "Yes")]
