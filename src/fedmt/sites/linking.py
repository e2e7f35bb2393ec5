"""The coordinator and its SuperLink: started, told who may come, and given a run that this process carries out."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from fedmt.errors import CommandError, Failure
from fedmt.sites import coordinator, processes
from fedmt.sites.coordinator import Coordinating

if TYPE_CHECKING:
    from fedmt.federation.flower import Door, Flower

__all__ = ["database", "linked", "start", "tell"]

_BEGIN = 120.0
_PAGE = 65536


def start(folder: Path, settings: Coordinating, listen: Callable[[str], None]) -> None:
    """Until the process is interrupted; a Failure if the SuperLink ends."""
    if _answers(settings):
        raise CommandError(f"{settings.address}: something runs there already; `inner` in coordinator.yaml is its port")
    log = folder / "state" / "superlink.log"
    database(folder)
    with log.open("ab") as file, processes.running(processes.superlink(folder, settings), folder, file) as process:
        until = time.monotonic() + _BEGIN
        while not _answers(settings):
            if process.poll() is not None or time.monotonic() > until:
                raise Failure(f"Flower's SuperLink did not begin; {log} says why")
            time.sleep(0.2)
        tell(folder, settings)
        there = ", ".join(coordinator.keys(folder)) or "nobody yet: fedmt coordinator register"
        listen(f"the SuperLink listens on {settings.address}; let in: {there}")
        process.wait()
        raise Failure(f"Flower's SuperLink has ended; {log} says why")


def database(folder: Path) -> None:
    """Where the SuperLink keeps what is on its way: a new one has the largest pages there are.

    Messages stand in it in parts of five megabytes, which pages of SQLite's usual 4 KiB make half of its work.
    """
    path = folder / "state" / "superlink.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    connection = sqlite3.connect(path)
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        # Written down now: the size of a page cannot be changed once there is something in one.
        connection.execute("VACUUM")
    finally:
        connection.close()


def tell(folder: Path, settings: Coordinating) -> bool:
    """Tell the SuperLink the sites' keys; whether it runs."""
    if not _answers(settings):
        return False
    from fedmt.federation import flower

    flower.register(_door(folder, settings), coordinator.keys(folder))
    return True


@contextmanager
def linked(folder: Path, settings: Coordinating, told: Mapping[str, str]) -> Iterator[Flower]:
    """The sites, reached for one run."""
    from fedmt.federation import flower

    if not _answers(settings):
        raise CommandError(f"{settings.address}: no SuperLink runs there; begin with: fedmt coordinator start {folder}")
    door = _door(folder, settings)
    flower.register(door, coordinator.keys(folder))
    with flower.session(door, Path(str(resources.files("fedmt") / "app")), told) as transport:
        yield transport


def _door(folder: Path, settings: Coordinating) -> Door:
    from fedmt.federation.flower import Door

    certificate = (folder / "certificates" / "ca.crt").read_bytes()
    return Door(settings.address, (folder / "secret").read_bytes(), certificate)


def _answers(settings: Coordinating) -> bool:
    host, _, port = settings.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            return True
    except OSError:
        return False
