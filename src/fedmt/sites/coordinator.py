"""A coordinator's folder: its settings, which sites' keys it knows, and the files by which it is put on the network.

Knows no run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedmt import files
from fedmt.choices import Frozen
from fedmt.errors import CommandError
from fedmt.sites import certificates, paper
from fedmt.sites.settings import read_typed

__all__ = ["Coordinating", "create", "keys", "learn", "read"]

INNER = 9093
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Coordinating(Frozen):
    """`coordinator.yaml`."""

    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$", description="by which sites reach it")]
    port: Annotated[int, Field(ge=1, le=65535)] = Field(443, description="of the proxy, that sites connect to")
    inner: Annotated[int, Field(ge=1, le=65535)] = Field(INNER, description="of the SuperLink, on this machine alone")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.inner}"


def read(folder: Path) -> Coordinating:
    return read_typed(folder / "coordinator.yaml", Coordinating)


def create(folder: Path, settings: Coordinating) -> None:
    """A new folder, whole: nothing in it is ever written over, for sites trust what is in it."""
    if (folder / "coordinator.yaml").exists():
        raise CommandError(f"{folder}: is a coordinator's folder already")
    folder = folder.resolve()
    inside = folder / "certificates"
    certificates.authority(inside, settings.host)
    certificates.server(inside, [settings.host])
    certificates.new_secret(folder / "secret")
    for name in ("sites", "state", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in paper.coordinator(folder, settings.host, settings.port, settings.inner).items():
        files.write_text(folder / name, text)


def learn(folder: Path, name: str, key: str) -> None:
    """Keep a site's public key. Another key for a name that is known is refused: it may be another's."""
    if not _NAME.fullmatch(name):
        raise CommandError(f"{name!r:.80}: is no site's name; allowed: up to 64 letters, digits, '.', '_' and '-'")
    line = certificates.public_line(key, name)
    path = folder / "sites" / f"{name}.pub"
    known = keys(folder)
    if name in known and known[name] != line:
        raise CommandError(f"{name}: has another key already; ask {name} by another way, then remove {path}")
    if other := next((one for one, kept in known.items() if kept == line and one != name), None):
        raise CommandError(f"{name}: this is the key of {other}; each site has its own")
    files.write_text(path, f"{line}\n")


def keys(folder: Path) -> dict[str, str]:
    found = sorted((folder / "sites").glob("*.pub"))
    return {path.stem: certificates.public_line(path.read_text(encoding="utf-8"), str(path)) for path in found}
