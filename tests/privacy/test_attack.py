"""Records with their truth, the probe, the threat model, and the whole attack, on tiny engines."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from fedmt.corpus.pairs import Pair, Text
from fedmt.engine.device import Machine
from fedmt.errors import CorpusError
from fedmt.events import Event, Note
from fedmt.memory import datastore
from fedmt.memory.datastore import Layout
from fedmt.memory.quantise import Quantiser
from fedmt.privacy import attack, probe, threat
from fedmt.privacy.observed import Observed, observe, received, states
from fedmt.privacy.private import private
from fedmt.privacy.threat import Guess
from fedmt.recipe import Memory
from tests.engine import tiny

FP32 = Machine(torch.device("cpu"), "fp32", 1)


def text(name: str, first: int, count: int, dev: int = 0) -> Text:
    """Pairs of which `tiny.learnt` has learnt the first 24 by heart."""
    pairs = [Pair(*pair) for pair in zip(tiny.SENTENCES[first:], tiny.SENTENCES[first + 50 :], strict=False)]
    return Text(name, tiny.DIRECTION, pairs[:count], pairs[count : count + dev], [])


def look(pairs: list[Pair], kind: str = "scratch", batch_tokens: int = 300) -> Observed:
    return observe(tiny.learnt(kind), pairs, tiny.DIRECTION, FP32, 64, batch_tokens)


@functools.cache
def coder(kind: str = "scratch") -> Quantiser:
    settings = Memory(lists=4, code_bytes=8, projection="none")
    return attack.quantiser(tiny.learnt(kind), [text("public", 100, 80)], settings, FP32, 64, 300, seed=1)


def made(places: list[int], targets: list[list[int]], keys: list[list[float]] | None = None) -> Observed:
    """One record of each sentence."""
    tokens = [target[place] for target, place in zip(targets, places, strict=True)]
    return Observed(
        np.array(keys or [[0.0]] * len(places), dtype=np.float32),
        np.array(tokens),
        np.arange(len(places)),
        np.array(places),
        [[9]] * len(places),
        targets,
    )


# ── what an attacker has ──


@pytest.mark.parametrize("kind", ["scratch", "nllb", "t5"])
def test_each_record_has_its_own_sentence_and_place(kind: str) -> None:
    engine, pairs = tiny.learnt(kind), text("own", 0, 6).train
    many = look(pairs, kind)
    assert sorted(set(many.sentence.tolist())) == list(range(6))
    for number, pair in enumerate(pairs):
        alone, own = look([pair], kind), many.take(np.flatnonzero(many.sentence == number))
        assert own.tokens.tolist() == alone.tokens.tolist() == many.targets[number]
        assert own.place.tolist() == list(range(len(own)))
        np.testing.assert_allclose(own.keys, alone.keys, atol=1e-3)
        last = len(own) - 1
        assert [*own.before(last), int(own.tokens[last])] == many.targets[number]
        assert engine.vocabulary.decode([own.source(0), own.targets[number]]) == engine.vocabulary.decode(
            [engine.vocabulary.encode_source([pair.source], tiny.DIRECTION)[0], alone.targets[0]]
        )


def test_what_another_receives_is_the_point_that_the_code_stands_for() -> None:
    own = look(text("own", 0, 24).train)
    other, made_by = received(own, coder()), coder()
    lists, codes = made_by.encode(own.keys)
    parts = [made_by.codebook[part][codes[:, part]] for part in range(made_by.code_bytes)]
    np.testing.assert_allclose(other.keys, made_by.lists[lists] + np.concatenate(parts, axis=1), atol=1e-5)
    assert (other.tokens == own.tokens).all()
    lost = ((other.keys - own.keys) ** 2).sum() / ((own.keys - own.keys.mean(axis=0)) ** 2).sum()
    assert 0.001 < lost < 0.6


def test_records_in_the_order_of_the_text_spell_its_targets() -> None:
    """Why the order is a secret of its own: no attack is needed, and no key of a record."""
    engine, pairs = tiny.learnt("scratch"), text("own", 0, 12).train
    layout = Layout.of(coder())
    texts = [(tiny.DIRECTION, pairs)]
    sent = np.concatenate(list(datastore.build(states(engine, texts, FP32, 64, 300), coder())))
    tokens = layout.unpack(sent)[2]
    ends = np.flatnonzero(tokens == engine.vocabulary.eos) + 1
    sentences = engine.vocabulary.decode([part.tolist() for part in np.split(tokens, ends)[:-1]])
    assert sorted(sentences) == sorted(pair.target for pair in pairs)


def test_no_text_gives_no_records() -> None:
    assert len(look([])) == 0
    assert [len(part.tokens) for part in states(tiny.learnt("scratch"), [], FP32, 64, 300)] == []


# ── the probe ──


def test_the_share_of_a_prefix_that_is_right_is_counted_from_its_end() -> None:
    asked = made([4, 2, 0], [[1, 2, 3, 4, 5], [1, 2, 3], [7]])
    own = made([3, 1], [[8, 3, 4, 6], [2, 9]])
    found = probe.alike(own, asked, np.array([0, 1, 0]))
    # Prefixes 1 2 3 4 against 8 3 4, and 1 2 against 2: what is not there is wrong.
    assert found.shares == {1: 100.0, 2: 75.0, 4: 50.0}
    assert found.records == {1: 2, 2: 2, 4: 1}
    several = probe.alike(own, asked, np.array([[0, 1], [1, 1], [0, 0]]))
    assert several.shares[1] == 75.0
    assert probe.alike(own, asked.take(np.array([2])), np.array([0])).shares == {1: None, 2: None, 4: None}


@pytest.mark.parametrize("given", ["state", "code"])
def test_the_probe_finds_itself_where_attacker_and_victim_are_one(given: str) -> None:
    plain = look(text("own", 0, 24).train)
    own = received(plain, coder()) if given == "code" else plain
    found = probe.alike(own, own, probe.nearest(own.keys, own.keys))
    # Two records may have one code.
    assert all(share is not None and share > (99.9 if given == "state" else 90) for share in found.shares.values())
    chance = probe.alike(own, own, probe.anyhow(own, own, seed=1))
    assert all(share is not None and share < 20 for share in chance.shares.values())


def test_records_of_the_same_token_are_drawn_and_any_where_there_is_none() -> None:
    own = made([0, 1, 0, 1], [[5], [1, 6], [5], [1, 6]])
    drawn = probe.same_token(own, made([0, 0, 0], [[5], [6], [7]]), seed=1)
    assert set(drawn[0]) == {0, 2}
    assert set(drawn[1]) == {1, 3}
    assert set(drawn[2]) == {0, 1, 2, 3}


# ── the threat model ──


def test_an_epoch_reads_some_records_of_every_sentence() -> None:
    own = look(text("own", 0, 24).train)
    for seed in (1, 2):
        drawn = own.take(threat._drawn(own, seed))
        assert set(np.bincount(drawn.sentence)) == {threat.A_SENTENCE}
    assert (threat._drawn(own, 1) != threat._drawn(own, 2)).any()


def test_guessing_token_by_token_is_what_the_whole_sequence_says() -> None:
    """With keys and values kept, whichever rows have ended before."""
    engine, own = tiny.learnt("scratch"), look(text("own", 0, 24).train)
    model = threat.train(engine, own, own.take(np.arange(0)), (True, True), 2, 1, FP32)
    rows = own.take(np.arange(0, len(own), 23))
    with torch.inference_mode():
        written = model.eval()._write(torch.from_numpy(rows.keys), torch.from_numpy(rows.tokens))
        for row, ids in enumerate(written):
            one = rows.take(np.array([row]))
            before = torch.tensor([[model.after_source, *ids[:-1]]])
            states = model(torch.from_numpy(one.keys), torch.from_numpy(one.tokens), before)
            wanted = model.logits(states)[0].argmax(-1).tolist()
            # Where the row was cut, the end stands there without having been chosen.
            end = min(ids.index(model.end) + 1, len(ids) - 1)
            assert wanted[:end] == ids[:end]
            assert set(ids[end:]) <= {model.end}


def test_what_it_does_not_see_makes_no_difference_to_a_threat_model() -> None:
    engine, own = tiny.learnt("scratch"), look(text("own", 0, 24).train)
    some = own.take(np.arange(0, len(own), 9))
    other = Observed(-some.keys, some.tokens[::-1].copy(), some.sentence, some.place, some.sources, some.targets)
    for sees, same in (((False, False), True), ((True, True), False)):
        model = threat.train(engine, own, own.take(np.arange(0)), sees, 3, 1, FP32)
        states = [
            model(torch.from_numpy(one.keys), torch.from_numpy(one.tokens), torch.zeros(len(one), 3).long())
            for one in (some, other)
        ]
        assert torch.equal(*states) is same


def test_states_of_nearly_the_same_text_tell_more_than_nothing_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threat, "PEAK", 3e-3)
    monkeypatch.setattr(threat, "DROPOUT", 0.0)
    short = sorted(tiny.SENTENCES, key=len)
    victim = Text("victim", tiny.DIRECTION, [Pair(*pair) for pair in zip(short[:6], short[6:12], strict=True)], [], [])
    engine, own = tiny.learnt("scratch"), look(victim.train)
    theirs = look([Pair(f"{pair.source} x", pair.target) for pair in victim.train])
    dictionary = private(victim.train)
    reads = {}
    for given in ("nothing", "state"):
        model = threat.train(engine, own, own.take(np.arange(0)), attack.GIVEN[given], 100, 1, FP32)
        guesses = model.guess(theirs, FP32)
        reads[given] = attack.judge(given, "any", guesses, theirs, engine, victim, dictionary, frozenset())
    nothing, state = reads["nothing"], reads["state"]
    assert state.both > 2 * nothing.both > 0
    assert (state.private.precision or 0) > 65 > 40 > (nothing.private.precision or 0)
    assert (state.private.recall or 0) > 65 > 50 > (nothing.private.recall or 0)


# ── the whole ──


def test_guesses_are_judged_by_what_the_record_was_made_of() -> None:
    engine, victim = tiny.learnt("scratch"), text("victim", 0, 4)
    truth = look(victim.train)
    rows = truth.take(np.flatnonzero(truth.tokens == engine.vocabulary.eos))
    right = [Guess(rows.source(row), rows.before(row)) for row in range(len(rows))]
    dictionary = private(victim.train)
    judged = attack.judge("state", "ends", right, rows, engine, victim, dictionary, frozenset())
    assert (judged.source, judged.target, judged.both) == pytest.approx((100, 100, 100))
    assert (judged.private.precision, judged.private.recall) == (100, 100)
    assert judged.foreign.there == 0
    halves = [Guess(guess.source, []) for guess in right]
    judged = attack.judge("state", "ends", halves, rows, engine, victim, dictionary, frozenset())
    assert judged.source == pytest.approx(100)
    assert judged.target == 0
    assert judged.private.precision == 100
    assert judged.private.recall is not None
    assert 20 < judged.private.recall < 80


def test_what_both_have_is_not_attacked() -> None:
    own, settings = text("own", 0, 10), attack.Settings(epochs=1, records=5, longest=64, batch_tokens=300)
    both = Text("other", tiny.DIRECTION, [*own.train[:4], *text("", 30, 6).train], [], [])
    events: list[Event] = []
    found = attack.attack(tiny.learnt("scratch"), coder(), [], own, both, settings, FP32, events.append)
    assert (found.pairs, found.known) == (6, 4)
    assert found.foreign < found.private
    assert [(read.attacked, read.given, read.records) for read in found.reads] == [
        (which, given, 5) for given in attack.GIVEN for which in ("any", "ends")
    ]
    assert list(found.probes) == list(attack.GIVEN)
    assert len([event for event in events if isinstance(event, Note)]) == 4
    with pytest.raises(CorpusError, match="other: no training pair is left that the other silo lacks"):
        attack.attack(tiny.learnt("scratch"), coder(), [], own, text("other", 0, 10), settings, FP32)
