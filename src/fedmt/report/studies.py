"""What a run's files say of its federation, as the papers tell it: what was saved, what a round costs, where its time
goes, learning by steps. Values and their tables; knows no plot, no page, and nothing of how the run was made.

Each table stands for one run as for several, one row (or three, of times) a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from fedmt.exchange.ledger import Entry
from fedmt.report.folder import About, RunFolder
from fedmt.report.tables import MISSING, Cell, Column, Table, amount, count

__all__ = [
    "BANDWIDTH",
    "WAYS",
    "Cost",
    "Passed",
    "Saving",
    "Study",
    "Time",
    "Transfer",
    "cost",
    "costs",
    "gather",
    "learning",
    "passed",
    "percent",
    "saving",
    "savings",
    "seconds",
    "tables",
    "thresholds",
    "time",
    "times",
    "transfer",
    "transfers",
]

MODEL = "federated"
BANDWIDTH = 1000.0  # Mbit/s: the server's of Liu et al., section 2.4
_EXCHANGES = ("fit", "send")
_WIDTHS = {"fp32": 4, "fp16": 2}
_AT_SILOS, _AT_SERVER = ("train", "choose", "encode", "judge"), ("merge",)

Way = Literal["up", "down"]
What = Literal["tensors", "parameters", "bytes"]
WAYS: tuple[Way, ...] = ("up", "down")
_WHAT: tuple[What, ...] = ("tensors", "parameters", "bytes")


@dataclass(frozen=True)
class Study:
    """One run, read once: of its federation, the messages of its rounds and what was told of them."""

    name: str
    recipe: Mapping[str, Any]
    about: About | None
    entries: list[Entry]
    trained: list[dict[str, Any]] = field(default_factory=list)
    spent: list[dict[str, Any]] = field(default_factory=list)
    chosen: list[dict[str, Any]] = field(default_factory=list)
    shifted: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rounds(self) -> list[int]:
        return sorted({entry.round for entry in self.entries})

    @property
    def silos(self) -> list[str]:
        return list(dict.fromkeys(entry.silo for entry in self.entries))

    @property
    def parts(self) -> Mapping[str, int]:
        """Parameters trained, shared, total, total_without_embedding; empty for a run that does not tell."""
        return dict(self.about.engine.get("parts", {})) if self.about else {}

    @property
    def told(self) -> bool:
        """Whether there is more to say than the report says anyway."""
        return bool(self.spent or self.chosen or self.shifted)

    def kind(self, *keys: str) -> str:
        """Of one of the recipe's choices, as in `selector`, `up`."""
        value: Any = self.recipe
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return str(value.get("kind", "")) if isinstance(value, Mapping) else ""

    def sent(self, way: Way) -> list[Entry]:
        return [entry for entry in self.entries if entry.direction == way]

    def shared(self) -> dict[str, Entry]:
        """Of each silo, the message that holds all that is shared: its first, since it has nothing to add a part to."""
        found: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.parameters > (found[entry.silo].parameters if entry.silo in found else 0):
                found[entry.silo] = entry
        return found


def gather(folder: RunFolder, name: str = "") -> Study:
    entries = [entry for entry in folder.entries(MODEL) if entry.round and entry.step in _EXCHANGES]
    told: dict[str, dict[tuple[str, int], dict[str, Any]]] = defaultdict(dict)
    for event in folder.events("trained", "spent", "chosen", "shifted"):
        if event.get("model") == MODEL:
            kind, key = str(event["event"]), (str(event.get("who", event.get("silo", ""))), int(event["round"]))
            # A resumed run tells a round again; what two steps of one round took is told twice.
            if kind == "spent" and key in told[kind]:
                event = {**event, "seconds": {**told[kind][key]["seconds"], **event["seconds"]}}
            told[kind][key] = event
    some = {kind: list(told[kind].values()) for kind in ("trained", "spent", "chosen", "shifted")}
    return Study(name or folder.name, folder.read_recipe(), folder.read_about(), entries, **some)


# ── what was saved ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Saving:
    """What went one way in all rounds, what sending all of the shared part would have been, and the whole engine."""

    run: str
    way: Way
    messages: int
    tensors: int
    parameters: int
    bytes: int
    of_tensors: int
    of_parameters: int
    of_bytes: int
    whole_parameters: int | None
    whole_bytes: int | None

    def saved(self, what: What) -> float:
        """The share that did not travel, of what is shared."""
        return _less(getattr(self, what), getattr(self, f"of_{what}")) or 0.0

    def shares(self) -> dict[str, float]:
        return {what: self.saved(what) for what in _WHAT}

    def saved_of_engine(self, what: Literal["parameters", "bytes"]) -> float | None:
        return _less(getattr(self, what), getattr(self, f"whole_{what}"))


