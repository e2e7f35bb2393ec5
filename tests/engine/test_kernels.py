"""Quicker ways to compute the same: held to torch's own functions, and to Hugging Face's own forward and loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.corpus.batches import Examples
from fedmt.engine import engine, kernels
from fedmt.engine.device import Machine
from fedmt.engine.kernels import attention, dropout, quick, smoothed_loss
from fedmt.engine.trainer import Trainer
from fedmt.recipe import Train
from tests.engine import tiny

CPU = torch.device("cpu")
ROWS = (1, 255, 256, 257, 600)


# ── the loss ────────────────────────────────────────────────────────────────────────────────────────────────────────


def drawn(rows: int, dtype: torch.dtype, bias: bool) -> tuple[list[Tensor], Tensor]:
    """Hidden states, a head and its bias (all leaves), and labels."""
    draw = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 24, generator=draw).to(dtype)
    weight = (torch.randn(51, 24, generator=draw) * 0.5).to(dtype)
    leaves = [hidden, weight, *([torch.randn(51, generator=draw)] if bias else [])]
    return [leaf.requires_grad_() for leaf in leaves], torch.randint(51, (rows,), generator=draw)


def plain(leaves: list[Tensor], labels: Tensor, smoothing: float) -> Tensor:
    hidden, weight, *bias = leaves
    logits = F.linear(hidden, weight, *bias)
    return F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")


def ours(leaves: list[Tensor], labels: Tensor, smoothing: float) -> Tensor:
    hidden, weight, *bias = leaves
    return smoothed_loss(hidden, weight, bias[0] if bias else None, labels, smoothing)


def graded(
    function: Callable[[list[Tensor], Tensor, float], Tensor], leaves: list[Tensor], *arguments: Any
) -> tuple[Tensor, list[Tensor]]:
    """Value and gradients; the loss is scaled as a training step scales it."""
    loss = function(leaves, *arguments)
    return loss.detach(), list(torch.autograd.grad(loss / 37, leaves))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", ROWS)
def test_the_loss_is_cross_entropy_in_value_and_gradients(rows: int, smoothing: float, bias: bool) -> None:
    leaves, labels = drawn(rows, torch.float32, bias)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    value, gradients = graded(ours, leaves, labels, smoothing)
    wanted, expected = graded(plain, exact, labels, smoothing)
    assert float(value) == pytest.approx(float(wanted), rel=2e-6)
    for gradient, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=1e-4, atol=float(right.abs().max()) * 2e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", ROWS)
def test_in_bf16_it_is_off_by_the_rounding_only(rows: int, smoothing: float) -> None:
    """Of the products and of what is returned, 2⁻⁸ each; what is in between is in fp32."""
    leaves, labels = drawn(rows, torch.bfloat16, bias=False)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    value, gradients = graded(ours, leaves, labels, smoothing)
    wanted, expected = graded(plain, exact, labels, smoothing)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(float(wanted), rel=4e-3)
    for gradient, right in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.bfloat16
        error = (gradient.double() - right).norm() / right.norm()
        assert float(error) < 6e-3


def test_the_gradients_scale_is_not_rounded() -> None:
    """1/37 in bf16 is off by 0.2 %, and so would every gradient of a step be, in the same direction."""
    leaves, labels = drawn(1, torch.bfloat16, bias=False)
    (whole,) = torch.autograd.grad(ours(leaves, labels, 0.1), leaves[:1])
    for divisor in range(900, 940):
        (scaled,) = torch.autograd.grad(ours(leaves, labels, 0.1) / divisor, leaves[:1])
        assert torch.equal(scaled, (whole.float() / divisor).bfloat16())


def test_large_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[200.0, 0.0], [-300.0, 10.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    labels = torch.tensor([1, 1])
    # By hand: the first row's logits are 200, -200, 0, so its loss is 400; the second's are -300, 300, 10: none.
    loss = smoothed_loss(hidden, weight, None, labels, 0.0)
    assert float(loss.detach()) == 400.0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (hidden, weight)))


def test_nothing_is_computed_for_what_is_not_trained() -> None:
    leaves, labels = drawn(5, torch.float32, bias=True)
    leaves[1].requires_grad_(False)
    leaves[2].requires_grad_(False)
    ours(leaves, labels, 0.1).backward()  # type: ignore[no-untyped-call]
    assert leaves[0].grad is not None
    assert leaves[1].grad is leaves[2].grad is None


# ── dropout ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_its_share(p: float) -> None:
    torch.manual_seed(0)
    count = 4_000_003
    kept = dropout(torch.ones(count), p)
    values: Tensor = kept.unique()  # type: ignore[no-untyped-call]
    assert values.tolist() == pytest.approx([0.0, 1 / (1 - p)])
    share = float(kept.eq(0).double().mean())
    noise = math.sqrt(p * (1 - p) / count)
    assert abs(share - p) < 1 / 65536 + 4 * noise
    assert float(kept.double().mean()) == pytest.approx(1, abs=(1 / 65536 + 4 * noise) / (1 - p))


def test_neighbours_are_dropped_independently() -> None:
    """Four elements share one random number; none must tell of another."""
    torch.manual_seed(0)
    kept = dropout(torch.ones(250_000, 4), 0.5).ne(0).double()
    pairs = torch.corrcoef(kept.T)
    assert float((pairs - torch.eye(4)).abs().max()) < 4 / math.sqrt(len(kept))
    assert float(torch.corrcoef(torch.stack([kept[:-1, 3], kept[1:, 0]]))[0, 1].abs()) < 4 / math.sqrt(len(kept))


def test_a_dropped_element_is_not_learnt_from() -> None:
    torch.manual_seed(0)
    x = torch.randn(31, 7, requires_grad=True)
    kept = dropout(x, 0.3)
    scale = torch.randn(31, 7)
    kept.backward(scale)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(x.grad, scale * (kept.detach() / x.detach()))


def test_without_training_or_chance_nothing_is_dropped() -> None:
    x = torch.randn(3, 3)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x


def test_the_seed_decides_what_is_dropped() -> None:
    x = torch.ones(1001)
    torch.manual_seed(5)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (2, 3, 5)])
def test_any_shape_and_precision_is_kept(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        kept = dropout(torch.ones(shape, dtype=dtype), 0.5)
        assert (kept.shape, kept.dtype) == (torch.Size(shape), dtype)


def test_nearly_everything_may_be_dropped() -> None:
    torch.manual_seed(0)
    assert float(dropout(torch.ones(1000), 0.9999999).ne(0).double().mean()) < 0.01


# ── attention ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Layer(nn.Module):
    """All that attention asks of a layer: whether it is being trained."""


def queries(length: int, keys: int, **settings: Any) -> list[Tensor]:
    draw = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, places, 8, generator=draw, **settings) for places in (length, keys, keys)]


def masks(length: int, keys: int) -> dict[str, Tensor | None]:
    padded = torch.zeros(2, 1, length, keys)
    padded[1, :, :, keys // 2 + 1 :] = torch.finfo(torch.float32).min
    causal = torch.full((length, keys), torch.finfo(torch.float32).min).triu(1)[None, None].expand(2, 1, -1, -1)
    return {"none": None, "padding": padded, "causal": causal}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scaling", [None, 1.0])
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize(("length", "keys"), [(1, 1), (7, 7), (5, 9), (130, 130)])
def test_attention_is_torchs(length: int, keys: int, mask: str, scaling: float | None, biased: bool) -> None:
    """On both sides of the length from which torch's own kernel is taken."""
    query, key, value = queries(length, keys)
    bias = torch.randn(1, 3, length, keys) if biased else None
    added = masks(length, keys)[mask]
    whole = bias if added is None else added if bias is None else added + bias
    wanted = F.scaled_dot_product_attention(query, key, value, whole, scale=scaling)
    layer = Layer().eval()
    found, weights = attention(layer, query, key, value, added, scaling=scaling, dropout=0.5, position_bias=bias)
    torch.testing.assert_close(found, wanted.transpose(1, 2), rtol=1e-4, atol=1e-5)
    assert weights is None
    assert (length * keys > kernels.SHORT) == (length == 130)


