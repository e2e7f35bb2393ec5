"""MetaSend (Chu et al. 2024): tensors by their relative change, against a threshold that the server learns.

At the silo: what each tensor's deviation is (`deviations`, equation 2), where it stands between the least and the most
changed (`scaled`), what passes θ (`passing`, equation 3), and the second filter (`prune`, section V-E). At the server:
`Threshold`, a small network from the silos' losses to θ, and its gradient (equation 5). Neither training nor transport
is known here.

What the paper leaves open, and what is done here:

- θ is between 0 and 1, deviations are far below: `scaled` brings them to the same interval by their logarithms.
- Whether a tensor is sent is a step in θ, through which nothing can be differentiated. `soft_slope` goes straight
  through: sent or not when the engines merge, the gate σ(±(log dev − log θ)/τ) when the slope is taken. Of each silo
  it needs one number a tensor, the product of its dev gradient and its change. `reinforce` and `spsa` need but losses.
- The second filter "takes the magnitudes of the remaining tensors as input and determines whether they should be
  further pruned"; what it learns from is not said. Here it learns what a parameter's removal would change to first
  order, |change · value|, as a rank among the silo's tensors, and keeps what it learned from round to round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, TypeAlias, assert_never

import torch
from torch import Tensor

from fedmt.choices import Missing, Pruning, Send, Theta, ThetaFixed, ThetaLearned, ThetaRandom
from fedmt.exchange.codec import pieces
from fedmt.exchange.pulling import GROWN, changes

__all__ = ["Evidence", "Threshold", "deviations", "passing", "prune", "scaled", "soft_slope"]

Scale: TypeAlias = Literal["log_minmax", "minmax", "raw"]
Net: TypeAlias = dict[str, Tensor]

_FLOOR = 1e-6  # added before a logarithm, so that 0 has one
_EDGE = 1e-3  # how near to 0 and 1 a learned θ may come
_STEPS, _RATE = 50, 0.01  # of the second filter, each round
_FADE = 0.2  # of the loss that `reinforce` compares with


# ── at the silo ─────────────────────────────────────────────────────────────────────────────────────────────────────


def deviations(now: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, float]:
    """Of each tensor ‖now − before‖ / ‖before‖; 0/0 is 0, x/0 a large number."""
    return changes(now, before, "relative")


def scaled(deviations: Mapping[str, float], scale: Scale) -> dict[str, float]:
    """The least at 0, the most at 1; all at ½ if they are equal.

    What did not change at all (to which no logarithm belongs) is 0 and what grew out of nothing 1, and neither sets the
    scale for the others.
    """
    values = deviations.values()
    if scale == "raw":
        return dict(deviations)
    if len(set(values)) <= 1:
        return dict.fromkeys(deviations, 0.5)
    log = scale == "log_minmax"
    ordinary = [math.log(value) if log else value for value in values if value < GROWN and (value > 0 or not log)]
    low, high = min(ordinary, default=0.0), max(ordinary, default=0.0)

    def place(value: float) -> float:
        if value >= GROWN:
            return 1.0
        if log and value == 0:
            return 0.0
        return 0.5 if low == high else ((math.log(value) if log else value) - low) / (high - low)

    return {name: place(value) for name, value in deviations.items()}


def passing(scaled: Mapping[str, float], theta: float, send: Send) -> set[str]:
    return {name for name, deviation in scaled.items() if (deviation >= theta) == (send == "greater")}


def prune(
    settings: Pruning,
    now: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    deviations: Mapping[str, float],
    passed: set[str],
    seed: str,
    state: Mapping[str, Tensor],
) -> tuple[set[str], dict[str, Tensor]]:
    """Of what passed, what the silo's network finds important; and the network after this round's lesson.

    It sees of each tensor the mean magnitude, the mean change and the deviation: logarithms, standardised over the
    silo's tensors. It is taught on all of them, so that 0.5 is the middle of the engine and not of what passed.
    """
    measured = torch.tensor([[*_magnitudes(now[name], before[name]), deviations[name]] for name in now]).double()
    if not len(measured):
        return set(), dict(state)
    inputs = _standardised(measured[:, [0, 1, 3]])
    importance = measured[:, 2]
    # Of equals the mean rank, so that the order of the tensors does not matter; within (0, 1).
    less = (importance[None] < importance[:, None]).sum(1)
    equal = (importance[None] == importance[:, None]).sum(1)
    target = (less + 0.5 * equal) / len(measured)
    net = {name: value.clone() for name, value in state.items()} or _fresh(3, settings.hidden, f"{seed}/pruning")
    adam = _Adam(net, _RATE)
    for _ in range(_STEPS):
        weights = _grown(net)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(_forward(weights, inputs), target)
        adam.step(dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True)))
    judged = torch.sigmoid(_forward(net, inputs)).tolist()
    important = {name for name, value in zip(now, judged, strict=True) if value >= settings.below}
    return passed & important, net


def _magnitudes(now: Tensor, before: Tensor) -> tuple[float, float, float]:
    """The means of |value|, |change| and |change · value|."""
    sums = [0.0, 0.0, 0.0]
    for piece, base in zip(pieces(now), pieces(before), strict=True):
        value = piece.float()
        change = value - base.float()
        for index, each in enumerate((value, change, value * change)):
            sums[index] += float(torch.linalg.vector_norm(each, 1, dtype=torch.float64))
    first, second, third = (sum_ / max(now.numel(), 1) for sum_ in sums)
    return first, second, third


def _standardised(columns: Tensor) -> Tensor:
    """Logarithms of mean 0 and deviation 1; the outermost of no logarithm stand beside the outermost that have one."""
    kept: list[Tensor] = []
    for column in columns.T:
        ordinary = column[(column > 0) & (column < GROWN)]
        log = column.clamp(ordinary.min(), ordinary.max()).log() if len(ordinary) else torch.zeros_like(column)
        kept.append((log - log.mean()) / log.std(correction=0).clamp_min(1e-9))
    return torch.stack(kept, 1)


# ── at the server ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Evidence:
    """What one silo says of the last round. T is the number of tensors, in one order for all silos.

    `products` are ⟨its dev gradient at the merged engine, what it has − what merged is⟩; for `keep_server`, minus what
    the server had; for `literal`, minus nothing. Equal `keys` across silos are one sum: who merged with whom.
    """

    weight: float
    deviations: Tensor
    products: Tensor
    loss: float
    keys: tuple[str, ...]


def soft_slope(
    theta: float,
    evidence: Mapping[str, Evidence],
    missing: Missing,
    send: Send,
    temperature: float,
    price: float,
    sizes: Tensor,
) -> float:
    """The derivative by θ of the federation's dev loss, plus price × share sent, through soft gates.

    The loss is Σ v_k L_k, v being the silos' weights over their sum. With gates s the sum of a tensor is
    Σ w_k s_k W_k / Σ w_k s_k over those who merge it (`renormalise`), or has in place of what is not sent the server's
    (`keep_server`) or nothing (`literal`); so ∂M/∂s_k is the silo's share in the sum times what `products` holds.
    A silo knows only its own gradient: it stands for those of all with whom it merges. If their losses are one
    function the slope is exact, else each silo's gate is judged by that silo's text alone. Merging at a `rate` of 1 is
    presumed; another scales the first term.
    """
    if not evidence:
        return 0.0
    weights = torch.tensor([each.weight for each in evidence.values()], dtype=torch.float64)[:, None]
    deviation = torch.stack([each.deviations.double() for each in evidence.values()])
    products = torch.stack([each.products.double() for each in evidence.values()])
    codes: dict[str, int] = {}
    groups = torch.tensor([[codes.setdefault(key, len(codes)) for key in each.keys] for each in evidence.values()])

    sign = 1.0 if send == "greater" else -1.0
    gates = torch.sigmoid(sign * (torch.log(deviation + _FLOOR) - math.log(theta + _FLOOR)) / temperature)
    by_theta = -sign * gates * (1 - gates) / (temperature * (theta + _FLOOR))

    def summed(each: Tensor) -> Tensor:
        """Over those who merge with each silo, of each tensor."""
        sums = torch.zeros(len(codes), dtype=torch.float64)
        return sums.index_add_(0, groups.reshape(-1), each.reshape(-1))[groups]

    everyones = weights.expand_as(gates)
    whole = summed(everyones * gates).clamp_min(1e-300) if missing == "renormalise" else summed(everyones)
    # Of the federation's loss, how much hangs on each sum.
    voice = summed(everyones) / weights.sum()
    loss = (voice * weights / whole * products * by_theta).sum()
    share = (by_theta @ sizes.double()).mean() / sizes.double().sum()
    return float(loss + price * share)


class Threshold:
    """θ of each round. All that it remembers goes out by `state` and in by `restore`.

    The network's inputs are the silos' training losses, in nats a token, less the mean of the first round's: they then
    begin near 0 and move by ones. `reinforce` tries a θ drawn from around the network's and compares the loss that
    follows with those before; `spsa` tries one above and one below, in two rounds, in an order drawn for each pair,
    since losses fall from round to round whatever θ is.
    """

    def __init__(
        self, settings: Theta, send: Send, missing: Missing, sizes: Tensor, silos: Sequence[str], seed: int
    ) -> None:
        self._settings, self._send, self._missing, self._sizes = settings, send, missing, sizes
        self._silos, self._seed = tuple(silos), seed
        self._net: Net = {}
        self._adam = _Adam({}, 0.0)
        if isinstance(settings, ThetaLearned):
            self._net = _fresh(len(self._silos), settings.hidden, f"{seed}/theta")
            self._adam = _Adam(self._net, settings.rate)
        self._inputs: Tensor | None = None  # of the θ from which is to be learned
        self._tried = (0.0, 0.0)  # that θ, and how far it was from the network's, in steps
        # None or one value; lists, for the checkpoint.
        self._centre: list[float] = []
        self._baseline: list[float] = []
        self._first: list[float] = []  # of the pair: θ, loss

    def theta(self, round: int, losses: Mapping[str, float]) -> float:
        """`losses` of the silos that trained; one that did not is taken for the mean of the others.

        Asked again before `learn`, with the same losses, it says the same.
        """
        settings = self._settings
        match settings:
            case ThetaFixed(value=value):
                return value
            case ThetaRandom():
                return _uniform(f"{self._seed}/{round}/theta")
            case ThetaLearned():
                if not self._first or self._inputs is None:
                    self._inputs = self._seen(losses)
                away = self._away(settings, round)
                theta = float(torch.sigmoid(_forward(self._net, self._inputs)))
                theta = min(max(theta + away * settings.step, _EDGE), 1 - _EDGE)
                self._tried = (theta, away)
                return theta
            case _:
                assert_never(settings)

    def learn(self, evidence: Mapping[str, Evidence]) -> None:
        """From what the last θ led to. Without evidence, or without a θ, nothing is learned."""
        settings = self._settings
        if not isinstance(settings, ThetaLearned) or self._inputs is None or not evidence:
            return
        slope = self._slope(settings, evidence)
        if slope is not None and math.isfinite(slope):
            weights = _grown(self._net)
            theta = torch.sigmoid(_forward(weights, self._inputs))
            self._adam.step(dict(zip(weights, torch.autograd.grad(theta * slope, list(weights.values())), strict=True)))
        if not self._first:
            self._inputs = None

    def state(self) -> tuple[dict[str, Tensor], dict[str, float | int | list[float]]]:
        if not self._net:
            return {}, {}
        tensors = {f"net/{name}": value.clone() for name, value in self._net.items()}
        tensors.update({f"adam/{name}": value.clone() for name, value in self._adam.moments.items()})
        if self._inputs is not None:
            tensors["inputs"] = self._inputs.clone()
        numbers: dict[str, float | int | list[float]] = {
            "steps": self._adam.steps,
            "tried": list(self._tried),
            "centre": list(self._centre),
            "baseline": list(self._baseline),
            "first": list(self._first),
        }
        return tensors, numbers

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        if not self._net:
            return
        for name, value in self._net.items():
            value.copy_(tensors[f"net/{name}"])
        for name, value in self._adam.moments.items():
            value.copy_(tensors[f"adam/{name}"])
        self._inputs = tensors["inputs"].clone() if "inputs" in tensors else None
        self._adam.steps = int(numbers["steps"])
        theta, away = numbers["tried"]
        self._tried = (theta, away)
        self._centre = list(numbers["centre"])
        self._baseline = list(numbers["baseline"])
        self._first = list(numbers["first"])

    def _seen(self, losses: Mapping[str, float]) -> Tensor:
        known = [losses[silo] for silo in self._silos if math.isfinite(losses.get(silo, math.nan))]
        mean = sum(known) / len(known) if known else 0.0
        if not self._centre and known:
            self._centre = [mean]
        centre = self._centre[0] if self._centre else 0.0
        said = [losses.get(silo, mean) for silo in self._silos]
        seen = torch.tensor([(loss if math.isfinite(loss) else mean) - centre for loss in said], dtype=torch.float64)
        return seen.clamp(-10, 10)  # a silo that diverged must not drown the others

    def _away(self, settings: ThetaLearned, round: int) -> float:
        """How far from the network's θ the tried one is, in steps."""
        match settings.gradient:
            case "soft":
                return 0.0
            case "reinforce":
                return NormalDist().inv_cdf(_uniform(f"{self._seed}/{round}/theta"))
            case "spsa":
                first = 1.0 if _uniform(f"{self._seed}/{self._adam.steps}/theta") < 0.5 else -1.0
                return -first if self._first else first

    def _slope(self, settings: ThetaLearned, evidence: Mapping[str, Evidence]) -> float | None:
        theta, away = self._tried
        if settings.gradient == "soft":
            return soft_slope(
                theta, evidence, self._missing, self._send, settings.temperature, settings.price, self._sizes
            )
        loss = self._loss(settings, theta, evidence)
        if not math.isfinite(loss):
            return None
        if settings.gradient == "reinforce":
            # The score function: of a normal draw, the derivative of its log density by the mean.
            baseline = self._baseline[0] if self._baseline else loss
            self._baseline = [baseline + _FADE * (loss - baseline)]
            return (loss - baseline) * away / settings.step if baseline != loss else None
        if not self._first:
            self._first = [theta, loss]
            return None
        (other, before), self._first = self._first, []
        # By the θ that were tried, which at the edge are less than two steps apart.
        return (loss - before) / (theta - other) if theta != other else None

    def _loss(self, settings: ThetaLearned, theta: float, evidence: Mapping[str, Evidence]) -> float:
        """The federation's, with the price of what was really sent."""
        total = sum(each.weight for each in evidence.values())
        loss = sum(each.weight * each.loss for each in evidence.values()) / total
        sizes = self._sizes.double()
        deviation = torch.stack([each.deviations.double() for each in evidence.values()])
        sent = ((deviation >= theta) == (self._send == "greater")).double() @ sizes
        return loss + settings.price * float(sent.mean() / sizes.sum())


