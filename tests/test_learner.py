"""One silo's text bound to the one engine: what it measures, where its schedule stands, what it lets out."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmt import recipe
from fedmt.corpus import toy
from fedmt.corpus.pairs import Direction, Pair, Text
from fedmt.engine import engine as engines
from fedmt.engine import trainer as training
from fedmt.engine.decoder import translate
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.trainer import Pace, Past, Trainer
from fedmt.engine.vocabulary import learn
from fedmt.errors import CorpusError, EngineError
from fedmt.events import Event, Note, Progress
from fedmt.federation import checkpoint
from fedmt.federation.checkpoint import State
from fedmt.federation.work import FitOrder
from fedmt.learner import SiloLearner, encoded
from fedmt.recipe import Recipe
from fedmt.score.bootstrap import from_tensors
from fedmt.score.statistics import measure
from tests.engine import tiny

MACHINE = Machine(torch.device("cpu"), "fp32", 1)
PLAN = Recipe.model_validate(
    {
        "silos": {"source": "toy"},
        "train": {"batch_tokens": 120, "checkpoint_seconds": 1e-9},
        "decode": {"longest": 8},
        "score": {"resamples": 15},
    }
)


@pytest.fixture(scope="module")
def text() -> Text:
    (one,) = toy.texts(recipe.ToySilos(source="toy", silos=1, pairs=60), recipe.Split(dev=0.2, test=0.2))
    return one


@pytest.fixture(scope="module")
def first(text: Text) -> Engine:
    vocabulary = learn((side for pair in text.train for side in pair), 320)
    return engines.scratch(recipe.Scratch(size="toy"), vocabulary, 1)


class Bound:
    """A learner on an engine of its own, and what it told."""

    def __init__(self, text: Text, first: Engine, plan: Recipe = PLAN, past: Past = 1000) -> None:
        self.engine = Engine(copy.deepcopy(first.model), first.vocabulary, first.about)
        self.trainer = Trainer(self.engine, plan.train, MACHINE)
        self.events: list[Event] = []
        self.heard: list[tuple[str, str, list[str]]] = []
        ids = encoded(self.engine, [text], plan.train.longest, self.events.append)
        self.learner = SiloLearner(
            text, *ids, self.trainer, self.engine, MACHINE, plan, past, self.events.append, self._hear
        )

    def _hear(self, model: str, silo: str, sentences: Iterable[str]) -> None:
        self.heard.append((model, silo, list(sentences)))

    def bits(self) -> dict[str, bytes]:
        return {name: tensor.numpy().tobytes() for name, tensor in self.learner.tensors().items()}


def order(round: int = 1, rounds: int = 2, **changes: Any) -> FitOrder:
    return replace(FitOrder("federated", round, rounds, epochs=1, seed=3), **changes)


def forget(_: State) -> None:
    """Keeps nothing."""


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fit_tells_what_it_received_and_what_it_did(text: Text, first: Engine) -> None:
    bound = Bound(text, first)
    dev = bound.trainer.loss(bound.learner.dev)
    result, state = bound.learner.fit(order(), None, forget)
    assert result.dev_loss == dev, "of the engine as it came, before training"
    assert bound.trainer.loss(bound.learner.dev) < dev
    assert result.steps == bound.trainer.steps(bound.learner.train) == state.numbers["step"]
    assert result.tokens == int(bound.learner.train.target_lengths.sum())
    assert bound.learner.samples == len(text.train)


def test_without_dev_text_there_is_no_dev_loss(text: Text, first: Engine) -> None:
    bound = Bound(replace(text, dev=[]), first)
    assert bound.learner.fit(order(), None, forget)[0].dev_loss is None
    kept: list[State] = []
    bound.learner.fit(order(), None, kept.append)
    assert "dev_loss" not in kept[0].numbers


def test_no_epoch_is_a_measurement(text: Text, first: Engine) -> None:
    bound = Bound(text, first)
    before = bound.bits()
    result, _ = bound.learner.fit(order(2, epochs=0), None, forget)
    assert (result.steps, result.tokens) == (0, 0)
    assert result.dev_loss == bound.trainer.loss(bound.learner.dev)
    assert bound.bits() == before


def test_a_killed_fit_goes_on_from_the_file_to_the_same_end(text: Text, first: Engine, tmp_path: Path) -> None:
    bound = Bound(text, first)
    kept: list[Path] = []

    def keep(state: State) -> None:
        kept.append(tmp_path / f"{len(kept)}.safetensors")
        checkpoint.save(kept[-1], state)

    whole, after = bound.learner.fit(order(), None, keep)
    assert len(kept) == whole.steps
    for path in (kept[0], kept[len(kept) // 2], kept[-1]):
        # The engine of the new process is another one: the weights are in the state.
        again = Bound(text, first)
        again.engine.load_tensors({name: tensor + 1 for name, tensor in again.engine.tensors().items()})
        result, after_again = again.learner.fit(order(), checkpoint.load(path), forget)
        assert again.bits() == bound.bits()
        assert replace(result, seconds=0) == replace(whole, seconds=0)
        assert after_again.numbers == after.numbers


@pytest.mark.parametrize("kept", [True, False])
def test_the_order_says_where_the_schedule_stands(
    text: Text, first: Engine, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """With fresh moments, and after a round that the silo missed, the last round still ends at a rate of nothing."""
    asked: list[tuple[int, int]] = []
    rate = training.rate

    def watched(settings: recipe.Train, pace: Pace, step: int, total: int) -> float:
        asked.append((step, total))
        return rate(settings, pace, step, total)

    monkeypatch.setattr(training, "rate", watched)
    bound = Bound(text, first)
    steps = bound.trainer.steps(bound.learner.train)
    _, state = bound.learner.fit(order(1, 4), None, forget)
    bound.learner.fit(order(3, 4), state if kept else None, forget)
    assert asked == [
        (step, 4 * steps) for round in (0, 2) for step in range(round * steps + 1, (round + 1) * steps + 1)
    ]


def test_how_fast_it_learns_follows_from_what_the_engine_has_been_through(
    text: Text, first: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Past] = []

    def watched(settings: recipe.Train, past: Past, total: int, width: int) -> Pace:  # noqa: ARG001
        asked.append(past)
        return Pace(1e-3, 1)

    monkeypatch.setattr("fedmt.learner.pace", watched)
    learner = Bound(text, first, past=7).learner
    later = learner.after(3, 1)
    for one in (learner, later):
        one.fit(order(), None, forget)
    assert asked == [7, 7 + 3 * learner.steps]


def test_progress_names_the_silo_the_round_and_the_step(
    text: Text, first: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))
    bound = Bound(text, first)
    result, _ = bound.learner.fit(order(2, 5), None, forget)
    told = [event for event in bound.events if isinstance(event, Progress)]
    assert [(one.model, one.who, one.round, one.rounds, one.steps) for one in told] == [
        ("federated", text.name, 2, 5, result.steps)
    ] * result.steps
    assert [one.step for one in told] == list(range(1, result.steps + 1))


# ── scoring ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_score_is_that_of_the_translations(text: Text, first: Engine) -> None:
    bound = Bound(text, first)
    bound.learner.fit(order(), None, forget)
    statistics, samples = from_tensors(bound.learner.score("federated", "test"))
    hypotheses = translate(bound.engine, [pair.source for pair in text.test], text.direction, PLAN.decode, MACHINE)
    wanted = measure(hypotheses, [pair.target for pair in text.test], "qtz")
    assert statistics == wanted.summed()
    assert {name: len(values) for name, values in samples.items()} == {"bleu": 15, "chrf": 15, "ter": 15}
    assert bound.heard == [("federated", text.name, hypotheses)]


def test_on_dev_there_are_counts_only_and_nothing_is_kept(text: Text, first: Engine) -> None:
    bound = Bound(text, first)
    statistics, samples = from_tensors(bound.learner.score("federated", "dev"))
    assert (statistics.n, set(statistics.counts), samples) == (len(text.dev), {"bleu", "chrf"}, {})
    assert bound.heard == []


@pytest.mark.parametrize("model", ["public", "combined", "chained", "federated", "alone:toy-1", "personal:toy-1"])
def test_a_models_own_silos_count_the_edits_too(text: Text, first: Engine, model: str) -> None:
    assert "ter.counts" in Bound(text, first).learner.score(model, "test")


@pytest.mark.parametrize("model", ["alone:toy-2", "personal:toy-2", "alone:toy-11"])
def test_what_another_silos_model_makes_of_it_is_scored_without(text: Text, first: Engine, model: str) -> None:
    assert text.name == "toy-1"
    tensors = Bound(text, first).learner.score(model, "test")
    assert "ter.counts" not in tensors
    assert {"bleu.counts", "chrf.samples"} <= tensors.keys()


# ── text into ids ───────────────────────────────────────────────────────────────────────────────────────────────────


def pairs(*lengths: int) -> list[Pair]:
    words = tiny.SENTENCES[0].split()
    return [Pair(" ".join(words[:1] * length), f"{words[0]} {index}") for index, length in enumerate(lengths)]


def lengthy(name: str, train: list[Pair], **changes: Any) -> Text:
    return replace(Text(name, Direction("de", "en"), train, pairs(1), pairs(1)), **changes)


def test_what_is_too_long_is_left_out_and_told() -> None:
    made, events = engines.load(tiny.folder("opus")), list[Event]()
    train, dev = encoded(made, [lengthy("clinic", pairs(1, 2, 60))], 40, events.append)
    assert (len(train), train.left_out, len(dev)) == (2, 1, 1)
    assert events == [Note("clinic: 1 training pairs are longer than 40 tokens: left out")]


def test_nothing_is_longer_than_the_engine_can_read() -> None:
    """It would end in an index error of the positions."""
    made, events = engines.load(tiny.folder("opus")), list[Event]()
    longest = made.model.config.max_position_embeddings
    train, _ = encoded(made, [lengthy("clinic", pairs(1, 2 * longest))], 10 * longest, events.append)
    assert (len(train), train.left_out) == (1, 1)
    assert f"longer than {longest} tokens" in str(events[0])


def test_text_that_is_all_too_long_is_the_users_mistake() -> None:
    made = engines.load(tiny.folder("opus"))
    with pytest.raises(CorpusError, match=r"^clinic \(de-en\): each of its 2 training pairs is longer than 4 tokens"):
        encoded(made, [lengthy("clinic", pairs(20, 30))], 4, lambda _: None)


def test_several_directions_keep_their_own_beginnings() -> None:
    made = engines.load(tiny.folder("mbart25"))
    texts = [lengthy("public", pairs(1)), lengthy("public", pairs(2), direction=Direction("en", "de"))]
    train, _ = encoded(made, texts, 50, lambda _: None)
    assert train.starts is not None
    assert train.starts.tolist() == [made.vocabulary.prefix(text.direction)[0] for text in texts]
    assert len(set(train.starts.tolist())) == 2


def test_a_language_that_the_engine_does_not_know_is_the_users_mistake() -> None:
    made = engines.load(tiny.folder("mbart50"))
    with pytest.raises(EngineError, match="does not know the language xx"):
        encoded(made, [lengthy("clinic", pairs(1), direction=Direction("xx", "en"))], 50, lambda _: None)
