"""Three small sites, and the recipe in two forms: over their folders, and over the same files in one process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedmt.federation.messages import Reply, Request, unwire, wire
from fedmt.recipe import Recipe
from fedmt.sites import settings
from fedmt.sites.site import Answering
from tests.federation.canaries import SENTENCES

# Directions of different branches, so that groups by family are not all one.
DIRECTIONS = {"north": ("de", "en"), "south": ("fr", "en"), "east": ("nl", "en")}
SIZES = {"train": 60, "dev": 8, "test": 10}
_SOUNDS = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]

WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "adapters, families": {
        "part": {"kind": "adapters", "width": 8},
        "groups": {"kind": "families"},
        "rounds": 1,
        "baselines": [],
    },
    "metasend": {"selector": {"up": {"kind": "metasend"}}, "baselines": []},
}
BASE: dict[str, Any] = {
    "name": "three",
    "engine": {"size": "toy", "vocabulary": 400},
    "rounds": 2,
    "baselines": ["public"],
    "train": {"public_epochs": 1, "batch_tokens": 200},
    "decode": {"longest": 8},
    "score": {"resamples": 10},
    "compute": {"device": "cpu", "precision": "fp32", "threads": 1},
}


def write(folder: Path, name: str, count: int, canary: bool) -> str:
    """Pairs whose every sentence stands nowhere else: nothing is held out of one silo for another's sake."""
    chance = random.Random(name)
    lines = []
    for number in range(count):
        words = ["".join(chance.choices(_SOUNDS, k=2)) for _ in range(4)]
        source, target = f"{name} {' '.join(words)} {number}", f"{number} {' '.join(reversed(words))} {name}"
        if canary and number % 4 == 0:
            source, target = f"{SENTENCES[0]} {source}", f"{SENTENCES[1]} {target}"
        lines.append(f"{source}\t{target}\n")
    path = folder / f"{name}.tsv"
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


class Three:
    """`sites` are folders as `fedmt site init` leaves them, as far as answering needs it."""

    def __init__(self, folder: Path, directions: Mapping[str, tuple[str, str]] = DIRECTIONS) -> None:
        self.folder = folder
        text = folder / "text"
        text.mkdir(parents=True)
        self.sets: dict[str, dict[str, str]] = {}
        for name, (source, target) in directions.items():
            found = {key: write(text, f"{name}{key}", count, canary=True) for key, count in SIZES.items()}
            self.sets[name] = {"from": source, "to": target, **found}
        public = {key: write(text, f"public{key}", count, canary=False) for key, count in (("train", 120), ("dev", 8))}
        self.public = {"from": "de", "to": "en", **public}

    def recipe(self, changes: Mapping[str, Any], here: bool = False) -> Recipe:
        ways = [{"name": name, "from": sets["from"], "to": sets["to"]} for name, sets in self.sets.items()]
        own = [{"name": name, **sets} for name, sets in self.sets.items()]
        silos: Any = own if here else {"source": "sites", "list": ways}
        return Recipe.model_validate({**BASE, "public": self.public, "silos": silos, **changes})

    def site(self, name: str, **more: Any) -> Path:
        folder = self.folder / "sites" / name
        folder.mkdir(parents=True, exist_ok=True)
        told = {"name": name, **self.sets[name], "coordinator": "127.0.0.1:9", **more}
        (folder / "site.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
        return folder


class Direct:
    """Sites reached without a network: by the literal bytes of each message, which are kept."""

    def __init__(self, folders: Mapping[str, Path], told: Mapping[str, str]) -> None:
        self.folders = dict(folders)
        self.told = told
        self.tape: list[bytes] = []
        self.said: list[str] = []
        self.away: set[str] = set()
        self.answering: dict[str, Answering] = {}

    def silos(self) -> list[str]:
        return sorted(self.folders.keys() - self.away)

    def restart(self, name: str) -> None:
        """As if the site's process had been killed."""
        self.answering.pop(name, None)

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:  # noqa: ARG002
        for request in requests:
            name = request.silo
            if name not in self.answering:
                folder = self.folders[name]
                self.answering[name] = Answering(folder, settings.read(folder), self.said.append)
            asked = wire(request)
            answer = self.answering[name](asked, self.told)
            self.tape += [asked, answer]
            reply = unwire(answer)
            assert isinstance(reply, Reply)
            yield reply
