"""Worker: fedmt's coordinator and eight silos in one process, whose learner does not train.

    python -m overhead.ours memory|disk

`memory` writes nothing down, as the peers do not either. `disk` is what `fedmt run` does: every silo's reply and every
round's engine are written and synced before anything goes on.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from torch import Tensor
from turns import Turns

from fedmt import recipe
from fedmt.engine import device
from fedmt.events import Event, Trained
from fedmt.exchange.ledger import Ledger
from fedmt.federation.checkpoint import State
from fedmt.federation.coordinator import Coordinator
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess
from fedmt.federation.work import FitOrder, FitResult
from overhead import engine


class Idle:
    """A learner bound to the one resident engine, without any training."""

    def __init__(self, live: Mapping[str, Tensor], samples: int) -> None:
        self._live = live
        self.samples = samples

    def tensors(self) -> Mapping[str, Tensor]:
        return self._live

    def shared(self) -> list[str]:
        return list(self._live)

    def side(self, name: str) -> str:
        return "encoder" if ".encoder." in name else "decoder" if ".decoder." in name else "shared"

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._live[name].copy_(tensor)

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:  # noqa: ARG002
        return FitResult(0.0, None, 0, 0, 0.0), State()

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:  # noqa: ARG002
        return {}


def main(kind: str) -> None:
    turns = Turns()
    # As the command line does: it also tells glibc to keep what is freed.
    machine = device.choose(recipe.Compute(device="cpu"))
    plan = recipe.Recipe(silos=recipe.ToySilos(source="toy", silos=engine.SILOS))
    live = {name: tensor.detach() for name, tensor in engine.module().named_parameters()}
    start = {name: tensor.clone() for name, tensor in live.items()}
    names = [f"silo{number}" for number in range(engine.SILOS)]
    with tempfile.TemporaryDirectory(prefix="fedmt-bench-") as folder:
        root = Path(folder) if kind == "disk" else None

        def under(name: str) -> Path | None:
            return None if root is None else root / name

        silos = [Silo(name, Idle(live, 100 + at), under(name), plan) for at, name in enumerate(names)]
        seen = 0

        def listen(event: Event) -> None:
            """A round is over when the next one's first reply is there: its checkpoint is behind it then."""
            nonlocal seen
            if isinstance(event, Trained) and event.round > seen:
                seen = event.round
                if seen == 1:
                    turns.ready(
                        parameters=engine.parameters(),
                        versions={name: version(name) for name in ("fedmt", "torch")},
                        settings=f"in process, {machine.threads} threads, "
                        + ("all on disk and synced" if root else "nothing on disk"),
                    )
                else:
                    turns.done(engine.SILOS)

        ledger = Ledger(under("ledger.jsonl"))
        coordinator = Coordinator("bench", plan, InProcess(silos), under("coordinator"), ledger, listen)
        coordinator.train("federated", start, names, rounds=10**6, epochs=1)


if __name__ == "__main__":
    main(sys.argv[1])
