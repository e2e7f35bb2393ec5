"""A site at work: Flower's SuperNode beside it, and this process, which answers what the SuperNode receives.

The engine stays in memory from one message to the next; nothing that comes with a run is executed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedmt.errors import CommandError, Failure
from fedmt.sites import processes
from fedmt.sites.settings import Site
from fedmt.sites.site import Answering
from fedmt.sites.supernode import LEFT

if TYPE_CHECKING:
    from fedmt.federation.flower import Door

__all__ = ["work"]


def work(folder: Path, site: Site, listen: Callable[[str], None]) -> None:
    """Until the process is interrupted; a Failure if the SuperNode ends."""
    from fedmt.federation import flower

    for path in (folder / "keys" / "node", folder / "secret"):
        if not path.is_file():
            raise CommandError(f"{path}: is not there; `fedmt site check {folder}` says what to mend")
    if site.certificate is not None and not Path(site.certificate).is_file():
        raise CommandError(f"{site.certificate}: is not there; it is certificates/ca.crt of the coordinator")
    log = folder / "state" / "supernode.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    door = flower.Door(f"127.0.0.1:{site.port}", (folder / "secret").read_bytes())
    answering = Answering(folder, site, _both(listen, folder / "site.log"))
    with log.open("ab") as file:
        # It has said goodbye, as far as it could: where it is refused for a minute, this process ends like it.
        while _beside(folder, site, door, answering, file, listen) == LEFT:
            listen(f"{site.name}: the connection broke off; Flower's SuperNode is started again")
    raise Failure(f"{site.name}: Flower's SuperNode has ended; {log} says why")


def _beside(
    folder: Path, site: Site, door: Door, answering: Answering, log: IO[bytes], listen: Callable[[str], None]
) -> int:
    """Answer what one SuperNode receives, until it ends; gives what it ended with."""
    from fedmt.federation import flower

    with processes.running(processes.supernode(folder, site), folder, log) as node:
        listen(f"{site.name}: {site.coordinator} is asked for work")
        ended = threading.Event()

        def watch() -> None:
            node.wait()
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        while not ended.is_set():
            try:
                flower.attend(door, answering, lambda: not ended.is_set())
            except flower.Unreachable:
                # It takes a moment to begin, and may be about to end.
                time.sleep(0.3)
        return node.wait()


def _both(listen: Callable[[str], None], path: Path) -> Callable[[str], None]:
    def tell(line: str) -> None:
        # On a full disk there is still the journal.
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        # Nor must one that is cut off, or full, keep an answer from leaving that stands in the audit already.
        with contextlib.suppress(OSError):
            listen(line)

    return tell
