"""From a recipe to clean text: the public's and each silo's, read, cleaned, split and kept apart.

Nothing that any silo (or the public) is tested or chosen on is trained on anywhere: a training pair goes if one of its
sentences stands in some dev or test set as a sentence of the same language. Splits by hash already see to that for
source sentences; explicit files and target sentences need it. Knows nothing of engines or federation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain

from fedmt import recipe
from fedmt.checking import meant
from fedmt.corpus import languages, pypi, reader, sharing, toy
from fedmt.corpus.clean import Cleaner
from fedmt.corpus.packages import PRESETS, Member
from fedmt.corpus.pairs import Direction, Pair, Text
from fedmt.corpus.split import key, keys, split, without
from fedmt.errors import CorpusError
from fedmt.events import Event, Listener, Note

__all__ = ["Gathered", "combine", "directions", "gather", "mistakes"]


@dataclass(frozen=True)
class Gathered:
    """`public` is one text a direction (empty where the recipe needs none); `silos` one text a silo."""

    public: list[Text]
    silos: list[Text]


@dataclass
class _Raw:
    """Text as it was read: `data` is still to be split, the other three are sets already."""

    name: str
    direction: Direction
    data: list[Pair] = field(default_factory=list)
    train: list[Pair] = field(default_factory=list)
    dev: list[Pair] = field(default_factory=list)
    test: list[Pair] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    licence: str = ""
    origin: str = ""


def gather(plan: recipe.Recipe, listen: Listener = lambda _: None) -> Gathered:
    """All text of a recipe that is here: of sites elsewhere, only names.

    What cleaning and keeping apart took is in each text's `dropped`, by rule.
    """
    once = _once(listen)
    silos = [_finish(raw, plan) for raw in _silos(plan, once)]
    raws = _public(plan, once)
    public = [_finish(raw, plan, public=len(raws)) for raw in raws]
    held = _held((*silos, *public))
    own = _limited(silos, held, plan.silos.limit if isinstance(plan.silos, recipe.PypiSilos) else None)
    elsewhere = isinstance(plan.silos, recipe.SitesSilos)
    gathered = Gathered(
        _limited(public, held, plan.public.limit if isinstance(plan.public, recipe.PypiPublic) else None),
        [Text(name, way, [], [], []) for name, way in directions(plan.silos).items()]
        if elsewhere
        else _shared(own, plan),
    )
    here = replace(gathered, silos=[]) if elsewhere else gathered
    _check(here)
    _tell(here, listen)
    return gathered


def _once(listen: Listener) -> Listener:
    """A package that serves in several directions tells its licence once."""
    told: set[str] = set()

    def tell(event: Event) -> None:
        if not isinstance(event, Note) or event.text not in told:
            listen(event)
        if isinstance(event, Note):
            told.add(event.text)

    return tell


def directions(silos: recipe.Silos) -> dict[str, Direction]:
    """Each silo's direction, by its name, in the silos' order; known before their text is read."""
    if isinstance(silos, recipe.ToySilos):
        return dict(zip(toy.names(silos), toy.directions(silos), strict=True))
    if isinstance(silos, recipe.PypiSilos):
        return {member.name: member.direction for member in _members(silos, None)}
    named = silos.list if isinstance(silos, recipe.SitesSilos) else recipe.listed(silos) or ()
    return {silo.name: Direction(silo.from_, silo.to) for silo in named}


def mistakes(silos: recipe.Silos) -> Iterator[tuple[tuple[str, ...], str]]:
    """What of the options beside the silos does not fit them: the path of the key, and what is wrong with it."""
    if isinstance(silos, list | recipe.SitesSilos):
        return
    known = directions(silos)
    for name in silos.low:
        if name not in known:
            yield ("silos", "low", name), f"there is no silo {name!r}{meant(name, known)}; allowed: {', '.join(known)}"
    if silos.mix and len(set(known.values())) == len(known):
        yield ("silos", "mix"), "no two silos go in the same direction, and only such can mix; allowed: 0"


def combine(texts: Iterable[Text], name: str = "combined") -> list[Text]:
    """All text in one place: one text a direction, in the order in which directions first come."""
    by_direction: dict[Direction, list[Text]] = {}
    for text in texts:
        by_direction.setdefault(text.direction, []).append(text)
    return [
        Text(
            name,
            direction,
            train=[pair for text in found for pair in text.train],
            dev=[pair for text in found for pair in text.dev],
            test=[pair for text in found for pair in text.test],
            dropped=dict(sum((Counter(text.dropped) for text in found), Counter())),
            licence=_listed(text.licence for text in found),
            origin=_listed(text.origin for text in found),
        )
        for direction, found in by_direction.items()
    ]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(name for name in names if name))


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _silos(plan: recipe.Recipe, listen: Listener) -> list[_Raw]:
    source = plan.silos
    if isinstance(source, recipe.ToySilos):
        return [_of_text(text) for text in toy.texts(source, plan.split)]
    if isinstance(source, recipe.PypiSilos):
        return [_of_member(member, member.name, listen) for member in _members(source, plan.public)]
    return [_of_files(silo.name, silo) for silo in recipe.listed(source) or ()]


def _public(plan: recipe.Recipe, listen: Listener) -> list[_Raw]:
    source, silos = plan.public, plan.silos
    if isinstance(source, recipe.FilePublic):
        return [_of_files("public", source)]
    if isinstance(source, recipe.PypiPublic):
        direction = Direction(source.from_, source.to)
        return [_of_member(Member("public", pypi.find(source.name).name, direction), "public", listen)]
    if isinstance(source, recipe.ToyPublic) or (isinstance(silos, recipe.ToySilos) and _from_scratch(plan)):
        settings = source or recipe.ToyPublic(source="toy")
        own = silos if isinstance(silos, recipe.ToySilos) else None
        return [_of_text(text) for text in toy.public(settings, own, plan.split)]
    if isinstance(silos, recipe.PypiSilos) and _from_scratch(plan):
        raws = [_of_member(member, "public", listen) for member in PRESETS[silos.preset].public]
        return _by_direction(raws)
    return []


def _from_scratch(plan: recipe.Recipe) -> bool:
    """Only such an engine cannot do without public text: its vocabulary is learnt from it."""
    return isinstance(plan.engine, recipe.Scratch)


def _members(silos: recipe.PypiSilos, public: object) -> list[Member]:
    known = {member.name: member for member in PRESETS[silos.preset].silos}
    for name in silos.names or ():
        if name not in known:
            raise CorpusError(f"silos.names: {silos.preset} has no silo {name}; allowed: {', '.join(known)}")
    chosen = [member for name, member in known.items() if silos.names is None or name in silos.names]
    if isinstance(public, recipe.PypiPublic):
        package, direction = pypi.find(public.name).name, Direction(public.from_, public.to)
        for member in chosen:
            if (member.package, member.direction) == (package, direction):
                raise CorpusError(
                    f"public: {public.name} is the private text of the silo {member.name}; "
                    "choose another package, or leave that silo out with silos.names"
                )
    return chosen


def _of_member(member: Member, name: str, listen: Listener) -> _Raw:
    package = pypi.find(member.package)
    catalogue = pypi.load(member.package, member.direction, listen)
    return _Raw(
        name,
        member.direction,
        catalogue.pairs,
        dropped=Counter(catalogue.dropped),
        licence=package.licence,
        origin=f"{package.name} {package.version}",
    )


def _of_text(text: Text) -> _Raw:
    """Split again, to the same sets: by hash there is only one way."""
    pairs = [*text.train, *text.dev, *text.test]
    return _Raw(
        text.name, text.direction, pairs, dropped=Counter(text.dropped), licence=text.licence, origin=text.origin
    )


def _of_files(name: str, sets: recipe.Sets) -> _Raw:
    direction = Direction(sets.from_, sets.to)

    def read(files: Sequence[str] | None) -> list[Pair]:
        return list(chain.from_iterable(reader.read(file, direction) for file in files or ()))

    origin = _listed(chain(sets.data or (), sets.train or ()))
    return _Raw(name, direction, read(sets.data), read(sets.train), read(sets.dev), read(sets.test), origin=origin)


def _by_direction(raws: Iterable[_Raw]) -> list[_Raw]:
    merged: dict[Direction, _Raw] = {}
    for raw in raws:
        first = merged.setdefault(raw.direction, raw)
        if first is not raw:
            first.data = [*first.data, *raw.data]
            first.dropped += raw.dropped
            first.origin = _listed((*first.origin.split(", "), raw.origin))
            first.licence = _listed((*first.licence.split(", "), raw.licence))
    return list(merged.values())


# ── cleaning, splitting, keeping apart ──────────────────────────────────────────────────────────────────────────────


def _finish(raw: _Raw, plan: recipe.Recipe, public: int = 0) -> Text:
    """Clean and split. Explicit dev and test sets are only tidied: what they ask is for their makers to say.

    Nothing is scored on public text: all but a dev set trains, and the dev sets of so many directions are small
    together, since they would take each other's English out of training.
    """
    cleaner = Cleaner(plan.clean)
    tidier = Cleaner(recipe.Clean(duplicates=False, copies=False, ratio=None, longest=2**31))
    given, data = list(cleaner.clean(raw.train)), list(cleaner.clean(raw.data))
    over: dict[str, int] = {}
    test: list[Pair] = []
    if public:
        most = max(1, plan.split.most_dev // public)
        dev = split(data, plan.split.model_copy(update={"most_dev": most}))[1]
        train = list(without(data, keys(dev)))
    else:
        train, dev, test = split(data, plan.split, over)
    dev, test = [*dev, *tidier.clean(raw.dev)], [*test, *tidier.clean(raw.test)]
    dropped = raw.dropped + Counter(cleaner.dropped) + Counter(tidier.dropped) + Counter(over)
    return Text(raw.name, raw.direction, [*given, *train], dev, test, dict(dropped), raw.licence, raw.origin)


def _sentences(text: Text, pair: Pair) -> tuple[tuple[str, int], tuple[str, int]]:
    """Both sentences with their languages, variants aside: what stands in de-DE's test is German text."""
    return (_language(text.direction.source), key(pair.source)), (_language(text.direction.target), key(pair.target))


