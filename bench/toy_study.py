"""Who should merge with whom: groups on a toy many-to-many federation of four families, over several seeds.

    python bench/toy_study.py [--seeds 1 2 3] [--silos 8] [--directions ring] [--rounds 30] [--out FOLDER]

A seed is one of languages, text and training. Its public engine is trained once; every kind of groups then begins from
it. Prints a table in Markdown: macro BLEU over the silos' test sets, mean and standard deviation over the seeds; how
well `gradients` finds the families (adjusted Rand index, each side apart); and how MetaSend's threshold went along with
the loss. Runs that are whole are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedmt.corpus import families, toy
from fedmt.experiment import run
from fedmt.federation import checkpoint
from fedmt.federation.groups import Grouping, agreement
from fedmt.recipe import Recipe, ToySilos
from fedmt.report.folder import RunFolder

GROUPS: dict[str, dict[str, Any]] = {
    "alone": {"kind": "alone"},
    "none": {"kind": "none"},
    "random": {"kind": "random", "count": 4},
    "families": {"kind": "families"},
    "gradients": {"kind": "gradients", "count": 4},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--silos", type=int, default=8)
    parser.add_argument("--directions", choices=["ring", "many"], default="ring")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="where the runs are kept; else they go when this ends")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        out = options.out or Path(aside)
        bleu: dict[str, list[float]] = {name: [] for name in ("public", *GROUPS, "metasend")}
        found: dict[str, list[float]] = {"encoder": [], "decoder": []}
        thresholds: list[list[tuple[float, float]]] = []
        for seed in options.seeds:
            common = base(seed, options.silos, options.directions)
            public = done(out / f"{seed}-public", {**common, "rounds": 0})
            bleu["public"].append(public)
            later = {
                **common,
                "engine": {"pretrained": str(out / f"{seed}-public" / "engine")},
                "public": None,
                "rounds": options.rounds,
            }
            for name, groups in GROUPS.items():
                bleu[name].append(done(out / f"{seed}-{name}", {**later, "groups": groups}))
            settings = {**later, "selector": {"up": {"kind": "metasend"}}}
            bleu["metasend"].append(done(out / f"{seed}-metasend", settings))
            for side, value in families_found(out / f"{seed}-gradients", common["silos"]).items():
                found[side].append(value)
            thresholds.append(thetas(out / f"{seed}-metasend"))
            print(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.1f}" for name, values in bleu.items()), flush=True)
        print("\n".join(table(bleu, found, thresholds)))
    ahead = [a - b for a, b in zip(bleu["families"], bleu["none"], strict=True)]
    return 0 if min(ahead) > 0 and min(found["encoder"] + found["decoder"]) >= 0.9 else 1


def base(seed: int, silos: int, directions: str = "ring") -> dict[str, Any]:
    return {
        "name": f"toy-{seed}",
        "seed": seed,
        "engine": {"size": "toy", "vocabulary": 500},
        "public": {"source": "toy", "pairs": 6400},
        "silos": {
            "source": "toy",
            "silos": silos,
            "families": 4,
            "directions": directions,
            "pairs": 160,
            "seed": seed,
        },
        "split": {"dev": 0.1, "test": 0.45},
        "train": {"public_epochs": 20, "epochs": 2, "peak": 2e-3, "warmup": 50, "batch_tokens": 500},
        "merge": {"kind": "mean"},
        "baselines": [],
        "decode": {"longest": 30},
        "score": {"cross": False, "resamples": 0},
        "compute": {"device": "cpu", "precision": "fp32", "threads": 1},
    }


def done(folder: Path, settings: dict[str, Any]) -> float:
    """Macro BLEU of the federated engine."""
    house = RunFolder(folder)
    if not house.scores.exists():
        run(Recipe.model_validate(settings), folder, resume=house.recipe.exists())
    rows = json.loads(house.scores.read_text(encoding="utf-8"))["rows"]
    return float(statistics.mean(row["bleu"] for row in rows if row["model"] == "federated"))


def families_found(folder: Path, silos: dict[str, Any]) -> dict[str, float]:
    settings = ToySilos.model_validate(silos)
    state = checkpoint.load(RunFolder(folder).checkpoints / "federated" / "course.safetensors")
    grouping = Grouping.from_numbers(state.numbers["grouping"])
    tell = families.teller(settings)
    names = toy.names(settings)
    ends = toy.directions(settings)
    sources = agreement([grouping.label(name, "encoder") for name in names], [tell(e.source, "branch") for e in ends])
    targets = agreement([grouping.label(name, "decoder") for name in names], [tell(e.target, "branch") for e in ends])
    return {"encoder": sources, "decoder": targets}


def thetas(folder: Path) -> list[tuple[float, float]]:
    """θ of each round, and the dev loss of the engine it began from."""
    lines = RunFolder(folder).metrics.read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "chosen"]
    return [(event["theta"], event["loss"]) for event in events]


def table(
    bleu: dict[str, list[float]], found: dict[str, list[float]], thresholds: list[list[tuple[float, float]]]
) -> list[str]:
    lines = ["| groups | macro BLEU | less `none` |", "| --- | --: | --: |"]
    for name, values in bleu.items():
        ahead = [value - other for value, other in zip(values, bleu["none"], strict=True)]
        lines.append(f"| {name} | {spread(values)} | {spread(ahead, sign=True)} |")
    lines += ["", "| adjusted Rand index of `gradients` | mean ± deviation | least |", "| --- | --: | --: |"]
    lines += [f"| {side} | {spread(values, 2)} | {min(values):.2f} |" for side, values in found.items()]
    lines += ["", "| seed | θ in the first round | in the middle | in the last | with the dev loss: r |"]
    lines += ["| --- | --: | --: | --: | --: |"]
    for at, pairs in enumerate(thresholds, 1):
        series, losses = [theta for theta, _ in pairs], [loss for _, loss in pairs]
        middle = series[len(series) // 2]
        r = statistics.correlation(series, losses)
        lines.append(f"| {at} | {series[0]:.3f} | {middle:.3f} | {series[-1]:.3f} | {r:+.2f} |")
    return lines


def spread(values: list[float], digits: int = 1, sign: bool = False) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    mean = statistics.mean(values)
    return f"{mean:+.{digits}f} ± {deviation:.{digits}f}" if sign else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
