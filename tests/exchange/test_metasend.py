"""MetaSend: what passes, that its slope is the true one, and that θ goes where the loss is less."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedmt.choices import Missing, Pruning, Send, ThetaFixed, ThetaLearned, ThetaRandom
from fedmt.exchange.metasend import Evidence, Threshold, deviations, passing, prune, scaled, soft_slope
from fedmt.exchange.pulling import GROWN

# ── at the silo ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_deviations() -> None:
    before = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2), "c": torch.zeros(2)}
    now = {"a": torch.tensor([3.0, 4.5]), "b": torch.zeros(2), "c": torch.ones(2)}
    assert deviations(now, before) == pytest.approx({"a": 0.1, "b": 0.0, "c": GROWN})
    assert math.isfinite(torch.tensor(GROWN, dtype=torch.float32).item())


def test_scales() -> None:
    raw = {"a": 0.001, "b": 0.01, "c": 0.1}
    assert scaled(raw, "raw") == raw
    assert scaled(raw, "log_minmax") == pytest.approx({"a": 0.0, "b": 0.5, "c": 1.0})
    assert scaled(raw, "minmax") == pytest.approx({"a": 0.0, "b": 1 / 11, "c": 1.0})
    assert scaled(dict.fromkeys("abc", 0.3), "log_minmax") == dict.fromkeys("abc", 0.5)
    assert scaled(dict.fromkeys("abc", 0.0), "minmax") == dict.fromkeys("abc", 0.5)
    assert scaled({}, "log_minmax") == {}


def test_what_did_not_move_or_came_from_nothing_does_not_squeeze_the_others() -> None:
    raw = {"still": 0.0, "a": 0.001, "b": 0.01, "c": 0.1, "grown": GROWN}
    assert scaled(raw, "log_minmax") == pytest.approx({"still": 0, "a": 0, "b": 0.5, "c": 1, "grown": 1})
    assert scaled(raw, "minmax") == pytest.approx({"still": 0, "a": 0.01, "b": 0.1, "c": 1, "grown": 1})
    assert scaled({"still": 0.0, "a": 0.2, "grown": GROWN}, "log_minmax") == {"still": 0.0, "a": 0.5, "grown": 1.0}
    assert scaled({"still": 0.0, "grown": GROWN}, "log_minmax") == {"still": 0.0, "grown": 1.0}


def test_passing() -> None:
    table = {"a": 0.2, "b": 0.5, "c": 0.9}
    assert passing(table, 0.5, "greater") == {"b", "c"}
    assert passing(table, 0.5, "less") == {"a"}
    assert passing(table, 0.0, "greater") == set(table)


def engines() -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Tensors of which |change · value| rises with the number; in an order that does not."""
    generator = torch.Generator().manual_seed(1)
    names = [f"t{index:02}" for index in range(40)]
    before = {n: torch.randn(30, 5, generator=generator) * 10 ** (-3 + index / 20) for index, n in enumerate(names)}
    now = {n: old + torch.randn(30, 5, generator=generator) * 0.02 * old.abs().mean() for n, old in before.items()}
    order = names[::2] + names[1::2]
    return {n: now[n] for n in order}, {n: before[n] for n in order}, names


def test_the_second_filter_learns_what_matters_and_only_takes_away() -> None:
    now, before, names = engines()
    raw = deviations(now, before)
    state: dict[str, Tensor] = {}
    kept: set[str] = set()
    for _ in range(4):
        kept, state = prune(Pruning(hidden=16), now, before, raw, set(names), "1/a", state)
    assert set(names[25:]) <= kept
    assert not set(names[:15]) & kept
    few = set(names[::3])
    assert prune(Pruning(hidden=16), now, before, raw, few, "1/a", state)[0] <= few
    assert prune(Pruning(hidden=16), now, before, raw, set(), "1/a", state)[0] == set()
    strict, _ = prune(Pruning(hidden=16, below=0.8), now, before, raw, set(names), "1/a", state)
    assert strict < kept


def test_the_second_filter_repeats_and_takes_what_has_no_logarithm() -> None:
    now, before, names = engines()
    now[names[0]] = before[names[0]]
    before[names[1]] = torch.zeros(30, 5)
    raw = deviations(now, before)
    first, state = prune(Pruning(hidden=4), now, before, raw, set(names), "1/a", {})
    copy = {name: value.clone() for name, value in state.items()}
    assert all(value.isfinite().all() for value in state.values())
    second, after = prune(Pruning(hidden=4), now, before, raw, set(names), "1/a", state)
    assert all(torch.equal(state[name], copy[name]) for name in state)  # not written to
    assert not all(torch.equal(state[name], after[name]) for name in state)
    assert prune(Pruning(hidden=4), now, before, raw, set(names), "1/a", {})[0] == first
    assert prune(Pruning(hidden=4), now, before, raw, set(names), "1/a", copy)[0] == second


