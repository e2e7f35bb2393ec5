"""The round loop: what it folds, what it refuses, and what it says."""

from __future__ import annotations

from pathlib import Path

import torch

from fedmt.events import Trained, Travelled
from tests.federation.toy import Federation, same, start


def test_a_round_is_the_weighted_mean_of_what_the_silos_sent(tmp_path: Path) -> None:
    federation = Federation(tmp_path, samples=(1, 1, 2))
    merged = federation.train(rounds=1)
    alone = [Federation(tmp_path / str(index), samples=(1, 1, 2)) for index in range(3)]
    sent = [other.coordinator.train("x", start(), [other.names[index]], 1, 1) for index, other in enumerate(alone)]
    for name in merged:
        expected = (sent[0][name].double() + sent[1][name].double() + 2 * sent[2][name].double()) / 4
        torch.testing.assert_close(merged[name], expected.float(), rtol=0, atol=1e-6)


def test_written_down_or_not_the_engine_is_the_same(tmp_path: Path) -> None:
    assert same(Federation(tmp_path).train(), Federation(None).train())


def test_it_tells_who_trained_and_what_travelled(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.train(rounds=2)
    assert [(event.who, event.round) for event in federation.of(Trained)] == [
        (name, round) for round in (1, 2) for name in federation.names
    ]
    total = federation.ledger.totals("federated")
    assert sum(event.up_bytes for event in federation.of(Travelled)) == total.up_bytes
    assert total.up_parameters == total.down_parameters == 2 * 3 * 9
