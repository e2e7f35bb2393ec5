"""What happens while a run runs, as values: the live table, plain lines, `--json` and `metrics.jsonl` read these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

__all__ = [
    "Choice",
    "Chosen",
    "Dropped",
    "Event",
    "Fetching",
    "Listener",
    "Note",
    "Phase",
    "Progress",
    "Scored",
    "Shifted",
    "Spent",
    "Trained",
    "Travelled",
    "record",
    "tell_all",
]


@dataclass(frozen=True)
class Choice:
    """Something the program chose by itself, with its reason."""

    what: str
    value: str
    reason: str


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Fetching:
    """A package is being downloaded: so many bytes of how many."""

    package: str
    bytes: int
    of: int


@dataclass(frozen=True)
class Phase:
    """A stretch begins: `name` is data, public, alone, chained, combined, federated, personal, score or report."""

    name: str
    part: int
    parts: int
    model: str | None = None


@dataclass(frozen=True)
class Progress:
    """Some steps of training were done (or sentences decoded: then `loss` is None). `who` is a silo, or "public"."""

    model: str
    who: str
    round: int
    rounds: int
    step: int
    steps: int
    loss: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Trained:
    """One participant's training of one round is done. Losses are per target token, in nats."""

    model: str
    who: str
    round: int
    train_loss: float
    dev_loss: float | None
    tokens: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Travelled:
    """Bytes and parameters that crossed between the coordinator and one silo in one step of a round of one model."""

    model: str
    silo: str
    round: int
    up_bytes: int
    up_parameters: int
    down_bytes: int
    down_parameters: int
    step: str = "fit"


@dataclass(frozen=True)
class Dropped:
    """A silo's reply was not folded in this round, and why."""

    model: str
    silo: str
    round: int
    reason: str


@dataclass(frozen=True)
class Scored:
    """A model's score on a silo's test (or dev) set. `round` is None for a final score."""

    model: str
    silo: str
    set: str
    bleu: float
    chrf: float
    n: int
    round: int | None = None


@dataclass(frozen=True)
class Shifted:
    """How far each tensor of one silo's update went in a round, from what the silo was sent: for the histograms.

    `relative` is ‖change‖ / ‖before‖, `mean_abs` the mean absolute change. Said only where `score.shifts` asks for it.
    """

    model: str
    silo: str
    round: int
    tensors: tuple[str, ...]
    relative: tuple[float, ...]
    mean_abs: tuple[float, ...]


@dataclass(frozen=True)
class Chosen:
    """What a threshold let through in a round: θ, and the shares of the tensors and parameters that silos sent."""

    model: str
    round: int
    theta: float
    tensors: float
    parameters: float
    loss: float | None = None


@dataclass(frozen=True)
class Spent:
    """Seconds of a round by what they went to: train, choose, encode, merge, judge, wait; `who` is a silo or server."""

    model: str
    who: str
    round: int
    seconds: dict[str, float]


Event: TypeAlias = (
    Choice | Note | Fetching | Phase | Progress | Trained | Travelled | Dropped | Scored | Shifted | Chosen | Spent
)
Listener: TypeAlias = Callable[[Event], None]


def record(event: Event) -> dict[str, Any]:
    """The event as a line of `metrics.jsonl` or of `--json` output."""
    return {"event": type(event).__name__.lower(), **asdict(event)}


def tell_all(listeners: Iterable[Listener]) -> Listener:
    """One listener that passes each event on to all of them."""
    known = list(listeners)

    def tell(event: Event) -> None:
        for listener in known:
            listener(event)

    return tell
