"""A run folder as an experiment leaves it, made without training: five silos, five rounds, invented sentences."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import yaml

from fedmt.events import Choice, Scored, Trained, Travelled
from fedmt.exchange.ledger import Entry
from fedmt.report.folder import About, Facts, RunFolder, versions
from fedmt.score.bootstrap import resample, seed_of
from fedmt.score.rows import Bytes, Measured, collect, write_measured
from fedmt.score.statistics import measure

SILOS = {"clinic": 10_480, "smart-home": 9_912, "ticketing": 4_930, "genealogy": 1_870, "mail": 288}
ROUNDS = 5
PARAMETERS = 7_200_000

PARTS = {
    "clinic": (
        [("Der Patient", "The patient"), ("Die Ärztin", "The doctor"), ("Das Labor", "The laboratory")],
        [("meldet", "reports"), ("prüft", "checks"), ("bestätigt", "confirms")],
        [("eine akute Entzündung", "an acute inflammation"), ("den erhöhten Blutdruck", "the raised blood pressure")],
    ),
    "smart-home": (
        [("Das Licht", "The light"), ("Der Sensor", "The sensor"), ("Die Heizung", "The heating")],
        [("meldet", "reports"), ("verliert", "loses"), ("erkennt", "detects")],
        [("keine Verbindung", "no connection"), ("eine Bewegung im Flur", "motion in the hallway")],
    ),
    "ticketing": (
        [("Der Gutschein", "The voucher"), ("Die Bestellung", "The order"), ("Das Ticket", "The ticket")],
        [("enthält", "contains"), ("braucht", "needs"), ("verliert", "loses")],
        [("eine gültige Zahlung", "a valid payment"), ("den Namen der Teilnehmerin", "the name of the attendee")],
    ),
    "genealogy": (
        [("Die Familie", "The family"), ("Der Stammbaum", "The family tree"), ("Das Archiv", "The archive")],
        [("enthält", "contains"), ("zeigt", "shows"), ("sucht", "looks for")],
        [("zwei Taufregister", "two baptism registers"), ("den Ort der Hochzeit", "the place of the wedding")],
    ),
    "mail": (
        [("Die Liste", "The list"), ("Der Moderator", "The moderator"), ("Der Verteiler", "The mailing list")],
        [("prüft", "checks"), ("löscht", "deletes"), ("meldet", "reports")],
        [("jede neue Nachricht", "every new message"), ("<alle> & \"toten\" Adressen", "<all> & \"dead\" addresses")],
    ),
}  # fmt: skip
WAYS: tuple[tuple[Literal["up", "down"], int], ...] = (("down", 0), ("up", 812))
ENDS = [
    ("nach dem Neustart.", "after the restart."),
    ("im laufenden Jahr.", "in the current year."),
    ("und wartet auf eine Antwort.", "and waits for an answer."),
    ("vor der nächsten Sitzung.", "before the next session."),
]

# The share of a reference's words that a model gets right, by model and silo.
PUBLIC = {"clinic": 0.45, "smart-home": 0.62, "ticketing": 0.55, "genealogy": 0.58, "mail": 0.5}
ALONE = {"clinic": 0.86, "smart-home": 0.85, "ticketing": 0.76, "genealogy": 0.66, "mail": 0.42}
FEDERATED = {"clinic": 0.85, "smart-home": 0.88, "ticketing": 0.82, "genealogy": 0.79, "mail": 0.75}
COMBINED = {"clinic": 0.9, "smart-home": 0.9, "ticketing": 0.86, "genealogy": 0.83, "mail": 0.8}


def pairs(silo: str, n: int, seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(f"{seed}{silo}")
    made = [[draw.choice(slot) for slot in (*PARTS[silo], ENDS)] for _ in range(n)]
    return [" ".join(part[0] for part in row) for row in made], [" ".join(part[1] for part in row) for row in made]


def guess(references: list[str], right: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = sorted({word for reference in references for word in reference.split()})
    guesses = []
    for reference in references:
        kept = [word if draw.random() < right else draw.choice(["", draw.choice(words)]) for word in reference.split()]
        guesses.append(" ".join(word for word in kept if word))
    return guesses


def levels() -> dict[str, dict[str, float]]:
    alone = {
        f"alone:{silo}": {other: ALONE[silo] if other == silo else PUBLIC[other] * 0.7 for other in SILOS}
        for silo in SILOS
    }
    return {"public": PUBLIC, **alone, "federated": FEDERATED, "combined": COMBINED}


def build(
    path: Path,
    *,
    n: int = 60,
    resamples: int = 200,
    text: bool = True,
    dev_scores: bool = True,
    seed: int = 1,
    share: float = 1.0,
) -> RunFolder:
    """`seed` changes the hypotheses, `share` how much of the engine travelled."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    folder.recipe.write_text(yaml.safe_dump(recipe(seed), sort_keys=False))
    silos = [
        Facts(silo, "de-en", size, 500, n, f"licence of {silo}", f"{silo}==1.0 on PyPI", {"copies": size // 9})
        for silo, size in SILOS.items()
    ]
    public = Facts("public", "de-en", 11_830, 500, 1000, "Apache-2.0", "network==4.7.3 on PyPI", {"duplicates": 431})
    folder.write_about(
        About(silos, public, versions(), {"parameters": PARAMETERS, "size": "small"}, "2026-11-18 20:15")
    )
    _events(folder, dev_scores)
    size = int(4 * PARAMETERS * share)
    with folder.ledger.open("w") as ledger:
        for model, silo, round_ in travels():
            for way, extra in WAYS:
                step = Entry(model, round_, "fit", silo, way, size + extra, size // 4, 98)
                ledger.write(json.dumps(asdict(step)) + "\n")

        for silo in SILOS:
            ledger.write(
                json.dumps(asdict(Entry("federated", 0, "score:test", silo, "down", size, size // 4, 98))) + "\n"
            )

    measured: dict[tuple[str, str], Measured] = {}
    for silo in SILOS:
        source, reference = pairs(silo, n, 1)
        if text:
            folder.write_lines("source", silo, source)
            folder.write_lines("reference", silo, reference)
        for number, (model, right) in enumerate(levels().items()):
            hypotheses = guess(reference, right[silo], seed * 100 + number)
            statistics = measure(hypotheses, reference)
            measured[model, silo] = Measured(statistics.summed(), resample(statistics, resamples, seed_of(silo)))
            if text:
                folder.write_lines(model, silo, hypotheses)
    write_measured(folder.resamples, measured)
    total = folder.travelled("federated")
    spent = Bytes(up=total.up_bytes, down=total.down_bytes)
    collect(measured, dict.fromkeys(SILOS, "de-en"), "public", spent, 571.3).write(folder.scores)
    return folder


def travels() -> list[tuple[str, str, int]]:
    federated = [("federated", silo, round_) for round_ in range(1, ROUNDS + 1) for silo in SILOS]
    alone = [(f"alone:{silo}", silo, round_) for silo in SILOS for round_ in range(1, ROUNDS + 1)]
    return federated + alone


def recipe(seed: int) -> dict[str, object]:
    return {
        "name": "demo",
        "seed": seed,
        "engine": {"architecture": "marian", "size": "small"},
        "public": {"source": "pypi", "name": "network", "from": "de", "to": "en"},
        "silos": {"source": "pypi", "preset": "german-english-8", "names": list(SILOS)},
        "part": {"kind": "all"},
        "codec": {"kind": "fp32"},
        "merge": {"kind": "samples"},
        "rounds": ROUNDS,
        "baselines": ["public", "alone", "combined"],
        "score": {"resamples": 200, "against": "public"},
    }


def _events(folder: RunFolder, dev_scores: bool) -> None:
    folder.tell(Choice("device", "cpu", "no accelerator was found"))
    folder.tell(Choice("precision", "bf16", "the processor multiplies bf16 matrices (avx512_bf16)"))
    folder.tell(Choice("threads", "1", "2 cores for 2 silos at a time; more threads than cores cost time"))
    for index, (silo, size) in enumerate(SILOS.items()):
        hardness = 2.1 + 0.9 * math.log10(11_000 / size) + 0.1 * index
        for round_ in range(1, ROUNDS + 1):
            for model, floor, pace in ((f"alone:{silo}", hardness, 0.55), ("federated", 2.0 + 0.08 * index, 0.5)):
                start = hardness + 2.4
                loss = floor + (start - floor) * math.exp(-pace * (round_ - 1))
                loss += 0.18 * max(0, round_ - 3) if floor > 2.6 else 0
                folder.tell(Trained(model, silo, round_, loss - 0.3, loss, 100_000, 60, 8.5))
            size_ = 4 * PARAMETERS
            folder.tell(Travelled("federated", silo, round_, size_ + 812, PARAMETERS, size_, PARAMETERS))
            if dev_scores:
                bleu = 8 + (22 - 2 * index) * (1 - math.exp(-0.6 * round_))
                folder.tell(Scored("federated", silo, "dev", bleu, bleu + 24, 500, round_))
