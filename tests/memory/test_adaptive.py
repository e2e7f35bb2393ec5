from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmt.errors import RunError
from fedmt.memory import adaptive as learning
from fedmt.memory.adaptive import Adaptive, Looked, Weights, features, mix
from fedmt.memory.quantise import write_sheet

DRAW = torch.Generator().manual_seed(5)


def random_adaptive(neighbours: int = 8, width: int = 6) -> Adaptive:
    torch.manual_seed(1)
    made = Adaptive(neighbours, width)
    made.probes, made.threshold = 7, 0.25
    with torch.no_grad():
        made.unit.fill_(3.0)
        made.log_temperature.fill_(0.5)
    return made.requires_grad_(False)


def looked(count: int = 600, neighbours: int = 4, right: float = 0.5) -> Looked:
    """Where the first neighbour is near, it is the token; where it is far, it is none: the engine's half right."""
    near = torch.rand(count, generator=DRAW) < right
    target = torch.randint(0, 50, (count,), generator=DRAW)
    others = torch.randint(50, 99, (count, neighbours), generator=DRAW)
    others[near] = target[near, None]
    first = torch.where(near, 1.0, 20.0)[:, None]
    distances = first + torch.rand(count, neighbours, generator=DRAW).sort().values
    return Looked(distances, others, target, torch.full((count,), math.log(0.3)))


# ── weights ──


@pytest.mark.parametrize("neighbours", [1, 2, 4, 8, 64])
def test_the_candidates_are_nought_and_powers_of_two(neighbours: int) -> None:
    made = Adaptive(neighbours, 4)
    assert made.candidates == [0, *(k for k in (1, 2, 4, 8, 16, 32, 64) if k <= neighbours)]
    distances = torch.rand(5, neighbours).sort().values
    weights = made.weights(distances, torch.randint(9, (5, neighbours)))
    assert weights.shares.shape == (5, len(made.candidates))
    assert (weights.own + weights.each.sum(-1)).tolist() == pytest.approx([1.0] * 5, abs=1e-5)


def test_weights_are_the_formula_written_out() -> None:
    made = random_adaptive()
    distances = torch.rand(6, 8, generator=DRAW).cumsum(-1) * 5
    tokens = torch.randint(0, 4, (6, 8), generator=DRAW)
    weights = made.weights(distances, tokens)
    for row in range(6):
        counts = [len(set(tokens[row, : k + 1].tolist())) / 8 for k in range(8)]
        near = (distances[row] / 3.0).clamp(max=10.0)
        shares = made.meta(torch.cat([near, torch.tensor(counts)])).softmax(-1)
        assert torch.allclose(weights.shares[row], shares, atol=1e-6)
        each = torch.zeros(8)
        for share, k in zip(shares[1:], (1, 2, 4, 8), strict=True):
            mass = [math.exp(-float(distances[row, i]) / math.exp(0.5)) for i in range(k)]
            for i in range(k):
                each[i] += float(share) * mass[i] / sum(mass)
        assert torch.allclose(weights.each[row], each, atol=1e-5)
        assert float(weights.own[row]) == pytest.approx(float(shares[0]))


def test_neighbours_that_are_not_there_weigh_nothing() -> None:
    made = Adaptive.fixed(4, 6, {0: 0.2, 4: 0.8}, 1.0, 1)
    distances = torch.tensor([[1.0, 2.0, math.inf, math.inf], [math.inf] * 4])
    weights = made.weights(distances, torch.tensor([[3, 5, -1, -1], [-1] * 4]))
    assert weights.each[:, 2:].sum() == 0
    assert (weights.own + weights.each.sum(-1)).tolist() == pytest.approx([1.0, 1.0])
    assert weights.own.tolist() == pytest.approx([0.2, 1.0])
    assert weights.shares.isfinite().all()


def test_distances_that_are_far_from_another_do_not_overflow() -> None:
    made = Adaptive.fixed(4, 6, {4: 1.0}, 0.01, 1)
    weights = made.weights(torch.tensor([[1e5, 2e5, 3e5, 4e5]]), torch.tensor([[1, 2, 3, 4]]))
    assert weights.each.tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("shares", [{0: 0.5}, {3: 1.0}, {0: 0.5, 8: 0.5}])
def test_shares_that_cannot_be_are_refused(shares: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="must add up to 1, of 0, 1, 2, 4 neighbours"):
        Adaptive.fixed(4, 6, shares, 1.0, 1)


# ── the mixture ──


def test_the_mixture_is_the_sum_written_out() -> None:
    log_probs = torch.randn(3, 10, generator=DRAW).log_softmax(-1)
    tokens = torch.tensor([[1, 1, 4, -1], [0, 9, 2, 0], [-1, -1, -1, -1]])
    each = torch.tensor([[0.1, 0.2, 0.3, 0.0], [0.1, 0.1, 0.1, 0.2], [0.0, 0.0, 0.0, 0.0]])
    own = 1 - each.sum(-1)
    before = log_probs.clone()
    mixed = mix(log_probs, Weights(own, each, own[:, None]), tokens)
    wanted = own[:, None] * log_probs.exp()
    for row in range(3):
        for token, weight in zip(tokens[row].tolist(), each[row].tolist(), strict=True):
            if token >= 0:
                wanted[row, token] += weight
    assert torch.allclose(mixed.exp(), wanted, atol=1e-6)
    assert torch.equal(log_probs, before)
    assert torch.equal(mixed[2], log_probs[2])


