"""The coordinator's side of sites: who is there and how much text each has, and a welcome before anything else.

`Guests` is a transport over a transport. A site that has not been welcomed in this process is, before its first
request; one that has forgotten the run is welcomed again. So a site may come between rounds, or lose its disk. Knows
no network.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedmt import files
from fedmt.engine.engine import Engine
from fedmt.engine.trainer import Past
from fedmt.errors import QuorumError
from fedmt.events import Listener, Note
from fedmt.federation.messages import Reply, Request, reply_to, size
from fedmt.federation.transport import Transport
from fedmt.federation.work import because
from fedmt.recipe import FilePublic, Recipe, Site, SitesSilos
from fedmt.report.folder import Facts
from fedmt.sites import greeting
from fedmt.sites.greeting import HELLO, WELCOME, Welcome

__all__ = ["Guests", "told"]

MODEL = "federated"


def told(recipe: Recipe) -> str:
    """The recipe as sites are told it: JSON, without the places of the server's own files."""
    public = recipe.public
    if isinstance(public, FilePublic):
        named = {key: getattr(public, key) for key in ("data", "train", "dev", "test")}
        short = {key: [Path(name).name for name in found] for key, found in named.items() if found is not None}
        recipe = recipe.model_copy(update={"public": public.model_copy(update=short)})
    return json.dumps(recipe.model_dump(mode="json", by_alias=True), separators=(",", ":"), sort_keys=True)


class Guests:
    """`run` names the run in the greetings. `kept`: where the sites' figures are written down. `patience`: seconds that
    sites are waited for where too few are there for the quorum."""

    def __init__(
        self,
        transport: Transport,
        recipe: Recipe,
        run: str,
        kept: Path,
        listen: Listener,
        patience: float = 0.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        assert isinstance(recipe.silos, SitesSilos)
        self._transport = transport
        self._recipe = recipe
        self._sites: Mapping[str, Site] = {site.name: site for site in recipe.silos.list}
        self._run = run
        self._kept = kept
        self._listen = listen
        self._patience = patience
        self._pause = pause
        self._welcome: Welcome | None = None
        self._payload = memoryview(b"")
        self._welcomed: set[str] = set()

    # ── hello ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def facts(self, wait: float | None) -> list[Facts]:
        """What each site of the recipe says of its text; of one that is not there, what it said last, or nothing.

        Waits so many seconds for all of them to be connected, and then for as many as the quorum needs.
        """
        until = None if wait is None else time.monotonic() + wait
        told_ = 0.0
        while missing := sorted(self._sites.keys() - set(self._transport.silos())):
            if until is not None and time.monotonic() > until:
                break
            if time.monotonic() - told_ > 30:
                self._listen(Note(f"waiting for {', '.join(missing)}"))
                told_ = time.monotonic()
            self._pause(1.0)
        known = files.read_json(self._kept) if self._kept.exists() else {}
        reasons = dict.fromkeys(missing, "not connected")
        here = [name for name in self._sites if name not in reasons]
        requests = [Request(self._run, MODEL, 0, HELLO, name) for name in here]
        for reply in self._transport.ask(requests, self._recipe.failures.deadline) if requests else ():
            if reply.step != HELLO or reply.run != self._run or reply.silo not in here:
                continue
            if reply.refused is not None:
                reasons[reply.silo] = because(reply.refused)
            else:
                known[reply.silo] = self._fact(reply)
        files.write_json(self._kept, known)
        for name, reason in reasons.items():
            self._listen(Note(f"{name}: {reason}"))
        need = self._need()
        if (have := len(self._sites) - len(reasons)) < need:
            why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise QuorumError(f"hello: {have} of {len(self._sites)} sites take part, {need} are needed ({why})")
        empty = {"train": 0, "dev": 0, "test": 0, "dropped": {}}
        return [Facts(name, f"{site.from_}-{site.to}", **known.get(name, empty)) for name, site in self._sites.items()]

    def _fact(self, reply: Reply) -> dict[str, object]:
        counts = {name: max(0, int(value)) for name, value in reply.numbers.items()}
        dropped = {
            name.removeprefix("dropped."): count for name, count in counts.items() if name.startswith("dropped.")
        }
        return {**{key: counts.get(key, 0) for key in ("train", "dev", "test")}, "dropped": dropped}

    # ── welcome ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def welcome(self, engine: Engine, past: Past, named: bool) -> None:
        """From now on sites may be asked about this engine."""
        self._welcome = Welcome(greeting.files_of(engine), engine.hash, named, past)
        self._payload = self._welcome.payload()
        self._welcomed.clear()

    def silos(self) -> list[str]:
        """Who is there. A step that would have too few is not begun at once: a site that is started again takes more
        than a minute to be back."""
        until = time.monotonic() + self._patience
        while len(there := [name for name in self._transport.silos() if name in self._sites]) < self._need():
            if time.monotonic() > until:
                break
            self._pause(1.0)
        return there

    def _need(self) -> int:
        return max(1, math.ceil(self._recipe.failures.quorum * len(self._sites) - 1e-9))

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        begun = time.monotonic()

        def left() -> float | None:
            return None if deadline is None else max(0.0, deadline - (time.monotonic() - begun))

        ready, again = [], dict[str, Request]()
        refused = yield from self._greet([request.silo for request in requests], left())
        for request in requests:
            if request.silo in refused:
                yield reply_to(request, refused=refused[request.silo])
            elif request.silo in self._welcomed:
                ready.append(request)
        asked = {request.silo: request for request in ready}
        for reply in self._transport.ask(ready, left()) if ready else ():
            mine = asked.get(reply.silo)
            if mine is not None and reply.refused == WELCOME and reply.key == mine.key:
                self._welcomed.discard(reply.silo)
                again[reply.silo] = mine
            elif reply.step not in (HELLO, WELCOME):
                yield reply
            # Or its payload would be kept while the transport brings the next.
            del reply
        if again:
            refused = yield from self._greet(list(again), left())
            ready = [request for name, request in again.items() if name in self._welcomed]
            yield from (reply_to(again[name], refused=reason) for name, reason in refused.items())
            yield from self._transport.ask(ready, left()) if ready else ()

    def _greet(self, names: Sequence[str], deadline: float | None) -> Generator[Reply, None, dict[str, str]]:
        """Welcome those who are not yet; gives who refused, and why. Replies to earlier requests are passed on."""
        assert self._welcome is not None, "there is no engine to ask about yet"
        refused: dict[str, str] = {}
        numbers = self._welcome.numbers()
        strangers = [name for name in names if name not in self._welcomed]
        requests = [Request(self._run, MODEL, 0, WELCOME, name, self._payload, numbers) for name in strangers]
        for reply in self._transport.ask(requests, deadline) if requests else ():
            if reply.step == WELCOME and reply.run == self._run and reply.silo in strangers:
                if reply.refused is not None:
                    refused[reply.silo] = reply.refused
                else:
                    self._welcomed.add(reply.silo)
            elif reply.step != HELLO:
                yield reply
        if requests:
            amount = size(replace(requests[0], payload=self._payload))
            self._listen(Note(f"welcomed {', '.join(strangers)}: {amount} bytes each"))
        return refused
