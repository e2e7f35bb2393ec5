"""One recipe becomes one run: text, engine, every model as a federation, scores, report.

Even the baselines are federations, run by the same coordinator over the same silos: `alone` is a federation of one,
`combined` of one that holds all text, `public` of the server alone. So what they share is code, not resemblance. Each
model is trained, then scored at every silo, then forgotten; whatever is whole stands on disk, and a run that was killed
goes on from there to the same end.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from torch import Tensor

from fedmt import files, footing, reading
from fedmt.choices import CodecFp32, GroupsNone, MergeSamples, PartAll, Selectors
from fedmt.corpus import families
from fedmt.corpus.batches import Examples
from fedmt.corpus.packages import PRESETS
from fedmt.corpus.pairs import Text
from fedmt.corpus.silos import gather
from fedmt.engine import device, extension
from fedmt.engine.engine import Engine
from fedmt.engine.ensemble import Voice
from fedmt.engine.trainer import Past, Trainer
from fedmt.errors import RecipeError, RunError
from fedmt.events import Choice, Event, Listener, Note, Phase, Scored, Travelled, tell_all
from fedmt.exchange.ledger import Ledger
from fedmt.federation import checkpoint
from fedmt.federation.checkpoint import State
from fedmt.federation.coordinator import Coordinator
from fedmt.federation.course import After, Engines
from fedmt.federation.groups import Grouping, group
from fedmt.federation.silo import Silo
from fedmt.federation.transport import Beside, InProcess, Transport
from fedmt.learner import Portion, SiloLearner, encoded
from fedmt.place import Side
from fedmt.recipe import Failures, Pretrained, PypiSilos, Recipe, Scratch, SitesSilos, ToySilos, Train, listed
from fedmt.remembrance import Remembrance
from fedmt.report import card, html
from fedmt.report.folder import About, Facts, RunFolder, versions
from fedmt.score.bootstrap import from_tensors
from fedmt.score.rows import Bytes, Measured, collect, write_measured

__all__ = ["Sites", "identity", "run"]

# Where the server trains along; no silo can be called so.
SERVER = "public"

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Sites:
    """Silos that are elsewhere: how they are reached, and what they tell of their text."""

    transport: Transport
    facts: Sequence[Facts]
    # Called with the engine, the steps it has been trained, and whether silos have it by its name, before they are
    # asked anything.
    welcome: Callable[[Engine, Past, bool], None] = lambda *_: None
    # What sites know this run by; others of the same recipe have other names, or they would be taken for it.
    run: str | None = None


def run(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    listen: Listener = lambda _: None,
    sites: Sites | None = None,
) -> RunFolder:
    """Carry out `recipe` in `folder`; with `resume`, go on where an earlier call was stopped.

    `sites` are the silos of a recipe whose silos are elsewhere; all others are here, in this process.
    """
    if isinstance(recipe.silos, SitesSilos) and sites is None:
        raise RecipeError("silos: are elsewhere, at their sites; such a recipe is run by `fedmt coordinator run`")
    house = RunFolder(folder)
    if house.recipe.exists() and not resume:
        raise RunError(f"{folder}: holds a run already; resume it, or choose another folder")
    if house.card.exists():
        return house
    files.sweep(folder)
    if not house.recipe.exists():
        files.write_text(house.recipe, reading.write(recipe))
    clock = _Clock(house.checkpoints / "clock.json")
    id = identity(recipe) if sites is None else sites.run or identity(recipe)
    _Run(recipe, house, tell_all([listen, house.tell]), clock, id, sites).through()
    return house


def identity(recipe: Recipe) -> str:
    """What a run is called in every message: other recipes have other names."""
    digest = hashlib.sha256(reading.write(recipe).encode()).hexdigest()[:12]
    return f"{recipe.name[:40]}-{digest}"


class _Clock:
    """Seconds that the run took, those before it was stopped included."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = float(files.read_json(path)["seconds"]) if path.exists() else 0.0
        self._begun = time.monotonic()

    def seconds(self) -> float:
        return self._before + time.monotonic() - self._begun

    def keep(self) -> None:
        files.write_json(self._path, {"seconds": self.seconds()})


