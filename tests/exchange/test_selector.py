"""What travels is drawn anew each round, the same wherever it is drawn, and of about the asked share."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmt.choices import SelectAll, SelectRandom
from fedmt.exchange.selector import select


def tensors(sizes: list[int]) -> dict[str, Tensor]:
    return {f"t{index}": torch.empty(size, device="meta") for index, size in enumerate(sizes)}


def half() -> SelectRandom:
    return SelectRandom(kind="random", share=0.5)


sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def test_all_is_all_in_order() -> None:
    assert select(SelectAll(), tensors([3, 1, 2]), 1, 1, "s") == ["t0", "t1", "t2"]


@given(sizes, st.integers(0, 2**32 - 1), st.integers(1, 100))
def test_a_draw_depends_on_nothing_but_its_arguments(sizes: list[int], seed: int, round: int) -> None:
    table = tensors(sizes)
    drawn = select(half(), table, seed, round, "s")
    assert drawn == select(half(), table, seed, round, "s")
    assert drawn == [name for name in table if name in drawn]
    assert set(drawn) == set(select(half(), dict(reversed(table.items())), seed, round, "s"))


@given(sizes, st.floats(0.01, 1), st.integers(0, 1000))
def test_no_tensor_more_or_less_at_the_end_would_come_nearer(sizes: list[int], share: float, seed: int) -> None:
    table = tensors(sizes)
    drawn = select(SelectRandom(kind="random", share=share), table, seed, 1, "s")
    assert drawn
    have, goal = sum(table[name].numel() for name in drawn), share * sum(sizes)
    assert len(drawn) == 1 or abs(have - goal) <= max(sizes) / 2 + 1e-6


def test_the_whole_share_is_everything() -> None:
    table = tensors([5, 1, 30, 2])
    assert select(SelectRandom(kind="random", share=1.0), table, 3, 1, "s") == list(table)


def test_rounds_and_silos_draw_differently_and_all_tensors_get_their_turn() -> None:
    table = tensors([1] * 40)
    draws = [tuple(select(half(), table, 1, round, silo)) for round in range(1, 21) for silo in "ab"]
    assert len(set(draws)) == 40
    times = [sum(name in draw for draw in draws) for name in table]
    # 40 fair coins: 20 ± 3.16, so this is four deviations.
    assert min(times) >= 7
    assert max(times) <= 33
    assert all(len(draw) == 20 for draw in draws)
