"""Keys stay private and are never written over; fingerprints are stable; a wrapped secret opens for one silo alone."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedmt.memory import keys
from fedmt.memory.keys import KeyFault

SECRET, BOUND = bytes(range(32)), b"session"


def test_a_new_pair_is_private_and_its_halves_fit(tmp_path: Path) -> None:
    private, public = keys.new(tmp_path / "keys", "north")
    assert (private.name, public.name) == ("north.key", "north.pub")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert keys.load_private(private).public == keys.load_public(public)
    assert keys.load_either(private) == keys.load_either(public)
    assert sorted(path.name for path in private.parent.iterdir()) == ["north.key", "north.pub"]
    other, _ = keys.new(tmp_path / "keys", "south")
    assert keys.load_private(other).public != keys.load_public(public)


@pytest.mark.parametrize("left", ["north.key", "north.pub"])
def test_a_key_is_never_written_over(tmp_path: Path, left: str) -> None:
    for path in keys.new(tmp_path, "north"):
        if path.name != left:
            path.unlink()
    before = (tmp_path / left).read_bytes()
    with pytest.raises(KeyFault, match="there is a key already"):
        keys.new(tmp_path, "north")
    assert [path.name for path in tmp_path.iterdir()] == [left]
    assert (tmp_path / left).read_bytes() == before


def test_not_even_when_another_process_is_quicker(tmp_path: Path) -> None:
    (tmp_path / "a.key").write_text("somebody's")
    with pytest.raises(KeyFault, match="there is a key already"):
        keys._write_private(tmp_path / "a.key", b"ours")
    assert (tmp_path / "a.key").read_text() == "somebody's"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_fingerprint_is_stable() -> None:
    assert keys.Public(bytes(32)).fingerprint == keys.Public(bytes(32)).fingerprint == "cwz3-xn6q-jx7f-hyoo-7kq4-f4js"
    assert keys.Public(bytes(range(32))).fingerprint == "r7v4-jbck-zemt-jn22-yz63-7atu"


def test_a_private_key_does_not_show_itself() -> None:
    made = keys.generate()
    assert repr(made) == f"Private({made.public.fingerprint})"
    raw = made.key.private_bytes_raw()
    assert raw.hex() not in repr(made)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is no private key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is no private key"),
        (b"\x00" * 20_000, "too large"),
    ],
)
def test_what_is_no_key_is_said_to_be_none(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "a.key").write_bytes(content)
    with pytest.raises(KeyFault, match=told) as caught:
        keys.load_private(tmp_path / "a.key")
    assert "\n" not in str(caught.value)
    with pytest.raises(KeyFault):
        keys.load_public(tmp_path / "a.key")
    with pytest.raises(KeyFault):
        keys.load_either(tmp_path / "a.key")


def test_keys_of_the_wrong_sort_are_named(tmp_path: Path) -> None:
    private, public = keys.new(tmp_path)
    with pytest.raises(KeyFault, match="is a public key; a private one is wanted"):
        keys.load_private(public)
    with pytest.raises(KeyFault, match="is a private key; a public one is wanted"):
        keys.load_public(private)
    with pytest.raises(KeyFault, match="there is no such key"):
        keys.load_public(tmp_path / "gone.pub")
    with pytest.raises(KeyFault, match="directory"):
        keys.load_public(tmp_path)
    private.chmod(0o640)
    with pytest.raises(KeyFault, match=r"others may read this private key \(mode 0640\)"):
        keys.load_private(private)
    with pytest.raises(KeyFault, match="no name for a key"):
        keys.new(tmp_path, "../a")


def test_keys_of_another_kind_or_with_a_passphrase_are_refused(tmp_path: Path) -> None:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "a").write_bytes(other.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    with pytest.raises(KeyFault, match="of another kind"):
        keys.load_private(tmp_path / "a")
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "b").write_bytes(other.public_key().public_bytes(pem, spki))
    with pytest.raises(KeyFault, match="of another kind"):
        keys.load_public(tmp_path / "b")
    (tmp_path / "c").write_bytes(
        keys.generate().key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"word"))
    )
    with pytest.raises(KeyFault, match="passphrase"):
        keys.load_private(tmp_path / "c")


def test_a_wrapped_secret_opens_for_its_recipient_alone() -> None:
    maker, silo, other = (keys.generate() for _ in range(3))
    wrapped = keys.wrap(SECRET, maker, silo.public, BOUND)
    assert keys.unwrap(wrapped, silo, [maker.public], BOUND) == SECRET
    assert SECRET not in wrapped.box
    with pytest.raises(KeyFault, match="wrong key"):
        keys.unwrap(wrapped, other, [maker.public], BOUND)
    renamed = dataclasses.replace(wrapped, recipient=other.public.fingerprint)
    with pytest.raises(KeyFault, match="altered"):
        keys.unwrap(renamed, other, [maker.public], BOUND)
    with pytest.raises(KeyFault, match="another session"):
        keys.unwrap(wrapped, silo, [maker.public], b"another")


def test_no_two_wraps_are_alike() -> None:
    maker, silo = keys.generate(), keys.generate()
    one, two = (keys.wrap(SECRET, maker, silo.public, BOUND) for _ in range(2))
    assert one.ephemeral != two.ephemeral
    assert one.box != two.box


def test_the_server_cannot_slip_in_a_secret_of_its_own() -> None:
    """It knows the public keys of all; it has no private key of a member."""
    maker, silo, server = (keys.generate() for _ in range(3))
    slipped = keys.wrap(bytes(32), server, silo.public, BOUND)
    with pytest.raises(KeyFault, match="none of the members"):
        keys.unwrap(slipped, silo, [maker.public], BOUND)
    posing = dataclasses.replace(slipped, maker=maker.public.raw)
    with pytest.raises(KeyFault, match="altered"):
        keys.unwrap(posing, silo, [maker.public], BOUND)


@pytest.mark.parametrize("part", ["maker", "ephemeral", "box"])
def test_every_bit_of_a_wrap_counts(part: str) -> None:
    maker, silo = keys.generate(), keys.generate()
    wrapped = keys.wrap(SECRET, maker, silo.public, BOUND)
    old: bytes = getattr(wrapped, part)
    for bit in range(8 * len(old)):
        flipped = bytearray(old)
        flipped[bit // 8] ^= 1 << bit % 8
        other = dataclasses.replace(wrapped, **{part: bytes(flipped)})  # type: ignore[arg-type]
        with pytest.raises(KeyFault):
            keys.unwrap(other, silo, [maker.public], BOUND)


def test_a_point_that_would_make_the_secret_known_to_all_is_refused() -> None:
    maker, silo = keys.generate(), keys.generate()
    with pytest.raises(KeyFault, match="no proper public key"):
        keys.wrap(SECRET, maker, keys.Public(bytes(32)), BOUND)
    wrapped = dataclasses.replace(keys.wrap(SECRET, maker, silo.public, BOUND), ephemeral=bytes(32))
    with pytest.raises(KeyFault, match="no proper public key"):
        keys.unwrap(wrapped, silo, [maker.public], BOUND)
