"""Opening a corpus file, plain or gzipped, and reading its lines; and Moses pairs, which are two such files.

Gzip is told by its first bytes, never by the name. Lines end in LF or CRLF only: a corpus may well hold U+2028 inside a
sentence. What is wrong with a file is said once, here. Knows nothing of the formats above lines.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from fedmt.corpus import languages
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

__all__ = ["decode", "moses", "numbered", "opened", "sides", "whole"]

# A language code as a part of a file's name.
_CODE = r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]+)*(?:@[a-z]+)?"
_WIDE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, unpacked where they are gzipped. Whatever the reading meets later is said as one line too."""
    try:
        if path.is_dir():
            raise CorpusError(f"{path}: is a folder; give a file in it, or a Moses prefix")
        with path.open("rb") as file:
            magic = file.peek(2)[:2]
            if not magic:
                raise CorpusError(f"{path}: is empty")
            if magic == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                    yield unpacked
            else:
                yield file
    except EOFError as error:
        raise CorpusError(f"{path}: the gzip file is cut off; fetch or pack it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path}: the gzip file is damaged ({error})") from error
    except FileNotFoundError as error:
        raise CorpusError(f"{path}: there is no such file") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from error


def decode(raw: bytes, path: Path, line: int, encoding: str = "utf-8") -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line += raw.count(b"\n", 0, error.start)
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise CorpusError(
            f"{path}:{line}: byte 0x{raw[error.start]:02x} at position {column} is not {encoding.upper()}; "
            f"convert the file to UTF-8"
        ) from error


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The file's lines as UTF-8 text, without their ends, counted from 1. A byte-order mark is left out."""
    number = 0
    with opened(path) as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                if raw.startswith(_WIDE):
                    raise CorpusError(f"{path}:1: is UTF-16 or UTF-32; convert the file to UTF-8")
                raw = raw.removeprefix(codecs.BOM_UTF8)
            yield number, decode(raw.removesuffix(b"\n").removesuffix(b"\r"), path, number)
    if not number:
        raise CorpusError(f"{path}: is empty")


def whole(path: Path) -> bytes:
    """All of a file that can only be read as a whole."""
    with opened(path) as file:
        content = file.read()
    if not content:
        raise CorpusError(f"{path}: is empty")
    return content


def sides(pattern: str, direction: Direction) -> tuple[Path, Path]:
    """The two files named by a pattern in which `{}` stands for the language: `train.{}`, `locale/{}/app.po`.

    A variant serves where the exact code has no file, and a `.gz` where the plain file is missing.
    """
    before, _, after = pattern.partition("{}")
    folder, slash, head = before.rpartition("/")
    tail, _, rest = after.partition("/")
    top = Path(folder + slash)
    name = re.compile(f"{re.escape(head)}({_CODE}){re.escape(tail)}{'' if rest else '(?:[.]gz)?'}")
    found: dict[str, Path] = {}
    entries = sorted(top.iterdir(), key=lambda path: (path.suffix == ".gz", path.name)) if top.is_dir() else []
    for entry in entries:
        match = name.fullmatch(entry.name)
        for path in (entry / rest, entry / f"{rest}.gz") if rest else (entry,):
            if match and path.is_file():
                found.setdefault(match[1], path)
    chosen = []
    for asked in direction:
        codes = languages.best(asked, found)
        if len(codes) > 1:
            raise CorpusError(f"{pattern}: {languages.listing(codes)} all serve for {asked}; ask for one of them")
        if not codes:
            looked = " and ".join(pattern.replace("{}", code) for code in direction)
            there = f"; there is {languages.listing(found)}" if found else ""
            raise CorpusError(f"{looked}: no such files for {asked}, neither with .gz nor of a variant{there}")
        chosen.append(found[codes[0]])
    return chosen[0], chosen[1]


def moses(prefix: str, direction: Direction) -> Iterator[Pair]:
    """Line by line from `prefix.de` and `prefix.en`, or from the files of a pattern such as `text.{}.txt`."""
    try:
        paths = sides(prefix if "{}" in prefix else f"{prefix}.{{}}", direction)
    except CorpusError:
        if Path(prefix).is_dir():
            raise CorpusError(f"{prefix}: is a folder; give a file in it, or a Moses prefix") from None
        raise
    counts = [0, 0]
    for source, target in zip_longest(*map(numbered, paths)):
        if source is None or target is None:
            counts[0] += source is not None
            counts[1] += target is not None
            continue
        counts = [source[0], target[0]]
        yield Pair(source[1], target[1])
    if counts[0] != counts[1]:
        raise CorpusError(f"{paths[0]} and {paths[1]}: {counts[0]} and {counts[1]} lines; both must have as many")
