from __future__ import annotations

import functools
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedmt.corpus.batches import Examples
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.steps import States, Steps, forced, logits_of, stepping
from fedmt.errors import RunError
from fedmt.memory import datastore, quantise
from fedmt.memory.datastore import Layout, Records
from fedmt.memory.quantise import Quantiser
from fedmt.recipe import Memory
from tests.engine import tiny
from tests.memory.test_quantise import same

FP32 = Machine(torch.device("cpu"), "fp32", 1)


def examples(made: Engine, first: int = 0, count: int = 60) -> Examples:
    """Pairs of which the engines of `tiny.learnt` have learnt the first 24 by heart."""
    source = made.vocabulary.encode_source(tiny.SENTENCES[first : first + count], tiny.DIRECTION)
    target = made.vocabulary.encode_target(tiny.SENTENCES[first + 50 : first + 50 + count], tiny.DIRECTION)
    return Examples.of(source, target, 64, made.vocabulary.prefix(tiny.DIRECTION)[0])


def states(made: Engine, first: int = 0, count: int = 60, batch_tokens: int = 300) -> Iterator[States]:
    prefix = len(made.vocabulary.prefix(tiny.DIRECTION))
    return forced(made, examples(made, first, count), FP32, batch_tokens, prefix)


@functools.cache
def quantiser(kind: str) -> Quantiser:
    settings = Memory(lists=4, code_bytes=8, projection="none")
    return quantise.train(datastore.floats(states(tiny.learnt(kind))), settings, seed=1)


def joined(parts: Iterator[NDArray[np.uint8]] | list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.concatenate(list(parts))


# ── states ──


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_forced_state_is_the_one_that_decoding_had(kind: str) -> None:
    """With keys and values kept, token by token; the first chosen token's state comes after all forced ones."""
    made = tiny.learnt(kind)
    prefix = made.vocabulary.prefix(tiny.DIRECTION)
    pair = examples(made, 3, 1)
    (found,) = forced(made, pair, FP32, 100, len(prefix))
    labels = pair.target.tolist()[len(prefix) - 1 :]
    assert found.tokens.tolist() == labels
    with stepping(made.model, FP32):
        steps = Steps(made.model, torch.tensor([pair.source.tolist()]), made.vocabulary.pad)
        fed = torch.tensor([prefix])
        for at, token in enumerate(labels):
            hidden, logits = steps.step(fed)
            assert torch.allclose(found.hidden[at], hidden[0], atol=1e-4)
            assert torch.allclose(logits_of(made, found.hidden[at : at + 1]), logits, atol=1e-3)
            fed = torch.tensor([[token]])


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_every_token_has_one_record_but_language_codes_and_padding(kind: str) -> None:
    made = tiny.learnt(kind)
    pairs, prefix = examples(made), made.vocabulary.prefix(tiny.DIRECTION)
    tokens = Layout.of(quantiser(kind)).unpack(joined(datastore.build(states(made), quantiser(kind))))[2]
    wanted = np.split(pairs.target, pairs.target_ends[:-1])
    assert sorted(tokens.tolist()) == sorted(token for one in wanted for token in one[len(prefix) - 1 :].tolist())
    assert (tokens == made.vocabulary.eos).sum() == len(pairs)
    assert not {made.vocabulary.pad, *prefix[1:]} & set(tokens.tolist())


def test_whoever_takes_states_is_in_no_mode_of_ours() -> None:
    made = tiny.learnt("opus")
    made.model.train()
    try:
        for _ in states(made, count=5):
            assert not torch.is_inference_mode_enabled()
            assert made.model.training
    finally:
        made.model.eval()


def test_batches_change_no_record() -> None:
    made, by = tiny.learnt("scratch"), quantiser("scratch")
    one, other = (joined(datastore.build(states(made, batch_tokens=size), by)) for size in (60, 4000))
    layout = Layout.of(by)
    (lists, codes, tokens), (lists2, codes2, tokens2) = (
        layout.unpack(rows[np.lexsort(rows.T[::-1])]) for rows in (one, other)
    )
    assert sorted(tokens.tolist()) == sorted(tokens2.tolist())
    # Rounding may put a few states beyond the border of a cell.
    assert (lists == lists2).mean() > 0.95
    assert len(codes) == len(codes2)


# ── records ──


@pytest.mark.parametrize(("lists", "size"), [(4096, 37), (1 << 16, 37), ((1 << 16) + 1, 38)])
def test_a_record_is_small_and_holds_what_was_put_in(lists: int, size: int) -> None:
    layout = Layout(2 if lists <= 1 << 16 else 3, Memory().code_bytes)
    assert layout.record_bytes == size <= 40
    draw = np.random.default_rng(0)
    ids = draw.integers(lists, size=100).astype(np.int32)
    ids[:2] = 0, lists - 1
    codes = draw.integers(256, size=(100, 32)).astype(np.uint8)
    tokens = draw.integers(1 << 24, size=100).astype(np.int32)
    tokens[:2] = 0, (1 << 24) - 1
    assert same((ids, codes, tokens), layout.unpack(layout.pack(ids, codes, tokens)))
    with pytest.raises(ValueError, match="token 33554431: a record has room for those below"):
        layout.pack(ids, codes, tokens + (1 << 24))


@pytest.mark.parametrize("parts", [0, 1, 5])
def test_records_come_back_from_their_folder(parts: int, tmp_path: Path) -> None:
    by = quantiser("opus")
    size = Layout.of(by).record_bytes
    given = [np.random.default_rng(at).integers(256, size=(at * 7, size)).astype(np.uint8) for at in range(parts)]
    count = datastore.write(tmp_path / "memory", iter(given), by, silo="clinic")
    read = Records.open(tmp_path / "memory", by)
    assert read.count == count == sum(len(part) for part in given)
    assert read.about["silo"] == "clinic"
    for step in (1000, 10):
        again = list(read.parts(step))
        assert all(len(part) <= step for part in again)
        nothing = np.empty((0, size), np.uint8)
        assert np.array_equal(joined([nothing, *again]), joined([nothing, *given]))


def test_writing_and_reading_hold_one_part_at_a_time(tmp_path: Path) -> None:
    by = quantiser("opus")
    size = Layout.of(by).record_bytes
    tracemalloc.start()
    datastore.write(tmp_path / "memory", (np.zeros((50_000, size), np.uint8) for _ in range(40)), by)
    for part in Records.open(tmp_path / "memory", by).parts(50_000):
        assert len(part) == 50_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 50_000 * size < (tmp_path / "memory/records.safetensors").stat().st_size / 8


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what is mapped")
def test_what_was_read_of_a_folder_does_not_stay_in_memory(tmp_path: Path) -> None:
    by = quantiser("opus")

    def mapped() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))

    draw, size = np.random.default_rng(0), Layout.of(by).record_bytes
    given = (draw.integers(256, size=(100_000, size), dtype=np.uint8) for _ in range(30))
    datastore.write(tmp_path / "memory", given, by)
    read = Records.open(tmp_path / "memory", by)
    before = mapped()
    most = max(mapped() for _ in read.parts(10_000))
    assert most - before < read.count * size / 4


