"""A round across sites, training aside: fedmt over Flower against a plain Flower app; and the coordinator's memory.

    python bench/across.py [--silos 2] [--rounds 3] [--turns 2] [--most-silos 8] [--quick] [--only time|memory]

Both have a SuperLink and a SuperNode for each silo on loopback, with TLS and node authentication, an engine of 76 MB
in fp32, and nobody trains. Both are started first and do one round; then each in its turn does so many rounds, one
after the other, while the others wait. fedmt is `resting.py`, the app `plainflower/`: once as Flower's examples are,
which evaluate each round's engine at the clients, and once without that. (fedmt has the loss on each silo's dev set by
the one exchange.) The memory is that of the process that carries out the run, fedmt's alone. Ends with 1 if fedmt takes
more than half of the app's time, or its coordinator with the most silos more than 1.2 times the memory of that with the
fewest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import resting
from overhead import engine
from table import draw

from fedmt.federation import flower
from fedmt.federation.flower import Door
from fedmt.sites import certificates, coordinator, linking, processes, settings
from fedmt.sites.coordinator import Coordinating

HERE = Path(__file__).resolve().parent
PROGRAMS = Path(sys.executable).parent
PEER, BARE = "plain Flower app", "without evaluation"
_LONGEST = 300.0


def ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]


def until(there: Callable[[], bool], what: str, seconds: float = _LONGEST) -> None:
    end = time.monotonic() + seconds
    while not there():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.005)


def busy(roots: set[int]) -> float:
    """Seconds of processor time that these processes and all that they started have had, ended ones included."""
    parents, spent = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Behind the name, which may have anything in it: state, parent, …, and four times in ticks.
            found = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(place.name)] = int(found[1])
            spent[int(place.name)] = sum(map(int, found[11:15])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for process, seconds in spent.items():
        above = process
        while above not in roots and above in parents:
            above = parents[above]
        total += seconds if above in roots else 0.0
    return total


class Turns:
    """Rounds that wait for a word before they begin, and leave one when they are over. `roots`: who does the work."""

    def __init__(self, folder: Path, who: str, roots: set[int]) -> None:
        folder.mkdir()
        self.folder = folder
        self.who = who
        self.roots = roots
        self.round = 0
        self.busy = 0.0

    def ready(self) -> None:
        until(lambda: (self.folder / "done-0").exists(), f"{self.who}: start")

    def rounds(self, count: int) -> list[float]:
        """The seconds of so many rounds, one right after the other."""
        last = self.round + count
        before = busy(self.roots)
        begun, found = time.monotonic(), []
        for number in range(self.round + 1, last + 1):
            (self.folder / f"go-{number}").touch()
        for number in range(self.round + 1, last + 1):
            until((self.folder / f"done-{number}").exists, f"{self.who}: round {number}")
            now = time.monotonic()
            found.append(now - begun)
            begun = now
        self.round = last
        self.busy += busy(self.roots) - before
        return found

    def end(self) -> None:
        (self.folder / f"go-{self.round + 1}").touch()


@contextlib.contextmanager
def program(command: list[str], folder: Path, log: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / log).open("ab") as file, processes.running(command, folder, file) as process:
        yield process


@contextlib.contextmanager
def superlink(folder: Path, command: Callable[[Coordinating], list[str]]) -> Iterator[tuple[Coordinating, int]]:
    """A coordinator's folder, and a SuperLink that has begun."""
    folder.mkdir()
    inner, outer = ports(2)
    told = Coordinating(host="127.0.0.1", port=outer, inner=inner)
    coordinator.create(folder, told)
    linking.database(folder)
    with program(command(told), folder, "superlink.log") as process:
        until(lambda: linking._answers(told), f"the SuperLink of {folder}")
        yield told, process.pid


