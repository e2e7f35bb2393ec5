"""How fast records are sealed, merged and opened, beside what the processor does in AES-256-GCM.

    python bench/seal.py [--records 1000000] [--bytes 36] [--silos 3] [--json]

Each step is a process of its own, so that no step's memory is another's; seconds are of CPU, of one core, since another
program may have the rest of it. `openssl speed` counts blocks of 64 bytes one after another, each with a nonce but
under one key and without associated data: what a record costs when there is no Python around it. Memory is the peak
resident size over the imports' own, at the full number of records and at a tenth of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedmt.memory import keys, seal, sealed, shuffle

STEPS = ("seal", "merge", "open")
PAPER = 25_800_000


def chunks(count: int, width: int) -> Iterator[sealed.Rows]:
    """Records made as they are asked for, since a silo's datastore need not be in memory either."""
    generator = np.random.default_rng(1)
    for start in range(0, count, 1 << 16):
        yield generator.integers(0, 256, (min(1 << 16, count - start), width), dtype=np.uint8)


def step(name: str, folder: Path, records: int, width: int, silos: int) -> dict[str, float]:
    """One step, in this process, on what the steps before it left in the folder."""
    private = {path.stem: keys.load_private(path) for path in sorted(folder.glob("*.key"))}
    members = {silo: key.public for silo, key in private.items()}
    invitation = seal.Invitation.decode((folder / "invitation").read_bytes())
    session = invitation.session
    contents = {
        silo: seal.enter(invitation, key, members, session.quantiser, session.format) for silo, key in private.items()
    }
    files = [folder / f"{silo}.sealed" for silo in members]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    making = time.process_time()
    if name == "seal":
        for array in chunks(records // silos, width):
            del array
    making = (time.process_time() - making) * silos
    wall, start = time.perf_counter(), time.process_time()
    if name == "seal":
        for silo, path in zip(members, files, strict=True):
            seal.seal(path, invitation, contents[silo], members[silo], chunks(records // silos, width))
    elif name == "merge":
        shuffle.merge(files, folder / "merged")
    else:
        with seal.unseal(folder / "merged", private["silo0"], session, members) as opened:
            assert sum(map(len, opened)) == records // silos * silos
    return {
        "seconds": time.process_time() - start - making,
        "wall": time.perf_counter() - wall,
        "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def measure(records: int, width: int, silos: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = [keys.new(folder, f"silo{number}") for number in range(silos)]
        members = [keys.load_public(public) for _, public in pairs]
        session = sealed.Session.new("0" * 64, "bench", width)
        _, invitation = seal.invite(session, keys.load_private(pairs[0][0]), members)
        (folder / "invitation").write_bytes(invitation.encode())
        measured = {}
        for one in STEPS:
            given = ["--step", one, "--folder", name, "--records", str(records), "--bytes", str(width)]
            command = [sys.executable, __file__, *given, "--silos", str(silos)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            measured[one] = json.loads(done.stdout)
        measured["merged"] = {"bytes": float((folder / "merged").stat().st_size)}
    return measured


def openssl() -> float | None:
    """Blocks of 64 bytes a second, by the system's OpenSSL; None where there is none."""
    command = ["openssl", "speed", "-mr", "-seconds", "2", "-bytes", "64", "-evp", "aes-256-gcm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    line = next(line for line in done.stdout.splitlines() if line.startswith("+F:"))
    return float(line.rsplit(":", 1)[1]) / 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=36)
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(step(given.step, given.folder, given.records, given.bytes, given.silos)))
        return
    small = measure(given.records // 10, given.bytes, given.silos)
    full = measure(given.records, given.bytes, given.silos)
    limit = openssl()
    if given.json:
        print(
            json.dumps(
                {"records": given.records, "bytes": given.bytes, "openssl": limit, "steps": full, "tenth": small}
            )
        )
        return
    print(f"{given.records:,} records of {given.bytes} bytes from {given.silos} silos, one core")
    for one in STEPS:
        rate = given.records / full[one]["seconds"]
        took, peak = full[one]["wall"], full[one]["mb"]
        print(
            f"  {one:5}  {rate / 1e6:5.2f} M records/s of CPU, {took:6.1f} s of wall; 25.8 M: {PAPER / rate:4.0f} s",
            end="",
        )
        print(f"; peak +{peak:.0f} MB, at a tenth of the records +{small[one]['mb']:.0f}")
    print(f"  merged file {full['merged']['bytes'] / 1e6:,.1f} MB; 25.8 M: {PAPER * (given.bytes + 28) / 1e6:,.0f} MB")
    if limit is not None:
        print(f"  openssl speed, 64-byte blocks: {limit / 1e6:.2f} M/s; 25.8 M: {PAPER / limit:.0f} s")


if __name__ == "__main__":
    main()