def saving(study: Study, way: Way = "up") -> Saving | None:
    """None where nothing travelled."""
    full, entries = study.shared(), study.sent(way)
    if not full or not entries:
        return None
    rounds = {(entry.silo, entry.round) for entry in entries}
    whole = _engine(study)
    of_engine = whole * len(rounds) if whole else None
    of_parameters, of_bytes = (sum(getattr(full[silo], what) for silo, _ in rounds) for what in ("parameters", "bytes"))
    wide = _WIDTHS.get(study.kind("codec"))
    return Saving(
        study.name,
        way,
        len(rounds),
        sum(entry.tensors for entry in entries),
        sum(entry.parameters for entry in entries),
        sum(entry.bytes for entry in entries),
        sum(full[silo].tensors for silo, _ in rounds),
        of_parameters,
        of_bytes,
        of_engine,
        of_bytes if of_parameters == of_engine else of_engine * wide if of_engine and wide else None,
    )


def savings(studies: Sequence[Study]) -> Table:
    columns = [Column("run", align="left"), Column("way", align="left")]
    columns += [Column(title, "sent") for title in _WHAT]
    columns += [Column(title, "saved") for title in _WHAT]
    columns += [Column(title, "of the engine") for title in ("parameters", "bytes")]
    rows = []
    for study in studies:
        for one in (saving(study, way) for way in WAYS):
            if one is None or (one.way == "down" and one.parameters == one.of_parameters):
                continue
            sent = [number / one.messages for number in (one.tensors, one.parameters, one.bytes)]
            row = [
                Cell(study.name if one.way == "up" else ""),
                Cell(one.way),
            ]
            row += [Cell(f"{sent[0]:.4g}"), Cell(count(round(sent[1]))), Cell(amount(sent[2]))]
            row += [Cell(percent(one.saved(what)), strong=True) for what in _WHAT]
            row += [Cell(percent(one.saved_of_engine(what))) for what in ("parameters", "bytes")]
            rows.append(row)
    notes = [
        "Sent: by a silo in a round, on average. Saved: what did not travel, of all of the shared part; "
        "of the engine: the same, of the whole engine."
    ]
    return Table("Tensors, parameters and bytes saved", columns, rows, notes=notes)


# ── what a round costs ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cost:
    """C-Cost and T-Cost of Roosta et al.: parameters of a silo's exchange, and those it trains; None: not told."""

    run: str
    part: str
    exchanged: int
    trained: int | None
    exchanged_bare: int | None
    trained_bare: int | None
    engine: int | None
    sent: float

    @property
    def ratio(self) -> float | None:
        """How many times less than an exchange of the whole engine."""
        return self.engine / self.exchanged if self.engine and self.exchanged else None


def cost(study: Study) -> Cost | None:
    full = study.shared()
    if not full:
        return None
    parts, part = study.parts, study.kind("part") or "all"
    exchanged = parts.get("shared", max(entry.parameters for entry in full.values()))
    total, bare = parts.get("total", _engine(study)), parts.get("total_without_embedding")
    trained = parts.get("trained", total if part == "all" else None)

    def without(number: int | None) -> int | None:
        # A part is all of the engine, its embeddings too, or modules within the layers.
        return bare if number is not None and number == total else number

    one = saving(study)
    sent = one.parameters / one.messages if one else 0.0
    return Cost(study.name, part, exchanged, trained, without(exchanged), without(trained), total, sent)


def costs(studies: Sequence[Study]) -> Table:
    columns = [Column("run", align="left"), Column("part", align="left")]
    columns += [Column(title) for title in ("C-Cost", "T-Cost")]
    columns += [Column(title, "no embeddings") for title in ("C-Cost", "T-Cost")]
    columns += [Column("sent up"), Column("engine"), Column("engine / C")]
    rows = []
    for study in studies:
        if (one := cost(study)) is not None:
            numbers = (one.exchanged, one.trained, one.exchanged_bare, one.trained_bare, round(one.sent), one.engine)
            cells = [Cell(MISSING if number is None else count(number)) for number in numbers]
            ratio = MISSING if one.ratio is None else f"{one.ratio:.3g}×"
            rows.append([Cell(study.name), Cell(one.part), *cells, Cell(ratio)])
    notes = [
        "In parameters. C-Cost: of the part that is exchanged; T-Cost: trained at a silo; "
        "sent up: of C-Cost, what the selector let through, a silo and round."
    ]
    return Table("C-Cost and T-Cost", columns, rows, notes=notes)


