"""Du et al. 2023 on real silos: public, own memory, FedNN, FedAvg, ensembles, with bytes, operations and speed.

    python bench/fednn.py [--seeds 1 2 3] [--jobs 2] [--out runs/results] [--only ROW ...]

Every row begins from one public engine a seed, and all rows that train see the same number of epochs of each silo's
text. Operations are counted by torch on one batch of that very engine and text, and multiplied by the tokens that were
trained on or read. Rows that are whole are not run again. Writes docs/results/du2023.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedmt import recipe
from fedmt.corpus.batches import Examples, batches
from fedmt.corpus.pairs import Text
from fedmt.corpus.silos import gather
from fedmt.engine import decoder, device, engine
from fedmt.engine.ensemble import Voice
from fedmt.learner import encoded
from fedmt.memory import store
from fedmt.reading import read

EPOCHS = 12
SILOS = results.GERMAN.replace("limit: 300", "limit: 400")
SMALL = ("split.most_dev=100", "split.most_test=200", "train.batch_tokens=1000", "score.cross=false")
FEW = ("train.peak=1e-3",)


@dataclass(frozen=True)
class Row:
    recipe: str
    changes: tuple[str, ...]
    models: dict[str, str]
    """Of the table's rows, which model of the run each is."""


def merged(every: int) -> tuple[str, ...]:
    return (f"train.epochs={every}", f"rounds={EPOCHS // every}", *FEW)


