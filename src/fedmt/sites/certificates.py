"""Keys and certificates: an authority and a server's certificate for the coordinator, a node's key for each site.

The authority signs one server and nobody else; sites get its certificate, and trust nothing else on that connection.
Knows no Flower, though the formats are those that it reads.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmt import files
from fedmt.errors import CommandError

__all__ = ["authority", "expires", "new_node_key", "new_secret", "private", "public_line", "server"]

_DAY = datetime.timedelta(days=1)
# One year for what stands on the network; the authority lives longer than the sites' patience with new ones.
_SERVER_DAYS, _AUTHORITY_DAYS = 397, 3650
_MOST_BYTES = 10_000


def private(path: Path, content: bytes) -> None:
    """A file that only its owner may read, from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def new_secret(path: Path) -> None:
    private(path, secrets.token_hex(32).encode())


def authority(folder: Path, name: str) -> None:
    """`ca.key` and `ca.crt`."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedmt authority of {name}"[:64])])
    made = (
        _builder(subject, subject, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private(folder / "ca.key", _pem(key))
    files.write_bytes(folder / "ca.crt", made.public_bytes(serialization.Encoding.PEM))


def server(folder: Path, hosts: list[str]) -> None:
    """`server.key` and `server.crt`, for these names and addresses, signed by the authority of the folder."""
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    made = (
        _builder(subject, issuer.subject, key.public_key(), _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    private(folder / "server.key", _pem(key))
    files.write_bytes(folder / "server.crt", made.public_bytes(serialization.Encoding.PEM))


def expires(path: Path) -> datetime.datetime:
    """When a certificate's time ends."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: is no certificate: {' '.join(str(error).split())[:200]}") from None


def new_node_key(path: Path) -> None:
    """A site's key for Flower's node authentication, in OpenSSH's format, and `.pub` beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    files.write_bytes(path.with_name(f"{path.name}.pub"), public + b"\n")


def public_line(text: str, where: str) -> str:
    """A node's public key as one line `ecdsa-sha2-… AAAA…`, checked."""
    line = " ".join(text.split()[:2])
    try:
        if len(text) > _MOST_BYTES or not isinstance(
            serialization.load_ssh_public_key(line.encode()), ec.EllipticCurvePublicKey
        ):
            raise ValueError("not an elliptic curve's")
    except (ValueError, UnsupportedAlgorithm) as error:
        said = " ".join(str(error).split())[:200]
        raise CommandError(f"{where}: is no node's public key, as keys/node.pub of a site is: {said}") from None
    return line


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Clocks differ.
        .not_valid_before(now - _DAY)
        .not_valid_after(now + days * _DAY)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
