"""A finished memory in a folder: the quantiser, and of each direction the records and what was learnt of their use.

    quantiser.{json,safetensors} · DIRECTION/records.{json,safetensors} · DIRECTION/SILO/adaptive.{json,safetensors}

It belongs to one engine, whose hash stands beside it. The records are as every member of the federation has them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmt import files
from fedmt.corpus import languages
from fedmt.corpus.pairs import Direction
from fedmt.engine.engine import Engine
from fedmt.errors import RunError
from fedmt.memory.adaptive import Adaptive
from fedmt.memory.datastore import Records
from fedmt.memory.index import Codes
from fedmt.memory.quantise import Quantiser
from fedmt.memory.retrieve import Retrieval

__all__ = ["Part", "directions", "keep", "load", "silos"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Part:
    """Of one direction: the folder of the records, of each silo that of what was learnt, and which silo stands for all
    where nobody says which."""

    records: Path
    learnt: Mapping[str, Path]
    first: str


def keep(folder: Path, quantiser: Quantiser, parts: Mapping[Direction, Part], engine: str) -> None:
    """Whole or absent."""

    def fill(into: Path) -> None:
        quantiser.save(into)
        told = [
            {"from": way.source, "to": way.target, "silos": sorted(part.learnt), "first": part.first}
            for way, part in parts.items()
        ]
        files.write_json(into / "memory.json", {"schema": 1, "engine": engine, "directions": told})
        for way, part in parts.items():
            copies = [(part.records, into / str(way), "records")]
            copies += [(source, into / str(way) / silo, "adaptive") for silo, source in part.learnt.items()]
            for source, target, name in copies:
                target.mkdir()
                for file in (f"{name}.json", f"{name}.safetensors"):
                    shutil.copyfile(source / file, target / file)

    files.write_folder(folder, fill)


def directions(folder: Path) -> list[Direction]:
    """What there is a memory for; nothing where there is no memory."""
    return [way for way, _ in _about(folder)[1]] if folder.exists() else []


def silos(folder: Path) -> list[str]:
    """Whose own way to use a memory there is."""
    return sorted({silo for _, told in _about(folder)[1] for silo in told["silos"]}) if folder.exists() else []


def load(folder: Path, direction: Direction, engine: Engine, silo: str | None = None) -> Retrieval | None:
    """The memory of this direction, ready to be asked; none, where there is none for it.

    `silo` is whose use of it was learnt, where each has learnt its own.
    """
    owner, ways = _about(folder) if folder.exists() else ("", [])
    fitting = {way: told for way, told in ways if all(map(languages.matches, direction, way))}
    if not fitting:
        return None
    if owner != engine.hash:
        raise RunError(f"{folder}: belongs to the engine {owner[:16]}…, and this one is {engine.hash[:16]}…")
    way = direction if direction in fitting else next(iter(fitting))
    quantiser, told = Quantiser.load(folder), fitting[way]
    records = Records.open(folder / str(way), quantiser)
    index = Codes(quantiser, records.parts(), int(engine.model.config.vocab_size))
    who = silo if silo is not None and silo in told["silos"] else str(told["first"])
    return Retrieval(index, Adaptive.load(folder / str(way) / who))


def _about(folder: Path) -> tuple[str, list[tuple[Direction, Any]]]:
    path = folder / "memory.json"
    try:
        told = files.read_json(path)
        if told["schema"] != 1:
            raise ValueError("needs schema 1")
        ways = [
            (Direction(str(one["from"]), str(one["to"])), {"silos": list(one["silos"]), "first": str(one["first"])})
            for one in told["directions"]
        ]
        # Names become parts of paths.
        for _, one in ways:
            if not all(_NAME.fullmatch(str(name)) for name in (*one["silos"], one["first"])):
                raise ValueError("a silo's name is letters, digits, '.', '_' and '-'")
        return str(told["engine"]), ways
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: not what fedmt wrote of a memory: {' '.join(str(error).split())[:200]}") from None
