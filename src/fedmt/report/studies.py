"""What a run's files say of its federation, as the papers tell it: what was saved, what a round costs, where its time
goes, what passed, learning by steps. Values; knows no table, no plot, no page, and nothing of how the run was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from fedmt.exchange.ledger import Entry
from fedmt.report.folder import About, RunFolder

__all__ = [
    "AT_SERVER",
    "AT_SILOS",
    "BANDWIDTH",
    "WAYS",
    "WHAT",
    "Cost",
    "Passed",
    "Saving",
    "Study",
    "Time",
    "Transfer",
    "Way",
    "cost",
    "gather",
    "learning",
    "passed",
    "saving",
    "time",
    "transfer",
]

MODEL = "federated"
BANDWIDTH = 1000.0  # Mbit/s: the server's of Liu et al., section 2.4
_EXCHANGES = ("fit", "send")
_WIDTHS = {"fp32": 4, "fp16": 2}
AT_SILOS, AT_SERVER = ("train", "choose", "encode", "judge"), ("merge",)

Way = Literal["up", "down"]
What = Literal["tensors", "parameters", "bytes"]
WAYS: tuple[Way, ...] = ("up", "down")
WHAT: tuple[What, ...] = ("tensors", "parameters", "bytes")


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

    def shared(self, way: Way = "up") -> dict[str, Entry]:
        """Of each silo, a message of all that is shared: one that went this way, or else the other.

        The first that a silo is sent is such a one: it has nothing yet to add a part to.
        """
        found: dict[str, Entry] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.direction != way):
            if entry.parameters > (found[entry.silo].parameters if entry.silo in found else 0):
                found[entry.silo] = entry
        return found


def gather(folder: RunFolder, name: str = "") -> Study:
    entries = [entry for entry in folder.entries(MODEL) if entry.step in _EXCHANGES]
    # A silo that was left out saved nothing: its refusal is no message of no tensors.
    left_out = {(one["silo"], one["round"]) for one in folder.events("dropped") if one.get("model") == MODEL}
    left_out -= {(one.silo, one.round) for one in entries if one.direction == "up" and one.parameters}
    entries = [one for one in entries if one.direction == "down" or (one.silo, one.round) not in left_out]
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
        return {what: self.saved(what) for what in WHAT}

    def saved_of_engine(self, what: Literal["parameters", "bytes"]) -> float | None:
        return _less(getattr(self, what), getattr(self, f"whole_{what}"))


def saving(study: Study, way: Way = "up") -> Saving | None:
    """None where nothing travelled."""
    full, entries = study.shared(way), study.sent(way)
    if not full or not entries:
        return None
    rounds = {(entry.silo, entry.round) for entry in entries if entry.silo in full}
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
    for what in AT_SILOS:
        if taken := [float(one[what]) for one in at_silos if what in one]:
            a_silo[what], a_round[what] = fmean(taken), sum(taken) / len(ends)
    for what in AT_SERVER:
        a_round[what] = fmean(float(one.get(what, 0.0)) for one in ends.values())
    return Time(study.name, len(ends), a_silo, a_round, fmean(float(one["round"]) for one in ends.values()))


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
        silos = {entry.silo for entry in entries if entry.silo in full}
        if silos:
            tensors = sum(entry.tensors for entry in entries) / sum(full[silo].tensors for silo in silos)
            parameters = sum(entry.parameters for entry in entries) / sum(full[silo].parameters for silo in silos)
            found.append(Passed(round_, tensors, parameters, thetas.get(round_)))
    return found


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


def _less(part: int, whole: int | None) -> float | None:
    return 1 - part / whole if whole else None


def _engine(study: Study) -> int | None:
    """Parameters of the engine, with what the part adds to it."""
    known = study.parts.get("total") or (study.about.engine.get("parameters") if study.about else None)
    return int(known) if known else None
