"""Invented languages for tests and for machines without a network: a tiny engine learns them in seconds.

A sentence begins as a meaning (who does what to whom, where, when), drawn from the words of a domain and of everyday
life; each language then says it in its own way. The languages of a *family* share word order, suffixes and roots, and
differ by regular changes of sound, as German and Dutch do; families share nothing. All translate into one *pivot*, or
out of it. So an engine must learn to reorder (SOV or VSO to SVO), to undo suffixes (number, definiteness, case, tense,
vowel harmony) and to make the pivot's verb agree with its subject, which the source's verb does not show.

Each silo has a domain: words that are frequent there, and rare elsewhere and in the public text. Grammar and everyday
words are common to all, so federation has something to share, and a silo something that only it knows.

With `directions: many` each silo translates from one family into another, without a pivot (with `ring` always from a
family to the next), and families are in each other's way: all draw their words and suffixes from one stock and mean
different things by them, as English `gift` is German for poison, and no two share all of word order, adpositions and
agreement. What is right for one family is then wrong for another, while cousins keep most words and all of the
grammar; and all silos speak of one domain unless `domains` says otherwise, so that only their languages tell them
apart.

Languages have the codes that ISO 639 leaves to private use, `qaa` to `qtz`; the last is the pivot. Everything follows
from the settings: the same settings give the same sentences on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from fedmt import recipe
from fedmt.corpus.pairs import Direction, Pair, Text
from fedmt.corpus.split import split as split_pairs

__all__ = [
    "PIVOT",
    "Clause",
    "Language",
    "Phrase",
    "directions",
    "family",
    "language",
    "names",
    "pivot",
    "public",
    "texts",
]

PIVOT = "qtz"
Order: TypeAlias = Literal["SVO", "SOV", "VSO", "OVS"]
Kind: TypeAlias = Literal["noun", "verb", "adjective", "place"]

# How many words of each kind everyday life has, and how many each domain has of its own.
EVERYDAY: dict[Kind, int] = {"noun": 20, "verb": 10, "adjective": 8, "place": 6}
DOMAIN: dict[Kind, int] = {"noun": 10, "verb": 3, "adjective": 3, "place": 2}
# How often a content word is one of the silo's own domain; of any domain, in the public text.
OWN, FOREIGN = 0.6, 0.03
_TENSES = ("now", "then", "later")
_GRAMMAR = ("the", "in", *_TENSES)
_SUFFIXES = ("+the", "+plural", "+case", "+then", "+later", "+singular")
# Sounds in which a cousin differs from the head of its family; where families share their words, few, or a cousin's
# words would be strangers'.
_MOVED, _MOVED_OF_ONE_STOCK = 4, 2


class Phrase(NamedTuple):
    noun: str
    plural: bool
    definite: bool
    adjectives: tuple[str, ...] = ()


class Clause(NamedTuple):
    """A meaning. There is always an object or a place."""

    subject: Phrase
    verb: str
    tense: str
    object: Phrase | None
    place: Phrase | None


@dataclass(frozen=True)
class Language:
    """How one language says a meaning; `changes` are the sounds in which it differs from its family."""

    code: str
    order: Order
    adjectives_first: bool
    postpositions: bool
    articles: bool
    suffixing: bool
    harmony: bool
    roots: dict[str, str]
    changes: dict[int, int]

    def say(self, clause: Clause) -> str:
        subject = self._phrase(clause.subject)
        thing = self._phrase(clause.object, case=self.order != "SVO") if clause.object else []
        verb = self._verb(clause)
        by_order = {"S": subject, "O": thing, "V": verb}
        words = [word for part in self.order for word in by_order[part]]
        if clause.place:
            place = self._phrase(clause.place)
            place = [*place, self.roots["in"]] if self.postpositions else [self.roots["in"], *place]
            # Before the verb where that comes last, else at the end.
            words = [*words[: -len(verb)], *place, *verb] if self.order == "SOV" else words + place
        return " ".join(words).translate(self.changes)

    def _phrase(self, phrase: Phrase, case: bool = False) -> list[str]:
        plural = self.roots["+plural"] if phrase.plural else ""
        known = self.roots["+the"] if phrase.definite and not self.articles else ""
        noun = self._suffixed(phrase.noun, known, plural, self.roots["+case"] if case else "")
        # Adjectives agree in number, except in the pivot, which leaves them bare.
        adjectives = [self._suffixed(word, plural if self.suffixing else "") for word in phrase.adjectives]
        words = [*adjectives, noun] if self.adjectives_first else [noun, *adjectives]
        return [self.roots["the"], *words] if self.articles and phrase.definite else words

    def _verb(self, clause: Clause) -> list[str]:
        if self.suffixing:
            return [self._suffixed(clause.verb, "" if clause.tense == "now" else self.roots[f"+{clause.tense}"])]
        agreeing = self._suffixed(clause.verb, "" if clause.subject.plural else self.roots["+singular"])
        return [agreeing] if clause.tense == "now" else [self.roots[clause.tense], agreeing]

    def _suffixed(self, meaning: str, *suffixes: str) -> str:
        word = self.roots[meaning]
        for suffix in suffixes:
            # Under harmony a suffix takes up the word's last vowel, as in Finnish or Turkish.
            last = next((sound for sound in reversed(word) if sound in "aeiou"), "a")
            word += "".join(last if self.harmony and sound in "aeiou" else sound for sound in suffix)
        return word


# ── making languages ────────────────────────────────────────────────────────────────────────────────────────────────


def pivot(settings: recipe.ToySilos) -> Language:
    roots = _roots(settings, "pivot", "bdfgklmnprst", "aeiou")
    return Language(PIVOT, "SVO", True, False, True, False, False, roots, {})


def language(settings: recipe.ToySilos, family: int, member: int) -> Language:
    """The member 0 speaks as the family once did; each other has moved some consonants round a ring."""
    if settings.directions in _ACROSS:
        return _of_one_stock(settings, family, member)
    rng = random.Random(f"{settings.seed}/family/{family}")
    orders: tuple[Order, ...] = ("SOV", "VSO", "SVO")
    order = orders[family % 3]
    consonants = "".join(rng.sample("bcdfghjklmnpqrstvwxyz", 12))
    roots = _roots(settings, f"family/{family}", consonants, "".join(rng.sample("aeiou", 4)))
    return Language(
        _code(settings, family, member),
        order,
        adjectives_first=order != "VSO",
        postpositions=order == "SOV",
        articles=order == "VSO",
        suffixing=True,
        harmony=order == "SOV",
        roots=roots,
        changes=_changes(settings, family, member, consonants, _MOVED),
    )


def _of_one_stock(settings: recipe.ToySilos, family: int, member: int) -> Language:
    """A language of `directions: many`: the forms are those of all families, what they mean is the family's own."""
    orders: tuple[Order, ...] = ("SOV", "VSO", "SVO", "OVS")
    order = orders[family % 4]
    # Families 4 to 7 have the orders of the first four and turn the rest round.
    turned = family >= 4
    consonants = "bdfgklmnprst"
    stock = _roots(settings, "stock", consonants, "aeiou")
    kinds = (_GRAMMAR, _SUFFIXES, tuple(meaning for meaning in stock if "." in meaning))
    rng = random.Random(f"{settings.seed}/meanings/{family}")
    roots = {
        meaning: stock[form]
        for meanings in kinds
        for meaning, form in zip(meanings, rng.sample(meanings, len(meanings)), strict=True)
    }
    return Language(
        _code(settings, family, member),
        order,
        adjectives_first=(order in ("SOV", "SVO")) != turned,
        postpositions=(order in ("SOV", "OVS")) != turned,
        articles=(order in ("VSO", "OVS")) != turned,
        suffixing=True,
        harmony=False,
        roots=roots,
        changes=_changes(settings, family, member, consonants, _MOVED_OF_ONE_STOCK),
    )


