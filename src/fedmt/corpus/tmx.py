"""TMX 1.1 to 1.4, streamed. Knows nothing of files (markup.py) and of what text is worth keeping (clean.py).

A `tu` gives one pair, whatever the order of its `tuv`s and whatever `srclang` says. Of several variants of a language
the exact code wins, then the variant that the file had first; of several `tuv`s of one code, the first. Native code
(`bpt`, `ept`, `ph`, `it`, `ut`, with any `sub` in it) is dropped, save that a line break becomes a space; the text of
`hi` stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from fedmt.corpus import languages, markup
from fedmt.corpus.pairs import Direction, Pair

__all__ = ["pairs"]

_NATIVE = frozenset({"bpt", "ept", "ph", "it", "ut"})
_UNITS = frozenset({"tu", "tuv", "seg"})
_NEVER = 1 << 30


def pairs(path: Path, direction: Direction) -> Iterator[Pair]:
    return markup.read(path, _Units(direction))


class _Places(dict[str, tuple[int, int] | None]):
    """For each code met: which side it is and its rank there, lower being better; None where it is neither."""

    def __init__(self, direction: Direction) -> None:
        self._direction = direction

    def __missing__(self, code: str) -> tuple[int, int] | None:
        side = languages.side(self._direction, code)
        place = None
        if side is not None:
            place = (side, 0 if languages.exact(self._direction[side], code) else len(self) + 1)
        self[code] = place
        return place


class _Units:
    def __init__(self, direction: Direction) -> None:
        self.found: list[Pair] = []
        self._direction = direction
        self._places = _Places(direction)

    def attach(self, parser: expat.XMLParserType) -> None:
        """Closures over local names: this is called twice an element, and is where all the time goes.

        Outside a `seg` of a wanted language only starts are listened to, inside also ends and text.
        """
        found, places = self.found, self._places
        pieces: list[str] = []
        append = pieces.append
        texts = ["", ""]
        ranks = [_NEVER, _NEVER]
        place: tuple[int, int] | None = None
        within = False
        hidden = 0

        def root(name: str, _: dict[str, str]) -> None:
            if name != "tmx":
                raise markup.Refusal(f"is not TMX: its root is <{name}>, should be <tmx>")
            parser.StartElementHandler = start

        def start(name: str, attributes: dict[str, str]) -> None:
            nonlocal place, within
            if within:
                inline(name, attributes)
            elif name == "seg":
                if place is not None:
                    within = True
                    parser.CharacterDataHandler = append
                    parser.EndElementHandler = end
            elif name == "tuv":
                place = places[attributes.get("xml:lang") or attributes.get("lang") or ""]
            elif name == "tu":
                finish()

        def inline(name: str, attributes: dict[str, str]) -> None:
            nonlocal hidden
            if name in _UNITS:
                raise markup.Refusal(f"<{name}> inside a <seg>")
            if hidden or name in _NATIVE:
                hidden += 1
                parser.CharacterDataHandler = None
                if attributes.get("type") in markup.BREAKS:
                    append(" ")

        def end(name: str) -> None:
            nonlocal within, hidden
            if hidden:
                hidden -= 1
                if not hidden:
                    parser.CharacterDataHandler = append
            elif name == "seg":
                within = False
                parser.CharacterDataHandler = None
                parser.EndElementHandler = None
                assert place is not None
                side, rank = place
                if rank < ranks[side]:
                    ranks[side] = rank
                    texts[side] = pieces[0] if len(pieces) == 1 else "".join(pieces)
                pieces.clear()

        def finish() -> None:
            if ranks[0] != _NEVER and ranks[1] != _NEVER:
                found.append(Pair(texts[0], texts[1]))
            ranks[0] = ranks[1] = _NEVER

        parser.StartElementHandler = root
        self._finish = finish

    def finish(self) -> None:
        self._finish()

    def nothing(self) -> str:
        return f"no pair of {self._direction}; the file has {languages.listing(self._places)}"
