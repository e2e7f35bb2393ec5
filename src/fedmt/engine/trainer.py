"""Training: token batches, one AdamW step each. Knows an engine and token ids, and nothing of silos.

What a fit leaves behind (moments, steps taken) comes back as a value and goes into the next fit, so that rounds of one
epoch each are one long training; what a killed fit gave to `keep` also holds the weights, the place and the random
state, and going on from it ends where the whole fit would have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.corpus.batches import Batch, Examples, batches, plan
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.kernels import quick, smoothed_loss
from fedmt.engine.steps import scaled
from fedmt.errors import Diverged
from fedmt.recipe import Train

__all__ = ["Fitted", "Pace", "Past", "Report", "Saved", "Trainer", "pace", "rate"]

Past: TypeAlias = int | None
"""What an engine has been through: so many steps from random weights, or, None, somebody's pretraining."""

PEAK, WARMUP, WIDTH, STEEPEST = 2e-3, 400, 256, 8e-6
REWARM = 50
PRETRAINED_PEAK, PRETRAINED_WARMUP = 5e-5, 100
# So many steps in a row without a finite gradient are no bad batch but a lost training.
HOPELESS = 20

Report = Callable[[int, int, float, float], None]
"""Called now and then with the steps done, the steps of this fit, the loss of late, and tokens per second."""


