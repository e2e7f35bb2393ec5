from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt import recipe
from fedmt.corpus import packages, pypi, silos, toy
from fedmt.corpus.packages import Member, Preset
from fedmt.corpus.pairs import Direction, Pair, Text
from fedmt.corpus.split import key, place
from fedmt.errors import CorpusError
from fedmt.events import Event, Note
from tests.corpus import wheels

DE_EN = Direction("de", "en")


def tsv(folder: Path, name: str, pairs: list[tuple[str, str]]) -> str:
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(path)


def some(name: str, number: int) -> list[tuple[str, str]]:
    """Pairs whose sentences are in no other file."""
    return [(f"{name} Satz Nummer {index}", f"{name} sentence number {index}") for index in range(number)]


def plan(public: Any, *members: dict[str, Any], **more: Any) -> recipe.Recipe:
    return recipe.Recipe.model_validate({"public": public, "silos": list(members), **more})


def sets(**files: str | list[str]) -> dict[str, Any]:
    return {"from": "de", "to": "en", **files}


def members(pairs: list[tuple[str, str]]) -> list[Pair]:
    return [Pair(*pair) for pair in pairs]


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_data_is_split_by_hash_and_explicit_sets_are_honoured(tmp_path: Path) -> None:
    train, dev, test = some("train", 20), some("dev", 7), some("test", 9)
    whole = silos.gather(
        plan(
            sets(train=tsv(tmp_path, "public", some("public", 30))),
            {"name": "split", **sets(data=tsv(tmp_path, "data", some("data", 300)))},
            {
                "name": "given",
                **sets(train=tsv(tmp_path, "a", train), dev=tsv(tmp_path, "b", dev), test=tsv(tmp_path, "c", test)),
            },
        )
    )
    split, given = whole.silos
    for part, pairs in (("train", split.train), ("dev", split.dev), ("test", split.test)):
        assert [pair for pair in members(some("data", 300)) if place(key(pair.source), recipe.Split()) == part] == pairs
    assert (given.train, given.dev, given.test) == (members(train), members(dev), members(test))
    assert [text.train for text in whole.public] == [members(some("public", 30))]


def test_data_and_explicit_sets_may_stand_together(tmp_path: Path) -> None:
    both = sets(data=tsv(tmp_path, "data", some("data", 100)), train=tsv(tmp_path, "more", some("more", 10)))
    (text,) = silos.gather(plan(sets(train=tsv(tmp_path, "p", some("p", 5))), {"name": "a", **both})).silos
    assert len(text.train) + len(text.dev) + len(text.test) == 110
    assert text.train[:10] == members(some("more", 10))


def test_several_files_are_one_text_without_duplicates_between_them(tmp_path: Path) -> None:
    files = [tsv(tmp_path, "one", some("a", 50)), tsv(tmp_path, "two", some("a", 50) + some("b", 50))]
    (text,) = silos.gather(plan(sets(train=tsv(tmp_path, "p", some("p", 5))), {"name": "a", **sets(data=files)})).silos
    assert len(text.train) + len(text.dev) + len(text.test) == 100
    assert text.dropped["duplicates"] == 50
    assert text.origin == ", ".join(files)


def test_a_test_set_is_not_cleaned_of_what_its_makers_put_in(tmp_path: Path) -> None:
    test = [("OK", "OK"), ("Ja", "Yes"), ("Ja", "Yes"), ("Hm", "Well, " * 300)]
    given = sets(train=tsv(tmp_path, "a", some("a", 9)), test=tsv(tmp_path, "t", test))
    (text,) = silos.gather(plan(sets(train=tsv(tmp_path, "p", some("p", 5))), {"name": "a", **given})).silos
    assert [pair.source for pair in text.test] == ["OK", "Ja", "Ja", "Hm"]
    assert text.dev == []


