"""Any corpus as a stream of pairs in one direction: picks the format by name and leaves the reading to its module.

A source is a file, a Moses prefix (`news/train` for `news/train.de` and `news/train.en`), a name with `{}` for the
language (`text.{}.txt`), or any of these after a format's name and a colon (`tsv:dump.txt`, `hub:folder`,
`opus:Europarl-v8`). Knows nothing of what the pairs are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from fedmt.corpus import hub, lines, opus, po, tables, tmx, xliff
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

__all__ = ["ENDINGS", "FORMATS", "detect", "read", "take_apart"]

Read = Callable[[str, Direction], Iterator[Pair]]


def _file(read: Callable[[Path, Direction], Iterator[Pair]]) -> Read:
    return lambda source, direction: read(Path(source), direction)


FORMATS: dict[str, Read] = {
    "moses": lines.moses,
    "tsv": _file(tables.tsv),
    "jsonl": _file(tables.jsonl),
    "tmx": _file(tmx.pairs),
    "xliff": _file(xliff.pairs),
    "po": po.pairs,
    "hub": hub.pairs,
    "opus": opus.pairs,
}

ENDINGS = {
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".tmx": "tmx",
    **dict.fromkeys((".xlf", ".xliff", ".xlif", ".mqxliff", ".mxliff", ".sdlxliff"), "xliff"),
    **dict.fromkeys((".po", ".mo", ".gmo"), "po"),
}


def read(source: str, direction: Direction, format: str | None = None) -> Iterator[Pair]:
    """The pairs of `source`, as they are: cleaning is another's work. A mistake in it is a CorpusError of one line."""
    named, place = take_apart(source)
    chosen = format or named or detect(place)
    if chosen not in FORMATS:
        raise CorpusError(f"{source}: there is no format {chosen!r}; there are {', '.join(FORMATS)}")
    return FORMATS[chosen](place, direction)


def take_apart(source: str) -> tuple[str | None, str]:
    """The format that a source names before a colon, and the rest."""
    name, colon, rest = source.partition(":")
    return (name, rest) if colon and name in FORMATS else (None, source)


def detect(source: str) -> str:
    """The format of a source, by its prefix or its ending; a name without a known ending is a Moses prefix."""
    named, place = take_apart(source)
    if named:
        return named
    if not place:
        raise CorpusError("a corpus without a name; give a file or a Moses prefix")
    path = Path(place)
    ending = Path(place.removesuffix(".gz")).suffix.lower()
    if ending in ENDINGS:
        return ENDINGS[ending]
    if "{}" not in place:
        if hub.holds(path):
            return "hub"
        if path.is_file():
            raise CorpusError(
                f"{place}: its ending says no format; known are {', '.join(ENDINGS)}; put a format before the name "
                f"(tsv:{path.name}) or, if it is one side of a Moses pair, leave out its language"
            )
    return "moses"
