"""One silo's text bound to the one resident engine: what federation calls to train and to score.

Above both `engine/` and `federation/`, since it speaks to both; nothing that it returns holds a sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from fedmt.corpus.batches import Examples
from fedmt.corpus.pairs import Text
from fedmt.engine.decoder import Mixer, translate
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.ensemble import Voice
from fedmt.engine.steps import States, forced
from fedmt.engine.trainer import Past, Report, Saved, Trainer, pace
from fedmt.errors import CorpusError
from fedmt.events import Listener, Note, Progress
from fedmt.federation.checkpoint import State
from fedmt.federation.work import FitOrder, FitResult, Written
from fedmt.memory import datastore, retrieve
from fedmt.memory.index import Index
from fedmt.memory.quantise import Quantiser
from fedmt.memory.retrieve import Retrieval, Tuned
from fedmt.place import Place, Side
from fedmt.recipe import Memory, Recipe
from fedmt.score.bootstrap import as_tensors, resample, seed_of
from fedmt.score.statistics import measure

__all__ = ["Heard", "Portion", "SiloLearner", "encoded"]

Heard = Callable[[str, str, Sequence[str]], None]
"""Keeps hypotheses: called with the model, the silo and the sentences, at the silo and nowhere else."""


@dataclass(frozen=True)
class Portion:
    """What of the engine silos work on: what they train or share, and of that, what they share.

    `first` is how what they work on begins, and `digest` names the whole engine that it is part of.
    """

    working: tuple[str, ...]
    shared: tuple[str, ...]
    places: Mapping[str, Place]
    first: Mapping[str, Tensor]
    digest: int


class SiloLearner:
    def __init__(
        self,
        text: Text,
        train: Examples,
        dev: Examples,
        trainer: Trainer,
        engine: Engine,
        machine: Machine,
        recipe: Recipe,
        past: Past,
        listen: Listener,
        heard: Heard | None = None,
        portion: Portion | None = None,
    ) -> None:
        self._text = text
        self.train = train
        self.dev = dev
        self._trainer = trainer
        self._engine = engine
        self._machine = machine
        self._recipe = recipe
        self.past = past
        self._listen = listen
        self._heard = heard
        self._portion = portion

    @property
    def samples(self) -> int:
        return len(self.train)

    @cached_property
    def steps(self) -> int:
        """Of one epoch."""
        return self._trainer.steps(self.train)

    def tensors(self) -> Mapping[str, Tensor]:
        own = self._engine.tensors()
        return own if self._portion is None else {name: own[name] for name in self._portion.working}

    def shared(self) -> Sequence[str]:
        return list(self._engine.tensors()) if self._portion is None else self._portion.shared

    def side(self, name: str) -> Side:
        return "shared" if self._portion is None else self._portion.places[name].side

    def base(self, tensors: Mapping[str, Tensor], digest: int) -> bool:
        portion = self._portion
        if portion is None or digest != portion.digest:
            return False
        # Where nothing came, this silo has the engine already; others that train here may have moved it.
        self._engine.load_tensors({**portion.first, **tensors})
        return True

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._engine.load_tensors(tensors)

    def after(self, rounds: int, epochs: int) -> SiloLearner:
        """The same learner, for an engine that has been through so many rounds more of text like this."""
        learner = copy.copy(self)
        if self.past is not None:
            learner.past = self.past + rounds * (self._recipe.train.steps or epochs * self.steps)
        return learner

    def sharing_all(self) -> SiloLearner:
        """The same learner, where nothing that it trains stays behind: in a federation of one, all of it moves on."""
        learner = copy.copy(self)
        if self._portion is not None:
            learner._portion = replace(self._portion, shared=self._portion.working)
        return learner

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
        saved = Saved() if state is None else Saved(state.tensors, state.numbers)
        epochs, steps = order.epochs, order.epochs * self.steps
        if self._recipe.train.steps is not None and not order.personal and epochs:
            steps = self._recipe.train.steps
            epochs = -(-steps // max(1, self.steps))
        if saved.inside:
            dev_loss = saved.numbers.get("dev_loss")
        else:
            dev_loss = self._trainer.loss(self.dev) if len(self.dev) else None
            # The order says where the schedule stands, for a fresh optimiser and after a missed round too.
            saved = Saved(saved.tensors, {"step": (order.round - 1) * steps})
        known = {} if dev_loss is None else {"dev_loss": dev_loss}
        total = order.rounds * steps
        fitted, after = self._trainer.fit(
            self.train,
            epochs=epochs,
            most=steps,
            seed=order.seed,
            pace=pace(self._recipe.train, self.past, total, self._engine.model.config.d_model),
            total=total,
            saved=saved,
            keep=lambda inside: keep(State(inside.tensors, {**inside.numbers, **known})),
            report=self._report(order),
        )
        result = FitResult(fitted.loss, dev_loss, fitted.tokens, fitted.steps, fitted.seconds)
        return result, State(after.tensors, after.numbers)

    def _report(self, order: FitOrder) -> Report:
        def report(step: int, steps: int, loss: float, speed: float) -> None:
            who = self._text.name
            self._listen(Progress(order.model, who, order.round, order.rounds, step, steps, loss, speed))

        return report

    def judge(self, batches: int, seed: int, slope: bool) -> tuple[float | None, Mapping[str, Tensor]]:
        if not len(self.dev):
            return None, {}
        return self._trainer.slope(self.dev, self.shared() if slope else (), batches, seed)

    def gradient(self, batches: int | None) -> Mapping[Side, Tensor]:
        assert self._portion is not None
        places = self._portion.places
        names = [name for name in self._engine.tensors() if places[name].role == "norm"]
        _, slope = self._trainer.slope(self.train, names, batches, 0)
        found: dict[Side, Tensor] = {}
        for side in ("encoder", "decoder"):
            vector = torch.cat([slope[name].reshape(-1) for name in names if places[name].side == side])
            found["encoder" if side == "encoder" else "decoder"] = vector / vector.norm()
        return found

    # ── as records ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def direction(self) -> str:
        return str(self._text.direction)

    @property
    def dev_pairs(self) -> int:
        return len(self.dev)

    @property
    def vocabulary_size(self) -> int:
        return int(self._engine.model.config.vocab_size)

    def records(self, quantiser: Quantiser) -> Written:
        states, neighbours = partial(self._states, self.train), self._memory.prune
        if neighbours is None:
            return Written(datastore.build(states(), quantiser), lambda: 0)
        parts, pruned = datastore.prune(states, self._engine, quantiser, neighbours)
        return Written(parts, lambda: pruned.dropped)

    def tune(self, index: Index, seed: int) -> Tuned:
        return retrieve.tune(index, self._engine, self._states(self.dev), self._memory, seed)

    def recite(self, model: str, memory: Retrieval) -> Mapping[str, Tensor]:
        return self._scored(model, "test", memory)

    def chorus(self, model: str, voices: Sequence[Voice]) -> Mapping[str, Tensor]:
        """As `score` on the test set, by several engines together."""
        return self._scored(model, "test", voices=voices)

    @property
    def _memory(self) -> Memory:
        assert self._recipe.memory is not None
        return self._recipe.memory

    def _states(self, examples: Examples) -> Iterable[States]:
        """The decoder's states before each token of a text, as it is forced through the engine."""
        prefix = len(self._engine.vocabulary.prefix(self._text.direction))
        return forced(self._engine, examples, self._machine, self._recipe.train.batch_tokens, prefix)

    # ── scores ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:
        return self._scored(model, set)

    def _scored(
        self, model: str, set: str, memory: Mixer | None = None, voices: Sequence[Voice] = ()
    ) -> Mapping[str, Tensor]:
        pairs = self._text.test if set == "test" else self._text.dev
        direction = self._text.direction

        def on_progress(done: int, of: int) -> None:
            self._listen(Progress(model, self._text.name, 0, 0, done, of))

        hypotheses = translate(
            self._engine,
            [pair.source for pair in pairs],
            direction,
            self._recipe.decode,
            self._machine,
            on_progress=on_progress,
            listen=self._listen,
            memory=memory,
            voices=voices,
        )
        final = set == "test"
        # TER takes longer than the translating did: not for what one silo's own model makes of another's text.
        ter = final and model.partition(":")[2] in ("", self._text.name)
        counted = measure(hypotheses, [pair.target for pair in pairs], direction.target, ter=ter)
        if final and self._heard is not None:
            self._heard(model, self._text.name, hypotheses)
        samples = resample(counted, self._recipe.score.resamples, seed_of(self._text.name)) if final else {}
        return as_tensors(counted, samples)


def encoded(engine: Engine, texts: Iterable[Text], longest: int, listen: Listener) -> tuple[Examples, Examples]:
    """Training and dev text as ids, of one text or of several in their own directions. Pairs too long are left out."""
    longest = min(longest, getattr(engine.model.config, "max_position_embeddings", None) or longest)
    kept: list[tuple[Examples, Examples]] = []
    for text in texts:
        start = engine.vocabulary.prefix(text.direction)[0]
        sides = []
        for pairs in (text.train, text.dev):
            source = engine.vocabulary.encode_source([pair.source for pair in pairs], text.direction)
            target = engine.vocabulary.encode_target([pair.target for pair in pairs], text.direction)
            sides.append(Examples.of(source, target, longest, start))
        kept.append((sides[0], sides[1]))
        if not len(sides[0]):
            raise CorpusError(
                f"{text.name} ({text.direction}): each of its {len(text.train)} training pairs is longer than "
                f"{longest} tokens; train.longest allows more, up to what the engine can read"
            )
        if sides[0].left_out:
            listen(Note(f"{text.name}: {sides[0].left_out} training pairs are longer than {longest} tokens: left out"))
    return Examples.join([train for train, _ in kept]), Examples.join([dev for _, dev in kept])
