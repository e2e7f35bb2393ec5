"""`kill -9` at random moments of a run, each followed by `--resume`: the end must be that of an undisturbed run.

    python bench/kill.py [--kills 20] [--seed 1] [--keep DIR]

One run is left alone. Others of the same recipe are killed, resumed and killed again until so many kills have been; one
that comes to its end before is compared, and the next begins. Every file must be the same, byte for byte, but for what
tells the time: the engine, every checkpoint, the ledger, the translations, and the scores without their seconds. Ends
with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RECIPE", "Killing", "Run", "contents", "differences", "whole"]

RECIPE: dict[str, Any] = {
    "name": "killed",
    "engine": {"size": "toy", "vocabulary": 400},
    "public": {"source": "toy", "pairs": 300},
    "silos": {"source": "toy", "silos": 3, "pairs": 150},
    "split": {"dev": 0.1, "test": 0.2},
    "train": {"public_epochs": 3, "epochs": 2, "batch_tokens": 200, "checkpoint_seconds": 0.2, "keep": "best"},
    "rounds": 3,
    "baselines": ["public", "alone", "combined", "chained", "personal"],
    "decode": {"longest": 20},
    "score": {"resamples": 100, "every": 1},
    "compute": {"device": "cpu", "threads": 1},
}
# What tells how long something took, or when it began.
TIMED = ("metrics.jsonl", "run.json", "clock.json", "report.html", "README.md", "scores.json")


@dataclass(frozen=True)
class Run:
    """One folder of a recipe, and the program called on it."""

    recipe: Path
    folder: Path

    def start(self, *, resume: bool, **settings: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fedmt", "run", str(self.recipe), "--out", str(self.folder), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [*command, *(["--resume"] if resume else [])],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **settings,
        )

    def finish(self, *, resume: bool) -> None:
        with self.start(resume=resume) as process:
            _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{self.folder}: ended with {process.returncode}: {errors}")

    @property
    def done(self) -> bool:
        return (self.folder / "README.md").exists()

    def told(self) -> list[dict[str, Any]]:
        """The whole lines of its metrics."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


def contents(folder: Path) -> dict[str, str]:
    """What must not depend on kills, by its name."""
    found = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in TIMED
    }
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    found["scores.json"] = json.dumps({**scores, "seconds": None})
    return found | {name: "there" for name in TIMED if next(folder.rglob(name), None)}


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def whole(run: Run) -> tuple[float, float]:
    """Seconds from the start until it begins to work, and from there to its end, of a run that is left alone."""
    begun = time.monotonic()
    with run.start(resume=False) as process:
        working = _until(process, lambda: bool(run.told()))
        ready = time.monotonic()
        _, errors = process.communicate()
    if process.returncode or not working:
        raise SystemExit(f"the undisturbed run ended with {process.returncode}: {errors}")
    return ready - begun, time.monotonic() - ready


@dataclass(frozen=True)
class Killing:
    """A kill `delay` seconds after the program has told of `stage`, or of anything (""), or has been started (None).

    A stage is the name of a phase or of an event.
    """

    stage: str | None
    delay: float

    def on(self, run: Run, *, resume: bool) -> str | None:
        """Where the run was when it was killed; None: it had come to its end."""
        known = len(run.told())
        with run.start(resume=resume) as process:
            self.wait(process, run, known)
            process.send_signal(signal.SIGKILL)
            _, errors = process.communicate()
        if process.returncode == 0:
            return None
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"{run.folder}: ended with {process.returncode}: {errors}")
        return _where(run.told()[known:])

    def wait(self, process: subprocess.Popen[str], run: Run, known: int = 0) -> None:
        """Until its moment has come, or the process has ended; `known` lines were told before."""
        if self.stage is not None:
            _until(process, lambda: self._there(run.told()[known:]))
        time.sleep(self.delay)

    def _there(self, told: list[dict[str, Any]]) -> bool:
        return any(self.stage in ("", line.get("name"), line.get("event")) for line in told)


def _where(told: list[dict[str, Any]]) -> str:
    if not told:
        return "before anything was told"
    last = told[-1]
    parts = [str(last[key]) for key in ("name", "model", "who", "silo", "set", "what") if last.get(key)]
    number = f" round {last['round']}" if last.get("round") else ""
    return f"after {last['event']}: {' '.join(parts) or str(last.get('text', ''))[:30]}{number}"


def _until(process: subprocess.Popen[str], there: Callable[[], bool]) -> bool:
    while process.poll() is None:
        if there():
            return True
        time.sleep(0.005)
    return there()


def moments(kills: int, start: float, work: float, chance: random.Random) -> Iterator[Killing]:
    """Spread so that a run of so much work ends about with the last; every eighth falls into the program's start."""
    for number in range(kills):
        if number % 8 == 7:
            yield Killing(None, chance.uniform(0, start))
        elif number == kills - 1:
            yield Killing("report", chance.uniform(0, 0.2))
        else:
            yield Killing("", chance.uniform(0, 2 * work / kills))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        recipe = folder / "killed.yaml"
        recipe.write_text(json.dumps(RECIPE), encoding="utf-8")
        undisturbed = Run(recipe, folder / "undisturbed")
        start, work = whole(undisturbed)
        print(f"undisturbed: {start:.1f} s to start, {work:.1f} s of work", flush=True)
        wanted = contents(undisturbed.folder)
        wrong, runs, resumes = 0, 1, 0
        run = Run(recipe, folder / "killed-1")
        for number, killing in enumerate(moments(options.kills, start, work, random.Random(options.seed)), 1):
            where = killing.on(run, resume=resumes > 0)
            while where is None:
                wrong += _compare(run, wanted)
                runs, resumes = runs + 1, 0
                run = Run(recipe, folder / f"killed-{runs}")
                where = killing.on(run, resume=False)
            resumes += 1
            print(f"kill {number:3}  run {runs}  {where}", flush=True)
        run.finish(resume=True)
        wrong += _compare(run, wanted)
        print(f"{options.kills} kills, {runs} runs, {wrong} of them ended otherwise than the undisturbed one")
    return 1 if wrong else 0


def _compare(run: Run, wanted: dict[str, str]) -> int:
    found = contents(run.folder)
    other = differences(wanted, found)
    digest = found["engine/model.safetensors"][:16]
    print(f"{run.folder.name}: engine {digest}, {len(found)} files: {other or 'the same'}", flush=True)
    return bool(other)


if __name__ == "__main__":
    sys.exit(main())