# ── keeping apart ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_stands_in_a_test_or_dev_file_is_taken_out_of_every_training_set(tmp_path: Path) -> None:
    test, dev = some("test", 3), some("dev", 2)
    spelt_otherwise = [(source.upper(), f"other {target}") for source, target in test]
    whole = silos.gather(
        plan(
            sets(train=tsv(tmp_path, "public", [*some("public", 5), *dev])),
            {
                "name": "holder",
                **sets(
                    train=tsv(tmp_path, "h", [*some("h", 5), test[0]]),
                    dev=tsv(tmp_path, "d", dev),
                    test=tsv(tmp_path, "t", test),
                ),
            },
            {
                "name": "other",
                **sets(
                    train=tsv(tmp_path, "o", [*some("o", 5), *spelt_otherwise, *dev]),
                    test=tsv(tmp_path, "ot", some("ot", 1)),
                ),
            },
        )
    )
    assert whole.public[0].train == members(some("public", 5))
    assert [text.train for text in whole.silos] == [members(some("h", 5)), members(some("o", 5))]
    assert [text.dropped["held_out"] for text in [*whole.public, *whole.silos]] == [2, 1, 5]
    (combined,) = silos.combine(whole.silos)
    assert combined.train == members([*some("h", 5), *some("o", 5)])


def test_target_sentences_count_too_but_only_in_their_own_language(tmp_path: Path) -> None:
    def silo(
        name: str, source: str, target: str, train: list[tuple[str, str]], test: tuple[str, str]
    ) -> dict[str, Any]:
        files = {"train": tsv(tmp_path, f"{name}-train", train), "test": tsv(tmp_path, f"{name}-test", [test])}
        return {"name": name, "from": source, "to": target, **files}

    whole = silos.gather(
        plan(
            sets(train=tsv(tmp_path, "p", some("p", 5))),
            silo("german", "de", "en", [("Guten Tag", "Hello there"), ("Hotel", "a hotel")], ("Hallo", "Hello")),
            # Its target stands in the German silo's test; `Hallo` is no German here.
            silo("french", "fr", "en", [("Bonjour", "hello"), ("Hallo", "Halloo")], ("Hôtel", "hotel")),
            # Its source does, and the language is said in another way.
            silo("english", "en-GB", "fr", [("Hello", "Salut"), ("Bye", "Au revoir")], ("Yes", "Oui")),
        )
    )
    assert [text.train for text in whole.silos] == [
        [Pair("Guten Tag", "Hello there"), Pair("Hotel", "a hotel")],
        [Pair("Hallo", "Halloo")],
        [Pair("Bye", "Au revoir")],
    ]


SENTENCE = st.sampled_from([f"s{index}" for index in range(40)])
PAIRS = st.lists(st.tuples(SENTENCE, SENTENCE.map(lambda text: text.replace("s", "t"))), max_size=30)


@given(PAIRS, PAIRS, PAIRS, PAIRS, PAIRS)
@settings(max_examples=40, deadline=None)
def test_nothing_that_is_tested_on_is_ever_trained_on(
    tmp_path_factory: pytest.TempPathFactory,
    public: list[tuple[str, str]],
    data: list[tuple[str, str]],
    train: list[tuple[str, str]],
    dev: list[tuple[str, str]],
    test: list[tuple[str, str]],
) -> None:
    folder = tmp_path_factory.mktemp("held")
    # Some that are surely kept, so that no text is empty.
    first = {
        "name": "a",
        **sets(data=tsv(folder, "data", [*some("x", 60), *data]), test=tsv(folder, "test", [*some("t", 1), *test])),
    }
    second = {
        "name": "b",
        **sets(
            train=tsv(folder, "train", [*some("y", 2), *train]),
            dev=tsv(folder, "dev", [*some("d", 1), *dev]),
            test=tsv(folder, "bt", some("bt", 1)),
        ),
    }
    whole = silos.gather(plan(sets(data=tsv(folder, "public", [*some("p", 60), *public])), first, second))
    texts = [*whole.public, *whole.silos]
    for side in (0, 1):
        held = {key(pair[side]) for text in texts for pair in (*text.dev, *text.test)}
        assert held.isdisjoint(key(pair[side]) for text in texts for pair in text.train)
    asked = [Pair(*pair) for pair in test]
    assert whole.silos[0].test[-len(asked) :] == asked or not asked


