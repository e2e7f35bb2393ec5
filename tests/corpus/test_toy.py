from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt import recipe
from fedmt.corpus import languages, toy
from fedmt.corpus.pairs import Direction, Pair, Text
from fedmt.corpus.toy import PIVOT, Clause, Language, Phrase


def of(silos: int = 3, families: int = 1, pairs: int = 200, seed: int = 0, **more: Any) -> recipe.ToySilos:
    return recipe.ToySilos(source="toy", silos=silos, families=families, pairs=pairs, seed=seed, **more)


def everything(text: Text) -> list[Pair]:
    return [*text.train, *text.dev, *text.test]


def many(silos: int = 8, families: int = 4, pairs: int = 200, seed: int = 0, **more: Any) -> recipe.ToySilos:
    return of(silos, families, pairs, seed, directions="many", **more)


SIZES = (st.integers(10, 60), st.integers(0, 5))
SETTINGS = st.one_of(
    st.builds(of, st.integers(1, 9), st.integers(1, 8), *SIZES),
    st.builds(
        of, st.integers(1, 9), st.integers(1, 8), *SIZES, directions=st.sampled_from(["to-pivot", "from-pivot", "both"])
    ),
    st.builds(many, st.integers(1, 20), st.integers(2, 8), *SIZES),
)


# A language whose words can be read: the roots are the meanings themselves.
def spelt(order: toy.Order, **traits: bool) -> Language:
    roots = {word: word for word in ("dog", "bread", "old", "eats", "town", "in", "the", "now", "then", "later")}
    suffixes = {"+the": "-the", "+plural": "-s", "+case": "-acc", "+then": "-ed", "+later": "-will", "+singular": "-3"}
    whole = {
        "adjectives_first": True,
        "postpositions": False,
        "articles": False,
        "suffixing": True,
        "harmony": False,
        **traits,
    }
    return Language("qaa", order, roots=roots | suffixes, changes={}, **whole)


CLAUSE = Clause(
    Phrase("dog", True, True, ("old",)), "eats", "then", Phrase("bread", False, False), Phrase("town", False, True)
)


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        (spelt("SVO"), "old-s dog-the-s eats-ed bread in town-the"),
        (spelt("SOV", postpositions=True), "old-s dog-the-s bread-acc town-the in eats-ed"),
        (
            spelt("VSO", articles=True, adjectives_first=False),
            "eats-ed the dog-s old-s bread-acc in the town",
        ),
        # The pivot: tense is a word, adjectives stay bare, the verb agrees with a singular subject only.
        (spelt("SVO", articles=True, suffixing=False), "the old dog-s then eats bread in the town"),
    ],
)
def test_each_language_says_a_meaning_in_its_own_way(language: Language, sentence: str) -> None:
    assert language.say(CLAUSE) == sentence


def test_the_pivots_verb_agrees_with_its_subject_which_the_sources_does_not_show() -> None:
    one = CLAUSE._replace(subject=Phrase("dog", False, False), tense="now", place=None)
    many = one._replace(subject=Phrase("dog", True, False))
    pivot = spelt("SVO", articles=True, suffixing=False)
    assert [pivot.say(one), pivot.say(many)] == ["dog eats-3 bread", "dog-s eats bread"]
    assert [spelt("SVO").say(one), spelt("SVO").say(many)] == ["dog eats bread", "dog-s eats bread"]


def test_under_harmony_a_suffix_takes_up_the_words_last_vowel() -> None:
    roots = {"a": "kato", "e": "mire", "+plural": "is"}
    language = Language("qaa", "SOV", True, True, False, True, True, roots, {})
    assert language._suffixed("a", "is") == "katoos"
    assert language._suffixed("e", "is", "an") == "mireesen"


@given(SETTINGS)
@settings(max_examples=15, deadline=None)
def test_the_same_settings_give_the_same_text_and_another_seed_another(plan: recipe.ToySilos) -> None:
    assert toy.texts(plan) == toy.texts(plan)
    other = plan.model_copy(update={"seed": plan.seed + 1})
    assert [text.train for text in toy.texts(plan)] != [text.train for text in toy.texts(other)]


@given(SETTINGS)
@settings(max_examples=15, deadline=None)
def test_every_silo_has_as_many_different_sentences_of_three_to_twelve_words_as_asked(plan: recipe.ToySilos) -> None:
    for text in toy.texts(plan):
        pairs = everything(text)
        assert len({pair.source for pair in pairs}) == len(pairs) == plan.pairs
        for pair in pairs:
            for sentence in pair:
                assert 3 <= len(sentence.split()) <= 12


@given(SETTINGS)
@settings(max_examples=15, deadline=None)
def test_a_sentence_says_one_thing(plan: recipe.ToySilos) -> None:
    """No source sentence has two translations, in one silo or among silos of one language."""
    said: dict[tuple[str, str], str] = {}
    for text in toy.texts(plan):
        for pair in everything(text):
            assert said.setdefault((text.direction.source, pair.source), pair.target) == pair.target