@pytest.mark.parametrize("length", [6, 130])
def test_attention_drops_weights_while_it_is_trained(length: int) -> None:
    query, key, value = queries(length, length)
    layer = Layer()
    torch.manual_seed(3)
    one, _ = attention(layer, query, key, torch.ones_like(value), None, dropout=0.5)
    torch.manual_seed(3)
    same, _ = attention(layer, query, key, torch.ones_like(value), None, dropout=0.5)
    assert torch.equal(one, same)
    # The weights of a row sum to 1; with half of them gone and the rest doubled, to 1 on average and not each.
    sums = one[..., 0]
    assert not torch.allclose(sums, torch.ones_like(sums))
    assert float(sums.mean()) == pytest.approx(1, abs=0.25)


# ── all of it, in an engine ─────────────────────────────────────────────────────────────────────────────────────────


def attentions(model: Any) -> list[str]:
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return [config._attn_implementation for config in configs.values()]


@pytest.mark.parametrize("kind", ["scratch", "mbart50", "m2m100", "t5", "mt5"])
def test_all_is_as_before_even_after_a_failure(kind: str) -> None:
    model = engine.load(tiny.folder(kind)).model
    before = attentions(model)
    for error in (None, ZeroDivisionError, KeyboardInterrupt):
        try:
            with quick(model, CPU):
                assert set(attentions(model)) == {kernels.ATTENTION}
                torch.manual_seed(1)
                assert torch.equal(F.dropout(torch.ones(9), 0.5), _ours_at_seed_1())
                if error:
                    raise error
        except (ZeroDivisionError, KeyboardInterrupt):
            assert error
        assert attentions(model) == before
        torch.manual_seed(1)
        assert not isinstance(F.dropout(torch.ones(9, requires_grad=True), 0.5).grad_fn, kernels._Dropout)


