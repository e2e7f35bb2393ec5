"""Feeding an XML file to expat, safely and in constant memory. TMX and XLIFF say what they make of its elements.

expat rather than lxml: it opens nothing but what it is given, no tree is built, and a translation memory reads faster
with two callbacks an element than with a Python object for each. Entity declarations are refused outright: no format
of translation needs one, and they are all that an entity bomb or a stolen local file is made of. A DOCTYPE that names
an external DTD is let pass and never fetched. Knows nothing of languages.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, Protocol
from xml.parsers import expat

from fedmt.corpus.lines import opened
from fedmt.corpus.pairs import Pair
from fedmt.errors import CorpusError

__all__ = ["BREAKS", "XML", "Handler", "Refusal", "read"]

XML = "http://www.w3.org/XML/1998/namespace"
# Inline codes that stand for a line's or a page's break: without a space the words at both sides would grow together.
BREAKS = frozenset({"lb", "pb", "x-lb", "xlf:lb", "xlf:pb"})

_CHUNK = 1 << 16
_DECLARED = re.compile(rb"""^\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9._:-]+)["']""")
_NATIVE = {"utf-8", "iso8859-1", "ascii", "utf-16"}
_MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"))


class Refusal(Exception):
    """What a handler finds wrong; the reader adds the file and the line."""


class Handler(Protocol):
    """What makes pairs of elements: appends to `found`, which the reader empties."""

    found: list[Pair]

    def attach(self, parser: expat.XMLParserType) -> None: ...

    def finish(self) -> None:
        """The document has ended."""

    def nothing(self) -> str:
        """Why there was no pair."""


def read(path: Path, handler: Handler, namespaces: bool = False) -> Iterator[Pair]:
    """Each pair as soon as its elements have been read. Names come as `namespace name` if `namespaces`."""
    parser = expat.ParserCreate(namespace_separator=" " if namespaces else None)
    parser.buffer_text = True
    parser.buffer_size = _CHUNK
    parser.EntityDeclHandler = _refuse_declaration
    parser.SkippedEntityHandler = _refuse_reference
    handler.attach(parser)
    found = handler.found
    nothing = True
    consumed = 0
    with opened(path) as file:
        chunk = file.read(_CHUNK)
        decoder = _decoder(path, chunk)
        try:
            while chunk:
                parser.Parse(decoder.decode(chunk) if decoder else chunk, False)
                consumed += len(chunk)
                if found:
                    nothing = False
                    yield from found
                    found.clear()
                chunk = file.read(_CHUNK)
            parser.Parse(decoder.decode(b"", True) if decoder else b"", True)
            handler.finish()
        except Refusal as refusal:
            raise CorpusError(f"{path}:{parser.CurrentLineNumber}: {refusal}") from None
        except expat.ExpatError as error:
            raise CorpusError(f"{path}:{error.lineno}: {_reason(parser, error, chunk, consumed)}") from None
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}: after line {parser.CurrentLineNumber}: byte 0x{error.object[error.start]:02x} is not "
                f"{error.encoding.upper()}, which the file states as its encoding"
            ) from None
    if found:
        nothing = False
        yield from found
    if nothing:
        raise CorpusError(f"{path}: {handler.nothing()}")


def _decoder(path: Path, head: bytes) -> codecs.IncrementalDecoder | None:
    """What must be decoded before expat sees it: the encodings that it does not know by itself."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return codecs.getincrementaldecoder(encoding)()
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # Some tools state "Unicode" or even "UTF-8" in a file that is UTF-16; the mark is what counts.
        return codecs.getincrementaldecoder("utf-16")()
    match = _DECLARED.match(head.removeprefix(codecs.BOM_UTF8))
    if match is None:
        return None
    name = match[1].decode()
    try:
        encoding = codecs.lookup(name).name
        if encoding in _NATIVE:
            return None
        "x".encode(encoding)  # a codec that is no encoding of text, such as base64, has no place here
        return codecs.getincrementaldecoder(encoding)()
    except (LookupError, UnicodeError):
        raise CorpusError(f"{path}:1: states the encoding {name!r}, which is not known; convert it to UTF-8") from None


def _reason(parser: expat.XMLParserType, error: expat.ExpatError, chunk: bytes, consumed: int) -> str:
    text = expat.ErrorString(error.code)
    at = parser.ErrorByteIndex - consumed
    if error.code == _INVALID and 0 <= at < len(chunk) and chunk[at] >= 0x80:
        return (
            f"byte 0x{chunk[at]:02x} at position {error.offset + 1} is not of its encoding (UTF-8 where it states none)"
        )
    if not chunk:
        return f"the file ends too soon ({text})"
    return f"not well-formed XML: {text}"


_INVALID = expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]


def _refuse_declaration(name: str, *_: object) -> NoReturn:
    raise Refusal(f"declares the entity {name!r}; entity declarations are refused, whatever they hold")


def _refuse_reference(name: str, _parameter: bool) -> None:
    if not _parameter:
        raise Refusal(f"refers to the entity &{name};, which XML does not know; write the character itself")
