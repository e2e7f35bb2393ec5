"""The driver's side of a measurement in turns: starts every system, then lets them work one at a time, round by round.

Plain standard library; it knows nothing of what is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

__all__ = ["HERE", "KEEP_MEMORY", "System", "alternate"]

HERE = Path(__file__).resolve().parent

# By default glibc maps, zeroes and unmaps every large tensor. For peers at their best settings it is told not to, from
# outside as their users would; fedmt tells it by itself.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_QUIET = {
    "PYTHONPATH": str(HERE),
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class System:
    """One row of a table: how it is started, and what it said."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)
    failed: str | None = None
    log: Path | None = None
    _process: subprocess.Popen[str] | None = None
    _answers: IO[str] | None = None

    def start(self, core: int | None, log: Path) -> None:
        """One thread on this core (none: all cores, and threads as it likes); what it prints goes to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        read, write = os.pipe()

        environment = {name: value for name, value in os.environ.items() if name not in _ONE_THREAD}
        environment |= _QUIET | (_ONE_THREAD if core is not None else {})

        def pin() -> None:
            if core is not None:
                os.sched_setaffinity(0, {core})

        with log.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=HERE,
                env={**environment, "BENCH_ANSWERS": str(write), **self.environment},
                pass_fds=(write,),
                preexec_fn=pin,
            )
        os.close(write)
        self._answers = os.fdopen(read, encoding="utf-8")
        self.facts = self._hear()

    def turn(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        before = processor_seconds(self._process.pid)
        try:
            self._process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        if answer := self._hear():
            answer["processor"] = processor_seconds(self._process.pid) - before
        return answer

    def watched(self, seconds: float) -> tuple[dict[str, Any], float]:
        """A turn during which the memory of all its processes is looked at; that disturbs, so it is not for timing."""
        assert self._process is not None
        peak, over = 0.0, threading.Event()

        def look(pid: int) -> None:
            nonlocal peak
            while not over.wait(0.05):
                peak = max(peak, resident_mb(pid))

        watcher = threading.Thread(target=look, args=(self._process.pid,))
        watcher.start()
        try:
            turn = self.turn(seconds)
        finally:
            over.set()
            watcher.join()
        return turn, peak

    def stop(self) -> None:
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=60)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()

    def median(self, of: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(of(turn) for turn in self.turns)

    def spread(self, of: Callable[[dict[str, Any]], float]) -> float:
        """Half of what lies between the quartiles, relative to the median."""
        values = [of(turn) for turn in self.turns]
        if len(values) < 3:
            return (max(values) - min(values)) / 2 / statistics.median(values)
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return (high - low) / 2 / middle

    def _hear(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._answers is not None
        line = self._answers.readline()
        if not line:
            self.failed = f"it ended with code {self._process.wait()}: {last_line(self.log)}"
            return {}
        value: dict[str, Any] = json.loads(line)
        return value


def alternate(
    systems: list[System],
    logs: Path,
    seconds: float,
    rounds: int,
    warm_up: float,
    core: int | None,
    say: Callable[[str], None],
    memory: bool = False,
) -> None:
    """Start all, warm each up, then A B C A B C …; a system that fails stays in the list with its reason.

    `memory`: one turn more each, after the timed ones, to see what all processes of a system hold.
    """
    try:
        for system in systems:
            system.start(core, logs / f"{system.name}.log")
            if not system.failed:
                system.turn(warm_up)
            say(f"{system.name}: " + (f"failed: {system.failed} (see {system.log})" if system.failed else "warm"))
        for number in range(1, rounds + 1):
            for system in systems:
                if not system.failed and (turn := system.turn(seconds)):
                    system.turns.append(turn)
            say(f"round {number} of {rounds} is done")
        for system in systems if memory else ():
            if not system.failed:
                _, system.facts["resident"] = system.watched(seconds)
    finally:
        for system in systems:
            system.stop()


def family(pid: int) -> list[int]:
    """The process and all its descendants, where there is a /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The name stands in parentheses and may hold anything.
        children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found


def processor_seconds(pid: int) -> float:
    total = 0
    for one in family(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """What all its processes hold together, shared pages once."""
    total = 0
    for one in family(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def last_line(log: Path | None) -> str:
    if log is None or not log.exists():
        return "it left no log"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "its log is empty"