def test_rows_that_are_not_mixed_keep_every_bit_and_the_others_are_mixed_in_place() -> None:
    log_probs = torch.randn(6, 40, generator=DRAW).log_softmax(-1)
    tokens = torch.randint(40, (3, 4), generator=DRAW)
    tokens[1, 2:] = -1
    each = torch.rand(3, 4, generator=DRAW) / 8 * (tokens >= 0)
    weights = Weights(1 - each.sum(-1), each, each)
    rows, before = torch.tensor([1, 2, 5]), log_probs.clone()
    mixed = learning.mix_rows(log_probs, rows, weights, tokens)
    assert mixed is log_probs
    assert torch.equal(mixed[[0, 3, 4]], before[[0, 3, 4]])
    assert torch.equal(mixed[rows], mix(before[rows], weights, tokens))
    assert not torch.isclose(mixed[rows], before[rows]).all(-1).any()


def test_an_engines_share_of_all_changes_no_bit() -> None:
    log_probs = 30 * torch.randn(4, 50, generator=DRAW)
    own, each = torch.ones(4), torch.zeros(4, 8)
    assert torch.equal(
        mix(log_probs, Weights(own, each, own[:, None]), torch.randint(50, (4, 8), generator=DRAW)), log_probs
    )


def test_an_engines_share_of_nothing_leaves_finite_numbers() -> None:
    each = torch.tensor([[1.0, 0.0]])
    mixed = mix(torch.zeros(1, 5).log_softmax(-1), Weights(torch.zeros(1), each, each), torch.tensor([[2, 3]]))
    assert mixed.isfinite().all()
    assert mixed[0, 2].exp() == pytest.approx(1.0)


# ── learning ──


def test_meta_k_learns_when_to_trust_neighbours() -> None:
    """Near ones are right and far ones wrong: neither the engine nor the neighbours alone come near."""
    seen = looked()
    made = learning.fit(seen, 6, None, 5, seed=2)
    near = seen.distances[:, 0] < 10
    weights = made.weights(seen.distances, seen.tokens)
    assert float(weights.own[near].mean()) < 0.15
    assert float(weights.own[~near].mean()) > 0.85
    engine_alone = -float(seen.target_log.mean())
    assert float(learning.loss_of(made, seen)) < 0.65 * engine_alone
    assert made.probes == 5
    assert not any(parameter.requires_grad for parameter in made.parameters())


def test_the_temperature_is_learnt_where_it_matters() -> None:
    """The nearest of two is always right and the other wrong: the colder the better. It begins at their mean gap."""
    count = 500
    distances = torch.tensor([10.0, 12.0]).repeat(count, 1) + torch.rand(count, 1, generator=DRAW)
    target = torch.randint(0, 9, (count,), generator=DRAW)
    seen = Looked(distances, torch.stack([target, target + 10], -1), target, torch.full((count,), -9.0))
    learnt = learning.fit(seen, 6, None, 1, seed=2)
    assert learnt.temperature < 0.95
    fixed = learning.fit(seen, 6, 30.0, 1, seed=2)
    assert fixed.temperature == pytest.approx(30.0)


def test_learning_is_the_same_every_time_and_leaves_the_random_state_alone() -> None:
    seen = looked()
    before = torch.get_rng_state()
    first, again, other = (learning.fit(seen, 6, None, 1, seed) for seed in (2, 2, 3))
    assert torch.equal(torch.get_rng_state(), before)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_where_nothing_was_found_there_is_nothing_to_learn() -> None:
    nothing = Looked(
        torch.full((50, 4), math.inf), torch.full((50, 4), -1), torch.zeros(50).long(), torch.full((50,), -2.0)
    )
    made = learning.fit(nothing, 6, None, 1, 1)
    assert float(learning.loss_of(made, nothing)) == pytest.approx(2.0)
    assert all(parameter.isfinite().all() for parameter in made.parameters())


# ── the gate ──


def gated(count: int, keep: float, seed: int = 1) -> tuple[Adaptive, Tensor, Tensor, float]:
    """One number tells, though not surely, whether the token changes."""
    draw = torch.Generator().manual_seed(9)
    seen = torch.randn(count, 16, generator=draw)
    changed = seen[:, 7] + 0.3 * torch.randn(count, generator=draw) > 1.0
    made = Adaptive(4, 6)
    return made, seen, changed, learning.fit_gate(made, seen, changed, keep, seed)


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.98, 1.0])
def test_the_gate_passes_the_share_that_is_asked_for(keep: float) -> None:
    made, seen, changed, looked_up = gated(4000, keep)
    judged = learning.held_out(4000)
    passed = made.asks(seen)
    assert float(passed[judged][changed[judged]].float().mean()) >= keep
    assert float(passed[changed].float().mean()) == pytest.approx(keep, abs=0.06)
    assert looked_up == pytest.approx(float(passed[judged].float().mean()))
    assert looked_up < {0.5: 0.12, 0.9: 0.25, 0.98: 0.42, 1.0: 0.5}[keep]


