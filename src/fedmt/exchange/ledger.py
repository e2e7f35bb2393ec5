"""Every byte that travelled, one line a message, in an append-only `ledger.jsonl`.

Lines wait until what they belong to (a round, a score) is whole. They are then `sealed` into its checkpoint, and
`settled` into the file after it; a run killed between the two settles them when it resumes. So no line stands twice and
none is missing, and a resumed run's ledger is an uninterrupted one's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from fedmt.errors import RunError

__all__ = ["Entry", "Ledger", "Totals"]


@dataclass(frozen=True)
class Entry:
    """One message as it was serialised. `parameters` and `tensors` are of the engine; of statistics there are none."""

    model: str
    round: int
    step: str
    silo: str
    direction: Literal["up", "down"]
    bytes: int
    parameters: int
    tensors: int


@dataclass(frozen=True)
class Totals:
    up_bytes: int = 0
    up_parameters: int = 0
    down_bytes: int = 0
    down_parameters: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    @staticmethod
    def of(entry: Entry) -> Totals:
        if entry.direction == "up":
            return Totals(up_bytes=entry.bytes, up_parameters=entry.parameters)
        return Totals(down_bytes=entry.bytes, down_parameters=entry.parameters)


class Ledger:
    """`path` None: kept in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._text = b""
        self._waiting: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self._waiting.append(entry)

    def forget(self) -> None:
        """Drop the lines that wait: what they belonged to did not become whole and will be done again."""
        self._waiting.clear()

    def seal(self) -> dict[str, Any]:
        """The waiting lines, and where they will stand: for the checkpoint."""
        text = "".join(json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in self._waiting)
        self._waiting.clear()
        return {"at": self._length(), "lines": text}

    def settle(self, sealed: dict[str, Any]) -> None:
        """Bring sealed lines into the file, unless they stand there already."""
        at, lines = int(sealed["at"]), str(sealed["lines"]).encode("utf-8")
        length = self._length()
        if length < at:
            raise RunError(f"{self._path}: has {length} bytes, but a checkpoint knows of {at}: it was cut or replaced")
        if length >= at + len(lines):
            return
        if self._path is None:
            self._text = self._text[:at] + lines
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("r+b" if self._path.exists() else "xb") as file:
            file.truncate(at)
            file.seek(at)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> Iterator[Entry]:
        """All settled lines, in order."""
        if self._path is None:
            lines = iter(self._text.splitlines())
        elif self._path.exists():
            lines = iter(self._path.read_bytes().splitlines())
        else:
            return
        for number, line in enumerate(lines, 1):
            try:
                yield Entry(**json.loads(line))
            except (ValueError, TypeError):
                raise RunError(f"{self._path}:{number}: not a line of a ledger") from None

    def totals(self, model: str | None = None, step: str | None = None) -> Totals:
        """Sums over the settled lines, of one model or step where given."""
        total = Totals()
        for entry in self.entries():
            if model in (None, entry.model) and step in (None, entry.step):
                total += Totals.of(entry)
        return total

    def _length(self) -> int:
        if self._path is None:
            return len(self._text)
        return self._path.stat().st_size if self._path.exists() else 0
