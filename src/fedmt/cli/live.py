"""What is seen of a run while it runs: a table that redraws itself, plain lines, JSON lines, or nothing.

All are listeners of `events.py`; none knows how anything is done. `Board` is what the table shows, as a value.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedmt import events
from fedmt.cli.board import Board, Clock, duration
from fedmt.cli.session import write_line
from fedmt.events import Event, Listener
from fedmt.report.tables import amount

if TYPE_CHECKING:
    from fedmt.recipe import Recipe
    from fedmt.report.folder import RunFolder

__all__ = ["Lines", "Meter", "Throttle", "finish", "watch"]

REDRAWS = 3


@contextmanager
def watch(recipe: Recipe, *, quiet: bool, as_json: bool) -> Iterator[Listener]:
    """The listener that suits who looks on."""
    if as_json:
        yield Throttle(lambda event: write_line(events.record(event)), every=1.0)
    elif quiet:
        yield lambda _: None
    elif sys.stdout.isatty():
        board = Board(recipe.name, _plan(recipe), _count(recipe))
        console = Console()
        with Live(get_renderable=board.render, console=console, refresh_per_second=REDRAWS, transient=True):
            yield lambda event: _both(board, console, event)
    else:
        yield Lines(lambda line: print(line, flush=True))


def finish(folder: RunFolder, *, quiet: bool, as_json: bool) -> None:
    """The run's scores, and where everything stands."""
    from fedmt.report import views

    if as_json:
        scores = folder.read_scores().model_dump(mode="json", by_alias=True) if folder.scores.exists() else None
        write_line({"event": "done", "folder": str(folder.path), "scores": scores})
    elif not quiet:
        console = Console()
        if folder.scores.exists():
            for table in views.fitting(folder, console.width):
                console.print(table.rich()) if console.is_terminal else print(table.plain())
        print(f"\nreport     {folder.report}\ntranslate  fedmt translate {folder.path}")


def _plan(recipe: Recipe) -> dict[str, float]:
    shares = {"personal": recipe.train.personal_epochs / max(recipe.train.epochs, 1)}
    phases = ["federated", *(name for name in recipe.baselines if name != "public")]
    return {phase: shares.get(phase, float(recipe.rounds)) for phase in phases}


def _count(recipe: Recipe) -> int:
    from fedmt.corpus.packages import PRESETS
    from fedmt.recipe import PypiSilos, SitesSilos, ToySilos, listed

    match recipe.silos:
        case ToySilos(silos=count):
            return count
        case PypiSilos(preset=preset, names=names):
            return len(names or PRESETS[preset].silos)
        case SitesSilos(list=named):
            return len(named)
        case own:
            return len(listed(own) or ())


def _both(board: Board, console: Console, event: Event) -> None:
    board.tell(event)
    line = _lasting(event)
    if line:
        console.print(Text(line, style="dim"))


_WHY = {
    "base": "the engine's base",
    "gradient": "for their gradients",
    "invite": "keys of a memory",
    "introduce": "keys of a memory",
    "admit": "keys of a memory",
    "remember": "records of a memory",
    "recall": "the merged memory",
    "tune": "how to use the memory",
    "recite": "to be scored with the memory",
}


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Lines:
    """One line for each thing that is done; for work that takes long, one in half a minute."""

    def __init__(self, say: Callable[[str], None], clock: Clock = time.monotonic, every: float = 30.0) -> None:
        self._say = say
        self._clock = clock
        self._every = every
        self._last = clock()
        self._travelled: tuple[str, int, int] | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.Travelled):
            when = f"{event.model}, round {event.round}" if event.round else event.model
            scored = not event.round or event.step.startswith("score")
            why = _WHY.get(event.step, "to be scored")
            what = f"{when}, {why}" if scored else when
            same = self._travelled is not None and self._travelled[0] == what
            up, down = self._travelled[1:] if self._travelled and same else (0, 0)
            self._tell_travelled(keep=same)
            self._travelled = (what, up + event.up_bytes, down + event.down_bytes)
            return
        self._tell_travelled()
        line = _line(event)
        passing = isinstance(event, (events.Progress, events.Fetching))
        if line is None or (passing and self._clock() - self._last < self._every):
            return
        self._last = self._clock()
        self._say(line)

    def _tell_travelled(self, *, keep: bool = False) -> None:
        """All silos of a round in one line."""
        if self._travelled is not None and not keep:
            what, up, down = self._travelled
            self._say(f"{what}: silos sent {amount(up)} and received {amount(down)}")
            self._travelled = None


class Meter:
    """Downloads on one line of stderr that is written over, for commands without a table."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.Fetching):
            text = f"downloading {event.package}  {amount(event.bytes)} of {amount(event.of)}"
            sys.stderr.write(f"\r{text}\x1b[K" if event.bytes < event.of else "\r\x1b[K")
        elif line := _line(event):
            sys.stderr.write(f"\r\x1b[K{line}\n")
        sys.stderr.flush()


class Throttle:
    """Passes on every event but those of progress, which come one in `every` seconds for each who."""

    def __init__(self, listen: Listener, every: float, clock: Clock = time.monotonic) -> None:
        self._listen = listen
        self._every = every
        self._clock = clock
        self._last: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, (events.Progress, events.Fetching)):
            who = f"{event.model}/{event.who}" if isinstance(event, events.Progress) else event.package
            whole = event.step >= event.steps if isinstance(event, events.Progress) else event.bytes >= event.of
            now = self._clock()
            if not whole and now - self._last.get(who, -self._every) < self._every:
                return
            self._last[who] = now
        self._listen(event)


def _line(event: Event) -> str | None:
    match event:
        case events.Phase():
            return f"[{event.part}/{event.parts}] {event.model or event.name}"
        case events.Fetching():
            return f"downloading {event.package}: {amount(event.bytes)} of {amount(event.of)}"
        case events.Progress():
            loss = f", loss {event.loss:.3f}" if event.loss is not None else ""
            what = "step" if event.loss is not None else "translated"
            return f"{event.model}, {event.who}: {what} {event.step} of {event.steps}{loss}"
        case events.Trained():
            dev = f", dev loss {event.dev_loss:.3f}" if event.dev_loss is not None else ""
            took = f"{event.steps} steps in {duration(event.seconds)}"
            return f"{event.model}, round {event.round}, {event.who}: loss {event.train_loss:.3f}{dev}; {took}"
        case events.Scored():
            when = f", round {event.round}" if event.round is not None else ""
            score = f"BLEU {event.bleu:.1f}, chrF {event.chrf:.1f} on {event.n} sentences"
            return f"{event.model}{when}, {event.silo} {event.set}: {score}"
        case _:
            return _lasting(event)


def _lasting(event: Event) -> str | None:
    """What is worth a line that stays above the table."""
    match event:
        case events.Choice():
            return f"{event.what}: {event.value} ({event.reason})"
        case events.Note():
            return event.text
        case events.Dropped():
            return f"{event.model}, round {event.round}: {event.silo} was left out: {event.reason}"
        case events.Chosen():
            let = f"{100 * event.parameters:.0f} % of the parameters"
            return f"{event.model}, round {event.round}: θ {event.theta:.2f} let {let} through"
    # Of shifts and seconds: the report.
    return None