def test_a_gate_with_nothing_to_learn_from_lets_all_pass() -> None:
    made = Adaptive(4, 6)
    assert learning.fit_gate(made, torch.randn(100, 16), torch.zeros(100, dtype=torch.bool), 0.9, 1) == 1.0
    assert made.threshold is None
    assert made.asks(torch.randn(5, 16)).all()


def test_a_gate_is_the_same_every_time() -> None:
    first, again = gated(500, 0.9)[0], gated(500, 0.9)[0]
    assert first.threshold == again.threshold
    assert all(torch.equal(a, b) for a, b in zip(first.gate.parameters(), again.gate.parameters(), strict=True))


def test_a_constant_feature_does_not_divide_by_nothing() -> None:
    made, seen = Adaptive(4, 6), torch.randn(200, 16)
    seen[:, 2] = 4.0
    learning.fit_gate(made, seen, seen[:, 0] > 0, 0.9, 1)
    assert made.scores(seen).isfinite().all()


@pytest.mark.parametrize("size", [16, 100, 1000, 5003])
def test_features_are_what_they_are_called(size: int) -> None:
    hidden, log_probs = torch.randn(3, 6), (4 * torch.randn(3, size, generator=DRAW)).log_softmax(-1)
    log_probs[0, -1] = 0.5  # the last one, beyond whole blocks, counts too
    seen = features(hidden, log_probs)
    assert seen.shape == (3, 6 + 8 + 2)
    assert seen[:, :6].mean(-1).tolist() == pytest.approx([0.0] * 3, abs=1e-5)
    head, true = seen[:, 6:14], log_probs.sort(descending=True).values
    assert torch.equal(head[:, 0], true[:, 0])
    assert (head <= true[:, :8]).all()
    assert bool((head.diff() <= 0).all())
    assert torch.equal(seen[:, 14], head[:, 0] - head[:, 1])
    entropy = [-sum(math.exp(one) * one for one in row) for row in head.tolist()]
    assert seen[:, 15].tolist() == pytest.approx(entropy, abs=1e-4)


def test_what_cannot_be_chosen_gives_finite_features() -> None:
    log_probs = torch.full((1, 100), -math.inf)
    log_probs[0, 3] = 0.0
    assert features(torch.zeros(1, 6), log_probs).isfinite().all()


# ── in a folder ──


def test_what_was_learnt_comes_back_from_its_folder(tmp_path: Path) -> None:
    made = random_adaptive()
    made.save(tmp_path)
    read = Adaptive.load(tmp_path)
    assert (read.neighbours, read.width, read.probes, read.threshold) == (8, 6, 7, 0.25)
    assert read.temperature == pytest.approx(made.temperature)
    distances, tokens = torch.rand(5, 8).sort().values, torch.randint(9, (5, 8))
    for ours, theirs in zip(
        (*vars(made.weights(distances, tokens)).values(), made.asks(torch.ones(3, 16))),
        (*vars(read.weights(distances, tokens)).values(), read.asks(torch.ones(3, 16))),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adaptive.json", "adaptive.safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        {"neighbours": 3},
        {"neighbours": True},
        {"neighbours": 16},
        {"neighbours": 1e9},
        {"width": 7},
        {"width": -1},
        {"probes": 0},
        {"probes": "4"},
        {"threshold": "low"},
        {"schema": 2},
        {"width": None},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    random_adaptive().save(tmp_path)
    path = tmp_path / "adaptive.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RunError, match=str(tmp_path)) as caught:
        Adaptive.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"unit": torch.tensor(0.0)},
        {"spread": torch.zeros(16)},
        {"centre": torch.full((16,), torch.nan)},
        {"centre": torch.zeros(3)},
        {"gate.0.weight": torch.zeros(32, 8)},
        {"meta.2.weight": torch.zeros(9, 32)},
        {"meta.0.weight": torch.zeros(32, 16, dtype=torch.int64)},
        {"more": torch.zeros(1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_tensors_that_cannot_be_are_refused(change: dict[str, Tensor], tmp_path: Path) -> None:
    random_adaptive().save(tmp_path)
    sheet = json.loads((tmp_path / "adaptive.json").read_text())
    write_sheet(tmp_path, "adaptive", {**random_adaptive().state_dict(), **change}, sheet)
    with pytest.raises(RunError, match=r"adaptive.safetensors: ") as caught:
        Adaptive.load(tmp_path)
    assert "\n" not in str(caught.value)
