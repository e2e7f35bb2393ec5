"""`fedmt recipe check|show|schema`, and how every command reads a recipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fedmt.cli.session import Json, write_line
from fedmt.errors import RecipeError

if TYPE_CHECKING:
    from fedmt.document import Steps
    from fedmt.recipe import Recipe

__all__ = ["Overrides", "RecipeName", "app", "find", "packaged", "read"]

RecipeName: TypeAlias = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A YAML file, a run's folder, or the name of a recipe that comes along.")
]
Overrides: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="KEY.PATH=VALUE", help="What to change, as in train.epochs=3.")
]

app = typer.Typer(help="Check, show and describe recipes.")


@app.command("check")
def check(recipe: RecipeName, overrides: Overrides = None, as_json: Json = False) -> None:
    """Tell every mistake of a recipe, and whether its files are there."""
    found = read(recipe, overrides or ())
    if as_json:
        write_line({"event": "checked", "recipe": recipe, "name": found.name})
    else:
        typer.echo(f"{find(recipe)}: {_summary(found)}")


@app.command("show")
def show(recipe: RecipeName, overrides: Overrides = None, as_json: Json = False) -> None:
    """Print a recipe in full: every default, every path absolute."""
    from fedmt import reading

    found = reading.read(find(recipe), overrides or ())
    if as_json:
        write_line(found.model_dump(mode="json", by_alias=True))
    else:
        sys.stdout.write(reading.write(found))


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of recipes, for editors."""
    from fedmt import reading

    typer.echo(json.dumps(reading.schema(), ensure_ascii=False, indent=2))


def read(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe whose files are there and whose packages are known."""
    from fedmt import reading

    return reading.read(find(name), overrides, _texts)


def packaged() -> dict[str, Path]:
    from fedmt import reading

    return reading.packaged()


def find(name: str) -> Path:
    """A file or a run's folder; else a recipe that comes along, by its name."""
    path = Path(name)
    if path.is_dir() and not (path / "recipe.yaml").is_file():
        raise RecipeError(f"{name}: is a folder without a recipe.yaml; a recipe is a YAML file")
    if path.exists():
        return path
    known = packaged()
    if name in known:
        return known[name]
    from fedmt.checking import meant

    # A paper has many; they are listed when it is the one that was asked for.
    within = [one for one in known if one.startswith(f"{name.partition('/')[0]}/")]
    shown = within or dict.fromkeys(one.partition("/")[0] + "/…" * ("/" in one) for one in known)
    near = meant(name, known) or ";"
    raise RecipeError(f"{name}: no such file{near} recipes that come along: {', '.join(shown)}")


def _summary(recipe: Recipe) -> str:
    from fedmt.recipe import PypiSilos, ToySilos, listed

    match recipe.silos:
        case ToySilos(silos=count):
            who = f"{count} toy silos"
        case PypiSilos(preset=preset, names=names):
            who = f"the silos of {preset}" + (f" ({', '.join(names)})" if names else "")
        case own:
            silos = listed(own) or []
            who = f"{len(silos)} silo{'s' * (len(silos) > 1)} ({', '.join(silo.name for silo in silos)})"
    baselines = f", baselines {', '.join(recipe.baselines)}" if recipe.baselines else ""
    return f"good: {recipe.name}, {who}, {recipe.rounds} rounds{baselines}"


def _texts(recipe: Recipe) -> Iterator[tuple[Steps, str]]:
    """What only the corpus can tell: files that are not there, packages that nobody knows."""
    from fedmt.checking import meant
    from fedmt.corpus import packages, reader
    from fedmt.corpus.pairs import Direction
    from fedmt.errors import CorpusError
    from fedmt.recipe import FilesSilos, Pretrained, PypiPublic, Sets, listed

    sets: list[tuple[Steps, object]] = [(("public",), recipe.public)]
    where: Steps = ("silos", "list") if isinstance(recipe.silos, FilesSilos) else ("silos",)
    sets += [((*where, index), silo) for index, silo in enumerate(listed(recipe.silos) or ())]
    for path, one in sets:
        if not isinstance(one, Sets):
            continue
        for key in ("data", "train", "dev", "test"):
            for name in getattr(one, key) or ():
                direction = Direction(one.from_, one.to)
                try:
                    if next(reader.read(name, direction), None) is None:
                        yield (*path, key), f"{name}: holds no pair of {direction}"
                except CorpusError as error:
                    yield (*path, key), str(error)
    if isinstance(recipe.public, PypiPublic):
        known = {name for package in packages.PACKAGES.values() for name in (package.name, package.organisation)}
        if recipe.public.name not in known:
            near = meant(recipe.public.name, known)
            yield ("public", "name"), f"no package is called {recipe.public.name!r}{near}; `fedmt data list` has all"
    yield from _who(recipe)
    yield from _part(recipe)
    pretrained = recipe.engine.pretrained if isinstance(recipe.engine, Pretrained) else ""
    if pretrained.startswith((".", "/", "~")) and not Path(pretrained).expanduser().is_dir():
        yield ("engine", "pretrained"), f"there is no folder {pretrained}"


def _part(recipe: Recipe) -> Iterator[tuple[Steps, str]]:
    """Whether the engine can take what the part adds to it; of one that is yet to be fetched nothing is known."""
    from fedmt import files
    from fedmt.choices import PartAll
    from fedmt.recipe import Scratch

    if isinstance(recipe.part, PartAll):
        return
    from fedmt.engine import engine, extension

    if isinstance(recipe.engine, Scratch):
        layers = engine.SIZES[recipe.engine.size].layers
        shape: tuple[str, int, int] = recipe.engine.architecture, layers, layers
    else:
        path = Path(recipe.engine.pretrained).expanduser() / "config.json"
        try:
            config = files.read_json(path)
            known = config.get("encoder_layers") or config.get("num_layers"), config.get("decoder_layers")
            shape = str(config.get("model_type")), int(known[0] or 0), int(known[1] or known[0] or 0)
        except (OSError, ValueError, AttributeError, TypeError):
            return
    for key, text in extension.mistakes(recipe.part, *shape):
        yield ("part", key), text


def _who(recipe: Recipe) -> Iterator[tuple[Steps, str]]:
    """Names that no silo has, and groups that do not fit the silos."""
    from fedmt.checking import meant
    from fedmt.corpus import families, packages, silos
    from fedmt.federation import groups
    from fedmt.recipe import PypiSilos

    if isinstance(recipe.silos, PypiSilos) and recipe.silos.names is not None:
        members = [member.name for member in packages.PRESETS[recipe.silos.preset].silos]
        unknown = [(index, name) for index, name in enumerate(recipe.silos.names) if name not in members]
        for index, name in unknown:
            near = meant(name, members)
            text = f"{recipe.silos.preset} has no {name!r}{near}; allowed: {', '.join(members)}"
            yield ("silos", "names", index), text
        if unknown:
            return
    yield from silos.mistakes(recipe.silos)
    directions = silos.directions(recipe.silos)
    yield from groups.mistakes(recipe.groups, list(directions), directions, families.teller(recipe.silos))
