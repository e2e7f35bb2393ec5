"""The attack of Du et al. (2023), §4.5, whole: one silo trains on its own records, and reads those of another.

What is measured stands side by side for what the attacker is given of a record: nothing, its token, its token and code
(what travels), its token and state (what would travel without a quantiser). Less than another cannot say more, so the
rows tell what the token gives away, what the code adds, and what the quantiser keeps back.

Records reach a silo singly, shuffled among all silos'. The paper's threat model reads single records too, so that
there is nothing to tell apart between sent in order and shuffled. But a record whose token is the end of a sentence is
seen to be one, and its state has been through the whole sentence: such `ends` are attacked by themselves as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmt.corpus.pairs import Pair, Text
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.errors import CorpusError
from fedmt.events import Listener, Note
from fedmt.memory.datastore import floats
from fedmt.memory.quantise import Quantiser
from fedmt.memory.quantise import train as train_quantiser
from fedmt.privacy import probe, threat
from fedmt.privacy.observed import Observed, observe, received, states
from fedmt.privacy.private import Hits, hits, private
from fedmt.privacy.probe import Probed
from fedmt.recipe import Memory
from fedmt.score.statistics import measure

__all__ = ["GIVEN", "Leak", "Read", "Settings", "attack", "judge", "quantiser"]

# By name: whether the threat model sees the key, and the token.
GIVEN = {"nothing": (False, False), "token": (False, True), "code": (True, True), "state": (True, True)}
TARGETS = ("any", "ends")


@dataclass(frozen=True)
class Settings:
    """`records` is how many of the victim's are attacked: the paper's number. The rest is the recipe's."""

    epochs: int = 5
    records: int = 2000
    longest: int = 200
    batch_tokens: int = 1500
    seed: int = 1


@dataclass(frozen=True)
class Read:
    """What the threat model made of `records`: BLEU of the source, of the target up to the record, and of both as one.

    `private` counts the victim's words that the public text does not hold, `foreign` those of them that the attacker's
    own text does not hold either.
    """

    given: str
    attacked: str
    records: int
    source: float
    target: float
    both: float
    private: Hits
    foreign: Hits


@dataclass(frozen=True)
class Leak:
    """`own` is how many records the attacker trained on, `pairs` how many of the victim's pairs were attacked, and
    `known` how many were not, since the attacker has the same pair itself."""

    attacker: str
    victim: str
    own: int
    pairs: int
    known: int
    private: int
    foreign: int
    reads: list[Read]
    probes: dict[str, Probed]


def quantiser(
    engine: Engine, public: Sequence[Text], memory: Memory, machine: Machine, longest: int, batch_tokens: int, seed: int
) -> Quantiser:
    """The server's, learnt from the public text as it would."""
    texts = [(text.direction, text.train) for text in public]
    return train_quantiser(floats(states(engine, texts, machine, longest, batch_tokens)), memory, seed)


def attack(
    engine: Engine,
    coder: Quantiser,
    public: Sequence[Text],
    attacker: Text,
    victim: Text,
    settings: Settings,
    machine: Machine,
    listen: Listener = lambda _: None,
) -> Leak:
    """Both texts go in one direction. What both silos have, neither can learn of the other: it is not attacked."""

    def look(pairs: Sequence[Pair]) -> Observed:
        return observe(engine, pairs, victim.direction, machine, settings.longest, settings.batch_tokens)

    has = {_key(pair) for pair in attacker.train}
    secret = [pair for pair in victim.train if _key(pair) not in has]
    own, dev, theirs = look(attacker.train), look(attacker.dev), look(secret)
    if not len(own) or not len(theirs):
        who = victim.name if len(own) else attacker.name
        raise CorpusError(f"{who}: no training pair is left that the other silo lacks and the engine can read")
    known_words = [pair for text in public for pair in (*text.train, *text.dev)]
    dictionary = private(victim.train, known_words)
    foreign = private(victim.train, known_words, attacker.train)
    coded = [received(one, coder) if len(one) else one for one in (own, dev, theirs)]
    goals = _goals(theirs, engine.vocabulary.eos, settings)
    reads = []
    for name, sees in GIVEN.items():
        mine, check, other = coded if name == "code" else (own, dev, theirs)
        model = threat.train(
            engine, mine, check, sees, settings.epochs, settings.seed, machine, _report(name, settings.epochs, listen)
        )
        for attacked, rows in goals.items():
            if len(rows):
                guesses = model.guess(other.take(rows), machine)
                reads.append(judge(name, attacked, guesses, theirs.take(rows), engine, victim, dictionary, foreign))
    rows = goals["any"]
    asked = theirs.take(rows)
    found = {
        "nothing": probe.anyhow(own, asked, settings.seed),
        "token": probe.same_token(own, asked, settings.seed),
        "code": probe.nearest(coded[0].keys, coded[2].keys[rows]),
        "state": probe.nearest(own.keys, asked.keys),
    }
    return Leak(
        attacker.name,
        victim.name,
        len(own),
        len(secret),
        len(victim.train) - len(secret),
        len(dictionary),
        len(foreign),
        reads,
        {name: probe.alike(own, asked, places) for name, places in found.items()},
    )


def judge(
    given: str,
    attacked: str,
    guesses: Sequence[threat.Guess],
    truth: Observed,
    engine: Engine,
    victim: Text,
    dictionary: frozenset[str],
    foreign: frozenset[str],
) -> Read:
    """Guesses against what the records were made of, both as text: source, and target up to the record's token."""
    rows = range(len(truth))
    decode, direction = engine.vocabulary.decode, victim.direction
    said = decode([one.source for one in guesses]), decode([one.target for one in guesses])
    told = (
        decode([truth.source(row) for row in rows]),
        decode([[*truth.before(row), int(truth.tokens[row])] for row in rows]),
    )
    joined = [[" ".join(sides) for sides in zip(*texts, strict=True)] for texts in (said, told)]
    source, target, both = (
        measure(guessed, true, language, ter=False).scores().bleu
        for guessed, true, language in (
            (said[0], told[0], direction.source),
            (said[1], told[1], direction.target),
            (joined[0], joined[1], direction.target),
        )
    )
    found = [hits(joined[0], joined[1], words) for words in (dictionary, foreign)]
    return Read(given, attacked, len(guesses), source, target, both, found[0], found[1])


def _goals(theirs: Observed, eos: int, settings: Settings) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Which of the victim's records are attacked: any, and ends of sentences, as many as may be, drawn at random."""
    draw = np.random.default_rng(settings.seed)
    pools = (np.arange(len(theirs)), np.flatnonzero(theirs.tokens == eos))
    return {name: draw.permutation(pool)[: settings.records] for name, pool in zip(TARGETS, pools, strict=True)}


def _key(pair: Pair) -> tuple[str, str]:
    source, target = (" ".join(side.casefold().split()) for side in pair)
    return source, target


def _report(given: str, epochs: int, listen: Listener) -> threat.Report:
    def report(epoch: int, loss: float, dev: float | None) -> None:
        checked = "" if dev is None else f", on dev {dev:.3f}"
        listen(Note(f"threat model given {given}: epoch {epoch} of {epochs}, loss {loss:.3f}{checked}"))

    return report
