"""Faults of every kind at random moments of a federation across sites: the engine must be that of an undisturbed one.

    python bench/chaos.py [--faults 50] [--seed 1] [--folder DIR]

A SuperLink, a proxy and three sites run on loopback as they would on machines of their own, with TLS and node keys.
Runs of one recipe follow each other while faults are drawn: `kill -9` of a silo (`fedmt site run`), its SuperNode, the
SuperLink, the coordinator's run and the proxy; a silo and its SuperNode stopped for seconds; a full disk; a connection
that is cut, goes dark or breaks within a transfer. Faults overlap, but each program and site has one at a time. What
ended, for whatever reason, is started again as systemd would, the run by `--resume`. Every round needs all three silos,
so nothing is right but the very bytes of the undisturbed run, which is one process with all the text (over sites that
are left alone it is the same: tests/sites/test_across.py).

The table says how many faults of each kind there were, and for how long what they hit was away. Ends with 1 if a run is
lost (it does not come to its end), a silo is counted twice or left out of a round (by the ledger), a site answered one
order in two ways (by its audit), or an engine or a score differs from the undisturbed run's.

The full disk is a tmpfs with one site's folder on it, for root; for others, a limit on the size of what that site's
process may write (`RLIMIT_FSIZE`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.table import draw  # noqa: E402
from tests.sites.small import DIRECTIONS, Three  # noqa: E402
from tests.sites.test_across import answers, fedmt, ports, until  # noqa: E402
from tests.sites.wire import Wire  # noqa: E402

from fedmt import experiment, reading  # noqa: E402

__all__ = ["KINDS", "RECIPE", "Chaos", "Federation", "Runs", "compared"]

RECIPE: dict[str, Any] = {
    "name": "chaos",
    "rounds": 10,
    "baselines": [],
    "train": {"public_epochs": 1, "epochs": 2, "batch_tokens": 200, "checkpoint_seconds": 0.2, "keep": "best"},
}
KINDS = (
    "silo killed",
    "SuperNode killed",
    "SuperLink killed",
    "run killed",
    "proxy killed",
    "silo frozen",
    "disk full",
    "connection cut",
    "transfer torn",
)
# As the systemd unit has it: Flower takes a node for gone after a minute, and refuses one that is back earlier.
BACK = 65.0
_ENOUGH = 16 << 20
# Without a sign of progress for so long after the last fault, a run is lost.
_STILL = 420.0


class Kept:
    """A program that is started again whenever it ends, after a pause, as systemd does."""

    def __init__(
        self, command: Sequence[object], log: Path, pause: Callable[[], float], watched: Path | None = None
    ) -> None:
        self._log, self._pause = log, pause
        # Where Flower's program writes, and how much of that was there before the last start.
        self._watched, self._before = watched, 0
        self._command = [*map(str, command)]
        self.process = self._start()
        # Of the next end that is no accident.
        self.back: float | None = None
        self.ends = 0
        self._going = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._watched is not None and self._watched.exists():
            self._before = self._watched.stat().st_size
        with self._log.open("ab") as file:
            places = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
            surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places}
            return subprocess.Popen(self._command, env=surroundings, stdout=file, stderr=file)

    def _watch(self) -> None:
        while not self._going.is_set():
            self.process.wait()
            pause, self.back = self._pause() if self.back is None else self.back, None
            self.ends += 1
            if self._going.wait(pause):
                return
            self.process = self._start()

    def said(self) -> bytes:
        """By Flower's program since the last start."""
        if self._watched is None or not self._watched.exists():
            return b""
        return self._watched.read_bytes()[self._before :]

    def child(self) -> int | None:
        """Flower's own program, which it keeps."""
        pid = self.process.pid
        try:
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            return None
        return int(found[0]) if found else None

    def ask_to_end(self) -> None:
        self._going.set()
        # A stopped process hears nothing.
        for signalled in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signalled)

    def end(self) -> None:
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._thread.join(10)


