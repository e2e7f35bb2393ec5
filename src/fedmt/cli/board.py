"""The table of a running run, as a value: what has been heard of each silo, and how long the training will still take.

Knows events only. `live.py` decides when it is drawn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmt import events
from fedmt.events import Event
from fedmt.report.tables import amount

__all__ = ["Board", "Clock", "Row", "duration"]

BAR = 16
Clock = Callable[[], float]


@dataclass
class Row:
    """One participant of the model that is being made; `done` counts rounds, with the share of the one it is in."""

    round: int = 0
    done: float = 0.0
    step: int = 0
    steps: int = 0
    loss: float | None = None
    dev: float | None = None
    bleu: float | None = None
    up: int = 0
    down: int = 0
    speed: float | None = None
    dropped: str = ""


@dataclass
class Board:
    """Everything that the table shows. Events come from one thread, drawing from another.

    `plan` says how many rounds of everybody's text each phase trains, and `silos` how many they are: with the pace of
    each silo, once it has shown it, that gives the time left.
    """

    name: str
    plan: dict[str, float] = field(default_factory=dict)
    silos: int = 0
    clock: Clock = time.monotonic
    rows: dict[str, Row] = field(default_factory=dict)
    phase: events.Phase | None = None
    model: str = ""
    rounds: int = 0
    fetching: events.Fetching | None = None
    decoding: events.Progress | None = None
    finals: dict[str, dict[str, float]] = field(default_factory=dict)
    working: str = ""
    up: int = 0
    down: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._turn_begun = self.clock()
        self._turn_from = 0.0
        self._begun_models: set[str] = set()
        self._pace: dict[tuple[bool, str], float] = {}

    def tell(self, event: Event) -> None:
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case events.Phase():
                self.phase = event
                self.fetching = self.decoding = None
                model = event.model or event.name
                self._begun_models |= {model, _family(model)}
                if _family(model) != _family(self.model):
                    self._begin(model)
                self.model, self.working = model, ""
            case events.Fetching():
                self.fetching = event if event.bytes < event.of else None
            case events.Progress():
                self._progress(event)
            case events.Trained():
                row = self._row(event.model, event.who)
                row.round, row.done, row.loss, row.dropped = event.round, event.round, event.train_loss, ""
                row.step = row.steps = max(row.steps, 1)
                row.dev = event.dev_loss if event.dev_loss is not None else row.dev
                self._pace[self._kind(), event.who] = event.seconds
            case events.Travelled():
                # In round 0 a finished model travels to be scored, in others an unfinished one may.
                if event.round and not event.step.startswith("score"):
                    row = self._row(event.model, event.silo)
                    row.up, row.down = row.up + event.up_bytes, row.down + event.down_bytes
                self.up, self.down = self.up + event.up_bytes, self.down + event.down_bytes
            case events.Dropped():
                self._row(event.model, event.silo).dropped = event.reason
            case events.Scored():
                if event.round is not None:
                    self._row(event.model, event.silo).bleu = event.bleu
                elif _home(event.model) in (None, event.silo):
                    self.finals.setdefault(_family(event.model), {})[event.silo] = event.bleu

    def _begin(self, model: str) -> None:
        self.model, self.rows, self.rounds, self.working = model, {}, 0, ""

    def _row(self, model: str, who: str) -> Row:
        if _family(model) != _family(self.model):
            self._begin(model)
        self.model = model
        return self.rows.setdefault(who, Row())

    def _progress(self, event: events.Progress) -> None:
        self.decoding = event if event.loss is None else None
        if event.loss is None:
            return
        row = self._row(event.model, event.who)
        share = event.step / max(event.steps, 1)
        if event.who != self.working or event.round != row.round or event.step < row.step:
            # A resumed turn begins in its middle.
            self._turn_begun, self._turn_from = self.clock(), share
        self.working, self.rounds = event.who, max(event.rounds, 1)
        row.round, row.step, row.steps, row.loss = event.round, event.step, event.steps, event.loss
        row.done = event.round - 1 + share
        row.speed = event.tokens_per_second or row.speed

    def _kind(self) -> bool:
        """Personal turns are of another length than those of a round."""
        return _family(self.model) == "personal"

    def _turn(self, who: str) -> float | None:
        """Seconds that this one's turn takes: as the last did, or as the present one goes; None while unknown."""
        known = self._pace.get((self._kind(), who))
        row = self.rows.get(who)
        if known is not None or row is None or who != self.working:
            return known
        share = row.done - (row.round - 1) - self._turn_from
        return (self.clock() - self._turn_begun) / share if share > 0.02 else None

    def left(self) -> tuple[float, bool] | None:
        """Seconds of training left, and whether in the whole run or in this part only; None while nothing is known.

        Silos differ in size: before each has had a turn no number is made up for it.
        """
        row = self.rows.get(self.working)
        if not self.rounds or self.decoding is not None or row is None:
            return None
        family, silos = _family(self.model), self._silos()
        here, complete = 0.0, len(silos) >= self.silos
        for who in {self.working} if family != "federated" else silos | set(self.rows):
            turn = self._turn(who)
            if turn is None:
                return None
            here += turn * max(self.rounds - (self.rows[who].done if who in self.rows else 0.0), 0.0)
        if family == "federated" and not complete and len(self.rows) < self.silos:
            return None
        later = sum(rounds for phase, rounds in self.plan.items() if phase not in self._begun_models)
        siblings = set()
        if family in ("alone", "personal"):
            siblings = {who for who in silos if f"{family}:{who}" not in self._begun_models}
        if (later or family in ("alone", "personal")) and not complete:
            return here, False
        everyone = sum(self._pace[False, who] for who in silos)
        return here + later * everyone + sum(self.plan[family] * self._pace[False, who] for who in siblings), True

    def _silos(self) -> set[str]:
        return {who for personal, who in self._pace if not personal and who not in ("public", "combined")}

    def render(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [self._head()]
            if self.fetching is not None:
                parts.append(_bar_line(self.fetching.package, self.fetching.bytes, self.fetching.of))
            if self.rows:
                parts.append(self._table())
            if self.decoding is not None:
                parts.append(Text(f"translating the test set of {self.decoding.who}", style="dim"))
            if self.finals:
                parts += [Text(), self._finals()]
            return Group(*parts)

    def _head(self) -> Text:
        now = self.clock()
        text = Text(self.name, style="bold")
        if self.phase is not None:
            text.append(f"  {self.model}", style="cyan bold")
            text.append(f"  part {self.phase.part} of {self.phase.parts}", style="default not bold")
        text.append(f"  {duration(now - self._begun)} so far", style="default not bold")
        if (left := self.left()) is not None:
            seconds, whole = left
            where = "training" if whole else "this part"
            text.append(f"  {where}: about {duration(seconds)} left", style="default not bold")
        if self.up or self.down:
            text.append(f"  ↑ {amount(self.up)}  ↓ {amount(self.down)}", style="dim not bold")
        return text

    def _table(self) -> Table:
        """Columns that nothing stands in yet are not drawn."""
        table = _grid()
        table.add_column("silo")
        table.add_column("round", justify="right")
        table.add_column("", width=BAR)
        titles = ("loss", "dev loss", "BLEU", "sent", "received", "tokens/s")
        cells = {who: _cells(row) for who, row in self.rows.items()}
        shown = [index for index in range(len(titles)) if any(row[index] for row in cells.values())]
        for index in shown:
            table.add_column(titles[index], justify="right")
        for who, row in self.rows.items():
            bar: RenderableType = ProgressBar(total=max(row.steps, 1), completed=row.step, width=BAR)
            if row.dropped:
                bar = Text(row.dropped, style="yellow", overflow="ellipsis", no_wrap=True)
            table.add_row(
                Text(who, style="bold" if who == self.working else ""),
                f"{row.round}/{self.rounds}" if row.round and self.rounds else "",
                bar,
                *(cells[who][index] for index in shown),
            )
        return table

    def _finals(self) -> Table:
        """BLEU on the test sets, as far as the models are finished."""
        table = _grid()
        table.add_column("BLEU on test")
        for family in self.finals:
            table.add_column(family, justify="right")
        for silo in dict.fromkeys(silo for scores in self.finals.values() for silo in scores):
            table.add_row(silo, *(_number(scores.get(silo), 1) for scores in self.finals.values()))
        return table


def _grid() -> Table:
    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def _cells(row: Row) -> list[str]:
    return [
        _number(row.loss, 3),
        _number(row.dev, 3),
        _number(row.bleu, 1),
        amount(row.up) if row.up else "",
        amount(row.down) if row.down else "",
        f"{row.speed:,.0f}" if row.speed else "",
    ]


def _bar_line(name: str, done: int, of: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        f"downloading {name}",
        ProgressBar(total=max(of, 1), completed=done, width=30),
        f"{amount(done)} of {amount(of)}",
    )
    return grid


def _family(model: str) -> str:
    """`alone` of `alone:clinic`, `chained` of `chained-2:clinic`."""
    return model.partition(":")[0].partition("-")[0]


def _home(model: str) -> str | None:
    """The silo that a model belongs to, if it is one silo's."""
    return (model.partition(":")[2] or None) if _family(model) in ("alone", "personal") else None


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """1:05, or 2:03:10."""
    whole = round(max(seconds, 0))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
