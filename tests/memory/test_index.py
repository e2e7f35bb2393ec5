"""What an index makes of records as they are put into it; what it answers is looked at in `test_retrieve`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmt.errors import RunError
from fedmt.memory import index
from fedmt.memory.datastore import Layout
from fedmt.memory.index import BANDS, Codes
from fedmt.memory.quantise import Quantiser, faiss

TOKENS = 70_000


def quantiser(lists: int, code_bytes: int = 2) -> Quantiser:
    draw = np.random.default_rng(3)
    centroids = draw.standard_normal((lists, 2 * code_bytes), dtype=np.float32)
    return Quantiser(centroids, draw.standard_normal((code_bytes, 256, 2), dtype=np.float32))


def records(by: Quantiser, count: int, seed: int = 1) -> NDArray[np.uint8]:
    """Alike in much, so that many are equal, and many but for their tokens."""
    draw = np.random.default_rng(seed)
    lists, tokens = draw.integers(by.list_count, size=count), draw.integers(TOKENS - 4, TOKENS, size=count)
    codes = draw.integers(2, size=(count, by.code_bytes)).astype(np.uint8) * 255
    return Layout.of(by).pack(lists.astype(np.int32), codes, tokens.astype(np.int32))


def contents(made: Codes) -> list[tuple[bytes, list[int]]]:
    """Of each list the codes and tokens, in the order in which they stand."""
    held, width = made._index.invlists, made._quantiser.code_bytes
    told = []
    for one in range(made.most_probes):
        count = held.list_size(one)
        codes = faiss.rev_swig_ptr(held.get_codes(one), count * width).tobytes() if count else b""
        told.append((codes, faiss.rev_swig_ptr(held.get_ids(one), count).tolist() if count else []))
    return told


def wanted(by: Quantiser, rows: NDArray[np.uint8]) -> list[tuple[bytes, list[int]]]:
    """The same, one record after the other in the order of their bytes."""
    told: list[tuple[bytes, list[int]]] = [(b"", []) for _ in range(by.list_count)]
    head, layout = Layout.of(by).list_bytes, Layout.of(by)
    for row in sorted(row.tobytes() for row in rows):
        ids, _, tokens = layout.unpack(np.frombuffer(row, np.uint8)[None])
        codes, before = told[int(ids[0])]
        told[int(ids[0])] = codes + row[head : head + by.code_bytes], [*before, int(tokens[0])]
    return told


@given(
    st.sampled_from([1, 3, BANDS, 2 * BANDS + 5]),
    st.lists(st.integers(0, 90), max_size=6),
    st.integers(1, 64),
    st.integers(0, 99),
)
def test_every_list_has_its_records_in_one_order(lists: int, sizes: list[int], together: int, seed: int) -> None:
    by = quantiser(lists)
    rows = records(by, sum(sizes), seed)
    shuffled = rows[np.random.default_rng(seed).permutation(len(rows))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "TOGETHER", together)
        parts = np.split(shuffled, np.cumsum(sizes)[:-1]) if sizes else []
        made = Codes(by, iter(parts), TOKENS)
    assert len(made) == len(rows)
    assert contents(made) == wanted(by, rows)


def test_lists_that_take_three_bytes_are_told_apart() -> None:
    by = quantiser((1 << 16) + 3, code_bytes=1)
    rows = Layout.of(by).pack(
        np.array([0, 2, 1 << 16, (1 << 16) + 2], np.int32), np.zeros((4, 1), np.uint8), np.arange(4, dtype=np.int32)
    )
    told = contents(Codes(by, [rows], TOKENS))
    assert [told[one][1] for one in (0, 1, 2, 1 << 16, (1 << 16) + 1, (1 << 16) + 2)] == [[0], [], [1], [2], [], [3]]


def test_parts_may_be_used_again_by_whoever_gives_them() -> None:
    by = quantiser(5)
    rows, room = records(by, 60), np.empty((20, Layout.of(by).record_bytes), np.uint8)

    def parts() -> Iterator[NDArray[np.uint8]]:
        for start in range(0, 60, 20):
            room[:] = rows[start : start + 20]
            yield room

    assert contents(Codes(by, parts(), TOKENS)) == wanted(by, rows)


@pytest.mark.parametrize("place", [0, 700, 999])
def test_a_record_that_names_what_is_not_there_is_refused_wherever_it_stands(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "TOGETHER", 64)
    by = quantiser(5)
    for lists, token in ((5, 0), (4, TOKENS)):
        rows = records(by, 1000)
        rows[place] = Layout.of(by).pack(
            np.array([lists], np.int32), np.zeros((1, 2), np.uint8), np.array([token], np.int32)
        )[0]
        with pytest.raises(RunError, match=rf"allowed are lists below 5 and tokens below {TOKENS}"):
            Codes(by, [rows], TOKENS)


def peak() -> int:
    """The most memory of this process, of which another kind than `resource`'s forgets the one that started it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measured() -> list[int]:
    """The records' bytes, and the peak over an empty index's; in a process of its own."""
    by, size, count = quantiser(16 * BANDS, code_bytes=32), 50_000, 60
    Codes(by, [records(by, size)], TOKENS)
    before = peak()
    made = Codes(by, (records(by, size, seed) for seed in range(count)), TOKENS)
    assert len(made) == size * count
    return [size * count * Layout.of(by).record_bytes, peak() - before]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process's own peak")
def test_records_are_in_memory_once_and_go_as_faiss_takes_them() -> None:
    """FAISS's lists are of 40 bytes for a record of 37: with these records kept, it would be more than twice as much;
    and more than three times with a copy of all."""
    program = "from tests.memory import test_index; print(test_index.measured())"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
    whole, most = json.loads(done.stdout)
    assert whole < most < 1.6 * whole
