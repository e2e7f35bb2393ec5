"""`fedmt memory`: who takes part in a run's memory, and bringing silos in or taking them out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmt.cli.session import Json, Quiet, Session, show, write_line
from fedmt.errors import CommandError

__all__ = ["memory"]


def memory(
    context: typer.Context,
    name: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run that has a memory.")],
    join: Annotated[
        list[str] | None, typer.Option("--with", metavar="SILO", help="Bring a silo in; may be repeated.")
    ] = None,
    leave: Annotated[
        list[str] | None, typer.Option("--without", metavar="SILO", help="Take a silo out; may be repeated.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show who takes part in a run's memory; bring silos in, or take their records out.

    Who comes in adds its own records, and nobody else sends theirs again. Who goes is left out of a new merge, which
    all others are sent; what they had before they have seen.

    [dim]fedmt memory runs/fednn --without ticketing[/]
    """
    from fedmt import experiment, files
    from fedmt.cli import live
    from fedmt.corpus import silos
    from fedmt.memory.datastore import Records
    from fedmt.memory.quantise import Quantiser
    from fedmt.reading import read
    from fedmt.report.folder import RunFolder

    house = RunFolder.open(name, scored=True)
    recipe = read(name)
    if recipe.memory is None or not house.memory.exists():
        raise CommandError(f"{name}: has no memory; a recipe with `memory` makes one")
    path = house.checkpoints / "members.json"
    every = list(silos.directions(recipe.silos))
    asked = files.read_json(path)["members"] if path.exists() else recipe.memory.members
    members = [one for one in every if asked is None or one in asked]
    for option, named in (("--with", join or ()), ("--without", leave or ())):
        if strange := [one for one in named if one not in every]:
            raise CommandError(f"{option}: there is no silo {strange[0]!r}; allowed: {', '.join(every)}")
    wanted = [one for one in every if (one in members or one in (join or ())) and one not in (leave or ())]
    if not wanted:
        raise CommandError("--without: nobody would be left; a memory needs a silo")
    if wanted != members:
        session = Session.of(context)
        session.folder = name
        session.resume = f"fedmt run {name} --resume"
        files.write_json(path, {"members": wanted})
        # Last of all a run writes its card: without it there is something left to do.
        house.card.unlink(missing_ok=True)
        with live.watch(recipe, quiet=quiet, as_json=as_json) as listen:
            done = experiment.run(recipe, name, resume=True, listen=listen)
        live.finish(done, quiet=quiet, as_json=as_json)
        return
    quantiser = Quantiser.load(house.memory)
    sent: dict[str, int] = {}
    for way in sorted(path.name for path in house.memory.iterdir() if path.is_dir()):
        sent |= Records.open(house.memory / way, quantiser).about.get("sent", {})
    if as_json:
        write_line({"event": "memory", "members": sent, "others": [one for one in every if one not in sent]})
        return
    from fedmt.report.tables import Cell, Column, Table, count

    rows = [[Cell(one), Cell(count(sent[one]) if one in sent else "takes no part")] for one in every]
    show(Table(str(name), [Column("silo", align="left"), Column("records")], rows, [], []))