class Federation:
    """Sites, each on a wire of its own, a proxy and a SuperLink, all of them kept alive."""

    def __init__(
        self, folder: Path, chance: random.Random, stack: contextlib.ExitStack, back: float = BACK, sites: int = 3
    ) -> None:
        self.folder, self.back = folder, back
        self.three = Three(folder, dict(list(DIRECTIONS.items())[:sites]))
        self.names = [*self.three.sets]
        self.mt = folder / "mt"
        count = len(self.names)
        self.inner, self.outer, *own = ports(2 + 2 * count)
        fedmt("coordinator", "init", self.mt, "--host", "127.0.0.1", "--port", self.outer)
        settings = f"host: 127.0.0.1\nport: {self.outer}\ninner: {self.inner}\n"
        (self.mt / "coordinator.yaml").write_text(settings, encoding="utf-8")
        self.small = self.names[-1]
        self.mounted = self._mount(stack)
        for name, line, port in zip(self.names, own[:count], own[count:], strict=True):
            self._site(name, line, port)
        (folder / "logs").mkdir()
        soon = lambda: chance.uniform(1, 6)  # noqa: E731
        self.kept: dict[str, Kept] = {}
        self._end_on(stack)
        self.keep("SuperLink", soon, "-m", "fedmt", "coordinator", "start", self.mt)
        self.keep("proxy", soon, "-m", "tests.sites.proxy", self.mt / "certificates", self.inner, self.outer)
        log = folder / "logs" / "SuperLink.log"
        until(lambda: b"listens" in log.read_bytes())
        until(lambda: answers(self.outer))
        self.wires = {name: Wire(line, self.outer) for name, line in zip(self.names, own, strict=False)}
        for wire in self.wires.values():
            stack.callback(wire.close)
        for name in self.names:
            self.keep(name, lambda: back, "-m", "fedmt", "site", "run", self.site(name))

    def site(self, name: str) -> Path:
        return self.folder / "sites" / name

    def keep(self, name: str, pause: Callable[[], float], *command: object) -> None:
        log = self.folder / "logs" / f"{name}.log"
        watched = self.site(name) / "state" / "supernode.log" if name in self.names else None
        self.kept[name] = Kept([sys.executable, *command], log, pause, watched)

    def connected(self, name: str) -> bool:
        """Whether its SuperNode runs and has been let in."""
        kept = self.kept[name]
        # It may have been started again within the same process.
        last = kept.said().rpartition(b"Starting Flower SuperNode")[2]
        return kept.process.poll() is None and b"SuperNode ID" in last

    def _mount(self, stack: contextlib.ExitStack) -> bool:
        """A disk of its own for the last site, small enough to be filled."""
        place = self.site(self.small)
        place.mkdir(parents=True)
        if os.geteuid() != 0:
            return False
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "fedmt-chaos", str(place)], check=False)
        if done.returncode == 0:
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        return done.returncode == 0

    def _end_on(self, stack: contextlib.ExitStack) -> None:
        def end() -> None:
            for kept in self.kept.values():
                kept.ask_to_end()
            for kept in self.kept.values():
                kept.end()

        stack.callback(end)

    def _site(self, name: str, line: int, port: int) -> None:
        sets, site = self.three.sets[name], self.site(name)
        texts = [f"--{key}={sets[key]}" for key in ("train", "dev", "test")]
        ways = ("--from", sets["from"], "--to", sets["to"], "--coordinator", f"127.0.0.1:{line}", "--port", port)
        fedmt("site", "init", site, "--name", name, *ways, *texts)
        (site / "coordinator.crt").write_bytes((self.mt / "certificates" / "ca.crt").read_bytes())
        fedmt("coordinator", "register", self.mt, name, site / "keys" / "node.pub")


