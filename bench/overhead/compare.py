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
    """Nobody is pinned: each system uses the machine as it does by itself."""
    rounds = 5 if quick else 15
    ours = str(environments.ours(say))
    systems = [
        System("fedmt", [ours, "-m", "overhead.ours", "memory"]),
        System("fedmt, all on disk", [ours, "-m", "overhead.ours", "disk"]),
    ]
    for name, peer, module in _PEERS:
        try:
            systems.append(System(name, [str(environments.peer(peer, say)), "-m", module]))
        except Unavailable as unavailable:
            systems.append(System(name, [], failed=str(unavailable)))
    alternate(systems, folder / "logs" / "overhead", 0.0, rounds, 0.0, None, say, memory=True)
    rows = [_row(system) for system in systems]
    return {"silos": SILOS, "rounds": rounds, "parameters": parameters(), "cores": os.cpu_count(), "rows": rows}


def _row(system: System) -> dict[str, Any]:
    row: dict[str, Any] = {"system": system.name, "failed": system.failed, **system.facts}
    if system.turns:
        row |= {
            "seconds": system.median(lambda turn: turn["wall"] / turn["items"]),
            "spread": system.spread(lambda turn: turn["wall"]),
            "processor": sum(turn["processor"] for turn in system.turns) / sum(turn["items"] for turn in system.turns),
            "turns": system.turns,
        }
    return row


def show(result: dict[str, Any]) -> str:
    rows = result["rows"]
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
    title = (
        f"Overhead per silo and round, training excluded\n"
        f"  {result['silos']} silos, {result['parameters'] / 1e6:.1f} M fp32 parameters "
        f"({result['parameters'] * 4 / 1e6:.0f} MB), {result['cores']} cores; medians of {result['rounds']} rounds, "
        f"one system after the other, after a first round"
    )
    head = ["system", "ms", "", "ms of CPU", "peak MB", "fedmt's time", "with"]
    return f"{title}\n\n{draw(head, cells)}\n{_verdict(rows)}"


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
