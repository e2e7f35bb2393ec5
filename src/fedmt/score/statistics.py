"""BLEU, chrF++ and TER as sufficient statistics: what can be added up, sent as numbers, and turned into scores.

The counting is sacreBLEU's. Knows nothing of models, silos or resampling.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sacrebleu import __version__ as sacrebleu_version
from sacrebleu.metrics import BLEU, CHRF, TER

__all__ = ["METRICS", "TOKENIZERS", "Counts", "Scores", "Setting", "Statistics", "measure", "scores_of", "setting"]

Counts: TypeAlias = NDArray[np.int64]

METRICS = ("bleu", "chrf", "ter")
WIDTHS = {"bleu": 10, "chrf": 24, "ter": 2}

# The place in this tuple is what travels instead of the name; new ones go to the end.
TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char")

# ISO 639-3 codes are NLLB's.
_CHINESE = {"zh", "zho", "yue"}
_JAPANESE = {"ja", "jpn"}
_KOREAN = {"ko", "kor"}
_UNSPACED = {"th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod"}


@dataclass(frozen=True)
class Scores:
    """In percent, as sacreBLEU prints them; `ter` is None when it was left out. Lower TER is better."""

    bleu: float
    chrf: float
    ter: float | None
    n: int


@dataclass(frozen=True)
class Setting:
    """What the signatures depend on."""

    tokenizer: str
    asian: bool
    version: str

    def signatures(self, metrics: Sequence[str] = METRICS) -> dict[str, str]:
        """sacreBLEU's own signatures, by metric."""
        told = {}
        for name in metrics:
            metric = _metric(name, self)
            metric.num_refs = 1
            signature = metric.get_signature()
            signature.info["version"] = self.version
            # The tokenizer of another machine need not be installed where its scores are read.
            if name == "bleu" and not _installed(self.tokenizer):
                signature.info["tok"] = self.tokenizer
            told[name] = signature.format()
        return told


@dataclass(frozen=True, eq=False)
class Statistics:
    """Counts by metric: one row for each sentence, or one row in all once `summed`. `+` joins two sets of sentences."""

    counts: dict[str, Counts]
    n: int
    setting: Setting

    def __post_init__(self) -> None:
        for name, counts in self.counts.items():
            assert name in METRICS
            assert counts.ndim == 2
            assert counts.shape[1] == WIDTHS[name]

    def __add__(self, other: Statistics) -> Statistics:
        if self.setting != other.setting or self.counts.keys() != other.counts.keys():
            raise ValueError(f"scores made in two ways do not add up: {self.signatures} and {other.signatures}")
        counts = {name: np.concatenate([self.counts[name], other.counts[name]]) for name in self.counts}
        return Statistics(counts, self.n + other.n, self.setting)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        return ((self.n, self.setting, self.counts.keys()) == (other.n, other.setting, other.counts.keys())) and all(
            np.array_equal(self.counts[name], other.counts[name]) for name in self.counts
        )

    __hash__ = None  # type: ignore[assignment]

    def summed(self) -> Statistics:
        """The same scores without a row for each sentence: this is what may leave a silo."""
        return Statistics(
            {name: counts.sum(axis=0, keepdims=True) for name, counts in self.counts.items()}, self.n, self.setting
        )

    @property
    def by_sentence(self) -> bool:
        return all(len(counts) == self.n for counts in self.counts.values())

    @property
    def signatures(self) -> dict[str, str]:
        return self.setting.signatures(tuple(self.counts))

    def scores(self) -> Scores:
        """Of no sentences at all, every score is 0."""
        values = {
            name: float(_metric(name)._compute_score_from_stats(counts.sum(axis=0).tolist()).score)
            for name, counts in self.counts.items()
        }
        return Scores(values["bleu"], values["chrf"], values.get("ter"), self.n)


def setting(language: str = "en") -> Setting:
    """How text in this target language is cut into words, as sacreBLEU advises.

    Japanese without MeCab, and other languages that set no spaces, are counted by characters; the signature says so.
    """
    code = re.split("[-_]", language.lower())[0]
    tokenizer = "13a"
    if code in _CHINESE:
        tokenizer = "zh"
    elif code in _JAPANESE:
        tokenizer = "ja-mecab" if importlib.util.find_spec("MeCab") else "char"
    elif code in _KOREAN:
        tokenizer = "ko-mecab" if importlib.util.find_spec("mecab_ko") else "13a"
    elif code in _UNSPACED:
        tokenizer = "char"
    return Setting(tokenizer, code in _CHINESE | _JAPANESE, sacrebleu_version)


def measure(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "en", *, ter: bool = True
) -> Statistics:
    """Count, sentence by sentence. `language` is the target's; TER is the slow one and may be left out."""
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    chosen = setting(language)
    counts = {}
    for name in METRICS if ter else METRICS[:2]:
        rows = _metric(name, chosen)._extract_corpus_statistics(hypotheses, [references]) if hypotheses else []
        counts[name] = np.array(rows, dtype=np.int64).reshape(len(rows), WIDTHS[name])
    return Statistics(counts, len(hypotheses), chosen)


def scores_of(metric: str, counts: NDArray[Any]) -> NDArray[np.float64]:
    """The score of every row of counts, as sacreBLEU computes it from a single one, for many rows at once."""
    rows = counts.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _FORMULAS[metric](rows)


def _metric(name: str, setting: Setting | None = None) -> Any:
    if name == "bleu":
        here = setting is not None and _installed(setting.tokenizer)
        return BLEU(force=True, tokenize=setting.tokenizer if setting is not None and here else "13a")
    if name == "chrf":
        return CHRF(word_order=2)
    asian = setting is not None and setting.asian
    return TER(normalized=asian, asian_support=asian)


def _installed(tokenizer: str) -> bool:
    needs = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}.get(tokenizer)
    return needs is None or importlib.util.find_spec(needs) is not None


def _bleu(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    length, reference, correct, total = rows[:, 0], rows[:, 1], rows[:, 2:6], rows[:, 6:10]
    brevity = np.where(length < reference, np.exp(1 - reference / np.where(length > 0, length, np.nan)), 1.0)
    brevity = np.nan_to_num(brevity, nan=0.0)
    # "exp" smoothing: the k-th order without a match counts as 1 / 2^k of a match.
    missing = (correct == 0) & (total > 0)
    smooth = np.exp2(np.cumsum(missing, axis=1))
    precision = np.where(missing, 100 / (smooth * total), 100 * correct / total)
    # An order without any n-gram makes the whole score 0.
    score = brevity * np.exp(np.log(precision).mean(axis=1))
    return np.where((total > 0).all(axis=1) & (correct > 0).any(axis=1), score, 0.0)


def _chrf(rows: NDArray[np.float64], beta: float = 2.0) -> NDArray[np.float64]:
    hypothesis, reference, match = rows[:, 0::3], rows[:, 1::3], rows[:, 2::3]
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(axis=1), 1)
    precision = np.where(counted, match / hypothesis, 0).sum(axis=1) / orders
    recall = np.where(counted, match / reference, 0).sum(axis=1) / orders
    factor = beta**2
    score = 100 * (1 + factor) * precision * recall / (factor * precision + recall)
    return np.where(precision + recall > 0, score, 0.0)


def _ter(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    edits, reference = rows[:, 0], rows[:, 1]
    return np.where(reference > 0, 100 * edits / reference, np.where(edits > 0, 100.0, 0.0))


_FORMULAS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {"bleu": _bleu, "chrf": _chrf, "ter": _ter}