def test_one_family_is_one_language_and_several_are_a_language_a_silo() -> None:
    assert toy.directions(of(silos=3)) == [Direction("qaa", PIVOT)] * 3
    several = toy.directions(of(silos=5, families=2))
    assert several == [Direction(code, PIVOT) for code in ("qaa", "qab", "qac", "qad", "qae")]
    assert [text.direction for text in toy.texts(of(silos=5, families=2))] == several


def test_the_largest_federation_has_codes_that_are_codes() -> None:
    codes = {direction.source for direction in toy.directions(of(silos=64, families=2))}
    assert len(codes) == 64
    assert PIVOT not in codes
    assert all(languages.parse(code) is not None for code in codes)


def test_languages_of_a_family_share_roots_but_for_regular_changes_of_sound() -> None:
    plan = of(silos=4, families=2)
    first, cousin, stranger = (toy.language(plan, *member) for member in ((0, 0), (0, 1), (1, 0)))
    assert first.order == cousin.order != stranger.order
    meanings = [name for name in first.roots if name.startswith("everyday")]
    same = sum(first.roots[name] == first.roots[name].translate(cousin.changes) for name in meanings)
    assert 0 < same < len(meanings)
    assert first.roots == cousin.roots
    # The changes are reversible: no two words fall together.
    assert sorted(cousin.changes) == sorted(cousin.changes.values())
    shared = set(first.roots.values()) & set(stranger.roots.values())
    assert len(shared) < len(meanings) / 4


def test_more_silos_do_not_change_the_languages_of_the_first() -> None:
    few, many = of(silos=2), of(silos=5)
    assert [text.train for text in toy.texts(few)] == [text.train for text in toy.texts(many)][:2]


def words(pairs: list[Pair], language: Language, domain: int) -> int:
    """How many words of a domain there are, by their roots in the source."""
    count = Counter(word for pair in pairs for word in pair.source.split())
    roots = [root.translate(language.changes) for name, root in language.roots.items() if f"domain{domain}." in name]
    return sum(number for word, number in count.items() if any(word.startswith(root) for root in roots))


def test_a_domains_words_are_frequent_in_its_silo_and_rare_elsewhere() -> None:
    plan = of(silos=3, pairs=600)
    language = toy.language(plan, 0, 0)
    texts = toy.texts(plan)
    (public,) = toy.public(recipe.ToyPublic(source="toy", pairs=600), plan)
    for silo, text in enumerate(texts):
        own = words(everything(text), language, silo)
        assert own > 20 * words(everything(public), language, silo) > 0
        for other in range(3):
            if other != silo:
                assert own > 20 * words(everything(text), language, other)


def test_public_text_is_shared_out_among_the_silos_directions() -> None:
    plan = of(silos=3, families=3)
    texts = toy.public(recipe.ToyPublic(source="toy", pairs=100), plan)
    assert [text.direction for text in texts] == toy.directions(plan)
    assert sum(len(everything(text)) for text in texts) == 100
    assert {len(everything(text)) for text in texts} == {33, 34}


def test_public_text_without_toy_silos_is_of_the_first_language() -> None:
    (text,) = toy.public(recipe.ToyPublic(source="toy", pairs=50))
    assert text.direction == Direction("qaa", PIVOT)


def test_the_public_text_and_the_silos_are_not_the_same_sentences() -> None:
    plan = of(silos=2, pairs=400)
    sources = [{pair.source for pair in everything(text)} for text in toy.texts(plan)]
    sources += [{pair.source for pair in everything(text)} for text in toy.public(recipe.ToyPublic(source="toy"), plan)]
    for index, one in enumerate(sources):
        for other in sources[index + 1 :]:
            assert len(one & other) < 0.05 * len(one)


def test_the_toys_of_earlier_versions_are_the_same_to_the_letter() -> None:
    """Runs of the default toy are compared across versions."""
    digest = sha256()
    for plan in (of(), of(silos=5, families=3, seed=2)):
        for text in [*toy.texts(plan), *toy.public(recipe.ToyPublic(source="toy", pairs=90), plan)]:
            digest.update(repr((text.name, text.direction, everything(text))).encode())
    assert digest.hexdigest()[:16] == "fdf53ad482654edf"


# ── directions ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("directions", "expected"),
    [
        ("to-pivot", ["qaa-qtz", "qab-qtz", "qac-qtz", "qad-qtz"]),
        ("from-pivot", ["qtz-qaa", "qtz-qab", "qtz-qac", "qtz-qad"]),
        ("both", ["qaa-qtz", "qtz-qaa", "qab-qtz", "qtz-qab"]),
        ("many", ["qaa-qab", "qab-qaa", "qac-qad", "qad-qac"]),
        ("ring", ["qaa-qab", "qab-qaa", "qac-qad", "qad-qac"]),
    ],
)
def test_silos_go_into_the_pivot_out_of_it_or_from_family_to_family(directions: Any, expected: list[str]) -> None:
    plan = of(silos=4, families=2, directions=directions)
    assert [str(direction) for direction in toy.directions(plan)] == expected
    assert [str(text.direction) for text in toy.texts(plan)] == expected
    assert [str(text.direction) for text in toy.public(recipe.ToyPublic(source="toy"), plan)] == expected
    assert [text.name for text in toy.texts(plan)] == toy.names(plan)