class Runs:
    """Runs of one recipe, one after the other; each is resumed until it is whole."""

    def __init__(self, federation: Federation, chance: random.Random, recipe: dict[str, Any]) -> None:
        self._federation, self._chance = federation, chance
        self.recipe = federation.folder / "chaos.yaml"
        self.recipe.write_text(reading.write(federation.three.recipe(recipe)), encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = federation.folder
        self.whole: list[Path] = []
        self.lost: dict[Path, str] = {}
        self.resumed = 0
        self.ended: Counter[str] = Counter()
        # The last sign of progress, or the last fault's begin or end.
        self.touched = 0.0
        self._over = False

    def go(self, name: str, still: float = _STILL) -> bool:
        """Whether the run came to its end."""
        self.folder = self._federation.folder / "runs" / name
        log = self._federation.folder / "logs" / f"{name}.log"
        self.touched, resume = time.monotonic(), False
        while not self._over:
            offset = log.stat().st_size if log.exists() else 0
            with log.open("ab") as file:
                command = [sys.executable, "-m", "fedmt", "coordinator", "run", str(self._federation.mt)]
                command += [str(self.recipe), "--out", str(self.folder), "--wait", "300", "--quiet"]
                command += ["--resume"] if resume else []
                surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
                self.process = subprocess.Popen(command, env=surroundings, stdout=file, stderr=file)
            moved = self.moved()
            while self.process.poll() is None:
                time.sleep(0.2)
                if (now := self.moved()) != moved:
                    self.touched, moved = time.monotonic(), now
                if time.monotonic() - self.touched > still:
                    self.process.kill()
                    self.process.wait()
                    self.lost[self.folder] = f"no progress in {still:g} s"
                    return False
            if self.process.returncode == 0:
                self.whole.append(self.folder)
                return True
            if self.process.returncode != -signal.SIGKILL:
                # By itself: the reason is in its words.
                self.ended[_reason(log.read_bytes()[offset:].decode(errors="replace"))] += 1
            if time.monotonic() - self.touched > still:
                self.lost[self.folder] = "does not go on"
                return False
            self.resumed, resume = self.resumed + 1, True
            time.sleep(self._chance.uniform(1, 4))
        return False

    def end(self) -> None:
        self._over = True
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def moved(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def where(self) -> str:
        path = self.folder / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        told = [found for found in map(json.loads, lines) if found.get("model") == "federated"]
        rounds = [found["round"] for found in told if found.get("round")]
        return f"{self.folder.name}, round {rounds[-1]}" if rounds else f"{self.folder.name}, before the first round"


def _reason(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    for word in ("QuorumError", "silos answered", "sites take part", "SuperLink has ended", "no SuperLink runs"):
        if found := [line for line in lines if word in line]:
            return found[-1].strip()[:150]
    return lines[-1].strip()[:150] if lines else "without a word"


@dataclass
class Fault:
    kind: str
    target: str
    where: str
    seconds: float = 0.0


@dataclass
class Chaos:
    """Draws faults, and sees to it that what they hit is well again before it is hit a second time."""

    federation: Federation
    runs: Runs
    chance: random.Random
    listen: Callable[[str], None] = print
    faults: list[Fault] = field(default_factory=list)
    unhealed: list[Fault] = field(default_factory=list)
    _busy: set[str] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)

    def strike(
        self, kinds: Sequence[str], gap: tuple[float, float], still: float = 25.0, patience: float = 300.0
    ) -> None:
        """One fault of each of these kinds, in this order but for those whose target is not well yet.

        Between two lie some seconds, and a sign of progress, unless none comes for `still` seconds: else a slow machine
        would never come to the next round.
        """
        left, until_ = list(kinds), time.monotonic() + patience
        while left:
            moved, end = self.runs.moved(), time.monotonic() + still
            time.sleep(self.chance.uniform(*gap))
            while self.runs.moved() == moved and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(self.chance.uniform(0, gap[0]))
            for kind in left:
                if (target := self._target(kind)) is not None:
                    left.remove(kind)
                    self._begin(kind, target)
                    until_ = time.monotonic() + patience
                    break
            else:
                if time.monotonic() > until_:
                    raise SystemExit(f"nothing is well enough for {', '.join(left)}")

    def heal(self) -> None:
        for thread in self._threads:
            thread.join()

    def _target(self, kind: str) -> str | None:
        if kind in ("SuperLink killed", "proxy killed"):
            target = kind.split(" ")[0]
            return target if target not in self._busy and self.federation.kept[target].process.poll() is None else None
        if kind == "run killed":
            process = self.runs.process
            return "run" if process is not None and process.poll() is None and "run" not in self._busy else None
        names = [self.federation.small] if kind == "disk full" else self.federation.names
        well = [name for name in names if name not in self._busy and self.federation.connected(name)]
        return self.chance.choice(well) if well else None

    def _begin(self, kind: str, target: str) -> None:
        fault = Fault(kind, target, self.runs.where())
        self.faults.append(fault)
        self.runs.touched = time.monotonic()
        self._busy.add(target)
        self.listen(f"fault {len(self.faults):3}  {kind:17} {target:10} {fault.where}")
        thread = threading.Thread(target=self._carry_out, args=(fault,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry_out(self, fault: Fault) -> None:
        begun = time.monotonic()
        try:
            getattr(self, "_" + fault.kind.lower().replace(" ", "_"))(fault.target)
        except AssertionError:
            self.unhealed.append(fault)
        finally:
            fault.seconds = time.monotonic() - begun
            self.runs.touched = time.monotonic()
            self._busy.discard(fault.target)

    # ── the faults ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _kill(self, name: str, pid: int | None, back: float) -> None:
        kept = self.federation.kept[name]
        ends, kept.back = kept.ends, back
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: kept.ends > ends, 60)
        process = kept.process
        until(lambda: kept.process is not process, back + 30)
        if name in self.federation.names:
            # Whatever refuses it the first time, it must be let in at last.
            until(lambda: self.federation.connected(name), 400)
        else:
            port = self.federation.inner if name == "SuperLink" else self.federation.outer
            until(lambda: answers(port), 120)

    def _silo_killed(self, name: str) -> None:
        # Its SuperNode is told to end with it, and says goodbye: so it may be back soon.
        self._kill(name, self.federation.kept[name].process.pid, self.chance.uniform(3, 12))

    def _supernode_killed(self, name: str) -> None:
        self._kill(name, self.federation.kept[name].child(), self.federation.back)

    def _superlink_killed(self, name: str) -> None:
        self._kill(name, self.federation.kept[name].child(), self.chance.uniform(1, 10))

    def _proxy_killed(self, name: str) -> None:
        self._kill(name, self.federation.kept[name].process.pid, self.chance.uniform(1, 10))

    def _run_killed(self, _: str) -> None:
        process = self.runs.process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        until(lambda: self.runs.process is not process, 60)

    def _silo_frozen(self, name: str) -> None:
        kept = self.federation.kept[name]
        pids = [pid for pid in (kept.process.pid, kept.child()) if pid is not None]
        for signalled in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signalled)
            if signalled == signal.SIGSTOP:
                time.sleep(self.chance.uniform(4, 20))

    def _disk_full(self, name: str) -> None:
        seconds = self.chance.uniform(4, 12)
        if not self.federation.mounted:
            pid = self.federation.kept[name].process.pid
            _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, most))
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
            return
        filler = self.federation.site(name) / "filler"
        until_ = time.monotonic() + seconds
        with filler.open("wb", buffering=0) as file:
            while time.monotonic() < until_:
                # Also what is freed meanwhile.
                with contextlib.suppress(OSError):
                    for size in (1 << 20, 1 << 12, 1):
                        with contextlib.suppress(OSError):
                            while file.write(bytes(size)) == size:
                                pass
                time.sleep(0.05)
        filler.unlink()

    def _connection_cut(self, name: str) -> None:
        wire = self.federation.wires[name]
        wire.cut("refused" if self.chance.random() < 0.5 else "dark")
        time.sleep(self.chance.uniform(3, 20))
        wire.mend()

    def _transfer_torn(self, name: str) -> None:
        wire = self.federation.wires[name]
        wire.tear(self.chance.randrange(1, 60_000))
        with contextlib.suppress(AssertionError):
            until(lambda: wire.torn, 20)
        if not wire.torn:
            # Nothing so large came: then all that is open breaks.
            wire.tear(0)
            until(lambda: wire.torn, 60)


