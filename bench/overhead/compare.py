"""Overhead per silo and round, training excluded: fedmt against Flower's simulation and pfl. Plain standard library."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environments
from driver import System, alternate
from environments import Unavailable
from table import draw

from overhead.engine import SILOS, parameters

__all__ = ["measure", "show"]

_PEERS = [("pfl", "pfl", "overhead.apple"), ("Flower simulation", "flower", "overhead.flower")]


def measure(folder: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Once with every system held to one core, and once with all cores, used as each system does by itself."""
    rounds = 5 if quick else 15
    ours = str(environments.ours(say))
    pythons: dict[str, Path | Unavailable] = {}
    for _, peer, _ in _PEERS:
        try:
            pythons[peer] = environments.peer(peer, say)
        except Unavailable as unavailable:
            pythons[peer] = unavailable
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    columns = {}
    for name, core in [("one core", cores[-1])] * bool(cores) + [(f"{len(cores) or 'all'} cores", None)]:
        systems = [
            System("fedmt", [ours, "-m", "overhead.ours", "memory"]),
            System("fedmt, all on disk", [ours, "-m", "overhead.ours", "disk"]),
        ]
        for label, peer, module in _PEERS:
            system = System(label, [str(pythons[peer]), "-m", module])
            if isinstance(pythons[peer], Unavailable):
                system.failed = str(pythons[peer])
            systems.append(system)
        logs = folder / "logs" / "overhead" / name.replace(" ", "-")
        alternate(systems, logs, 0.0, rounds, 0.0, core, lambda text, at=name: say(f"{at}: {text}"), memory=True)
        columns[name] = [_row(system) for system in systems]
    return {"silos": SILOS, "rounds": rounds, "parameters": parameters(), "columns": columns}


def _row(system: System) -> dict[str, Any]:
    row: dict[str, Any] = {"system": system.name, "failed": system.failed, **system.facts}
    if system.turns:
        row |= {
            "seconds": system.median(lambda turn: turn["wall"] / turn["items"]),
            "spread": system.spread(lambda turn: turn["wall"]),
            "processor": system.median(lambda turn: turn["processor"] / turn["items"]),
            "turns": system.turns,
        }
    return row


def show(result: dict[str, Any]) -> str:
    parts = [
        f"Overhead per silo and round, training excluded\n"
        f"  {result['silos']} silos, {result['parameters'] / 1e6:.1f} M fp32 parameters "
        f"({result['parameters'] * 4 / 1e6:.0f} MB) of random weights\n"
        f"  medians of {result['rounds']} rounds after a first one, one system after the other"
    ]
    for column, rows in result["columns"].items():
        own = rows[0].get("seconds")
        cells = []
        for row in rows:
            if "seconds" not in row:
                cells.append([row["system"], "–", "", "", "", "", row["failed"] or ""])
                continue
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            cells.append(
                [
                    row["system"],
                    f"{row['seconds'] * 1000:,.1f}",
                    f"±{row['spread']:.0%}",
                    f"{row['processor'] * 1000:,.1f}",
                    f"{row['resident']:,.0f}",
                    f"{row['seconds'] / own:.2f} ×" if own else "",
                    f"{versions}; {row['settings']}",
                ]
            )
        head = [column, "ms", "", "ms of CPU", "peak MB", "fedmt's time", "with"]
        parts.append(draw(head, cells) + "\n" + _verdict(rows))
    return "\n\n".join(parts)


def _verdict(rows: list[dict[str, Any]]) -> str:
    times = {row["system"]: row["seconds"] for row in rows if "seconds" in row}
    own = times.get("fedmt")
    peers = {name: time for name, time in times.items() if not name.startswith("fedmt")}
    if own is None or not peers:
        return "  nothing to compare"
    said = [
        f"{own / time:.2f} × {name}'s time ({'beaten' if own < time else 'not beaten'})" for name, time in peers.items()
    ]
    return f"  fedmt takes {' and '.join(said)}"
