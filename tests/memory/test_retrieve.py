from __future__ import annotations

import functools
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmt.corpus.batches import Examples
from fedmt.engine import decoder
from fedmt.engine.decoder import Hypothesis
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.steps import States, forced, logits_of
from fedmt.errors import Failure, RunError
from fedmt.memory import datastore, retrieve
from fedmt.memory.adaptive import Adaptive
from fedmt.memory.datastore import Layout
from fedmt.memory.index import Codes, Exact, Found, Index
from fedmt.memory.quantise import Quantiser
from fedmt.memory.retrieve import Retrieval
from fedmt.recipe import Decode, Memory
from tests.engine import tiny
from tests.memory.test_datastore import FP32, joined, quantiser, states
from tests.memory.test_quantise import same

BF16 = Machine(torch.device("cpu"), "bf16", 1)
COUNT = 8


def size(made: Engine) -> int:
    return int(made.model.config.vocab_size)


def width(made: Engine) -> int:
    return int(made.model.config.d_model)


@functools.cache
def records(kind: str) -> NDArray[np.uint8]:
    return joined(datastore.build(states(tiny.learnt(kind)), quantiser(kind)))


@functools.cache
def codes(kind: str) -> Codes:
    return Codes(quantiser(kind), [records(kind)], size(tiny.learnt(kind)))


@functools.cache
def exact(kind: str) -> Exact:
    return Exact(states(tiny.learnt(kind)))


def usual(kind: str) -> float:
    """A temperature at which neighbours differ in weight."""
    distances = exact(kind).search(keys(kind)[:50], 8, 1).distances
    return float(distances[:, 1:].mean())


@functools.cache
def keys(kind: str) -> NDArray[np.float32]:
    return np.concatenate([part.hidden.numpy() for part in states(tiny.learnt(kind))])


def searched(made: Engine, beam: int, memory: decoder.Mixer | None, **options: Any) -> list[Hypothesis]:
    sources = made.vocabulary.encode_source(tiny.SENTENCES[20 : 20 + COUNT], tiny.DIRECTION)
    prefix = made.vocabulary.prefix(tiny.DIRECTION)
    settings = Decode(beam=beam, longest=14)
    machine = options.pop("machine", FP32)
    return decoder.search(made, sources, prefix, settings, machine, scored=True, memory=memory, **options)


# ── an index ──


def orders(records: NDArray[np.uint8]) -> list[list[NDArray[np.uint8]]]:
    half, draw = len(records) // 2, np.random.default_rng(0)
    return [[records[half:], records[:half]], [records[:0], records[draw.permutation(len(records))]]]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_two_silos_merged_answer_exactly_as_one_of_both(kind: str) -> None:
    """Bit by bit, whatever the order of the records, and where many have one code too."""
    made = tiny.learnt(kind)
    one = joined(datastore.build(states(made, 0, 30), quantiser(kind)))
    other = joined(datastore.build(states(made, 20, 30), quantiser(kind)))
    # Ten records of one code, each of another token: which of them a search finds must not depend on their order.
    like = np.repeat(one[:1], 10, axis=0)
    like[:, -3] = np.arange(10)
    both = np.concatenate([one, like, other])
    asked = keys(kind)[:100]
    whole = Codes(quantiser(kind), [both], size(made))
    for parts in [[one, like, other], *orders(both)]:
        merged = Codes(quantiser(kind), parts, size(made))
        assert len(merged) == len(both)
        for probes in (1, 3, 4):
            assert same(merged.search(asked, 8, probes), whole.search(asked, 8, probes))


