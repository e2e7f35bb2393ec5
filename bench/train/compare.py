"""Training: tokens per second of one core, fedmt against Seq2SeqTrainer and JoeyNMT. Plain standard library."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environments
from driver import HERE, KEEP_MEMORY, System, alternate
from environments import Unavailable
from table import draw

__all__ = ["AIMS", "measure", "show"]

AIMS = {"the best of them": 1.2, "Seq2SeqTrainer, defaults": 4.0}
_PEERS = [
    ("Seq2SeqTrainer, defaults", "hf", "defaults", {}),
    ("Seq2SeqTrainer, best settings", "hf", "best", KEEP_MEMORY),
    ("Seq2SeqTrainer, our buckets", "hf", "buckets", KEEP_MEMORY),
    ("JoeyNMT", "joey", "shuffled", KEEP_MEMORY),
    ("JoeyNMT, corpus in buckets", "joey", "bucketed", KEEP_MEMORY),
]


def measure(folder: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Each precision is one alternation of all systems; the data are made anew by fedmt."""
    seconds, rounds, warm_up = (3.0, 3, 3.0) if quick else (8.0, 7, 10.0)
    ours = environments.ours(say)
    pythons: dict[str, Path | Unavailable] = {}
    for name in sorted({name for _, name, _, _ in _PEERS}):
        try:
            pythons[name] = environments.peer(name, say)
        except Unavailable as unavailable:
            pythons[name] = unavailable
    say("making the tokens")
    tokens = folder / "tokens"
    subprocess.run([ours, "-m", "train.prepare", tokens], cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    columns = {}
    for precision in ("fp32", "bf16"):
        systems = [System("fedmt", [str(ours), "-m", "train.ours", str(tokens), precision])]
        for name, peer, settings, environment in _PEERS:
            python = pythons[peer]
            command = [str(python), "-m", f"train.{peer}", str(tokens), settings, precision]
            system = System(name, command, dict(environment))
            if isinstance(python, Unavailable):
                system.failed = str(python)
            systems.append(system)
        alternate(
            systems,
            folder / "logs" / precision,
            seconds,
            rounds,
            warm_up,
            core,
            lambda text, p=precision: say(f"{p}: {text}"),
        )
        columns[precision] = [_row(system) for system in systems]
    facts = json.loads((tokens / "facts.json").read_text(encoding="utf-8"))
    return {"data": facts, "seconds": seconds, "rounds": rounds, "core": core, "columns": columns}


def _row(system: System) -> dict[str, Any]:
    row: dict[str, Any] = {"system": system.name, "failed": system.failed, **system.facts}
    if system.turns:
        row |= {
            "rate": system.median(lambda turn: turn["items"] / turn["busy"]),
            "spread": system.spread(lambda turn: turn["items"] / turn["busy"]),
            "wall_rate": system.median(lambda turn: turn["items"] / turn["wall"]),
            "padding": 1 - sum(turn["items"] for turn in system.turns) / sum(turn["padded"] for turn in system.turns),
            "peak": system.turns[-1]["peak"],
            "turns": system.turns,
        }
    return row


def show(result: dict[str, Any]) -> str:
    data = result["data"]
    parts = [
        f"Training: source and target tokens without padding, per second of one core\n"
        f"  {data['origin']}: {data['pairs']:,} pairs of {data['source_tokens']:.1f} + {data['target_tokens']:.1f} "
        f"tokens, {data['pieces']} pieces; engine `small`, {data['parameters'] / 1e6:.1f} M parameters\n"
        f"  medians of {result['rounds']} turns of {result['seconds']:g} s, one system after the other"
    ]
    for precision, rows in result["columns"].items():
        own = rows[0].get("rate")
        cells = []
        for row in rows:
            if "rate" not in row:
                cells.append([row["system"], "–", "", "", "", "", "", row["failed"] or ""])
                continue
            cells.append(
                [
                    row["system"],
                    f"{row['rate']:,.0f}",
                    f"±{row['spread']:.0%}",
                    f"{row['wall_rate']:,.0f}",
                    f"{row['padding']:.0%}",
                    f"{row['peak']:,.0f}",
                    f"{own / row['rate']:.2f} ×" if own else "",
                    f"{_versions(row)}; {row['settings']}",
                ]
            )
        head = [precision, "tokens/s", "", "by the clock", "padding", "peak MB", "fedmt is", "with"]
        parts.append(draw(head, cells) + "\n" + _verdict(rows))
    return "\n\n".join(parts)


def _versions(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in row["versions"].items())


def _verdict(rows: list[dict[str, Any]]) -> str:
    rates = {row["system"]: row["rate"] for row in rows if "rate" in row}
    own = rates.pop("fedmt", None)
    if own is None or not rates:
        return "  nothing to compare"
    said = []
    for against, aim in AIMS.items():
        rate = max(rates.values()) if against not in rates else rates[against]
        said.append(f"{own / rate:.2f} × {against} (aim {aim:g}: {'met' if own >= aim * rate else 'missed'})")
    return f"  fedmt trains at {' and '.join(said)}"