def _language(code: str) -> str:
    parsed = languages.parse(code)
    return parsed.language if parsed else code


def _held(texts: Iterable[Text]) -> set[tuple[str, int]]:
    return {sentence for text in texts for pair in (*text.dev, *text.test) for sentence in _sentences(text, pair)}


def _limited(texts: Iterable[Text], held: set[tuple[str, int]], limit: int | None) -> list[Text]:
    """Training text without what is held out; then at most so many pairs of it.

    Those are chosen by hash: the first lines of a corpus are seldom like the rest.
    """
    limited = []
    for text in texts:
        train = [pair for pair in text.train if held.isdisjoint(_sentences(text, pair))]
        dropped = Counter(text.dropped) + Counter(held_out=len(text.train) - len(train))
        if limit is not None and len(train) > limit:
            dropped["limit"] = len(train) - limit
            chosen = set(sorted(train, key=_rank)[:limit])
            train = [pair for pair in train if pair in chosen][:limit]
        limited.append(replace(text, train=train, dropped=dict(dropped)))
    return limited


def _rank(pair: Pair) -> bytes:
    return blake2b("\0".join(pair).encode(), digest_size=8, person=b"fedmt.limit").digest()


def _shared(texts: list[Text], plan: recipe.Recipe) -> list[Text]:
    """Some of it withheld, then some of the rest mixed, as the recipe's `silos` ask."""
    source = plan.silos
    if isinstance(source, list | recipe.SitesSilos):
        return texts
    for path, text in mistakes(source):
        raise CorpusError(f"{'.'.join(path)}: {text}".replace("?; ", "? "))
    return sharing.mix(sharing.share(texts, source.share, source.low), source.mix, plan.seed, source.deal)