# ── the small networks of both ──────────────────────────────────────────────────────────────────────────────────────


def _fresh(inputs: int, hidden: int, seed: str) -> Net:
    """Its output begins near 0, so that its sigmoid begins near ½. In float64: it is small, and must repeat exactly."""
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) >> 1)

    def draw(*shape: int, scale: float) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

    return {
        "in": draw(hidden, inputs, scale=1 / math.sqrt(max(inputs, 1))),
        "in_bias": draw(hidden, scale=0.5),
        "out": draw(hidden, scale=0.1 / math.sqrt(hidden)),
        "out_bias": torch.zeros((), dtype=torch.float64),
    }


def _forward(net: Net, inputs: Tensor) -> Tensor:
    return torch.relu(inputs @ net["in"].T + net["in_bias"]) @ net["out"] + net["out_bias"]


def _grown(net: Net) -> Net:
    """The same weights, on the tape."""
    return {name: value.detach().requires_grad_() for name, value in net.items()}


class _Adam:
    """Adam on the weights given, in place; its moments lie open, for the checkpoint."""

    def __init__(self, net: Net, rate: float) -> None:
        self._net, self._rate, self.steps = net, rate, 0
        self.moments = {f"{kind}/{name}": torch.zeros_like(value) for name, value in net.items() for kind in "mv"}

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        self.steps += 1
        for name, gradient in gradients.items():
            mean, square = self.moments[f"m/{name}"], self.moments[f"v/{name}"]
            mean.lerp_(gradient, 0.1)
            square.lerp_(gradient * gradient, 0.001)
            root = (square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
            self._net[name].addcdiv_(mean, root, value=-self._rate / (1 - 0.9**self.steps))


def _uniform(seed: str) -> float:
    """Within (0, 1), by hash: the same in every process, library and version."""
    return (int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6]) + 0.5) / (1 << 48)
