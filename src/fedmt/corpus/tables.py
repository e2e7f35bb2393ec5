"""Rows: tab-separated values, and JSON Lines. Streams; knows nothing of what the text means.

TSV holds two columns, source then target, or begins with a header that names languages (`de`, `en`, or `source`,
`target`), among any other columns. Quotes are text, never syntax. A line of JSONL is `{"de": …, "en": …}`,
`{"translation": {"de": …, "en": …}}` or `{"source": …, "target": …}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmt.corpus import languages
from fedmt.corpus.lines import numbered
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

__all__ = ["columns", "jsonl", "tsv"]

_SIDES = (("source", "src"), ("target", "trg", "tgt"))


def columns(names: list[str], direction: Direction) -> tuple[str, str] | None:
    """The names that hold the two sides: languages first, else `source` and `target`; None where a side has none."""
    chosen: list[str] = []
    for asked in direction:
        mine = [name for name in names if languages.side(direction, name) == direction.index(asked)]
        chosen += languages.best(asked, mine)[:1]
    if len(chosen) == 2:
        return chosen[0], chosen[1]
    plain = [next((name for name in names if name.lower() in side), None) for side in _SIDES]
    return (plain[0], plain[1]) if plain[0] and plain[1] else None


def tsv(path: Path, direction: Direction) -> Iterator[Pair]:
    first, second, width = 0, 1, 2
    header = paired = False
    for number, line in numbered(path):
        cells = line.split("\t")
        if number == 1:
            names = [cell.strip() for cell in cells]
            found = columns(names, direction)
            if found:
                first, second, width = names.index(found[0]), names.index(found[1]), len(cells)
                header = True
                continue
            if all(languages.known(name) for name in names):
                raise CorpusError(f"{path}:1: no pair of {direction}; the header names {languages.listing(names)}")
        if len(cells) != width:
            if not line:
                continue
            noun = "column" if len(cells) == 1 else "columns"
            wanted = f"{width}, as the header has" if header else "two, source and target"
            raise CorpusError(f"{path}:{number}: {len(cells)} {noun}, should be {wanted}, separated by tabs")
        paired = True
        yield Pair(cells[first], cells[second])
    if not paired:
        raise CorpusError(f"{path}: holds no pair" + " below its header" * header)


def jsonl(path: Path, direction: Direction) -> Iterator[Pair]:
    # Most files have one shape of row; the keys are looked for again only where a row has another.
    shapes: dict[tuple[str, ...], tuple[str, str] | None] = {}
    seen: dict[str, None] = {}
    paired = False
    for number, line in numbered(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = f"{error.msg} at position {error.colno}" if isinstance(error, json.JSONDecodeError) else "too deep"
            raise CorpusError(f"{path}:{number}: not JSON: {reason}; each line must be one object") from error
        if not isinstance(row, dict):
            raise CorpusError(f"{path}:{number}: is {_kind(row)}; each line must be one object")
        inner = row.get("translation")
        values: dict[str, Any] = inner if isinstance(inner, dict) else row
        shape = tuple(values)
        if shape not in shapes:
            if len(shapes) > 1000:
                shapes.clear()
            shapes[shape] = columns(list(shape), direction)
            seen |= dict.fromkeys(shape[: 50 - len(seen)])
        keys = shapes[shape]
        if keys is None or values[keys[0]] is None or values[keys[1]] is None:
            continue
        for key in keys:
            if not isinstance(values[key], str):
                raise CorpusError(f"{path}:{number}: {key!r} is {_kind(values[key])}; it must be text")
            if any("\ud800" <= character <= "\udfff" for character in values[key]):
                raise CorpusError(f"{path}:{number}: {key!r} holds half of a surrogate pair (\\ud800 to \\udfff)")
        paired = True
        yield Pair(values[keys[0]], values[keys[1]])
    if not paired:
        had = f"its keys are {', '.join(map(repr, list(seen)[:8]))}" if seen else "it has no row"
        raise CorpusError(f"{path}: no pair of {direction}; {had}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
