"""A few faults at once in a small federation over Flower; `bench/chaos.py` draws fifty, of every kind."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import pytest
from bench.chaos import RECIPE, Chaos, Federation, Runs, compared

from fedmt import experiment
from tests.sites.test_across import until

# In the other federation's worker: not at the same time.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("across")]

# What is over within seconds. A killed SuperNode is away for more than a minute, and a full disk ends the run.
QUICK = ("SuperLink killed", "run killed", "transfer torn", "silo frozen", "proxy killed")


@pytest.mark.timeout(600)
def test_a_run_through_faults_ends_in_the_engine_of_one_that_was_left_alone(tmp_path: Path) -> None:
    chance = random.Random(2)
    with contextlib.ExitStack() as stack:
        federation = Federation(tmp_path, chance, stack, sites=2)
        way = {**RECIPE, "rounds": 3}
        experiment.run(federation.three.recipe(way, here=True), tmp_path / "undisturbed")
        runs = Runs(federation, chance, way)
        stack.callback(runs.end)
        training = threading.Thread(target=runs.go, args=("disturbed", 120))
        training.start()
        chaos = Chaos(federation, runs, chance)
        until(lambda: "round 1" in runs.where())
        chaos.strike(QUICK, gap=(0.5, 2.0), still=4.0)
        chaos.heal()
        training.join()
        assert (runs.lost, chaos.unhealed) == ({}, [])
        assert runs.resumed >= 1
        done = compared(tmp_path / "undisturbed", runs.whole, [federation.site(name) for name in federation.names])
        assert (done.runs, done.good) == (1, True), done
