"""One table a paper on the real silos: every recipe of the paper, small enough for two cores.

    python bench/results.py roosta2021 passban2022 liu2023 chu2024 [--seeds 1] [--jobs 2] [--out runs/results]

The public engine of a preset is trained once, by the command that the table names, and every row begins from it; what
else is smaller than in the recipe stands in the table too. Rows that are whole are not run again. Writes
docs/results/PAPER.md: BLEU and chrF (macro), parameters and bytes, each row with its command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What stands behind this line of a page is written by hand, and kept.
READ = "## What we read in it"
ROOT = Path(__file__).resolve().parent.parent
FEDMT = Path(sys.executable).with_name("fedmt")
RECIPES = ROOT / "src" / "fedmt" / "recipes"


@dataclass(frozen=True)
class Setting:
    """How a paper's recipes are run here: silos, and what is smaller."""

    silos: str
    public: tuple[str, ...]
    row: tuple[str, ...]
    leave: tuple[str, ...] = ()
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)
    recipe: str | None = None
    """The one recipe that all rows begin from, where rows are no recipes of a paper."""


GERMAN = "{source: pypi, preset: german-english-8, limit: 300, names: [ticketing, localisation-desk, network-operations, learning-platform, mailing-lists]}"  # noqa: E501
MANY = "{source: pypi, preset: many-to-many-12, limit: 150}"
SMALLER = ("split.most_dev=40", "split.most_test=100", "train.batch_tokens=800", "score.cross=false")
ROUNDS = ("rounds=8", "train.steps=12", "train.peak=1e-3", "baselines=[]")
TOP = "{{kind: top_k, by: change, share: {0}}}"
HALF, UP, BOTH = "codec.kind=fp16", "selector={{up: {0}}}", "selector={{up: {0}, down: {0}}}"
DESIGNATED = "part={kind: controllers, how: designated, encoder: [1, 2], decoder: [1, 2]}"
PAPERS = {
    "bottom-line": Setting(
        GERMAN,
        ("public={source: pypi, name: homeassistant}",),
        ROUNDS,
        own={
            "all": (),
            "half": (HALF,),
            "top-10": (HALF, BOTH.format(TOP.format(0.1))),
            "controllers": (HALF, DESIGNATED),
            "controllers-top": (HALF, DESIGNATED, BOTH.format(TOP.format(0.1))),
            "controllers-up": (HALF, DESIGNATED, UP.format(TOP.format(0.3))),
            "adapters": (HALF, "part={kind: adapters, width: 64}", "train.peak=3e-3"),
        },
        recipe="roosta2021/6e-6d-aa",
    ),
    "roosta2021": Setting(GERMAN, ("public={source: pypi, name: homeassistant}",), ROUNDS),
    "passban2022": Setting(
        GERMAN,
        ("public={source: pypi, name: homeassistant}",),
        ROUNDS,
        own={"rounds-10": ("rounds=16", "train.steps=6"), "rounds-50": ("rounds=32", "train.steps=3")},
    ),
    "liu2023": Setting(MANY, (), ("rounds=5", "train.peak=1e-3", "baselines=[]"), leave=("m2en-",)),
    # On the German silos, beside dynamic pulling: there the public engine is good enough to tell selectors apart.
    "chu2024": Setting(GERMAN, ("public={source: pypi, name: homeassistant}",), ROUNDS, leave=("iid-",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="+", choices=PAPERS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--only", nargs="+", help="these recipes of the papers")
    options = parser.parse_args()
    for paper in options.papers:
        setting = PAPERS[paper]
        every = recipes(paper, setting)
        rows = [row for row in every if not options.only or row in options.only]
        publics = {seed: public(options.out, paper, setting, seed) for seed in options.seeds}
        commands = {
            (row, seed): command(paper, row, setting, publics[seed], seed) for row in rows for seed in options.seeds
        }
        folders = [options.out / paper / f"{row}-{seed}" for row, seed in commands]
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(once, folders, commands.values()))
        page = ROOT / "docs" / "results" / f"{paper}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        told = before.partition(READ)[2].strip("\n")
        lines = [f"# {paper}", "", *table(paper, every, setting, options.out, options.seeds), "", READ, "", told]
        page.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")
        print(f"wrote {page}")
    return 0


def recipes(paper: str, setting: Setting) -> list[str]:
    if setting.recipe is not None:
        return list(setting.own)
    names = sorted(path.stem for path in (RECIPES / paper).glob("*.yaml"))
    return [name for name in names if "common" not in name and not name.startswith(setting.leave or ("\0",))]


def public(out: Path, paper: str, setting: Setting, seed: int) -> Path:
    """The public engine of the paper's silos: the same for papers with the same."""
    which = "german" if setting.silos == GERMAN else "many"
    folder = out / f"public-{which}-{seed}"
    once(folder, public_command(paper, setting, seed))
    return folder / "engine"


def public_command(paper: str, setting: Setting, seed: int) -> list[str]:
    epochs = "train.public_epochs=6" if setting.silos == GERMAN else "train.public_epochs=14"
    changes = [f"silos={setting.silos}", *setting.public, "part={kind: all}", "rounds=0", "baselines=[]", epochs]
    return [
        setting.recipe or f"{paper}/common",
        *changes,
        *SMALLER[:2],
        "train.steps=null",
        "train.peak=null",
        f"seed={seed}",
    ]


def command(paper: str, row: str, setting: Setting, engine: Path, seed: int) -> list[str]:
    changes = [f"silos={setting.silos}", f"engine={{pretrained: {engine}}}", "train.public_epochs=0"]
    return [
        setting.recipe or f"{paper}/{row}",
        *changes,
        *SMALLER,
        *setting.row,
        *setting.own.get(row, ()),
        f"seed={seed}",
    ]


def once(folder: Path, settings: list[str]) -> None:
    if (folder / "scores.json").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    resume = ["--resume"] if (folder / "recipe.yaml").exists() else []
    order = [settings[0], *resume, *([] if resume else settings[1:]), "--out", str(folder), "--quiet"]
    log = folder.with_suffix(".log")
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            [str(FEDMT), "run", *(order if not resume else [str(folder), *order[1:]])],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
    print(f"{folder.name}: {'done' if code == 0 else f'failed, see {log}'}", flush=True)


def table(paper: str, rows: list[str], setting: Setting, out: Path, seeds: list[int]) -> list[str]:
    found = {row: [one for seed in seeds if (one := read(out / paper / f"{row}-{seed}"))] for row in rows}
    done = {row: each for row, each in found.items() if each}
    lines = [
        "| recipe | BLEU | chrF++ | up | down | parameters up, a silo and round | rounds |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for row, each in sorted(done.items(), key=lambda item: -statistics.mean(one["bleu"] for one in item[1])):
        first = each[0]
        lines.append(
            f"| `{row}` | {spread([one['bleu'] for one in each])} | {spread([one['chrf'] for one in each])} | "
            f"{first['up'] / 1e6:,.1f} MB | {first['down'] / 1e6:,.1f} MB | {first['parameters']:,.0f} | "
            f"{first['rounds']} |"
        )
    missing = [row for row in rows if row not in done]
    shown = " ".join(quoted(part) for part in command(paper, "ROW", setting, Path("PUBLIC/engine"), 0)[:-1])
    base = " ".join(quoted(part) for part in public_command(paper, setting, 0)[:-1])
    lines += [
        "",
        f"Seeds: {', '.join(map(str, seeds))}. Printed by `python bench/results.py {paper}`; the public engine by",
    ]
    lines += ["", f"    fedmt run {base} seed=SEED --out PUBLIC", "", "and each row by", ""]
    lines += [f"    fedmt run {shown} seed=SEED"]
    if setting.own:
        lines += ["", "with, besides:", ""]
        lines += [f"    {row:16} {' '.join(map(quoted, changes))}".rstrip() for row, changes in setting.own.items()]
    if missing:
        lines += ["", f"Not run: {', '.join(f'`{row}`' for row in missing)}."]
    return lines


def read(folder: Path) -> dict[str, Any] | None:
    if not (folder / "scores.json").exists():
        return None
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    rows = [row for row in scores["rows"] if row["model"] == "federated"]
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    entries = [entry for entry in entries if entry["model"] == "federated" and not entry["step"].startswith("score")]
    up = [entry for entry in entries if entry["direction"] == "up"]
    exchanges = {(entry["silo"], entry["round"]) for entry in up if entry["round"]}
    return {
        "bleu": statistics.mean(row["bleu"] for row in rows),
        "chrf": statistics.mean(row["chrf"] for row in rows),
        "up": sum(entry["bytes"] for entry in up),
        "down": sum(entry["bytes"] for entry in entries if entry["direction"] == "down"),
        "parameters": sum(entry["parameters"] for entry in up if entry["round"]) / max(1, len(exchanges)),
        "rounds": max((entry["round"] for entry in entries), default=0),
    }


def quoted(part: str) -> str:
    return f"'{part}'" if set(part) & set(" {[") else part


def spread(values: list[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    sys.exit(main())