def keys(folder: Path, mt: Path, told: Coordinating, silos: int) -> list[Path]:
    """A folder with a registered key for each silo."""
    made = []
    for number in range(silos):
        place = folder / resting.name(number)
        certificates.new_node_key(place / "keys" / "node")
        coordinator.learn(mt, resting.name(number), (place / "keys" / "node.pub").read_text(encoding="ascii"))
        made.append(place)
    door = Door(told.address, b"", (mt / "certificates" / "ca.crt").read_bytes())
    flower.register(door, coordinator.keys(mt))
    return made


@contextlib.contextmanager
def ours(folder: Path, silos: int, rounds: int) -> Iterator[tuple[Turns, int]]:
    folder.mkdir()
    mt = folder / "mt"
    with contextlib.ExitStack() as stack:
        told, link = stack.enter_context(superlink(mt, lambda told: processes.superlink(mt, told)))
        own, roots = ports(silos), {link}
        for number, place in enumerate(keys(folder, mt, told, silos)):
            certificates.new_secret(place / "secret")
            (place / "coordinator.crt").write_bytes((mt / "certificates" / "ca.crt").read_bytes())
            text = f"name: {resting.name(number)}\nfrom: de\nto: en\ntrain: none.tsv\nport: {own[number]}\n"
            # There is no proxy on either side of the comparison.
            (place / "site.yaml").write_text(f"{text}coordinator: {told.address}\n", encoding="ascii")
            settings.read(place)
            site = program([sys.executable, str(HERE / "resting.py"), "site", str(place)], place, "run.log")
            roots.add(stack.enter_context(site).pid)
        turns = Turns(folder / "turns", "fedmt", roots)
        command = [sys.executable, str(HERE / "resting.py"), "coordinator", str(mt), str(turns.folder)]
        roots.add(stack.enter_context(program([*command, str(silos), str(rounds)], mt, "run.log")).pid)
        turns.ready()
        yield turns, link


@contextlib.contextmanager
def plain(folder: Path, silos: int, rounds: int, evaluates: float) -> Iterator[Turns]:
    """Flower's own programs, with the settings that they have of themselves, TLS and authentication apart."""
    folder.mkdir()
    mt = folder / "mt"
    inside = mt / "certificates"

    def command(told: Coordinating) -> list[str]:
        return [
            str(PROGRAMS / "flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(told.inner)),
            *("--ssl-certfile", str(inside / "server.crt"), "--ssl-keyfile", str(inside / "server.key")),
            *("--ssl-ca-certfile", str(inside / "ca.crt"), "--enable-supernode-auth"),
            # Every round would look for packages on the network.
            "--disable-runtime-dependency-installation",
        ]

    with contextlib.ExitStack() as stack:
        told, link = stack.enter_context(superlink(mt, command))
        own, roots = ports(silos), {link}
        for number, place in enumerate(keys(folder, mt, told, silos)):
            node = [
                str(PROGRAMS / "flower-supernode"),
                *("--superlink", told.address, "--root-certificates", str(inside / "ca.crt")),
                *("--auth-supernode-private-key", str(place / "keys" / "node"), "--port", str(own[number])),
                *("--node-config", f"partition-id={number} num-partitions={silos}"),
            ]
            roots.add(stack.enter_context(program(node, place, "supernode.log")).pid)
        turns = Turns(folder / "turns", "the plain app", roots)
        home = mt / "state" / "flower"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "{told.address}"\n'
            f'root-certificates = "{inside / "ca.crt"}"\n',
            encoding="ascii",
        )
        config = f'num-server-rounds={rounds} fraction-evaluate={evaluates} min-nodes={silos} turns="{turns.folder}"'
        run = [str(PROGRAMS / "flwr"), "run", str(HERE / "plainflower"), "bench", "--run-config", config]
        subprocess.run(run, env=processes.surroundings(mt), check=True, stdout=subprocess.DEVNULL)
        turns.ready()
        yield turns


