"""The run folder: where everything a recipe produced stands, and how to read it. Knows nothing of how it was made.

recipe.yaml  run.json  metrics.jsonl  ledger.jsonl  scores.json  resamples.safetensors
checkpoints/  silos/  engine/  hypotheses/  report.html  README.md
base/  extension/ (of an engine that is added to)  engines/SILO (of silos that merge in groups)
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from fedmt import files
from fedmt.corpus.pairs import Text
from fedmt.errors import RunError
from fedmt.events import Event, record
from fedmt.exchange.ledger import Entry, Totals
from fedmt.score.rows import Measured, Results, read_measured

__all__ = ["About", "Facts", "RunFolder", "versions"]

SCHEMA = 1


@dataclass(frozen=True)
class Facts:
    """What may be told of a silo's text: how much there is, where it is from, under which licence."""

    name: str
    direction: str
    train: int
    dev: int
    test: int
    licence: str = ""
    origin: str = ""
    dropped: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: Text) -> Facts:
        sizes = len(text.train), len(text.dev), len(text.test)
        return cls(text.name, str(text.direction), *sizes, text.licence, text.origin, dict(text.dropped))


@dataclass(frozen=True)
class About:
    """`run.json`: what the run was made of, written once when it begins."""

    silos: list[Facts]
    public: Facts | None = None
    versions: dict[str, str] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    started: str = ""


