"""What the commands of one call share: how it speaks, where a traceback goes, how it is resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedmt.errors import CommandError, EngineError, FetchError, RunError

if TYPE_CHECKING:
    from fedmt.corpus.pairs import Direction
    from fedmt.engine.engine import Engine
    from fedmt.recipe import Recipe
    from fedmt.report.tables import Table

__all__ = ["From", "Json", "Quiet", "Session", "To", "direction_of", "open_engine", "show", "whole", "write_line"]

OfSilo: TypeAlias = Annotated[
    str | None,
    typer.Option("--silo", metavar="NAME", help="Whose engine, of a run whose silos merge in groups."),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", metavar="", help="Every line on stdout is a JSON object.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="Say nothing but errors.")]
From: TypeAlias = Annotated[str | None, typer.Option("--from", metavar="CODE", help="Source language, as in de.")]
To: TypeAlias = Annotated[str | None, typer.Option("--to", metavar="CODE", help="Target language, as in en.")]


@dataclass
class Session:
    """One call of the program. `resume` is the command that goes on where a stopped one was."""

    json: bool = False
    folder: Path | None = None
    resume: str | None = None

    @classmethod
    def of(cls, context: typer.Context) -> Session:
        found = context.find_object(cls)
        assert found is not None
        return found


def write_line(value: dict[str, Any]) -> None:
    """A line of `--json` output, there at once for who reads along."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def whole(least: int, most: int | None = None) -> Callable[[Any], int]:
    """A parser of options, with messages of our own."""
    allowed = f"a whole number from {least} to {most}" if most is not None else f"a whole number ≥ {least}"

    def parse(value: Any) -> int:
        text = str(value)
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise typer.BadParameter(f"{text!r}; allowed: {allowed}")
        return int(text)

    return parse


def show(table: Table) -> None:
    """In colour where somebody looks."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(table.rich())
    else:
        typer.echo(table.plain(), nl=False)


def direction_of(source: str | None, target: str | None) -> Direction | None:
    """The direction of `--from` and `--to`; None when neither is given."""
    from pydantic import TypeAdapter, ValidationError

    from fedmt.corpus.pairs import Direction
    from fedmt.recipe import Language

    if source is None and target is None:
        return None
    if source is None or target is None:
        raise CommandError("--from and --to go together: a direction needs both languages")
    for option, code in (("--from", source), ("--to", target)):
        try:
            TypeAdapter(Language).validate_python(code)
        except ValidationError:
            raise CommandError(
                f"{option}: {code!r} is not a language code; allowed: de, pt-BR, zh_Hans and so on"
            ) from None
    if source == target:
        raise CommandError(f"--from and --to are both {source}")
    return Direction(source, target)


def own_engines(name: str) -> list[str]:
    """The silos of a run that have engines of their own, since they merge in groups."""
    folder = Path(name) / "engines"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def open_engine(name: str, silo: str | None = None) -> tuple[Engine, Recipe | None]:
    """The engine of a run's folder, with the run's recipe; or one by its own folder or its hub name.

    `silo`: of a run whose silos merge in groups, the engine of that silo.
    """
    from fedmt.engine import engine
    from fedmt.reading import read

    folder = Path(name)
    if (folder / "recipe.yaml").is_file():
        if not (folder / "engine" / "config.json").is_file():
            raise RunError(f"{name}: the run has no engine yet; finish it with: fedmt run {name} --resume")
        if silo is None:
            return engine.load(folder / "engine"), read(folder)
        from fedmt.memory import store

        own, remembering = own_engines(name), store.silos(folder / "memory")
        if silo in remembering:
            return engine.load(folder / "engine"), read(folder)
        if silo not in own:
            own = own or remembering
            told = f"allowed: {', '.join(own)}" if own else "its silos have one engine together"
            raise CommandError(f"--silo: {name} has no engine of {silo!r} apart; {told}")
        return engine.load(folder / "engines" / silo), read(folder)
    if silo is not None:
        raise CommandError(f"--silo: {name} is no run's folder; only a run has silos")
    if folder.is_file():
        raise CommandError(f"{name}: is a file; an engine is a run's folder, an engine's folder or a name on the hub")
    if folder.is_dir() and not any((folder / kind).is_file() for kind in ("config.json", "extension.json")):
        raise RunError(f"{name}: is neither a run's folder (no recipe.yaml) nor an engine's (no config.json)")
    if not folder.exists() and (folder.parent.is_dir() and folder.parent != Path()):
        raise RunError(f"{name}: there is no such folder")
    try:
        return engine.load(name), None
    except FetchError as error:
        if folder.exists():
            raise
        # Without the hub a misspelt folder cannot be told from a hub's name; the first is the likelier.
        raise EngineError(f"{name}: there is no such folder, and no hub to ask whether it has one so named") from error
