"""One question to many silos, with its consequences: the ledger, who is dropped and why, and the quorum.

Knows no round's meaning: `asking.py` brings the replies, whoever polls says what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmt.errors import QuorumError
from fedmt.events import Dropped, Listener, Travelled
from fedmt.exchange.ledger import Ledger, Totals
from fedmt.federation.asking import Asking
from fedmt.federation.messages import Reply, Request
from fedmt.federation.transport import Transport
from fedmt.recipe import Failures

__all__ = ["Poll"]


class Poll:
    """`own` is who is asked but is no silo elsewhere, the server itself: what it is sent crosses nothing."""

    def __init__(
        self,
        transport: Transport,
        failures: Failures,
        folder: Path | None,
        ledger: Ledger,
        listen: Listener,
        own: str | None = None,
    ) -> None:
        self._transport = transport
        self._failures = failures
        self._folder = folder
        self._ledger = ledger
        self._listen = listen
        self._own = own

    def __call__(
        self,
        requests: list[Request],
        down: Mapping[str, tuple[int, int]],
        read: Callable[[Reply], Any],
        take: Callable[[str, Any], None],
        up: Callable[[Any], tuple[int, int]],
        of: int | None = None,
        had: int = 0,
    ) -> None:
        """Ask, give what was read to `take` in the requests' order, name who was dropped, and hold the quorum.

        The quorum is one of `of` silos (none: of those asked), of whom so many need not be asked.
        """
        failures = self._failures
        first = requests[0] if requests else None
        if first is None:
            raise QuorumError("a federation needs a silo")
        of = len(requests) if of is None else of
        asking = Asking(requests, down, read, take, up, self._folder)
        asking.through(self._transport, failures.deadline)
        totals: dict[str, Totals] = {request.silo: Totals() for request in requests if request.silo != self._own}
        for entry in asking.entries():
            if entry.silo != self._own:
                self._ledger.write(entry)
                totals[entry.silo] += Totals.of(entry)
        for silo, reason in asking.dropped.items():
            self._listen(Dropped(first.model, silo, first.round, reason))
        for silo, total in totals.items():
            self._listen(Travelled(first.model, silo, first.round, *_figures(total), first.step))
        need = max(1, math.ceil(failures.quorum * of - 1e-9))
        if (have := had + len(requests) - len(asking.dropped)) < need:
            why = "; ".join(f"{silo}: {reason}" for silo, reason in asking.dropped.items())
            raise QuorumError(
                f"{first.model}, round {first.round}, {first.step}: {have} of {of} silos answered, "
                f"{need} are needed ({why})"
            )


def _figures(total: Totals) -> tuple[int, int, int, int]:
    return total.up_bytes, total.up_parameters, total.down_bytes, total.down_parameters
