"""One decoding step of an engine over its Hugging Face modules: keys and values kept, beams sharing their source.

Every module is called as it is, so that whatever hangs on one (an adapter, a hook) takes part. Knows nothing of how
tokens are chosen. Two things are ours:

- The attention of one new token is two plain batched products. Fused kernels gain nothing there, and on CPU in bf16
  they cost several times as much; keys and values are therefore kept in fp32 on a CPU.
- Beams of one sentence stand as several queries before the same keys of the source, which are kept once a sentence.

`forced` reads given translations in the place of choosing them: the states that a step would have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fedmt.corpus.batches import Examples, batches
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine

__all__ = ["States", "Steps", "forced", "logits_of", "scaled", "stepping"]

# Keys grow by so many places at a time, so that a step writes one place instead of copying all.
ROOM = 16
ATTENTION = "one_step"


class Steps:
    """The rows of one batch, as the decoder goes through them token by token."""

    def __init__(self, model: PreTrainedModel, source: Tensor, pad: int, cached: bool = True) -> None:
        attended = source != pad
        mask = None if bool(attended.all()) else attended[:, None, None, :]
        self._model = model
        self._decoder = model.get_decoder()
        encoded: Tensor = model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
        self._encoded = encoded
        self._bias = None if mask is None else torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -1e9)
        self._cache = (
            EncoderDecoderCache(Cache(layer_class_to_replicate=_Growing), Cache(layer_class_to_replicate=_Whole))
            if cached
            else None
        )
        self._seen = source.new_zeros(len(source), 0)

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Feed each row its next token (or first tokens); gives each row's last hidden state and its logits in fp32."""
        encoded, bias = self._encoded, self._bias
        if self._cache is None:
            self._seen = tokens = torch.cat([self._seen, tokens], dim=1)
            beams = len(tokens) // len(encoded)
            encoded = encoded.repeat_interleave(beams, dim=0)
            bias = None if bias is None else bias.repeat_interleave(beams, dim=0)
        hidden: Tensor = self._decoder(
            input_ids=tokens,
            encoder_hidden_states=encoded,
            encoder_attention_mask=bias,
            past_key_values=self._cache,
            use_cache=self._cache is not None,
        ).last_hidden_state[:, -1]
        return hidden, _logits(self._model, hidden)

    def keep(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Go on with these rows, in this order and as often as named; and with these sentences, if some leave."""
        if self._cache is None:
            self._seen = self._seen[rows]
        else:
            _select(self._cache.self_attention_cache, rows)
        if sentences is not None:
            self._encoded = self._encoded[sentences]
            self._bias = None if self._bias is None else self._bias[sentences]
            if self._cache is not None:
                _select(self._cache.cross_attention_cache, sentences)


@dataclass(frozen=True)
class States:
    """The decoder's last states, each before one token of the target, and those tokens."""

    hidden: Tensor
    tokens: Tensor


def forced(
    engine: Engine, examples: Examples, machine: Machine, batch_tokens: int, prefix: int = 1
) -> Iterator[States]:
    """The states before each token of these targets, batch by batch: what `Steps.step` gives if it is fed them.

    A state is what goes into the output layer, as `step` gives it. `prefix` is how many first tokens the decoder is
    forced to begin with (`Vocabulary.prefix`): nobody chooses the one that it reads first nor a language's code behind
    it, so neither has a state here. The end of a sentence has one. No two batches stand in memory at once.
    """
    model, pad, start = engine.model, engine.vocabulary.pad, engine.vocabulary.start
    model.to(machine.device)
    for _, _, batch in batches(examples, pad, batch_tokens, 0):
        source, target = batch.source.to(machine.device), batch.target.to(machine.device)
        first = torch.full_like(target[:, 0], start) if batch.start is None else batch.start.to(target.device)
        shifted = torch.cat([first[:, None], target[:, :-1]], dim=1)
        mask = source.ne(pad).long()
        # Not around the loop: whoever takes a batch would go on in our modes.
        with _quietly(model, machine):
            encoded = model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
            hidden = model.get_decoder()(
                input_ids=shifted, encoder_hidden_states=encoded, encoder_attention_mask=mask, use_cache=False
            ).last_hidden_state
        real = target.ne(pad)
        real[:, : prefix - 1] = False
        yield States(hidden[real].float(), target[real])


def logits_of(engine: Engine, hidden: Tensor) -> Tensor:
    """What the engine's output layer makes of such states, in fp32."""
    with torch.no_grad():
        return _logits(engine.model, hidden)


@contextmanager
def stepping(model: PreTrainedModel, machine: Machine) -> Iterator[None]:
    """The model ready for `Steps`: no dropout, no gradients, our attention; as it was before when it is over."""
    attention = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        with _quietly(model, machine):
            yield
    finally:
        model.set_attn_implementation(attention)


@contextmanager
def _quietly(model: PreTrainedModel, machine: Machine) -> Iterator[None]:
    """No dropout, no gradients, in the machine's precision; the model is as it was before when it is over."""
    training, bf16 = model.training, machine.precision == "bf16"
    model.eval()
    try:
        # Autocast keeps its bf16 copies of the weights from step to step, but not in inference mode.
        with (
            torch.no_grad() if bf16 else torch.inference_mode(),
            torch.autocast(machine.device.type, torch.bfloat16, enabled=bf16),
        ):
            yield
    finally:
        model.train(training)


def scaled(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The decoder's last states as the output layer wants them: T5 with tied embeddings shrinks them first."""
    if getattr(model.config, "scale_decoder_outputs", False) and model.config.model_type == "t5":
        hidden = hidden * model.config.d_model**-0.5
    return hidden


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    logits: Tensor = model.lm_head(scaled(model, hidden)).float()
    bias = getattr(model, "final_logits_bias", None)
    return logits if bias is None else logits + bias


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    rows, heads, length, width = query.shape
    sentences, places = key.shape[0], key.shape[2]
    if length > 1:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, position_bias=position_bias, **rest
        )
        return whole
    beams = rows // sentences
    with torch.autocast(query.device.type, enabled=False):
        # One query a row becomes as many queries a sentence as it has beams.
        folded = query.view(sentences, beams, heads, width).transpose(1, 2).reshape(sentences * heads, beams, width)
        keys, values = (kept.reshape(sentences * heads, places, width) for kept in (key, value))
        scores = torch.bmm(folded.to(keys.dtype) * (width**-0.5 if scaling is None else scaling), keys.transpose(1, 2))
        if attention_mask is not None or position_bias is not None:
            scores = scores.view(sentences, heads, beams, places)
            for added in (attention_mask, position_bias):
                scores = scores if added is None else scores + added
            scores = scores.view(sentences * heads, beams, places)
        mixed = torch.bmm(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)
    mixed = mixed.view(sentences, heads, beams, width).transpose(1, 2).reshape(rows, 1, heads, width)
    return mixed.to(query.dtype), None


# No mask function goes with it: a new token sees all that came before, and the source's padding comes as a ready bias.
AttentionInterface.register(ATTENTION, _attend)


def _kept(states: Tensor) -> Tensor:
    return states.float() if states.device.type == "cpu" else states


class _Whole(DynamicLayer):  # type: ignore[misc]
    """The source's keys and values: written once."""

    keys: Tensor
    values: Tensor
    is_initialized: bool

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        # In one piece, or every step would copy them to be so.
        self.keys, self.values = _kept(keys).contiguous(), _kept(values).contiguous()
        self.is_initialized = True
        return self.keys, self.values

    def select(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]


class _Growing(DynamicLayer):  # type: ignore[misc]
    """The target's keys and values: a place more at each step."""

    keys: Tensor
    values: Tensor
    is_initialized: bool
    _store: Tensor

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        keys, values = _kept(keys), _kept(values)
        done = self.keys.shape[2] if self.is_initialized else 0
        length = done + keys.shape[2]
        if not self.is_initialized or length > self._store.shape[3]:
            rows, heads, _new, width = keys.shape
            store = keys.new_empty(2, rows, heads, length + ROOM, width)
            if done:
                store[:, :, :, :done] = self._store[:, :, :, :done]
            self._store, self.is_initialized = store, True
        self._store[0, :, :, done:length] = keys
        self._store[1, :, :, done:length] = values
        self._show(length)
        return self.keys, self.values

    def select(self, rows: Tensor) -> None:
        self._store = self._store[:, rows]
        self._show(self.keys.shape[2])

    def _show(self, length: int) -> None:
        self.keys, self.values = self._store[0, :, :, :length], self._store[1, :, :, :length]


def _select(cache: Cache, rows: Tensor) -> None:
    for layer in cache.layers:
        layer.select(rows)
