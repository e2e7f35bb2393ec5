"""A real run, from private files to scores: no sentence of a silo in any byte of any message."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fedmt import experiment, remembrance
from fedmt.federation.messages import Reply, unwire
from fedmt.recipe import Recipe
from tests.federation.canaries import SENTENCES, Tapped, found

GERMAN = [
    "der",
    "die",
    "das",
    "ein",
    "kein",
    "alt",
    "neu",
    "rot",
    "Haus",
    "Baum",
    "Kind",
    "Hund",
    "Wasser",
    "Brot",
    "geht",
    "steht",
    "singt",
    "trinkt",
    "heute",
    "morgen",
]
ENGLISH = [
    "the",
    "a",
    "an",
    "one",
    "no",
    "old",
    "new",
    "red",
    "house",
    "tree",
    "child",
    "dog",
    "water",
    "bread",
    "goes",
    "stands",
    "sings",
    "drinks",
    "today",
    "tomorrow",
]


def write(folder: Path, name: str, count: int, seed: int, private: bool) -> str:
    """Pairs of plain words; in private text every fourth holds the canary."""
    chance = random.Random(seed)
    lines = []
    for number in range(count):
        chosen = [chance.randrange(len(GERMAN)) for _ in range(6)]
        pair = [" ".join(words[index] for index in chosen) for words in (GERMAN, ENGLISH)]
        if private and number % 4 == 0:
            pair = [f"{canary} {text}" for canary, text in zip(SENTENCES, pair, strict=True)]
        lines.append("\t".join(pair))
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / name)


WAYS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "all": ({}, {"fit"}),
    "adapters, a learned threshold, groups by gradients": (
        {
            "part": {"kind": "adapters", "width": 8},
            "selector": {"up": {"kind": "metasend"}},
            "groups": {"kind": "gradients", "count": 2},
        },
        {"base", "gradient", "fit", "send"},
    ),
    "single values, up and down": (
        {
            "selector": {"up": {"kind": "top_k"}, "down": {"kind": "top_k"}},
            "train": {"public_epochs": 1, "keep": "best"},
        },
        {"fit", "loss"},
    ),
    "a memory, behind a round": (
        {"memory": {"code_bytes": 4, "lists": 4}, "rounds": 1},
        {"fit", "invite", "remember", "recall", "tune", "recite"},
    ),
}


@pytest.mark.parametrize(("way", "asked"), WAYS.values(), ids=WAYS)
def test_no_byte_of_a_real_run_holds_text(
    way: dict[str, Any], asked: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sets(name: str, private: bool) -> dict[str, str]:
        counts = {"train": 120, "dev": 20, "test": 20}
        paths = {
            key: write(tmp_path, f"{name}-{key}.tsv", count, seed, private)
            for seed, (key, count) in enumerate(counts.items(), len(name) * 100)
        }
        return {"from": "de", "to": "en", **paths}

    recipe = Recipe.model_validate(
        {
            "public": sets("public", private=False),
            "silos": [{"name": name, **sets(name, private=True)} for name in ("clinic", "courthouse")],
            "engine": {"size": "toy", "vocabulary": 300},
            "train": {"public_epochs": 1},
            "rounds": 2,
            "baselines": ["public"],
            "score": {"resamples": 20},
            **way,
        }
    )
    taps: list[Tapped] = []

    def tapped(silos: list[object]) -> Tapped:
        taps.append(Tapped(silos))  # type: ignore[arg-type]
        return taps[-1]

    monkeypatch.setattr(experiment, "InProcess", tapped)
    monkeypatch.setattr(remembrance, "InProcess", tapped)
    experiment.run(recipe, tmp_path / "run")

    assert found((tmp_path / "clinic-train.tsv").read_bytes())
    tape = [message for tap in taps for message in tap.tape]
    steps = [unwire(message) for message in tape]
    assert {step.step for step in steps} == {*asked, "score:test"}
    assert all(step.refused is None for step in steps if isinstance(step, Reply))
    for message in tape:
        assert found(message) is None
    assert found((tmp_path / "run" / "ledger.jsonl").read_bytes()) is None
    for path in (tmp_path / "run" / "engine").rglob("*"):
        assert path.is_dir() or found(path.read_bytes()) is None
