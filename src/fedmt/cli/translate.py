"""`fedmt translate`: a run's engine, or any other, on stdin, on a file, or at a prompt."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fedmt.cli.session import From, Json, OfSilo, To, direction_of, open_engine, own_engines, whole
from fedmt.errors import CommandError, CorpusError
from fedmt.events import Event, Note

if TYPE_CHECKING:
    from fedmt.corpus.pairs import Direction
    from fedmt.engine.device import Machine
    from fedmt.engine.engine import Engine
    from fedmt.memory.retrieve import Retrieval
    from fedmt.recipe import Decode, Recipe

__all__ = ["Beam", "EngineName", "UseMemory", "open_memory", "translate", "translator", "way"]

EngineName: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN|ENGINE", help="A run's folder, an engine's folder, or a name on the hub.")
]
Beam: TypeAlias = Annotated[
    int | None,
    typer.Option("--beam", metavar="N", parser=whole(1, 64), help="1 is greedy.", show_default="the recipe's"),
]

UseMemory: TypeAlias = Annotated[
    bool, typer.Option("--memory/--no-memory", help="Ask the run's memory, where it has one.")
]

# So many lines are translated together: enough to sort them by length, few enough to see them come.
BATCH = 512
# A program that writes line by line waits for each answer; a file has its next line there at once.
PATIENCE = 0.02

Translator: TypeAlias = Callable[[list[str]], list[str]]


def translate(
    name: EngineName,
    source: From = None,
    target: To = None,
    input: Annotated[Path | None, typer.Option("--input", "-i", metavar="FILE", help="Instead of stdin.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Instead of stdout.")] = None,
    beam: Beam = None,
    silo: OfSilo = None,
    memory: UseMemory = True,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Of each token: the engine's own probability, and the neighbours."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Translate stdin, a file, or what you type. A run that has a memory translates with it.

    [dim]echo "Die Datei konnte nicht gelesen werden." | fedmt translate runs/demo[/]
    """
    if input is not None and not input.is_file():
        raise CommandError(f"--input: {input}: {'is a folder' if input.is_dir() else 'no such file'}")
    if output is not None and output.is_dir():
        raise CommandError(f"--output: {output} is a folder; name a file")
    engine, recipe = open_engine(name, silo)
    if silo is None and (own := own_engines(name)):
        _tell(
            Note(
                f"the silos of {name} merge in groups; this is the largest one's engine, --silo names {', '.join(own)}"
            )
        )
    direction = way(name, engine, direction_of(source, target))
    recall = open_memory(name, direction, engine, silo) if memory else None
    if explain:
        if recall is None:
            raise CommandError(f"--explain: {name} has no memory to look up in")
        if output is not None:
            raise CommandError("--explain: goes to stdout; leave out --output")
        _explain(engine, recipe, direction, beam, recall, input, as_json)
        return
    work = translator(engine, recipe, direction, beam, recall)
    if input is None and output is None and not as_json and sys.stdin.isatty():
        _prompt(work, direction)
        return
    lines = _answers(_file(input) if input is not None else _stream(sys.stdin.fileno()), work, as_json)
    if output is None:
        for line in lines:
            sys.stdout.write(line)
            sys.stdout.flush()
    else:
        from fedmt.files import write_bytes

        write_bytes(output, (line.encode() for line in lines))


def way(name: str, engine: Engine, asked: Direction | None) -> Direction:
    """The direction to translate in: the one asked for, or the engine's only one."""
    from fedmt.corpus import languages

    known = engine.about.directions
    if asked is None:
        if len(known) == 1:
            return known[0]
        ways = f"translates {', '.join(map(str, known))}" if known else "does not say which languages it knows"
        raise CommandError(f"{name}: {ways}; choose with --from and --to")
    if known:
        fitting = [one for one in known if all(map(languages.matches, asked, one))]
        if not fitting:
            raise CommandError(f"{name}: does not translate {asked}; it translates {', '.join(map(str, known))}")
        return asked if asked in fitting else fitting[0]
    return asked


