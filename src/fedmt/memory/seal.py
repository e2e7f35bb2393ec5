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

A file: magic 8 · length of header 4 · header (JSON in one canonical form) · records · SHA-256 of records and header.
The last finds damage; only the keys find malice.

Not found: that the server leaves out a silo whose manifest nobody expects; that it sends an older whole upload of a
silo, in the same session, for a newer one; and what a *member* forges, for all of them hold the content key. Order
within a merged file means nothing, so a file in another order is the same file.

Knows nothing of what a record means.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

from fedmt.errors import InputError
from fedmt.files import write_bytes
from fedmt.memory.keys import SECRET_BYTES, KeyFault, Private, Public, Wrapped, unwrap, wrap

__all__ = ["Content", "Invitation", "Merged", "Opened", "SealFault", "Session", "enter", "invite", "merge", "seal"]
__all__ += ["unseal"]

Rows: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

OVERHEAD = 28
LIMIT = 2**32
_MAGIC = b"fedmtSL1"
_NONCE = 12
_CHUNK = 1 << 16
_BUCKET = 1 << 18
_PART = 1 << 20
_HEADER_MOST = 1 << 22
_MANIFEST = struct.Struct("<29sQ16s")
_MANIFEST_BYTES = _MANIFEST.size + OVERHEAD
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
        return hashlib.sha256(b"fedmt session 1" + _canonical(vars(self))).digest()


class Content:
    """A session's content key, and what is done with it."""

    def __init__(self, session: Session, secret: bytes) -> None:
        self.session, self._secret = session, secret
        self._bound = session.bound
        expand = HKDFExpand(hashes.SHA256(), 3 * SECRET_BYTES, info=b"fedmt content 1" + self._bound)
        derived = expand.derive(secret)
        self._records, self._manifests = AESGCM(derived[:32]), AESGCM(derived[32:64])
        self._mark = _Marker(derived[64:])

    def wrapped(self, maker: Private, recipient: Public) -> Wrapped:
        return wrap(self._secret, maker, recipient, self._bound)

    def seal(self, records: Rows) -> Rows:
        nonces = np.frombuffer(os.urandom(_NONCE * len(records)), np.uint8).reshape(-1, _NONCE)
        boxes = map(self._records.encrypt, _items(nonces), _items(records), repeat(self._bound))
        sealed = np.frombuffer(b"".join(boxes), np.uint8).reshape(len(records), -1)
        return np.concatenate([nonces, sealed], axis=1)

    def unseal(self, rows: Rows) -> Rows | int:
        """The records; or which row is the first that does not open."""
        nonces, boxes = _items(rows[:, :_NONCE]), _items(rows[:, _NONCE:])
        opened: list[bytes] = []
        try:
            opened.extend(map(self._records.decrypt, nonces, boxes, repeat(self._bound)))
        except InvalidTag:
            return len(opened)
        return np.frombuffer(b"".join(opened), np.uint8).reshape(len(rows), -1)

    def marks(self, rows: Rows) -> Words:
        """Of each row 16 bytes that stand for its nonce, and mean nothing without the key."""
        return self._mark(rows[:, :_NONCE])

    def manifest(self, silo: Public, count: int, sum_: Words) -> bytes:
        nonce = os.urandom(_NONCE)
        told = _MANIFEST.pack(silo.fingerprint.encode(), count, sum_.tobytes())
        return nonce + self._manifests.encrypt(nonce, told, b"manifest" + self._bound)

    def read_manifest(self, box: bytes) -> tuple[str, int, Words] | None:
        try:
            told = self._manifests.decrypt(box[:_NONCE], box[_NONCE:], b"manifest" + self._bound)
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
        return Invitation(self.session, _sorted([*kept, content.wrapped(maker, joiner)]))

    def encode(self) -> bytes:
        return _Header(self.session, 0, self.keys, ()).encode()

    @classmethod
    def decode(cls, content: bytes) -> Invitation:
        header = _Header.decode("invitation", content)
        return cls(header.session, header.keys)


