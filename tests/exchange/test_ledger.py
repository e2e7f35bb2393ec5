"""Lines stand in the ledger once and whole, whenever the run was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmt.errors import RunError
from fedmt.exchange.ledger import Entry, Ledger, Totals


def entry(round: int = 1, direction: str = "up", model: str = "federated") -> Entry:
    way = "up" if direction == "up" else "down"
    return Entry(model, round, "fit", "Köln", way, bytes=100 + round, parameters=10, tensors=2)  # type: ignore[arg-type]


def test_a_line_says_all_of_a_message(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write(entry())
    ledger.settle(ledger.seal())
    assert (tmp_path / "ledger.jsonl").read_text(encoding="utf-8") == (
        '{"model": "federated", "round": 1, "step": "fit", "silo": "Köln", "direction": "up", '
        '"bytes": 101, "parameters": 10, "tensors": 2}\n'
    )
    assert list(ledger.entries()) == [entry()]


@pytest.mark.parametrize("on_disk", [True, False])
def test_totals_are_by_direction_model_and_step(tmp_path: Path, on_disk: bool) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl" if on_disk else None)
    assert ledger.totals() == Totals()
    for line in (entry(1), entry(2, "down"), entry(3, model="alone:a")):
        ledger.write(line)
    assert ledger.totals() == Totals()
    ledger.settle(ledger.seal())
    assert ledger.totals() == Totals(up_bytes=204, up_parameters=20, down_bytes=102, down_parameters=10)
    assert ledger.totals("federated") == Totals(101, 10, 102, 10)
    assert ledger.totals("federated", "score:dev") == Totals()


def test_what_was_forgotten_is_not_settled(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write(entry(1))
    ledger.forget()
    ledger.write(entry(2))
    ledger.settle(ledger.seal())
    assert [line.round for line in ledger.entries()] == [2]


def test_settling_twice_or_over_a_torn_line_leaves_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.write(entry(1))
    ledger.settle(ledger.seal())
    ledger.write(entry(2))
    ledger.write(entry(2, "down"))
    sealed = ledger.seal()
    before = path.read_bytes()
    ledger.settle(sealed)
    whole = path.read_bytes()
    for cut in range(len(before), len(whole) + 1):
        path.write_bytes(whole[:cut])
        again = Ledger(path)
        again.settle(sealed)
        again.settle(sealed)
        assert path.read_bytes() == whole


def test_older_lines_are_left_alone_when_later_ones_follow(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write(entry(1))
    first = ledger.seal()
    ledger.settle(first)
    ledger.write(entry(2))
    ledger.settle(ledger.seal())
    ledger.settle(first)
    assert [line.round for line in ledger.entries()] == [1, 2]


def test_a_ledger_that_lost_lines_or_is_none_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.write(entry(1))
    ledger.settle(ledger.seal())
    ledger.write(entry(2))
    sealed = ledger.seal()
    path.write_bytes(b"")
    with pytest.raises(RunError, match=r"ledger.jsonl: has 0 bytes, but a checkpoint knows of \d+"):
        Ledger(path).settle(sealed)
    path.write_text('{"model": "x"}\n')
    with pytest.raises(RunError, match=r"ledger.jsonl:1: not a line of a ledger"):
        Ledger(path).totals()