@dataclass(frozen=True)
class Saved:
    """What training needs to go on: tensors of moments by name, and numbers; inside a fit, the weights too."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def inside(self) -> bool:
        return "epoch" in self.numbers


@dataclass(frozen=True)
class Fitted:
    loss: float
    tokens: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Pace:
    """The highest learning rate, and the steps it takes to reach it."""

    peak: float
    warmup: int


def pace(settings: Train, past: Past, total: int, width: int) -> Pace:
    """How fast an engine of this width may learn in `total` steps, by what it has been through; the recipe goes first.

    Steps from random weights are one long inverse-square-root schedule: who goes on after n of them goes on at its
    rate. While that still rises, a rise too fast makes post-norm layers diverge (measured at width 256: more than 8e-6
    a step; wider is worse), so a training too short for the whole of it stays below the peak.
    """
    if past is None:
        peak, own = PRETRAINED_PEAK, PRETRAINED_WARMUP
    else:
        peak, own = PEAK * math.sqrt(WIDTH / width * WARMUP / max(WARMUP, past)), max(REWARM, WARMUP - past)
    warmup = max(1, min(own, round(0.4 * total))) if settings.warmup is None else settings.warmup
    if past is not None and past < WARMUP:
        peak = min(peak, STEEPEST * (WIDTH / width) ** 2 * (past + max(1, warmup)))
    return Pace(peak if settings.peak is None else settings.peak, warmup)


def rate(settings: Train, pace: Pace, step: int, total: int) -> float:
    """The learning rate of the `step`-th of `total` steps, counted from 1."""
    rising = min(1.0, step / pace.warmup) if pace.warmup else 1.0
    if settings.schedule == "linear":
        return pace.peak * min(rising, max(0.0, (total + 1 - step) / max(1, total + 1 - pace.warmup)))
    cooling = settings.cooldown * total
    level = min(1.0, max(0, total + 1 - step) / cooling) if cooling else 1.0
    if settings.schedule == "inverse_sqrt":
        level *= min(1.0, math.sqrt(max(1, pace.warmup) / step))
    return pace.peak * rising * level


class Trainer:
    """Trains the tensors of `names` (none: all that the engine trains) of one engine, in place."""

    def __init__(self, engine: Engine, settings: Train, machine: Machine, names: Iterable[str] | None = None) -> None:
        self.model = engine.model
        self.settings = settings
        self.machine = machine
        self.pad = engine.vocabulary.pad
        self.start = engine.vocabulary.start
        own = dict(self.model.named_parameters())
        self.trained = {name: own[name] for name in (engine.tensors() if names is None else names)}
        self.model.to(machine.device)

    def steps(self, examples: Examples) -> int:
        """Steps of one epoch."""
        return len(plan(examples.source_lengths, examples.target_lengths, self.settings.batch_tokens, 0))

    def fit(
        self,
        examples: Examples,
        *,
        epochs: int,
        seed: int,
        pace: Pace,
        total: int,
        saved: Saved | None = None,
        keep: Callable[[Saved], None] | None = None,
        report: Report | None = None,
        most: int | None = None,
    ) -> tuple[Fitted, Saved]:
        """Train for so many epochs, or `most` steps of them.

        `total` is the steps of the whole training, of which this fit is a part.

        A step whose gradient is not finite changes nothing, and its tokens do not count.
        """
        optimizer = self._optimizer(saved)
        numbers = dict(saved.numbers) if saved else {}
        step = int(numbers.get("step", 0))
        if saved and saved.inside:
            first, done = int(numbers["epoch"]), int(numbers["batch"])
            loss_sum, tokens, seconds = numbers["loss_sum"], int(numbers["tokens"]), numbers["seconds"]
            lost = int(numbers["lost"])
            self._restore(saved)
        else:
            first, done, lost, loss_sum, tokens, seconds = 0, 0, 0, 0.0, 0, 0.0
            torch.manual_seed(seed)
        before = step - int(numbers.get("fit_steps", 0))
        self.model.train()
        began = kept = reported = time.perf_counter()
        late_loss = late_tokens = late_read = 0.0
        frozen = self._freeze_others()
        try:
            with quick(self.model, self.machine.device):
                for epoch in range(first, epochs):
                    for at, of, batch in batches(
                        examples, self.pad, self.settings.batch_tokens, _mix(seed, epoch), done if epoch == first else 0
                    ):
                        if most is not None and step - before >= most:
                            break
                        step += 1
                        for group in optimizer.param_groups:
                            group["lr"] = rate(self.settings, pace, step, total)
                        loss = self._step(optimizer, batch)
                        late_read += batch.target_tokens + int((batch.source != self.pad).sum())
                        if loss is None:
                            lost += 1
                            self._check_lost(lost)
                        else:
                            lost = 0
                            loss_sum, tokens = loss_sum + loss, tokens + batch.target_tokens
                            late_loss, late_tokens = late_loss + loss, late_tokens + batch.target_tokens
                        now = time.perf_counter()
                        if report and now - reported > 0.5:
                            late = late_loss / late_tokens if late_tokens else math.nan
                            goal = epochs * of if most is None else min(most, epochs * of)
                            report(step - before, goal, late, late_read / (now - reported))
                            reported, late_loss, late_tokens, late_read = now, 0.0, 0.0, 0.0
                        if keep and now - kept > self.settings.checkpoint_seconds:
                            place = {
                                "step": step,
                                "fit_steps": step - before,
                                "epoch": epoch,
                                "batch": at + 1,
                                "lost": lost,
                                "loss_sum": loss_sum,
                                "tokens": tokens,
                                "seconds": seconds + now - began,
                            }
                            keep(Saved({**self._moments(optimizer), **self._weights(), **_random()}, place))
                            kept = time.perf_counter()
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
            self.model.eval()
        if step > before and not tokens:
            self._check_lost(HOPELESS)
        fitted = Fitted(loss_sum / max(1, tokens), tokens, step - before, seconds + time.perf_counter() - began)
        return fitted, Saved(self._moments(optimizer), {"step": step})

    def loss(self, examples: Examples) -> float:
        """Mean negative log-likelihood per target token, in fp32 and unsmoothed: fit to choose a checkpoint by."""
        self.model.eval()
        total, tokens = 0.0, 0
        with torch.inference_mode():
            for _, _, batch in batches(examples, self.pad, self.settings.batch_tokens, 0):
                hidden, labels = self._hidden(batch)
                weight, bias = self._head()
                for start in range(0, len(labels), 1024):
                    logits = F.linear(hidden[start : start + 1024], weight, bias)
                    total += float(F.cross_entropy(logits, labels[start : start + 1024], reduction="sum"))
                tokens += batch.target_tokens
        return total / max(1, tokens)

    def slope(
        self, examples: Examples, names: Iterable[str], most: int | None, seed: int
    ) -> tuple[float, dict[str, Tensor]]:
        """The loss of so many batches (none: all), as `loss` counts it, and its gradient by these tensors."""
        own = dict(self.model.named_parameters())
        wanted = {name: own[name] for name in names}
        asked = {name: parameter.requires_grad for name, parameter in own.items()}
        self.model.eval()
        total, tokens = 0.0, 0
        try:
            for name, parameter in own.items():
                parameter.requires_grad_(name in wanted)
            with torch.set_grad_enabled(bool(wanted)), quick(self.model, self.machine.device):
                for at, _, batch in batches(examples, self.pad, self.settings.batch_tokens, seed):
                    if at == most:
                        break
                    hidden, labels = self._hidden(batch)
                    weight, bias = self._head()
                    loss = smoothed_loss(hidden, weight, bias, labels, 0.0)
                    if wanted:
                        torch.autograd.backward(loss)
                    total, tokens = total + float(loss.detach()), tokens + batch.target_tokens
            gradient = {
                name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / max(1, tokens)
                for name, parameter in wanted.items()
            }
        finally:
            for name, parameter in own.items():
                parameter.requires_grad_(asked[name])
                parameter.grad = None
        return total / max(1, tokens), gradient

    def _check_lost(self, lost: int) -> None:
        if lost >= HOPELESS:
            raise Diverged("training diverged: step after step had no finite gradient")

    def _step(self, optimizer: torch.optim.Optimizer, batch: Batch) -> float | None:
        """One step's summed loss; None if its gradient was not finite and the step was not taken."""
        low = self.machine.precision == "bf16"
        with torch.autocast(self.machine.device.type, torch.bfloat16, enabled=low):
            hidden, labels = self._hidden(batch)
        weight, bias = self._head()
        kind = torch.bfloat16 if low else torch.float32
        loss = smoothed_loss(hidden.to(kind), weight.to(kind), bias, labels, self.settings.label_smoothing)
        if not loss.requires_grad:
            # Layer drop has left out every layer that is trained.
            return float(loss)
        torch.autograd.backward(loss / batch.target_tokens)
        limit = math.inf if self.settings.clip is None else self.settings.clip
        norm = nn.utils.clip_grad_norm_(self.trained.values(), limit)
        taken = math.isfinite(norm)
        if taken:
            optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach()) if taken else None

    def _hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The decoder's last states at the target's real tokens, and those tokens."""
        source, target = batch.source.to(self.machine.device), batch.target.to(self.machine.device)
        start = torch.full_like(target[:, 0], self.start) if batch.start is None else batch.start.to(target.device)
        shifted = torch.cat([start[:, None], target[:, :-1]], 1)
        whole = bool((batch.source != self.pad).all())
        mask = None if whole else source.ne(self.pad).long()
        encoded = self.model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
        hidden: Tensor = self.model.get_decoder()(
            input_ids=shifted, encoder_hidden_states=encoded, encoder_attention_mask=mask, use_cache=False
        ).last_hidden_state
        real = target.ne(self.pad)
        return scaled(self.model, hidden[real]), target[real]

    def _head(self) -> tuple[Tensor, Tensor | None]:
        head: nn.Linear = self.model.get_output_embeddings()
        bias: Tensor | None = getattr(self.model, "final_logits_bias", None)
        return head.weight, None if bias is None else bias[0]

    def _optimizer(self, saved: Saved | None) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(
            self.trained.values(),
            betas=(0.9, self.settings.beta2),
            weight_decay=self.settings.weight_decay,
            fused=self.machine.device.type in ("cpu", "cuda"),
        )
        for name, parameter in self.trained.items():
            if saved and f"first.{name}" in saved.tensors:
                optimizer.state[parameter] = {
                    "step": saved.tensors[f"steps.{name}"].to(parameter.device, copy=True),
                    "exp_avg": saved.tensors[f"first.{name}"].to(parameter.device, copy=True),
                    "exp_avg_sq": saved.tensors[f"second.{name}"].to(parameter.device, copy=True),
                }
        return optimizer

    def _moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        moments: dict[str, Tensor] = {}
        for name, parameter in self.trained.items():
            if state := optimizer.state.get(parameter):
                moments[f"first.{name}"] = state["exp_avg"]
                moments[f"second.{name}"] = state["exp_avg_sq"]
                # Not one number for all: an engine with layer drop leaves out whole layers of a step.
                moments[f"steps.{name}"] = state["step"]
        return moments

    def _weights(self) -> dict[str, Tensor]:
        return {f"weight.{name}": parameter.detach() for name, parameter in self.trained.items()}

    def _restore(self, saved: Saved) -> None:
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(saved.tensors[f"weight.{name}"])
        torch.set_rng_state(saved.tensors["random.cpu"])
        if "random.cuda" in saved.tensors:
            torch.cuda.set_rng_state(saved.tensors["random.cuda"])

    def _freeze_others(self) -> list[nn.Parameter]:
        trained = {id(parameter) for parameter in self.trained.values()}
        others = [p for p in self.model.parameters() if p.requires_grad and id(p) not in trained]
        for parameter in others:
            parameter.requires_grad_(False)
        return others


def _random() -> dict[str, Tensor]:
    state = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["random.cuda"] = torch.cuda.get_rng_state()
    return state


def _mix(seed: int, epoch: int) -> int:
    """A seed for each epoch; epochs of neighbouring seeds must not coincide."""
    return (seed * 1_000_003 + epoch * 7919 + 1) % 2**63