@dataclass(frozen=True)
class Transfer:
    """Seconds of one exchange at a bandwidth, by the bytes that were counted; `training` is a silo's, of a round."""

    run: str
    silos: int
    bandwidth: float
    up_bytes: float
    down_bytes: float
    whole_bytes: float | None
    training: float | None

    def seconds(self, bytes_: float) -> float:
        return bytes_ * 8 / (self.bandwidth * 1e6)

    @property
    def up(self) -> float:
        return self.seconds(self.up_bytes)

    @property
    def down(self) -> float:
        return self.seconds(self.down_bytes)

    @property
    def share(self) -> float | None:
        """Of a silo's training and all silos' sending, how much is sending."""
        sending = self.up * self.silos
        return sending / (sending + self.training) if self.training else None


def transfer(study: Study, bandwidth: float = BANDWIDTH) -> Transfer | None:
    up, down = saving(study, "up"), saving(study, "down")
    if up is None or down is None:
        return None
    whole = up.whole_bytes / up.messages if up.whole_bytes else None
    taken = [event["seconds"]["train"] for event in study.spent if "train" in event["seconds"]]
    sizes = up.bytes / up.messages, down.bytes / down.messages
    return Transfer(study.name, len(study.silos), bandwidth, *sizes, whole, fmean(taken) if taken else None)


def transfers(studies: Sequence[Study], bandwidth: float = BANDWIDTH) -> Table:
    columns = [Column("run", align="left"), Column("silos"), Column("bytes up")]
    groups = ("up", "down", "engine")
    columns += [Column(who, group) for group in groups for who in ("one silo", "all silos")]
    columns += [Column("sending")]
    rows = []
    for study in studies:
        if (one := transfer(study, bandwidth)) is not None:
            whole = one.seconds(one.whole_bytes) if one.whole_bytes else None
            row = [Cell(study.name), Cell(str(one.silos)), Cell(amount(one.up_bytes))]
            for each in (one.up, one.down, whole):
                row += [Cell(seconds(each)), Cell(seconds(None if each is None else each * one.silos))]
            rows.append([*row, Cell(percent(one.share))])
    notes = [
        f"Bytes · 8 / {bandwidth:g} Mbit/s, an exchange; all silos: one after the other, as they share the server's "
        "bandwidth. Engine: as if all of it went. Sending: the share of all silos' sending up in that and a silo's training."
    ]
    return Table(f"Transfer time at {bandwidth:g} Mbit/s", columns, rows, notes=notes)


# ── where a round's time goes ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Time:
    """Mean seconds of a round: of each thing, at one silo and at all silos together; `whole` by the server's clock."""

    run: str
    rounds: int
    a_silo: dict[str, float]
    a_round: dict[str, float]
    whole: float

    @property
    def rest(self) -> float:
        """Messages, files, waiting: what nobody claimed."""
        return max(self.whole - sum(self.a_round.values()), 0.0)


def time(study: Study) -> Time | None:
    ends = {event["round"]: event["seconds"] for event in study.spent if event["who"] == "server"}
    if not ends:
        return None
    at_silos = [event["seconds"] for event in study.spent if event["who"] != "server" and event["round"] in ends]
    a_silo, a_round = {}, {}
    for what in _AT_SILOS:
        if taken := [float(one[what]) for one in at_silos if what in one]:
            a_silo[what], a_round[what] = fmean(taken), sum(taken) / len(ends)
    for what in _AT_SERVER:
        a_round[what] = fmean(float(one.get(what, 0.0)) for one in ends.values())
    return Time(study.name, len(ends), a_silo, a_round, fmean(float(one["round"]) for one in ends.values()))


