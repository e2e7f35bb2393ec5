from __future__ import annotations

from pathlib import Path

import pytest
from sacrebleu.metrics import CHRF

from fedmt.report.examples import choose, marked
from fedmt.report.folder import RunFolder

REFERENCE = ["the dog runs home today", "the cat sleeps all day", "a bird sings in spring", "yes"]
BEFORE = ["the dog runs home today", "x y z", "a bird sings in winter", "no"]
AFTER = ["w v u", "the cat sleeps all day", "a bird sings in winter", "yes"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    for name, lines in (
        ("source", ["s0", "s1", "s2", "s3"]),
        ("reference", REFERENCE),
        ("public", BEFORE),
        ("federated", AFTER),
    ):
        made.write_lines(name, "a", lines)
    return made


def test_the_best_the_typical_and_the_worst_are_shown(folder: RunFolder) -> None:
    found = choose(folder, ["a"], "public", "federated")
    assert found is not None
    assert [one.source for one in found.best] == ["s1"]
    assert [one.source for one in found.worst] == ["s0"]
    assert found.typical[0].source == "s2"
    assert found.typical[0].gain == 0


def test_the_gain_is_in_points_of_sentence_chrf(folder: RunFolder) -> None:
    found = choose(folder, ["a"], "public", "federated")
    assert found is not None
    chrf = CHRF(word_order=2)
    scores = [chrf.sentence_score(text, [REFERENCE[1]]).score for text in (BEFORE[1], AFTER[1])]
    assert found.best[0].gain == pytest.approx(scores[1] - scores[0])


def test_each_silo_has_its_own_engine_where_engines_are_the_silos(folder: RunFolder) -> None:
    folder.write_lines("alone:a", "a", BEFORE)
    found = choose(folder, ["a"], "alone", "federated")
    assert found is not None
    assert found.best[0].before == "x y z"


def test_without_text_on_this_machine_there_are_none(folder: RunFolder, tmp_path: Path) -> None:
    assert choose(folder, ["a", "elsewhere"], "public", "federated") is not None
    (tmp_path / "hypotheses" / "reference" / "a.txt").unlink()
    assert choose(folder, ["a"], "public", "federated") is None


def test_files_of_different_lengths_are_no_examples(folder: RunFolder) -> None:
    folder.write_lines("federated", "a", AFTER[:2])
    assert choose(folder, ["a"], "public", "federated") is None


def test_silos_take_turns(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for silo, wrong in (("a", "q"), ("b", "the dog runs w x")):
        folder.write_lines("source", silo, [f"{silo}{number}" for number in range(6)])
        folder.write_lines("reference", silo, [REFERENCE[0]] * 6)
        folder.write_lines("public", silo, [wrong] * 6)
        folder.write_lines("federated", silo, [REFERENCE[0]] * 6)
    found = choose(folder, ["a", "b"], "public", "federated", most=4)
    assert found is not None
    assert sorted(one.silo for one in found.best) == ["a", "a", "b", "b"]


def test_words_are_marked_where_the_reference_has_them_in_order() -> None:
    assert marked("the dog home runs", "the dog runs home") == [
        ("the", True), ("dog", True), ("home", True), ("runs", False),
    ]  # fmt: skip
    assert marked("", "a") == []