# ── toy ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_toy_silos_bring_their_own_public_text_where_the_engine_learns_from_scratch() -> None:
    source = recipe.ToySilos(source="toy", silos=3, families=3, pairs=100)
    whole = silos.gather(recipe.Recipe(silos=source))
    assert [text.direction for text in whole.silos] == toy.directions(source)
    assert [text.direction for text in whole.public] == toy.directions(source)
    assert all(not text.test and text.dev for text in whole.public)


def test_an_engine_that_comes_trained_needs_none() -> None:
    source = recipe.ToySilos(source="toy", silos=2, pairs=100)
    assert silos.gather(recipe.Recipe(silos=source, engine=recipe.Pretrained(pretrained="x/y"))).public == []


def test_gathering_twice_gives_the_same() -> None:
    source = recipe.Recipe(silos=recipe.ToySilos(source="toy", silos=2, pairs=100))
    assert silos.gather(source) == silos.gather(source)


# ── sharing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def toys(**more: Any) -> recipe.Recipe:
    return recipe.Recipe.model_validate({"silos": {"source": "toy", "silos": 3, "pairs": 120, **more}})


def test_text_is_withheld_first_and_mixed_then() -> None:
    full, made = silos.gather(toys()), silos.gather(toys(share=0.5, low={"toy-2": 0.1}, mix=0.5))
    assert [(one.dev, one.test) for one in made.silos] == [(one.dev, one.test) for one in full.silos]
    assert made.public == full.public
    sizes = [len(one.train) for one in full.silos]
    assert [len(one.train) for one in made.silos] == [round(sizes[0] / 2), round(sizes[1] / 10), round(sizes[2] / 2)]
    shared = silos.gather(toys(share=0.5, low={"toy-2": 0.1}))
    before, after = ({pair for one in found.silos for pair in one.train} for found in (shared, made))
    assert before == after
    foreign = [len(set(one.train) - set(own.train)) for one, own in zip(made.silos, shared.silos, strict=True)]
    assert all(foreign)
    assert [one.dropped["share"] for one in made.silos] == [
        size - len(one.train) for size, one in zip(sizes, made.silos, strict=True)
    ]


def test_the_recipes_seed_shuffles_and_the_equal_deal_makes_sizes_alike() -> None:
    one, other = silos.gather(toys(mix=1)), silos.gather(toys(mix=1).model_copy(update={"seed": 2}))
    assert one != other
    made = silos.gather(toys(mix=1, deal="equal", low={"toy-1": 0.1})).silos
    assert max(len(text.train) for text in made) - min(len(text.train) for text in made) <= 1


def test_mixed_silos_are_still_tested_on_nothing_that_anyone_trains_on() -> None:
    made = silos.gather(toys(mix=0.7)).silos
    held = {key(pair.source) for one in made for pair in (*one.dev, *one.test)}
    assert held.isdisjoint(key(pair.source) for one in made for pair in one.train)


def listed(folder: Path, **options: Any) -> recipe.Recipe:
    one, other = (
        {
            "name": name,
            **sets(train=tsv(folder, name, some(name, 20)), test=tsv(folder, f"{name}-t", some(f"{name}t", 2))),
        }
        for name in ("a", "b")
    )
    silos_ = {"source": "files", "list": [one, other], **options} if options else [one, other]
    public = sets(train=tsv(folder, "p", some("p", 5)))
    return recipe.Recipe.model_validate({"public": public, "silos": silos_})


