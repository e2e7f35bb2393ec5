"""A finished memory in a folder: the quantiser, and of each direction the records and what was learnt of their use.

    quantiser.{json,safetensors} · DIRECTION/records.{json,safetensors} · DIRECTION/adaptive.{json,safetensors}

It belongs to one engine, whose hash stands beside it. The records are as every member of the federation has them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

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

__all__ = ["directions", "keep", "load"]


def keep(folder: Path, quantiser: Quantiser, parts: Mapping[Direction, tuple[Path, Path]], engine: str) -> None:
    """Of each direction the folder that holds the records, and the one of what was learnt. Whole or absent."""

    def fill(part: Path) -> None:
        quantiser.save(part)
        told = [{"from": way.source, "to": way.target} for way in parts]
        files.write_json(part / "memory.json", {"schema": 1, "engine": engine, "directions": told})
        for way, sources in parts.items():
            (part / str(way)).mkdir()
            for name, source in zip(("records", "adaptive"), sources, strict=True):
                for file in (f"{name}.json", f"{name}.safetensors"):
                    shutil.copyfile(source / file, part / str(way) / file)

    files.write_folder(folder, fill)


def directions(folder: Path) -> list[Direction]:
    """What there is a memory for; nothing where there is no memory."""
    return _about(folder)[1] if folder.exists() else []


def load(folder: Path, direction: Direction, engine: Engine) -> Retrieval | None:
    """The memory of this direction, ready to be asked; none, where there is none for it."""
    owner, ways = _about(folder) if folder.exists() else ("", [])
    fitting = [way for way in ways if all(map(languages.matches, direction, way))]
    if not fitting:
        return None
    if owner != engine.hash:
        raise RunError(f"{folder}: belongs to the engine {owner[:16]}…, and this one is {engine.hash[:16]}…")
    place, quantiser = folder / str(direction if direction in fitting else fitting[0]), Quantiser.load(folder)
    records = Records.open(place, quantiser)
    index = Codes(quantiser, records.parts(), int(engine.model.config.vocab_size))
    return Retrieval(index, Adaptive.load(place))


def _about(folder: Path) -> tuple[str, list[Direction]]:
    path = folder / "memory.json"
    try:
        told = files.read_json(path)
        if told["schema"] != 1:
            raise ValueError("needs schema 1")
        return str(told["engine"]), [Direction(str(one["from"]), str(one["to"])) for one in told["directions"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: not what fedmt wrote of a memory: {' '.join(str(error).split())[:200]}") from None
