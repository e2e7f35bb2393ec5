"""`fedmt run`: one recipe becomes one run's folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fedmt.cli import recipe as recipes
from fedmt.cli.recipe import Overrides, RecipeName
from fedmt.cli.session import Json, Quiet, Session
from fedmt.errors import CommandError

if TYPE_CHECKING:
    from fedmt.recipe import Recipe

__all__ = ["Out", "Resume", "carry_out", "may_stand", "run"]

Out: TypeAlias = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="The run's folder.", show_default="runs/NAME")
]
Resume: TypeAlias = Annotated[
    bool, typer.Option("--resume", metavar="", help="Go on with a run that was stopped or killed.")
]


def run(
    context: typer.Context,
    recipe: RecipeName,
    overrides: Overrides = None,
    resume: Resume = False,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and score everything that a recipe describes.

    [dim]fedmt run courts.yaml train.epochs=3 silos.captions.to=en[/]
    """
    path = recipes.find(recipe)
    if path.is_dir():
        out = path if out is None else out
    carry_out(context, recipe, overrides or (), out, resume=resume, quiet=quiet, as_json=as_json)


def carry_out(
    context: typer.Context,
    name: str,
    overrides: Sequence[str],
    out: Path | None,
    *,
    resume: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    session = Session.of(context)
    recipe = recipes.read(name, overrides)
    folder = Path("runs") / recipe.name if out is None else out
    may_stand(folder, recipe, resume=resume)
    session.folder = folder
    again = ["fedmt", "run", name, *overrides, "--out", str(folder), "--resume"]
    session.resume = shlex.join(again)

    from fedmt import experiment
    from fedmt.cli import live

    with live.watch(recipe, quiet=quiet, as_json=as_json) as listen:
        done = experiment.run(recipe, folder, resume=resume, listen=listen)
    live.finish(done, quiet=quiet, as_json=as_json)


def may_stand(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """Whether the run may go into this folder: a run is never written over, nor mixed with another."""
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"--out: {folder} is a file; a run needs a folder")
    kept = folder / "recipe.yaml"
    if kept.is_file():
        if not resume:
            raise CommandError(
                f"--out: {folder} holds a run already; go on with it by --resume, or choose another --out"
            )
        _same(kept, recipe)
    elif folder.is_dir() and any(
        not file.name.startswith(".") for file in folder.iterdir() if file.name != "traceback.txt"
    ):
        raise CommandError(f"--out: {folder} is not empty and holds no run; choose another --out")


def _same(kept: Path, recipe: Recipe) -> None:
    """A run is resumed as it was begun: other numbers would be told under its name."""
    from fedmt import reading

    changed = list(_differences(reading.read(kept).model_dump(by_alias=True), recipe.model_dump(by_alias=True)))
    if changed:
        shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise CommandError(f"--resume: {kept.parent} was begun with another recipe: {shown}; choose another --out")


def _differences(old: object, new: object, path: str = "") -> Sequence[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [
            text
            for key in keys
            for text in _differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [text for index in range(len(old)) for text in _differences(old[index], new[index], f"{path}.{index}")]
    return [] if old == new else [f"{path} was {old} and is {new}"]
