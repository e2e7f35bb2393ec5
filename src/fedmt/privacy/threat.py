"""The threat model of Du et al. (2023), §4.5: a decoder that reads one record and writes the sentence it was made of.

    key · token · <source> · source · <target> · target up to the token, with it · <end>

is one sequence; what follows <source> is learnt and guessed. The key goes through a linear layer in the place of an
embedding. The paper's model has the shape that an engine of size base gives it here: 512 wide, 6 layers, 8 heads.

Its embeddings begin as the engine's, which every silo has: a silo's own text is little to learn a language from.

Knows records and ids; knows nothing of text, of quantisers and of how a guess is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.corpus.batches import plan
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.kernels import SHORT, dropout, smoothed_loss
from fedmt.errors import Diverged
from fedmt.privacy.observed import Numbers, Observed

__all__ = ["Guess", "Threat", "train"]

HEAD = 64
INNER = 4
DROPOUT = 0.1
PEAK, PEAK_WIDTH, WARMUP = 1e-3, 256, 0.1
BATCH_TOKENS = 2000
STEP = 8
# Records of a sentence that an epoch reads, drawn anew each time: all of them would cost its length squared, nearly all
# of it on the longest sentences.
A_SENTENCE = 4
# Rows that are guessed together.
ROWS = 256
# What stands before what is learnt: the key and the token.
GIVEN = 2
_IGNORED = -100

Report = Callable[[int, float, float | None], None]
"""Called after each epoch with its number, its loss and the loss on dev records, where there are any."""


class Guess(NamedTuple):
    source: list[int]
    target: list[int]


class _Block(nn.Module):
    """One layer, normalised before each half; `kept` are keys and values of what came before, of one token each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asks, self.gives = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, INNER * width), nn.Linear(INNER * width, width)

    def forward(self, states: Tensor, kept: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, length, width = states.shape
        parts = self.asks(self.before(states)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if kept is not None:
            key, value = torch.cat([kept[0], key], 2), torch.cat([kept[1], value], 2)
        mixed = _attended(query, key, value, causal=kept is None)
        states = states + _drop(self.gives(mixed.transpose(1, 2).reshape(rows, length, width)), self)
        return states + _drop(self.down(F.relu(self.up(self.between(states)))), self), (key, value)


def _attended(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    length, places = query.shape[2], key.shape[2]
    if query.device.type != "cpu" or length * places > SHORT:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    # On a processor plain products take half the time of the tiled kernel where sequences are short.
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        later = torch.ones(length, places, dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    mixed: Tensor = scores.softmax(-1).to(value.dtype) @ value
    return mixed


def _drop(states: Tensor, module: nn.Module) -> Tensor:
    return (dropout if states.device.type == "cpu" else F.dropout)(states, DROPOUT, module.training)


class Threat(nn.Module):
    def __init__(self, engine: Engine, own: Observed, sees: tuple[bool, bool]) -> None:
        """`sees` is whether it is given the key, and the token; `own`, of which scale the keys are."""
        super().__init__()
        table = engine.model.get_input_embeddings().weight.detach().float().cpu()
        self.size, width = table.shape
        self.after_source, self.after_target, self.end = self.size, self.size + 1, self.size + 2
        config = engine.model.config
        layers = int(getattr(config, "decoder_layers", None) or getattr(config, "num_layers", None) or 6)
        heads = next(heads for heads in range(max(1, width // HEAD), 0, -1) if width % heads == 0)
        longest = max((len(ids) for ids in own.sources), default=0) + max((len(ids) for ids in own.targets), default=0)
        self.longest = longest + 3
        self.embedding = nn.Embedding(self.size + 3, width)
        self.places = nn.Embedding(GIVEN + self.longest, width)
        self.key = nn.Linear(own.keys.shape[1], width)
        self.layers = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.sees, self.scale = sees, math.sqrt(width)
        # Keys come at the scale of the attacker's own: another's are shifted and shrunk alike.
        self.register_buffer("mean", torch.from_numpy(own.keys.mean(axis=0)))
        self.register_buffer("spread", torch.tensor(float(own.keys.std()) or 1.0))
        with torch.no_grad():
            self.embedding.weight.normal_(0, 1 / self.scale)
            self.places.weight.normal_(0, 0.1 / self.scale)
            self.embedding.weight[: self.size] = table / (table.std().clamp_min(1e-6) * self.scale)

    def forward(self, keys: Tensor, tokens: Tensor, ids: Tensor) -> Tensor:
        """The states at each of the ids, which begin with the one that says <source>."""
        states, _ = self._through(self._given(keys, tokens, ids), 0, None)
        return states[:, GIVEN:]

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.embedding.weight)

    def _given(self, keys: Tensor, tokens: Tensor, ids: Tensor) -> Tensor:
        saw_key, saw_token = self.sees
        mean, spread = self.get_buffer("mean"), self.get_buffer("spread")
        # What is not given is given as nothing at all, so that all threat models are of one size.
        key = self.key((keys - mean) / spread * float(saw_key))[:, None]
        token = self.embedding(tokens[:, None]) * (self.scale * float(saw_token))
        return torch.cat([key, token, self.embedding(ids) * self.scale], 1)

    def _through(
        self, states: Tensor, done: int, kept: list[tuple[Tensor, Tensor]] | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        places = torch.arange(done, done + states.shape[1], device=states.device)
        states = _drop(states + self.places(places) * self.scale, self)
        after = []
        for number, layer in enumerate(self.layers):
            states, own = layer(states, None if kept is None else kept[number])
            after.append(own)
        return self.last(states), after

    @torch.inference_mode()
    def guess(self, records: Observed, machine: Machine) -> list[Guess]:
        """What each record was made of: the likeliest id at every step."""
        self.eval().to(machine.device)
        found: list[Guess] = []
        for start in range(0, len(records), ROWS):
            part = records.take(np.arange(start, min(start + ROWS, len(records))))
            written = self._write(
                torch.from_numpy(part.keys).to(machine.device), torch.from_numpy(part.tokens).to(machine.device)
            )
            found += [self._read(ids) for ids in written]
        return found

    def _write(self, keys: Tensor, tokens: Tensor) -> list[list[int]]:
        written = torch.full((len(tokens), self.longest), self.end, device=tokens.device)
        live = torch.arange(len(tokens), device=tokens.device)
        ids = torch.full_like(tokens[:, None], self.after_source)
        states, kept = self._through(self._given(keys, tokens, ids), 0, None)
        for number in range(self.longest - 1):
            chosen = self.logits(states[:, -1]).argmax(-1)
            written[live, number] = chosen
            going = chosen != self.end
            if not bool(going.all()):
                live, chosen = live[going], chosen[going]
                kept = [(key[going], value[going]) for key, value in kept]
            if not len(live):
                break
            states, kept = self._through(self.embedding(chosen[:, None]) * self.scale, GIVEN + number + 1, kept)
        rows: list[list[int]] = written.tolist()
        return rows

    def _read(self, ids: list[int]) -> Guess:
        ids = ids[: ids.index(self.end)] if self.end in ids else ids
        cut = ids.index(self.after_target) if self.after_target in ids else len(ids)
        source, target = ([one for one in side if one < self.size] for side in (ids[:cut], ids[cut:]))
        return Guess(source, target)


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


def train(
    engine: Engine,
    own: Observed,
    dev: Observed,
    sees: tuple[bool, bool],
    epochs: int,
    seed: int,
    machine: Machine,
    report: Report = lambda *_: None,
) -> Threat:
    """A threat model of the attacker's own records; of all epochs the one best on its dev records, if it has any."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        threat = Threat(engine, own, sees).to(machine.device)
        fused = machine.device.type in ("cpu", "cuda")
        optimizer = torch.optim.AdamW(threat.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=fused)
        total = epochs * len(_planned(own, _drawn(own, 0), 0))
        peak, step = PEAK * math.sqrt(PEAK_WIDTH / threat.embedding.embedding_dim), 0
        best, kept = math.inf, None
        for epoch in range(1, epochs + 1):
            threat.train()
            loss_sum = count = 0.0
            mixed = seed * 1_000_003 + epoch
            for rows in _planned(own, _drawn(own, mixed), mixed):
                step += 1
                for group in optimizer.param_groups:
                    group["lr"] = peak * min(step / max(1.0, WARMUP * total), 1.0, (total + 1 - step) / total * 1.1)
                loss, tokens = _loss(threat, own.take(rows), machine)
                torch.autograd.backward(loss / tokens)
                nn.utils.clip_grad_norm_(threat.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                loss_sum, count = loss_sum + float(loss.detach()), count + tokens
            if not math.isfinite(loss_sum):
                raise Diverged("the threat model's training diverged")
            now = _mean_loss(threat, dev, machine) if len(dev) else None
            report(epoch, loss_sum / max(1.0, count), now)
            if now is not None and now < best:
                best, kept = now, {name: tensor.clone() for name, tensor in threat.state_dict().items()}
        if kept is not None:
            threat.load_state_dict(kept)
    return threat.eval()


def _drawn(records: Observed, seed: int) -> Numbers:
    """The places of some records of each sentence."""
    order = np.random.default_rng(seed).permutation(len(records))
    order = order[np.argsort(records.sentence[order], kind="stable")]
    # Of each place in this order, the place where its sentence's begin.
    begins = np.searchsorted(records.sentence[order], records.sentence[order])
    return np.sort(order[np.arange(len(order)) - begins < A_SENTENCE])


def _planned(records: Observed, rows: Numbers, seed: int) -> list[Numbers]:
    lengths = np.array([len(records.source(row)) for row in rows.tolist()], dtype=np.int64) + records.place[rows] + 4
    return [rows[part] for part in plan(lengths, lengths, BATCH_TOKENS, seed)]


def _sequences(threat: Threat, records: Observed) -> Iterator[list[int]]:
    for row in range(len(records)):
        source, target = records.source(row), [*records.before(row), int(records.tokens[row])]
        yield [threat.after_source, *source, threat.after_target, *target, threat.end]


def _loss(threat: Threat, records: Observed, machine: Machine) -> tuple[Tensor, int]:
    """Summed over all ids that are learnt, and how many these are."""
    rows = [ids[: threat.longest] for ids in _sequences(threat, records)]
    # Few widths: each new shape costs the processor's library a new kernel.
    width = min(threat.longest, -(-max(map(len, rows)) // STEP) * STEP)
    padded = [ids + [_IGNORED] * (width - len(ids)) for ids in rows]
    ids = torch.tensor(padded).to(machine.device)
    wanted = ids[:, 1:]
    keys, tokens = torch.from_numpy(records.keys), torch.from_numpy(records.tokens)
    with torch.autocast(machine.device.type, torch.bfloat16, enabled=machine.precision == "bf16"):
        states = threat(keys.to(ids.device), tokens.to(ids.device), ids[:, :-1].clamp_min(0))
    real = wanted != _IGNORED
    kind = torch.bfloat16 if machine.precision == "bf16" else torch.float32
    loss = smoothed_loss(states[real].to(kind), threat.embedding.weight.to(kind), None, wanted[real], 0.0)
    return loss, int(real.sum())


@torch.inference_mode()
def _mean_loss(threat: Threat, records: Observed, machine: Machine) -> float:
    threat.eval()
    found = [_loss(threat, records.take(rows), machine) for rows in _planned(records, _drawn(records, 0), 0)]
    return sum(float(loss) for loss, _ in found) / sum(tokens for _, tokens in found)