@pytest.mark.parametrize("probes", [1, 2, 4, 1000])
def test_codes_are_searched_by_their_own_distances(probes: int) -> None:
    """Beside sums written out: centroid plus the code's parts, of the nearest lists only."""
    by, asked = quantiser("opus"), keys("opus")[:20]
    ids, code, tokens = Layout.of(by).unpack(records("opus"))
    parts = by.codebook[np.arange(by.code_bytes), code]
    points = by.lists[ids] + parts.reshape(len(code), -1)
    found = codes("opus").search(asked, 8, probes)
    for row, state in enumerate(asked):
        nearest = ((by.lists - state) ** 2).sum(-1).argsort()[:probes]
        distances = np.where(np.isin(ids, nearest), ((points - state) ** 2).sum(-1), np.inf)
        order = distances.argsort()[:8]
        there = np.isfinite(distances[order])
        assert (found.tokens[row] >= 0).sum() == there.sum()
        assert found.distances[row][there] == pytest.approx(distances[order][there], rel=1e-3, abs=1e-2)
        near = set(tokens[distances <= distances[order][there].max() + 0.1].tolist())
        assert set(found.tokens[row][there].tolist()) <= near


@pytest.mark.parametrize("index", [lambda: Codes(quantiser("opus"), [], 200), lambda: Exact([])])
def test_an_empty_memory_finds_nothing_and_changes_nothing(index: Any) -> None:
    made = tiny.learnt("opus")
    found = index().search(keys("opus")[:3], 4, 2)
    assert len(index()) == 0
    assert (found.tokens == -1).all()
    assert np.isinf(found.distances).all()
    memory = Retrieval(index(), Adaptive.fixed(4, width(made), {4: 1.0}, 1.0, 1))
    assert searched(made, 3, memory) == searched(made, 3, None)


def test_fewer_records_than_neighbours_weigh_what_there_is() -> None:
    made = tiny.learnt("opus")
    memory = Retrieval(
        Codes(quantiser("opus"), [records("opus")[:3]], size(made)), Adaptive.fixed(8, width(made), {8: 1.0}, 50.0, 4)
    )
    hidden = torch.from_numpy(keys("opus")[:5])
    _, tokens, weights = memory.look(hidden)
    assert (tokens >= 0).sum(-1).tolist() == [3] * 5
    assert weights.each.sum(-1).tolist() == pytest.approx([1.0] * 5)
    mixed = memory(hidden, logits_of(made, hidden), torch.ones(5, dtype=torch.bool))
    assert mixed.exp().sum(-1).tolist() == pytest.approx([1.0] * 5, abs=1e-4)


@pytest.mark.parametrize("what", ["token", "list"])
def test_a_record_that_names_what_is_not_there_is_refused(what: str) -> None:
    made, wrong = tiny.learnt("opus"), records("opus").copy()
    if what == "token":
        wrong[7, -3:-1] = 255
    else:
        wrong[7, :2] = 255
    with pytest.raises(RunError, match=r"allowed are lists below 4 and tokens below \d+"):
        Codes(quantiser("opus"), [wrong], size(made))
    with pytest.raises(RunError, match="this memory's have 13 bytes each"):
        Codes(quantiser("opus"), [wrong[:, 1:]], size(made))


# ── the mixture ──


def reference(made: Engine, hidden: Tensor, shares: dict[int, float], temperature: float) -> Tensor:
    """p = Σ_k share_k p_k, written out: every key compared, one row and one neighbour after the other."""
    every = list(states(made))
    all_keys = torch.cat([part.hidden for part in every]).double()
    tokens = torch.cat([part.tokens for part in every]).tolist()
    own = torch.softmax(logits_of(made, hidden).double(), -1)
    rows = []
    for state, engine_alone in zip(hidden.double(), own, strict=True):
        distances = [float(((key - state) ** 2).sum()) for key in all_keys]
        order = sorted(range(len(tokens)), key=lambda place: distances[place])
        mixture = shares.get(0, 0.0) * engine_alone
        for k, share in shares.items():
            near = order[:k]
            total = sum(math.exp(-distances[place] / temperature) for place in near)
            for place in near:
                mixture[tokens[place]] += share * math.exp(-distances[place] / temperature) / total
        rows.append(mixture)
    return torch.stack(rows)