def test_building_costs_no_more_memory_for_more_text(tmp_path: Path) -> None:
    by = quantiser("opus")

    def peak(parts: int) -> int:
        draw = np.random.default_rng(0)
        made = (draw.standard_normal((4000, by.width), dtype=np.float32) for _ in range(parts))
        # Tensors upon arrays, whose memory is seen.
        given = (States(torch.from_numpy(array), torch.zeros(len(array), dtype=torch.int64)) for array in made)
        tracemalloc.start()
        try:
            count = datastore.write(tmp_path / str(parts), datastore.build(given, by), by)
            assert count == parts * 4000
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    few, many = peak(4), peak(32)
    assert 4000 * by.width * 4 < few
    assert many < 1.1 * few


def test_of_all_states_one_batch_and_the_next_are_there(tmp_path: Path) -> None:
    """With an engine's own, from its forced pass to the folder."""
    made, by = tiny.learnt("opus"), quantiser("opus")
    alive: list[weakref.ref[States]] = []
    most = 0

    def watched() -> Iterator[States]:
        nonlocal most
        for part in states(made, batch_tokens=60):
            alive.append(weakref.ref(part))
            most = max(most, sum(one() is not None for one in alive))
            yield part
            del part

    datastore.write(tmp_path / "memory", datastore.build(watched(), by), by)
    assert len(alive) > 8
    assert most <= 2


def test_a_folder_that_failed_is_absent(tmp_path: Path) -> None:
    def parts() -> Iterator[NDArray[np.uint8]]:
        yield np.zeros((3, Layout.of(quantiser("opus")).record_bytes), np.uint8)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        datastore.write(tmp_path / "memory", parts(), quantiser("opus"))
    assert not list(tmp_path.iterdir())


