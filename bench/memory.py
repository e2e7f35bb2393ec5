"""Peak memory of one process that holds the coordinator and its silos, by the number of silos.

    python bench/memory.py [--silos 2 16] [--rounds 2] [--codec fp32] [--most 1.15]

Each figure is a process of its own, so that one leaves nothing to the next. The engine has the tensors of the papers'
Transformer-base (60 M parameters of random weights) and learners that move every weight a little; all of it, silos'
kept replies and checkpoints too, is written to disk as in a run. Ends with 1 if memory grows beyond `--most`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedmt.events import Event
from fedmt.exchange.ledger import Ledger
from fedmt.federation.checkpoint import State
from fedmt.federation.coordinator import Coordinator
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess
from fedmt.federation.work import FitOrder, FitResult
from fedmt.recipe import Recipe

MEBI = 1 << 20


def shapes(
    width: int = 512, feedforward: int = 2048, layers: int = 6, vocabulary: int = 31_000
) -> dict[str, list[int]]:
    """Transformer-base: six and six layers of width 512, and one embedding for both sides."""
    table = {"embedding": [vocabulary, width]}
    for side, attentions in (("encoder", ["self"]), ("decoder", ["self", "cross"])):
        for layer in range(layers):
            at = f"{side}.{layer}"
            for attention in attentions:
                for name in ("q", "k", "v", "out"):
                    table |= {
                        f"{at}.{attention}.{name}.weight": [width, width],
                        f"{at}.{attention}.{name}.bias": [width],
                    }
                table |= {f"{at}.{attention}.norm.weight": [width], f"{at}.{attention}.norm.bias": [width]}
            table |= {f"{at}.up.weight": [feedforward, width], f"{at}.up.bias": [feedforward]}
            table |= {f"{at}.down.weight": [width, feedforward], f"{at}.down.bias": [width]}
            table |= {f"{at}.norm.weight": [width], f"{at}.norm.bias": [width]}
    return table


class Moving:
    """A learner whose training moves every weight of the shared engine a little."""

    def __init__(self, engine: dict[str, Tensor], samples: int) -> None:
        self.samples = samples
        self._engine = engine

    def tensors(self) -> Mapping[str, Tensor]:
        return self._engine

    def shared(self) -> list[str]:
        return list(self._engine)

    def side(self, name: str) -> str:
        return name.partition(".")[0] if "." in name else "shared"

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._engine[name].copy_(tensor)

    def fit(
        self,
        order: FitOrder,
        state: State | None,  # noqa: ARG002
        keep: Callable[[State], None],  # noqa: ARG002
    ) -> tuple[FitResult, State]:
        for tensor in self._engine.values():
            tensor.mul_(1 + order.seed * 1e-13)
        return FitResult(train_loss=1.0, dev_loss=1.0, tokens=1, steps=1, seconds=0.0), State()

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:  # noqa: ARG002
        return {"bleu": torch.ones(1000, dtype=torch.float64)}


def silent(_: Event) -> None:
    pass


def one(silos: int, rounds: int, codec: str) -> dict[str, float]:
    """A federation in this process; what it held at most."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    start = {name: torch.randn(shape, generator=generator) for name, shape in shapes().items()}
    recipe = Recipe.model_validate({"silos": {"source": "toy"}, "codec": {"kind": codec}})
    engine = {name: torch.empty_like(tensor) for name, tensor in start.items()}
    parameters = sum(tensor.numel() for tensor in engine.values())
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        members = [Silo(f"s{i}", Moving(engine, i + 1), folder / f"s{i}", recipe) for i in range(silos)]
        ledger = Ledger(folder / "ledger.jsonl")
        coordinator = Coordinator("bench", recipe, InProcess(members), folder / "rounds", ledger, silent)
        names = [member.name for member in members]
        begun = time.perf_counter()
        merged = coordinator.train("federated", start, names, rounds, epochs=1)
        seconds = time.perf_counter() - begun
        coordinator.score("federated", merged, names, "test")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"parameters": parameters, "idle": idle / 1024, "peak": peak / 1024, "seconds": seconds / rounds / silos}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--codec", choices=["fp32", "fp16"], default="fp32")
    parser.add_argument("--most", type=float, default=1.15, help="largest allowed ratio of the last peak to the first")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.silos[0], options.rounds, options.codec)))
        return 0
    peaks = []
    for silos in options.silos:
        command = [sys.executable, __file__, "--one", "--silos", str(silos)]
        command += ["--rounds", str(options.rounds), "--codec", options.codec]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        peaks.append(found["peak"])
        megabytes = found["parameters"] * 4 / MEBI
        print(
            f"{silos:3d} silos, {found['parameters'] / 1e6:.1f} M parameters ({megabytes:.0f} MiB): peak "
            f"{found['peak']:.0f} MiB, of which {found['idle']:.0f} MiB before the first round; "
            f"{found['seconds']:.2f} s a silo and round, written down",
            flush=True,
        )
    ratio = peaks[-1] / peaks[0]
    print(
        f"{options.silos[-1]} silos take {ratio:.3f} times the memory of {options.silos[0]} (allowed: {options.most:g})"
    )
    return 0 if ratio <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
