"""fedmt against its peers, each in an environment of its own. One table a part; the figures also as JSON.

    python bench/run.py [--only train|overhead|memory|tmx|selection] [--quick]

Makes what is missing by itself: the peers' environments, the text, the tokens. What is measured and how: README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import environments
import overhead.compare
import train.compare

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PARTS = ("train", "overhead", "memory", "tmx", "selection")
_QUICK = {"memory": ["--rounds", "1"], "tmx": ["--segments", "100000", "--runs", "2"], "selection": ["--pairs", "60"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="short turns: whether it works, not what it yields")
    options = parser.parse_args()
    wanted = [part for part in PARTS if part in (options.only or PARTS)]
    RESULTS.mkdir(exist_ok=True)
    print(f"{machine()}\n", flush=True)
    codes = [part_of(part, options.quick) for part in wanted]
    return max(codes)


def part_of(part: str, quick: bool) -> int:
    begun = time.strftime("%Y-%m-%d %H:%M:%S")
    if part not in ("train", "overhead"):
        return script(part, quick, begun)
    module = train.compare if part == "train" else overhead.compare
    result = module.measure(RESULTS, quick, say)
    say("")
    print(module.show(result) + "\n", flush=True)
    keep(part, {"begun": begun, "quick": quick, "machine": machine(), **result})
    return 1 if any(row["failed"] for rows in result["columns"].values() for row in rows) else 0


def script(part: str, quick: bool, begun: str) -> int:
    """A measurement that stands by itself: its lines are shown and kept."""
    path = HERE / f"{part}.py"
    if not path.exists():
        print(f"{part}: bench/{part}.py is not there\n")
        return 1
    command = [str(environments.ours(say)), str(path), *(_QUICK[part] if quick else [])]
    lines = []
    print(f"{part}: {' '.join(['python', f'bench/{part}.py', *command[2:]])}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"  {line}", end="", flush=True)
            lines.append(line.rstrip("\n"))
    print()
    keep(part, {"begun": begun, "quick": quick, "machine": machine(), "lines": lines, "code": process.returncode})
    return process.returncode


def keep(part: str, value: dict[str, Any]) -> None:
    path = RESULTS / f"{part}.json"
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model, flags = platform.processor() or platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
            if name.strip() == "flags":
                flags = value
    except OSError:
        pass
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags.split()]
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    vectors = ", ".join(known) or "no vector flags known"
    return f"{model}, {cores} cores ({vectors}), Python {platform.python_version()}{load}"


def say(text: str) -> None:
    """What goes on, over one line of a terminal; elsewhere a line each."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