def _ours_at_seed_1() -> Tensor:
    torch.manual_seed(1)
    kept = dropout(torch.ones(9), 0.5)
    torch.manual_seed(1)
    return kept


def test_on_an_accelerator_nothing_is_changed() -> None:
    model = engine.load(tiny.folder("scratch")).model
    before = attentions(model)
    with quick(model, torch.device("meta")):
        assert attentions(model) == before


def no_dropout(model: Any) -> None:
    for module in model.modules():
        for name in ("dropout", "activation_dropout", "attention_dropout", "dropout_rate", "layerdrop", "p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def sentences(made: engine.Engine) -> tuple[list[list[int]], list[list[int]]]:
    count = slice(0, 9)
    return (
        made.vocabulary.encode_source(tiny.SENTENCES[count], tiny.DIRECTION),
        made.vocabulary.encode_target(tiny.SENTENCES[50:59], tiny.DIRECTION),
    )


def padded(found: list[list[int]], fill: int) -> Tensor:
    width = max(map(len, found))
    return torch.tensor([row + [fill] * (width - len(row)) for row in found])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_training_step_has_hugging_faces_gradients(kind: str, smoothing: float) -> None:
    """Of every tensor, with sources of several lengths, where Hugging Face itself shifts the labels and masks."""
    made = engine.load(tiny.folder(kind))
    model: Any = made.model
    no_dropout(model)
    sources, targets = sentences(made)
    pad = made.vocabulary.pad
    source, labels = padded(sources, pad), padded(targets, -100)

    model.train()
    shifted = {}
    if kind == "mbart25":
        # Hugging Face's own shift wants the language at the end of the labels, where fedmt has it as the start.
        language = made.vocabulary.prefix(tiny.DIRECTION)[0]
        start = torch.full_like(labels[:, :1], language)
        shifted = {"decoder_input_ids": torch.cat([start, labels[:, :-1].where(labels[:, :-1] >= 0, pad)], 1)}
    output = model(input_ids=source, attention_mask=source.ne(pad).long(), labels=labels, use_cache=False, **shifted)
    loss = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    loss.backward()  # type: ignore[no-untyped-call]
    if not smoothing:
        torch.testing.assert_close(output.loss, loss)
    wanted = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None

    found, gradients = stepped(made, sources, targets, smoothing)
    assert found == pytest.approx(float(loss.detach()), rel=1e-5)
    assert gradients.keys() == wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=largest * 1e-5, msg=name)


class Halted(torch.optim.Optimizer):
    """Takes no step, and keeps the gradients that it was to take."""

    def __init__(self, named: dict[str, nn.Parameter]) -> None:
        super().__init__(named.values(), {})
        self.named = named
        self.found: dict[str, Tensor] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        self.found = {
            name: parameter.grad.clone() for name, parameter in self.named.items() if parameter.grad is not None
        }


def stepped(
    made: engine.Engine, sources: list[list[int]], targets: list[list[int]], smoothing: float
) -> tuple[float, dict[str, Tensor]]:
    """The loss a token and the gradients of one step of the trainer's own."""
    settings = Train(label_smoothing=smoothing, clip=None)
    trainer = Trainer(made, settings, Machine(CPU, "fp32", 1))
    start = made.vocabulary.prefix(tiny.DIRECTION)[0]
    examples = Examples.of(sources, targets, start=start)
    batch = examples.batch(np.arange(len(examples)), made.vocabulary.pad)
    halted = Halted(trainer.trained)
    made.model.train()
    with quick(made.model, CPU):
        loss = trainer._step(halted, batch)
    assert loss is not None
    return loss / batch.target_tokens, halted.found
