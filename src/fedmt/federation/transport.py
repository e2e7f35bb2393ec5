"""How requests reach silos and replies come back. Knows nothing of what they mean."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from fedmt.federation.messages import Reply, Request
from fedmt.federation.silo import Silo

__all__ = ["Beside", "InProcess", "Transport"]


class Transport(Protocol):
    def silos(self) -> list[str]:
        """Who can be asked."""

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        """Send the requests, and give replies as they come, until all have come or `deadline` seconds are over.

        Replies that come after the deadline may be given by a later `ask`: it is for the caller to see which round
        they belong to.
        """


class InProcess:
    """Silos in this process, answering one after the other.

    Apart they would work at the same time, so each has the whole deadline for itself: a silo that took longer is late,
    and its reply is not given.
    """

    def __init__(self, silos: Iterable[Silo]) -> None:
        self._silos = {silo.name: silo for silo in silos}

    def silos(self) -> list[str]:
        return list(self._silos)

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        for request in requests:
            begun = time.monotonic()
            # The reply is given away at once: a second reference would keep its payload while the next silo works.
            answer = [self._silos[request.silo].answer(request)]
            if deadline is not None and time.monotonic() - begun > deadline:
                answer.clear()
            else:
                yield answer.pop()


class Beside:
    """Some silos here, the others elsewhere. The ones here answer first."""

    def __init__(self, elsewhere: Transport, here: InProcess) -> None:
        self._elsewhere, self._here = elsewhere, here

    def silos(self) -> list[str]:
        return [*self._elsewhere.silos(), *self._here.silos()]

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        own = set(self._here.silos())
        far = [request for request in requests if request.silo not in own]
        replies = self._elsewhere.ask(far, deadline) if far else iter(())
        yield from self._here.ask([request for request in requests if request.silo in own], deadline)
        yield from replies
