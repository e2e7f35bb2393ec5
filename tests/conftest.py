"""The program called as a user calls it, and small things to call it on: an engine, a run's folder, corpus files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from fedmt.cli.main import call as call_program

# A busy machine is no failure, and a failure should come again.
settings.register_profile("fedmt", deadline=None, derandomize=True)
settings.load_profile("fedmt")

SENTENCES = [("Die Datei fehlt.", "The file is missing."), ("Guten Tag!", "Good day!"), ("Ja oder nein?", "Yes or no?")]


@dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Call = Callable[..., Called]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def called(*arguments: object) -> Called:
        capfd.readouterr()
        code = call_program([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Called(code, out, err)

    return called


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a Moses pair in it."""
    monkeypatch.chdir(tmp_path)
    moses(tmp_path / "text")
    return tmp_path


def moses(prefix: Path, copies: int = 1) -> None:
    for place, code in enumerate(("de", "en")):
        lines = "".join(f"{pair[place]}\n" for pair in SENTENCES * copies)
        prefix.with_name(f"{prefix.name}.{code}").write_text(lines, encoding="utf-8")


@pytest.fixture(scope="session")
def toy_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy engine that has learnt three sentences by heart."""
    from fedmt.corpus.pairs import Direction
    from fedmt.engine import engine, vocabulary
    from fedmt.recipe import Scratch

    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "st", "rk")]
    sentences = [" ".join(words[start : start + 6]) for start in range(len(words) - 6)]
    pieces = vocabulary.learn(sentences + [side for pair in SENTENCES for side in pair], 300, ["de", "en"], seed=1)
    direction = Direction("de", "en")
    made = engine.scratch(Scratch(size="toy", dropout=0.0), pieces, seed=1).describe(directions=(direction,))
    sources = pieces.encode_source([pair[0] for pair in SENTENCES], direction)
    targets = pieces.encode_target([pair[1] for pair in SENTENCES], direction)
    _teach(made.model, sources, targets, pieces.start, pieces.pad)
    folder = tmp_path_factory.mktemp("engines") / "toy"
    made.save(folder)
    return folder


def _teach(model: Any, sources: list[list[int]], labels: list[list[int]], start: int, pad: int) -> None:
    def padded(rows: list[list[int]], fill: int) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows])

    source, target = padded(sources, pad), padded(labels, -100)
    shifted = torch.cat([torch.full((len(labels), 1), start), target[:, :-1].clamp_min(pad)], dim=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(60):
        logits = model(input_ids=source, attention_mask=source != pad, decoder_input_ids=shifted).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()


@pytest.fixture(scope="session")
def toy_run(toy_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a finished run leaves for `translate` and `score`: a recipe with its test sets, and the engine."""
    folder = tmp_path_factory.mktemp("runs") / "toy"
    shutil.copytree(toy_engine, folder / "engine")
    (folder / "recipe.yaml").write_text(
        "name: toy\nengine: {size: toy}\npublic: {source: toy, pairs: 30}\n"
        "silos: {source: toy, silos: 2, pairs: 60}\ndecode: {longest: 20}\ncompute: {device: cpu, precision: fp32}\n"
    )
    return folder
