"""`fedmt compare`: several runs in one table, with significance and bytes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedmt.cli.session import Json, show, write_line
from fedmt.errors import CommandError

__all__ = ["compare"]


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs' folders; the first is compared with.")],
    as_json: Json = False,
) -> None:
    """Put runs side by side: scores, significance, bytes.

    [dim]fedmt compare runs/all runs/half[/]
    """
    from fedmt.report.compare import compare as put_together
    from fedmt.report.folder import RunFolder

    if len(runs) < 2:
        raise CommandError("RUN: one run compares with nothing; give two or more")
    folders = [RunFolder.open(run, scored=True) for run in runs]
    twice = next((run for run in runs if runs.count(run) > 1), None)
    if twice is not None:
        raise CommandError(f"RUN: {twice} is given twice")
    found = put_together(folders)
    if as_json:
        for row in found.rows:
            write_line({"event": "compared", **asdict(row)})
        for note in found.notes:
            write_line({"event": "note", "text": note})
    else:
        show(found.table())
