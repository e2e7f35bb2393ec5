"""Records that a server can merge and shuffle, and cannot read.

A session has one content key, made by a member and wrapped for every other (`keys.wrap`); the server never holds it.
Each record, a row of fixed size, becomes one AES-256-GCM ciphertext of its own: nonce 12 + ciphertext + tag 16, so 28
bytes more. Key and associated data bind it to session, quantiser, format and record size.

*Nonces* are 96 random bits, for a counter per silo would name the silo. That n records under one key share one has a
chance below n²/2⁹⁷: 2⁻⁴⁷ for 25.8 million, 2⁻³³ for the 2³² beyond which nothing is sealed, merged or opened here (the
limit of NIST SP 800-38D). AES-GCM-SIV would forgive a collision, and runs at half the speed; the bound needs no such
forgiveness. One call of the library per record, which holds the interpreter's lock: threads do not help.

*A manifest* of each silo, sealed under the content key, says who sent, how many records, and the sum (XOR) of a keyed
function of their nonces, a multiset hash that the server cannot aim at. So records that it drops, keeps back, or takes
from another upload are missed, though their order is free.

Not found: that the server leaves out a silo whose manifest nobody expects; that it sends an older whole upload of a
silo, in the same session, for a newer one; and what a *member* forges, for all of them hold the content key. Order
within a merged file means nothing, so a file in another order is the same file.

Knows nothing of what a record means.
"""

from __future__ import annotations

import os
import secrets
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from fedmt.files import write_bytes
from fedmt.memory import sealed
from fedmt.memory.keys import SECRET_BYTES, KeyFault, Private, Public, Wrapped, unwrap, wrap
from fedmt.memory.sealed import (
    LIMIT,
    NONCE,
    Header,
    Reader,
    Rows,
    SealFault,
    Session,
    Words,
    by_recipient,
    same,
    sealed_file,
)
from fedmt.memory.seen import Marker, Seen

__all__ = ["Content", "Invitation", "Opened", "enter", "invite", "seal", "unseal"]

_MANIFEST = struct.Struct("<29sQ16s")


class Content:
    """A session's content key, and what is done with it."""

    def __init__(self, session: Session, secret: bytes) -> None:
        self.session, self._secret = session, secret
        self._bound = session.bound
        expand = HKDFExpand(hashes.SHA256(), 3 * SECRET_BYTES, info=b"fedmt content 1" + self._bound)
        derived = expand.derive(secret)
        self._records, self._manifests = AESGCM(derived[:32]), AESGCM(derived[32:64])
        self._mark = Marker(derived[64:])

    def wrapped(self, maker: Private, recipient: Public) -> Wrapped:
        return wrap(self._secret, maker, recipient, self._bound)

    def seal(self, records: Rows) -> Rows:
        nonces = np.frombuffer(os.urandom(NONCE * len(records)), np.uint8).reshape(-1, NONCE)
        boxes = map(self._records.encrypt, _items(nonces), _items(records), repeat(self._bound))
        sealed = np.frombuffer(b"".join(boxes), np.uint8).reshape(len(records), -1)
        return np.concatenate([nonces, sealed], axis=1)

    def unseal(self, rows: Rows) -> Rows | int:
        """The records; or which row is the first that does not open."""
        nonces, boxes = _items(rows[:, :NONCE]), _items(rows[:, NONCE:])
        opened: list[bytes] = []
        try:
            opened.extend(map(self._records.decrypt, nonces, boxes, repeat(self._bound)))
        except InvalidTag:
            return len(opened)
        return np.frombuffer(b"".join(opened), np.uint8).reshape(len(rows), -1)

    def marks(self, rows: Rows) -> Words:
        """Of each row 16 bytes that stand for its nonce, and mean nothing without the key."""
        return self._mark(rows[:, :NONCE])

    def manifest(self, silo: Public, count: int, sum_: Words) -> bytes:
        nonce = os.urandom(NONCE)
        told = _MANIFEST.pack(silo.fingerprint.encode(), count, sum_.tobytes())
        return nonce + self._manifests.encrypt(nonce, told, b"manifest" + self._bound)

    def read_manifest(self, box: bytes) -> tuple[str, int, Words] | None:
        try:
            told = self._manifests.decrypt(box[:NONCE], box[NONCE:], b"manifest" + self._bound)
        except InvalidTag:
            return None
        silo, count, sum_ = _MANIFEST.unpack(told)
        return silo.decode("ascii", "replace"), count, np.frombuffer(sum_, np.uint64)


