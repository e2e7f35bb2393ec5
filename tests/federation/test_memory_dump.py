"""The server's process, read from outside: no record in the open, no key of the records, anywhere in its memory."""

from __future__ import annotations

import multiprocessing
import secrets
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fedmt.exchange import codec
from fedmt.exchange.ledger import Ledger
from fedmt.federation.memories import Memories, Share
from fedmt.federation.messages import Reply, Request, unwire, wire
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess, Transport
from fedmt.memory.quantise import Quantiser
from fedmt.memory.seal import Invitation, enter
from tests.federation.memory_toy import NAMES, Federation, settings
from tests.federation.toy import start


class Piped:
    """Silos at the other end of a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def silos(self) -> list[str]:
        return list(NAMES)

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:  # noqa: ARG002
        for request in requests:
            self._pipe.send_bytes(wire(request))
            reply = unwire(self._pipe.recv_bytes())
            assert isinstance(reply, Reply)
            yield reply


def serve(folder: str, pipe: Connection) -> None:
    """The server, in a process of its own; it stays, holding all that it has, until it is let go."""
    control = pipe.recv_bytes()
    place = Path(folder)
    transport: Transport = Piped(pipe)
    ways = dict.fromkeys(NAMES, "de-en")
    ledger = Ledger(place / "ledger.jsonl")
    memories = Memories("run-1", "federated", settings(), transport, place / "server", ledger, lambda _: None, ways)
    memories.share(Share(Quantiser.load(place), codec.encode(start(), settings().codec), (9, 3)), NAMES)
    memories.recite(NAMES)
    pipe.send_bytes(b"done")
    pipe.recv_bytes()
    assert control


def dumped(process: int) -> bytes:
    """All that the process has written to in its memory."""
    parts = []
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            where, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            first, last = (int(number, 16) for number in where.split("-"))
            try:
                memory.seek(first)
                parts.append(memory.read(last - first))
            except (OSError, ValueError, OverflowError):
                continue  # what the kernel keeps for itself
    return b"".join(parts)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_servers_memory_holds_no_record_and_no_key(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    made.quantiser.save(tmp_path)
    silos = InProcess(
        Silo(name, made.writers[name], tmp_path / "silos" / name, made.plan, made.keepers[name]) for name in NAMES
    )
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(str(tmp_path), there))
    server.start()
    control = secrets.token_bytes(24)
    here.send_bytes(control)
    sealed: list[bytes] = []
    try:
        while (content := here.recv_bytes()) != b"done":
            request = unwire(content)
            assert isinstance(request, Request)
            reply = next(silos.ask([request]))
            if reply.step == "remember":
                sealed.append(bytes(memoryview(reply.payload)[-100:-60]))
            here.send_bytes(wire(reply))
        assert server.pid is not None
        whole = dumped(server.pid)
        here.send_bytes(b"go")
        server.join(30)
    finally:
        server.kill()
    assert server.exitcode == 0
    # What it does hold is found: the search would find the rest.
    assert control in whole
    records = made.written(*NAMES)
    # A look through so much memory takes a second: three of each silo stand for all.
    canaries = [record for name in NAMES for record in made.written(name)[:3]]
    assert [record for record in canaries if record in whole] == []
    invitation = Invitation.decode((tmp_path / "silos/court/memory/run-1/federated/invitation").read_bytes())
    members = {name: key.public for name, key in made.private.items()}
    content_key = enter(invitation, made.private["clinic"], members, made.quantiser.hash, invitation.session.format)
    for secret in (content_key._secret, *(key.key.private_bytes_raw() for key in made.private.values())):
        assert secret not in whole
    assert made.has("clinic") == records
    assert len(sealed) == len(NAMES)
