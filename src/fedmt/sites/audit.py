"""`audit.jsonl`: every message that leaves a site, one line each, written down before it goes.

When, what step of which run, to whom, how many bytes, and their SHA-256: whoever keeps the bytes can prove what they
were. Lines are only ever added.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedmt.federation.messages import Reply

__all__ = ["Audit", "Line"]


@dataclass(frozen=True)
class Line:
    at: str
    to: str
    run: str
    model: str
    round: int
    step: str
    refused: str | None
    bytes: int
    sha256: str


class Audit:
    def __init__(self, path: Path, to: str) -> None:
        self._path = path
        self._to = to

    def write(self, reply: Reply, content: bytes) -> Line:
        line = Line(
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            self._to,
            reply.run,
            reply.model,
            reply.round,
            reply.step,
            reply.refused,
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
        text = json.dumps(asdict(line), ensure_ascii=False) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, text.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        return line

    def lines(self) -> Iterator[Line]:
        """What stands there; a line that a full disk cut short is passed over."""
        if not self._path.exists():
            return
        for text in self._path.read_text(encoding="utf-8").splitlines():
            try:
                yield Line(**json.loads(text))
            except (ValueError, TypeError):
                continue
