"""`fedmt score`: an engine on its recipe's test sets, or on any text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fedmt.cli.session import From, Json, OfSilo, To, direction_of, open_engine, own_engines, show, write_line
from fedmt.cli.translate import Beam, EngineName, UseMemory, open_memory, translator, way
from fedmt.errors import CommandError

if TYPE_CHECKING:
    from fedmt.corpus.pairs import Direction, Pair
    from fedmt.report.tables import Cell
    from fedmt.score.statistics import Statistics

__all__ = ["score"]

BATCH = 2000


class _Set(NamedTuple):
    name: str
    direction: Direction
    pairs: list[Pair]


def score(
    name: EngineName,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", metavar="TEXT", help="A corpus file or Moses prefix; may be repeated."),
    ] = None,
    source_file: Annotated[
        Path | None, typer.Option("--source", metavar="FILE", help="Sentences to translate, one a line.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE", help="Their translations, line by line.")
    ] = None,
    source: From = None,
    target: To = None,
    beam: Beam = None,
    silo: OfSilo = None,
    memory: UseMemory = True,
    as_json: Json = False,
) -> None:
    """Score an engine: BLEU, chrF++ and TER with their signatures.

    Without text of your own, a run is scored on its recipe's test sets; where silos merge in groups, each silo's own
    engine on its own.

    [dim]fedmt score runs/demo --data manual.tmx --beam 4[/]
    """
    if (source_file is None) != (reference is None):
        raise CommandError("--source and --reference go together: sentences, and their translations line by line")
    for option, file in (("--source", source_file), ("--reference", reference)):
        if file is not None and not file.is_file():
            raise CommandError(f"{option}: {file}: {'is a folder' if file.is_dir() else 'no such file'}")
    asked = direction_of(source, target)
    engine, recipe = open_engine(name, silo)
    apart = own_engines(name) if silo is None else []
    sets: list[_Set] = []
    if source_file is not None and reference is not None:
        sets.append(_Set(str(source_file), way(name, engine, asked), _aligned(source_file, reference)))
    for text in data or ():
        sets.append(_read(text, way(name, engine, asked)))
    if not sets:
        if recipe is None:
            raise CommandError(
                f"{name}: is an engine, which has no test sets; give --data, or --source and --reference"
            )
        from fedmt.corpus.silos import gather

        sets = [_Set(text.name, text.direction, text.test) for text in gather(recipe, lambda _: None).silos]
        if asked is not None:
            sets = [one for one in sets if one.direction == asked]
        if not sets:
            raise CommandError(f"{name}: its recipe has no test set{f' for {asked}' if asked else ''}")

    from fedmt.score.statistics import measure

    measured: list[tuple[_Set, Statistics]] = []
    for one in sets:
        own = open_engine(name, one.name)[0] if recipe is not None and one.name in apart else engine
        recalled = open_memory(name, one.direction, own, silo or one.name) if memory else None
        work = translator(own, recipe, one.direction, beam, recalled)
        hypotheses: list[str] = []
        for start in range(0, len(one.pairs), BATCH):
            hypotheses += work([pair.source for pair in one.pairs[start : start + BATCH]])
        found = measure(hypotheses, [pair.target for pair in one.pairs], one.direction.target)
        measured.append((one, found))
        if as_json:
            write_line({"event": "score", "set": one.name, "direction": str(one.direction), **_figures(found)})
    if not as_json:
        _print(name, measured)


def _figures(found: Statistics) -> dict[str, object]:
    scores = found.scores()
    told = {"bleu": scores.bleu, "chrf": scores.chrf, "ter": scores.ter, "n": scores.n}
    return {**told, "signatures": found.signatures}


def _read(name: str, direction: Direction) -> _Set:
    from fedmt.corpus import reader

    pairs = list(reader.read(name, direction))
    if not pairs:
        raise CommandError(f"--data: {name}: holds no pair of {direction}")
    return _Set(name, direction, pairs)


def _aligned(source: Path, reference: Path) -> list[Pair]:
    from fedmt.corpus.lines import numbered
    from fedmt.corpus.pairs import Pair

    sides = [[line for _, line in numbered(file)] for file in (source, reference)]
    if len(sides[0]) != len(sides[1]):
        raise CommandError(f"{source} has {len(sides[0])} lines, {reference} has {len(sides[1])}; they must be as many")
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def _cells(name: str, direction: str, found: Statistics) -> list[Cell]:
    from fedmt.report.tables import Cell, count, number

    scores = found.scores()
    figures = (scores.bleu, scores.chrf, scores.ter)
    return [Cell(name), Cell(direction), Cell(count(scores.n)), *(Cell(number(value)) for value in figures)]


def _print(name: str, measured: Iterable[tuple[_Set, Statistics]]) -> None:
    from fedmt.report.tables import Cell, Column, Table, number

    rows, notes = [], {}
    every: dict[Direction, Statistics] = {}
    scores = []
    for one, found in measured:
        scores.append(found.scores())
        every[one.direction] = every[one.direction] + found if one.direction in every else found
        rows.append(_cells(one.name, str(one.direction), found))
        notes.update(dict.fromkeys(found.signatures.values()))
    foot = []
    if len(rows) > 1:
        averages = [
            sum(values) / len(scores) for values in zip(*((s.bleu, s.chrf, s.ter or 0.0) for s in scores), strict=True)
        ]
        foot.append([Cell("average"), Cell(""), Cell(""), *(Cell(number(value), strong=True) for value in averages)])
        foot += [_cells("all sentences", str(direction), found) for direction, found in every.items()]
    titles = ("sentences", "BLEU", "chrF++", "TER")
    columns = [Column("set", align="left"), Column("direction", align="left"), *(Column(title) for title in titles)]
    show(Table(name, columns, rows, foot, list(notes)))