def test_files_take_the_same_options_in_their_long_form(tmp_path: Path) -> None:
    plain = silos.gather(listed(tmp_path))
    assert silos.gather(listed(tmp_path, mix=0)) == plain
    mixed = silos.gather(listed(tmp_path, mix=0.5, low={"b": 0.5}))
    assert [len(one.train) for one in mixed.silos] == [20, 10]
    assert {pair.source.split()[0] for pair in mixed.silos[0].train} == {"a", "b"}


def test_the_long_form_is_resolved_checked_and_written_like_the_short(tmp_path: Path) -> None:
    long, short = listed(tmp_path, mix=0.5), listed(tmp_path)
    assert recipe.listed(long.silos) == recipe.listed(short.silos) == short.silos
    assert recipe.listed(toys().silos) is None
    value = long.model_dump(mode="json", by_alias=True)
    assert recipe.Recipe.model_validate(value) == long
    value["silos"]["list"][0]["train"] = ["x.tsv"]
    moved = recipe.listed(recipe.resolve(recipe.Recipe.model_validate(value), tmp_path).silos)
    assert moved is not None
    assert moved[0].train == [str(tmp_path.resolve() / "x.tsv")]
    for changes, said in (
        ({"chain": ["a"]}, "chain: must name each silo once: a, b"),
        ({"public": None}, "public: an engine from scratch learns"),
        ({"silos": {**value["silos"], "list": value["silos"]["list"][:1] * 2}}, "silos: the name a stands twice"),
        ({"silos": {**value["silos"], "list": []}}, "at least 1 item"),
    ):
        with pytest.raises(ValueError, match=said):
            recipe.Recipe.model_validate({**value, **changes})


@pytest.mark.usefixtures("preset")
def test_packages_take_the_same_options_after_their_limit() -> None:
    whole = silos.gather(packaged(limit=20, share=0.5, mix=1.0)).silos
    assert [len(one.train) for one in whole] == [10, 10]
    assert {pair.source.split()[0] for pair in whole[0].train} == {"north", "south"}


def test_directions_are_known_before_the_text_is_read(tmp_path: Path) -> None:
    assert silos.directions(toys(families=3).silos) == {
        "toy-1": Direction("qaa", "qtz"),
        "toy-2": Direction("qab", "qtz"),
        "toy-3": Direction("qac", "qtz"),
    }
    assert silos.directions(listed(tmp_path, mix=0).silos) == {"a": DE_EN, "b": DE_EN}
    found = silos.directions(recipe.PypiSilos(source="pypi", names=["clinic", "shop-floor"][:1]))
    assert found == {"clinic": DE_EN}


def test_options_that_do_not_fit_the_silos_are_mistakes_before_and_errors_after() -> None:
    plan = toys(families=3, low={"toy-1": 0.5, "toy-4": 0.5}, mix=0.5)
    assert list(silos.mistakes(plan.silos)) == [
        (
            ("silos", "low", "toy-4"),
            "there is no silo 'toy-4'; did you mean `toy-3`?; allowed: toy-1, toy-2, toy-3",
        ),
        (("silos", "mix"), "no two silos go in the same direction, and only such can mix; allowed: 0"),
    ]
    with pytest.raises(CorpusError, match=r"^silos.low.toy-4: there is no silo 'toy-4'"):
        silos.gather(plan)
    assert list(silos.mistakes(toys(low={"toy-1": 0.5}, mix=0.5).silos)) == []


# ── packages ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages as silos and two as public text, all in the cache."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("FEDMT_CACHE", str(cache))
    known = {}
    for name in ("north", "south", "east", "west"):
        contents = {"app/locale/de/LC_MESSAGES/x.po": wheels.simple({to: source for source, to in some(name, 60)})}
        known[name] = wheels.package(wheels.write(cache, contents, name), name=name)
    monkeypatch.setattr(pypi, "PACKAGES", known)
    made = Preset(
        "a test",
        tuple(Member(f"{name}-silo", name, DE_EN) for name in ("north", "south")),
        tuple(Member(f"{name}-public", name, DE_EN) for name in ("east", "west")),
    )
    monkeypatch.setattr(silos, "PRESETS", {"german-english-8": made})


