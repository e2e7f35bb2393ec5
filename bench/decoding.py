"""How fast an engine translates with a memory of all silos' text, and how well: without, with all looked up, as learnt.

    python bench/decoding.py [--silos NAME ...] [--beam 1,5] [--repeats 3] [--sentences 200] [--cache FOLDER]

The real silos of the preset `german-english-8`. A `small` engine is trained on the public text; then its states make
the quantiser, all silos' training text becomes records, and one silo's dev text teaches how to use them, twice: looking
up every token in the most lists, and by the recipe's own defaults. All three then translate the same test sentences in
turns, A B C A B C …, in one process and in the same batches: what else the machine does falls on all alike. Words are
those of the plain engine's translations, so that nobody is faster for saying less or slower for saying more; a ratio is
the median over the turns of one system's time by that of the plain engine in the same turn. BLEU is the mean over
silos. Threads are those of OMP_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedmt.corpus.batches import Examples
from fedmt.corpus.pairs import Text
from fedmt.corpus.silos import Gathered, gather
from fedmt.engine import device, engine as engines
from fedmt.engine.decoder import translate
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.pieces import learn
from fedmt.engine.steps import States, forced
from fedmt.engine.trainer import Trainer, pace
from fedmt.learner import encoded
from fedmt.memory import datastore, quantise, retrieve
from fedmt.memory.index import Codes
from fedmt.memory.retrieve import Retrieval, Tuned
from fedmt.recipe import Decode, Memory, Recipe
from fedmt.score.statistics import measure

SEED = 1
FORCED_TOKENS = 4000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def trained(text: Gathered, plan: Recipe, machine: Machine, cache: Path) -> Engine:
    """The engine of the public text, made once for each folder and recipe."""
    folder = cache / f"engine-{plan.train.public_epochs}-{SEED}"
    if folder.is_dir():
        return engines.load(folder)
    assert not isinstance(plan.engine, list) and hasattr(plan.engine, "size")
    sentences = (sentence for one in text.public for pair in one.train for sentence in pair)
    targets = sorted({one.direction.target for one in text.public})
    made = engines.scratch(plan.engine, learn(sentences, None, targets, SEED, lambda _: None), SEED)
    train, dev = encoded(made, text.public, plan.train.longest, lambda _: None)
    trainer = Trainer(made, plan.train, machine)
    total, begun = plan.train.public_epochs * trainer.steps(train), time.perf_counter()
    trainer.fit(
        train,
        epochs=plan.train.public_epochs,
        seed=SEED,
        pace=pace(plan.train, 0, total, int(made.model.config.d_model)),
        total=total,
        report=lambda step, of, loss, speed: None,
    )
    say(f"trained {total} steps in {time.perf_counter() - begun:.0f} s; dev loss {trainer.loss(dev):.3f}")
    made.save(folder)
    return made
