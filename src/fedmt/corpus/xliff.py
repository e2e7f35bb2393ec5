"""XLIFF 1.2 and 2.x, streamed. Knows nothing of files (markup.py) and of what text is worth keeping (clean.py).

Only what is translated becomes a pair: both sides there and not blank, not `translate="no"`, and in a state that is
not `new`, `initial` or `needs-…` (the fuzzy of PO). In 1.2, `mrk mtype="seg"` segments pair by their `mid`; `alt-trans`
is no translation of the text and is left out, as are all elements of other namespaces (in 2.x, `mtc:matches`). Inline
codes become plain text: `g`, `pc` and `mrk` keep their text, native code is dropped, a line break becomes a space and
`cp` its character. A file whose languages are the direction's reverse is swapped. A 1.2 file that does not state its
target language has it from `target`'s `xml:lang`, or from its name (`messages.de.xlf`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from fedmt.corpus import languages, markup
from fedmt.corpus.pairs import Direction, Pair

__all__ = ["pairs"]

_CORE = "urn:oasis:names:tc:xliff:document:"
_LANG = f"{markup.XML} lang"
# Inline elements whose content is native code or nothing at all.
_NATIVE = frozenset({"x", "bx", "ex", "bpt", "ept", "ph", "it", "sc", "ec", "sm", "em"})
_ASIDE = frozenset({"alt-trans", "header", "skeleton", "notes", "note", "originalData", "bin-unit", "context-group"})
_TEXTS = frozenset({"source", "target", "seg-source"})
_Languages = tuple[str, str]


def pairs(path: Path, direction: Direction) -> Iterator[Pair]:
    return markup.read(path, _Document(direction, languages.in_path(path) or ""), namespaces=True)


class _Text:
    """The plain text of one `source` or `target`, and of its 1.2 segments by their `mid`."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.segments: dict[str, str] = {}
        self._open: list[tuple[str | None, int]] = []

    def enter(self, name: str, attributes: dict[str, str]) -> None:
        mid = attributes.get("mid") if name == "mrk" and attributes.get("mtype") == "seg" else None
        self._open.append((mid, len(self.pieces)))

    def leave(self) -> bool:
        """Whether what ends now is the text itself and not an inline element."""
        if not self._open:
            return True
        mid, start = self._open.pop()
        if mid is not None:
            self.segments[mid] = "".join(self.pieces[start:])
        return False

    @property
    def whole(self) -> str:
        return "".join(self.pieces)


class _Document:
    def __init__(self, direction: Direction, named: str) -> None:
        self.found: list[Pair] = []
        self._direction = direction
        self._named = named
        self._new = False  # version 2.x
        self._stated: _Languages = ("", "")  # of the document (2.x) or the file (1.2)
        self._met: dict[_Languages, bool | None] = {}
        self._translate = [True]
        self._texts: dict[str, _Text] = {}
        self._text: _Text | None = None
        self._aside = 0  # how deep inside something that is not read
        self._target = ("", "")  # state and language of the target at hand
        self._state = ""
        self._untranslated = 0
        self._locals: dict[str, str | None] = {}

    def attach(self, parser: expat.XMLParserType) -> None:
        self._parser = parser
        parser.StartElementHandler = self._root
        parser.EndElementHandler = self._end

    def finish(self) -> None:
        pass

    def nothing(self) -> str:
        if not self._met:
            return f"no pair of {self._direction}; it has no translatable unit"
        has = ", ".join(f"{source or '?'} → {target or '?'}" for source, target in list(self._met)[:8])
        if any(turned is not None for turned in self._met.values()):
            return f"no pair of {self._direction}; none of its {self._untranslated} units of {has} is translated"
        return f"no pair of {self._direction}; the file has {has}"

    def _local(self, name: str) -> str | None:
        """The name without XLIFF's namespace (or none at all, as some tools write); None for a foreign element."""
        try:
            return self._locals[name]
        except KeyError:
            space, _, local = name.rpartition(" ")
            self._locals[name] = local if not space or space.startswith(_CORE) else None
            return self._locals[name]

    def _root(self, name: str, attributes: dict[str, str]) -> None:
        if self._local(name) != "xliff":
            raise markup.Refusal(f"is not XLIFF: its root is <{name.rpartition(' ')[2]}>, should be <xliff>")
        version = attributes.get("version", "")
        self._new = version.startswith("2") if version else f"{_CORE}2" in name
        if self._new:
            self._stated = (attributes.get("srcLang", ""), attributes.get("trgLang", "") or self._named)
        self._parser.StartElementHandler = self._start
        self._translate.append(True)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        local = self._local(name)
        if self._aside:
            self._aside += 1
        elif self._text is not None:
            self._inline(local, attributes)
        elif local is None or local in _ASIDE:
            self._aside = 1
        elif local in _TEXTS:
            self._text = self._texts[local] = _Text()
            self._parser.CharacterDataHandler = self._text.pieces.append
            if local == "target":
                self._target = (attributes.get("state", ""), attributes.get(_LANG, ""))
        else:
            self._translate.append({"yes": True, "no": False}.get(attributes.get("translate", ""), self._translate[-1]))
            if local == "file" and not self._new:
                self._stated = (attributes.get("source-language", ""), attributes.get("target-language", ""))
            elif local in ("trans-unit", "segment", "ignorable"):
                self._texts = {}
                self._target = ("", "")
                self._state = attributes.get("state", "")

    def _inline(self, local: str | None, attributes: dict[str, str]) -> None:
        assert self._text is not None
        if local == "cp":
            self._text.pieces.append(_character(attributes.get("hex", "")))
        if local in _NATIVE:
            self._aside = 1
            self._parser.CharacterDataHandler = None
            if markup.BREAKS & {attributes.get("ctype"), attributes.get("type"), attributes.get("subType")}:
                self._text.pieces.append(" ")
        else:
            self._text.enter(local or "", attributes)

    def _end(self, name: str) -> None:
        if self._aside:
            self._aside -= 1
            if not self._aside and self._text is not None:
                self._parser.CharacterDataHandler = self._text.pieces.append
        elif self._text is not None:
            if self._text.leave():
                self._text = None
                self._parser.CharacterDataHandler = None
        else:
            if self._local(name) in ("trans-unit", "segment") and self._translate[-1]:
                self._unit()
            self._translate.pop()

    def _unit(self) -> None:
        source, target = self._texts.get("source"), self._texts.get("target")
        state, language = self._target
        stated = (self._stated[0], self._stated[1] or language or self._named)
        if stated not in self._met:
            self._met[stated] = languages.turned(self._direction, *stated)
        turned = self._met[stated]
        if turned is None:
            return
        state = self._state if self._new else state
        if source is None or target is None or state in ("new", "initial") or state.startswith("needs-"):
            self._untranslated += 1
            return
        split = self._texts.get("seg-source", source).segments
        if split and target.segments:
            both = [(text, target.segments[mid]) for mid, text in split.items() if mid in target.segments]
        else:
            both = [(source.whole, target.whole)]
        for pair in both:
            if pair[0].strip() and pair[1].strip():
                self.found.append(Pair(*(reversed(pair) if turned else pair)))
            else:
                self._untranslated += 1


def _character(code: str) -> str:
    try:
        value = int(code, 16)
        if 0xD800 <= value <= 0xDFFF:
            raise ValueError
        return chr(value)
    except (ValueError, OverflowError):
        raise markup.Refusal(f"<cp hex={code!r}> names no character; it takes a hexadecimal code point") from None
