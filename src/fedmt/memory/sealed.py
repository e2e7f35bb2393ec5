"""What a sealed file is: its session, its header, its records, read from the beginning to the end.

    magic 8 · length of header 4 · header (JSON in one canonical form) · records · SHA-256 of records and header

The last finds damage; only the keys of `seal.py` find malice. Knows no key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmt.errors import InputError
from fedmt.memory.keys import SECRET_BYTES, Wrapped

__all__ = ["LIMIT", "OVERHEAD", "Header", "Reader", "Rows", "SealFault", "Session", "Words", "same", "sealed_file"]

Rows: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

NONCE = 12
OVERHEAD = NONCE + 16
LIMIT = 2**32
CHUNK = 1 << 16
MANIFEST_BYTES = 53 + OVERHEAD
_MAGIC = b"fedmtSL1"
_HEADER_MOST = 1 << 22
_FORMAT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FINGERPRINT = re.compile(r"([a-z2-7]{4}-){5}[a-z2-7]{4}")


class SealFault(InputError):
    """A sealed file, or an invitation, that is not what it should be; `reason` is one word or two for programs."""

    def __init__(self, where: object, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(f"{where}: {text}")


@dataclass(frozen=True)
class Session:
    """What every record of a session has in common, and is bound to. `quantiser` is a SHA-256 in hexadecimal."""

    id: str
    quantiser: str
    format: str
    record_bytes: int

    def __post_init__(self) -> None:
        sound = re.fullmatch(r"[0-9a-f]{32}", self.id) and re.fullmatch(r"[0-9a-f]{64}", self.quantiser)
        sized = type(self.record_bytes) is int and 1 <= self.record_bytes <= 4096
        if not sound or not _FORMAT.fullmatch(self.format) or not sized:
            raise ValueError("a session is an id, a quantiser's SHA-256, a format's name and 1 to 4096 bytes a record")

    @classmethod
    def new(cls, quantiser: str, format: str, record_bytes: int) -> Session:
        return cls(secrets.token_hex(16), quantiser, format, record_bytes)

    @property
    def width(self) -> int:
        return self.record_bytes + OVERHEAD

    @property
    def bound(self) -> bytes:
        return hashlib.sha256(b"fedmt session 1" + canonical(vars(self))).digest()


def same(where: object, found: Session, wanted: Session) -> None:
    named = {"quantiser": "quantiser", "format": "format", "record_bytes": "format", "id": "session"}
    for key, reason in named.items():
        there, allowed = getattr(found, key), getattr(wanted, key)
        if there != allowed:
            raise SealFault(where, reason, f"is of another {reason}, {key} {there}; allowed: {allowed}")


@dataclass(frozen=True)
class Header:
    session: Session
    count: int
    keys: tuple[Wrapped, ...]
    manifests: tuple[bytes, ...]

    def encode(self) -> bytes:
        keys = [
            {key: value.hex() if isinstance(value, bytes) else value for key, value in vars(one).items()}
            for one in self.keys
        ]
        manifests = [one.hex() for one in self.manifests]
        told = {"session": vars(self.session), "count": self.count, "keys": keys, "manifests": manifests}
        return canonical({"version": 1, **told})

    @classmethod
    def decode(cls, where: object, content: bytes) -> Header:
        """Strict: what does not encode to the same bytes again is refused, whatever is wrong with it."""
        try:
            told = json.loads(content)
            if isinstance(told, dict) and isinstance(told.get("version"), int) and told["version"] != 1:
                raise SealFault(where, "version", f"is of version {told['version']}; allowed: 1")
            unhexed = [[bytes.fromhex(one[key]) for key in ("maker", "ephemeral", "box")] for one in told["keys"]]
            keys = tuple(
                Wrapped(maker, one["recipient"], ephemeral, box)
                for one, (maker, ephemeral, box) in zip(told["keys"], unhexed, strict=True)
            )
            header = cls(
                Session(**told["session"]), told["count"], keys, tuple(bytes.fromhex(one) for one in told["manifests"])
            )
            sound = type(header.count) is int and 0 <= header.count <= LIMIT and header.encode() == content
            sound = sound and all(len(one) == MANIFEST_BYTES for one in header.manifests)
            sound = sound and all(
                _FINGERPRINT.fullmatch(one.recipient)
                and (len(one.maker), len(one.ephemeral), len(one.box)) == (32, 32, SECRET_BYTES + 16)
                for one in keys
            )
            sound = sound and len({one.recipient for one in keys}) == len(keys)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise SealFault(where, "header", "its header was altered, or written by another program")
        return header


def canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def by_recipient(keys: Iterable[Wrapped]) -> tuple[Wrapped, ...]:
    return tuple(sorted(keys, key=lambda one: one.recipient))


def sealed_file(header: Header, body: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    encoded = header.encode()
    assert len(encoded) <= _HEADER_MOST, len(encoded)
    digest = hashlib.sha256()
    yield _MAGIC + struct.pack("<I", len(encoded)) + encoded
    for part in body:
        digest.update(part)
        yield part
    digest.update(encoded)
    yield digest.digest()


class Reader:
    """A sealed file, read from its beginning to its end; its size has been checked before its first record comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise SealFault(path, "unreadable", str(error.strerror)) from None
        try:
            start = self._file.read(12)
            if start[:8] != _MAGIC[: len(start)]:
                raise SealFault(path, "format", "is no sealed file of fedmt")
            size = int.from_bytes(start[8:], "little")
            if size > _HEADER_MOST:
                raise SealFault(path, "header", f"its header would have {size:,} bytes; allowed: {_HEADER_MOST:,}")
            self._encoded = self._file.read(size)
            if len(start) < 12 or len(self._encoded) < size:
                raise SealFault(path, "truncated", "ends within its header")
            self.header = Header.decode(path, self._encoded)
            there = os.fstat(self._file.fileno()).st_size
            wanted = 12 + size + self.header.count * self.header.session.width + 32
            if there != wanted:
                reason = "truncated" if there < wanted else "too long"
                raise SealFault(path, reason, f"has {there:,} bytes; {self.header.count:,} records take {wanted:,}")
        except BaseException:
            self._file.close()
            raise

    def rows(self) -> Iterator[tuple[int, Rows]]:
        """Sealed records with the number of the first; the checksum is known to be right when all have come."""
        width, count = self.header.session.width, self.header.count
        digest = hashlib.sha256()
        for start in range(0, count, CHUNK):
            wanted = min(CHUNK, count - start) * width
            content = self._file.read(wanted)
            digest.update(content)
            if len(content) != wanted:
                raise SealFault(self.path, "truncated", "became shorter while it was read")
            yield start, np.frombuffer(content, np.uint8).reshape(-1, width)
        digest.update(self._encoded)
        if self._file.read() != digest.digest():
            raise SealFault(self.path, "altered", "is damaged: its checksum is another")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
