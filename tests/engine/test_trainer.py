"""Training: the same end however it is cut into rounds or killed; nothing moves but what is trained."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmt.corpus.batches import Batch, Examples, batches
from fedmt.engine import engine, trainer
from fedmt.engine.device import Machine
from fedmt.engine.trainer import Fitted, Pace, Past, Saved, Trainer, pace, rate
from fedmt.errors import Diverged
from fedmt.recipe import Train
from tests.engine import tiny

PACE = Pace(3e-3, 4)
FP32 = Machine(torch.device("cpu"), "fp32", 1)
BF16 = Machine(torch.device("cpu"), "bf16", 1)


@functools.cache
def _first(kind: str, dropout: float) -> engine.Engine:
    made = engine.load(tiny.folder(kind))
    for module in made.model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = dropout
    return made


def fresh(kind: str = "opus", dropout: float = 0.1) -> engine.Engine:
    """An engine whose tensors nobody else has."""
    first = _first(kind, dropout)
    return engine.Engine(copy.deepcopy(first.model), first.vocabulary)


def examples(count: int = 40, kind: str = "opus") -> Examples:
    made = _first(kind, 0.1).vocabulary
    source = made.encode_source(tiny.SENTENCES[:count], tiny.DIRECTION)
    target = made.encode_target(tiny.SENTENCES[100 : 100 + count], tiny.DIRECTION)
    return Examples.of(source, target, start=made.prefix(tiny.DIRECTION)[0])


def train(**changes: Any) -> Train:
    return Train.model_validate({"batch_tokens": 120, **changes})


def bits(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.detach().contiguous().numpy().tobytes() for name, tensor in sorted(tensors.items())}


def kept(saved: Saved) -> Saved:
    """As from a file: what is live goes on changing."""
    return Saved({name: tensor.clone() for name, tensor in saved.tensors.items()}, dict(saved.numbers))


# ── the learning rate ───────────────────────────────────────────────────────────────────────────────────────────────

schedules = st.sampled_from(["inverse_sqrt", "linear", "constant"])


@given(schedules, st.integers(0, 60), st.integers(1, 200), st.floats(0, 1))
def test_the_rate_is_never_negative_nor_above_the_peak(kind: str, warmup: int, total: int, cooldown: float) -> None:
    settings = train(schedule=kind, cooldown=cooldown)
    rates = [rate(settings, Pace(1.0, warmup), step, total) for step in range(1, total + 5)]
    assert all(0 <= value <= 1 for value in rates)
    assert all(value > 0 for value in rates[:total]), "no step of a training is wasted"


@given(schedules, st.integers(1, 20), st.integers(60, 200), st.floats(0, 0.5))
def test_it_rises_evenly_and_never_again(kind: str, warmup: int, total: int, cooldown: float) -> None:
    settings = train(schedule=kind, cooldown=cooldown)
    rates = [rate(settings, Pace(2.0, warmup), step, total) for step in range(1, total + 1)]
    assert rates[:warmup] == pytest.approx([2.0 * step / warmup for step in range(1, warmup + 1)])
    assert max(rates) == pytest.approx(2.0)
    falling = rates[warmup - 1 :]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(falling))


@given(schedules, st.floats(0.2, 1), st.integers(50, 200))
def test_it_ends_near_nothing(kind: str, cooldown: float, total: int) -> None:
    settings = train(schedule=kind, cooldown=cooldown)
    assert rate(settings, Pace(1.0, 5), total, total) <= 1 / (0.2 * total) + 1e-12


def test_the_shapes_by_hand() -> None:
    def told(steps: list[int], total: int, **changes: Any) -> list[float]:
        return [rate(train(**changes), Pace(1.0, 4), step, total) for step in steps]

    assert told([1, 4, 9, 16, 64, 100], 100, cooldown=0.0) == pytest.approx([0.25, 1, 2 / 3, 0.5, 0.25, 0.2])
    assert told([1, 4, 50, 80, 81, 90, 100], 100, schedule="constant", cooldown=0.2) == pytest.approx(
        [0.25, 1, 1, 1, 1, 0.55, 0.05]
    )
    assert told([1, 4, 13, 22, 23], 23, schedule="linear") == pytest.approx([0.25, 1, 0.55, 0.1, 0.05])
    assert told([1, 50], 100, schedule="constant", cooldown=0.0) == pytest.approx([0.25, 1])
    # After a training's end nothing is learnt.
    assert told([101, 150], 100, cooldown=0.2) == [0, 0]


@pytest.mark.parametrize("past", [0, 100, 5000, None])
def test_the_recipe_says_how_fast_or_what_the_engine_has_been_through(past: Past) -> None:
    assert pace(train(peak=0.5, warmup=0), past, 10**5, 256) == Pace(0.5, 0)
    assert pace(train(), past, 1, 256).warmup == 1, "a short training still has a step at its peak"
    assert pace(train(), past, 0, 256).warmup >= 1


def test_random_weights_learn_slower_when_they_are_many_or_the_rise_is_short() -> None:
    peaks = [pace(train(), 0, total, 256).peak for total in (10, 50, 200, 10_000)]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]
    narrow, wide = (pace(train(), 0, 10_000, width).peak for width in (256, 512))
    assert wide < narrow


def test_who_goes_on_after_a_training_goes_on_at_its_rate() -> None:
    whole = pace(train(), 0, 10**6, 256)
    for past in (trainer.WARMUP, 1000, 50_000):
        reached = rate(train(cooldown=0.0), whole, past, 10**6)
        assert pace(train(), past, 10**6, 256).peak == pytest.approx(reached)
    half = pace(train(), trainer.WARMUP // 2, 10**6, 256)
    assert half == Pace(whole.peak, trainer.WARMUP // 2), "a rise that was broken off is finished"
    assert pace(train(), None, 10**6, 256).peak < pace(train(), 50_000, 10**6, 256).peak


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def next_seed(seed: int) -> int:
    """The seed whose first epoch is the second epoch of `seed`."""
    following = (seed + 7919 * pow(1_000_003, -1, 2**63)) % 2**63
    assert trainer._mix(following, 0) == trainer._mix(seed, 1)
    return following


@pytest.mark.parametrize("machine", [FP32, BF16], ids=["fp32", "bf16"])
def test_rounds_of_one_epoch_are_one_long_training(machine: Machine) -> None:
    """Weights and moments, bit for bit: without dropout, whose random numbers are each round's own."""
    data, chosen = examples(), train(weight_decay=0.01)
    long, short = (Trainer(fresh(dropout=0.0), chosen, machine) for _ in range(2))
    total = 3 * long.steps(data)
    whole, after = long.fit(data, epochs=3, seed=5, pace=PACE, total=total)

    saved: Saved | None = None
    parts: list[Fitted] = []
    seed = 5
    for _ in range(3):
        fitted, saved = short.fit(data, epochs=1, seed=seed, pace=PACE, total=total, saved=saved)
        saved = kept(saved)
        parts.append(fitted)
        seed = next_seed(seed)
    assert saved is not None
    assert bits(long.trained) == bits(short.trained)
    assert bits(after.tensors) == bits(saved.tensors)
    assert after.numbers == saved.numbers == {"step": total}
    assert sum(part.tokens for part in parts) == whole.tokens
    assert sum(part.steps for part in parts) == whole.steps == total
    assert math.fsum(part.loss * part.tokens for part in parts) / whole.tokens == pytest.approx(whole.loss)


