"""Key pairs of silos, their fingerprints, and wrapping one secret for one silo.

A key pair is X25519. `NAME.key` is private (PKCS #8 PEM, mode 0600) and stays at the silo; `NAME.pub` (PEM) may go
anywhere. Nothing certifies a public key but its fingerprint, which people compare by another way than the server: by
telephone, say.

A secret is wrapped as in the authenticated mode of HPKE (RFC 9180), which `cryptography` does not offer: a fresh key
pair and the maker's own are both agreed with the recipient's, HKDF-SHA256 makes a key of the two, AES-256-GCM seals
the secret. Without the maker's own key in it the server, which knows every public key, could wrap a secret of its own
choice for each silo, and read all that they then seal. What it gives no defence against: whoever has a silo's private
key can wrap secrets *to* that silo in anybody's name.

Knows nothing of sessions or records.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedmt.errors import InputError
from fedmt.files import sync_folder, write_bytes

__all__ = ["KeyFault", "Private", "Public", "Ring", "Wrapped", "load_private", "load_public", "new", "unwrap", "wrap"]

SECRET_BYTES = 32
_BOX_BYTES = SECRET_BYTES + 16
_MOST_BYTES = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyFault(InputError):
    """A key that is not there, not a key, not private enough, or not the one that fits."""


@dataclass(frozen=True)
class Public:
    """The public half: 32 bytes."""

    raw: bytes

    @property
    def fingerprint(self) -> str:
        """120 bits of the key's SHA-256, in groups to be read aloud; there is no 0, 1, 8 or 9 to mistake.

        Who wants another key with a given fingerprint tries 2^120; that somebody finds *two of their own* that are
        alike, in 2^60, harms only them.
        """
        text = base64.b32encode(hashlib.sha256(b"fedmt public key 1" + self.raw).digest()[:15]).decode().lower()
        return "-".join(text[start : start + 4] for start in range(0, len(text), 4))


@dataclass(frozen=True)
class Private:
    """The private half. Shows itself nowhere: its `repr` is the fingerprint."""

    key: X25519PrivateKey = field(repr=False)

    @property
    def public(self) -> Public:
        return Public(self.key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"Private({self.public.fingerprint})"


@dataclass(frozen=True)
class Wrapped:
    """A secret for one recipient, who is named by fingerprint; `maker` and `ephemeral` are public keys."""

    maker: bytes
    recipient: str
    ephemeral: bytes
    box: bytes


@dataclass(frozen=True)
class Ring:
    """What a silo holds of keys: its own pair, and by name the public keys whose fingerprints its people compared."""

    private: Private
    members: Mapping[str, Public]


def generate() -> Private:
    return Private(X25519PrivateKey.generate())


def new(folder: Path, name: str = "silo") -> tuple[Path, Path]:
    """Write a new pair into `folder`, which is made where it is not there: the private file's path, the public one's.

    A key that stands there already is never written over: what was sealed for it could not be opened again.
    """
    if not _NAME.fullmatch(name):
        raise KeyFault(f"{name!r}: no name for a key; allowed: up to 64 letters, digits, '.', '_' and '-'")
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    for path in (private, public):
        if path.exists() or path.is_symlink():
            raise KeyFault(f"{path}: there is a key already; take another folder or another --name")
    folder.mkdir(parents=True, exist_ok=True)
    made = generate()
    pem = serialization.Encoding.PEM
    content = made.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_private(private, content)
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    write_bytes(public, made.key.public_key().public_bytes(pem, spki))
    return private, public


def _write_private(path: Path, content: bytes) -> None:
    """Whole or absent, never readable by others, never over another file: a link, unlike a rename, refuses that."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(name)
        except FileExistsError:
            raise KeyFault(f"{path}: there is a key already; take another folder or another --name") from None
    finally:
        Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def load_private(path: Path) -> Private:
    """A silo's own key. One that others on the machine can read is refused, as `ssh` does."""
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        _refuse(path, content, "private", error)
    if not isinstance(key, X25519PrivateKey):
        raise KeyFault(f"{path}: is a private key of another kind; allowed: X25519, as `fedmt keys new` makes it")
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise KeyFault(f"{path}: others may read this private key (mode {mode:04o}); mend it by: chmod 600 {path}")
    return Private(key)


