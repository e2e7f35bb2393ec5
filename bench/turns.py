"""The worker's side of a measurement in turns: the driver says how long, the worker works so long and says what it did.

All systems of a measurement are started first, each in its own process and environment, and then work in turns, one
at a time, so that what else the machine does falls on all of them alike. Plain standard library: every peer's
environment imports it. It knows nothing of training or of federation.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

__all__ = ["Turns", "peak_mb"]


class Turns:
    """Orders come on standard input; answers go to a pipe of their own, since libraries print what they like."""

    def __init__(self) -> None:
        self._out = os.fdopen(int(os.environ["BENCH_ANSWERS"]), "w", encoding="utf-8")
        self._seconds = 0.0
        self._begin(0.0)

    def say(self, **value: Any) -> None:
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()

    def ready(self, **facts: Any) -> None:
        """Everything is set up: say so, and wait for the first turn."""
        self.say(**facts)
        self._wait()

    def done(self, items: int, padded: int = 0) -> None:
        """A step is done, and so many items with it; at a turn's end this reports, and blocks until the next one."""
        self._steps += 1
        self._items += items
        self._padded += padded
        wall = time.perf_counter() - self._began
        if wall >= self._seconds:
            busy = time.process_time() - self._busy
            self.say(steps=self._steps, items=self._items, padded=self._padded, wall=wall, busy=busy, peak=peak_mb())
            self._wait()

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            # The driver is done. A training loop that ends would save and log; nothing of that is wanted.
            os._exit(0)
        self._begin(float(json.loads(line)["seconds"]))

    def _begin(self, seconds: float) -> None:
        self._seconds = seconds
        self._steps = self._items = self._padded = 0
        self._began = time.perf_counter()
        self._busy = time.process_time()


def peak_mb() -> float:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