def test_moments_matter_and_so_does_the_place_in_the_schedule() -> None:
    data = examples()

    def second(saved: Saved | None) -> dict[str, bytes]:
        made = Trainer(fresh(dropout=0.0), train(), FP32)
        made.fit(data, epochs=1, seed=1, pace=PACE, total=2 * made.steps(data), saved=saved)
        return bits(made.trained)

    first = Trainer(fresh(dropout=0.0), train(), FP32)
    _, after = first.fit(data, epochs=1, seed=3, pace=PACE, total=2 * first.steps(data))
    with_both = second(after)
    assert second(None) != with_both
    assert second(Saved({}, after.numbers)) != with_both
    assert second(Saved(after.tensors, {})) != with_both


# ── killed ──────────────────────────────────────────────────────────────────────────────────────────────────────────

EPOCHS = 2


def whole_fit(
    kind: str, machine: Machine, saved: Saved | None = None
) -> tuple[Fitted, Saved, dict[str, bytes], list[Saved]]:
    """Two epochs that go on from `saved`, and all that they gave to `keep`: every step, since no time is too short."""
    made = Trainer(fresh(kind), train(checkpoint_seconds=1e-9), machine)
    if kind == "m2m100":
        made.model.model.encoder.layerdrop = 0.3
    data = examples(kind=kind)
    found: list[Saved] = []
    total = EPOCHS * made.steps(data)
    fitted, after = made.fit(
        data, epochs=EPOCHS, seed=9, pace=PACE, total=total, saved=saved, keep=lambda state: found.append(kept(state))
    )
    return fitted, after, bits(made.trained), found


