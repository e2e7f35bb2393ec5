"""Freezing: what goes to and fro stops travelling, what goes straight on never does, and what wakes is heard."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedmt.choices import SelectApf
from fedmt.exchange.freezing import freeze


def trace(settings: SelectApf, path: list[Tensor], rounds: list[int] | None = None) -> list[list[bool]]:
    """Of each round, which values travel."""
    state: dict[str, Tensor] = {}
    sent: list[list[bool]] = []
    for round, value in zip(rounds or range(1, len(path) + 1), path, strict=False):
        masks, state = freeze(settings, {"t": value}, round, state)
        mask = masks["t"]
        sent.append([True] * value.numel() if mask is None else mask.tolist())
    return sent


def runs(column: list[bool]) -> list[tuple[bool, int]]:
    """Lengths of equal values in a row."""
    found: list[tuple[bool, int]] = []
    for value in column:
        if found and found[-1][0] == value:
            found[-1] = (value, found[-1][1] + 1)
        else:
            found.append((value, 1))
    return found


def settings(window: int, threshold: float = 0.5, smoothing: float = 0.5) -> SelectApf:
    return SelectApf(kind="apf", window=window, threshold=threshold, smoothing=smoothing)


@pytest.mark.parametrize("window", [1, 3])
def test_what_stands_still_is_frozen_for_one_window_more_each_time(window: int) -> None:
    sent = trace(settings(window), [torch.tensor([1.0])] * (25 * window))
    lengths = runs([row[0] for row in sent])
    # Round 1 is the reference; a window later comes the first look, and what it finds counts from the next round.
    assert lengths[0] == (True, 1 + window)
    assert [length for awake, length in lengths[1:-1] if not awake][:4] == [window * length for length in (1, 2, 3, 4)]
    assert {length for awake, length in lengths[1:-1] if awake} == {window}


def test_to_and_fro_freezes_and_straight_on_does_not() -> None:
    path = [torch.tensor([float(step % 2), float(step), 0.01 * step]) for step in range(40)]
    sent = trace(settings(1, threshold=0.5, smoothing=0.9), path)
    assert all(row[1] and row[2] for row in sent)
    assert sum(row[0] for row in sent) < 25
    # With a window of two, one that returns to where it was looks as if it stood still.
    assert sum(row[0] for row in trace(settings(2, threshold=0.05), path)) < 25


def test_what_moves_again_has_its_freeze_halved() -> None:
    # It stands until it has been frozen for four windows, then walks on.
    still = [torch.tensor([0.0])] * 30
    lengths = runs([row[0] for row in trace(settings(1), still)])
    frozen = [length for awake, length in lengths if not awake]
    assert frozen[:4] == [1, 2, 3, 4]
    woken = 0
    for awake, length in lengths:
        woken += length
        if not awake and length == 4:
            break
    path = still[:woken] + [torch.tensor([float(step)]) for step in range(1, 20)]
    after = runs([row[0] for row in trace(settings(1), path)][woken:])
    # At the first look it has moved: 4 → 2, then 2 → 1, then 1 → 0: awake for good.
    assert [length for awake, length in after if not awake] == [2, 1]
    assert after[-1][0]


def test_of_one_tensor_each_value_goes_its_own_way_also_beyond_one_piece() -> None:
    size = 70_000
    steps = torch.zeros(size)
    steps[1::2] = 1.0
    state: dict[str, Tensor] = {}
    seen: list[Tensor] = []
    for round in range(1, 6):
        masks, state = freeze(settings(1), {"t": (steps * round).view(100, 700)}, round, state)
        mask = masks["t"]
        if mask is not None:
            assert mask.shape == (100, 700)
            seen.append(mask.view(-1))
    assert all(mask[1::2].all() for mask in seen)
    assert any(not mask[0::2].any() for mask in seen)
    assert all(mask[0::2].all() or not mask[0::2].any() for mask in seen)


def test_a_threshold_of_nothing_freezes_nothing() -> None:
    path = [torch.tensor([0.0, float(step % 2)]) for step in range(20)]
    assert all(all(row) for row in trace(settings(1, threshold=0.0), path))


def test_a_silo_that_missed_the_look_makes_it_in_its_next_round() -> None:
    still = [torch.tensor([1.0])] * 4
    # The look is due in round 5; the silo is back in round 7, and what it finds counts from its next.
    assert [row[0] for row in trace(settings(4), still, [1, 4, 7, 8])] == [True, True, True, False]


def test_the_effective_perturbation_is_the_papers() -> None:
    generator = torch.Generator().manual_seed(1)
    path = torch.randn(12, 50, generator=generator).cumsum(0)
    smoothing, threshold = 0.8, 0.4
    move, size = torch.zeros(50), torch.zeros(50)
    state: dict[str, Tensor] = {}
    period, left = [0] * 50, [0] * 50
    for round in range(1, 13):
        masks, state = freeze(settings(1, threshold, smoothing), {"t": path[round - 1]}, round, state)
        mask = masks["t"]
        assert [not value for value in left] == ([True] * 50 if mask is None else mask.tolist())
        if round == 1:
            continue
        delta = path[round - 1] - path[round - 2]
        for index in range(50):
            if left[index]:
                left[index] -= 1
                continue
            move[index] = smoothing * move[index] + (1 - smoothing) * delta[index]
            size[index] = smoothing * size[index] + (1 - smoothing) * delta[index].abs()
            stable = bool(move[index].abs() / size[index] < threshold)
            period[index] = period[index] + 1 if stable else period[index] // 2
            left[index] = period[index]
    assert max(period) > 1
    torch.testing.assert_close(state["move/t"], move)
    torch.testing.assert_close(state["size/t"], size)


def test_the_state_does_not_hang_on_the_engine() -> None:
    value = torch.ones(3)
    _, state = freeze(settings(1), {"t": value}, 1, {})
    value += 1
    assert state["reference/t"].tolist() == [1.0, 1.0, 1.0]
    _, state = freeze(settings(1), {"t": value}, 2, state)
    value += 1
    assert state["reference/t"].tolist() == [2.0, 2.0, 2.0]