def _code(settings: recipe.ToySilos, family: int, member: int) -> str:
    high, low = divmod(member * settings.families + family, 26)
    return f"q{chr(ord('a') + high)}{chr(ord('a') + low)}"


def _changes(settings: recipe.ToySilos, family: int, member: int, consonants: str, number: int) -> dict[int, int]:
    ring = random.Random(f"{settings.seed}/family/{family}/{member}").sample(consonants, number if member else 0)
    return {ord(sound): ord(ring[index - 1]) for index, sound in enumerate(ring)}


def family(settings: recipe.ToySilos, code: str) -> str | None:
    """The family of one of these languages, which is its branch too; nothing where they have no such language."""
    known = {_code(settings, *seat): seat[0] for ends in _ends(settings) for seat in ends if seat != _PIVOT}
    if code == PIVOT:
        return "pivot"
    return f"family-{known[code] + 1}" if code in known else None


def _roots(settings: recipe.ToySilos, name: str, consonants: str, vowels: str) -> dict[str, str]:
    """A different root for every meaning; the everyday ones come first, so that more silos do not change them."""
    rng = random.Random(f"{settings.seed}/roots/{name}")
    roots: dict[str, str] = {}
    taken: set[str] = set()

    def fresh(pattern: str) -> str:
        while True:
            word = "".join(rng.choice(consonants if sound == "c" else vowels) for sound in pattern)
            if word not in taken:
                taken.add(word)
                return word

    for meaning in _GRAMMAR:
        roots[meaning] = fresh("cv")
    # Their consonants differ, since harmony makes their vowels alike.
    for suffix, sound in zip(_SUFFIXES, rng.sample(consonants, len(_SUFFIXES)), strict=True):
        roots[suffix] = rng.choice(vowels) + sound
    for meaning in (
        word for number in range(-1, settings.silos) for words in _words(number).values() for word in words
    ):
        roots[meaning] = fresh(rng.choice(("cvcvc", "cvccv", "cvcv", "vccvc")))
    return roots