@functools.cache
def undisturbed(kind: str, machine: Machine) -> tuple[Fitted, Saved, dict[str, bytes], list[Saved]]:
    return whole_fit(kind, machine)


# With layer drop, layers have been through different numbers of steps.
@pytest.mark.parametrize("kind", ["opus", "m2m100"])
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_fit_killed_at_any_step_ends_as_if_it_had_not_been(kind: str, data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from([FP32, BF16]))
    fitted, after, tensors, saves = undisturbed(kind, machine)
    assert len(saves) == fitted.steps
    state = saves[data.draw(st.integers(0, len(saves) - 1))]
    assert state.inside
    again, after_again, tensors_again, rest = whole_fit(kind, machine, kept(state))
    assert tensors_again == tensors
    assert bits(after_again.tensors) == bits(after.tensors)
    assert after_again.numbers == after.numbers
    assert (again.loss, again.tokens, again.steps) == (fitted.loss, fitted.tokens, fitted.steps)
    assert len(rest) == len(saves) - int(state.numbers["fit_steps"])
    assert again.seconds > state.numbers["seconds"]


def test_a_second_round_killed_inside_goes_on_too() -> None:
    """Its steps are counted from the first round's, its own from none."""
    data = examples()

    def second(saved: Saved) -> tuple[Fitted, dict[str, bytes], list[Saved]]:
        made = Trainer(fresh(), train(checkpoint_seconds=1e-9), FP32)
        found: list[Saved] = []
        fitted, _ = made.fit(
            data, epochs=1, seed=2, pace=PACE, total=99, saved=saved, keep=lambda state: found.append(kept(state))
        )
        return fitted, bits(made.trained), found

    made = Trainer(fresh(), train(), FP32)
    _, after = made.fit(data, epochs=1, seed=1, pace=PACE, total=99)
    fitted, tensors, saves = second(kept(after))
    again, tensors_again, _ = second(saves[2])
    assert tensors_again == tensors
    assert (again.loss, again.tokens, again.steps) == (fitted.loss, fitted.tokens, fitted.steps)
    assert fitted.steps == made.steps(data)


def test_checkpoints_wait_for_their_time() -> None:
    made, data = Trainer(fresh(), train(checkpoint_seconds=1000), FP32), examples()
    found: list[Saved] = []
    made.fit(data, epochs=1, seed=1, pace=PACE, total=9, keep=found.append)
    assert not found


# ── what is computed ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_dev_loss_is_the_plain_one(kind: str) -> None:
    made, data = fresh(kind), examples(kind=kind)
    total, tokens = 0.0, 0
    start = made.vocabulary.prefix(tiny.DIRECTION)[0]
    sources = made.vocabulary.encode_source(tiny.SENTENCES[:40], tiny.DIRECTION)
    targets = made.vocabulary.encode_target(tiny.SENTENCES[100:140], tiny.DIRECTION)
    made.model.eval()
    model: Any = made.model
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            logits = model(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[start, *target[:-1]]])
            ).logits
            total += float(F.cross_entropy(logits[0], torch.tensor(target), reduction="sum"))
            tokens += len(target)
    for size in (16, 120, 5000):
        assert Trainer(made, train(batch_tokens=size), FP32).loss(data) == pytest.approx(total / tokens, rel=1e-5)


def test_the_dev_loss_is_in_fp32_and_unsmoothed_and_without_dropout() -> None:
    made, data = fresh(), examples()
    plain = Trainer(made, train(label_smoothing=0.0), FP32).loss(data)
    assert Trainer(made, train(label_smoothing=0.3), BF16).loss(data) == plain
    made.model.train()
    assert Trainer(made, train(), FP32).loss(data) == plain
    assert Trainer(made, train(), FP32).loss(examples(0)) == 0.0