# ── the slope ───────────────────────────────────────────────────────────────────────────────────────────────────────

D = torch.float64
SIZES = (6, 12, 4)
TAU, FLOOR = 0.5, 1e-6


@dataclass
class Toy:
    """Silos, what each trained to from one base, and one dev loss that all share: a small network's."""

    base: list[Tensor]
    trained: dict[str, list[Tensor]]
    deviations: dict[str, Tensor]
    weights: dict[str, float]
    labels: dict[str, str]  # the group of each silo
    loss: Callable[[list[Tensor]], Tensor]

    def gates(self, silo: str, theta: float, send: Send) -> Tensor:
        sign = 1 if send == "greater" else -1
        return torch.sigmoid(sign * ((self.deviations[silo] + FLOOR).log() - math.log(theta + FLOOR)) / TAU)

    def merged(self, silo: str, theta: float, send: Send, missing: Missing) -> list[Tensor]:
        """The engine of the silo's group, gates soft, written out tensor by tensor."""
        group = [other for other in self.trained if self.labels[other] == self.labels[silo]]
        engine: list[Tensor] = []
        for index, base in enumerate(self.base):
            above, below = torch.zeros_like(base), 0.0
            for other in group:
                weight, gate = self.weights[other], float(self.gates(other, theta, send)[index])
                above = above + weight * gate * self.trained[other][index]
                below += weight * (gate if missing == "renormalise" else 1)
                if missing == "keep_server":
                    above = above + weight * (1 - gate) * base
            engine.append(above / below)
        return engine

    def objective(self, theta: float, send: Send, missing: Missing, price: float) -> float:
        total, sizes = sum(self.weights.values()), torch.tensor(SIZES, dtype=D)
        loss = sum(
            weight / total * float(self.loss(self.merged(silo, theta, send, missing)))
            for silo, weight in self.weights.items()
        )
        shares = [float(self.gates(silo, theta, send) @ sizes / sizes.sum()) for silo in self.trained]
        return loss + price * sum(shares) / len(shares)

    def evidence(self, theta: float, send: Send, missing: Missing) -> dict[str, Evidence]:
        said: dict[str, Evidence] = {}
        for silo, trained in self.trained.items():
            engine = [tensor.clone().requires_grad_() for tensor in self.merged(silo, theta, send, missing)]
            loss = self.loss(engine)
            gradients = torch.autograd.grad(loss, engine)
            minus = {
                "renormalise": [tensor.detach() for tensor in engine],
                "keep_server": self.base,
                "literal": [torch.zeros_like(tensor) for tensor in self.base],
            }[missing]
            products = [
                (gradient * (own - less)).sum() for gradient, own, less in zip(gradients, trained, minus, strict=True)
            ]
            keys = tuple(f"{self.labels[silo]}/{index}" for index in range(len(SIZES)))
            said[silo] = Evidence(
                self.weights[silo], self.deviations[silo], torch.stack(products), float(loss.detach()), keys
            )
        return said


def toy(grouped: bool, seed: int = 1) -> Toy:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=D)

    silos = "abcde"
    base = [draw(size) for size in SIZES]
    inputs, targets = draw(20, 3), draw(20)

    def loss(engine: list[Tensor]) -> Tensor:
        first, second, third = engine[0].view(3, 2), engine[1].view(2, 6), engine[2]
        hidden = torch.tanh(torch.tanh(inputs @ first) @ second)
        return ((hidden[:, :4] @ third + hidden[:, 4] * hidden[:, 5] - targets) ** 2).mean()

    return Toy(
        base,
        {silo: [tensor + draw(len(tensor)) for tensor in base] for silo in silos},
        {silo: torch.rand(len(SIZES), generator=generator, dtype=D) for silo in silos},
        dict(zip(silos, (1.0, 2.5, 0.3, 4.0, 1.2), strict=True)),
        {silo: "xyxxy"[index] if grouped else "all" for index, silo in enumerate(silos)},
        loss,
    )


