"""`fedmt coordinator init|register|start|run`: the server's part in a federation across sites."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fedmt.cli import recipe as recipes
from fedmt.cli.recipe import Overrides, RecipeName
from fedmt.cli.run import Resume, may_stand
from fedmt.cli.session import Json as Json
from fedmt.cli.session import Quiet, Session, whole, write_line
from fedmt.errors import CommandError

__all__ = ["app"]

app = typer.Typer(help="Bring sites together, and train with what they send.")

Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The coordinator's folder.")]


@app.command("init")
def init(
    folder: Folder,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The name or address by which sites reach it.")],
    port: Annotated[int, typer.Option("--port", metavar="N", help="The proxy's port.", parser=whole(1, 65535))] = 443,  # type: ignore[assignment, unused-ignore]
    as_json: Json = False,
) -> None:
    """Write a coordinator's folder: certificates, settings, files for nginx, systemd and compose.

    [dim]fedmt coordinator init mt --host mt.example.org[/]
    """
    from pydantic import ValidationError

    from fedmt.sites import coordinator
    from fedmt.sites.coordinator import Coordinating

    try:
        settings = Coordinating(host=host, port=int(port))
    except ValidationError:
        raise CommandError(f"--host: {host!r} is no host; allowed: mt.example.org, or an IPv4 address") from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder}: is there already; a coordinator's folder is a new one")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    coordinator.create(folder, settings)
    folder = folder.resolve()
    if as_json:
        write_line({"event": "coordinator", "folder": str(folder), "host": host, "port": int(port)})
        return
    typer.echo(f"{folder / 'certificates' / 'ca.crt'}  give it to every site, as its coordinator.crt")
    typer.echo(f"{folder / 'nginx.conf'}  what the proxy lets through: nothing else of this may face the network")
    typer.echo(f"then: fedmt coordinator register {folder} NAME node.pub, and fedmt coordinator start {folder}")


@app.command("register")
def register(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name, as in recipes.")],
    key: Annotated[Path, typer.Argument(metavar="PUBKEY", help="Its keys/node.pub.")],
    as_json: Json = False,
) -> None:
    """Let a site in, by its public key.

    [dim]fedmt coordinator register mt clinic clinic-node.pub[/]
    """
    from fedmt.sites import coordinator, linking

    settings = coordinator.read(folder)
    try:
        text = key.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{key}: cannot be read: {getattr(error, 'strerror', None) or 'not text'}") from None
    coordinator.learn(folder, name, text)
    told = linking.tell(folder, settings)
    if as_json:
        write_line({"event": "registered", "name": name, "told": told})
        return
    typer.echo(f"{name} is registered" if told else f"{name} is let in when the coordinator starts")


@app.command("start")
def start(folder: Folder) -> None:
    """Run Flower's SuperLink on this machine's loopback until stopped, and let the registered sites in."""
    from fedmt.sites import coordinator, linking

    linking.start(folder.resolve(), coordinator.read(folder), lambda line: typer.echo(line))


@app.command("run")
def run(
    context: typer.Context,
    folder: Folder,
    recipe: RecipeName,
    overrides: Overrides = None,
    resume: Resume = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="The run's folder.", show_default="DIR/runs/NAME"),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="SECONDS", help="How long for all sites to connect.", show_default="no limit"),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and score a recipe whose silos are at sites.

    [dim]fedmt coordinator run mt courts.yaml --out runs/courts[/]
    """
    from fedmt.cli import live
    from fedmt.sites import coordinator, linking, runs

    session = Session.of(context)
    settings = coordinator.read(folder)
    found = runs.of_sites(recipes.read(recipe, overrides or ()))
    place = folder / "runs" / found.name if out is None else out
    may_stand(place, found, resume=resume)
    session.folder = place
    again = ["fedmt", "coordinator", "run", str(folder), recipe, *(overrides or ()), "--out", str(place), "--resume"]
    session.resume = shlex.join(again)
    seconds = None if wait is None else float(whole(0)(wait))
    with (
        linking.linked(folder.resolve(), settings, runs.settings(found)) as transport,
        live.watch(found, quiet=quiet, as_json=as_json) as listen,
    ):
        from fedmt.federation.flower import GONE

        done = runs.carry_out(transport, found, place, resume=resume, listen=listen, wait=seconds, patience=GONE)
    live.finish(done, quiet=quiet, as_json=as_json)
