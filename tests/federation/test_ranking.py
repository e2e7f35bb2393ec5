"""Merges that a few silos cannot pull where they like."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmt.choices import MergeMedian, MergeTrimmed
from fedmt.events import Note
from fedmt.exchange.update import Update, change
from fedmt.federation import ranking
from fedmt.federation.merge import Fold, bounded
from fedmt.federation.ranking import Ranking
from tests.federation.toy import Federation, recipe, same, start

DRAW = torch.Generator().manual_seed(11)


def drawn(count: int = 5, size: int = 7) -> list[Update]:
    return [
        Update({"a": torch.randn(size, generator=DRAW), "b": torch.randn(2, 3, generator=DRAW)}) for _ in range(count)
    ]


def zeros(updates: list[Update]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in updates[0].tensors.items()}


def ranked(updates: list[Update], folder: Path | None = None, rate: float = 1.0, **kind: Any) -> dict[str, Tensor]:
    merge = MergeTrimmed(kind="trimmed", share=kind["share"]) if kind else MergeMedian(kind="median")
    found = Ranking(merge, folder)
    for update in updates:
        found.add(update)
    return found.result(zeros(updates), rate)


def test_the_median_is_torchs(tmp_path: Path) -> None:
    updates = drawn(5)
    for name, tensor in ranked(updates, tmp_path).items():
        assert torch.equal(tensor, torch.stack([update.tensors[name] for update in updates]).median(dim=0).values)
    assert list(tmp_path.iterdir()) == []


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    updates = [Update({"a": torch.tensor([float(value)])}) for value in (10, 1, 4, 2)]
    assert ranked(updates)["a"].tolist() == [3.0]


def test_nothing_cut_off_is_the_mean() -> None:
    updates = drawn(4)
    fold = Fold()
    for update in updates:
        fold.add(update)
    mean = fold.result(zeros(updates))
    for name, tensor in ranked(updates, share=0.0).items():
        torch.testing.assert_close(tensor, mean[name])


@pytest.mark.parametrize(("share", "left"), [(0.0, 23.0), (0.19, 23.0), (0.2, 14 / 3), (0.4, 4.0)])
def test_a_share_is_cut_off_at_each_end(share: float, left: float) -> None:
    updates = [Update({"a": torch.tensor([value])}) for value in (100.0, 4.0, 1.0, 8.0, 2.0)]
    assert ranked(updates, share=share)["a"].item() == pytest.approx(left)


@pytest.mark.parametrize("kind", [{}, {"share": 0.25}])
def test_the_order_of_updates_says_nothing(kind: dict[str, Any]) -> None:
    updates = drawn(4)
    first = ranked(updates, **kind)
    for order in itertools.permutations(updates):
        assert same(ranked(list(order), **kind), first)


def test_long_tensors_are_compared_stretch_by_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = drawn(5, size=100)
    whole = ranked(updates)
    monkeypatch.setattr(ranking, "STRETCH", 7)
    assert same(ranked(updates), whole)


def test_only_what_was_sent_is_compared() -> None:
    sent = torch.tensor([True, False, True])
    updates = [
        Update({"a": torch.tensor([1.0, 0.0, 5.0])}, masks={"a": sent}),
        Update({"a": torch.tensor([3.0, 0.0, 0.0])}, masks={"a": torch.tensor([True, False, False])}),
        Update({"b": torch.tensor([9.0])}),
    ]
    found = Ranking(MergeMedian(kind="median"), None)
    for update in updates:
        found.add(update)
    merged = found.result({"a": torch.tensor([0.0, 7.0, 0.0]), "b": torch.zeros(1), "c": torch.ones(2)})
    assert merged["a"].tolist() == [2.0, 7.0, 5.0]
    assert merged["b"].tolist() == [9.0]
    assert merged["c"].tolist() == [1.0, 1.0]


def test_a_rate_goes_beyond() -> None:
    updates = [Update({"a": torch.tensor([value])}) for value in (1.0, 2.0, 3.0)]
    assert ranked(updates, rate=1.5)["a"].item() == pytest.approx(3.0)


# ── against silos that want something else ──────────────────────────────────────────────────────────────────────────

HONEST = (1.0, 1.1, 0.9, 1.0)


def pulled(merge: dict[str, Any], goal: float, folder: Path) -> float:
    """How far from what the honest ones come to by themselves one silo pulls the engine that wants `goal`."""
    alone = Federation(folder / "honest", recipe(merge={"kind": "mean"}), goals=HONEST).train(rounds=2)
    with_it = Federation(folder / "with", recipe(merge=merge), goals=(*HONEST, goal)).train(rounds=2)
    return max(float((with_it[name] - alone[name]).abs().max()) for name in alone)


def test_one_silo_in_five_moves_only_a_mean(tmp_path: Path) -> None:
    goal = 1e4
    assert pulled({"kind": "mean"}, goal, tmp_path / "mean") > 100
    assert pulled({"kind": "median"}, goal, tmp_path / "median") < 1
    assert pulled({"kind": "trimmed", "share": 0.2}, goal, tmp_path / "trimmed") < 1
    assert pulled({"kind": "bounded", "norm": 2.0}, goal, tmp_path / "bounded") < 4


def test_a_change_is_scaled_to_its_bound_and_named(tmp_path: Path) -> None:
    base = start()
    far = Update({name: tensor + 3.0 for name, tensor in base.items()})
    nearer, length = bounded(far, base, 0.5)
    assert length == pytest.approx(change(far, base))
    assert change(nearer, base) == pytest.approx(0.5, rel=1e-5)
    near, _ = bounded(far, base, length + 1)
    assert near is far
    made = Federation(tmp_path, recipe(merge={"kind": "bounded", "norm": 0.01}))
    made.train(rounds=1)
    assert [note.text.split(",")[0] for note in made.of(Note)] == made.names
    assert all("was scaled to 0.01" in note.text for note in made.of(Note))


def test_a_bound_that_nobody_reaches_is_the_mean_bit_for_bit(tmp_path: Path) -> None:
    mean = Federation(tmp_path / "mean", recipe(merge={"kind": "mean"})).train()
    wide = Federation(tmp_path / "wide", recipe(merge={"kind": "bounded", "norm": 1e9})).train()
    assert same(mean, wide)
