"""Whole runs small enough for tests: seconds each, of invented languages or of a few sentences in files."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedmt.engine.engine import load
from fedmt.events import Event
from fedmt.experiment import run
from fedmt.federation import checkpoint
from fedmt.recipe import Recipe
from fedmt.report.folder import RunFolder
from tests.engine import tiny

SMALL: dict[str, Any] = {
    "name": "small",
    "engine": {"size": "toy", "vocabulary": 300},
    "public": {"source": "toy", "pairs": 60},
    "silos": {"source": "toy", "silos": 2, "pairs": 60},
    "split": {"dev": 0.1, "test": 0.2},
    "train": {"public_epochs": 1, "epochs": 1, "personal_epochs": 1, "batch_tokens": 200},
    "rounds": 2,
    "baselines": [],
    "decode": {"longest": 12},
    "score": {"resamples": 20},
    "compute": {"device": "cpu", "precision": "fp32", "threads": 1},
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` in the place of what they name; the tables of settings are gone into, those of sources are not."""
    goes_into = ("split", "train", "decode", "score", "compute")
    return {**base, **{key: {**base[key], **value} if key in goes_into else value for key, value in changes.items()}}


def small(**changes: Any) -> Recipe:
    return Recipe.model_validate(merged(SMALL, changes))


class Done:
    """A run that was carried out, and what it told on the way."""

    def __init__(self, folder: Path, recipe: Recipe | None = None, *, resume: bool = False, **changes: Any) -> None:
        self.recipe = recipe or small(**changes)
        self.events: list[Event] = []
        self.house: RunFolder = run(self.recipe, folder, resume=resume, listen=self.events.append)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def bits(self, model: str = "federated") -> dict[str, bytes]:
        """The model's tensors after its last round."""
        course = checkpoint.load(self.house.checkpoints / quote(model, safe="") / "course.safetensors")
        return {name: tensor.numpy().tobytes() for name, tensor in sorted(course.tensors.items())}

    def engine(self) -> bytes:
        return (self.house.engine / "model.safetensors").read_bytes()

    def engine_tensors(self) -> dict[str, bytes]:
        """Those of the saved engine, whatever its configuration says of them."""
        return {name: tensor.numpy().tobytes() for name, tensor in sorted(load(self.house.engine).tensors().items())}


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs whose target is the source's words backwards."""
    chance = random.Random(seed)
    words = sorted({word.strip(".").lower() for sentence in tiny.SENTENCES for word in sentence.split()})
    sources = [chance.sample(words, k=chance.randint(2, 8)) for _ in range(count)]
    return [(" ".join(source), " ".join(reversed(source))) for source in sources]


def tsv(folder: Path, name: str, count: int, seed: int) -> str:
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in sentences(count, seed)), encoding="utf-8")
    return str(path)


def files(folder: Path, name: str, seed: int, train: int = 24, dev: int = 6, test: int = 8) -> dict[str, str]:
    """Explicit sets of a silo or of the public."""
    sets = {"train": train, "dev": dev, "test": test}
    made = {key: tsv(folder, f"{name}-{key}", count, 10 * seed + at) for at, (key, count) in enumerate(sets.items())}
    return {"from": "de", "to": "en", **made}
