"""`fedmt site init|check|run`: one organisation's part in a federation across sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fedmt.cli.session import Json, whole, write_line
from fedmt.errors import CommandError, Failure

__all__ = ["app"]

app = typer.Typer(help="Take part in a federation, with text that stays here.")

Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder.")]
Texts: TypeAlias = list[str] | None


@app.command("init")
def init(
    folder: Folder,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What the site is called in every table.")],
    source: Annotated[str, typer.Option("--from", metavar="CODE", help="Source language, as in de.")],
    target: Annotated[str, typer.Option("--to", metavar="CODE", help="Target language, as in en.")],
    coordinator: Annotated[str, typer.Option("--coordinator", metavar="HOST:PORT", help="Who coordinates.")],
    data: Annotated[Texts, typer.Option("--data", metavar="TEXT", help="Text to be split by hash.")] = None,
    train: Annotated[Texts, typer.Option("--train", metavar="TEXT", help="Text that trains, all of it.")] = None,
    dev: Annotated[Texts, typer.Option("--dev", metavar="TEXT", help="Text to choose by.")] = None,
    test: Annotated[Texts, typer.Option("--test", metavar="TEXT", help="Text to be scored on.")] = None,
    port: Annotated[
        str | None, typer.Option("--port", metavar="N", help="On this machine, for its own programs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a site's folder: settings, keys, a systemd unit.

    [dim]fedmt site init clinic --name clinic --from de --to en --data tm.tmx --coordinator mt.example.org:443[/]
    """
    from pydantic import ValidationError

    from fedmt import files
    from fedmt.memory import keys
    from fedmt.recipe import absolute
    from fedmt.sites import certificates, paper
    from fedmt.sites.settings import Site

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder}: is there already; a site's folder is a new one")
    here = Path()
    named = {"data": data, "train": train, "dev": dev, "test": test}
    texts = {key: [absolute(one, here.resolve()) for one in found] for key, found in named.items() if found}
    told: dict[str, object] = {"name": name, "from": source, "to": target, **texts, "coordinator": coordinator}
    told["certificate"] = "coordinator.crt"
    if port is not None:
        told["port"] = whole(1, 65535)(port)
    try:
        Site.model_validate(told)
    except ValidationError as error:
        said = "; ".join(f"--{'.'.join(map(str, one['loc'])) or 'data'}: {one['msg']}" for one in error.errors())
        raise CommandError(said) from None
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    folder.chmod(0o700)
    certificates.new_node_key(folder / "keys" / "node")
    keys.new(folder / "keys", name)
    certificates.new_secret(folder / "secret")
    (folder / "members").mkdir()
    (folder / "state").mkdir()
    for file, text in paper.site(folder, told).items():
        files.write_text(folder / file, text)
    mark = keys.load_public(folder / "keys" / f"{name}.pub").fingerprint
    if as_json:
        write_line({"event": "site", "folder": str(folder), "key": str(folder / "keys" / "node.pub"), "mark": mark})
        return
    typer.echo(f"{folder / 'site.yaml'}  what this site has, and what it allows: read it through")
    typer.echo(f"{folder / 'keys' / 'node.pub'}  give it to the coordinator")
    typer.echo(f"{folder / 'coordinator.crt'}  put certificates/ca.crt of the coordinator there")
    typer.echo(f"then: fedmt site check {folder}")


@app.command("check")
def check(folder: Folder, as_json: Json = False) -> None:
    """Try everything that must hold before this site can take part, and say what to mend."""
    from fedmt.sites import checks, settings

    bad = []
    for finding in checks.check(folder, settings.read(folder)):
        if as_json:
            write_line({"event": "checked", "what": finding.what, "good": finding.good, "words": finding.words})
        else:
            typer.echo(f"{'ok ' if finding.good else 'BAD'}  {finding.what}: {finding.words}")
        if not finding.good:
            bad.append(finding.what)
    if bad:
        raise Failure(f"{folder}: {', '.join(bad)}: to be mended first")


@app.command("run")
def run(folder: Folder) -> None:
    """Answer the coordinator until stopped. Everything that leaves stands in audit.jsonl."""
    from fedmt.sites import settings, work

    site = settings.read(folder)
    work.work(folder.resolve(), site, lambda line: typer.echo(line))
