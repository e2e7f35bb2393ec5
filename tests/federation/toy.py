"""A federation small enough to follow by hand: an engine of two tensors, and learners whose training is arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmt.choices import Selector
from fedmt.events import Event
from fedmt.exchange.ledger import Ledger
from fedmt.exchange.selector import Scene, select
from fedmt.federation.checkpoint import State
from fedmt.federation.coordinator import Coordinator
from fedmt.federation.course import Engines
from fedmt.federation.messages import Reply, Request
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess, Transport
from fedmt.federation.work import FitOrder, FitResult
from fedmt.place import Side
from fedmt.recipe import Recipe

Tensors = dict[str, Tensor]
SIDES: dict[str, Side] = {"a": "encoder", "b": "decoder", "c": "shared"}
DIGEST = 7


def recipe(**settings: Any) -> Recipe:
    return Recipe.model_validate({"silos": {"source": "toy"}, **settings})


def start() -> Tensors:
    return {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.tensor([0.5, -2.0]),
        "c": torch.ones(()),
    }


def drawn(selector: Selector, seed: int, round: int, who: str) -> list[str]:
    """The names of the tensors that go, where nothing but chance decides."""
    return list(select(selector, Scene(start(), start(), SIDES, seed, round, who), {})[0])


class Engine:
    """The one resident engine: its tensors are shared by all learners."""

    def __init__(self) -> None:
        self.tensors = {name: torch.full_like(tensor, torch.nan) for name, tensor in start().items()}


class Arithmetic:
    """Training is a few steps of t ← 0.9 t + g + momentum, with g from the silo's goal and a seeded generator.

    Like a real learner it has an optimiser state, random numbers, a position inside the fit, and a dev loss.
    """

    steps = 4

    def __init__(
        self, engine: Engine, goal: float, samples: int = 10, check: Callable[[str], None] | None = None
    ) -> None:
        self.samples = samples
        self.fits: list[FitOrder] = []
        self.states: list[State | None] = []
        self.received: list[Tensors] = []
        self.scored = 0
        self._engine = engine
        self._goal = goal
        self._check = check or (lambda _: None)

    def tensors(self) -> Mapping[str, Tensor]:
        return self._engine.tensors

    def shared(self) -> Sequence[str]:
        return list(self._engine.tensors)

    def side(self, name: str) -> Side:
        return SIDES[name]

    def base(self, tensors: Mapping[str, Tensor], digest: int) -> bool:
        self.load(tensors)
        return digest == DIGEST

    def judge(self, _batches: int, _seed: int, slope: bool) -> tuple[float | None, Mapping[str, Tensor]]:
        live = self._engine.tensors
        return self._loss(), ({name: 2 * (tensor - self._goal) for name, tensor in live.items()} if slope else {})

    def gradient(self, _batches: int | None) -> Mapping[Side, Tensor]:
        return {"encoder": torch.tensor([self._goal, 1.0]), "decoder": torch.tensor([1.0, self._goal])}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._engine.tensors[name].copy_(tensor)

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
        live = self._engine.tensors
        self.fits.append(order)
        self.states.append(state)
        self.received.append({name: tensor.clone() for name, tensor in live.items()})
        numbers: dict[str, Any] = {"total": 0, "loss": 0.0, "dev": self._loss()}
        moments = {name: torch.zeros_like(tensor) for name, tensor in live.items()}
        generator = torch.Generator().manual_seed(order.seed)
        begin = 0
        if state is not None:
            moments = {name: state.tensors[f"moment/{name}"].clone() for name in live}
            numbers["total"] = state.numbers["total"]
            if (at := state.numbers.get("step")) is not None:
                begin, numbers = at, {key: value for key, value in state.numbers.items() if key != "step"}
                self.load({name: state.tensors[f"weight/{name}"] for name in live})
                generator.set_state(state.tensors["random"])
        for step in range(begin, self.steps * order.epochs):
            self._check("step")
            for name, tensor in live.items():
                noise = torch.rand(tensor.shape, generator=generator)
                moments[name].mul_(0.5).add_(noise).add_(self._goal - tensor, alpha=0.1)
                tensor.add_(moments[name], alpha=0.3)
            numbers["total"] += 1
            numbers["loss"] += self._loss()
            weights = {f"weight/{name}": tensor for name, tensor in live.items()}
            self._check("before keep")
            keep(
                State(
                    {**self._moments(moments), **weights, "random": generator.get_state()},
                    {**numbers, "step": step + 1},
                )
            )
            self._check("after keep")
        result = FitResult(numbers["loss"], numbers["dev"], tokens=100, steps=numbers["total"], seconds=0.25)
        return result, State(self._moments(moments), {"total": numbers["total"]})

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:
        self._check("score")
        self.scored += 1
        counts = torch.tensor([len(model), len(set)], dtype=torch.int64)
        return {"counts": counts, "bleu": torch.tensor([self._loss()], dtype=torch.float64)}

    def _loss(self) -> float:
        return float(sum((tensor.double() - self._goal).square().sum() for tensor in self._engine.tensors.values()))

    @staticmethod
    def _moments(moments: Tensors) -> Tensors:
        return {f"moment/{name}": tensor for name, tensor in moments.items()}


class Federation:
    """Fresh objects over a folder, as after a restart of everything."""

    def __init__(
        self,
        folder: Path | None,
        settings: Recipe | None = None,
        goals: Sequence[float] = (1.0, 2.0, 4.0),
        samples: Sequence[int] | None = None,
        check: Callable[[str], None] | None = None,
        transport: Callable[[list[Silo]], Transport] | None = None,
        run: str = "run-1",
    ) -> None:
        self.recipe = settings or recipe()
        self.events: list[Event] = []
        engine = Engine()
        self.learners = [
            Arithmetic(engine, goal, (samples or range(10, 99))[index], check) for index, goal in enumerate(goals)
        ]
        self.names = [f"silo-{index}" for index in range(len(goals))]
        self.silos = [
            Silo(name, learner, folder / "silos" / name if folder else None, self.recipe)
            for name, learner in zip(self.names, self.learners, strict=True)
        ]
        self.ledger = Ledger(folder / "ledger.jsonl" if folder else None)
        self.transport = transport(self.silos) if transport else InProcess(self.silos)
        rounds = folder / "rounds" if folder else None
        self.coordinator = Coordinator(run, self.recipe, self.transport, rounds, self.ledger, self.events.append)

    def train(self, model: str = "federated", rounds: int = 3, begin: Tensors | None = None) -> Tensors:
        return dict(self.engines(model, rounds, begin)[self.names[0]])

    def engines(self, model: str = "federated", rounds: int = 3, begin: Tensors | None = None) -> Engines:
        return self.coordinator.train(model, begin or start(), self.names, rounds, epochs=1)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Meddling:
    """A transport that lets a function change what comes back from each `ask`."""

    def __init__(self, silos: Iterable[Silo], meddle: Callable[[list[Reply]], Iterable[Reply]]) -> None:
        self._inner = InProcess(silos)
        self._meddle = meddle

    def silos(self) -> list[str]:
        return self._inner.silos()

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        yield from self._meddle(list(self._inner.ask(requests, deadline)))


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(bits(one[name]) == bits(other[name]) for name in one)


def bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.contiguous().numpy().tobytes()