@dataclass
class _Run:
    recipe: Recipe
    house: RunFolder
    tell: Listener
    clock: _Clock
    id: str
    sites: Sites | None = None
    measured: dict[tuple[str, str], Measured] = field(default_factory=dict)
    phase: int = 0

    def through(self) -> None:
        recipe = self.recipe
        self._begin("data")
        self.machine = device.choose(recipe.compute)
        for choice in self.machine.choices:
            self.tell(choice)
        self.text = gather(recipe, self.tell)
        self._check_chain()
        directions = [text.direction for text in self.text.silos]
        first = self.house.checkpoints / "first"
        self.engine = footing.first_engine(recipe, self.text.public, directions, first, self.tell)
        footing.check_part(self.engine, recipe)
        self._about()
        self.portion: Portion | None = None
        self.trainer = Trainer(self.engine, recipe.train, self.machine)
        # Before any training: what is wrong with a silo's text is told at once.
        longest = recipe.train.longest
        here = self.text.silos if self.sites is None else ()
        ids = {text.name: encoded(self.engine, [text], longest, self.tell) for text in here}
        start, past = self._public()
        if self.sites is not None:
            self.sites.welcome(self.engine, past, self._named)
        if recipe.server:
            ids[SERVER] = encoded(self.engine, self.text.public, longest, self.tell)
        self.silos = self._learners(ids, past)
        names = [text.name for text in self.text.silos]
        baselines = recipe.baselines
        if "public" in baselines:
            # Sites that have it by its name are not sent it.
            sent = {} if self.sites is not None and self._named else start
            self._score("public", dict.fromkeys(names, sent), travels=not self._named)
        public = self._extend(start)
        # A few tensors, new or not, of an engine that is past its first steps.
        past = past if self.trains_all else None
        self.silos = self._learners(ids, past)
        if "alone" in baselines:
            for name in names:
                self._begin("alone", f"alone:{name}")
                own = self._apart(f"alone:{name}", [name], public)
                self._score(f"alone:{name}", dict.fromkeys(names if recipe.score.cross else [name], own))
        if "chained" in baselines:
            self._begin("chained", "chained")
            self._score("chained", dict.fromkeys(names, self._chained(public)))
        if "combined" in baselines:
            self._begin("combined", "combined")
            together = ["combined"] if "combined" in self.silos else names
            self._score("combined", dict.fromkeys(names, self._apart("combined", together, public)))
        for kind in ("ensemble", "ensemble_sized"):
            if kind in baselines:
                self._begin(kind, kind)
                self._ensemble(kind, public, names)
        self._begin("federated", "federated")
        federated = self._federated(public, names)
        if recipe.memory is None:
            self._score("federated", federated, travels=True)
        else:
            if "weights" in baselines:
                self._score("weights", federated)
            self._remember(federated, names)
        if "personal" in baselines:
            for name in names:
                self._begin("personal", f"personal:{name}")
                begun = {**public, **federated[name]}
                own = self._apart(f"personal:{name}", [name], begun, personal=True, after=1)
                self._score(f"personal:{name}", dict.fromkeys(names if recipe.score.cross else [name], own))
        self._begin("report")
        self._finish(federated)

    # ── what there is ───────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, name: str, model: str | None = None) -> None:
        self.phase += 1
        self.tell(Phase(name, self.phase, _phases(self.recipe), model))
        self.clock.keep()

    def _check_chain(self) -> None:
        chain, names = self.recipe.chain, [text.name for text in self.text.silos]
        if chain is not None and sorted(chain) != sorted(names):
            raise RecipeError(f"chain: must name each silo once; allowed: {', '.join(names)}")

    def _about(self) -> None:
        if self.house.about.exists():
            return
        facts = {
            "origin": self.engine.about.origin,
            "parameters": self.engine.parameters,
            "vocabulary": self.engine.vocabulary.size,
        }
        for text in self.text.silos if self.sites is None else ():
            self.house.write_lines("source", text.name, [pair.source for pair in text.test])
            self.house.write_lines("reference", text.name, [pair.target for pair in text.test])
        self.house.write_about(
            About(
                silos=list(self._facts()),
                public=_joined(self.text.public) if self.text.public else None,
                versions=versions(),
                engine=facts,
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )

    def _learners(self, ids: Mapping[str, tuple[Examples, Examples]], past: Past) -> dict[str, SiloLearner]:
        """One for each silo, and `combined`, which holds the text of all; they all train the one resident engine."""
        recipe = self.recipe
        made = {
            text.name: self._learner(text, *ids[text.name], recipe, past)
            for text in self.text.silos
            if text.name in ids
        }
        if "combined" in recipe.baselines and len(ids) > 1:
            train, dev = (Examples.join(sets) for sets in zip(*ids.values(), strict=True))
            together = replace(self.text.silos[0], name="combined", train=[], dev=[], test=[])
            made["combined"] = self._learner(together, train, dev, recipe, past)
        if SERVER in ids:
            own = replace(self.text.public[0], name=SERVER, train=[], dev=[], test=[])
            made[SERVER] = self._learner(own, *ids[SERVER], recipe, past)
        return made

    def _learner(self, text: Text, train: Examples, dev: Examples, recipe: Recipe, past: Past) -> SiloLearner:
        engine, heard = self.engine, self.house.write_lines
        return SiloLearner(
            text, train, dev, self.trainer, engine, self.machine, recipe, past, self.tell, heard, self.portion
        )

    # ── what of it is worked on ─────────────────────────────────────────────────────────────────────────────────────

    def _extend(self, start: Tensors) -> Tensors:
        """The engine as the federation begins with it: what the part adds, and what of all it works on."""
        recipe, engine = self.recipe, self.engine
        engine.load_tensors(start)
        if not isinstance(recipe.part, PartAll) and not self._named and not self.house.base.exists():
            engine.save(self.house.base)
        ground = footing.lay(engine, recipe, self.machine)
        for warning in ground.warnings:
            self.tell(Note(warning))
        self.recipe, self.trainer, self.portion = ground.recipe, ground.trainer, ground.portion
        self.trains_all = ground.trains_all
        if (about := self.house.read_about()) is not None:
            self.house.write_about(dataclasses.replace(about, engine={**about.engine, "parts": dict(ground.counts)}))
        if not isinstance(recipe.part, PartAll):
            said = ", ".join(f"{what} {n:,}" for what, n in ground.counts.items())
            self.tell(Choice("part", recipe.part.kind, said))
        return ground.portion.first

    @property
    def _portion(self) -> Portion:
        assert self.portion is not None
        return self.portion

    @property
    def _named(self) -> bool:
        return footing.named(self.recipe, self.text.public)

    def _group(self, gradients: Mapping[str, Mapping[Side, Tensor]] | None) -> Grouping:
        directions = {text.name: (text.direction.source, text.direction.target) for text in self.text.silos}
        family = families.teller(self.recipe.silos)
        grouping = group(self.recipe.groups, list(directions), directions, self.recipe.seed, family, gradients)
        sides: tuple[Side, ...] = ("encoder", "decoder")
        for side in sides:
            labels = {name: grouping.label(name, side) or "everyone" for name in directions}
            members = {label: [name for name in labels if labels[name] == label] for label in labels.values()}
            said = "; ".join(f"{label}: {', '.join(names)}" for label, names in members.items())
            self.tell(Choice(f"groups of the {side}", said, self.recipe.groups.kind))
        return grouping

    # ── models ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _public(self) -> tuple[Tensors, Past]:
        """The server's training on the public text, an epoch a round; and what the engine has then been through."""
        train = self.recipe.train
        past: Past = 0 if isinstance(self.recipe.engine, Scratch) else None
        start = {name: tensor.clone() for name, tensor in self.engine.tensors().items()}
        if not self.text.public or not train.public_epochs:
            return start, past
        self._begin("public", "public")
        changed = train.model_copy(
            update={"peak": train.public_peak, "optimizer": "kept", "patience": None, "steps": None}
        )
        plan = self._plain(changed)
        texts = self.text.public
        ids = encoded(self.engine, texts, train.longest, self.tell)
        learner = self._learner(replace(texts[0], name="public"), *ids, plan, past)
        trained = self._coordinate("public", {"public": learner}, start, train.public_epochs, 1, plan)
        return trained, learner.after(train.public_epochs, 1).past

    def _apart(
        self, model: str, names: Sequence[str], start: Tensors, *, personal: bool = False, after: int = 0
    ) -> Tensors:
        """A model that no text or tensor travelled for: a federation of one, `after` so many trainings like its own."""
        train = self.recipe.train
        rounds, epochs = (1, train.personal_epochs) if personal else (self.recipe.rounds, train.epochs)
        learners = {name: self._before(name, after).sharing_all() for name in names}
        return self._coordinate(model, learners, start, rounds, epochs, self._plain(train), personal)

    def _before(self, name: str, trainings: int) -> SiloLearner:
        return self.silos[name].after(trainings * self.recipe.rounds, self.recipe.train.epochs)

    def _chained(self, start: Tensors) -> Tensors:
        """Silo after silo, each a federation of one that begins where the one before ended."""
        sizes = {text.name: len(text.train) for text in self.text.silos}
        order = self.recipe.chain or sorted(sizes, key=lambda name: (-sizes[name], name))
        for place, name in enumerate(order):
            start = self._apart(f"chained-{place}:{name}", [name], start, after=place)
        return start

    def _federated(self, start: Tensors, names: Sequence[str]) -> Engines:
        recipe, portion = self.recipe, self._portion
        ledger = Ledger(self.house.ledger)
        everyone = [*names, SERVER] if recipe.server else names
        coordinator = Coordinator(
            self.id,
            recipe,
            self._transport(self._silos(recipe, {name: self.silos[name] for name in everyone if name in self.silos})),
            self.house.checkpoints,
            ledger,
            self.tell,
            {name: place.side for name, place in portion.places.items()},
            None if isinstance(recipe.groups, GroupsNone) else self._group,
            SERVER,
        )
        shared = {name: start[name] for name in portion.shared}
        epochs, after = recipe.train.epochs, self._on_dev("federated", coordinator)
        base = footing.base_of(self.engine, portion, self._named)
        found = coordinator.train("federated", shared, everyone, recipe.rounds, epochs, after=after, base=base)
        return {name: found[name] for name in names}

    def _ensemble(self, model: str, start: Tensors, names: Sequence[str]) -> None:
        """Every silo's own engine, all asked at each step; each as heavy as the others, or as its silo is large."""
        engines = {name: self._apart(f"alone:{name}", [name], start) for name in names}
        voices = []
        for name, tensors in engines.items():
            self.engine.load_tensors({**start, **tensors})
            weight = float(self.silos[name].samples) if model == "ensemble_sized" else 1.0
            voices.append(Voice(copy.deepcopy(self.engine.model), weight))
        shelf = checkpoint.shelf(self.house.checkpoints, model)
        for name in names:
            kept = shelf.get(name)
            if kept is None:
                kept = State(self.silos[name].chorus(model, voices), {})
                shelf.put(name, kept)
            self._measure(model, name, kept.tensors)

    def _remember(self, federated: Engines, names: Sequence[str]) -> None:
        """Everyone's text as records, on top of what the rounds have made of the engine; by itself, where there were
        none. Who takes no part in the memory translates without."""
        portion, engine = self._portion, self.engine
        self._begin("memory", "federated")
        directions = {text.name: text.direction for text in self.text.silos}
        tensors = federated[names[0]]
        engine.load_tensors({**portion.first, **tensors})
        memory = Remembrance(
            self.id,
            self.recipe,
            self.house,
            engine,
            self.machine,
            self.text.public,
            directions,
            {name: self.silos[name] for name in names if name in self.silos},
            self.tell,
        )
        members = memory.members()
        by_name = self._named and not self.recipe.rounds
        shared = None if by_name else {name: tensors[name] for name in portion.shared}
        elsewhere = None if self.sites is None else self.sites.transport
        scores = memory.exchange("federated", members, shared, portion.digest, elsewhere)
        for name, statistics in scores.items():
            self._measure("federated", name, statistics)
        if without := [name for name in names if name not in scores]:
            self._score("federated", {name: federated[name] for name in without}, travels=True)
        if "memory" in self.recipe.baselines:
            for name in members:
                self._begin("memory", f"memory:{name}")
                own = memory.exchange(f"memory:{name}", [name], shared, portion.digest)
                self._measure(f"memory:{name}", name, own[name])

    def _on_dev(self, model: str, coordinator: Coordinator) -> After:
        """Scores on the dev sets, every so many rounds."""
        every, names = self.recipe.score.every, [fact.name for fact in self._facts() if fact.dev]

        def after(round: int, engines: Engines) -> None:
            if not every or not names or round % every:
                return
            for name, statistics in coordinator.score(model, engines, names, "dev", round).items():
                scores = from_tensors(statistics, name)[0].scores()
                self.tell(Scored(model, name, "dev", scores.bleu, scores.chrf, scores.n, round))

        return after

    def _coordinate(
        self,
        model: str,
        learners: Mapping[str, SiloLearner],
        start: Tensors,
        rounds: int,
        epochs: int,
        plan: Recipe,
        personal: bool = False,
    ) -> Tensors:
        """Train in this process with nothing left out, and without a word about bytes: none travel."""
        silos = self._silos(plan, learners)
        ledger = Ledger(self._stayed(model))
        coordinator = Coordinator(self.id, plan, InProcess(silos), self.house.checkpoints, ledger, self._untravelled)
        engines = coordinator.train(model, start, list(learners), rounds, epochs, personal)
        for silo in silos:
            silo.forget(self.id, model)
        return engines[next(iter(learners))]

    def _score(self, model: str, engines: Engines, *, travels: bool = False) -> None:
        """At each silo, on its test set. `travels`: in a real federation these tensors would cross to be scored."""
        plan = self.recipe if travels else self._plain(self.recipe.train)
        path = self.house.ledger if travels else self._stayed(model)
        whole = travels and model == "federated"
        here = [name for name in engines if name in self.silos]
        learners = {name: self.silos[name] if whole else self.silos[name].sharing_all() for name in here}
        listen = self.tell if travels else self._untravelled
        silos = self._silos(plan, learners)
        transport = self._transport(silos)
        coordinator = Coordinator(self.id, plan, transport, self.house.checkpoints, Ledger(path), listen)
        for name, statistics in coordinator.score(model, engines, list(engines), "test").items():
            self._measure(model, name, statistics)
        for silo in silos:
            silo.forget(self.id, model)

    def _measure(self, model: str, name: str, statistics: Tensors) -> None:
        value = Measured(*from_tensors(statistics, name))
        self.measured[model, name] = value
        scores = value.statistics.scores()
        self.tell(Scored(model, name, "test", scores.bleu, scores.chrf, scores.n))

    def _silos(self, plan: Recipe, learners: Mapping[str, SiloLearner]) -> list[Silo]:
        return [Silo(name, learner, self.house.silos / name, plan) for name, learner in learners.items()]

    def _transport(self, silos: Sequence[Silo]) -> Transport:
        """To silos in this process, to where they are, or to both."""
        if self.sites is None:
            return InProcess(silos)
        return Beside(self.sites.transport, InProcess(silos)) if silos else self.sites.transport

    def _facts(self) -> Sequence[Facts]:
        return [Facts.of(text) for text in self.text.silos] if self.sites is None else self.sites.facts

    def _stayed(self, model: str) -> Path:
        """A ledger of what would have travelled; nothing of it counts."""
        return self.house.checkpoints / "stayed" / f"{model.replace(':', '.')}.jsonl"

    def _plain(self, train: Train) -> Recipe:
        """The recipe without what makes a federation cheap or careful: for models that stay in one place."""
        changes = {
            "train": train,
            "codec": CodecFp32(),
            "merge": MergeSamples(),
            "selector": Selectors(),
            "failures": Failures(),
        }
        return self.recipe.model_copy(update=changes)

    def _untravelled(self, event: Event) -> None:
        if not isinstance(event, Travelled):
            self.tell(event)

    # ── what comes of it ────────────────────────────────────────────────────────────────────────────────────────────

    def _save(self, federated: Engines) -> None:
        """The federated engine; where silos merge in groups, that of the largest silo, and each silo's own beside it.

        What is added to an engine is also kept by itself, with the hash of what it is added to.
        """
        house, recipe, portion = self.house, self.recipe, self._portion
        engine = self.engine.describe(origin=f"{self.engine.about.origin}, trained by fedmt")
        sizes = {fact.name: fact.train for fact in self._facts()}
        largest = min(federated, key=lambda name: (-sizes[name], name))
        apart = len({id(tensors) for tensors in federated.values()}) > 1
        for name, tensors in (*(federated.items() if apart else ()), (largest, federated[largest])):
            last = name == largest
            engine.load_tensors({**portion.first, **tensors})
            if isinstance(recipe.part, PartAll):
                if apart:
                    engine.save(house.engines / name)
            else:
                folder = house.engines / name if apart else house.extension
                extension.save_extension(engine, folder, self._base_name(folder))
            if last:
                engine.save(house.engine)

    def _base_name(self, extended: Path) -> str:
        """Where the base is to be found: by its name, or beside, so that the run's folder may be moved."""
        if self._named and isinstance(self.recipe.engine, Pretrained):
            return self.recipe.engine.pretrained
        return os.path.relpath(self.house.base, extended)

    def _finish(self, federated: Engines) -> None:
        house = self.house
        self._save(federated)
        travelled = house.travelled()
        directions = {text.name: str(text.direction) for text in self.text.silos}
        bytes_ = Bytes(up=travelled.up_bytes, down=travelled.down_bytes)
        against = self.recipe.score.against
        results = collect(self.measured, directions, against, bytes_, round(self.clock.seconds(), 1))
        write_measured(house.resamples, self.measured)
        results.write(house.scores)
        html.write(house)
        card.write(house)
        self.clock.keep()


def _phases(recipe: Recipe) -> int:
    """How many stretches the run has; known before its text is."""
    match recipe.silos:
        case ToySilos(silos=count):
            silos = count
        case SitesSilos(list=named):
            silos = len(named)
        case PypiSilos(preset=preset, names=names):
            silos = len(PRESETS[preset].silos if names is None else set(names))
        case named:
            silos = len(listed(named) or ())
    public = recipe.train.public_epochs and (recipe.public is not None or isinstance(recipe.engine, Scratch))
    shared = {"chained", "combined", "ensemble", "ensemble_sized"}.intersection(recipe.baselines)
    apart = {"alone", "personal", "memory"}.intersection(recipe.baselines)
    ways = len(("data", "federated", "report")) + bool(public) + bool(recipe.memory)
    return ways + len(shared) + silos * len(apart)


def _joined(texts: Sequence[Text]) -> Facts:
    train, dev, test = (sum(len(getattr(text, part)) for text in texts) for part in ("train", "dev", "test"))
    licence, origin = (
        ", ".join(dict.fromkeys(getattr(text, part) for text in texts)) for part in ("licence", "origin")
    )
    dropped = dict(sum((Counter(text.dropped) for text in texts), Counter()))
    directions = ", ".join(str(text.direction) for text in texts)
    return Facts("public", directions, train, dev, test, licence, origin, dropped)