def invite(session: Session, maker: Private, members: Iterable[Public]) -> tuple[Content, Invitation]:
    """A member's first step: a new content key, wrapped for all members and for the maker."""
    content = Content(session, secrets.token_bytes(SECRET_BYTES))
    everyone = {*members, maker.public}
    return content, Invitation(session, _sorted(content.wrapped(maker, one) for one in everyone))


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
            for start in range(0, len(array), _CHUNK):
                rows = content.seal(array[start : start + _CHUNK])
                total ^= np.bitwise_xor.reduce(content.marks(rows), axis=0)
                count += len(rows)
                if count > min(most, LIMIT):
                    raise SealFault(path, "cap", f"has more than {min(most, LIMIT):,} records")
                body.write(rows.data)
        body.seek(0)
        header = _Header(session, count, invitation.keys, (content.manifest(silo, count, total),))
        write_bytes(path, _file(header, iter(lambda: body.read(1 << 20), b"")))
    return count


@dataclass(frozen=True)
class Merged:
    """What the server knows of a merge: how many records there are, and how many came in which file."""

    count: int
    sent: dict[str, int]


def merge(
    paths: Sequence[Path], out: Path, *, most: int = LIMIT, each: int = LIMIT, words: Keystream | None = None
) -> Merged:
    """The server's part: the files of one session, a silo's each, become one, its records in a random order.

    Every record goes to one of k buckets at random, and each bucket is shuffled in memory: the records are sorted by
    random numbers that are drawn independently, of which the bucket is the first bits; so all orders are alike
    likely, and memory holds one bucket. `most` and `each` cap the records in all and of one file.
    """
    words = words or Keystream()
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        readers = [stack.enter_context(_Reader(path)) for path in paths]
        header = _together(readers, min(most, LIMIT), min(each, LIMIT))
        session, count = header.session, header.count
        buckets = _Parts(stack, out.parent, -(-count // _BUCKET), session.width)
        # Whoever holds the content key might choose nonces, but not how they fall under a key of this very merge.
        mark = _Marker(secrets.token_bytes(32))
        nonces, tags = (_Seen(stack, out.parent, count) for _ in range(2))
        before = 0
        for reader in readers:
            for start, rows in reader.rows():
                nonces.add(mark(rows[:, :_NONCE]), before + start)
                tags.add(mark(rows[:, -16:]), before + start)
                buckets.add(rows, words.draw(len(rows)))
            before += reader.header.count
        for seen in (nonces, tags):
            twice = seen.twice()
            if twice is not None:
                (first, a), (second, b) = (_whose(readers, one) for one in twice)
                raise SealFault(second, "duplicate", f"record {b:,} is the same as record {a:,} of {first}: a replay")
        shuffled = (rows[words.order(len(rows))].data for rows in buckets.read())
        write_bytes(out, _file(header, shuffled))
    return Merged(count, {str(reader.path): reader.header.count for reader in readers})


class Opened:
    """The records of a file that was found to be whole, in chunks; may be gone through again until it is closed."""

    def __init__(self, file: IO[bytes], session: Session, sent: dict[str, int]) -> None:
        self._file, self.session, self.sent = file, session, sent
        self.count = sum(sent.values())

    def __iter__(self) -> Iterator[Rows]:
        self._file.seek(0)
        while content := self._file.read(_CHUNK * self.session.record_bytes):
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
    with _Reader(path) as reader:
        header = reader.header
        _same(path, header.session, session)
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


def _unseal_all(reader: _Reader, content: Content, total: Words, plain: IO[bytes], folder: Path) -> None:
    path = reader.path
    with ExitStack() as stack:
        seen = _Seen(stack, folder, reader.header.count)
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


def _same(where: object, found: Session, wanted: Session) -> None:
    named = {"quantiser": "quantiser", "format": "format", "record_bytes": "format", "id": "session"}
    for key, reason in named.items():
        there, allowed = getattr(found, key), getattr(wanted, key)
        if there != allowed:
            raise SealFault(where, reason, f"is of another {reason}, {key} {there}; allowed: {allowed}")


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
    path: Path, header: _Header, content: Content, names: Mapping[str, str], senders: set[str]
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


def _together(readers: Sequence[_Reader], most: int, each: int) -> _Header:
    """The header of what becomes of these files; nothing in it stands in the order in which they came."""
    if not readers:
        raise SealFault("merge", "count", "there is no sealed file to merge")
    keys: dict[str, Wrapped] = {}
    manifests: dict[bytes, Path] = {}
    count, session = 0, readers[0].header.session
    for reader in readers:
        path, header = reader.path, reader.header
        _same(path, header.session, session)
        if len(header.manifests) != 1:
            found = len(header.manifests)
            raise SealFault(path, "manifest", f"has {found} manifests; allowed: 1, as a silo's own file")
        if header.manifests[0] in manifests:
            first = manifests[header.manifests[0]]
            raise SealFault(path, "duplicate", f"has the same manifest as {first}: a replay")
        manifests[header.manifests[0]] = path
        count += header.count
        if header.count > each:
            raise SealFault(path, "cap", f"has {header.count:,} records; allowed: at most {each:,} of one silo")
        if count > most:
            raise SealFault(path, "cap", f"makes it {count:,} records; allowed: at most {most:,} in all")
        for key in header.keys:
            if keys.setdefault(key.recipient, key) != key:
                raise SealFault(path, "key", f"has another content key for {key.recipient} than the files before it")
    return _Header(session, count, _sorted(keys.values()), tuple(sorted(manifests)))


def _whose(readers: Sequence[_Reader], number: int) -> tuple[Path, int]:
    for reader in readers:
        if number < reader.header.count:
            return reader.path, number
        number -= reader.header.count
    raise AssertionError(number)


@dataclass(frozen=True)
class _Header:
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
        return _canonical({"version": 1, **told})

    @classmethod
    def decode(cls, where: object, content: bytes) -> _Header:
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
            sound = sound and all(len(one) == _MANIFEST_BYTES for one in header.manifests)
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


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sorted(keys: Iterable[Wrapped]) -> tuple[Wrapped, ...]:
    return tuple(sorted(keys, key=lambda one: one.recipient))


def _file(header: _Header, body: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    encoded = header.encode()
    assert len(encoded) <= _HEADER_MOST, len(encoded)
    digest = hashlib.sha256()
    yield _MAGIC + struct.pack("<I", len(encoded)) + encoded
    for part in body:
        digest.update(part)
        yield part
    digest.update(encoded)
    yield digest.digest()


class _Reader:
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
            self.header = _Header.decode(path, self._encoded)
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
        for start in range(0, count, _CHUNK):
            wanted = min(_CHUNK, count - start) * width
            content = self._file.read(wanted)
            digest.update(content)
            if len(content) != wanted:
                raise SealFault(self.path, "truncated", "became shorter while it was read")
            yield start, np.frombuffer(content, np.uint8).reshape(-1, width)
        digest.update(self._encoded)
        if self._file.read() != digest.digest():
            raise SealFault(self.path, "altered", "is damaged: its checksum is another")

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


class Keystream:
    """A cryptographic generator: the stream of AES-256 in counter mode, under a key of the system's unless given."""

    def __init__(self, key: bytes | None = None) -> None:
        self._stream = Cipher(algorithms.AES(key or secrets.token_bytes(32)), modes.CTR(bytes(16))).encryptor()

    def draw(self, count: int) -> Words:
        return np.frombuffer(self._stream.update(bytes(8 * count)), np.uint64)

    def order(self, count: int) -> NDArray[np.intp]:
        """A permutation, all alike likely: drawn again where two numbers are the same, which would favour an order."""
        while True:
            drawn = self.draw(count)
            order = np.argsort(drawn)
            ranked = drawn[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order


class _Marker:
    """A keyed permutation of 16 bytes: of every row, filled up with zeros."""

    def __init__(self, key: bytes) -> None:
        # Every block stands for itself alone, which is what this mode is for.
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())

    def __call__(self, rows: Rows) -> Words:
        blocks = np.zeros((len(rows), 16), np.uint8)
        blocks[:, : rows.shape[1]] = rows
        return np.frombuffer(self._cipher.encryptor().update(blocks.data), np.uint64).reshape(-1, 2)


class _Parts:
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


class _Seen:
    """Which marks came twice: by parts, since all of them may be more than memory holds."""

    def __init__(self, stack: ExitStack, folder: Path, count: int) -> None:
        self._parts = _Parts(stack, folder, min(64, -(-count // _PART)), 24)

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


def _items(rows: Rows) -> list[bytes]:
    """Each row as bytes."""
    if not len(rows):
        return []
    items: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0].tolist()
    return items
