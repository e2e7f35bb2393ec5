from __future__ import annotations

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from fedmt.errors import Refused
from fedmt.score import bootstrap
from fedmt.score.bootstrap import as_tensors, compare, from_tensors, interval, resample, seed_of
from fedmt.score.statistics import METRICS, measure
from tests.score.test_statistics import sentences

MADE = {"bleu": BLEU(force=True), "chrf": CHRF(word_order=2), "ter": TER()}


def test_each_resample_scores_as_sacrebleu_scores_those_sentences() -> None:
    hypotheses, references = sentences(40, 1)
    samples = resample(measure(hypotheses, references), 25, seed=7)
    indices = np.random.default_rng(7).choice(40, size=(25, 40), replace=True)
    for name in METRICS:
        expected = [
            MADE[name].corpus_score([hypotheses[i] for i in row], [[references[i] for i in row]]).score
            for row in indices
        ]
        assert samples[name] == pytest.approx(expected, abs=1e-9)


def test_drawing_in_blocks_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = measure(*sentences(33, 2))
    whole = resample(statistics, 50, seed=3)
    monkeypatch.setattr(bootstrap, "_BLOCK", 33 * 7)
    blocks = resample(statistics, 50, seed=3)
    assert all(np.array_equal(whole[name], blocks[name]) for name in METRICS)


def test_two_models_are_resampled_over_the_same_sentences() -> None:
    statistics = measure(*sentences(30, 3))
    again = measure(*sentences(30, 3))
    assert np.array_equal(resample(statistics, 20, 5)["bleu"], resample(again, 20, 5)["bleu"])
    assert not np.array_equal(resample(statistics, 20, 5)["bleu"], resample(statistics, 20, 6)["bleu"])


def test_every_silo_has_its_own_seed() -> None:
    assert seed_of("clinic") == seed_of("clinic")
    assert seed_of("clinic") != seed_of("court")


def test_sums_cannot_be_resampled() -> None:
    with pytest.raises(AssertionError):
        resample(measure(*sentences(5, 1)).summed(), 10, 1)


def test_no_sentences_are_resampled_to_nothing() -> None:
    assert resample(measure([], []), 4, 1)["bleu"].tolist() == [0.0] * 4


@pytest.mark.parametrize("better", [0.0, 0.05, 0.3])
def test_the_paired_bootstrap_is_sacrebleus(better: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    a, references = sentences(80, 4)
    draw = np.random.default_rng(0)
    b = [
        reference if draw.random() < better else hypothesis for hypothesis, reference in zip(a, references, strict=True)
    ]
    b[:2] = references[:2]
    _, told = PairedTest([("a", a), ("b", b)], MADE, [references], "bs", n_samples=300)()
    one, other = measure(a, references), measure(b, references)
    one_samples, other_samples = resample(one, 300, 12345), resample(other, 300, 12345)
    for name, title in (("bleu", "BLEU"), ("chrf", "chrF2++"), ("ter", "TER")):
        points = [getattr(statistics.scores(), name) for statistics in (one, other)]
        found = compare(other_samples[name], one_samples[name], points[1], points[0])
        result = told[title][1]
        assert not isinstance(result, str)
        assert found is not None
        assert found.p == result.p_value
        assert found.delta == points[1] - points[0]
        low, high = interval(other_samples[name])
        assert (high - low) / 2 == pytest.approx(result.ci)


def test_a_model_does_not_differ_from_itself() -> None:
    samples = np.array([20.0, 21.0, 22.0])
    assert compare(samples, samples, 21.0, 21.0) == bootstrap.Difference(0.0, 0.0, 0.0, 1.0)


def test_a_steady_gain_is_sure_and_a_noisy_one_is_not() -> None:
    base = np.random.default_rng(1).normal(20, 1, 999)
    steady = compare(base + 5, base, 25.0, 20.0)
    noisy = compare(base[::-1], base, 20.1, 20.0)
    assert steady is not None
    assert noisy is not None
    assert steady.p == 1 / 1000
    assert (steady.low, steady.high) == pytest.approx((5, 5))
    assert noisy.p > 0.3
    assert noisy.low < 0 < noisy.high


def test_arrays_that_do_not_pair_up_are_not_compared() -> None:
    assert compare(np.zeros(3), np.zeros(4), 1.0, 2.0) is None
    assert compare(np.zeros(0), np.zeros(0), 1.0, 2.0) is None


def test_the_interval_holds_95_of_100() -> None:
    assert interval(np.arange(100.0)) == (2.0, 97.0)


def test_the_average_is_taken_resample_by_resample() -> None:
    assert bootstrap.average([np.array([1.0, 2.0]), np.array([3.0, 6.0])]).tolist() == [2.0, 4.0]


def test_scores_travel_as_numbers_and_come_back_whole() -> None:
    hypotheses, references = sentences(30, 5)
    statistics = measure(hypotheses, references)
    samples = resample(statistics, 20, 1)
    tensors = as_tensors(statistics, samples)
    back, arrays = from_tensors(tensors)
    assert back == statistics.summed()
    assert back.scores() == statistics.scores()
    assert back.signatures == statistics.signatures
    assert all(np.array_equal(arrays[name], samples[name]) for name in METRICS)


def test_what_travels_does_not_grow_with_the_sentences() -> None:
    few, many = (measure(*sentences(n, 6)) for n in (3, 300))
    sizes = [sum(tensor.nbytes for tensor in as_tensors(part, resample(part, 20, 1)).values()) for part in (few, many)]
    assert sizes[0] == sizes[1]


def test_a_thai_silo_is_read_where_no_thai_is_known() -> None:
    statistics = measure(["ก ข ค"], ["ก ข ง"], "th")
    assert from_tensors(as_tensors(statistics, {}))[0].signatures == statistics.signatures


def broken(name: str, value: torch.Tensor | None) -> dict[str, torch.Tensor]:
    statistics = measure(*sentences(10, 7))
    tensors = as_tensors(statistics, resample(statistics, 8, 1))
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    return tensors


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("setting", None, "lack setting"),
        ("bleu.counts", None, r"lack bleu\.counts"),
        ("bleu.counts", torch.zeros(9, dtype=torch.int64), r"shape \[9\]"),
        ("bleu.counts", torch.zeros(10), r"torch\.float32"),
        ("bleu.counts", torch.full((10,), -1), "no score"),
        ("chrf.samples", torch.tensor([float("nan")] * 8, dtype=torch.float64), "no score"),
        ("chrf.samples", torch.zeros(9, dtype=torch.float64), "different number of times"),
        ("setting", torch.tensor([10, 2, 6, 0, 99, 0]), "tokenizer"),
        ("sentences", torch.zeros(3), "sentences, which is no score"),
    ],
)
def test_scores_that_a_silo_cannot_have_are_refused(name: str, value: torch.Tensor | None, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        from_tensors(broken(name, value), "clinic")
    assert caught.value.silo == "clinic"