def _check(gathered: Gathered) -> None:
    for text in gathered.public:
        if not text.train:
            raise CorpusError(f"public ({text.direction}): no training text is left; {_losses(text)}")
    for text in gathered.silos:
        if not text.train:
            raise CorpusError(f"silo {text.name} ({text.direction}): no training text is left; {_losses(text)}")
        if not text.test:
            wanted = "give `test`, or more `data` to be split"
            raise CorpusError(f"silo {text.name} ({text.direction}): no test text; {wanted}; {_losses(text)}")


def _losses(text: Text) -> str:
    kept = f"{len(text.train)} train, {len(text.dev)} dev and {len(text.test)} test pairs are there"
    taken = ", ".join(f"{rule} {number}" for rule, number in text.dropped.items() if number)
    return f"{kept}; dropped by rule: {taken or 'none'}"


def _tell(gathered: Gathered, listen: Listener) -> None:
    for text in (*gathered.public, *gathered.silos):
        sizes = f"{len(text.train):,} train, {len(text.dev):,} dev, {len(text.test):,} test pairs"
        listen(Note(f"{text.name} ({text.direction}): {sizes}"))
    spoken = {_language(code) for text in gathered.public for code in text.direction}
    missing = {code for text in gathered.silos for code in text.direction if _language(code) not in spoken}
    if gathered.public and missing:
        listen(Note(f"the public text holds no {', '.join(sorted(missing))}: the engine meets it first at the silos"))
