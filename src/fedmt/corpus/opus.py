"""A corpus of the OPUS collection, or of any other that mtdata knows, by its name. Needs the extra `opus`.

`opus:Europarl-v8` is OPUS's Europarl in version 8, in the asked languages; without a version, its newest.
`opus:Statmt-news_commentary-18.1` names a group of mtdata other than OPUS. mtdata downloads to its own cache
(`~/.mtdata`, or `$MTDATA`), once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedmt.corpus import languages
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError, FetchError

__all__ = ["pairs"]


def pairs(name: str, direction: Direction) -> Iterator[Pair]:
    try:
        with _silence():
            from mtdata import cache_dir
            from mtdata.cache import Cache
            from mtdata.index import INDEX
            from mtdata.parser import Parser
    except ImportError:
        raise CorpusError(f'opus:{name}: corpora by name need an extra: pip install "fedmt[opus]"') from None
    entry, turned = choose(name, direction, INDEX.get_entries())
    return _segments(name, entry, turned, Cache(cache_dir), Parser)


def choose(name: str, direction: Direction, entries: Any) -> tuple[Any, bool]:
    """The entry of mtdata's index that a name means, and whether it goes the other way."""
    wanted = name.lower()
    named: list[Any] = []
    for entry in entries:
        group, title, version = (str(part).lower() for part in (entry.did.group, entry.did.name, entry.did.version))
        if len(entry.did.langs) != 2:
            continue
        full = f"{group}-{title}-{version}"
        if wanted in (full, f"{full}-{entry.did.lang_str.lower()}") or (
            group == "opus" and wanted in (title, f"{title}-{version}")
        ):
            named.append(entry)
    if not named:
        raise CorpusError(f"opus:{name}: no such corpus; `mtdata list -id -l {direction}` lists them")
    serving = []
    for entry in named:
        codes = [str(code) for code in entry.did.langs]
        turned = languages.turned(direction, codes[0], codes[1])
        if turned is not None:
            serving.append((entry, turned))
    if not serving:
        pairs_of = sorted({entry.did.lang_str for entry in named})
        raise CorpusError(f"opus:{name}: not in {direction}; there is {languages.listing(pairs_of)}")
    return max(serving, key=lambda found: _age(str(found[0].did.version)))


@contextmanager
def _silence() -> Iterator[None]:
    """mtdata sets up the root logger and writes to it; what this program prints is not its to decide."""
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        logging.disable(disabled)


def _age(version: str) -> list[tuple[int, str]]:
    """Versions in order: v7 before v8 before v10, 20230102 last of all."""
    return [(int(number), "") if number else (0, rest) for number, rest in re.findall(r"(\d+)|(\D+)", version)]


def _segments(name: str, entry: Any, turned: bool, cache: Any, parser: Any) -> Iterator[Pair]:
    try:
        with _silence():
            paths = cache.get_entry(entry)
        rows = parser(paths, ext=entry.in_ext or None, ent=entry).read_segs(show_pbar=False)
    except Exception as error:  # its errors have no common root, and most are asserts
        raise FetchError(f"opus:{name}: {entry.did} could not be fetched: {' '.join(str(error).split())}") from error
    empty = True
    for row in rows:
        if len(row) < 2 or row[0] is None or row[1] is None:
            continue
        empty = False
        yield Pair(row[1], row[0]) if turned else Pair(row[0], row[1])
    if empty:
        raise CorpusError(f"opus:{name}: {entry.did} holds no pair")
