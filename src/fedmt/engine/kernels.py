"""Faster ways to compute what an engine's training step computes anyway; the values are the same, up to rounding.

Three things cost more on a processor than they need to: random numbers for dropout (one 64-bit draw serves four
elements), attention over short sentences (plain matrix products beat the tiled kernel below about a hundred tokens),
and the loss (written once, with its gradient, chunk by chunk, over the target's real tokens only).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

__all__ = ["quick", "smoothed_loss"]

ATTENTION = "short_sentences"
SHORT = 128 * 128


def smoothed_loss(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """Summed cross-entropy with label smoothing of `hidden @ weight.T + bias`, without keeping fp32 logits."""
    loss: Tensor = _SmoothedLoss.apply(hidden, weight, bias, labels, smoothing)  # type: ignore[no-untyped-call]
    return loss


class _SmoothedLoss(torch.autograd.Function):
    CHUNK = 256

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        rows, width = hidden.shape[0], weight.shape[0]
        gradient = torch.empty(rows, width, dtype=hidden.dtype, device=hidden.device)
        scratch = torch.empty(min(_SmoothedLoss.CHUNK, rows), width, dtype=torch.float32, device=hidden.device)
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        transposed = weight.t()
        for start in range(0, rows, _SmoothedLoss.CHUNK):
            part = gradient[start : start + _SmoothedLoss.CHUNK]
            torch.mm(hidden[start : start + _SmoothedLoss.CHUNK], transposed, out=part)
            logits = scratch[: part.shape[0]]
            logits.copy_(part)
            if bias is not None:
                logits.add_(bias)
            wanted = labels[start : start + _SmoothedLoss.CHUNK, None]
            picked = logits.gather(1, wanted)
            mean = logits.mean(1, keepdim=True)
            highest = logits.amax(1, keepdim=True)
            logits.sub_(highest).exp_()
            mass = logits.sum(1, keepdim=True)
            loss = mass.log().add_(highest).sub_(picked, alpha=1 - smoothing).sub_(mean, alpha=smoothing)
            total += loss.sum(dtype=torch.float64)
            logits.div_(mass)
            if smoothing:
                logits.sub_(smoothing / width)
            logits.scatter_add_(1, wanted, torch.full_like(picked, smoothing - 1))
            part.copy_(logits)
        ctx.save_for_backward(gradient, hidden, weight)
        return total.float()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        gradient, hidden, weight = ctx.saved_tensors
        # The scale stays in fp32: rounded to bf16 it would shrink or stretch every gradient of the engine alike.
        by_hidden = (gradient @ weight).mul_(scale) if ctx.needs_input_grad[0] else None
        by_weight = (gradient.t() @ hidden).mul_(scale) if ctx.needs_input_grad[1] else None
        by_bias = gradient.sum(0, dtype=torch.float32).mul_(scale) if ctx.needs_input_grad[2] else None
        return by_hidden, by_weight, by_bias, None, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        threshold = min(round(p * 65536), 65535) - 32768
        mask = draws.view(torch.int16)[: x.numel()].view(x.shape).ge(threshold).to(x.dtype).mul_(1 / (1 - p))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient * mask, None


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: ARG001
    """`F.dropout` with p rounded to 1/65536; its signature is torch's."""
    if not training or p == 0:
        return x
    dropped: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return dropped


class _QuickDropout(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.dropout:
            return dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if scaling is None:
        scaling = query.size(-1) ** -0.5
    chance = dropout if module.training else 0.0
    if position_bias is not None:
        attention_mask = position_bias if attention_mask is None else position_bias + attention_mask
    if query.size(2) * key.size(2) > SHORT:
        out = F.scaled_dot_product_attention(query, key, value, attention_mask, chance, scale=scaling)
    else:
        weights = torch.matmul(query * scaling, key.transpose(-1, -2))
        if attention_mask is not None:
            weights = weights + attention_mask
        weights = torch.softmax(weights, -1)
        if chance:
            weights = F.dropout(weights, chance)
        out = torch.matmul(weights, value)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)


@contextmanager
def quick(model: Any, device: torch.device) -> Iterator[None]:
    """Train `model` with the kernels of this file where they pay: on a processor, and only inside this block."""
    if device.type != "cpu":
        yield
        return
    set_attention: Callable[[str], None] | None = getattr(model, "set_attn_implementation", None)
    before = model.config._attn_implementation
    swap = set_attention is not None and before in ("sdpa", "eager") and getattr(model, "_supports_sdpa", False)
    if swap:
        model.set_attn_implementation(ATTENTION)
    try:
        with _QuickDropout():
            yield
    finally:
        if swap:
            model.set_attn_implementation(before)
