"""How much neighbours count for a token, and whether to look for any: two small networks, learnt on dev text.

Meta-k (Zheng et al. 2021, as Du et al. 2023 use it) sees K distances and how many different tokens stand among the
first 1, 2, …, K neighbours, and shares a token's probability out among candidates k ∈ {0, 1, 2, 4, …, K}:

    p = Σ_k share_k · p_k,   p_0 the engine's own,   p_k ∝ Σ_{i ≤ k} [token_i] exp(-distance_i / T)

with squared L2 distances as they come. The gate sees the engine's state and how sure it is, and says whether looking up
may change the token at all; where not, nothing is looked up. It learns from the one most probable token, so in a beam
search, where others matter too, it is a rule of thumb.

Knows tensors only: nothing of FAISS, engines and text.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.errors import RunError
from fedmt.memory.quantise import read_sheet, write_sheet

__all__ = ["Adaptive", "Looked", "Weights", "features", "fit", "fit_gate", "loss_of", "mix", "mix_rows"]

NAME = "adaptive"
HIDDEN = 32
# Of the engine's distribution the gate sees so many tokens, each the highest of so many.
HEAD, BLOCK = 8, 64
UNLIKELY = -50.0
# Distances beyond so many times the usual one say no more than that they are far.
FAR = 10.0
# A share of 1 less so little leaves every token of the engine's some probability.
LEAST = 1e-9
# Of dev tokens, the last fifth chooses among what the others taught.
HELD_OUT = 0.2
EPOCHS, GATE_EPOCHS, BATCH = 40, 60, 512
# Thresholds of the gate are no better than the count of changed tokens that they are chosen by.
FEW = 20


@dataclass(frozen=True)
class Looked:
    """What was found for n dev tokens: squared distances, nearest first (infinite: none), tokens (-1: none); and the
    right tokens with the engine's own log-probability of each."""

    distances: Tensor
    tokens: Tensor
    target: Tensor
    target_log: Tensor


@dataclass(frozen=True)
class Weights:
    """Of each row: what the engine's distribution counts for, what each neighbour, and each candidate k's share."""

    own: Tensor
    each: Tensor
    shares: Tensor


