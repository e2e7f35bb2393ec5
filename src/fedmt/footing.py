"""What a federation stands on, at the server and at every silo alike: the first engine, and what of it is worked on.

Above `engine/`, below whoever runs a federation: the same steps make the same engine wherever they are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedmt import files
from fedmt.choices import PartAll
from fedmt.corpus.pairs import Direction, Text
from fedmt.engine import engine as engines
from fedmt.engine import extension
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.places import places
from fedmt.engine.trainer import Trainer
from fedmt.engine.vocabulary import learn
from fedmt.errors import RecipeError
from fedmt.events import Listener
from fedmt.federation.course import Base
from fedmt.learner import Portion
from fedmt.recipe import Pretrained, Recipe, Scratch

__all__ = ["Footing", "base_of", "check_part", "first_engine", "lay", "named"]

# Few tensors bear a higher rate than all: the papers' for adapters.
FEW_PEAK = 1e-3


@dataclass(frozen=True)
class Footing:
    """`recipe` is the one given, with what it left to the part decided; `warnings` are the part's, for people."""

    recipe: Recipe
    trainer: Trainer
    portion: Portion
    counts: Mapping[str, int]
    warnings: Sequence[str]
    trains_all: bool


def first_engine(
    recipe: Recipe, public: Sequence[Text], directions: Sequence[Direction], kept: Path, listen: Listener
) -> Engine:
    """The engine before all training. What is random is written down: a resumed run begins from the same."""
    ways = tuple(dict.fromkeys([*directions, *(text.direction for text in public)]))
    if not isinstance(recipe.engine, Scratch):
        found = engines.load(recipe.engine.pretrained, recipe.engine.revision)
        return found.describe(directions=ways, recipe=recipe.name)
    if files.restore_folder(kept):
        return engines.load(kept)
    pairs = (pair for text in public for pair in text.train)
    vocabulary = learn(
        (sentence for pair in pairs for sentence in pair),
        recipe.engine.vocabulary,
        sorted({direction.target for direction in ways}),
        recipe.seed,
        listen,
    )
    first = engines.scratch(recipe.engine, vocabulary, recipe.seed)
    first = first.describe(directions=ways, recipe=recipe.name)
    first.save(kept)
    return first


def check_part(engine: Engine, recipe: Recipe) -> None:
    """Before any training: what is wrong with the part for an engine that a check could not see yet."""
    part, config = recipe.part, engine.model.config
    if isinstance(part, PartAll) or extension.described(config, "the engine") is not None:
        return
    layers = (int(getattr(config, key, 0) or 0) for key in ("encoder_layers", "decoder_layers"))
    if found := extension.mistakes(part, config.model_type, *layers):
        raise RecipeError("; ".join(f"part.{key}: {why}" for key, why in found))


def lay(engine: Engine, recipe: Recipe, machine: Machine) -> Footing:
    """Extend the engine, which stands where the federation begins, in place; and say what of it is worked on."""
    part = recipe.part
    warnings = extension.extend(engine, part, recipe.seed)
    trained, shared = extension.trained(engine, part), extension.shared(engine, part)
    working, tensors = extension.working(engine, part), engine.tensors()
    first = {name: tensors[name].clone() for name in working}
    digest = int(engine.hash[:15], 16)
    portion = Portion(tuple(working), tuple(shared), places(engine.model), first, digest)
    every = set(trained) == set(tensors)
    if recipe.train.peak is None and not every:
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"peak": FEW_PEAK})})
    trainer = Trainer(engine, recipe.train, machine, trained)
    return Footing(recipe, trainer, portion, extension.counts(engine, part), warnings, every)


def named(recipe: Recipe, public: Sequence[Text]) -> bool:
    """Whether the engine that the federation begins from is one that silos can fetch by its name."""
    return isinstance(recipe.engine, Pretrained) and not (public and recipe.train.public_epochs)


def base_of(engine: Engine, portion: Portion, by_name: bool) -> Base | None:
    """What silos need besides what they share; nothing of an engine that each has by its name."""
    shared, tensors = set(portion.shared), engine.tensors()
    if len(shared) == len(tensors):
        return None
    now: dict[str, Tensor] = {**tensors, **portion.first}
    rest = {} if by_name else {name: now[name] for name in tensors if name not in shared}
    return Base(rest, portion.digest)