ROWS = {
    "fednn": Row("fednn", (), {"public (P-NMT)": "public", "own memory": "memory", "FedNN": "federated"}),
    "fednn-80": Row("fednn-80", (), {"FedNN, 64-byte codes, no gate": "federated"}),
    "fednn-pruned": Row("fednn-pruned", (), {"FedNN, pruned": "federated"}),
    "fednn-weights": Row(
        "fednn-weights",
        ("train.epochs=2", "rounds=6", *FEW),
        {"FedAvg2": "weights", "FedAvg2, then FedNN": "federated", "FedAvg2, then own memory": "memory"},
    ),
    "fedavg-1": Row("fedavg-1", merged(1), {"FedAvg1": "federated"}),
    "fedavg-4": Row("fedavg-5", merged(4), {"FedAvg4": "federated"}),
    "fedavg-1-s": Row("fedavg-1-s", merged(1), {"FedAvg1, the server too": "federated"}),
    "ft-ensemble": Row(
        "ft-ensemble",
        merged(EPOCHS),
        {
            "alone": "alone",
            "FT-Ensemble": "ensemble",
            "FT-Ensemble, by size": "ensemble_sized",
            "FedAvg∞": "federated",
        },
    ),
    "c-nmt": Row("c-nmt", merged(EPOCHS), {"all text in one place (C-NMT)": "combined"}),
    "controllers": Row("controllers", (f"rounds={EPOCHS}", "train.peak=1e-3"), {"Controllers": "federated"}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--only", nargs="+", choices=ROWS)
    parser.add_argument("--repeats", type=int, default=3, help="of the speed's measurement; 0: none")
    options = parser.parse_args()
    rows = options.only or list(ROWS)
    for seed in options.seeds:
        results.once(options.out / f"du2023-public-{seed}", public(seed))
    orders = {(row, seed): order(row, seed, options.out) for row in rows for seed in options.seeds}
    with ThreadPoolExecutor(options.jobs) as pool:
        folders = [options.out / "du2023" / f"{row}-{seed}" for row, seed in orders]
        list(pool.map(results.once, folders, orders.values()))
    page = results.ROOT / "docs" / "results" / "du2023.md"
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    told = before.partition(results.READ)[2].strip("\n")
    lines = ["# du2023", "", *table(options.out, options.seeds, options.repeats), "", results.READ, "", told]
    page.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")
    print(f"wrote {page}")
    return 0


def public(seed: int) -> list[str]:
    home = ("public={source: pypi, name: homeassistant}", "train.public_epochs=8")
    return ["du2023/p-nmt", f"silos={SILOS}", *home, *SMALL, "baselines=[]", f"seed={seed}"]


def order(row: str, seed: int, out: Path) -> list[str]:
    begun = f"engine={{pretrained: {out}/du2023-public-{seed}/engine}}"
    home = ("public={source: pypi, name: homeassistant}", "train.public_epochs=0")
    return [f"du2023/{ROWS[row].recipe}", f"silos={SILOS}", begun, *home, *SMALL, *ROWS[row].changes, f"seed={seed}"]


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


def table(out: Path, seeds: list[int], repeats: int) -> list[str]:
    found: dict[str, dict[str, list[float]]] = {}
    costs: dict[str, dict[str, float]] = {}
    runs = 0
    counted: Counted | None = None
    for seed in seeds:
        for row in ROWS:
            folder = out / "du2023" / f"{row}-{seed}"
            if not (folder / "scores.json").exists():
                continue
            counted = counted or Counted.of(folder)
            runs += 1
            for title, model in ROWS[row].models.items():
                one = found.setdefault(title, {"bleu": [], "chrf": []})
                bleu, chrf = macro(folder, model)
                one["bleu"].append(bleu)
                one["chrf"].append(chrf)
                costs.setdefault(title, cost(folder, model, counted))
    assert counted is not None
    speeds = speed(out / "du2023" / f"fednn-{seeds[0]}", counted, repeats) if repeats else {}
    most = costs.get("FedAvg1", {}).get("bytes", 0.0)
    lines = [
        "| | BLEU | chrF++ | bytes | FedAvg1's, so many times | operations | words a second |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for title, one in sorted(found.items(), key=lambda item: -statistics.mean(item[1]["bleu"])):
        bytes_, operations = costs[title]["bytes"], costs[title]["operations"]
        times = f"{most / bytes_:,.1f}" if bytes_ and most else ""
        fast = speeds.get(title, "")
        lines.append(
            f"| {title} | {results.spread(one['bleu'])} | {results.spread(one['chrf'])} | {bytes_ / 1e6:,.1f} MB | "
            f"{times} | {operations:.1e} | {fast} |"
        )
    names = ", ".join(f"{seed}" for seed in seeds)
    shown = " ".join(map(results.quoted, order("fednn", 0, Path("OUT"))[1:-1]))
    lines += ["", f"Seeds: {names} ({runs} runs). Printed by `python bench/fednn.py`; the public engine by", ""]
    lines += [
        "    fedmt run " + " ".join(map(results.quoted, public(0)[:-1])) + " seed=SEED",
        "",
        "and each row by",
        "",
    ]
    lines += [f"    fedmt run du2023/ROW {shown} seed=SEED", "", "with, besides:", ""]
    lines += [f"    {row.recipe:14} {' '.join(row.changes)}".rstrip() for row in ROWS.values()]
    return lines


def macro(folder: Path, model: str) -> tuple[float, float]:
    """Each silo's own where there is one a silo."""
    rows = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["rows"]
    own = [row for row in rows if row["model"] in (model, f"{model}:{row['silo']}")]
    return statistics.mean(row["bleu"] for row in own), statistics.mean(row["chrf"] for row in own)


@dataclass(frozen=True)
class Counted:
    """Operations a target token, read or trained on; the text's tokens; and the engine's bytes."""

    read: float
    written: float
    tokens: int
    silos: int
    engine_bytes: int
    made: engine.Engine
    texts: list[Text]

    @classmethod
    def of(cls, folder: Path) -> Counted:
        plan = read(str(folder / "recipe.yaml"))
        assert isinstance(plan.engine, recipe.Pretrained)
        made = engine.load(plan.engine.pretrained)
        texts = gather(plan).silos
        examples = [encoded(made, [text], plan.train.longest, lambda _: None)[0] for text in texts]
        # Of the whole engine but the output layer, which records do without; then of all.
        kept, whole = operations(made, examples[0], False), operations(made, examples[0], True)
        tokens = sum(int(one.target_lengths.sum()) for one in examples)
        size = sum(tensor.numel() * 4 for tensor in made.tensors().values())
        return cls(kept, whole, tokens, len(texts), size, made, texts)


def operations(made: engine.Engine, examples: Examples, head: bool) -> float:
    """Floating-point operations of one forward pass, a target token."""
    _, _, batch = next(iter(batches(examples, made.vocabulary.pad, 1000, 0)))
    shifted = torch.cat([torch.full_like(batch.target[:, :1], made.vocabulary.start), batch.target[:, :-1]], dim=1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        found = made.model.model(input_ids=batch.source, decoder_input_ids=shifted)
        if head:
            made.model.lm_head(found.last_hidden_state)
    return counter.get_total_flops() / int(batch.target.ne(made.vocabulary.pad).sum())


def cost(folder: Path, model: str, counted: Counted) -> dict[str, float]:
    """Bytes of the federation, the engine's way to the silos counted where it begins with them; and operations."""
    lines = (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    entries = [one for one in entries if one["model"] == "federated" and not one["step"].startswith("score")]
    sent = float(sum(one["bytes"] for one in entries if one["step"] != "recite"))
    trained = _tokens(folder, "alone" if model.startswith("ensemble") else model)
    # Forward, and twice that backward.
    made = 3 * trained * counted.written
    down, n = counted.silos * counted.engine_bytes, counted.silos
    rounds = any(one["step"] == "fit" for one in entries)
    if rounds and model in ("weights", "memory"):
        # What the rounds cost stands under the model that they made.
        made = 3 * _tokens(folder, "federated") * counted.written
        made += counted.tokens * counted.read if model == "memory" else 0
        fits = float(sum(one["bytes"] for one in entries if one["step"] in ("fit", "base")))
        return {"bytes": fits, "operations": made}
    if model in ("public", "alone", "combined", "memory"):
        made += counted.tokens * counted.read if model == "memory" else 0
        return {"bytes": 0.0 if model == "combined" else float(down), "operations": made}
    if model.startswith("ensemble"):
        # The engine to each, each one's engine to the server, and all of them to everyone.
        return {"bytes": float(counted.engine_bytes * (n + n + n * n)), "operations": made}
    if "memory" in (folder / "recipe.yaml").read_text(encoding="utf-8"):
        made += counted.tokens * counted.read
        # Where no round has brought the engine, its way to the silos still counts.
        sent += 0 if any(one["step"] == "fit" for one in entries) else down
    return {"bytes": sent, "operations": made}


def _tokens(folder: Path, model: str) -> float:
    """Target tokens that it was trained on, each as often as it was."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [one for one in map(json.loads, lines) if one["event"] == "trained"]
    return float(sum(one["tokens"] for one in events if one["model"].partition(":")[0] == model))


def speed(folder: Path, counted: Counted, repeats: int) -> dict[str, str]:
    """Words a second of the engine, with the memory, and of as many engines as silos: the same sentences, in turns."""
    if not (folder / "memory").exists():
        return {}
    plan = read(str(folder / "recipe.yaml"))
    machine = device.choose(plan.compute)
    made = engine.load(str(folder / "engine"))
    direction = counted.texts[0].direction
    memory = store.load(folder / "memory", direction, made)
    assert memory is not None
    sentences = [pair.source for text in counted.texts for pair in text.test][:300]
    voices = [Voice(made.model) for _ in counted.texts]
    ways: dict[str, dict[str, Any]] = {
        "public (P-NMT)": {},
        "FedNN": {"memory": memory},
        "FT-Ensemble": {"voices": voices},
    }
    taken: dict[str, list[float]] = {title: [] for title in ways}
    for _ in range(repeats + 1):
        for title, way in ways.items():
            begun = time.perf_counter()
            texts = decoder.translate(made, sentences, direction, plan.decode, machine, **way)
            words = sum(len(text.split()) for text in texts)
            taken[title].append(words / (time.perf_counter() - begun))
    # The first of each warms up.
    middle = {title: statistics.median(each[1:]) for title, each in taken.items()}
    first = middle["public (P-NMT)"]
    return {title: f"{value:,.0f} ({value / first:.2f} ×)" for title, value in middle.items()}


if __name__ == "__main__":
    sys.exit(main())
