"""`fedmt compare`: several runs in one table, with significance and bytes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedmt.cli.session import Json, write_line

__all__ = ["compare"]


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs' folders; the first is compared with.")],
    as_json: Json = False,
) -> None:
    """Put runs side by side: scores, significance, bytes.

    [dim]fedmt compare runs/all runs/half[/]
    """
    raise NotImplementedError(runs, as_json, sys, write_line)