def load_public(path: Path) -> Public:
    content = _read(path)
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, TypeError) as error:
        _refuse(path, content, "public", error)
    if not isinstance(key, X25519PublicKey):
        raise KeyFault(f"{path}: is a public key of another kind; allowed: X25519, as `fedmt keys new` makes it")
    return Public(key.public_bytes_raw())


def load_either(path: Path) -> Public:
    """The public half of what stands in a file, be it public or private."""
    return load_private(path).public if b"PRIVATE KEY" in _read(path) else load_public(path)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise KeyFault(f"{path}: there is no such key; make one by: fedmt keys new") from None
    except OSError as error:
        raise KeyFault(f"{path}: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise KeyFault(f"{path}: is too large for a key")
    return content


def _refuse(path: Path, content: bytes, wanted: str, error: Exception) -> NoReturn:
    found = next((one for one in ("private", "public") if f"{one} KEY".upper().encode() in content), None)
    if found is not None and found != wanted:
        raise KeyFault(f"{path}: is a {found} key; a {wanted} one is wanted here") from error
    if b"ENCRYPTED" in content:
        raise KeyFault(f"{path}: has a passphrase, which fedmt cannot ask for") from error
    raise KeyFault(f"{path}: is no {wanted} key; allowed: the PEM file that `fedmt keys new` writes") from error


def wrap(secret: bytes, maker: Private, recipient: Public, bound: bytes) -> Wrapped:
    """`secret` for `recipient` alone, by `maker`; it opens only where `bound` is the same bytes again."""
    assert len(secret) == SECRET_BYTES
    fresh = generate()
    shared = _agree(fresh, recipient) + _agree(maker, recipient)
    key = _wrapping_key(shared, fresh.public, maker.public, recipient)
    # A key of its own for every wrap, so that one nonce will do for all of them.
    box = AESGCM(key).encrypt(bytes(12), secret, bound + recipient.fingerprint.encode())
    return Wrapped(maker.public.raw, recipient.fingerprint, fresh.public.raw, box)


def unwrap(wrapped: Wrapped, private: Private, makers: Collection[Public], bound: bytes) -> bytes:
    """The secret; `makers` are those whose fingerprints somebody has compared."""
    own, maker, fresh = private.public, Public(wrapped.maker), Public(wrapped.ephemeral)
    if wrapped.recipient != own.fingerprint:
        raise KeyFault(f"wrong key: it is wrapped for {wrapped.recipient}, and this is {own.fingerprint}")
    if maker not in makers:
        raise KeyFault(f"it was wrapped by {maker.fingerprint}, who is none of the members")
    shared = _agree(private, fresh) + _agree(private, maker)
    try:
        key = _wrapping_key(shared, fresh, maker, own)
        secret = AESGCM(key).decrypt(bytes(12), wrapped.box, bound + own.fingerprint.encode())
    except InvalidTag:
        raise KeyFault("the wrapped key was altered, or is of another session, quantiser or format") from None
    if len(secret) != SECRET_BYTES:
        raise KeyFault(f"the wrapped key has {len(secret)} bytes; allowed: {SECRET_BYTES}")
    return secret


def _agree(private: Private, public: Public) -> bytes:
    try:
        return private.key.exchange(X25519PublicKey.from_public_bytes(public.raw))
    except ValueError:  # a point of small order: the secret would be known to all
        raise KeyFault(f"{public.fingerprint} is no proper public key") from None


def _wrapping_key(shared: bytes, fresh: Public, maker: Public, recipient: Public) -> bytes:
    context = b"fedmt wrap 1" + fresh.raw + maker.raw + recipient.raw
    return HKDF(hashes.SHA256(), SECRET_BYTES, salt=None, info=context).derive(shared)