# ── what became of it ───────────────────────────────────────────────────────────────────────────────────────────────


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _counted(run: Path) -> Counter[tuple[str, int, str]]:
    """How often each silo's update was taken in each round."""
    lines = (line for line in _lines(run / "ledger.jsonl") if line["step"] == "fit" and line["direction"] == "up")
    return Counter((line["model"], line["round"], line["silo"]) for line in lines if line["parameters"])


def _answered(site: Path) -> dict[tuple[str, str, int], list[str]]:
    """The digests of what left for each round."""
    found: dict[tuple[str, str, int], list[str]] = {}
    for line in _lines(site / "audit.jsonl"):
        if line["step"] == "fit" and line["refused"] is None:
            found.setdefault((line["run"], line["model"], line["round"]), []).append(line["sha256"])
    return found


def _scores(run: Path) -> object:
    return json.loads((run / "scores.json").read_text(encoding="utf-8"))["rows"]


@dataclass(frozen=True)
class Compared:
    runs: int
    twice: int
    left_out: int
    other_engines: int
    other_scores: int
    again: int
    two_ways: int

    @property
    def good(self) -> bool:
        return not (self.twice or self.left_out or self.other_engines or self.other_scores or self.two_ways)


def compared(wanted: Path, runs: Sequence[Path], sites: Sequence[Path]) -> Compared:
    """Runs that were disturbed, against one that was not."""
    model = Path("engine", "model.safetensors")
    calm, engine = _counted(wanted), (wanted / model).read_bytes()
    found = [_counted(run) for run in runs]
    answered = [digests for site in sites for digests in _answered(site).values()]
    return Compared(
        len(runs),
        sum(times - 1 for counts in [calm, *found] for times in counts.values()),
        sum(len(calm.keys() - counts.keys()) for counts in found),
        sum((run / model).read_bytes() != engine for run in runs),
        sum(_scores(run) != _scores(wanted) for run in runs),
        sum(len(digests) - 1 for digests in answered),
        sum(len(set(digests)) - 1 for digests in answered),
    )