def times(studies: Sequence[Study]) -> Table:
    columns = [Column("run", align="left"), Column("mean seconds", align="left")]
    columns += [Column(what, "silos") for what in _AT_SILOS]
    columns += [Column(title, "server") for title in (*_AT_SERVER, "rest", "round")]
    columns += [Column("less training")]
    rows = []
    for study in studies:
        if (one := time(study)) is not None:
            names = (*_AT_SILOS, *_AT_SERVER)
            less = one.whole - one.a_round.get("train", 0.0)
            each_silo = [Cell(seconds(one.a_silo[name]) if name in one.a_silo else "") for name in names]
            rows.append([Cell(study.name), Cell("a silo"), *each_silo, Cell(""), Cell(""), Cell("")])
            some = [*(one.a_round.get(name) for name in names), one.rest, one.whole, less]
            rows.append([Cell(""), Cell("all silos"), *(Cell(seconds(each)) for each in some)])
            parts = [percent(None if each is None or not one.whole else each / one.whole) for each in some]
            rows.append([Cell(""), Cell("of the round"), *(Cell(part, strong=True) for part in parts)])
    notes = ["Rest: messages, files and waiting. On this machine; what travels over a network comes on top."]
    return Table("Where a round's time goes", columns, rows, notes=notes)


# ── what passed, and learning ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Passed:
    """Of one round: the shares of the shared tensors and parameters that silos sent, and θ where there is one."""

    round: int
    tensors: float
    parameters: float
    theta: float | None = None


def passed(study: Study) -> list[Passed]:
    full = study.shared()
    thetas = {event["round"]: float(event["theta"]) for event in study.chosen}
    found = []
    for round_ in study.rounds:
        entries = [entry for entry in study.sent("up") if entry.round == round_]
        silos = {entry.silo for entry in entries}
        if silos:
            tensors = sum(entry.tensors for entry in entries) / sum(full[silo].tensors for silo in silos)
            parameters = sum(entry.parameters for entry in entries) / sum(full[silo].parameters for silo in silos)
            found.append(Passed(round_, tensors, parameters, thetas.get(round_)))
    return found


def thresholds(study: Study) -> Table | None:
    """θ by rounds with what it let through; None where there is none."""
    rounds = [one for one in passed(study) if one.theta is not None]
    if not rounds:
        return None
    columns = [Column(title) for title in ("round", "θ", "tensors sent", "parameters sent")]
    rows = [[Cell(str(one.round)), Cell(f"{one.theta:.3f}"), Cell(percent(one.tensors)), Cell(percent(one.parameters))]
            for one in rounds]  # fmt: skip
    return Table(f"θ of {study.name}", columns, rows)


def learning(study: Study) -> list[tuple[float, float]]:
    """(steps a silo has done, mean over silos; their dev loss, weighted by training pairs), one point a round.

    A silo measures the engine that it is sent, so a round's loss stands where the rounds before it ended, and the last
    round's own engine has no point.
    """
    pairs = {silo.name: max(silo.train, 1) for silo in study.about.silos} if study.about else {}
    done: dict[str, int] = defaultdict(int)
    found = []
    for round_ in sorted({int(event["round"]) for event in study.trained}):
        here = [event for event in study.trained if event["round"] == round_]
        known = [
            (pairs.get(event["who"], 1), float(event["dev_loss"])) for event in here if event["dev_loss"] is not None
        ]
        if known:
            loss = sum(weight * each for weight, each in known) / sum(weight for weight, _ in known)
            found.append((fmean(done[event["who"]] for event in here), loss))
        for event in here:
            done[event["who"]] += int(event["steps"])
    return found


def tables(studies: Sequence[Study], bandwidth: float = BANDWIDTH) -> list[Table]:
    """All that have a row."""
    some: Iterable[Table | None] = (
        savings(studies),
        costs(studies),
        transfers(studies, bandwidth),
        times(studies),
        *(thresholds(study) for study in studies),
    )
    return [table for table in some if table is not None and table.rows]


def seconds(value: float | None) -> str:
    """3.4 ms, 0.35 s, 19.5 s, 1,240 s."""
    if value is None:
        return MISSING
    if value >= 0.0995:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:,.0f} s"
    if value >= 0.00995:
        return f"{value * 1000:.0f} ms"
    return f"{value * 1000:.1f} ms" if value >= 0.00005 else "< 0.1 ms"


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value + 0.0:.1f} %".replace("-0.0 %", "0.0 %").replace("-", "−")


def _less(part: int, whole: int | None) -> float | None:
    return 1 - part / whole if whole else None


def _engine(study: Study) -> int | None:
    """Parameters of the engine, with what the part adds to it."""
    known = study.parts.get("total") or (study.about.engine.get("parameters") if study.about else None)
    return int(known) if known else None
