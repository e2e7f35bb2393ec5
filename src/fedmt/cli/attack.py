"""`fedmt attack`: what one silo of a run can read out of another's records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmt.cli.session import Json, Quiet, open_engine, show, whole, write_line
from fedmt.errors import CommandError
from fedmt.events import Event, Note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmt.corpus.pairs import Text
    from fedmt.privacy.attack import Leak, Read
    from fedmt.report.tables import Cell

__all__ = ["attack"]


def attack(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder.")],
    attacker: Annotated[
        str | None, typer.Option("--silo", metavar="ATTACKER", help="Who attacks.", show_default="the first silo")
    ] = None,
    victim: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="VICTIM", help="Whose records are read.", show_default="the next of its direction"
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", parser=whole(1, 1000), help="Of each threat model.")
    ] = 5,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", parser=whole(1), help="At most so many records are attacked.")
    ] = 2000,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack one silo's memory with another's: how much of the text can be read out of its records.

    Four threat models learn from the attacker's own text, given nothing of a record, its token, its token and code,
    its token and state; and each record's prefix is guessed to be that of the attacker's nearest.

    [dim]fedmt attack runs/demo --silo ticketing --on mailing-lists[/]
    """
    if not (Path(run) / "recipe.yaml").is_file():
        raise CommandError(f"{run}: is no run's folder: it holds no recipe.yaml, which names the silos' text")
    engine, recipe = open_engine(run)
    assert recipe is not None

    from fedmt.corpus.silos import gather
    from fedmt.engine import device
    from fedmt.memory.quantise import Quantiser
    from fedmt.privacy import attack as privacy
    from fedmt.recipe import Memory

    text = gather(recipe)
    own, theirs = _parties(text.silos, attacker, victim)
    machine = device.choose(recipe.compute)
    listen = _mute if quiet else _tell
    folder, train = Path(run) / "memory", recipe.train
    if (folder / "quantiser.json").is_file():
        coder = Quantiser.load(folder)
    elif text.public:
        memory = getattr(recipe, "memory", None) or Memory()
        coder = privacy.quantiser(engine, text.public, memory, machine, train.longest, train.batch_tokens, recipe.seed)
    else:
        raise CommandError(f"{run}: has no quantiser, and its recipe no public text that one could be learnt from")
    if coder.width != engine.model.config.d_model:
        raise CommandError(f"{folder}: its quantiser takes states of {coder.width} numbers, not this engine's")
    settings = privacy.Settings(epochs, limit, train.longest, train.batch_tokens, recipe.seed)
    found = privacy.attack(engine, coder, text.public, own, theirs, settings, machine, listen)
    if as_json:
        _lines(found, coder.about())
    else:
        _print(found, str(theirs.direction), coder.about())


def _parties(silos: Sequence[Text], attacker: str | None, victim: str | None) -> tuple[Text, Text]:
    from fedmt.checking import meant

    known = {text.name: text for text in silos}
    for option, name in (("--silo", attacker), ("--on", victim)):
        if name is not None and name not in known:
            told = f"{meant(name, known)}; allowed: {', '.join(known)}".replace("?;", "?")
            raise CommandError(f"{option}: there is no silo {name!r}{told}")
    if attacker is None:
        attacker = next(name for name in known if name != victim or len(known) == 1)
        if victim is not None:
            direction = known[victim].direction
            attacker = next(
                (name for name, text in known.items() if name != victim and text.direction == direction), attacker
            )
    own = known[attacker]
    fitting = [name for name, text in known.items() if text.direction == own.direction and name != attacker]
    if not fitting:
        raise CommandError(
            f"--silo: no other silo goes in {attacker}'s direction, {own.direction}, so it has no victim"
        )
    theirs = known[victim or fitting[0]]
    if theirs.name == attacker:
        raise CommandError(f"--on: {attacker} is the attacker itself; allowed: {', '.join(fitting)}")
    if theirs.name not in fitting:
        raise CommandError(
            f"--on: {theirs.name} goes in {theirs.direction} and {attacker} in {own.direction}, and only silos of one "
            f"direction can be attacked; allowed: {', '.join(fitting)}"
        )
    return own, theirs


def _tell(event: Event) -> None:
    if isinstance(event, Note):
        typer.echo(f"note: {event.text}", err=True)


def _mute(_: Event) -> None:
    pass


def _lines(found: Leak, coder: dict[str, int]) -> None:
    about = {key: value for key, value in asdict(found).items() if key not in ("reads", "probes")}
    write_line({"event": "attack", **about, "quantiser": coder})
    for read in found.reads:
        told = {key: value for key, value in asdict(read).items() if key not in ("private", "foreign")}
        for name, hits in (("private", read.private), ("foreign", read.foreign)):
            told[name] = {**asdict(hits), "precision": hits.precision, "recall": hits.recall, "f1": hits.f1}
        write_line({"event": "read", **told})
    for given, probed in found.probes.items():
        write_line({"event": "probe", "given": given, **asdict(probed)})


def _cells(read: Read) -> list[Cell]:
    from fedmt.report.tables import Cell, count, number

    figures: list[float | None] = [read.source, read.target, read.both]
    for hits in (read.private, read.foreign):
        figures += [hits.precision, hits.recall, hits.f1]
    return [Cell(read.attacked), Cell(read.given), Cell(count(read.records)), *(Cell(number(one)) for one in figures)]


def _print(found: Leak, direction: str, coder: dict[str, int]) -> None:
    from fedmt.report.tables import Cell, Column, Table, count, number

    left = [Column("records", align="left"), Column("given", align="left"), Column("read")]
    columns = [*left, *(Column(title, "BLEU") for title in ("source", "target", "both"))]
    for group in ("private", "new"):
        columns += [Column(title, group) for title in ("P", "R", "F1")]
    notes = [
        f"{found.attacker} learnt from {count(found.own)} records of its own; {count(found.pairs)} pairs of "
        f"{found.victim} were attacked, {count(found.known)} not, as {found.attacker} has them too",
        f"code: of {coder['code_bytes']} bytes and {count(coder['lists'])} lists; state: as if nothing were quantised",
        f"private: {count(found.private)} words that the public text lacks; "
        f"new: {count(found.foreign)} of them that {found.attacker}'s text lacks too",
    ]
    title = f"{found.attacker} reads {found.victim} ({direction})"
    show(Table(title, columns, [_cells(read) for read in found.reads], notes=notes))
    depths = list(next(iter(found.probes.values())).shares)
    rows = [
        [Cell({"nothing": "nothing (chance)"}.get(given, given)), *(Cell(number(probed.shares[n])) for n in depths)]
        for given, probed in found.probes.items()
    ]
    titles = [Column("given", align="left"), *(Column(str(n), "last tokens") for n in depths)]
    typer.echo()
    show(Table("prefix of the nearest own record, % right", titles, rows))
