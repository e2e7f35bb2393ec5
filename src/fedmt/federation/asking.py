"""One exchange with many silos: replies come in any order and are taken in the order of the requests.

A reply that comes before its turn waits on disk as its bytes. What is none of this exchange's (a late reply to an
earlier one, a second answer, a stranger's) is counted and put aside. Knows neither engines nor methods.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, Literal, TypeVar

from fedmt.errors import Refused
from fedmt.exchange.ledger import Entry
from fedmt.federation.messages import Reply, Request, size
from fedmt.federation.transport import Transport

__all__ = ["Asking"]

T = TypeVar("T")
Count = tuple[int, int]


class Asking(Generic[T]):
    """`read` makes a reply into a value or raises Refused (for one that waited, again when its turn comes); `take` gets
    the values in the requests' order.

    `down` and `up` say how many parameters and tensors a request and a value carry, for the ledger.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        down: Mapping[str, Count],
        read: Callable[[Reply], T],
        take: Callable[[str, T], None],
        up: Callable[[T], Count],
        folder: Path | None,
    ) -> None:
        self._requests = {request.silo: request for request in requests}
        self._down, self._read, self._take, self._up = down, read, take, up
        self._folder = folder
        self._waiting: dict[str, Reply | None] = {}
        self._turn = list(self._requests)
        self._strays: dict[str, str] = {}
        self._sent: dict[str, list[Entry]] = {silo: [] for silo in self._requests}
        self._reasons: dict[str, str] = {}

    @property
    def dropped(self) -> dict[str, str]:
        """Who gave nothing to take, and why; in the requests' order."""
        return {silo: self._reasons[silo] for silo in self._requests if silo in self._reasons}

    def entries(self) -> list[Entry]:
        """What travelled: each silo's request, then what came from it, in the requests' order."""
        return [entry for entries in self._sent.values() for entry in entries]

    def through(self, transport: Transport, deadline: float | None) -> None:
        there = set(transport.silos())
        asked = [request for silo, request in self._requests.items() if silo in there]
        for request in asked:
            self._sent[request.silo].append(_entry(request, "down", self._down[request.silo]))
        for reply in transport.ask(asked, deadline) if asked else ():
            self._receive(reply)
            # Or its payload would be kept while the transport brings the next.
            del reply
        late = "no reply" if deadline is None else f"no reply within {deadline:g} s"
        for silo in self._requests:
            if silo not in self._waiting:
                self._reasons[silo] = self._strays.get(silo, late) if silo in there else "not connected"
                self._waiting[silo] = None
        self._advance()

    def _receive(self, reply: Reply) -> None:
        request = self._requests.get(reply.silo)
        if request is None:
            return
        if reply.key != request.key or reply.silo in self._waiting:
            self._sent[reply.silo].append(_entry(reply, "up", (0, 0)))
            self._strays[reply.silo] = f"no reply but to {reply.model}, round {reply.round}, {reply.step}"
            return
        try:
            value = self._read(reply)
        except Refused as refused:
            self._reasons[reply.silo] = refused.reason
            self._sent[reply.silo].append(_entry(reply, "up", (0, 0)))
            self._waiting[reply.silo] = None
            self._advance()
            return
        self._sent[reply.silo].append(_entry(reply, "up", self._up(value)))
        if self._turn[0] == reply.silo:
            self._turn.pop(0)
            self._waiting[reply.silo] = None
            self._take(reply.silo, value)
            self._advance()
        else:
            self._waiting[reply.silo] = self._put_by(reply)

    def _advance(self) -> None:
        """Take all whose turn has come."""
        while self._turn and self._turn[0] in self._waiting:
            silo = self._turn.pop(0)
            reply = self._waiting[silo]
            self._waiting[silo] = None
            if reply is not None:
                self._take(silo, self._read(reply))

    def _put_by(self, reply: Reply) -> Reply:
        payload = memoryview(reply.payload)
        if not payload.nbytes:
            return reply
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        # Without a name: it goes with the process, however that ends.
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.write(payload)
            file.flush()
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return replace(reply, payload=memoryview(content))


def _entry(message: Request | Reply, direction: Literal["up", "down"], count: Count) -> Entry:
    return Entry(message.model, message.round, message.step, message.silo, direction, size(message), *count)