@dataclass(frozen=True)
class Invitation:
    """What the server passes on to the silos so that they can seal: a session, and its content key wrapped for each."""

    session: Session
    keys: tuple[Wrapped, ...]

    def admit(self, content: Content, maker: Private, joiner: Public) -> Invitation:
        """The same session with one member more; whoever holds the content key can let somebody in."""
        kept = [one for one in self.keys if one.recipient != joiner.fingerprint]
        return Invitation(self.session, by_recipient([*kept, content.wrapped(maker, joiner)]))

    def encode(self) -> bytes:
        return Header(self.session, 0, self.keys, ()).encode()

    @classmethod
    def decode(cls, content: bytes) -> Invitation:
        header = Header.decode("invitation", content)
        return cls(header.session, header.keys)


def invite(session: Session, maker: Private, members: Iterable[Public]) -> tuple[Content, Invitation]:
    """A member's first step: a new content key, wrapped for all members and for the maker."""
    content = Content(session, secrets.token_bytes(SECRET_BYTES))
    everyone = {*members, maker.public}
    return content, Invitation(session, by_recipient(content.wrapped(maker, one) for one in everyone))


def enter(
    invitation: Invitation, private: Private, members: Mapping[str, Public], quantiser: str, format: str
) -> Content:
    """Every other member's step. `members`, by name: keys whose fingerprints were compared; one of them invites."""
    where, session = "invitation", invitation.session
    if session.quantiser != quantiser:
        raise SealFault(where, "quantiser", f"is for the quantiser {session.quantiser}; allowed: {quantiser}")
    if session.format != format:
        raise SealFault(where, "format", f"is for records of the format {session.format}; allowed: {format}")
    return _content(where, session, invitation.keys, private, members)


def seal(
    path: Path, invitation: Invitation, content: Content, silo: Public, records: Iterable[Rows], most: int = LIMIT
) -> int:
    """Write all records of one silo, given as arrays [n, record_bytes], into one sealed file; says how many."""
    session = invitation.session
    assert content.session == session
    path.parent.mkdir(parents=True, exist_ok=True)
    count, total = 0, np.zeros(2, np.uint64)
    with tempfile.TemporaryFile(dir=path.parent) as body:
        for array in records:
            assert array.dtype == np.uint8, array.dtype
            assert array.shape[1:] == (session.record_bytes,), array.shape
            for start in range(0, len(array), sealed.CHUNK):
                rows = content.seal(array[start : start + sealed.CHUNK])
                total ^= np.bitwise_xor.reduce(content.marks(rows), axis=0)
                count += len(rows)
                if count > min(most, LIMIT):
                    raise SealFault(path, "cap", f"has more than {min(most, LIMIT):,} records")
                body.write(rows.data)
        body.seek(0)
        header = Header(session, count, invitation.keys, (content.manifest(silo, count, total),))
        write_bytes(path, sealed_file(header, iter(lambda: body.read(1 << 20), b"")))
    return count