def versions() -> dict[str, str]:
    """Of Python and of what the scores of this run depend on."""
    names = ("fedmt", "torch", "transformers", "sentencepiece", "sacrebleu", "numpy")
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def about(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def scores(self) -> Path:
        return self.path / "scores.json"

    @property
    def resamples(self) -> Path:
        return self.path / "resamples.safetensors"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def silos(self) -> Path:
        return self.path / "silos"

    @property
    def engine(self) -> Path:
        return self.path / "engine"

    @property
    def base(self) -> Path:
        """The engine that the federation's extension is added to."""
        return self.path / "base"

    @property
    def extension(self) -> Path:
        return self.path / "extension"

    @property
    def engines(self) -> Path:
        """Where silos merge in groups, each silo's engine, or what is added to the base for it."""
        return self.path / "engines"

    @property
    def memory(self) -> Path:
        """What the silos of a memory end with, as any one of them has it."""
        return self.path / "memory"

    @property
    def hypotheses(self) -> Path:
        return self.path / "hypotheses"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def card(self) -> Path:
        return self.path / "README.md"

    @classmethod
    def open(cls, path: Path | str, *, scored: bool = False) -> RunFolder:
        """A run folder that exists and can be read; with `scored`, one that has scores."""
        folder = cls(Path(path))
        if not folder.path.exists():
            raise RunError(f"{path}: there is no such folder; a run's folder is made by `fedmt run RECIPE --out DIR`")
        if not folder.path.is_dir():
            raise RunError(f"{path}: is a file; a run is a folder that holds a recipe.yaml")
        if not folder.recipe.is_file():
            raise RunError(f"{path}: is not a run folder: it holds no recipe.yaml")
        folder.read_recipe()
        if folder.about.exists():
            folder.read_about()
        if scored and not folder.scores.exists():
            raise RunError(f"{path}: the run has no scores yet; finish it with `fedmt run {folder.recipe} --resume`")
        if folder.scores.exists():
            folder.read_scores()
        return folder

    def read_recipe(self) -> dict[str, Any]:
        """The resolved recipe, for showing; `reading.py` makes a typed one of it."""
        try:
            content = yaml.safe_load(self.recipe.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise RunError(f"{self.recipe}: cannot be read: {_line(error)}") from None
        if not isinstance(content, dict):
            raise RunError(f"{self.recipe}: is empty or torn; it must hold a recipe")
        return content

    def write_about(self, about: About) -> None:
        files.write_json(self.about, {"schema": SCHEMA, **asdict(about)})

    def read_about(self) -> About | None:
        """None for a run folder that does not tell."""
        if not self.about.exists():
            return None
        try:
            content = files.read_json(self.about)
        except (OSError, ValueError) as error:
            raise RunError(f"{self.about}: cannot be read as JSON: {_line(error)}") from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            found = content.get("schema") if isinstance(content, dict) else None
            raise RunError(f"{self.about}: its schema is {found!r}; this version of fedmt reads {SCHEMA}")
        try:
            public = content.get("public")
            return About(
                silos=[_facts(value) for value in content["silos"]],
                public=None if public is None else _facts(public),
                versions=dict(content.get("versions", {})),
                engine=dict(content.get("engine", {})),
                started=str(content.get("started", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.about}: is torn: {_line(error)}") from None

    def tell(self, event: Event) -> None:
        """A listener that keeps events in `metrics.jsonl`."""
        line = json.dumps(record(event), ensure_ascii=False) + "\n"
        self.metrics.parent.mkdir(parents=True, exist_ok=True)
        with self.metrics.open("ab+") as file:
            _mend(file)
            file.write(line.encode())

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, of these kinds or of all; a round that was repeated counts as last told."""
        kept: dict[Any, dict[str, Any]] = {}
        for number, line in enumerate(_lines(self.metrics)):
            kind = line.get("event")
            if kinds and kind not in kinds:
                continue
            # A resumed run tells again what it did after its last checkpoint.
            same = tuple(line.get(key) for key in ("event", "model", "who", "silo", "set", "round", "what", "step"))
            key = same if kind in ("trained", "travelled", "scored", "choice", "dropped") else number
            kept.pop(key, None)
            kept[key] = line
        return list(kept.values())

    def entries(self, *models: str, scoring: bool = False) -> list[Entry]:
        """The ledger's lines, of these models or of all: of training, or with `scoring` of everything."""
        found = []
        for line in _lines(self.ledger):
            if not models or line.get("model") in models:
                if not scoring and str(line.get("step", "")).startswith("score"):
                    continue
                try:
                    found.append(Entry(**line))
                    assert found[-1].direction in ("up", "down")
                except (TypeError, AssertionError):
                    raise RunError(f"{self.ledger}: {json.dumps(line)} is not a line of a ledger") from None
        return found

    def travelled(self, *models: str, scoring: bool = False) -> Totals:
        """Bytes and parameters, of these models or of all. What a method costs is without `scoring`."""
        return sum(map(Totals.of, self.entries(*models, scoring=scoring)), Totals())

    def read_scores(self) -> Results:
        return Results.read(self.scores)

    def read_resamples(self) -> dict[tuple[str, str], Measured]:
        return read_measured(self.resamples) if self.resamples.exists() else {}

    def write_lines(self, model: str, silo: str, sentences: Sequence[str]) -> None:
        """Hypotheses of a model on a silo's test set; `source` and `reference` are kept as models of that name."""
        lines = [" ".join(sentence.splitlines()) for sentence in sentences]
        files.write_text(self._lines(model, silo), "".join(f"{line}\n" for line in lines))

    def read_lines(self, model: str, silo: str) -> list[str] | None:
        """None when they are not on this machine: text stays with its silo."""
        path = self._lines(model, silo)
        if not path.is_file():
            return None
        try:
            return path.read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read as UTF-8: {_line(error)}") from None

    def _lines(self, model: str, silo: str) -> Path:
        return self.hypotheses / model.replace(":", ".") / f"{silo}.txt"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """JSON lines; the last may be torn by a kill, any other may not."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, raw in enumerate(file, 1):
            last = file.tell() >= size
            try:
                value = json.loads(raw)
            except ValueError:
                if last:
                    return
                raise RunError(f"{path}:{number}: is no JSON; the file is torn") from None
            if not isinstance(value, dict):
                raise RunError(f"{path}:{number}: is no record")
            yield value


def _mend(file: BinaryIO) -> None:
    """Drop the half of a line that a kill left, so that the next does not stick to it."""
    size = file.seek(0, os.SEEK_END)
    kept = size
    while kept:
        step = min(kept, 4096)
        file.seek(kept - step)
        at = file.read(step).rfind(b"\n")
        if at >= 0:
            kept += at + 1 - step
            break
        kept -= step
    if kept < size:
        file.truncate(kept)
    file.seek(kept)


def _facts(value: Mapping[str, Any]) -> Facts:
    return Facts(
        name=str(value["name"]),
        direction=str(value["direction"]),
        train=int(value["train"]),
        dev=int(value["dev"]),
        test=int(value["test"]),
        licence=str(value.get("licence", "")),
        origin=str(value.get("origin", "")),
        dropped={str(key): int(count) for key, count in dict(value.get("dropped", {})).items()},
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