class Adaptive(nn.Module):
    """Meta-k, the temperature, the gate and how many lists are searched: what is learnt from dev text."""

    unit: Tensor
    alone: Tensor
    lasts: Tensor
    among: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, neighbours: int, width: int) -> None:
        """`width` is the engine's."""
        super().__init__()
        self.neighbours, self.width = neighbours, width
        self.candidates = [0, *(1 << power for power in range(neighbours.bit_length()))]
        self.meta = nn.Sequential(nn.Linear(2 * neighbours, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, len(self.candidates)))
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.gate = nn.Sequential(nn.Linear(width + HEAD + 2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.register_buffer("unit", torch.ones(()))
        self.register_buffer("centre", torch.zeros(width + HEAD + 2))
        self.register_buffer("spread", torch.ones(width + HEAD + 2))
        counts = torch.tensor(self.candidates)
        # Of candidates: the one that is the engine alone; each other's last neighbour, and which are among its first k.
        self.register_buffer("alone", (counts == 0).float(), persistent=False)
        self.register_buffer("lasts", counts[1:] - 1, persistent=False)
        self.register_buffer("among", (torch.arange(neighbours) < counts[1:, None]).float(), persistent=False)
        self.threshold: float | None = None
        self.probes = 1

    @classmethod
    def fixed(cls, neighbours: int, width: int, shares: dict[int, float], temperature: float, probes: int) -> Adaptive:
        """One that has learnt nothing: the same shares for every token (`{0: 0.5, 8: 0.5}`), always looking up."""
        made = cls(neighbours, width)
        if set(shares) - set(made.candidates) or not math.isclose(sum(shares.values()), 1.0):
            raise ValueError(f"shares {shares}: must add up to 1, of {', '.join(map(str, made.candidates))} neighbours")
        bias = [math.log(share) if (share := shares.get(k, 0.0)) > 0 else -1e9 for k in made.candidates]
        with torch.no_grad():
            weight, own = list(made.meta.parameters())[-2:]
            weight.zero_()
            own.copy_(torch.tensor(bias))
            made.log_temperature.fill_(math.log(temperature))
        made.probes = probes
        return made

    @property
    def temperature(self) -> float:
        return math.exp(float(self.log_temperature.detach()))

    def weights(self, distances: Tensor, tokens: Tensor) -> Weights:
        there = tokens >= 0
        # Infinite ones go first: nought times infinity would be in the gradients.
        distances = distances.masked_fill(~there, 0.0)
        near = (distances / self.unit).clamp(max=FAR).masked_fill(~there, FAR)
        new = ~(_same(tokens).tril(-1).any(-1))
        counts = new.cumsum(-1) / self.neighbours
        shares = self.meta(torch.cat([near, counts], dim=-1)).softmax(-1)
        # Where nothing was found the engine speaks alone.
        shares = torch.where(there[:, :1], shares, self.alone)
        closeness = (-distances / self.log_temperature.exp()).masked_fill(~there, -1e9)
        # Nearest first, so the first is the greatest of any first k; few operations, since each costs as much as a row.
        mass = (closeness - closeness[:, :1]).exp()
        parts = shares[:, 1:] / mass.cumsum(-1)[:, self.lasts]
        return Weights(shares[:, 0], mass * (parts @ self.among) * there, shares)

    def asks(self, seen: Tensor) -> Tensor:
        """Of each row of `features`, whether to look up."""
        if self.threshold is None:
            return torch.ones(len(seen), dtype=torch.bool, device=seen.device)
        return self.scores(seen) >= self.threshold

    def scores(self, seen: Tensor) -> Tensor:
        found: Tensor = self.gate((seen - self.centre) / self.spread)[:, 0]
        return found

    def save(self, folder: Path) -> None:
        numbers = {
            "schema": 1,
            "neighbours": self.neighbours,
            "width": self.width,
            "probes": self.probes,
            "threshold": self.threshold,
            "temperature": self.temperature,
        }
        write_sheet(folder, NAME, {name: value.detach() for name, value in self.state_dict().items()}, numbers)

    @classmethod
    def load(cls, folder: Path) -> Adaptive:
        tensors, numbers = read_sheet(folder, NAME)
        counts = [numbers.get(name) for name in ("neighbours", "width", "probes")]
        neighbours, width, probes = (number if type(number) is int and number <= 1 << 24 else 0 for number in counts)
        threshold = numbers.get("threshold")
        whole = neighbours in (1, 2, 4, 8, 16, 32, 64) and width > 0 and probes > 0
        if not whole or type(threshold) not in (int, float, type(None)):
            raise RunError(f"{folder / NAME}.json: needs neighbours, width, probes and threshold, as fedmt writes them")
        finite = all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in tensors.values())
        shapes = {"meta.0.weight": [HIDDEN, 2 * neighbours], "gate.0.weight": [HIDDEN, width + HEAD + 2]}
        fits = all(name in tensors and list(tensors[name].shape) == shape for name, shape in shapes.items())
        if not finite or not fits:
            raise RunError(f"{folder / NAME}.safetensors: is not what fedmt wrote beside {NAME}.json")
        made = cls(neighbours, width)
        try:
            made.load_state_dict(tensors)
        except RuntimeError as error:
            raise RunError(f"{folder / NAME}.safetensors: {' '.join(str(error).split())[:200]}") from None
        if not float(made.unit) > 0 or not float(made.spread.min()) > 0:
            raise RunError(f"{folder / NAME}.safetensors: its units must be more than nothing")
        made.threshold, made.probes = threshold, probes
        return made


def features(hidden: Tensor, log_probs: Tensor) -> Tensor:
    """What the gate sees: the state, and the head of the engine's own distribution: its highest log-probabilities, the
    first one's lead over the second, and the entropy of these.

    They are the highest of blocks of tokens, not of all: the first is exact, of two in one block only one is seen. A
    look at all would cost more time than the gate saves (0.43 of 8.5 ms a step where this takes 0.04).
    """
    size = max(1, min(BLOCK, log_probs.shape[1] // (2 * HEAD)))
    whole = log_probs.shape[1] // size * size
    blocks = log_probs[:, :whole].reshape(len(log_probs), -1, size).amax(-1)
    if whole < log_probs.shape[1]:
        blocks = torch.cat([blocks, log_probs[:, whole:].amax(-1, keepdim=True)], dim=-1)
    # One that may not be chosen at all is as good as one that is very unlikely.
    best = blocks.topk(HEAD, dim=-1).values.clamp(min=UNLIKELY)
    entropy = -(best.exp() * best).sum(-1, keepdim=True)
    return torch.cat([F.layer_norm(hidden.float(), hidden.shape[-1:]), best, best[:, :1] - best[:, 1:2], entropy], -1)


def mix(log_probs: Tensor, weights: Weights, tokens: Tensor) -> Tensor:
    """The log-probabilities of the mixture. Where the engine's share is 1, they are its own to the last bit."""
    return mix_rows(log_probs.clone(), None, weights, tokens)


def mix_rows(log_probs: Tensor, rows: Tensor | None, weights: Weights, tokens: Tensor) -> Tensor:
    """The same in place, for these rows (none: all); the others stay as they are.

    The vocabulary is gone through once, and not copied: the rows that stay are added nought.
    """
    # A neighbour that is not there weighs nothing, and stands where the first one does.
    tokens = torch.where(tokens >= 0, tokens, tokens[:, :1].clamp_min(0))
    mass = (_same(tokens) * weights.each[:, None, :]).sum(-1)
    own = weights.own.clamp_min(LEAST).log()[:, None]
    if rows is None:
        rows, all_own = torch.arange(len(log_probs), device=log_probs.device), own
    else:
        all_own = log_probs.new_zeros(len(log_probs), 1).index_copy_(0, rows, own)
    log_probs += all_own
    places = rows[:, None] * log_probs.shape[1] + tokens
    flat = log_probs.view(-1)
    # A token that several neighbours have is written several times, each time the same.
    flat[places] = torch.logaddexp(flat[places], mass.log())
    return log_probs


def _same(tokens: Tensor) -> Tensor:
    return tokens[:, :, None] == tokens[:, None, :]


# ── learning ────────────────────────────────────────────────────────────────────────────────────────────────────────


def loss_of(adaptive: Adaptive, looked: Looked, rows: slice | Tensor = slice(None)) -> Tensor:
    """Mean negative log-likelihood of the right tokens under the mixture."""
    tokens, target = looked.tokens[rows], looked.target[rows]
    weights = adaptive.weights(looked.distances[rows], tokens)
    mass = (weights.each * (tokens == target[:, None])).sum(-1)
    own = weights.own.clamp_min(LEAST).log() + looked.target_log[rows]
    return -torch.logaddexp(own, mass.clamp_min(1e-30).log()).mean()


def held_out(count: int) -> slice:
    return slice(count - math.ceil(count * HELD_OUT), count)


def fit(looked: Looked, width: int, temperature: float | None, probes: int, seed: int) -> Adaptive:
    """Meta-k and the temperature (none: learnt too), by Adam; the epoch that does best on the held-out tokens."""
    count, neighbours = looked.tokens.shape
    judged = held_out(count)
    there = looked.tokens >= 0
    usual = _mean(looked.distances[there])
    # What distances differ by is what the temperature divides.
    begin = temperature or _mean((looked.distances - looked.distances[:, :1])[there])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adaptive = Adaptive(neighbours, width)
        order = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        adaptive.unit.fill_(usual)
        adaptive.log_temperature.fill_(math.log(begin))
    adaptive.probes = probes
    learnt: list[nn.Parameter] = [*adaptive.meta.parameters(), *([] if temperature else [adaptive.log_temperature])]
    optimizer = torch.optim.Adam(learnt, lr=5e-3)
    best, kept = math.inf, copy.deepcopy(adaptive.state_dict())
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(judged.start, generator=order), BATCH):
            loss = loss_of(adaptive, looked, rows)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        with torch.no_grad():
            now = float(loss_of(adaptive, looked, judged))
        if now < best:
            best, kept = now, copy.deepcopy(adaptive.state_dict())
    adaptive.load_state_dict(kept)
    return adaptive.requires_grad_(False)


def _mean(numbers: Tensor) -> float:
    found = float(numbers.mean()) if len(numbers) else 0.0
    return found if found > 0 else 1.0


def fit_gate(adaptive: Adaptive, seen: Tensor, changed: Tensor, keep: float, seed: int) -> float:
    """Teach the gate which tokens looking up changed, and let it pass the share `keep` of those; in place.

    Returns the share of the held-out tokens that are still looked up.
    """
    judged = held_out(len(seen))
    if not bool(changed[: judged.start].any()):
        return 1.0  # nothing to learn from: always look up
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adaptive.gate = Adaptive(adaptive.neighbours, adaptive.width).gate
        order = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        adaptive.centre.copy_(seen[: judged.start].mean(0))
        adaptive.spread.copy_(seen[: judged.start].std(0).clamp_min(1e-3))
    scaled, wanted = (seen - adaptive.centre) / adaptive.spread, changed.float()
    optimizer = torch.optim.AdamW(adaptive.gate.parameters(), lr=3e-3, weight_decay=0.05)
    best, kept = math.inf, copy.deepcopy(adaptive.gate.state_dict())
    for _ in range(GATE_EPOCHS):
        for rows in torch.split(torch.randperm(judged.start, generator=order), BATCH):
            loss = F.binary_cross_entropy_with_logits(adaptive.gate(scaled[rows])[:, 0], wanted[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        with torch.no_grad():
            now = float(F.binary_cross_entropy_with_logits(adaptive.gate(scaled[judged])[:, 0], wanted[judged]))
        if now < best:
            best, kept = now, copy.deepcopy(adaptive.gate.state_dict())
    adaptive.gate.load_state_dict(kept)
    adaptive.requires_grad_(False)
    scores = adaptive.scores(seen)
    enough = scores[judged][changed[judged]]
    if len(enough) < FEW:
        enough = scores[changed]
    ranked = enough.sort().values
    adaptive.threshold = float(ranked[math.floor((1 - keep) * len(ranked))])
    return float(adaptive.asks(seen[judged]).float().mean())
