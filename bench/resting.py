"""fedmt's two programs across sites, with an engine of random weights that nobody trains.

    python bench/resting.py site FOLDER
    python bench/resting.py coordinator FOLDER TURNS SILOS ROUNDS

`site` is `fedmt site run` but for the engine: its SuperNode, its consent, its audit, its silo that writes down what it
answers. `coordinator` is the rounds of `fedmt coordinator run`: `Coordinator` over the `Flower` transport, everything
on disk. After each round it leaves `done-N` in TURNS and waits for `go-N`; at its end, its peak memory in `peak`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from overhead import engine
from torch import Tensor

from fedmt.engine import device
from fedmt.events import Event
from fedmt.exchange.ledger import Ledger
from fedmt.federation.checkpoint import State
from fedmt.federation.coordinator import Coordinator
from fedmt.federation.silo import Silo
from fedmt.federation.work import FitOrder, FitResult
from fedmt.recipe import Compute, Recipe
from fedmt.sites import coordinator, linking, runs, settings, work
from fedmt.sites.site import Answering

__all__ = ["name", "peak", "recipe"]


class Resting:
    """A learner that does not train. But weights that came back as they went would be known to the server already,
    and not be sent: so each is scaled by a little of the silo's own."""

    def __init__(self, live: Mapping[str, Tensor], number: int) -> None:
        self._live = live
        self._number = number
        self.samples = 100 + number

    def tensors(self) -> Mapping[str, Tensor]:
        return self._live

    def shared(self) -> list[str]:
        return list(self._live)

    def side(self, name: str) -> str:
        return "encoder" if name.startswith("encoder.") else "decoder" if name.startswith("decoder.") else "shared"

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._live[name].copy_(tensor)

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:  # noqa: ARG002
        for tensor in self._live.values():
            tensor.mul_(1 + 1e-4 * (self._number + 1))
        return FitResult(0.0, None, 0, 0, 0.0), State()


class Awake(Answering):
    """A site that answers with that learner, of any run, without a welcome."""

    _resting: Silo | None = None

    def _enter(self, request: Any, recipe: Recipe, told: str, house: Path) -> Any:  # noqa: ARG002
        if self._resting is None:
            number = int(self._site.name.removeprefix("silo"))
            self._resting = Silo(self._site.name, Resting(weights(), number), house / "silo", recipe)
        return self._resting


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in engine.shapes().items()}


def name(number: int) -> str:
    return f"silo{number}"


def recipe(silos: int) -> Recipe:
    named = [{"name": name(number), "from": "de", "to": "en"} for number in range(silos)]
    return Recipe.model_validate(
        {
            "name": "resting",
            "public": {"from": "de", "to": "en", "train": "public.tsv"},
            "silos": {"source": "sites", "list": named},
            "train": {"keep": "last"},
            "baselines": [],
        }
    )


def peak(process: int | str = "self") -> float:
    """The most memory that a process has had, in MB; of this program alone, not of who started it."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def site(folder: Path) -> None:
    device.choose(Compute(device="cpu"))
    work.Answering = Awake
    work.work(folder, settings.read(folder), print)


def train(folder: Path, turns: Path, silos: int, rounds: int) -> None:
    # As the command line does: it also tells glibc to keep what is freed.
    device.choose(Compute(device="cpu"))
    plan, names = recipe(silos), [name(number) for number in range(silos)]
    with linking.linked(folder, coordinator.read(folder), runs.settings(plan)) as transport:
        while set(transport.silos()) < set(names):
            time.sleep(0.2)

        def over(round: int, _: Any) -> None:
            (turns / f"done-{round}").touch()
            while not (turns / f"go-{round + 1}").exists():
                time.sleep(0.01)

        over(0, None)
        place = folder / "runs" / f"resting-{silos}"
        Coordinator(f"resting-{silos}", plan, transport, place, Ledger(place / "ledger.jsonl"), silent).train(
            "federated", weights(), names, rounds, epochs=1, after=over
        )
    (turns / "peak").write_text(f"{peak():.1f}", encoding="ascii")
    (turns / "ended").touch()


def silent(_: Event) -> None:
    pass


if __name__ == "__main__":
    if sys.argv[1] == "site":
        site(Path(sys.argv[2]).resolve())
    else:
        train(Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve(), int(sys.argv[4]), int(sys.argv[5]))