class Opened:
    """The records of a file that was found to be whole, in chunks; may be gone through again until it is closed."""

    def __init__(self, file: IO[bytes], session: Session, sent: dict[str, int]) -> None:
        self._file, self.session, self.sent = file, session, sent
        self.count = sum(sent.values())

    def __iter__(self) -> Iterator[Rows]:
        self._file.seek(0)
        while content := self._file.read(sealed.CHUNK * self.session.record_bytes):
            yield np.frombuffer(content, np.uint8).reshape(-1, self.session.record_bytes)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def unseal(
    path: Path,
    private: Private,
    session: Session,
    members: Mapping[str, Public],
    senders: Iterable[str] | None = None,
    folder: Path | None = None,
) -> Opened:
    """Open a sealed file, merged or not: all of it or nothing.

    `session` is the one expected; `members`, by name, have keys whose fingerprints were compared; the records must be
    those of `senders`, all members where that is not said, no fewer and no more. What is opened waits in an unnamed
    file of `folder` (else beside `path`) until every check has passed.
    """
    with Reader(path) as reader:
        header = reader.header
        same(path, header.session, session)
        content = _content(path, session, header.keys, private, members)
        names = {key.fingerprint: name for name, key in members.items()}
        sent, total = _manifests(path, header, content, names, set(members if senders is None else senders))
        plain = tempfile.TemporaryFile(dir=folder or path.parent)  # noqa: SIM115 - it is closed here, or by `Opened`
        try:
            _unseal_all(reader, content, total, plain, folder or path.parent)
        except BaseException:
            plain.close()
            raise
    return Opened(plain, session, sent)


def _unseal_all(reader: Reader, content: Content, total: Words, plain: IO[bytes], folder: Path) -> None:
    path = reader.path
    with ExitStack() as stack:
        seen = Seen(stack, folder, reader.header.count)
        for start, rows in reader.rows():
            records = content.unseal(rows)
            if isinstance(records, int):
                told = f"record {start + records:,} was altered, or is of another session, quantiser, format or key"
                raise SealFault(path, "altered", told)
            marks = content.marks(rows)
            total = total ^ np.bitwise_xor.reduce(marks, axis=0)
            seen.add(marks, start)
            plain.write(records.data)
        twice = seen.twice()
    if twice is not None:
        raise SealFault(path, "duplicate", f"record {twice[1]:,} is the same as record {twice[0]:,}: a replay")
    if total.any():
        raise SealFault(path, "manifest", "has as many records as the silos sent, but not the ones they sent")


def _content(
    where: object, session: Session, keys: Iterable[Wrapped], private: Private, members: Mapping[str, Public]
) -> Content:
    own = private.public.fingerprint
    mine = next((one for one in keys if one.recipient == own), None)
    if mine is None:
        raise SealFault(where, "key", f"wrong key: its content key is wrapped for others, not for {own}")
    try:
        return Content(session, unwrap(mine, private, {*members.values(), private.public}, session.bound))
    except KeyFault as fault:
        raise SealFault(where, "key", str(fault)) from None


def _manifests(
    path: Path, header: Header, content: Content, names: Mapping[str, str], senders: set[str]
) -> tuple[dict[str, int], Words]:
    """How many records each silo sent, and the sum of their marks; every silo that should be there is, and once."""
    sent: dict[str, int] = {}
    total = np.zeros(2, np.uint64)
    for number, box in enumerate(header.manifests):
        told = content.read_manifest(box)
        if told is None:
            raise SealFault(path, "manifest", f"manifest {number} was altered, or is of another session or key")
        silo, count, sum_ = told
        name = names.get(silo, silo)
        if name not in senders:
            raise SealFault(path, "manifest", f"has records of {name}; allowed: {', '.join(sorted(senders))}")
        if name in sent:
            raise SealFault(path, "manifest", f"has two manifests of {name}")
        sent[name] = count
        total ^= sum_
    missing = sorted(senders - set(sent))
    if missing:
        raise SealFault(path, "manifest", f"the manifest of {', '.join(missing)} is missing")
    if sum(sent.values()) != header.count:
        told_ = ", ".join(f"{name} {count:,}" for name, count in sent.items())
        raise SealFault(path, "count", f"has {header.count:,} records, and {sum(sent.values()):,} were sent ({told_})")
    return sent, total


def _items(rows: Rows) -> list[bytes]:
    """Each row as bytes."""
    if not len(rows):
        return []
    items: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0].tolist()
    return items