@pytest.mark.parametrize("shares", [{0: 0.4, 1: 0.1, 2: 0.1, 4: 0.2, 8: 0.2}, {8: 1.0}, {0: 0.5, 2: 0.5}], ids=str)
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_exact_memory_is_a_brute_force_reference(kind: str, shares: dict[int, float]) -> None:
    made = tiny.learnt(kind)
    # Places of text that the memory does not have, so that no two keys are equally far.
    (asked,) = (part for part in states(made, 70, 4, 4000))
    temperature = usual(kind)
    memory = Retrieval(exact(kind), Adaptive.fixed(8, width(made), shares, temperature, 1))
    hidden = asked.hidden[:20].clone()
    mixed = memory(hidden, logits_of(made, hidden), torch.ones(len(hidden), dtype=torch.bool))
    wanted = reference(made, hidden, shares, temperature)
    assert torch.allclose(mixed.exp().double(), wanted, atol=2e-4)
    assert wanted.sum(-1).tolist() == pytest.approx([1.0] * len(hidden))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_no_neighbours_only_is_the_plain_engine(kind: str, beam: int) -> None:
    made = tiny.learnt(kind)
    memory = Retrieval(codes(kind), Adaptive.fixed(8, width(made), {0: 1.0}, 1.0, 4))
    ours, plain = searched(made, beam, memory), searched(made, beam, None)
    assert [one.ids for one in ours] == [one.ids for one in plain]
    assert [one.score for one in ours] == pytest.approx([one.score for one in plain], abs=1e-5)
    assert memory.looked_up > 0


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_memory_works_with_keys_and_values_kept_and_in_any_batch(kind: str, beam: int) -> None:
    made = tiny.learnt(kind)
    memory = Retrieval(exact(kind), Adaptive.fixed(8, width(made), {0: 0.3, 8: 0.7}, usual(kind), 1))
    kept = searched(made, beam, memory)
    assert [one.ids for one in kept] == [one.ids for one in searched(made, beam, memory, cached=False)]
    assert [one.ids for one in kept] != [one.ids for one in searched(made, beam, None)]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_hypothesis_scores_what_the_mixture_makes_of_it(beam: int) -> None:
    made, prefix = tiny.learnt("m2m100"), tiny.learnt("m2m100").vocabulary.prefix(tiny.DIRECTION)
    shares, temperature = {0: 0.5, 4: 0.5}, usual("m2m100")
    memory = Retrieval(exact("m2m100"), Adaptive.fixed(8, width(made), shares, temperature, 1))
    sources = made.vocabulary.encode_source(tiny.SENTENCES[20:22], tiny.DIRECTION)
    for source, found in zip(sources, searched(made, beam, memory), strict=False):
        labels = [*prefix[1:], *found.ids, *([made.vocabulary.eos] if len(found.ids) < 14 else [])]
        (part,) = forced(made, examples_of(source, labels, prefix[0]), FP32, 100, len(prefix))
        wanted = reference(made, part.hidden, shares, temperature)
        score = sum(math.log(float(row[token])) for row, token in zip(wanted, part.tokens.tolist(), strict=True))
        assert found.score == pytest.approx(score / len(labels), abs=1e-3)


def examples_of(source: list[int], labels: list[int], start: int) -> Examples:
    return Examples.of([source], [labels], None, start)


def test_only_live_rows_are_looked_up_and_in_one_search() -> None:
    made = tiny.learnt("opus")
    calls: list[int] = []

    class Counted(Codes):
        def search(self, hidden: NDArray[np.float32], count: int, probes: int) -> Found:
            calls.append(len(hidden))
            return super().search(hidden, count, probes)

    memory = Retrieval(
        Counted(quantiser("opus"), [records("opus")], size(made)), Adaptive.fixed(2, width(made), {2: 1.0}, 1.0, 1)
    )
    hidden = torch.from_numpy(keys("opus")[:6])
    logits = logits_of(made, hidden)
    live = torch.tensor([True, False, True, True, False, False])
    mixed = memory(hidden, logits, live)
    assert calls == [3]
    assert torch.equal(mixed[~live], logits.log_softmax(-1)[~live])
    assert not torch.equal(mixed[live], logits.log_softmax(-1)[live])
    assert (memory.asked, memory.looked_up) == (3, 3)
    memory(hidden, logits, live & False)
    assert calls == [3]
    memory.adaptive.threshold = -math.inf  # a gate that lets all pass
    memory(hidden, logits, live)
    assert calls == [3, 3]
    searched(made, 4, memory)
    assert max(calls) == COUNT * 4


