"""Worker: fedmt's own trainer, as a silo uses it.

python -m train.ours TOKENS fp32|bf16
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from turns import Turns

from fedmt import recipe
from fedmt.corpus.batches import Batch, Examples
from fedmt.engine import device, engine
from fedmt.engine.trainer import Pace, Trainer
from train import tokens


class Clocked(Trainer):
    """A step lasts from the beginning of one update to that of the next: making the batch is in it."""

    turns: Turns
    last: tuple[int, int] | None = None

    def _step(self, optimizer: Any, batch: Batch) -> float:
        if self.last is not None:
            self.turns.done(*self.last)
        real = int(batch.source.ne(self.pad).sum()) + batch.target_tokens
        self.last = (real, batch.source.numel() + batch.target.numel())
        return super()._step(optimizer, batch)


def main(folder: Path, precision: Literal["fp32", "bf16"]) -> None:
    turns = Turns()
    data = tokens.read(folder)
    machine = device.choose(recipe.Compute(device="cpu", precision=precision, threads=1))
    trainer = Clocked(engine.load(folder / "engine"), recipe.Train(), machine)
    trainer.turns = turns
    turns.ready(
        parameters=sum(tensor.numel() for tensor in trainer.trained.values()),
        versions={name: version(name) for name in ("fedmt", "transformers", "torch")},
        settings=f"{trainer.settings.batch_tokens} tokens a side, buckets",
    )
    trainer.fit(Examples.of(data.source, data.target), epochs=10**6, seed=1, pace=Pace(2e-3, 800), total=10**9)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])  # type: ignore[arg-type]
