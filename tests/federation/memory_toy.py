"""A federation of memories small enough to look into: learners whose records are drawn, not computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmt.errors import Failure
from fedmt.events import Event
from fedmt.exchange import codec
from fedmt.exchange.ledger import Ledger
from fedmt.federation.keeper import Keeper
from fedmt.federation.memories import Memories, Share
from fedmt.federation.messages import Reply, Request, wire
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess, Transport
from fedmt.federation.work import Written
from fedmt.memory import keys, quantise
from fedmt.memory.adaptive import Adaptive
from fedmt.memory.datastore import Layout, Records
from fedmt.memory.index import Index
from fedmt.memory.keys import Private, Ring
from fedmt.memory.quantise import Quantiser
from fedmt.memory.retrieve import Retrieval, Tuned
from fedmt.recipe import Memory, Recipe
from tests.federation.toy import Arithmetic, Engine, recipe, start

WIDTH, VOCABULARY = 16, 50
NAMES = ("court", "clinic", "agency")


def settings(**memory: Any) -> Recipe:
    made: Recipe = recipe(memory={"code_bytes": 4, "projection": "none", "lists": 4, "sample": 400, **memory})
    return made


@functools.cache
def quantiser(seed: int = 0) -> Quantiser:
    states = np.random.default_rng(seed).standard_normal((400, WIDTH)).astype(np.float32)
    return quantise.train([states], Memory(code_bytes=4, projection="none", lists=4, sample=400), 1)


class Writer(Arithmetic):
    """`drawn` are its records: random bytes, which no chance makes twice."""

    direction = "de-en"
    vocabulary_size = VOCABULARY

    def __init__(self, engine: Engine, seed: int, count: int, dev: int = 5) -> None:
        super().__init__(engine, float(seed))
        self.seed, self.count, self.dev_pairs = seed, count, dev
        self.asked = 0
        self.recited: list[tuple[int, float]] = []
        self.held: dict[str, Tensor] = {}

    def drawn(self, quantiser: Quantiser) -> NDArray[np.uint8]:
        random = np.random.default_rng(self.seed)
        codes = random.integers(0, 256, (self.count, quantiser.code_bytes), dtype=np.uint8)
        lists = random.integers(0, quantiser.list_count, self.count, dtype=np.int32)
        return Layout.of(quantiser).pack(lists, codes, random.integers(0, VOCABULARY, self.count, dtype=np.int32))

    def records(self, quantiser: Quantiser) -> Written:
        self.asked += 1
        self.held = {name: tensor.clone() for name, tensor in self.tensors().items()}
        whole = self.drawn(quantiser)
        return Written(iter([whole[:2], whole[2:]]), lambda: 0)

    def tune(self, index: Index, seed: int) -> Tuned:
        if not self.dev_pairs:
            raise Failure("too few")
        adaptive = Adaptive.fixed(4, WIDTH, {0: 0.5, 4: 0.5}, float(self.seed), 2)
        return Tuned(adaptive, len(index) + seed, 3.0, 2.0, 0.5)

    def recite(self, _model: str, memory: Retrieval) -> Mapping[str, Tensor]:
        self.recited.append((len(memory.index), memory.adaptive.temperature))
        return {"bleu": torch.tensor([float(len(memory.index))], dtype=torch.float64)}


class Federation:
    """Fresh objects over a folder, as after a restart of everything; keys are kept in it."""

    def __init__(
        self,
        folder: Path,
        plan: Recipe | None = None,
        names: Sequence[str] = NAMES,
        transport: Callable[[list[Silo]], Transport] | None = None,
        known: Callable[[str, str], bool] = lambda *_: True,
        run: str = "run-1",
        dev: Sequence[int] = (5, 6, 7),
    ) -> None:
        self.folder, self.plan, self.names = folder, plan or settings(), list(names)
        self.events: list[Event] = []
        engine = Engine()
        self.writers = {name: Writer(engine, place + 1, 30 + 7 * place, dev[place]) for place, name in enumerate(names)}
        self.private = {name: key(folder, name) for name in names}
        self.keepers: dict[str, Keeper] = {}
        silos = []
        for name, writer in self.writers.items():
            members = {other: self.private[other].public for other in names if known(name, other)}
            self.keepers[name] = Keeper(
                name, writer, folder / "silos" / name, self.plan, Ring(self.private[name], members)
            )
            silos.append(Silo(name, writer, folder / "silos" / name, self.plan, self.keepers[name]))
        self.transport = transport(silos) if transport else InProcess(silos)
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.server = folder / "server"
        ways = {name: writer.direction for name, writer in self.writers.items()}
        self.memories = Memories(
            run, "federated", self.plan, self.transport, self.server, self.ledger, self.events.append, ways
        )
        self.run = run
        self.quantiser = quantiser()

    def share(self, members: Sequence[str] | None = None, **changes: Any) -> dict[str, str]:
        engine = codec.encode(start(), self.plan.codec)
        share = Share(changes.get("quantiser", self.quantiser), engine, (9, 3))
        return self.memories.share(share, members or self.names)

    def has(self, name: str) -> list[bytes]:
        """What a silo ends with: records as bytes, in some order that means nothing."""
        house = self.keepers[name].house(self.run, "federated")
        records = Records.open(house / "records", self.quantiser)
        return sorted(bytes(row) for part in records.parts() for row in part)

    def written(self, *names: str) -> list[bytes]:
        return sorted(bytes(row) for name in names for row in self.writers[name].drawn(self.quantiser))

    def asked(self) -> dict[str, int]:
        return {name: writer.asked for name, writer in self.writers.items()}


def key(folder: Path, name: str) -> Private:
    place = folder / "keys" / name
    if not (place / "silo.key").exists():
        keys.new(place)
    return keys.load_private(place / "silo.key")


class Counting:
    """Adds up what crosses, as bytes on a wire; may change requests and replies on their way."""

    def __init__(
        self,
        silos: Iterable[Silo],
        down: Callable[[Request], Request] = lambda request: request,
        up: Callable[[Reply], Reply] = lambda reply: reply,
    ) -> None:
        self._inner, self._down, self._up = InProcess(silos), down, up
        self.tape: list[bytes] = []

    def silos(self) -> list[str]:
        return self._inner.silos()

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        for request in requests:
            self.tape.append(wire(request))
            for reply in self._inner.ask([self._down(request)], deadline):
                answered = self._up(reply)
                self.tape.append(wire(answered))
                yield answered