@pytest.mark.parametrize("beam", [1, 4])
def test_what_is_said_of_finished_rows_is_not_heard(beam: int) -> None:
    """Finished sentences stay for company where more than eight go on."""
    made, dead = tiny.learnt("mbart50"), 0

    def memory(_: Tensor, logits: Tensor, live: Tensor) -> Tensor:
        nonlocal dead
        dead += int((~live).sum())
        return torch.where(live[:, None], logits.log_softmax(-1), logits.flip(-1).abs())

    # Those that it knows by heart end; the others may go on, and are what the former keep company.
    sentences = [*tiny.SENTENCES[:24], *tiny.SENTENCES[100:136]]
    sources = made.vocabulary.encode_source(sentences, tiny.DIRECTION)
    given = (made, sources, made.vocabulary.prefix(tiny.DIRECTION), Decode(beam=beam, longest=40), FP32)
    plain, mixed = decoder.search(*given), decoder.search(*given, memory=memory)
    assert [one.ids for one in mixed] == [one.ids for one in plain]
    assert dead > 0


def test_bf16_looks_up_about_the_same() -> None:
    made = tiny.learnt("nllb")
    memory = Retrieval(exact("nllb"), Adaptive.fixed(8, width(made), {0: 0.5, 8: 0.5}, usual("nllb"), 1))
    exactly, roughly = searched(made, 4, memory), searched(made, 4, memory, machine=BF16)
    assert sum(abs(one.score - two.score) < 0.2 for one, two in zip(exactly, roughly, strict=True)) >= COUNT - 2


# ── learning how to use it ──