@pytest.mark.parametrize("theta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("price", [0.0, 0.7])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("missing", ["renormalise", "keep_server", "literal"])
@pytest.mark.parametrize("send", ["greater", "less"])
def test_the_slope_is_that_of_the_merged_dev_loss(
    send: Send, missing: Missing, grouped: bool, price: float, theta: float
) -> None:
    case = toy(grouped)
    slope = soft_slope(
        theta, case.evidence(theta, send, missing), missing, send, TAU, price, torch.tensor(SIZES, dtype=D)
    )
    step = 1e-5
    difference = (
        case.objective(theta + step, send, missing, price) - case.objective(theta - step, send, missing, price)
    ) / (2 * step)
    assert abs(difference) > 1e-3
    assert slope == pytest.approx(difference, rel=1e-5)


def test_groups_that_cross_are_exact_where_the_loss_falls_into_tensors() -> None:
    """Silos of one encoder group may be of different decoder groups; each sum has its own silos."""
    generator = torch.Generator().manual_seed(3)
    silos, sizes = "abcd", torch.tensor([5.0, 7.0], dtype=D)
    weights = dict(zip(silos, (1.0, 2.0, 3.0, 0.5), strict=True))
    labels = {silo: (enc, dec) for silo, enc, dec in zip(silos, "xxyy", "uvuv", strict=True)}
    trained = {
        silo: [torch.randn(5, generator=generator, dtype=D), torch.randn(7, generator=generator, dtype=D)]
        for silo in silos
    }
    spread = {silo: torch.rand(2, generator=generator, dtype=D) for silo in silos}

    def engine(silo: str, theta: float) -> list[Tensor]:
        found: list[Tensor] = []
        for index in range(2):
            group = [other for other in silos if labels[other][index] == labels[silo][index]]
            gates = [
                weights[o] * torch.sigmoid(((spread[o][index] + FLOOR).log() - math.log(theta + FLOOR)) / TAU)
                for o in group
            ]
            parts = [gate * trained[o][index] for gate, o in zip(gates, group, strict=True)]
            found.append(torch.stack(parts).sum(0) / torch.stack(gates).sum())
        return found

    def objective(theta: float) -> float:
        losses = [weights[silo] * sum(float((t**2).sum()) for t in engine(silo, theta)) for silo in silos]
        return sum(losses) / sum(weights.values())

    theta = 0.4
    said = {}
    for silo in silos:
        merged = engine(silo, theta)
        products = [(2 * m * (own - m)).sum() for m, own in zip(merged, trained[silo], strict=True)]
        keys = (f"{labels[silo][0]}/0", f"{labels[silo][1]}/1")
        said[silo] = Evidence(weights[silo], spread[silo], torch.stack(products), 0.0, keys)
    slope = soft_slope(theta, said, "renormalise", "greater", TAU, 0.0, sizes)
    assert slope == pytest.approx((objective(theta + 1e-5) - objective(theta - 1e-5)) / 2e-5, rel=1e-5)


def test_a_gate_that_is_shut_altogether_leaves_the_slope_finite() -> None:
    shut = Evidence(1.0, torch.zeros(2), torch.ones(2), 1.0, ("0", "1"))
    slope = soft_slope(0.9, {"a": shut}, "renormalise", "greater", 0.001, 1.0, torch.ones(2))
    assert slope == 0.0
    assert soft_slope(0.5, {}, "renormalise", "greater", 0.5, 1.0, torch.ones(2)) == 0.0


# ── learning ────────────────────────────────────────────────────────────────────────────────────────────────────────

SILOS = ("a", "b", "c")


def learner(seed: int = 1, **settings: object) -> Threshold:
    chosen = ThetaLearned.model_validate({"hidden": 20, **settings})
    return Threshold(chosen, "greater", "renormalise", torch.tensor([10.0, 20.0, 30.0]), SILOS, seed)


def test_it_begins_near_a_half_and_seeds_differ() -> None:
    thetas = [learner(seed).theta(1, dict.fromkeys(SILOS, 6.0)) for seed in range(50)]
    assert all(0.4 < theta < 0.6 for theta in thetas)
    assert len(set(thetas)) == 50


def test_a_silo_that_says_nothing_is_taken_for_the_mean_of_the_others() -> None:
    full = learner().theta(1, {"a": 2.0, "b": 4.0, "c": 3.0})
    assert learner().theta(1, {"a": 2.0, "b": 4.0}) == full
    assert learner().theta(1, {"a": 2.0, "b": 4.0, "c": math.nan}) == full
    assert learner().theta(1, {"a": 4.0, "b": 2.0}) != full
    assert 0 < learner().theta(1, {}) < 1


def test_the_first_step_of_adam_follows_the_networks_own_slope() -> None:
    """Through the network: Adam's first step is the rate times the sign of the finite difference, weight by weight."""
    case = toy(grouped=True)
    settings = ThetaLearned(hidden=5, rate=1e-3, price=0.3, temperature=TAU)
    sizes = torch.tensor(SIZES, dtype=D)
    losses = dict(zip("abcde", (3.0, 2.0, 5.0, 4.0, 1.0), strict=True))

    def make() -> Threshold:
        return Threshold(settings, "less", "keep_server", sizes, tuple("abcde"), 7)

    threshold = make()
    theta = threshold.theta(1, losses)
    before = threshold.state()
    threshold.learn(case.evidence(theta, "less", "keep_server"))
    after = threshold.state()[0]
    checked = 0
    for name, value in before[0].items():
        if not name.startswith("net/"):
            continue
        moment = after[f"adam/m/{name.removeprefix('net/')}"].reshape(-1)
        for index in range(value.numel()):
            ends = []
            for step in (1e-4, -1e-4):
                tensors = {key: tensor.clone() for key, tensor in before[0].items()}
                tensors[name].view(-1)[index] += step
                other = make()
                other.restore(tensors, before[1])
                ends.append(case.objective(other.theta(1, losses), "less", "keep_server", 0.3))
            difference = (ends[0] - ends[1]) / 2e-4
            # The first moment after one step is a tenth of the gradient.
            assert float(moment[index]) * 10 == pytest.approx(difference, rel=1e-4, abs=1e-10)
            moved = float(after[name].reshape(-1)[index] - value.reshape(-1)[index])
            if difference:
                assert moved == pytest.approx(-math.copysign(1e-3, difference), rel=1e-3)
                checked += 1
    assert checked > 10


def valley(best: float, theta: float, slope_too: bool = False) -> dict[str, Evidence]:
    """Dev losses of which the least is at `best`; for `soft`, products whose slope is theirs."""
    loss = 5.0 + 4 * (theta - best) ** 2
    deviation = torch.tensor([0.2, 0.5, 0.8])
    said = {}
    for silo in SILOS:
        products = torch.zeros(3)
        if slope_too:
            # One silo a sum, `keep_server`: slope = Σ products · ∂s/∂θ; the middle tensor is given what makes it so.
            gate = torch.sigmoid(((deviation[1] + FLOOR).log() - math.log(theta + FLOOR)) / TAU)
            by_theta = -gate * (1 - gate) / (TAU * (theta + FLOOR))
            products[1] = 8 * (theta - best) / by_theta
        said[silo] = Evidence(1.0, deviation, products, loss, ("0", "1", "2"))
    return said


@pytest.mark.parametrize("best", [0.2, 0.8])
@pytest.mark.parametrize(
    ("gradient", "rounds", "near"), [("soft", 100, 0.05), ("spsa", 400, 0.1), ("reinforce", 1500, 0.15)]
)
def test_theta_goes_where_the_loss_is_least(gradient: str, rounds: int, near: float, best: float) -> None:
    settings = ThetaLearned.model_validate({"hidden": 20, "gradient": gradient, "rate": 0.003})
    threshold = Threshold(settings, "greater", "keep_server", torch.ones(3), SILOS, 1)
    tried: list[float] = []
    for round in range(1, rounds + 1):
        tried.append(threshold.theta(round, {"a": 3.0, "b": 2.0, "c": 4.0}))
        threshold.learn(valley(best, tried[-1], gradient == "soft"))
    tail = tried[-rounds // 5 :]
    assert abs(tried[0] - best) > 0.15
    assert sum(tail) / len(tail) == pytest.approx(best, abs=near)


@pytest.mark.parametrize("gradient", ["soft", "spsa", "reinforce"])
@pytest.mark.parametrize("send", ["greater", "less"])
def test_a_price_alone_closes_the_gate(gradient: str, send: Send) -> None:
    settings = ThetaLearned.model_validate(
        {"hidden": 20, "gradient": gradient, "rate": 0.003, "price": 2.0, "step": 0.2}
    )
    threshold = Threshold(settings, send, "renormalise", torch.ones(9), SILOS, 1)
    deviation = torch.linspace(0.05, 0.95, 9)
    tried = []
    for round in range(1, 601):
        tried.append(threshold.theta(round, {"a": 3.0}))
        said = Evidence(1.0, deviation, torch.zeros(9), 1.0, tuple("012345678"))
        threshold.learn(dict.fromkeys(SILOS, said))
    mean = sum(tried[-50:]) / 50
    assert mean > 0.7 if send == "greater" else mean < 0.3


@pytest.mark.parametrize("gradient", ["soft", "spsa", "reinforce"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("asked", [False, True])
def test_restored_anywhere_it_goes_on_bit_for_bit(gradient: str, at: int, asked: bool) -> None:
    def make() -> Threshold:
        return learner(gradient=gradient, price=0.5)

    def losses(round: int) -> dict[str, float]:
        return {"a": 5.0 - 0.3 * round, "b": 4.0, "c": 6.0 / round}

    one, other = make(), make()
    expected: list[float] = []
    for round in range(1, 9):
        theta = one.theta(round, losses(round))
        expected.append(theta)
        if round == at and asked:
            # Between the question and the lesson.
            tensors, numbers = one.state()
            other.restore(tensors, json.loads(json.dumps(numbers)))
        one.learn(valley(0.3, theta))
        if round == at and not asked:
            tensors, numbers = one.state()
            other.restore(tensors, json.loads(json.dumps(numbers)))
    if asked:
        assert other.theta(at, losses(at)) == expected[at - 1]
        other.learn(valley(0.3, expected[at - 1]))
    for round in range(at + 1, 9):
        theta = other.theta(round, losses(round))
        assert theta == expected[round - 1]
        other.learn(valley(0.3, theta))
    (a, first), (b, second) = one.state(), other.state()
    assert first == second
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("gradient", ["soft", "spsa", "reinforce"])
def test_asked_twice_it_says_the_same_and_without_evidence_learns_nothing(gradient: str) -> None:
    threshold = learner(gradient=gradient)
    threshold.learn(valley(0.3, 0.5))  # no θ was given yet
    fresh = learner(gradient=gradient)
    assert all(torch.equal(a, b) for a, b in zip(threshold.state()[0].values(), fresh.state()[0].values(), strict=True))
    first = threshold.theta(1, dict.fromkeys(SILOS, 4.0))
    assert threshold.theta(1, dict.fromkeys(SILOS, 4.0)) == first
    threshold.learn({})
    broken = {silo: Evidence(1.0, torch.zeros(3), torch.full((3,), math.nan), math.nan, tuple("012")) for silo in SILOS}
    threshold.learn(broken)
    assert all(
        torch.equal(a, b)
        for (name, a), b in zip(threshold.state()[0].items(), fresh.state()[0].values(), strict=False)
        if name.startswith("net/")
    )
    assert 0 < threshold.theta(2, dict.fromkeys(SILOS, 4.0)) < 1


def test_spsa_goes_to_both_sides_and_reinforce_to_any() -> None:
    spsa, losses = learner(gradient="spsa", rate=1e-9), {"a": 3.0}
    pairs = []
    for round in range(1, 21):
        pairs.append(spsa.theta(round, losses))
        spsa.learn(valley(0.3, pairs[-1]))
    assert all(abs(abs(a - b) - 0.2) < 1e-6 for a, b in zip(pairs[::2], pairs[1::2], strict=True))
    assert len({a > b for a, b in zip(pairs[::2], pairs[1::2], strict=True)}) == 2  # now the upper first, now the lower
    reinforce = learner(gradient="reinforce", rate=1e-9)
    drawn = torch.tensor([reinforce.theta(round, losses) for round in range(1, 2001)])
    assert float(drawn.mean()) == pytest.approx(learner().theta(1, losses), abs=0.01)
    assert float(drawn.std()) == pytest.approx(0.1, abs=0.01)


def test_fixed_and_random_learn_nothing() -> None:
    fixed = Threshold(ThetaFixed(kind="fixed", value=3.0), "greater", "renormalise", torch.ones(3), SILOS, 1)
    drawn = Threshold(ThetaRandom(kind="random"), "greater", "renormalise", torch.ones(3), SILOS, 1)
    other = Threshold(ThetaRandom(kind="random"), "greater", "renormalise", torch.ones(3), SILOS, 2)
    thetas = [drawn.theta(round, {}) for round in range(1, 201)]
    for each in (fixed, drawn):
        each.learn(valley(0.3, 0.5))
        assert each.state() == ({}, {})
        each.restore({}, {})
    assert fixed.theta(9, {"a": 1.0}) == 3.0
    assert thetas == [drawn.theta(round, {}) for round in range(1, 201)]
    assert thetas[0] != other.theta(1, {})
    # 200 draws of a uniform: 0.5 ± 0.02, so this is four deviations.
    assert sum(thetas) / 200 == pytest.approx(0.5, abs=0.08)
    assert min(thetas) > 0
    assert max(thetas) < 1
