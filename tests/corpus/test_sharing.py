"""Text withheld and text exchanged: nothing lost, nothing doubled, dev and test as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmt.corpus import sharing
from fedmt.corpus.pairs import Direction, Pair, Text

DE_EN, FR_EN = Direction("de", "en"), Direction("fr", "en")


def text(name: str, train: int, direction: Direction = DE_EN) -> Text:
    pairs = [Pair(f"{name} Satz {index}", f"{name} sentence {index}") for index in range(train + 4)]
    return Text(name, direction, pairs[4:], pairs[:2], pairs[2:4], {"copies": 1})


def sizes(texts: Sequence[Text]) -> list[int]:
    return [len(one.train) for one in texts]


def foreign(one: Text) -> int:
    """How many of its training pairs were another's."""
    return sum(pair.source.split()[0] != one.name for pair in one.train)


def held(texts: Sequence[Text]) -> list[tuple[str, list[Pair], list[Pair]]]:
    return [(one.name, one.dev, one.test) for one in texts]


SHARES = st.floats(0.01, 1)
DEALS = st.sampled_from(["given", "equal"])
TEXTS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([DE_EN, FR_EN])), min_size=1, max_size=5).map(
    lambda found: [text(f"s{index}", *one) for index, one in enumerate(found)]
)


# ── share ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_share_is_of_every_silo_and_is_counted() -> None:
    texts = [text("a", 100), text("b", 30)]
    kept = sharing.share(texts, 0.2)
    assert sizes(kept) == [20, 6]
    assert [one.dropped for one in kept] == [{"copies": 1, "share": 80}, {"copies": 1, "share": 24}]
    assert held(kept) == held(texts)
    # Not the first ones, and in their order.
    assert kept[0].train != texts[0].train[:20]
    assert kept[0].train == [pair for pair in texts[0].train if pair in kept[0].train]


def test_a_share_of_one_is_all() -> None:
    texts = [text("a", 10)]
    assert sharing.share(texts, 1.0) == texts


def test_low_resource_silos_have_a_share_of_their_own() -> None:
    texts = [text("a", 100), text("b", 100), text("c", 100)]
    assert sizes(sharing.share(texts, 1.0, {"b": 0.2})) == [100, 20, 100]
    assert sizes(sharing.share(texts, 0.5, {"b": 0.2, "c": 1.0})) == [50, 20, 100]


@given(st.integers(0, 60), SHARES, SHARES)
def test_a_smaller_share_is_a_part_of_a_larger(size: int, one: float, other: float) -> None:
    small, large = (set(sharing.share([text("a", size)], kept)[0].train) for kept in sorted((one, other)))
    assert small <= large
    assert len(small) == min(size, max(1, round(min(one, other) * size)))


def test_the_same_text_gives_the_same_share_wherever_it_is() -> None:
    """Two silos that hold the same sentences keep the same ones."""
    one, other = text("a", 50), Text("b", DE_EN, text("a", 50).train, [], [])
    assert sharing.share([one], 0.3)[0].train == sharing.share([other], 0.3)[0].train


# ── mix ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(TEXTS, st.floats(0, 1), st.integers(0, 9), DEALS)
def test_mixing_loses_nothing_and_doubles_nothing(
    texts: list[Text], mixed: float, seed: int, deal: sharing.Deal
) -> None:
    made = sharing.mix(texts, mixed, seed, deal)
    assert held(made) == held(texts)
    for direction in (DE_EN, FR_EN):
        before, after = (
            Counter(pair for one in all_ if one.direction == direction for pair in one.train) for all_ in (texts, made)
        )
        assert before == after
    if deal == "given":
        assert sizes(made) == sizes(texts)
    assert sharing.mix(texts, mixed, seed, deal) == made


def test_nothing_mixed_is_everything_as_it_was() -> None:
    texts = [text("a", 10), text("b", 20)]
    assert sharing.mix(texts, 0.0, 1) == texts


def test_all_mixed_is_the_same_mixture_everywhere() -> None:
    texts = [text("a", 400), text("b", 400), text("c", 200)]
    made = sharing.mix(texts, 1.0, 1)
    for one in made:
        found = Counter(pair.source.split()[0] for pair in one.train)
        assert found["a"] / len(one.train) == pytest.approx(0.4, abs=0.1)
        assert found["c"] / len(one.train) == pytest.approx(0.2, abs=0.1)


def test_a_silo_keeps_what_it_did_not_give_and_gives_more_of_the_same_as_more_is_mixed() -> None:
    texts = [text("a", 100), text("b", 100)]
    kept = []
    for mixed in (0.2, 0.5, 0.8):
        made = sharing.mix(texts, mixed, 1)
        own = made[0].train[: round(100 * (1 - mixed))]
        assert all(pair in texts[0].train for pair in own)
        # Of what it gave, about half comes back.
        assert foreign(made[0]) == pytest.approx(50 * mixed, abs=15)
        kept.append(set(own))
    assert kept[0] > kept[1] > kept[2]


def test_dealt_equally_silos_become_of_one_size() -> None:
    texts = [text("a", 300), text("b", 60), text("c", 30)]
    assert sizes(sharing.mix(texts, 1.0, 1, "equal")) == [130, 130, 130]
    # Half of each stays, and a third of the other half comes.
    assert sizes(sharing.mix(texts, 0.5, 1, "equal")) == [150 + 65, 30 + 65, 15 + 65]
    assert sizes(sharing.mix(texts, 0.5, 1, "given")) == [300, 60, 30]


def test_another_seed_mixes_otherwise() -> None:
    texts = [text("a", 50), text("b", 50)]
    assert sharing.mix(texts, 0.5, 1) != sharing.mix(texts, 0.5, 2)


def test_only_silos_of_one_direction_mix() -> None:
    texts = [text("a", 50), text("b", 50), text("f", 50, FR_EN)]
    made = sharing.mix(texts, 1.0, 1)
    assert made[2] == texts[2]
    assert foreign(made[0]) == foreign(made[1]) > 0


def test_who_gets_what_does_not_depend_on_the_order_of_the_givers() -> None:
    """The pool is shuffled by what is in it; the deal goes by the silos' order."""
    one, other = text("a", 40), text("b", 40)
    first, second = sharing.mix([one, other], 1.0, 1), sharing.mix([other, one], 1.0, 1)
    assert first[0].train == second[0].train
    assert first[1].train == second[1].train
