"""Rows put by on disk in parts, and which of them came twice: for more of them than memory holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedmt.memory.sealed import Rows, Words

__all__ = ["Marker", "Parts", "Seen"]

_PART = 1 << 20


class Marker:
    """A keyed permutation of 16 bytes: of every row, filled up with zeros."""

    def __init__(self, key: bytes) -> None:
        # Every block stands for itself alone, which is what this mode is for.
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())

    def __call__(self, rows: Rows) -> Words:
        blocks = np.zeros((len(rows), 16), np.uint8)
        blocks[:, : rows.shape[1]] = rows
        return np.frombuffer(self._cipher.encryptor().update(blocks.data), np.uint64).reshape(-1, 2)


class Parts:
    """Rows put by, in a number of unnamed files that is a power of two, so that one of them fits into memory."""

    def __init__(self, stack: ExitStack, folder: Path, wanted: int, width: int) -> None:
        count = min(256, 1 << max(0, wanted - 1).bit_length())
        files = (tempfile.TemporaryFile(dir=folder) for _ in range(count))  # noqa: SIM115 - the stack closes them
        self._files = [stack.enter_context(file) for file in files]
        self._width = width

    def add(self, rows: Rows, words: Words) -> None:
        """Each row into the file that the low bits of its word name."""
        which = words & np.uint64(len(self._files) - 1)
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which.astype(np.intp), minlength=len(self._files)))
        rows = rows[order]
        for file, start, end in zip(self._files, [0, *ends], ends, strict=False):
            file.write(rows[start:end].data)

    def read(self) -> Iterator[Rows]:
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), np.uint8).reshape(-1, self._width)


class Seen:
    """Which marks came twice: by parts, since all of them may be more than memory holds."""

    def __init__(self, stack: ExitStack, folder: Path, count: int) -> None:
        self._parts = Parts(stack, folder, min(64, -(-count // _PART)), 24)

    def add(self, marks: Words, start: int) -> None:
        numbers = np.arange(start, start + len(marks), dtype=np.uint64)
        rows = np.column_stack([marks, numbers])
        self._parts.add(rows.view(np.uint8), marks[:, 1])

    def twice(self) -> tuple[int, int] | None:
        for part in self._parts.read():
            rows = part.view(np.uint64)
            firsts = np.sort(rows[:, 0])
            if not (firsts[1:] == firsts[:-1]).any():
                continue
            rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
            same = np.flatnonzero((rows[1:, :2] == rows[:-1, :2]).all(axis=1))
            if len(same):
                return int(rows[same[0], 2]), int(rows[same[0] + 1, 2])
        return None
