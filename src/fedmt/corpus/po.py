"""Gettext catalogues, PO and MO, by polib. A catalogue is read whole: polib knows no other way.

One catalogue holds one language: its `Language:` header says which, else its name or folder does. The other side is the
msgid, which is English unless the header `X-Source-Language` says otherwise; where an extracted comment gives the text
as Zope's tools do (`#. Default: "Sign in"`), that text is the msgid's. Catalogues whose msgids are keys, and directions
without English, need two catalogues of one project: `locale/{}/LC_MESSAGES/app.po` names both, and they are joined on
msgctxt and msgid. Entries that are fuzzy, obsolete or untranslated are left out. Of plural forms, the singular pairs
with the form that the catalogue's rule has for 1 and the plural with the one it has for 5; where the language has one
form, that is the plural's.
"""

from __future__ import annotations

import codecs
import gettext
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import polib

from fedmt.corpus import languages, lines
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

__all__ = ["pairs"]

_MAGIC = (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
_CHARSET = re.compile(rb"charset=([A-Za-z0-9._-]+)")
_DEFAULT = re.compile(r'^Default:\s*"(.*)"\s*$', re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9]+([._:/-][A-Za-z0-9]+)+")
_LINE = re.compile(
    r'(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d\])[ \t]*)?"(?:[^"\\]|\\.)*")?', re.DOTALL
)
_Catalogue = polib.POFile | polib.MOFile
_Entry = polib.POEntry | polib.MOEntry
# Which of an entry's texts: the only or the singular one, or the plural.
_Place = tuple[str | None, str, bool]


def pairs(source: str, direction: Direction) -> Iterator[Pair]:
    if "{}" in source:
        return _joined(source, direction)
    return _single(Path(source), direction)


def _single(path: Path, direction: Direction) -> Iterator[Pair]:
    catalogue = _parse(path)
    language = _language(catalogue, path)
    stated = catalogue.metadata.get("X-Source-Language", "")
    keys = stated or "en"
    turned = languages.turned(direction, keys, language)
    if turned is None:
        raise CorpusError(
            f"{path}: no pair of {direction}; it translates {keys} into {language}; for other languages name two "
            f"catalogues of one project, with {{}} for the language"
        )
    texts = _texts(catalogue, path)
    translated = [(_default(entry) or msgid, text) for (_, msgid, _), (entry, text) in texts.items()]
    if not translated:
        raise CorpusError(f"{path}: none of its {len(catalogue)} entries is translated")
    keyed = [msgid for msgid, _ in translated if _KEY.fullmatch(msgid)]
    if not stated and len(keyed) * 2 > len(translated):
        raise CorpusError(
            f"{path}: its msgids are keys ({keyed[0]!r}), not text; name the catalogues of both languages, "
            f"with {{}} for the language"
        )
    for msgid, text in translated:
        yield Pair(text, msgid) if turned else Pair(msgid, text)


def _joined(pattern: str, direction: Direction) -> Iterator[Pair]:
    paths = lines.sides(pattern, direction)
    catalogues = [_parse(path) for path in paths]
    source, target = (_texts(catalogue, path) for catalogue, path in zip(catalogues, paths, strict=True))
    # The catalogue of the msgids' own language is often all empty: there the msgid is the text.
    for asked, texts, others in ((direction.source, source, target), (direction.target, target, source)):
        if not texts and languages.matches(asked, catalogues[0].metadata.get("X-Source-Language", "") or "en"):
            texts |= {place: (entry, _default(entry) or place[1]) for place, (entry, _) in others.items()}
    shared = [place for place in source if place in target]
    if not shared:
        raise CorpusError(f"{paths[0]} and {paths[1]}: no msgid is translated in both")
    for place in shared:
        yield Pair(source[place][1], target[place][1])


def _texts(catalogue: _Catalogue, path: Path) -> dict[_Place, tuple[_Entry, str]]:
    """What is translated, by where it stands. A msgid that stands twice counts once, as for gettext: the last."""
    texts: dict[_Place, tuple[_Entry, str]] = {}
    form = _rule(catalogue, path)
    for entry in catalogue:
        if entry.obsolete or (isinstance(entry, polib.POEntry) and entry.fuzzy) or not entry.msgid:
            continue
        if entry.msgid_plural:
            forms = {int(index): text for index, text in entry.msgstr_plural.items()}
            one, many = (form(1), form(5)) if form else (0, max(forms, default=0))
            numbers = [(True, many)] if one == many else [(False, one), (True, many)]
            for plural, index in numbers:
                if forms.get(index):
                    msgid = entry.msgid_plural if plural else entry.msgid
                    texts[entry.msgctxt, msgid, plural] = (entry, forms[index])
        elif entry.msgstr:
            texts[entry.msgctxt, entry.msgid, False] = (entry, entry.msgstr)
    return texts


def _default(entry: _Entry) -> str | None:
    match = _DEFAULT.match(entry.comment) if isinstance(entry, polib.POEntry) and not entry.msgid_plural else None
    return polib.unescape(match[1]) if match else None


def _rule(catalogue: _Catalogue, path: Path) -> Callable[[int], int] | None:
    match = re.search(r"plural\s*=\s*([^;]+)", catalogue.metadata.get("Plural-Forms", ""))
    if match is None or match[1].strip() == "EXPRESSION":
        return None
    try:
        rule: Callable[[int], int] = gettext.c2py(match[1])
        rule(1), rule(5)
    except (ValueError, ArithmeticError, RecursionError):
        raise CorpusError(f"{path}: the header Plural-Forms has no rule that can be read: {match[1]!r}") from None
    return rule


def _language(catalogue: _Catalogue, path: Path) -> str:
    stated: str = catalogue.metadata.get("Language", "")
    if languages.parse(stated):
        return stated
    named = languages.in_path(path.absolute())
    if named is None:
        raise CorpusError(
            f"{path}: its language is not stated; give it a `Language:` header, or a name or folder such as de.po or "
            f"de/LC_MESSAGES/{path.name}"
        )
    return named


class _Content(str):
    """Text that polib parses. It calls `splitlines`, which also splits at U+2028 and others inside a string."""

    __slots__ = ()

    def splitlines(self, keepends: bool = False) -> list[str]:
        return [line + "\n" * keepends for line in self.split("\n")]


def _parse(path: Path) -> _Catalogue:
    content = lines.whole(path)
    if content[:4] in _MAGIC:
        return _parse_mo(path, content)
    content = content.removeprefix(codecs.BOM_UTF8)
    encoding = _encoding(path, content)
    text = lines.decode(content, path, 1, encoding)
    for number, line in enumerate(text.split("\n"), 1):
        # polib takes the first and the last character of a string for its quotes, whatever they are.
        if not _LINE.fullmatch(line.strip()):
            raise CorpusError(f"{path}:{number}: not a PO file: should be a comment, or a keyword and a quoted string")
    try:
        return polib.pofile(_Content(text), encoding=encoding)
    except OSError as error:
        match = re.search(r"\(line (\d+)\)", str(error))
        raise CorpusError(f"{path}:{match[1] if match else 1}: not a PO file: a line out of order") from None


def _parse_mo(path: Path, content: bytes) -> polib.MOFile:
    try:
        # polib would not notice that the last strings are cut.
        order = "<" if content[:4] == _MAGIC[0] else ">"
        count, *tables = struct.unpack_from(f"{order}3I", content, 8)
        for table in tables:
            for index in range(count):
                length, start = struct.unpack_from(f"{order}2I", content, table + 8 * index)
                if start + length >= len(content):
                    raise IndexError("a string lies beyond its end")
        # It takes content as well as a name, which its types do not say.
        return polib.mofile(cast(str, content), encoding=_encoding(path, content))
    except (OSError, struct.error, IndexError) as error:
        raise CorpusError(f"{path}: not a whole MO file ({error})") from None
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}: byte 0x{error.object[error.start]:02x} is not {error.encoding.upper()}, which the file states"
        ) from None


def _encoding(path: Path, content: bytes) -> str:
    match = _CHARSET.search(content)
    name = match[1].decode() if match else "utf-8"
    if name == "CHARSET":  # the placeholder of an unfilled template
        return "utf-8"
    try:
        "x".encode(name)
    except LookupError:
        raise CorpusError(f"{path}: states the charset {name!r}, which is not known; convert it to UTF-8") from None
    return name.lower()