def open_memory(name: str, direction: Direction, engine: Engine, silo: str | None = None) -> Retrieval | None:
    """The memory of a run, if it has one for this direction, used as this silo has learnt to."""
    folder = Path(name) / "memory"
    if not (folder / "memory.json").is_file():
        return None
    from fedmt.memory import store

    return store.load(folder, direction, engine, silo)


def _settings(recipe: Recipe | None, beam: int | None) -> tuple[Decode, Machine]:
    from fedmt.engine import device
    from fedmt.recipe import Decode

    settings = recipe.decode if recipe is not None else Decode()
    if beam is not None:
        settings = settings.model_copy(update={"beam": beam})
    return settings, device.choose(recipe.compute if recipe is not None else None)


def translator(
    engine: Engine,
    recipe: Recipe | None,
    direction: Direction,
    beam: int | None,
    memory: Retrieval | None = None,
) -> Translator:
    from fedmt.engine import decoder

    settings, machine = _settings(recipe, beam)

    def work(lines: list[str]) -> list[str]:
        found = decoder.translate(engine, lines, direction, settings, machine, listen=_tell, memory=memory)
        return [" ".join(text.split()) for text in found]

    return work


def _explain(
    engine: Engine,
    recipe: Recipe | None,
    direction: Direction,
    beam: int | None,
    memory: Retrieval,
    input: Path | None,
    as_json: bool,
) -> None:
    from fedmt.cli.explain import Explainer

    explainer = Explainer(engine, direction, *_settings(recipe, beam), memory)
    if input is None and sys.stdin.isatty():
        typer.echo(f"{direction}; end with Ctrl-D", err=True)
    for lines in _file(input) if input is not None else _stream(sys.stdin.fileno()):
        for line in lines:
            explainer.tell(line, as_json)


def _tell(event: Event) -> None:
    """Stdout holds translations only."""
    if isinstance(event, Note):
        typer.echo(f"note: {event.text}", err=True)


def _answers(batches: Iterator[list[str]], work: Translator, as_json: bool) -> Iterator[str]:
    import json

    for lines in batches:
        for line, answer in zip(lines, work(lines), strict=True):
            yield (
                json.dumps({"source": line, "translation": answer}, ensure_ascii=False) + "\n"
                if as_json
                else f"{answer}\n"
            )


def _file(path: Path) -> Iterator[list[str]]:
    batch: list[str] = []
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            batch.append(_decode(raw, str(path), number))
            if len(batch) >= BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def _stream(handle: int) -> Iterator[list[str]]:
    """Lines as they come, in batches as large as what is there already."""
    rest, number = b"", 0
    batch: list[str] = []
    while True:
        if batch and not _ready(handle):
            yield batch
            batch = []
        chunk = os.read(handle, 1 << 16)
        *whole, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:
            whole, rest = [rest], b""
        for raw in whole:
            number += 1
            batch.append(_decode(raw, "stdin", number))
            if len(batch) >= BATCH:
                yield batch
                batch = []
        if not chunk:
            break
    if batch:
        yield batch


def _ready(handle: int) -> bool:
    try:
        return bool(select.select([handle], [], [], PATIENCE)[0])
    except (OSError, ValueError):
        return True  # not a thing that can be asked, as pipes on Windows: then read on


def _decode(raw: bytes, name: str, number: int) -> str:
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        where = f"byte 0x{raw[error.start]:02x} at position {error.start + 1}"
        raise CorpusError(f"{name}:{number}: {where} is not UTF-8; convert the text to UTF-8") from None


def _prompt(work: Translator, direction: Direction) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401 - input() then keeps a history and lets a line be edited
    typer.echo(f"{direction}; end with Ctrl-D", err=True)
    while True:
        try:
            line = input(f"{direction.source}> ")
        except EOFError:
            typer.echo()
            return
        if line.strip():
            typer.echo(f"{direction.target}  {work([line])[0]}")
