"""`fedmt demo`: five real organisations' text trains one German–English engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmt.cli.recipe import Overrides
from fedmt.cli.run import carry_out
from fedmt.cli.session import Json, Quiet

__all__ = ["demo"]


def demo(
    context: typer.Context,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The run's folder.")] = Path("runs/demo"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Five real organisations train one German–English engine.

    Called again, it goes on where it was stopped; a finished one is shown again.
    """
    carry_out(context, "demo", overrides or (), out, resume=True, quiet=quiet, as_json=as_json)