def test_one_language_goes_both_ways_between_the_silos() -> None:
    assert toy.directions(of(silos=3, directions="both")) == [
        Direction("qaa", PIVOT),
        Direction(PIVOT, "qaa"),
        Direction("qaa", PIVOT),
    ]


def test_what_one_silo_says_into_the_pivot_another_says_out_of_it() -> None:
    into, out = (toy.texts(of(silos=1, directions=directions))[0] for directions in ("to-pivot", "from-pivot"))
    assert {Pair(pair.target, pair.source) for pair in everything(into)} & set(everything(out))


@given(st.integers(2, 8), st.integers(2, 64))
def test_from_family_to_family_sources_and_targets_group_otherwise(families: int, silos: int) -> None:
    plan = many(silos, families, 10)
    ends = [
        (toy.family(plan, direction.source), toy.family(plan, direction.target)) for direction in toy.directions(plan)
    ]
    assert all(source is not None and target is not None and source != target for source, target in ends)
    whole = silos - silos % families
    for side in (0, 1):
        count = Counter(pair[side] for pair in ends[:whole])
        assert len(set(count.values())) <= 1, "every family as often as every other"
    # Silos with one source family do not all have one target family, where there are enough of them for that.
    if families > 2 and silos >= 2 * families:
        assert len({pair for pair in ends if pair[0] == "family-1"}) > 1
    codes = Counter(code for direction in toy.directions(plan) for code in direction)
    assert max(codes.values()) <= 2, "each language is a source at one silo and a target at one"


@given(st.integers(2, 8), st.integers(2, 64))
def test_in_a_ring_who_shares_the_source_family_shares_the_target_family(families: int, silos: int) -> None:
    plan = of(silos, families, 10, directions="ring")
    ends = {
        (toy.family(plan, direction.source), toy.family(plan, direction.target)) for direction in toy.directions(plan)
    }
    assert len(ends) == len({source for source, _ in ends}) == len({target for _, target in ends})
    assert all(source != target for source, target in ends)


def test_families_are_told_by_the_codes_of_their_languages() -> None:
    plan = many(8, 4)
    assert [toy.family(plan, code) for code in ("qaa", "qab", "qae", "qah")] == [
        "family-1",
        "family-2",
        "family-1",
        "family-4",
    ]
    assert toy.family(of(silos=4, families=2), "qad") == "family-2"
    assert toy.family(plan, PIVOT) == "pivot"
    assert toy.family(plan, "qaz") is None
    assert toy.family(plan, "de") is None


def test_families_use_the_same_words_for_different_things() -> None:
    plan = many(8, 4)
    heads = [toy.language(plan, family, 0) for family in range(4)]
    for one in heads:
        for other in heads:
            if one is not other:
                assert set(one.roots.values()) == set(other.roots.values())
                same = sum(one.roots[meaning] == other.roots[meaning] for meaning in one.roots)
                assert same < len(one.roots) / 10
    assert len({(one.order, one.adjectives_first, one.postpositions, one.articles) for one in heads}) == 4
    eight = [toy.language(many(8, 8), family, 0) for family in range(8)]
    assert len({(one.order, one.adjectives_first, one.postpositions, one.articles) for one in eight}) == 8


def test_cousins_keep_most_words_and_all_grammar() -> None:
    plan = many(8, 4)
    head, cousin = toy.language(plan, 1, 0), toy.language(plan, 1, 1)
    meanings = [name for name in head.roots if "." in name]
    same = sum(head.roots[name] == head.roots[name].translate(cousin.changes) for name in meanings)
    assert len(meanings) / 2 < same < len(meanings)
    assert (head.roots, head.order, head.articles) == (cousin.roots, cousin.order, cousin.articles)
    # Reversible: no two words fall together.
    assert sorted(cousin.changes) == sorted(cousin.changes.values())


@pytest.mark.parametrize(("domains", "groups"), [(None, 1), (1, 1), (2, 2), (8, 8)])
def test_from_family_to_family_silos_share_a_domain_unless_there_are_several(domains: int | None, groups: int) -> None:
    plan = many(8, 4, 300, domains=domains)
    frequent = []
    for text in toy.texts(plan):
        family = int(str(toy.family(plan, text.direction.source))[-1]) - 1
        language = toy.language(plan, family, int(text.name[-1]) > 4)
        count = [words(everything(text), language, domain) for domain in range(8)]
        frequent.append(count.index(max(count)))
    assert frequent == [silo % groups for silo in range(8)]


def test_an_object_before_its_verb_and_a_subject_after_it() -> None:
    language = spelt("OVS", postpositions=True, articles=True, adjectives_first=False)
    assert language.say(CLAUSE) == "bread-acc eats-ed the dog-s old-s the town in"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"directions": "many"}, "families: `directions: many` goes from family to family; allowed: 2 to 8"),
        ({"domains": 4}, "domains: 4 for 3 silos; allowed: at most one a silo"),
    ],
)
def test_toys_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        of(**settings)
