"""The server's part: sealed files of one session become one, in an order that says nothing. It holds no key.

Every record goes to a bucket at random, and each bucket is shuffled in memory. Records that came twice are refused, and
more of them than were agreed on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedmt.files import write_bytes
from fedmt.memory.keys import Wrapped
from fedmt.memory.sealed import LIMIT, NONCE, Header, Reader, Rows, SealFault, Words, by_recipient, same, sealed_file
from fedmt.memory.seen import Marker, Parts, Seen

__all__ = ["Keystream", "Merged", "merge", "scattered"]

_BUCKET = 1 << 18
# Before a silo has made its records nobody knows how many there will be.
_OWN = 256


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


def scattered(parts: Iterable[Rows], width: int, folder: Path) -> Iterator[Rows]:
    """A silo's own records, in an order that says nothing: as they are made they spell its sentences, token by token,
    and whoever opens what the server kept of them could read that. As in a merge, memory holds a bucket."""
    words = Keystream()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        buckets = Parts(stack, folder, _OWN, width)
        for part in parts:
            buckets.add(np.ascontiguousarray(part), words.draw(len(part)))
        for bucket in buckets.read():
            yield bucket[words.order(len(bucket))]


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
        readers = [stack.enter_context(Reader(path)) for path in paths]
        header = _together(readers, min(most, LIMIT), min(each, LIMIT))
        session, count = header.session, header.count
        buckets = Parts(stack, out.parent, -(-count // _BUCKET), session.width)
        # Whoever holds the content key might choose nonces, but not how they fall under a key of this very merge.
        mark = Marker(secrets.token_bytes(32))
        nonces, tags = (Seen(stack, out.parent, count) for _ in range(2))
        before = 0
        for reader in readers:
            for start, rows in reader.rows():
                nonces.add(mark(rows[:, :NONCE]), before + start)
                tags.add(mark(rows[:, -16:]), before + start)
                buckets.add(rows, words.draw(len(rows)))
            before += reader.header.count
        for seen in (nonces, tags):
            twice = seen.twice()
            if twice is not None:
                (first, a), (second, b) = (_whose(readers, one) for one in twice)
                raise SealFault(second, "duplicate", f"record {b:,} is the same as record {a:,} of {first}: a replay")
        shuffled = (rows[words.order(len(rows))].data for rows in buckets.read())
        write_bytes(out, sealed_file(header, shuffled))
    return Merged(count, {str(reader.path): reader.header.count for reader in readers})


def _together(readers: Sequence[Reader], most: int, each: int) -> Header:
    """The header of what becomes of these files; nothing in it stands in the order in which they came."""
    if not readers:
        raise SealFault("merge", "count", "there is no sealed file to merge")
    keys: dict[str, Wrapped] = {}
    manifests: dict[bytes, Path] = {}
    count, session = 0, readers[0].header.session
    for reader in readers:
        path, header = reader.path, reader.header
        same(path, header.session, session)
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
    return Header(session, count, by_recipient(keys.values()), tuple(sorted(manifests)))


def _whose(readers: Sequence[Reader], number: int) -> tuple[Path, int]:
    for reader in readers:
        if number < reader.header.count:
            return reader.path, number
        number -= reader.header.count
    raise AssertionError(number)
