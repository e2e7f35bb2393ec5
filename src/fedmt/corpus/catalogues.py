"""The localisation catalogues inside a wheel: PO, MO and JSON files → messages. Knows nothing of downloads or cleaning.

A message is one string of a program: its English, and its translation into one language. Three ways of keeping the
English are known: it is the message's name (most PO and MO), it stands in a comment (Plone), or in a file of its own
(Home Assistant's JSON, and Mailman's letters).
"""

from __future__ import annotations

import gettext
import json
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import polib

from fedmt.errors import CorpusError

__all__ = ["Layout", "Message", "Wheel"]

English: TypeAlias = Literal["name", "comment", "file"]


class Message(NamedTuple):
    """`key` names the message within its package, the same in every language."""

    key: str
    english: str
    text: str


class Layout(NamedTuple):
    """Where a wheel keeps its catalogues: regular expressions in which `(?P<language>…)` is the language.

    `english` says where the English is; `letters` is the folder of English files for messages named by a file.
    """

    files: str
    english: English = "name"
    letters: str | None = None


# A message's name that is no English: title_actions_menu, front-text, list:user:notice:hold.txt
_IDENTIFIER = re.compile(r"[a-z0-9]+(?:[_.:/-]+[a-z0-9]+)+(?:\.txt)?")
_DEFAULT = re.compile(r'Default:\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": ""}


class Wheel:
    """An open wheel; `dropped` counts what its catalogues themselves say is not to be used."""

    def __init__(self, path: Path, layout: Layout) -> None:
        try:
            self.archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise CorpusError(f"{path}: not a readable wheel: {error}") from None
        self.layout = layout
        self.dropped: Counter[str] = Counter()
        self.catalogues: dict[str, list[str]] = {}
        pattern = re.compile(layout.files)
        for name in sorted(self.archive.namelist()):
            if found := pattern.fullmatch(name):
                self.catalogues.setdefault(found["language"], []).append(name)

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self.archive.close()

    @property
    def languages(self) -> list[str]:
        return sorted(self.catalogues)

    def messages(self, language: str) -> Iterator[Message]:
        for name in self.catalogues[language]:
            try:
                if name.endswith(".json"):
                    yield from self._json(name, language)
                else:
                    yield from self._gettext(name, language)
            except (ValueError, OSError, struct.error) as error:
                raise CorpusError(f"{self.archive.filename}: {name}: cannot be read: {error}") from None

    def _json(self, name: str, language: str) -> Iterator[Message]:
        folder, _, _ = name.rpartition("/")
        english = dict(_leaves(self._load(f"{folder}/en.json")))
        for path, text in _leaves(self._load(name)) if language != "en" else english.items():
            if path in english:
                yield Message(f"{folder}:{path}", english[path], text)

    def _load(self, name: str) -> Any:
        try:
            return json.loads(self.archive.read(name))
        except KeyError:
            return {}

    def _gettext(self, name: str, language: str) -> Iterator[Message]:
        content = self.archive.read(name)
        entries: Any = (
            polib.mofile(content)  # type: ignore[call-overload, unused-ignore]  # bytes are documented, not typed
            if name.endswith(".mo")
            else polib.pofile(content.decode("utf-8"))
        )
        singular, plural = _forms(entries.metadata.get("Plural-Forms", ""))
        stem = name.rpartition("/")[2].rpartition(".")[0]
        domain = "" if stem == language else stem
        for entry in entries:
            fuzzy = "fuzzy" in getattr(entry, "flags", ())
            if entry.obsolete or fuzzy:
                self.dropped["obsolete" if entry.obsolete else "fuzzy"] += 1
                continue
            key = f"{domain}:{entry.msgctxt or ''}:{entry.msgid}"
            if entry.msgid_plural:
                forms = entry.msgstr_plural
                if singular != plural and forms.get(singular):
                    yield Message(f"{key}:one", entry.msgid, forms[singular])
                if forms.get(plural):
                    yield Message(f"{key}:many", entry.msgid_plural, forms[plural])
            elif entry.msgstr:
                english = self._english(entry)
                if english is None:
                    self.dropped["no English"] += 1
                else:
                    yield Message(key, english, entry.msgstr)

    def _english(self, entry: Any) -> str | None:
        if self.layout.english == "comment" and (found := _DEFAULT.search(entry.comment)):
            return "".join(_unescape(part) for part in _QUOTED.findall(found[1]))
        name: str = entry.msgid
        if not _IDENTIFIER.fullmatch(name):
            return name
        if self.layout.letters is not None:
            try:
                return self.archive.read(f"{self.layout.letters}/{name}").decode("utf-8")
            except KeyError:
                return None
        # A lone word such as `e-mail` or `check-in` is English in most packages; where names are identifiers it is not.
        return name if self.layout.english == "name" and "_" not in name and ":" not in name else None


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}/{key}")
    elif isinstance(value, str):
        yield path, value


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text)


def _forms(rule: str) -> tuple[int, int]:
    """Which of a language's plural forms goes with one, and which with many; five is many in every language."""
    found = re.search(r"plural\s*=\s*([^;]+)", rule)
    if found is None:
        return 0, 1
    try:
        form: Callable[[int], int] = gettext.c2py(found[1].strip())
        return form(1), form(5)
    except (ValueError, RecursionError):
        return 0, 1
