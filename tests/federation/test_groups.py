"""Who merges with whom: every kind of groups, whatever the silos' order, and how alike two groupings are."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedmt import choices
from fedmt.corpus import families
from fedmt.errors import Refused
from fedmt.federation.groups import Grouping, agreement, cluster, group, mistakes

DIRECTIONS = {
    "clinic": ("de", "fr"),
    "shop": ("fr", "nl"),
    "court": ("pl", "en"),
    "press": ("nl", "pl"),
    "lab": ("it", "sl"),
    "museum": ("sl", "es"),
}
SILOS = list(DIRECTIONS)


def of(kind: str, **settings: Any) -> choices.Groups:
    return TypeAdapter[choices.Groups](choices.Groups).validate_python({"kind": kind, **settings})


def grouped(groups: choices.Groups, silos: Sequence[str] = SILOS, seed: int = 1, **more: Any) -> Grouping:
    return group(groups, silos, DIRECTIONS, seed, families.family, more.get("gradients"))


def parts(grouping: Grouping, side: Any) -> set[frozenset[str]]:
    """Which silos stand together, whatever their label."""
    found: dict[str, set[str]] = {}
    for silo, own in grouping.labels.items():
        found.setdefault(own[side], set()).add(silo)
    return {frozenset(members) for members in found.values()}


# ── kinds ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_groups_a_tensor_has_its_own_name() -> None:
    grouping = grouped(of("none"))
    assert {grouping.together(silo) for silo in SILOS} == {("", "", "")}
    assert grouping.key("shop", "encoder", "layers.0.fc1.weight") == "layers.0.fc1.weight"


def test_alone_nobody_shares_a_tensor() -> None:
    grouping = grouped(of("alone"))
    assert grouping.together("shop") == ("shop", "shop", "shop")
    assert grouping.key("shop", "shared", "shared.weight") == "shop/shared.weight"


def test_encoders_go_by_the_sources_family_and_decoders_by_the_targets() -> None:
    grouping = grouped(of("families"))
    assert grouping.along("encoder") == ["Germanic", "Romance", "Slavic", "Germanic", "Romance", "Slavic"]
    assert grouping.along("decoder") == ["Romance", "Germanic", "Germanic", "Slavic", "Slavic", "Romance"]
    assert grouping.along("shared") == [""] * 6
    assert grouping.key("clinic", "encoder", "x") == "Germanic/x"
    assert grouping.key("clinic", "decoder", "x") == "Romance/x"
    assert grouping.key("clinic", "shared", "x") == "x"


def test_one_family_for_all_is_everyone() -> None:
    assert grouped(of("families", level="family")) == grouped(of("none"))


def test_many_languages_into_one_have_one_decoder() -> None:
    into = {"a": ("zh", "en"), "b": ("ru", "en"), "c": ("fi", "en"), "d": ("et", "en")}
    for groups in (of("families"), of("random")):
        grouping = group(groups, list(into), into, 1, families.family)
        assert len(set(grouping.along("encoder"))) == 3
        assert grouping.along("decoder") == [""] * 4


@pytest.mark.parametrize("kind", ["families", "random", "gradients"])
@pytest.mark.parametrize(("sides", "other"), [("encoder", "decoder"), ("decoder", "encoder")])
def test_a_side_may_be_left_ungrouped(kind: str, sides: str, other: Any) -> None:
    vectors = {silo: {sides: torch.eye(6)[index]} for index, silo in enumerate(SILOS)}
    settings = {"count": 3} if kind == "gradients" else {}
    grouping = grouped(of(kind, sides=sides, **settings), gradients=vectors)
    assert grouping.along(other) == grouping.along("shared") == [""] * 6
    side: Any = sides
    assert len(set(grouping.along(side))) == 3


def test_random_groups_are_of_like_sizes_and_as_many_as_the_families() -> None:
    grouping = grouped(of("random"))
    for side in ("encoder", "decoder"):
        assert sorted(map(len, parts(grouping, side))) == [2, 2, 2]
    assert sorted(map(len, parts(grouped(of("random", count=4)), "encoder"))) == [1, 1, 2, 2]
    assert grouped(of("random", count=1)) == grouped(of("none"))
    assert len(parts(grouped(of("random", count=6)), "decoder")) == 6


def test_random_groups_are_drawn_by_the_seed_and_for_each_side_apart() -> None:
    drawn = [grouped(of("random", count=2), seed=seed) for seed in range(12)]
    assert drawn[0] == grouped(of("random", count=2), seed=0)
    assert len({frozenset(parts(one, "encoder")) for one in drawn}) > 3
    assert any(parts(one, "encoder") != parts(one, "decoder") for one in drawn)
    # Pinned: a run's groups are the same on every machine and in every version.
    assert drawn[1].along("encoder") == ["g1", "g1", "g2", "g1", "g2", "g2"]


def test_explicit_groups_are_as_written_and_the_others_stand_together() -> None:
    grouping = grouped(of("explicit", encoder={"health": ["clinic", "lab"], "trade": ["shop"]}))
    assert grouping.along("encoder") == ["health", "trade", "_rest", "_rest", "health", "_rest"]
    assert grouping.along("decoder") == [""] * 6
    assert grouped(of("explicit", encoder={"all": SILOS})) == grouped(of("none"))


def test_one_silo_is_everyone() -> None:
    for groups in (of("none"), of("alone"), of("families"), of("random"), of("explicit", encoder={"a": ["shop"]})):
        assert group(groups, ["shop"], DIRECTIONS, 1, families.family).together("shop") == ("", "", "")


@given(st.permutations(SILOS), st.integers(0, 20), st.sampled_from(["families", "random", "gradients", "explicit"]))
def test_who_stands_together_does_not_depend_on_the_silos_order(silos: list[str], seed: int, kind: str) -> None:
    settings: dict[str, Any] = {"families": {}, "random": {"count": 4}, "gradients": {"count": 3}}.get(
        kind, {"encoder": {"a": ["shop", "lab"]}, "decoder": {"b": ["press"], "c": ["lab", "court"]}}
    )
    # Few different values: much is equally far apart.
    chance = random.Random(seed)
    vectors: dict[str, dict[str, Tensor]] = {
        silo: {side: torch.tensor([1.0, *chance.choices([-1.0, 0.0, 1.0], k=2)]) for side in ("encoder", "decoder")}
        for silo in SILOS
    }
    one, other = (grouped(of(kind, **settings), order, seed, gradients=vectors) for order in (SILOS, silos))
    for side in ("encoder", "decoder"):
        assert parts(one, side) == parts(other, side)
        firsts = [label for label in dict.fromkeys(other.along(side)) if label[:1] == "g"]
        assert firsts == [f"g{place}" for place in range(1, len(firsts) + 1)]


@pytest.mark.parametrize("kind", ["none", "alone", "families", "random"])
def test_a_grouping_goes_through_a_checkpoint(kind: str) -> None:
    grouping = grouped(of(kind))
    assert Grouping.from_numbers(json.loads(json.dumps(grouping.as_numbers()))) == grouping


@pytest.mark.parametrize("kind", ["alone", "families", "random"])
def test_silos_that_are_together_share_every_name(kind: str) -> None:
    grouping = grouped(of(kind))
    for one in SILOS:
        for other in SILOS:
            sides: Any = ("encoder", "decoder", "shared")
            same = all(grouping.key(one, side, "x") == grouping.key(other, side, "x") for side in sides)
            assert same == (grouping.together(one) == grouping.together(other))


# ── gradients ───────────────────────────────────────────────────────────────────────────────────────────────────────


def at(*degrees: float) -> dict[str, Tensor]:
    """Silos a, b, c, … whose gradients point so; their lengths differ and do not count."""
    turns = torch.deg2rad(torch.tensor(degrees))
    vectors = torch.stack([turns.cos(), turns.sin()], 1) * torch.arange(1, len(degrees) + 1)[:, None]
    return {chr(ord("a") + index): vector for index, vector in enumerate(vectors)}


def joined(vectors: dict[str, Tensor], count: int | None = None, threshold: float | None = None) -> list[str]:
    return ["".join(members) for members in cluster(vectors, count, threshold)]


def test_silos_whose_gradients_point_the_same_way_are_joined() -> None:
    vectors = at(0, 180, 10, 170, 90)
    assert joined(vectors, count=3) == ["ac", "bd", "e"]
    assert joined(vectors, count=5) == ["a", "b", "c", "d", "e"]
    assert joined(vectors, count=1) == ["abcde"]
    assert joined(vectors, count=9) == ["a", "b", "c", "d", "e"]


def test_clusters_are_as_far_apart_as_their_members_on_average() -> None:
    # a and b are 1 − cos 20° apart. c is 1 − cos 40° from b and 1 − cos 60° from a: 0.367 from both on average.
    vectors = at(0, 20, 60)
    assert joined(vectors, threshold=0.36) == ["ab", "c"]
    assert joined(vectors, threshold=0.37) == ["abc"]
    # Single linkage would go on along the chain, complete linkage would stop at 0.5.
    assert joined(vectors, threshold=0.234) == ["ab", "c"]


def test_opposite_gradients_are_two_apart() -> None:
    assert joined(at(0, 180), threshold=1.99) == ["a", "b"]
    assert joined(at(0, 180), threshold=2.0) == ["ab"]


def test_of_equally_near_ones_those_whose_names_come_first_join() -> None:
    assert joined(at(0, 90, 180, 270), count=3) == ["ab", "c", "d"]


def test_gradients_are_grouped_on_each_side_apart() -> None:
    encoder, decoder = at(0, 5, 90, 95, 0, 90), at(0, 90, 0, 90, 5, 85)
    vectors = {
        silo: {"encoder": encoder[letter], "decoder": decoder[letter]}
        for silo, letter in zip(SILOS, "abcdef", strict=True)
    }
    grouping = grouped(of("gradients", count=2), gradients=vectors)
    assert grouping.along("encoder") == ["g1", "g1", "g2", "g2", "g1", "g2"]
    assert grouping.along("decoder") == ["g1", "g2", "g1", "g2", "g1", "g2"]


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        ({"a": torch.ones(2), "b": torch.zeros(2)}, "b refused: its gradient has the length 0.0"),
        ({"a": torch.tensor([1.0, float("nan")]), "b": torch.ones(2)}, "a refused: its gradient has the length nan"),
        ({"a": torch.ones(2), "b": torch.ones(3)}, "b refused: its gradient has 3 values, that of a 2"),
    ],
)
def test_a_gradient_that_points_nowhere_is_refused(vectors: dict[str, Tensor], said: str) -> None:
    with pytest.raises(Refused, match=said):
        cluster(vectors, 1, None)


def test_groups_of_gradients_need_gradients() -> None:
    with pytest.raises(ValueError, match="need gradients"):
        grouped(of("gradients", count=2))


@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3).map(lambda v: [*v, 1.0]), min_size=1, max_size=7),
    st.floats(0.01, 2),
)
def test_clusters_are_apart_and_a_larger_threshold_only_joins(rows: list[list[float]], threshold: float) -> None:
    vectors = {f"s{index}": torch.tensor(row) for index, row in enumerate(rows)}
    fine, coarse = cluster(vectors, None, threshold / 2), cluster(vectors, None, threshold)
    assert sorted(name for members in fine for name in members) == sorted(vectors)
    for members in fine:
        assert any(set(members) <= set(larger) for larger in coarse)


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def wrong(groups: choices.Groups) -> list[tuple[tuple[str | int, ...], str]]:
    return list(mistakes(groups, SILOS, DIRECTIONS, families.family))


@pytest.mark.parametrize(
    "groups",
    [
        of("none"),
        of("alone"),
        of("families"),
        of("families", sides="encoder", level="family"),
        of("random"),
        of("random", count=6),
        of("gradients", count=6),
        of("gradients", threshold=0.5, batches=3),
        of("explicit", decoder={"a": ["shop"]}),
    ],
)
def test_groups_that_fit_have_no_mistakes(groups: choices.Groups) -> None:
    assert wrong(groups) == []


def test_a_silo_that_is_not_there_is_a_mistake_where_it_stands() -> None:
    found = wrong(of("explicit", encoder={"a": ["shop", "clinik"]}, decoder={"b": []}))
    allowed = "clinic, shop, court, press, lab, museum"
    assert found == [
        (("groups", "encoder", "a", 1), f"there is no silo 'clinik'; did you mean `clinic`?; allowed: {allowed}"),
        (("groups", "decoder", "b"), "is empty; allowed: one silo or more"),
    ]


@pytest.mark.parametrize("kind", ["random", "gradients"])
def test_more_groups_than_silos_are_a_mistake(kind: str) -> None:
    said = "7 groups of 6 silos; allowed: at most one a silo"
    assert wrong(of(kind, count=7)) == [(("groups", "count"), said)]


def test_explicit_groups_without_a_group_are_a_mistake() -> None:
    assert [path for path, _ in wrong(of("explicit"))] == [("groups", "kind")]


@pytest.mark.parametrize(
    ("groups", "number"),
    [
        (of("families"), 2),
        (of("families", sides="encoder"), 1),
        (of("random"), 2),
        (of("random", count=1), 0),
        (of("none"), 0),
        (of("gradients", count=1), 0),
    ],
)
def test_a_language_without_a_family_is_a_mistake_once(groups: choices.Groups, number: int) -> None:
    directions = {"a": ("qaa", "qab"), "b": ("qaa", "de")}
    found = list(mistakes(groups, ["a", "b"], directions, families.family))
    assert len(found) == number
    assert all(path == ("groups", "kind") and "explicit" in text for path, text in found)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gradients", {}),
        ("gradients", {"count": 2, "threshold": 0.5}),
        ("gradients", {"threshold": 2.5}),
        ("random", {"count": 0}),
        ("families", {"level": "clan"}),
        ("explicit", {"encoder": {"a": ["shop"], "b": ["shop"]}}),
        ("explicit", {"encoder": {"_rest": ["shop"]}}),
    ],
)
def test_bad_settings_are_no_groups(kind: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        of(kind, **settings)


# ── agreement ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        ("aabb", "xxyy", 1.0),
        ("aabb", "yyxx", 1.0),
        ("aabb", "xyxy", -0.5),
        ("aabb", "xxyz", 0.571429),
        ("aabc", "xxyy", 0.571429),
        ("aaaa", "wxyz", 0.0),
        ("aaaa", "xxxx", 1.0),
        ("abcd", "wxyz", 1.0),
        ("aaabbb", "xxyyzz", 0.242424),
        ("a", "x", 1.0),
        ("", "", 1.0),
    ],
)
def test_agreement_is_the_adjusted_rand_index(one: str, other: str, value: float) -> None:
    # The values are those of scikit-learn's adjusted_rand_score, most of them from its documentation and tests.
    assert agreement(one, other) == pytest.approx(value, abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20), st.randoms())
def test_agreement_is_symmetric_and_blind_to_names_and_order(
    pairs: list[tuple[int, int]], chance: random.Random
) -> None:
    one, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    value = agreement(one, other)
    assert value <= 1
    assert agreement(one, one) == 1
    assert agreement(other, one) == pytest.approx(value)
    assert agreement([f"g{3 - label}" for label in one], other) == pytest.approx(value)
    chance.shuffle(pairs)
    assert agreement([pair[0] for pair in pairs], [pair[1] for pair in pairs]) == pytest.approx(value)


def test_labellings_of_different_things_do_not_compare() -> None:
    with pytest.raises(ValueError, match="of 2 and of 3 things"):
        agreement("ab", "abc")
