"""The same tokens for every system: made once by fedmt, read by all. Needs numpy and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Tokens", "read", "write"]


@dataclass(frozen=True)
class Tokens:
    """Sentence pairs as token ids, each with its end of sentence.

    `facts` says where they are from, and the ids of the padding and the end of sentence.
    """

    source: list[list[int]]
    target: list[list[int]]
    facts: dict[str, Any]

    def longer(self) -> list[int]:
        return [max(len(source), len(target)) for source, target in zip(self.source, self.target, strict=True)]


def write(folder: Path, source: list[list[int]], target: list[list[int]], facts: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for name, side in (("source", source), ("target", target)):
        arrays[name] = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in side])
        arrays[f"{name}_ends"] = np.cumsum([len(ids) for ids in side])
    np.savez(folder / "tokens.npz", **arrays)
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> Tokens:
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    with np.load(folder / "tokens.npz", allow_pickle=False) as arrays:
        sides = [np.split(arrays[name], arrays[f"{name}_ends"][:-1]) for name in ("source", "target")]
    source, target = ([ids.tolist() for ids in side] for side in sides)
    return Tokens(source, target, facts)