def packaged(public: dict[str, Any] | None = None, **more: Any) -> recipe.Recipe:
    return recipe.Recipe.model_validate({"silos": {"source": "pypi", **more}, "public": public})


@pytest.mark.usefixtures("preset")
def test_a_preset_brings_its_silos_and_its_public_text() -> None:
    heard: list[Event] = []
    whole = silos.gather(packaged(), heard.append)
    assert [text.name for text in whole.silos] == ["north-silo", "south-silo"]
    (public,) = whole.public
    assert {pair.source.split()[0] for pair in public.train} == {"east", "west"}
    assert (public.origin, public.licence) == ("east 1.0, west 1.0", "MIT")
    assert [text.origin for text in whole.silos] == ["north 1.0", "south 1.0"]
    notes = [event.text for event in heard if isinstance(event, Note)]
    assert "north 1.0 (north-office): MIT, https://example.org" in notes
    north = whole.silos[0]
    assert f"north-silo (de-en): {len(north.train)} train, {len(north.dev)} dev, {len(north.test)} test pairs" in notes


@pytest.mark.usefixtures("preset")
def test_a_package_in_several_directions_tells_its_licence_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twice = Preset("a test", tuple(Member(name, "north", DE_EN) for name in "ab"), (Member("c", "east", DE_EN),))
    monkeypatch.setattr(silos, "PRESETS", {"german-english-8": twice})
    heard: list[Event] = []
    silos.gather(packaged(), heard.append)
    assert heard.count(Note("north 1.0 (north-office): MIT, https://example.org")) == 1


@pytest.mark.usefixtures("preset")
def test_some_of_a_presets_silos_may_be_named() -> None:
    assert [text.name for text in silos.gather(packaged(names=["south-silo"])).silos] == ["south-silo"]
    with pytest.raises(CorpusError, match="has no silo south; allowed: north-silo, south-silo"):
        silos.gather(packaged(names=["south"]))


@pytest.mark.usefixtures("preset")
@pytest.mark.parametrize("name", ["south", "south-office"])
def test_a_silos_text_is_not_public(name: str) -> None:
    public = {"source": "pypi", "name": name}
    with pytest.raises(CorpusError, match=f"public: {name} is the private text of the silo south-silo"):
        silos.gather(packaged(public))
    assert silos.gather(packaged(public, names=["north-silo"])).public[0].origin == "south 1.0"


@pytest.mark.usefixtures("preset")
def test_a_limit_takes_pairs_by_hash_and_leaves_their_order() -> None:
    whole = silos.gather(packaged({"source": "pypi", "name": "east", "limit": 20}, limit=10))
    free = silos.gather(packaged({"source": "pypi", "name": "east"}))
    for limited, full, most in zip(
        [*whole.public, *whole.silos], [*free.public, *free.silos], (20, 10, 10), strict=True
    ):
        assert len(limited.train) == most
        chosen = set(limited.train)
        assert limited.train == [pair for pair in full.train if pair in chosen]
        assert limited.train != full.train[:most]
        assert (limited.dev, limited.test) == (full.dev, full.test)
        assert limited.dropped["limit"] == len(full.train) - most
    more = silos.gather(packaged({"source": "pypi", "name": "east"}, limit=11))
    assert set(whole.silos[0].train) < set(more.silos[0].train)