def table(chaos: Chaos, done: Compared) -> str:
    rows = []
    for kind in KINDS:
        seconds = [fault.seconds for fault in chaos.faults if fault.kind == kind]
        if seconds:
            rows.append([kind, str(len(seconds)), f"{statistics.median(seconds):.0f} s", f"{max(seconds):.0f} s"])
    rows.append(["all", str(len(chaos.faults)), "", ""])
    runs = chaos.runs
    every = done.runs + len(runs.lost)
    figures = [
        ["runs lost", f"{len(runs.lost)} of {every}"],
        ["runs resumed", f"{runs.resumed} times, {sum(runs.ended.values())} of them ended by themselves"],
        ["silos counted twice in a round", str(done.twice)],
        ["silos left out of a round", str(done.left_out)],
        ["answers that a site sent again", f"{done.again}, {done.two_ways} of them otherwise than before"],
        ["engines other than the undisturbed one", f"{done.other_engines} of {done.runs}, bit for bit"],
        ["scores other than the undisturbed ones", f"{done.other_scores} of {done.runs}"],
        ["sites and programs that did not come back", str(len(chaos.unhealed))],
    ]
    head = ["fault", "times", "away, median", "longest"]
    return "\n\n".join([draw(head, rows), draw(["what became of it", ""], figures)])


def deck(count: int, chance: random.Random) -> list[str]:
    """All kinds alike often, in any order."""
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += chance.sample(KINDS, len(KINDS))
    return drawn[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep runs, sites and logs in this folder, which must be new")
    options = parser.parse_args()
    chance, begun = random.Random(options.seed), time.monotonic()
    # What was started is ended, however this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary) / "chaos" if options.folder is None else options.folder.resolve()
        folder.mkdir(parents=True)
        with contextlib.redirect_stdout(io.StringIO()):
            federation = Federation(folder, chance, stack)
        tell(f"the full disk is {'a tmpfs of one site' if federation.mounted else 'RLIMIT_FSIZE of one site'}")
        wanted = folder / "undisturbed"
        experiment.run(federation.three.recipe(RECIPE, here=True), wanted)
        tell("the undisturbed run is whole")
        runs = Runs(federation, chance, RECIPE)
        stack.callback(runs.end)
        chaos, struck = Chaos(federation, runs, chance, tell), threading.Event()

        def train() -> None:
            number = 0
            while number == 0 or not (struck.is_set() or runs.lost):
                number += 1
                good = runs.go(f"disturbed-{number}")
                tell(f"{runs.folder.name} {'is whole' if good else f'is lost: {runs.lost[runs.folder]}'}")

        training = threading.Thread(target=train, daemon=True)
        training.start()
        chaos.strike(deck(options.faults, chance), (3.0, 9.0))
        struck.set()
        chaos.heal()
        training.join()
        done = compared(wanted, runs.whole, [federation.site(name) for name in federation.names])
        for reason, times in runs.ended.most_common():
            tell(f"ended by itself {times} times: {reason}")
        print(f"\n{table(chaos, done)}\n\n{time.monotonic() - begun:.0f} s in all, seed {options.seed}")
        return 0 if done.good and not runs.lost and not chaos.unhealed else 1


if __name__ == "__main__":
    sys.exit(main())
