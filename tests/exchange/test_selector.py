"""What travels is drawn anew each round, the same wherever it is drawn, and of about the asked share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmt.choices import (
    Pruning,
    SelectAll,
    SelectApf,
    SelectMetaSend,
    Selector,
    SelectPulling,
    SelectRandom,
    SelectTop,
    ThetaFixed,
)
from fedmt.exchange.selector import Needs, Scene, needs, select, whole
from fedmt.place import Side

SIDES: dict[str, Side] = {
    "e.a": "encoder",
    "e.b": "encoder",
    "d.a": "decoder",
    "d.b": "decoder",
    "s": "shared",
}

# Of each kind one that lets everything through, and one that does not.
OPEN: list[Selector] = [
    SelectAll(),
    SelectRandom(kind="random", share=1.0),
    SelectPulling(kind="dynamic_pulling", share=1.0),
    SelectPulling(kind="dynamic_pulling", share=1.0, send="less"),
    SelectPulling(kind="dynamic_pulling", share=1.0, median="tensors"),
    SelectPulling(kind="dynamic_pulling", share=1.0, median="tensors", send="less"),
    SelectPulling(kind="dynamic_pulling", threshold=0.0),
    SelectTop(kind="top_k", share=1.0),
    SelectTop(kind="top_k", share=1.0, by="change"),
    SelectApf(kind="apf", window=1, threshold=0.0),
    SelectMetaSend(kind="metasend", theta=ThetaFixed(kind="fixed", value=0.0)),
]
HALF: list[Selector] = [
    SelectRandom(kind="random"),
    SelectPulling(kind="dynamic_pulling"),
    SelectPulling(kind="dynamic_pulling", send="less", embedding="never"),
    SelectPulling(kind="dynamic_pulling", norm="l2", median="tensors"),
    SelectTop(kind="top_k"),
    SelectTop(kind="top_k", by="change"),
    SelectApf(kind="apf", window=1, threshold=0.9),
    SelectMetaSend(kind="metasend"),
    SelectMetaSend(kind="metasend", send="less", pruning=Pruning(hidden=8)),
]


def tensors(sizes: list[int]) -> dict[str, Tensor]:
    return {f"t{index}": torch.empty(size, device="meta") for index, size in enumerate(sizes)}


def bare(now: Mapping[str, Tensor], seed: int = 1, round: int = 1, who: str = "s") -> Scene:
    return Scene(now, {}, dict.fromkeys(now, "encoder"), seed, round, who)


def draw(selector: Selector, now: Mapping[str, Tensor], seed: int = 1, round: int = 1, who: str = "s") -> list[str]:
    chosen, state = select(selector, bare(now, seed, round, who), {})
    assert state == {}
    assert all(mask is None for mask in chosen.values())
    return list(chosen)


def engines(rounds: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn: list[dict[str, Tensor]] = [
        {name: torch.randn(4, 6, generator=generator) for name in SIDES},
    ]
    for _ in range(rounds):
        drawn.append({name: old + 0.1 * torch.randn(4, 6, generator=generator) for name, old in drawn[-1].items()})
    return drawn


def half() -> SelectRandom:
    return SelectRandom(kind="random", share=0.5)


sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def test_all_is_all_in_order() -> None:
    assert draw(SelectAll(), tensors([3, 1, 2])) == ["t0", "t1", "t2"]
    assert whole(SelectAll())
    assert not any(whole(selector) for selector in OPEN[1:] + HALF)


@given(sizes, st.integers(0, 2**32 - 1), st.integers(1, 100))
def test_a_draw_depends_on_nothing_but_its_arguments(sizes: list[int], seed: int, round: int) -> None:
    table = tensors(sizes)
    drawn = draw(half(), table, seed, round)
    assert drawn == draw(half(), table, seed, round)
    assert drawn == [name for name in table if name in drawn]
    assert set(drawn) == set(draw(half(), dict(reversed(table.items())), seed, round))


@given(sizes, st.floats(0.01, 1), st.integers(0, 1000))
def test_no_tensor_more_or_less_at_the_end_would_come_nearer(sizes: list[int], share: float, seed: int) -> None:
    table = tensors(sizes)
    drawn = draw(SelectRandom(kind="random", share=share), table, seed)
    assert drawn
    have, goal = sum(table[name].numel() for name in drawn), share * sum(sizes)
    assert len(drawn) == 1 or abs(have - goal) <= max(sizes) / 2 + 1e-6


def test_rounds_and_silos_draw_differently_and_all_tensors_get_their_turn() -> None:
    table = tensors([1] * 40)
    draws = [tuple(draw(half(), table, 1, round, silo)) for round in range(1, 21) for silo in "ab"]
    assert len(set(draws)) == 40
    times = [sum(name in draw for draw in draws) for name in table]
    # 40 fair coins: 20 ± 3.16, so this is four deviations.
    assert min(times) >= 7
    assert max(times) <= 33
    assert all(len(draw) == 20 for draw in draws)


@pytest.mark.parametrize("selector", OPEN, ids=str)
def test_what_lets_everything_through_is_the_full_exchange(selector: Selector) -> None:
    states: dict[str, Tensor] = {}
    drawn = engines(5)
    for round in range(1, 6):
        scene = Scene(drawn[round], drawn[round - 1], SIDES, 1, round, "s", 0.0)
        chosen, states = select(selector, scene, states)
        assert chosen == dict.fromkeys(SIDES)
        assert list(chosen) == list(drawn[round])


@pytest.mark.parametrize("selector", HALF, ids=str)
def test_a_choice_repeats_writes_to_nothing_and_keeps_the_order(selector: Selector) -> None:
    drawn = engines(4)
    state: dict[str, Tensor] = {}
    sent_less = False
    for round in range(1, 5):
        scene = Scene(drawn[round], drawn[round - 1], SIDES, 1, round, "s", 0.4)
        kept = [{name: t.clone() for name, t in each.items()} for each in (scene.now, scene.before, state)]
        chosen, after = select(selector, scene, state)
        for each, copy in zip((scene.now, scene.before, state), kept, strict=True):
            assert all(torch.equal(each[name], copy[name]) for name in copy)
        again, after_again = select(selector, scene, state)
        assert list(chosen) == list(again) == [name for name in SIDES if name in chosen]
        assert after.keys() == after_again.keys()
        assert all(torch.equal(after[name], after_again[name]) for name in after)
        for name, mask in chosen.items():
            other = again[name]
            assert (mask is None) == (other is None)
            if mask is not None and other is not None:
                assert torch.equal(mask, other)
                assert mask.dtype == torch.bool
                assert mask.shape == scene.now[name].shape
                assert mask.any()
                assert not mask.all()
        sent_less |= len(chosen) < len(SIDES) or any(mask is not None for mask in chosen.values())
        assert bool(after) == needs(selector).state
        state = after
    assert sent_less


@pytest.mark.parametrize("selector", OPEN + HALF, ids=str)
def test_what_is_not_needed_is_not_looked_at(selector: Selector) -> None:
    drawn = engines(1)
    before = drawn[0] if needs(selector).before else {}
    chosen, _ = select(selector, Scene(drawn[1], before, SIDES, 1, 1, "s", 0.4), {})
    assert chosen.keys() <= SIDES.keys()


def test_needs() -> None:
    assert needs(SelectTop(kind="top_k", by="change")) == Needs(before=True, state=False)
    assert needs(SelectTop(kind="top_k")) == Needs(before=False, state=False)
    assert needs(SelectMetaSend(kind="metasend", pruning=Pruning())) == Needs(before=True, state=True)


def test_metasend_without_a_threshold_says_so() -> None:
    drawn = engines(1)
    with pytest.raises(ValueError, match="threshold"):
        select(SelectMetaSend(kind="metasend"), Scene(drawn[1], drawn[0], SIDES, 1, 1, "s"), {})


def test_a_tensor_of_which_nothing_passes_is_absent_and_one_of_which_all_does_has_no_mask() -> None:
    now = {"small": torch.full((3, 2), 0.1), "mixed": torch.tensor([0.2, 5.0]), "large": torch.full((4,), -9.0)}
    chosen, _ = select(SelectTop(kind="top_k", share=5 / 12), bare(now), {})
    assert list(chosen) == ["mixed", "large"]
    assert chosen["large"] is None
    mask = chosen["mixed"]
    assert mask is not None
    assert mask.tolist() == [False, True]
