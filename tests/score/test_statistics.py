from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER

from fedmt.score.statistics import METRICS, Statistics, measure, scores_of, setting

WORDS = ["the", "a", "dog", "cat", "runs", "sleeps", "over", "big", "small", "house", ",", ".", "!", "file", "read"]


def sentences(n: int, seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(1, 14))) for _ in range(n)]
    hypotheses = [
        " ".join(word for word in reference.split() if draw.random() < 0.8) + draw.choice(["", " dog", " x y"])
        for reference in references
    ]
    return hypotheses, references


def test_a_perfect_translation_has_all_of_bleu_and_chrf_and_nothing_to_edit() -> None:
    scores = measure(["the big dog runs over there"], ["the big dog runs over there"]).scores()
    assert (round(scores.bleu, 9), round(scores.chrf, 9), scores.ter, scores.n) == (100.0, 100.0, 0.0, 1)


def test_counts_are_those_counted_by_hand() -> None:
    # One word of five is wrong: 4 of 5 words match, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; one edit of five.
    counts = measure(["a b c d x"], ["a b c d e"]).counts
    assert counts["bleu"].tolist() == [[5, 5, 4, 3, 2, 1, 5, 4, 3, 2]]
    assert counts["ter"].tolist() == [[1, 5]]
    # (4/5 · 3/4 · 2/3 · 1/2)^¼ = 0.2^¼
    assert measure(["a b c d x"], ["a b c d e"]).scores().bleu == pytest.approx(100 * 0.2**0.25)


def test_scores_are_those_of_sacrebleu() -> None:
    hypotheses, references = sentences(60, 1)
    scores = measure(hypotheses, references).scores()
    assert scores.bleu == BLEU(force=True).corpus_score(hypotheses, [references]).score
    assert scores.chrf == CHRF(word_order=2).corpus_score(hypotheses, [references]).score
    assert scores.ter == TER().corpus_score(hypotheses, [references]).score


@pytest.mark.parametrize("cuts", [[30], [1, 2, 59], [0, 60], [10, 10, 40]])
def test_scores_computed_in_one_go_are_those_merged_from_parts(cuts: list[int]) -> None:
    hypotheses, references = sentences(60, 2)
    whole = measure(hypotheses, references)
    bounds = [0, *cuts, 60]
    parts = [measure(hypotheses[i:j], references[i:j]) for i, j in pairwise(bounds)]
    assert sum(parts[1:], parts[0]) == whole
    sums = [part.summed() for part in reversed(parts)]
    assert sum(sums[1:], sums[0]).scores() == whole.scores()


def test_sums_hold_no_row_for_a_sentence() -> None:
    hypotheses, references = sentences(20, 3)
    whole = measure(hypotheses, references)
    assert whole.by_sentence
    assert not whole.summed().by_sentence
    assert all(len(counts) == 1 for counts in whole.summed().counts.values())
    assert whole.summed().n == 20


def test_ter_may_be_left_out() -> None:
    statistics = measure(["a b"], ["a c"], ter=False)
    assert statistics.scores().ter is None
    assert sorted(statistics.signatures) == ["bleu", "chrf"]


def test_statistics_made_in_two_ways_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        measure(["a b"], ["a c"], ter=False) + measure(["a b"], ["a c"])
    with pytest.raises(ValueError, match="do not add up"):
        measure(["a b"], ["a c"], "en") + measure(["我们"], ["我们"], "zh")


def test_no_sentences_score_nothing() -> None:
    scores = measure([], []).scores()
    assert (scores.bleu, scores.chrf, scores.ter, scores.n) == (0.0, 0.0, 0.0, 0)


def test_as_many_hypotheses_as_references() -> None:
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        measure(["a"], ["a", "b"])


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("en", "13a"),
        ("de-AT", "13a"),
        ("zh", "zh"),
        ("zh_Hans", "zh"),
        ("zho_Hant", "zh"),
        ("th", "char"),
        ("ko", "13a"),
    ],
)
def test_the_tokenizer_is_the_target_languages_and_the_signature_says_so(language: str, tokenizer: str) -> None:
    assert setting(language).tokenizer == tokenizer
    assert f"tok:{tokenizer}" in measure(["一 二"], ["一 二"], language).signatures["bleu"]


def test_signatures_are_those_of_sacrebleu() -> None:
    bleu, chrf = BLEU(), CHRF(word_order=2)
    bleu.corpus_score(["a"], [["a"]])
    chrf.corpus_score(["a"], [["a"]])
    signatures = measure(["a"], ["a"]).signatures
    assert signatures["bleu"] == str(bleu.get_signature())
    assert signatures["chrf"] == str(chrf.get_signature())
    assert "nw:2" in signatures["chrf"]


def test_chinese_is_edited_by_characters() -> None:
    assert measure(["我们好"], ["我们坏"], "zh").counts["ter"].tolist() == [[1, 3]]


def sacre(metric: str, counts: list[int]) -> float:
    made = {"bleu": BLEU(), "chrf": CHRF(word_order=2), "ter": TER()}[metric]
    return float(made._compute_score_from_stats(list(counts)).score)


EDGES = {
    "bleu": [
        [0, 0] + [0] * 8,
        [0, 5] + [0] * 8,
        [3, 5, 2, 1, 0, 0, 3, 2, 1, 0],
        [6, 5, 3, 0, 0, 0, 6, 5, 4, 3],
        [6, 5, 0, 0, 0, 0, 6, 5, 4, 3],
        [9, 12, 8, 5, 2, 0, 9, 8, 7, 6],
        [1, 1, 1, 0, 0, 0, 1, 0, 0, 0],
    ],
    "chrf": [[0] * 24, [5, 0, 0] * 8, [0, 5, 0] * 8, [4, 5, 0] * 8, [4, 5, 2] * 5 + [0, 3, 0] * 3, [7, 5, 5] * 8],
    "ter": [[0, 0], [3, 0], [2, 5], [9, 5]],
}


@pytest.mark.parametrize("metric", METRICS)
def test_the_vectorised_score_of_a_row_is_sacrebleus(metric: str) -> None:
    expected = [sacre(metric, row) for row in EDGES[metric]]
    assert scores_of(metric, np.array(EDGES[metric])) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_the_vectorised_score_of_real_counts_is_sacrebleus(metric: str) -> None:
    statistics: Statistics = measure(*sentences(200, 4))
    counts = statistics.counts[metric]
    assert scores_of(metric, counts) == pytest.approx([sacre(metric, row) for row in counts.tolist()], abs=1e-9)
