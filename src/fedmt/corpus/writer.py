"""Writing pairs to a file of any format that holds them, streamed and atomic: what reader.py reads back.

JSONL holds any text; so do TMX, XLIFF and PO, save that XML has no control characters (they are left out) and that a
catalogue takes an empty side for untranslated. A line of Moses or TSV holds no line break, nor a cell of TSV a tab:
they become spaces. A name that ends in `.gz` is gzipped, to the same bytes each time.
"""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import polib

from fedmt import files
from fedmt.corpus import reader
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

__all__ = ["FORMATS", "write"]

_Pieces = Callable[[Iterable[Pair], Direction], Iterator[str]]
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK = re.compile("\r\n|[\r\n]")
_BREAK_OR_TAB = re.compile("\r\n|[\r\n\t]")
_MANY = 1000


def write(path: str | Path, pairs: Iterable[Pair], direction: Direction, format: str | None = None) -> int:
    """How many pairs were written. `path` is a Moses prefix where its ending names no format."""
    name = str(path)
    chosen = format or reader.ENDINGS.get(Path(name.removesuffix(".gz")).suffix.lower(), "moses")
    if chosen not in FORMATS or name.removesuffix(".gz").endswith((".mo", ".gmo")):
        what = f"the format {chosen!r}" if chosen not in FORMATS else "a compiled catalogue"
        raise CorpusError(f"{name}: {what} cannot be written; those that can are {', '.join(FORMATS)}")
    count = 0

    def counted() -> Iterator[Pair]:
        nonlocal count
        for pair in pairs:
            count += 1
            yield pair

    try:
        if chosen == "moses":
            _moses(name, counted(), direction)
        else:
            files.write_bytes(Path(name), _packed(_ENCODERS[chosen](counted(), direction), name.endswith(".gz")))
    except OSError as error:
        raise CorpusError(f"{name}: cannot be written: {error.strerror or error}") from error
    return count


def _packed(pieces: Iterable[str], gzipped: bool) -> Iterator[bytes]:
    # 31: a gzip header, which zlib writes without name and time.
    packer = zlib.compressobj(6, zlib.DEFLATED, 31) if gzipped else None
    pieces = iter(pieces)
    while batch := "".join(islice(pieces, _MANY)):
        # Half a surrogate pair, which no encoding has, becomes a question mark.
        content = batch.encode("utf-8", errors="replace")
        yield packer.compress(content) if packer else content
    if packer:
        yield packer.flush()


def _moses(prefix: str, pairs: Iterable[Pair], direction: Direction) -> None:
    """Both sides in one pass: the target waits in a nameless file until the source has come to its end."""
    gzipped = prefix.endswith(".gz")
    pattern = prefix if "{}" in prefix else prefix.removesuffix(".gz") + ".{}" + ".gz" * gzipped
    paths = [Path(pattern.replace("{}", code)) for code in direction]
    paths[1].parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=paths[1].parent) as spool:

        def sources() -> Iterator[str]:
            iterator = iter(pairs)
            while batch := list(islice(iterator, _MANY)):
                targets = "".join(_BREAK.sub(" ", pair.target) + "\n" for pair in batch)
                spool.write(targets.encode("utf-8", errors="replace"))
                yield from (_BREAK.sub(" ", pair.source) + "\n" for pair in batch)

        files.write_bytes(paths[0], _packed(sources(), gzipped))
        spool.seek(0)
        files.write_bytes(paths[1], _packed((line.decode("utf-8") for line in spool), gzipped))


def _tsv(pairs: Iterable[Pair], direction: Direction) -> Iterator[str]:
    # With the header the file says what it holds, and is read in either direction.
    yield f"{direction.source}\t{direction.target}\n"
    for source, target in pairs:
        yield f"{_BREAK_OR_TAB.sub(' ', source)}\t{_BREAK_OR_TAB.sub(' ', target)}\n"


def _jsonl(pairs: Iterable[Pair], direction: Direction) -> Iterator[str]:
    for source, target in pairs:
        yield json.dumps({direction.source: source, direction.target: target}, ensure_ascii=False) + "\n"


def _tmx(pairs: Iterable[Pair], direction: Direction) -> Iterator[str]:
    yield (
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n'
        '<header creationtool="fedmt" creationtoolversion="1" segtype="sentence" o-tmf="fedmt" adminlang="en" '
        f'srclang="{direction.source}" datatype="plaintext"/>\n<body>\n'
    )
    for source, target in pairs:
        yield (
            f'<tu><tuv xml:lang="{direction.source}"><seg>{_xml(source)}</seg></tuv>'
            f'<tuv xml:lang="{direction.target}"><seg>{_xml(target)}</seg></tuv></tu>\n'
        )
    yield "</body>\n</tmx>\n"


def _xliff(pairs: Iterable[Pair], direction: Direction) -> Iterator[str]:
    yield (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xml:space="preserve">\n'
        f'<file original="fedmt" datatype="plaintext" source-language="{direction.source}" '
        f'target-language="{direction.target}">\n<body>\n'
    )
    for number, (source, target) in enumerate(pairs, 1):
        yield (
            f'<trans-unit id="{number}"><source>{_xml(source)}</source>'
            f'<target state="translated">{_xml(target)}</target></trans-unit>\n'
        )
    yield "</body>\n</file>\n</xliff>\n"


def _po(pairs: Iterable[Pair], direction: Direction) -> Iterator[str]:
    yield (
        'msgid ""\nmsgstr ""\n"MIME-Version: 1.0\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
        f'"Content-Transfer-Encoding: 8bit\\n"\n"Language: {direction.target}\\n"\n'
        f'"X-Source-Language: {direction.source}\\n"\n'
    )
    seen: set[bytes] = set()
    for number, (source, target) in enumerate(pairs, 1):
        digest = blake2b(source.encode("utf-8", errors="replace"), digest_size=8).digest()
        # A msgid stands once in a catalogue; a further translation of it needs a context of its own.
        context = f'msgctxt "{number}"\n' if digest in seen else ""
        seen.add(digest)
        yield f'\n{context}msgid "{polib.escape(source)}"\nmsgstr "{polib.escape(target)}"\n'


def _xml(text: str) -> str:
    # A parser reads CR LF as LF, so that a CR only survives as a reference.
    text = _NOT_XML.sub("", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#13;")


_ENCODERS: dict[str, _Pieces] = {"tsv": _tsv, "jsonl": _jsonl, "tmx": _tmx, "xliff": _xliff, "po": _po}
FORMATS = ("moses", *_ENCODERS)
