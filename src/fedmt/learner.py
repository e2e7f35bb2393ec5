"""One silo's text bound to the one resident engine: what federation calls to train and to score.

Above both `engine/` and `federation/`, since it speaks to both; nothing that it returns holds a sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from torch import Tensor

from fedmt.corpus.batches import Examples
from fedmt.corpus.pairs import Text
from fedmt.engine.decoder import translate
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.trainer import Past, Report, Saved, Trainer, pace
from fedmt.errors import CorpusError
from fedmt.events import Listener, Note, Progress
from fedmt.federation.silo import FitOrder, FitResult, State
from fedmt.recipe import Recipe
from fedmt.score.bootstrap import as_tensors, resample, seed_of
from fedmt.score.statistics import measure

__all__ = ["Heard", "SiloLearner", "encoded"]

Heard = Callable[[str, str, Sequence[str]], None]
"""Keeps hypotheses: called with the model, the silo and the sentences, at the silo and nowhere else."""


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

    @property
    def samples(self) -> int:
        return len(self.train)

    @cached_property
    def steps(self) -> int:
        """Of one epoch."""
        return self._trainer.steps(self.train)

    def tensors(self) -> Mapping[str, Tensor]:
        return self._engine.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._engine.load_tensors(tensors)

    def after(self, epochs: int) -> SiloLearner:
        """The same learner, for an engine that has been through so many epochs more of text like this."""
        learner = copy.copy(self)
        if self.past is not None:
            learner.past = self.past + epochs * self.steps
        return learner

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
        saved = Saved() if state is None else Saved(state.tensors, state.numbers)
        steps = order.epochs * self.steps
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
            epochs=order.epochs,
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

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:
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