def _words(domain: int) -> dict[Kind, list[str]]:
    """The meanings of a silo's domain; those of everyday life for -1."""
    sizes, name = (EVERYDAY, "everyday") if domain < 0 else (DOMAIN, f"domain{domain}")
    return {kind: [f"{name}.{kind}{index}" for index in range(size)] for kind, size in sizes.items()}


# ── drawing sentences ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Speaker:
    """Draws meanings: `domains` with the chance that a word is one of theirs, else everyday ones."""

    rng: random.Random
    domains: tuple[int, ...]
    share: float

    @cached_property
    def words(self) -> tuple[dict[Kind, list[str]], list[dict[Kind, list[str]]]]:
        return _words(-1), [_words(domain) for domain in self.domains]

    def word(self, kind: Kind) -> str:
        everyday, domains = self.words
        chosen = self.rng.choice(domains) if self.rng.random() < self.share else everyday
        return self.rng.choice(chosen[kind])

    def phrase(self, kind: Kind, most: int) -> Phrase:
        number = min(most, self.rng.choice((0, 0, 1, 1, 2)))
        adjectives = tuple(dict.fromkeys(self.word("adjective") for _ in range(number)))
        return Phrase(self.word(kind), self.rng.random() < 0.4, self.rng.random() < 0.5, adjectives)

    def clause(self) -> Clause:
        subject = self.phrase("noun", 2)
        with_object, with_place = self.rng.choice(((True, False), (False, True), (True, True)))
        thing = self.phrase("noun", 2 - len(subject.adjectives)) if with_object else None
        place = self.phrase("place", 0) if with_place else None
        return Clause(subject, self.word("verb"), self.rng.choice(_TENSES), thing, place)


def _draw(source: Language, target: Language, speaker: _Speaker, pairs: int) -> list[Pair]:
    """So many pairs, no source sentence twice."""

    def sentences() -> Iterator[Pair]:
        while True:
            clause = speaker.clause()
            yield Pair(source.say(clause), target.say(clause))

    found: dict[str, Pair] = {}
    for pair in sentences():
        found.setdefault(pair.source, pair)
        if len(found) == pairs:
            break
    return list(found.values())