def test_the_training_loss_is_the_smoothed_one_a_token() -> None:
    """At a learning rate of nothing every step sees the same engine."""
    made, data = fresh(dropout=0.0), examples()
    before = bits(made.tensors())
    fitted, _ = Trainer(made, train(label_smoothing=0.0), FP32).fit(data, epochs=2, seed=1, pace=Pace(0.0, 1), total=9)
    assert fitted.loss == pytest.approx(Trainer(made, train(), FP32).loss(data), rel=1e-5)
    assert fitted.tokens == 2 * int(data.target_lengths.sum())
    assert bits(made.tensors()) == before


def test_a_gradient_does_not_depend_on_padding() -> None:
    """Nor on what a pair is batched with, beyond the mean over real tokens: no label stands on padding."""
    made, data = fresh("scratch", dropout=0.0), examples(kind="scratch")
    chosen = Trainer(made, train(clip=None), FP32)
    lengths = data.source_lengths + 100 * data.target_lengths
    long, short = int(lengths.argmax()), int(lengths.argmin())

    def gradient(batch: Batch) -> tuple[float, dict[str, Tensor]]:
        hidden, labels = chosen._hidden(batch)
        weight, bias = chosen._head()
        loss = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum") / batch.target_tokens
        gradients = torch.autograd.grad(loss, list(chosen.trained.values()))
        return float(loss.detach()), dict(zip(chosen.trained, gradients, strict=True))

    alone = {index: gradient(data.batch(np.array([index]), chosen.pad)) for index in (long, short)}
    _, together = gradient(data.batch(np.array([long, short]), chosen.pad))
    tokens = {index: int(data.target_lengths[index]) for index in (long, short)}
    for name, found in together.items():
        expected = sum(alone[index][1][name] * tokens[index] for index in tokens) / sum(tokens.values())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_steps_are_known_before() -> None:
    made, data = Trainer(fresh(), train(), FP32), examples()
    fitted, _ = made.fit(data, epochs=3, seed=1, pace=PACE, total=99)
    assert fitted.steps == 3 * made.steps(data)
    assert made.steps(data) == len(list(batches(data, made.pad, 120, 77)))
    assert made.steps(examples(0)) == 0


