"""Flower's programs as fedmt starts them: which, with which flags, in which surroundings.

Telemetry and the search for newer versions are off, and no program installs what a run asks for. Knows no message.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedmt.errors import CommandError
from fedmt.sites.coordinator import Coordinating
from fedmt.sites.settings import Site

__all__ = ["running", "superlink", "supernode", "surroundings"]


def surroundings(folder: Path) -> dict[str, str]:
    """What Flower reads from the environment; it keeps what it keeps in the folder's own state."""
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(folder / "state" / "flower"),
    }


def superlink(folder: Path, settings: Coordinating) -> list[str]:
    """On loopback only: what the network may reach of it goes through the proxy."""
    certificates = folder / "certificates"
    return [
        _program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(settings.inner)),
        *("--ssl-certfile", str(certificates / "server.crt")),
        *("--ssl-keyfile", str(certificates / "server.key")),
        *("--ssl-ca-certfile", str(certificates / "ca.crt")),
        "--enable-supernode-auth",
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(folder / "secret")),
        *("--database", str(folder / "state" / "superlink.db")),
        "--disable-runtime-dependency-installation",
    ]


def supernode(folder: Path, site: Site) -> list[str]:
    """Its messages are answered by this program, not by processes of Flower's: hence `process`, and the secret."""
    certificate = [] if site.certificate is None else ["--root-certificates", site.certificate]
    return [
        # -P: nothing in the folder it is started in is taken for a module.
        *(sys.executable, "-P", "-m", "fedmt.sites.supernode"),
        *("--superlink", site.coordinator, *certificate),
        *("--auth-supernode-private-key", str(folder / "keys" / "node")),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(folder / "secret")),
        *("--host", "127.0.0.1", "--port", str(site.port)),
        *("--node-config", f'folder="{folder}"'),
    ]


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise CommandError(f"{name} is not installed; sites are reached by Flower: pip install 'fedmt[flower]'")
    return found


def _end_with_us() -> None:
    """A program that outlived us would hold its port, and its node's name, against the next."""
    # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)


@contextmanager
def running(command: Sequence[str], folder: Path, log: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The program while the block lasts; afterwards it is asked to end, and then made to."""
    # Threads of ours must not be in the middle of anything here: callers start programs before them.
    process = subprocess.Popen(
        command,
        env=surroundings(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        preexec_fn=_end_with_us if sys.platform == "linux" else None,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