# ── mistakes and notes ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_silo_without_text_is_one_line_that_says_what_was_dropped(tmp_path: Path) -> None:
    public = sets(train=tsv(tmp_path, "p", some("p", 5)))
    copies = tsv(tmp_path, "copies", [("OK", "OK"), ("Radio", "Radio")])
    test = tsv(tmp_path, "t", some("t", 2))
    with pytest.raises(CorpusError) as caught:
        silos.gather(plan(public, {"name": "a", **sets(train=copies, test=test)}))
    assert str(caught.value) == (
        "silo a (de-en): no training text is left; 0 train, 0 dev and 2 test pairs are there; dropped by rule: copies 2"
    )
    with pytest.raises(CorpusError, match=r"silo a \(de-en\): no test text; give `test`, or .*; 5 train, 0 dev"):
        silos.gather(plan(public, {"name": "a", **sets(train=tsv(tmp_path, "a", some("a", 5)))}))
    with pytest.raises(CorpusError, match=r"public \(de-en\): no training text is left"):
        silos.gather(plan(sets(train=copies), {"name": "a", **sets(train=tsv(tmp_path, "a", some("a", 5)), test=test)}))


def test_a_training_set_that_is_all_held_out_is_said_to_be_so(tmp_path: Path) -> None:
    public = sets(train=tsv(tmp_path, "p", some("p", 5)))
    same = tsv(tmp_path, "same", some("same", 4))
    with pytest.raises(CorpusError, match="dropped by rule: held_out 4"):
        silos.gather(plan(public, {"name": "a", **sets(train=same, test=same)}))


def test_a_language_that_the_public_text_lacks_is_noted(tmp_path: Path) -> None:
    heard: list[Event] = []
    files = {"train": tsv(tmp_path, "a", some("a", 5)), "test": tsv(tmp_path, "t", some("t", 2))}
    silos.gather(
        plan(sets(train=tsv(tmp_path, "p", some("p", 5))), {"name": "a", "from": "fr", "to": "en-GB", **files}),
        heard.append,
    )
    assert Note("the public text holds no fr: the engine meets it first at the silos") in heard


# ── combining ───────────────────────────────────────────────────────────────────────────────────────────────────────


def text(name: str, direction: Direction, licence: str = "MIT", **dropped: int) -> Text:
    train, dev, test = ([Pair(f"{name} {part}", f"{name} {part}!")] for part in ("train", "dev", "test"))
    return Text(name, direction, train, dev, test, dropped, licence, f"{name}.tsv")


def test_combined_text_is_all_text_one_text_a_direction() -> None:
    fr_en = Direction("fr", "en")
    found = silos.combine(
        [text("a", DE_EN, copies=1), text("b", fr_en), text("c", DE_EN, "GPL", copies=2), text("d", DE_EN, ratio=1)]
    )
    assert [one.direction for one in found] == [DE_EN, fr_en]
    german = found[0]
    assert german.train == [Pair(f"{name} train", f"{name} train!") for name in "acd"]
    assert (len(german.dev), len(german.test), len(found[1].train)) == (3, 3, 1)
    assert german.dropped == {"copies": 3, "ratio": 1}
    assert (german.name, german.licence, german.origin) == ("combined", "MIT, GPL", "a.tsv, c.tsv, d.tsv")


def test_nothing_combined_is_nothing() -> None:
    assert silos.combine([]) == []


# ── the real ones ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("name", list(packages.PRESETS))
def test_the_real_presets_are_gathered_and_kept_apart(name: str) -> None:
    needed = [
        pypi.find(member.package) for part in ("silos", "public") for member in getattr(packages.PRESETS[name], part)
    ]
    missing = sorted({package.wheel for package in needed if not (pypi.cache() / package.wheel).is_file()})
    if missing:
        pytest.skip(f"not in {os.fspath(pypi.cache())}: {', '.join(missing)}")
    whole = silos.gather(recipe.Recipe.model_validate({"silos": {"source": "pypi", "preset": name}}))
    texts = [*whole.public, *whole.silos]
    held = {
        (code, key(pair[side]))
        for one in texts
        for pair in (*one.dev, *one.test)
        for side, code in enumerate(one.direction)
    }
    for one in texts:
        for pair in one.train:
            assert held.isdisjoint((code, key(pair[side])) for side, code in enumerate(one.direction))
    assert len(whole.silos) == len(packages.PRESETS[name].silos)
    assert min(len(one.test) for one in whole.silos) >= 40
