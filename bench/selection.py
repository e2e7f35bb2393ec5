"""What choosing costs: each selector on a Transformer-base, beside one local epoch of the same engine on the same core.

    python bench/selection.py [--pairs 2000] [--words 13] [--most 0.05]

The epoch is of invented pairs of so many words, of which 60 are really trained on and the rest reckoned from their
tokens per second; the engine is fedmt's `base` with 8,000 pieces. Choosing is the median of five calls on two engines
that differ a little everywhere. Ends with 1 if a selector costs more than `--most` of the epoch.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from typing import Any

import torch
from pydantic import TypeAdapter

from fedmt.choices import Selector
from fedmt.corpus.batches import Examples
from fedmt.engine import device, engine, vocabulary
from fedmt.engine.places import places
from fedmt.engine.trainer import Pace, Trainer
from fedmt.exchange.selector import Scene, select
from fedmt.recipe import Compute, Scratch, Train

SELECTORS: dict[str, dict[str, Any]] = {
    "random": {"kind": "random"},
    "dynamic_pulling": {"kind": "dynamic_pulling"},
    "top_k by value": {"kind": "top_k"},
    "top_k by change": {"kind": "top_k", "by": "change"},
    "apf, at a check": {"kind": "apf", "window": 1},
    "metasend": {"kind": "metasend"},
    "metasend, second filter": {"kind": "metasend", "pruning": {}},
}
TRAINED = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--words", type=int, default=13)
    parser.add_argument("--most", type=float, default=0.05, help="largest allowed share of an epoch")
    options = parser.parse_args()
    machine = device.choose(Compute(device="cpu", precision="fp32", threads=1))
    draw = random.Random(1)
    words = ["".join(draw.choice("aeioubdfgklmnprst") for _ in range(draw.randint(3, 9))) for _ in range(6000)]
    lines = [" ".join(draw.choices(words, k=options.words)) for _ in range(3000)]
    pieces = vocabulary.learn(lines, 8000, ["en"], seed=1)
    made = engine.scratch(Scratch(size="base"), pieces, seed=1)
    trainer = Trainer(made, Train(), machine)
    sides = [[draw.randrange(10, pieces.size) for _ in range(options.words * 3 // 2)] for _ in range(2 * TRAINED)]
    examples = Examples.of(sides[:TRAINED], sides[TRAINED:])
    trainer.fit(examples, epochs=1, seed=1, pace=Pace(1e-4, 10), total=100)
    fitted, _ = trainer.fit(examples, epochs=1, seed=1, pace=Pace(1e-4, 10), total=100)
    epoch = fitted.seconds / TRAINED * options.pairs
    now = {name: tensor.clone() for name, tensor in made.tensors().items()}
    before = {name: tensor + 1e-3 * torch.randn_like(tensor) for name, tensor in now.items()}
    sizes = sum(tensor.numel() for tensor in now.values())
    print(
        f"an epoch of {options.pairs} pairs of {options.words} words at {sizes / 1e6:.1f} M parameters: {epoch:.1f} s"
    )
    worst = 0.0
    where = {name: place.side for name, place in places(made.model).items()}
    for name, settings in SELECTORS.items():
        selector: Selector = TypeAdapter(Selector).validate_python(settings)
        seconds, state = [], dict[str, torch.Tensor]()
        for round in range(1, 6):
            scene = Scene(now, before, where, 1, round, "silo", 0.5)
            begun = time.perf_counter()
            _, state = select(selector, scene, state)
            seconds.append(time.perf_counter() - begun)
        median = statistics.median(seconds)
        worst = max(worst, median / epoch)
        print(f"  {name:24} {median:6.2f} s  {median / epoch:6.2%} of the epoch", flush=True)
    print(f"at most {worst:.2%} (allowed: {options.most:.0%})")
    return 0 if worst <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