# Directions without a pivot.
_ACROSS = ("many", "ring")
# Family and member of a language.
_Seat: TypeAlias = tuple[int, int]
_PIVOT: _Seat = (-1, 0)


def _ends(settings: recipe.ToySilos) -> list[tuple[_Seat, _Seat]]:
    """What each silo translates from and into."""
    if settings.directions in _ACROSS:
        ring = settings.directions == "ring"
        return [_across(settings.families, silo, ring) for silo in range(settings.silos)]
    ends = []
    for silo in range(settings.silos):
        # In `both`, two silos share a language and go opposite ways.
        own = silo // 2 if settings.directions == "both" else silo
        # One family: all silos speak one language; several: each its own.
        seat = (0, 0) if settings.families == 1 else (own % settings.families, own // settings.families)
        out = settings.directions == "from-pivot" or (settings.directions == "both" and silo % 2 == 1)
        ends.append((_PIVOT, seat) if out else (seat, _PIVOT))
    return ends


def _across(families: int, silo: int, ring: bool) -> tuple[_Seat, _Seat]:
    """In each row of as many silos as there are families, every family is once a source and once a target; the next
    row goes from each family to another one (in a ring to the same one again), in languages of its own."""
    row, source = divmod(silo, families)
    return (source, row), ((source + 1 + (0 if ring else row % (families - 1))) % families, row)


def _direction(settings: recipe.ToySilos, ends: tuple[_Seat, _Seat]) -> Direction:
    source, target = (PIVOT if seat == _PIVOT else _code(settings, *seat) for seat in ends)
    return Direction(source, target)


def _spoken(settings: recipe.ToySilos, ends: tuple[_Seat, _Seat]) -> tuple[Language, Language]:
    source, target = (pivot(settings) if seat == _PIVOT else language(settings, *seat) for seat in ends)
    return source, target


def directions(settings: recipe.ToySilos) -> list[Direction]:
    """Each silo's direction."""
    return [_direction(settings, ends) for ends in _ends(settings)]


def names(settings: recipe.ToySilos) -> list[str]:
    return [f"toy-{silo + 1}" for silo in range(settings.silos)]


def _domains(settings: recipe.ToySilos) -> int:
    return settings.domains or (1 if settings.directions in _ACROSS else settings.silos)


def texts(settings: recipe.ToySilos, split: recipe.Split | None = None) -> list[Text]:
    """One text for each silo, in its own domain; `settings.pairs` pairs each, before the split."""
    found = []
    for silo, (name, ends) in enumerate(zip(names(settings), _ends(settings), strict=True)):
        domain = silo % _domains(settings)
        speaker = _Speaker(random.Random(f"{settings.seed}/silo/{silo}"), (domain,), OWN)
        pairs = _draw(*_spoken(settings, ends), speaker, settings.pairs)
        found.append(_text(name, _direction(settings, ends), pairs, split))
    return found


def public(
    settings: recipe.ToyPublic, silos: recipe.ToySilos | None = None, split: recipe.Split | None = None
) -> list[Text]:
    """Everyday text in the silos' languages: `settings.pairs` in all, shared out evenly among the directions."""
    silos = silos or recipe.ToySilos(source="toy")
    spoken = list(dict.fromkeys(_ends(silos)))
    domains = tuple(range(_domains(silos)))
    found = []
    for index, ends in enumerate(spoken):
        direction = _direction(silos, ends)
        # A language's public sentences are other ones in each direction in which it stands.
        name = direction.source if direction.target == PIVOT else str(direction)
        speaker = _Speaker(random.Random(f"{silos.seed}/public/{name}"), domains, FOREIGN)
        share = settings.pairs * (index + 1) // len(spoken) - settings.pairs * index // len(spoken)
        found.append(_text("public", direction, _draw(*_spoken(silos, ends), speaker, share), split))
    return found


def _text(name: str, direction: Direction, pairs: list[Pair], split: recipe.Split | None) -> Text:
    over: dict[str, int] = {}
    train, dev, test = split_pairs(pairs, split or recipe.Split(), over)
    return Text(name, direction, train, dev, test, over, "none: invented", "invented by fedmt")