def test_the_gradient_is_clipped_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW, closure: Any = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
        return step(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    for clip in (None, 0.01):
        Trainer(fresh(), train(clip=clip), FP32).fit(examples(), epochs=1, seed=1, pace=PACE, total=9)
    free, clipped = norms[: len(norms) // 2], norms[len(norms) // 2 :]
    assert min(free) > 0.02
    assert clipped == pytest.approx([0.01] * len(clipped), rel=1e-3)


def test_training_learns() -> None:
    made, data = fresh("scratch"), examples(kind="scratch")
    chosen = Trainer(made, train(), FP32)
    before = chosen.loss(data)
    chosen.fit(data, epochs=6, seed=1, pace=Pace(3e-3, 5), total=6 * chosen.steps(data))
    assert chosen.loss(data) < before - 1


def test_the_same_seed_is_the_same_training_and_another_is_not() -> None:
    def trained(seed: int) -> dict[str, bytes]:
        made = Trainer(fresh(), train(), FP32)
        made.fit(examples(), epochs=1, seed=seed, pace=PACE, total=9)
        return bits(made.trained)

    assert trained(1) == trained(1)
    assert trained(1) != trained(2)


# ── what is left alone ──────────────────────────────────────────────────────────────────────────────────────────────


def test_only_what_is_named_changes() -> None:
    made = fresh()
    names = [name for name in made.tensors() if ".layers.1.fc1." in name]
    before = bits(made.tensors())
    Trainer(made, train(weight_decay=0.1), FP32, names).fit(examples(), epochs=1, seed=1, pace=PACE, total=9)
    after = bits(made.tensors())
    assert {name for name in after if after[name] != before[name]} == set(names)
    assert len(names) == 4
    # Nor is anything computed for the rest.
    assert all(parameter.grad is None for parameter in made.model.parameters())


def test_all_that_an_engine_trains_changes_and_the_engine_is_left_ready() -> None:
    made = fresh()
    wanted = {name: parameter.requires_grad for name, parameter in made.model.named_parameters()}
    before = bits(made.tensors())
    Trainer(made, train(), FP32).fit(examples(), epochs=1, seed=1, pace=PACE, total=9)
    after = bits(made.tensors())
    assert all(after[name] != before[name] for name in after)
    assert not made.model.training
    assert {name: parameter.requires_grad for name, parameter in made.model.named_parameters()} == wanted


def test_a_failure_leaves_the_engine_ready_too() -> None:
    made = fresh()

    def stop(_: Saved) -> None:
        raise KeyboardInterrupt

    names = [name for name in made.tensors() if "fc1" in name]
    chosen = Trainer(made, train(checkpoint_seconds=1e-9), FP32, names)
    wanted = {name: parameter.requires_grad for name, parameter in made.model.named_parameters()}
    with pytest.raises(KeyboardInterrupt):
        chosen.fit(examples(), epochs=1, seed=1, pace=PACE, total=9, keep=stop)
    assert {name: parameter.requires_grad for name, parameter in made.model.named_parameters()} == wanted
    assert not made.model.training


# ── numbers that are none ───────────────────────────────────────────────────────────────────────────────────────────


class Spoiling(Trainer):
    """The gradient of these steps is not finite."""

    spoilt: Iterator[bool]

    def _hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden, labels = super()._hidden(batch)
        return (hidden * math.inf if next(self.spoilt) else hidden), labels


def spoilt(pattern: list[bool], epochs: int = 1, made: engine.Engine | None = None) -> tuple[Fitted, dict[str, bytes]]:
    made = made or fresh(dropout=0.0)
    chosen = Spoiling(made, train(), FP32)
    chosen.spoilt = iter(pattern)
    fitted, _ = chosen.fit(examples(), epochs=epochs, seed=1, pace=PACE, total=len(pattern))
    return fitted, bits(made.tensors())


def test_a_step_without_a_finite_gradient_is_left_out() -> None:
    made, data = fresh(dropout=0.0), examples()
    steps = Trainer(made, train(), FP32).steps(data)
    before = bits(made.tensors())
    one_bad = [index == 3 for index in range(steps)]
    fitted, after = spoilt(one_bad)
    assert after != before
    assert math.isfinite(fitted.loss)
    assert fitted.steps == steps
    # The bad step's tokens count no more than its loss.
    bad = [batch for at, _, batch in batches(data, 0, 120, trainer._mix(1, 0)) if at == 3]
    assert fitted.tokens == int(data.target_lengths.sum()) - bad[0].target_tokens

    # Many bad steps are no lost training as long as there are good ones between them.
    epochs = 2 + 2 * trainer.HOPELESS // steps
    fitted, _ = spoilt([index % 2 == 0 for index in range(epochs * steps)], epochs)
    assert math.isfinite(fitted.loss)


def test_a_training_without_finite_gradients_is_given_up() -> None:
    made = fresh()
    before = bits(made.tensors())
    steps = Trainer(made, train(), FP32).steps(examples())
    epochs = 1 + trainer.HOPELESS // steps
    good_then_bad = [False] + [True] * (epochs * steps - 1)
    used: list[bool] = []

    def pattern() -> Iterator[bool]:
        for bad in good_then_bad:
            used.append(bad)
            yield bad

    chosen = Spoiling(made, train(), FP32)
    chosen.spoilt = pattern()
    with pytest.raises(Diverged, match="diverged"):
        chosen.fit(examples(), epochs=epochs, seed=1, pace=PACE, total=99)
    assert len(used) == 1 + trainer.HOPELESS
    assert bits(made.tensors()) != before
    assert all(tensor.isfinite().all() for tensor in made.tensors().values())


def test_a_short_training_without_any_finite_gradient_is_given_up_too() -> None:
    steps = Trainer(fresh(), train(), FP32).steps(examples())
    assert steps < trainer.HOPELESS
    with pytest.raises(Diverged):
        spoilt([True] * steps)


# ── what is told ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of which a second passes at each look."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    made, data = Trainer(fresh(dropout=0.0), train(label_smoothing=0.0), FP32), examples()
    told: list[tuple[int, int, float, float]] = []
    fitted, _ = made.fit(data, epochs=2, seed=1, pace=Pace(0.0, 1), total=9, report=lambda *it: told.append(it))
    assert [step for step, *_ in told] == list(range(1, fitted.steps + 1))
    assert {steps for _, steps, *_ in told} == {fitted.steps}
    tokens = int(data.target_lengths.sum() + data.source_lengths.sum())
    assert sum(speed for *_, speed in told) == 2 * tokens
    assert all(0 < loss < 20 for _, _, loss, _ in told)