@pytest.mark.parametrize("kind", ["scratch", "mbart25"])
def test_a_memory_of_what_is_asked_lowers_the_loss(kind: str) -> None:
    """The dev text stands in the memory: whoever trusts it finds every token; the engine knows but 24 pairs."""
    made = tiny.learnt(kind)
    settings = Memory(neighbours=4, lists=4, code_bytes=8, projection="none", gate=None)
    tuned = retrieve.tune(codes(kind), made, states(made), settings, seed=3)
    assert tuned.loss < 0.5 * tuned.engine_loss
    assert tuned.looked_up == 1.0
    assert 1 <= tuned.adaptive.probes <= 4
    again = retrieve.tune(codes(kind), made, states(made), settings, seed=3)
    for ours, theirs in zip(tuned.adaptive.state_dict().values(), again.adaptive.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_as_few_probes_as_will_do_are_chosen() -> None:
    made = tiny.learnt("scratch")
    asked: list[int] = []

    class Deep(Exact):
        """Finds the truth from eight probes on, and nothing before."""

        @property
        def most_probes(self) -> int:
            return 100

        def search(self, hidden: NDArray[np.float32], count: int, probes: int) -> Found:
            asked.append(probes)
            found = super().search(hidden, count, probes)
            return found if probes >= 8 else Found(found.distances * 0 + np.inf, found.tokens * 0 - 1)

    settings = Memory(neighbours=2, gate=None, most_probes=32)
    assert retrieve.tune(Deep(states(made)), made, states(made), settings, 1).adaptive.probes == 8
    assert asked[:5] == [32, 1, 2, 4, 8]
    fixed = retrieve.tune(Deep(states(made)), made, states(made), settings.model_copy(update={"probes": 16}), 1)
    assert fixed.adaptive.probes == 16


def test_a_given_temperature_stays() -> None:
    made = tiny.learnt("opus")
    settings = Memory(neighbours=2, temperature=7.5, gate=None)
    assert retrieve.tune(codes("opus"), made, states(made), settings, 1).adaptive.temperature == pytest.approx(7.5)


def test_the_gate_looks_up_less_and_changes_little() -> None:
    """Half of the text is in the memory and known by heart; the gate must see which tokens the memory changes."""
    made = tiny.learnt("scratch")
    settings = Memory(neighbours=4, gate=0.9)
    tuned = retrieve.tune(exact("scratch"), made, states(made), settings, seed=3)
    assert tuned.looked_up < 0.95
    gated, always = Retrieval(exact("scratch"), tuned.adaptive), Adaptive.fixed(4, width(made), {0: 1.0}, 1.0, 1)
    always.load_state_dict(tuned.adaptive.state_dict())
    full = Retrieval(exact("scratch"), always)
    same = changed = 0
    for part in states(made):
        logits = logits_of(made, part.hidden)
        live = torch.ones(len(logits), dtype=torch.bool)
        with_gate, without = gated(part.hidden, logits, live).argmax(-1), full(part.hidden, logits, live).argmax(-1)
        moved = without != logits.argmax(-1)
        changed += int(moved.sum())
        same += int((with_gate == without)[moved].sum())
    assert changed > 50
    assert same / changed > 0.85
    assert gated.looked_up < gated.asked == full.looked_up


def test_too_little_dev_text_is_said() -> None:
    made = tiny.learnt("opus")
    few = [States(part.hidden[:9], part.tokens[:9]) for part in states(made, count=1)]
    with pytest.raises(Failure, match="9 tokens of dev text are too few"):
        retrieve.tune(codes("opus"), made, few, Memory(), 1)
    with pytest.raises(Failure, match="0 tokens of dev text"):
        retrieve.tune(codes("opus"), made, [], Memory(), 1)


# ── telling why ──


@pytest.mark.parametrize("kind", ["scratch", "m2m100", "mbart25"])
def test_an_explanation_tells_what_the_search_did(kind: str) -> None:
    made = tiny.learnt(kind)
    prefix = made.vocabulary.prefix(tiny.DIRECTION)
    memory = Retrieval(exact(kind), Adaptive.fixed(4, width(made), {0: 0.25, 2: 0.25, 4: 0.5}, usual(kind), 1))
    source = made.vocabulary.encode_source(tiny.SENTENCES[20:21], tiny.DIRECTION)[0]
    found = searched(made, 1, memory)[0]
    labels = [*prefix[1:], *found.ids]
    told = retrieve.explain(memory, made, forced(made, examples_of(source, labels, prefix[0]), FP32, 100, len(prefix)))
    assert [one.token for one in told] == found.ids
    assert found.ids
    for one in told:
        assert one.looked_up
        assert one.shares == pytest.approx({0: 0.25, 1: 0.0, 2: 0.25, 4: 0.5})
        distances = [near.distance for near in one.neighbours]
        assert len(distances) == 4
        assert all(first <= second for first, second in pairwise(distances))
        by_memory = sum(near.weight for near in one.neighbours if near.token == one.token)
        assert one.mixed == pytest.approx(0.25 * one.engine + by_memory, abs=1e-5)
        assert sum(near.weight for near in one.neighbours) == pytest.approx(0.75)


def test_an_explanation_says_where_nothing_was_looked_up() -> None:
    made = tiny.learnt("opus")
    adaptive = Adaptive.fixed(2, width(made), {2: 1.0}, 1.0, 1)
    adaptive.threshold = math.inf
    memory = Retrieval(codes("opus"), adaptive)
    for one in retrieve.explain(memory, made, states(made, count=2)):
        assert not one.looked_up
        assert one.mixed == one.engine
    assert [one.ids for one in searched(made, 1, memory)] == [one.ids for one in searched(made, 1, None)]
    assert memory.looked_up == 0 < memory.asked


def test_every_index_is_an_index() -> None:
    made: list[Index] = [codes("opus"), exact("opus")]
    assert [len(one) for one in made] == [len(records("opus"))] * 2
    assert isinstance(quantiser("opus"), Quantiser)
