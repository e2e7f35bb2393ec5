"""`fedmt report`: the studies of the papers, drawn from the folders of finished runs."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmt.cli.session import Json, show, write_line
from fedmt.errors import CommandError

if TYPE_CHECKING:
    from fedmt.report.studies import Study

__all__ = ["report"]


def _bandwidth(value: Any) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found > 0):
        raise typer.BadParameter(f"{str(value)!r}; allowed: a number above 0, in Mbit/s")
    return found


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    bandwidth: Annotated[
        float,
        typer.Option(
            "--bandwidth", metavar="MBIT/S", parser=_bandwidth, help="Of the server, for how long transfers take."
        ),
    ] = 1000.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where studies.html of several runs goes; else beside the first."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what rounds saved, cost and took: of one run, or of several.

    One run's report.html is written anew; several stand together in studies.html.

    [dim]fedmt report runs/all runs/metasend --bandwidth 100[/]
    """
    from fedmt.report import exhibit, html
    from fedmt.report.compare import short_names
    from fedmt.report.folder import RunFolder
    from fedmt.report.studies import gather

    if out is not None and len(runs) == 1:
        raise CommandError("--out: is for several runs; one run's report stands in its folder")
    if out is not None and out.exists() and not out.is_dir():
        raise CommandError(f"--out: {out} is a file; allowed: a folder")
    folders = [RunFolder.open(run, scored=True) for run in runs]
    places = [folder.path.resolve() for folder in folders]
    twice = next((run for run, place in zip(runs, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise CommandError(f"RUN: {twice} is given twice")
    some = [gather(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    if len(folders) == 1:
        html.write(folders[0], bandwidth)
        page = folders[0].report
    else:
        page = exhibit.write(folders, out or folders[0].path.resolve().parent, bandwidth)
    if as_json:
        _lines(some, bandwidth)
        write_line({"event": "report", "file": str(page)})
    else:
        _tables(some, bandwidth)
        typer.echo(f"report  {page}")


def _tables(some: list[Study], bandwidth: float) -> None:
    from fedmt.report.tallies import tables

    for table in tables(some, bandwidth):
        show(table)
        typer.echo("")


def _lines(some: list[Study], bandwidth: float) -> None:
    """The values that the tables are made of."""
    from fedmt.report import studies

    for study in some:
        for way in studies.WAYS:
            if (saved := studies.saving(study, way)) is not None:
                write_line({"event": "saving", **asdict(saved), "saved": saved.shares()})
        if (cost := studies.cost(study)) is not None:
            write_line({"event": "cost", **asdict(cost)})
        if (moved := studies.transfer(study, bandwidth)) is not None:
            write_line({"event": "transfer", **asdict(moved), "up_seconds": moved.up, "down_seconds": moved.down})
        if (time := studies.time(study)) is not None:
            write_line({"event": "time", **asdict(time), "rest": time.rest})
        for one in studies.passed(study):
            write_line({"event": "passed", "run": study.name, **asdict(one)})
        for steps, loss in studies.learning(study):
            write_line({"event": "learning", "run": study.name, "steps": steps, "dev_loss": loss})
