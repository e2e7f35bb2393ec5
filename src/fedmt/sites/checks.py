"""What must hold before a site can take part, each tried for itself: what was found, and what would mend it.

Speaks to the coordinator's proxy as any program on the network could, and changes nothing there.
"""

from __future__ import annotations

import datetime
import http.client
import importlib.util
import os
import shutil
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from fedmt.corpus.silos import gather
from fedmt.errors import FedmtError
from fedmt.recipe import FilePublic, FileSilo, Recipe
from fedmt.sites import certificates
from fedmt.sites.settings import Site

__all__ = ["Finding", "check"]

LEAST_BYTES = 5 * 10**9
# Flower refuses what was signed longer ago than this.
MOST_SECONDS = 8.0
_SOON = datetime.timedelta(days=14)
_WAIT = 10.0


class Finding(NamedTuple):
    what: str
    good: bool
    words: str


class _Bad(Exception):
    """What is wrong, and what would mend it."""


def check(folder: Path, site: Site) -> Iterator[Finding]:
    tried: dict[str, Callable[[], str]] = {
        "program": _program,
        "keys": lambda: _keys(folder, site),
        "corpora": lambda: _corpora(site),
        "engines": lambda: _engines(folder),
        "disk": lambda: _disk(folder),
        "certificate": lambda: _certificate(site),
        "connection": lambda: _connection(site),
        "clock": lambda: _clock(site),
    }
    for what, attempt in tried.items():
        try:
            yield Finding(what, True, attempt())
        except (_Bad, FedmtError) as error:
            yield Finding(what, False, str(error))


def _program() -> str:
    if importlib.util.find_spec("flwr") is None:
        raise _Bad("Flower is not installed; mend: pip install 'fedmt[flower]'")
    return "Flower is installed"


def _keys(folder: Path, site: Site) -> str:
    for path in (folder / "keys" / "node", folder / "keys" / f"{site.name}.key", folder / "secret"):
        if not path.is_file():
            raise _Bad(f"{path} is not there; mend: put it back from a copy, or begin anew with `fedmt site init`")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise _Bad(f"{path} can be read by others; mend: chmod 600 {path}")
    return "there, and for nobody else to read"


def _corpora(site: Site) -> str:
    own = FileSilo.model_validate(site.model_dump(by_alias=True, include=set(FileSilo.model_fields)))
    # What is public does not matter here, but a recipe from nothing must name it.
    public = FilePublic.model_validate({"from": site.from_, "to": site.to, "train": own.train or own.data})
    recipe = Recipe.model_validate({"silos": [own], "public": public}).model_copy(update={"public": None})
    text = gather(recipe).silos[0]
    return f"{len(text.train):,} train, {len(text.dev):,} dev, {len(text.test):,} test pairs ({text.direction})"


def _engines(folder: Path) -> str:
    shelf = folder / "state" / "engines"
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        trial = shelf / f".{os.getpid()}.part"
        trial.write_bytes(b"fedmt")
        trial.unlink()
    except OSError as error:
        raise _Bad(f"{shelf} cannot be written: {error.strerror}; mend: chown or remount it") from None
    there = sum(path.is_dir() for path in shelf.iterdir())
    return f"{there} kept from earlier runs"


def _disk(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    if free < LEAST_BYTES:
        raise _Bad(f"{free / 1e9:.1f} GB are free; mend: make room for {LEAST_BYTES / 1e9:.0f} GB")
    return f"{free / 1e9:.0f} GB are free"


def _certificate(site: Site) -> str:
    if site.certificate is None:
        return "the system's authorities are trusted"
    path = Path(site.certificate)
    if not path.is_file():
        raise _Bad(f"{path} is not there; mend: get certificates/ca.crt from the coordinator and put it there")
    until = certificates.expires(path)
    if until < datetime.datetime.now(datetime.UTC) + _SOON:
        raise _Bad(f"{path} ends on {until:%Y-%m-%d}; mend: get a new one from the coordinator")
    return f"good until {until:%Y-%m-%d}"


def _answered(site: Site) -> http.client.HTTPResponse:
    """What the proxy answers to an empty message of a node: the SuperLink refuses it, and so is known to be there."""
    host, _, port = site.coordinator.rpartition(":")
    try:
        trusted = ssl.create_default_context(cafile=site.certificate)
    except OSError:
        raise _Bad(f"{site.certificate} cannot be read as certificates; mend: get it from the coordinator") from None
    connection = http.client.HTTPSConnection(host, int(port), timeout=_WAIT, context=trusted)
    with closing(connection):
        try:
            connection.request("POST", "/v1/fleet/activate-node", b"", {"content-type": "application/protobuf"})
            return connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            said = error.verify_message
            raise _Bad(f"{site.coordinator} shows another's certificate ({said}); mend: ask the coordinator") from None
        except socket.gaierror:
            raise _Bad(f"{host}: no such host; mend: `coordinator` in site.yaml") from None
        except (OSError, http.client.HTTPException) as error:
            said = " ".join(str(error).split())
            raise _Bad(f"{site.coordinator} does not answer ({said}); mend: firewall, or ask the coordinator") from None


def _connection(site: Site) -> str:
    status = _answered(site).status
    if status == 404:
        raise _Bad(f"{site.coordinator} lets nothing through to /v1/fleet/; mend: at the coordinator, its proxy")
    if status in (502, 503, 504):
        raise _Bad(f"{site.coordinator}: its SuperLink is not running; mend: at the coordinator")
    return f"{site.coordinator} answers"


def _clock(site: Site) -> str:
    told = _answered(site).headers.get("date")
    if told is None:
        return "the coordinator tells no time to compare with"
    apart = (datetime.datetime.now(datetime.UTC) - parsedate_to_datetime(told)).total_seconds()
    if abs(apart) > MOST_SECONDS:
        raise _Bad(f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the coordinator's; mend: run NTP")
    return f"within {max(1.0, abs(apart)):.0f} s of the coordinator's"
