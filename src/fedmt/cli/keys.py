"""`fedmt keys new|fingerprint`: a silo's key pair, and what people compare to know that a key is the silo's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmt.cli.session import Json, write_line

__all__ = ["app"]

app = typer.Typer(help="Make a silo's keys, and compare them.")


@app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the two files go.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What the files are called.")] = "silo",
    as_json: Json = False,
) -> None:
    """Make a key pair: NAME.key stays here, NAME.pub goes to the others.

    [dim]fedmt keys new keys --name north[/]
    """
    from fedmt.memory import keys

    private, public = keys.new(folder, name)
    mark = keys.load_public(public).fingerprint
    if as_json:
        write_line({"event": "key", "private": str(private), "public": str(public), "fingerprint": mark})
        return
    typer.echo(f"{private}  private: keep it here, and keep a copy safe")
    typer.echo(f"{public}  public: give it to the others")
    typer.echo(f"fingerprint: {mark}")


@app.command("fingerprint")
def fingerprint(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Public keys; or private ones of one's own.")],
    as_json: Json = False,
) -> None:
    """Say a key's fingerprint, to be compared by telephone or face to face.

    [dim]fedmt keys fingerprint keys/north.pub[/]
    """
    from fedmt.memory import keys

    marks = [(path, keys.load_either(path).fingerprint) for path in files]
    for path, mark in marks:
        if as_json:
            write_line({"event": "fingerprint", "path": str(path), "fingerprint": mark})
        else:
            typer.echo(mark if len(marks) == 1 else f"{mark}  {path}")