def test_records_of_another_quantiser_are_refused(tmp_path: Path) -> None:
    by = quantiser("opus")
    datastore.write(tmp_path, datastore.build(states(tiny.learnt("opus"), count=5), by), by)
    other = Quantiser(by.lists + 1, by.codebook)
    with pytest.raises(RunError, match=r"made with the quantiser .*; allowed is"):
        Records.open(tmp_path, other)


@pytest.mark.parametrize("damage", ["cut", "longer", "absent", "text", "fewer"])
def test_damaged_records_are_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    by = quantiser("opus")
    datastore.write(tmp_path, datastore.build(states(tiny.learnt("opus"), count=5), by), by)
    path, sheet = tmp_path / "records.safetensors", tmp_path / "records.json"
    content = path.read_bytes()
    if damage == "absent":
        path.unlink()
    elif damage == "fewer":
        about = sheet.read_text()
        sheet.write_text(about.replace('"records": ', '"records": 1'))
    else:
        path.write_bytes({"cut": content[:-1], "longer": content + b"x", "text": b"records"}[damage])
    with pytest.raises(RunError) as caught:
        Records.open(tmp_path, by)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("shape", [(3, 12), (13,)])
def test_records_of_another_length_are_refused(shape: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="this memory's have 13 bytes each"):
        datastore.write(tmp_path / "memory", [np.zeros(shape, np.uint8)], quantiser("opus"))
    assert not (tmp_path / "memory").exists()


# ── pruning ──


@pytest.mark.parametrize("kind", ["scratch", "nllb"])
@pytest.mark.parametrize("neighbours", [1, 4])
def test_pruned_is_what_the_engine_and_its_neighbours_know(kind: str, neighbours: int) -> None:
    """Beside a slow reference: every record's neighbours by the codes' own distances, one list after the other."""
    made, by = tiny.learnt(kind), quantiser(kind)
    whole = joined(datastore.build(states(made), by))
    parts, pruned = datastore.prune(lambda: states(made), made, by, neighbours)
    kept = joined(parts)
    assert pruned.records == len(whole)
    assert pruned.dropped == len(whole) - len(kept)

    every = list(states(made))
    hidden = np.concatenate([part.hidden.numpy() for part in every])
    right = [logits_of(made, part.hidden).argmax(-1) == part.tokens for part in every]
    sure = torch.cat(right).numpy()
    index = by.empty()
    index.nprobe = 4
    index.add_sa_codes(by.joined(*by.encode(hidden)))
    stays = []
    for row in range(len(hidden)):
        distances, found = index.search(hidden[row : row + 1], len(hidden))
        # Equal distances come in no particular order: only clear cases are compared.
        near = found[0][: neighbours + 1]
        unclear = distances[0][neighbours] == distances[0][neighbours + 1]
        stays.append(None if unclear else not (sure[row] and all(sure[place] for place in near)))
    clear = [row for row, one in enumerate(stays) if one is not None]
    assert len(clear) > len(hidden) / 2
    wanted = whole[[row for row in clear if stays[row]]]
    left = {bytes(row) for row in kept}
    assert all(bytes(row) in left for row in wanted)
    assert 0 < pruned.dropped < sure.sum() + 1


def test_more_neighbours_prune_less() -> None:
    made, by = tiny.learnt("scratch"), quantiser("scratch")
    dropped = []
    for neighbours in (1, 4, 16):
        parts, pruned = datastore.prune(lambda: states(made), made, by, neighbours)
        joined(parts)
        dropped.append(pruned.dropped)
    assert dropped[0] > dropped[1] > dropped[2]


@pytest.mark.parametrize("place", range(6))
def test_what_the_engine_does_not_know_is_never_pruned(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where so many have its code that it does not find itself."""
    made, by = tiny.learnt("opus"), quantiser("opus")
    like = States(torch.ones(6, 16), torch.arange(6))
    flags = np.arange(6) != place
    monkeypatch.setattr(datastore, "known", lambda *_: flags)
    parts, _ = datastore.prune(lambda: [like], made, by, 1)
    assert place in Layout.of(by).unpack(joined(parts))[2]


def test_known_is_where_the_engine_is_right_whatever_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny.learnt("t5")
    (part,) = states(made, count=10, batch_tokens=4000)
    wanted = (logits_of(made, part.hidden).argmax(-1) == part.tokens).numpy()
    monkeypatch.setattr(datastore, "MOST_LOGITS", 3 * made.model.config.vocab_size)
    assert (datastore.known(made, part) == wanted).all()
    assert 0 < wanted.sum() < len(wanted)
