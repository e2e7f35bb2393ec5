import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedmt.corpus import opus, reader
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError, FetchError

DE_EN = Direction("de", "en")


@dataclass
class Id:
    """The shape of an id in mtdata's index."""

    group: str
    name: str
    version: str
    langs: tuple[str, ...]

    @property
    def lang_str(self) -> str:
        return "-".join(self.langs)

    def __str__(self) -> str:
        return f"{self.group}-{self.name}-{self.version}-{self.lang_str}"


@dataclass
class Entry:
    did: Id
    in_ext: str = "txt"


INDEX = [
    Entry(Id("OPUS", "europarl", "v7", ("deu", "eng"))),
    Entry(Id("OPUS", "europarl", "v10", ("deu", "eng"))),
    Entry(Id("OPUS", "europarl", "v8", ("deu", "eng"))),
    Entry(Id("OPUS", "europarl", "v8", ("eng", "fra"))),
    Entry(Id("Statmt", "news_commentary", "18.1", ("deu", "eng"))),
    Entry(Id("Statmt", "news_commentary", "18.1", ("eng",))),
]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Europarl-v8", "OPUS-europarl-v8-deu-eng"),
        ("europarl", "OPUS-europarl-v10-deu-eng"),
        ("OPUS-europarl-v7", "OPUS-europarl-v7-deu-eng"),
        ("OPUS-europarl-v7-deu-eng", "OPUS-europarl-v7-deu-eng"),
        ("Statmt-news_commentary-18.1", "Statmt-news_commentary-18.1-deu-eng"),
    ],
)
def test_a_name_means_one_corpus(name: str, found: str) -> None:
    for direction, turned in ((DE_EN, False), (Direction("en-GB", "de"), True)):
        entry, way = opus.choose(name, direction, INDEX)
        assert (str(entry.did), way) == (found, turned)


def test_an_unknown_name_or_language_says_what_there_is() -> None:
    with pytest.raises(CorpusError, match="opus:Europarlament: no such corpus; `mtdata list -id -l de-en` lists them"):
        opus.choose("Europarlament", DE_EN, INDEX)
    with pytest.raises(CorpusError, match="opus:europarl-v8: not in de-fr; there is deu-eng, eng-fra"):
        opus.choose("europarl-v8", Direction("de", "fr"), INDEX)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mtdata", "mtdata.cache", "mtdata.index", "mtdata.parser"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        CorpusError, match=r'opus:Europarl-v8: corpora by name need an extra: pip install "fedmt\[opus\]"$'
    ):
        next(reader.read("opus:Europarl-v8", DE_EN))


@dataclass
class Cache:
    fails: bool = False
    asked: list[Any] = field(default_factory=list)

    def get_entry(self, entry: Entry) -> str:
        self.asked.append(entry)
        if self.fails:
            raise AssertionError("404\nnot found")
        return "path"


def parser(rows: list[tuple[str | None, ...]]) -> Any:
    class Parser:
        def __init__(self, paths: str, ext: str | None, ent: Entry) -> None:
            assert (paths, ext, ent) == ("path", "txt", INDEX[0])

        def read_segs(self, show_pbar: bool) -> list[tuple[str | None, ...]]:
            assert not show_pbar
            return rows

    return Parser


def test_rows_are_turned_with_the_direction_and_gaps_passed_over() -> None:
    reads = parser([("Hallo", "Hello"), (None, "x"), ("only",), ("Welt", "World")])
    assert list(opus._segments("x", INDEX[0], False, Cache(), reads)) == [Pair("Hallo", "Hello"), Pair("Welt", "World")]
    assert next(opus._segments("x", INDEX[0], True, Cache(), reads)) == Pair("Hello", "Hallo")


def test_what_cannot_be_fetched_or_is_empty_is_one_line() -> None:
    with pytest.raises(FetchError, match="opus:x: OPUS-europarl-v7-deu-eng could not be fetched: 404 not found"):
        next(opus._segments("x", INDEX[0], False, Cache(fails=True), parser([])))
    with pytest.raises(CorpusError, match="opus:x: OPUS-europarl-v7-deu-eng holds no pair"):
        next(opus._segments("x", INDEX[0], False, Cache(), parser([])))