def time_of(folder: Path, silos: int, rounds: int, turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The seconds of each round, and the mean of the processor's."""
    count = 1 + rounds * turns
    with (
        ours(folder / "ours", silos, count) as (mine, _),
        plain(folder / "plain", silos, count, 1.0) as peer,
        plain(folder / "bare", silos, count, 0.0) as bare,
    ):
        every = {"fedmt": mine, PEER: peer, BARE: bare}
        found: dict[str, list[float]] = {who: [] for who in every}
        for one in every.values():
            one.rounds(1)
            one.busy = 0.0
        for _ in range(turns):
            for who, one in every.items():
                done = one.rounds(rounds)
                say(f"{who}: {', '.join(f'{seconds:.1f}' for seconds in done)} s")
                found[who] += done
        return found, {who: one.busy / rounds / turns for who, one in every.items()}


def memory_of(folder: Path, silos: int, rounds: int) -> dict[str, float]:
    with ours(folder / f"memory-{silos}", silos, rounds) as (turns, link):
        seconds = turns.rounds(rounds)
        turns.end()
        until((turns.folder / "ended").exists, "the coordinator's end")
        peak = float((turns.folder / "peak").read_text(encoding="ascii"))
        return {"peak": peak, "superlink": resting.peak(link), "seconds": statistics.median(seconds)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=2)
    parser.add_argument("--most-silos", type=int, default=8, help="the other figure of the memory")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a turn, and of a measurement of memory")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one turn of one round: whether it works")
    parser.add_argument("--only", choices=["time", "memory"])
    parser.add_argument("--folder", type=Path, help="a new folder that stays, with all logs")
    options = parser.parse_args()
    if options.quick:
        options.rounds = options.turns = 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PATH"] = f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["PYTHONUNBUFFERED"] = "1"
    missed: list[Any] = []
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmt-across-")))
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        size = f"{engine.parameters() * 4 / 1e6:.0f} MB of fp32 weights each way and silo, nobody trains"
        if options.only != "memory":
            found, spent = time_of(folder, options.silos, options.rounds, options.turns)
            medians = {who: statistics.median(seconds) for who, seconds in found.items()}
            own, other, bare = (medians[who] for who in ("fedmt", PEER, BARE))
            rows = [
                [
                    who,
                    f"{medians[who]:.2f}",
                    f"{min(seconds):.2f}–{max(seconds):.2f}",
                    f"{spent[who]:.1f}",
                    f"{len(seconds)}",
                    f"{own / medians[who]:.2f} ×",
                ]
                for who, seconds in found.items()
            ]
            print(
                f"A round over Flower, {options.silos} silos, {size}\n"
                f"  TLS and node authentication on for both, no proxy; {options.turns} × {options.rounds} rounds\n"
                + draw(["", "s a round", "from–to", "s of CPU", "rounds", "fedmt's time"], rows)
                + f"\n  fedmt takes {own / other:.2f} of the plain app's time (allowed: 0.50), "
                f"and {own / bare:.2f} of that of one that does not evaluate",
                flush=True,
            )
            missed += [own > other / 2]
        if options.only != "time":
            peaks = {silos: memory_of(folder, silos, options.rounds) for silos in (options.silos, options.most_silos)}
            rows = [
                [f"{silos} silos", f"{one['peak']:,.0f}", f"{one['superlink']:,.0f}", f"{one['seconds']:.1f}"]
                for silos, one in peaks.items()
            ]
            few, many = peaks[options.silos]["peak"], peaks[options.most_silos]["peak"]
            print(
                f"\nPeak memory over Flower, {size}, a process for each silo; {options.rounds} rounds\n"
                + draw(["", "coordinator, MB", "SuperLink, MB", "s a round"], rows)
                + f"\n  with {options.most_silos} silos the coordinator takes {many / few:.3f} times that of "
                f"{options.silos} (allowed: 1.20)",
                flush=True,
            )
            missed += [many > 1.2 * few]
    return 1 if any(missed) else 0


if __name__ == "__main__":
    sys.exit(main())
