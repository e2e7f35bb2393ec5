from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fedmt.report.compare import Compared, compare
from fedmt.report.folder import RunFolder
from fedmt.score.bootstrap import average
from fedmt.score.bootstrap import compare as paired
from fedmt.score.rows import write_measured
from tests.report import runs


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Another seed's hypotheses, and a quarter of the bytes."""
    return runs.build(tmp_path_factory.mktemp("runs") / "quarter", seed=2, share=0.25)


def row(rows: list[Compared], run: str, model: str) -> Compared:
    return next(one for one in rows if (one.run, one.model) == (run, model))


def test_a_run_differs_in_nothing_from_itself(run: RunFolder) -> None:
    rows = compare([run, run]).rows
    second = [one for place, one in enumerate(rows) if place % 2]
    assert len(second) == 4
    for one in second:
        assert one.bleu_difference is not None
        assert (one.bleu_difference.delta, one.bleu_difference.p) == (0.0, 1.0)


def test_the_first_runs_subject_comes_first_and_models_stand_together(run: RunFolder, other: RunFolder) -> None:
    rows = compare([run, other]).rows
    assert [(one.model, one.run) for one in rows[:4]] == [
        ("federated", "demo"), ("federated", "quarter"), ("public", "demo"), ("public", "quarter"),
    ]  # fmt: skip


def test_bytes_are_compared_as_a_ratio(run: RunFolder, other: RunFolder) -> None:
    rows = compare([run, other]).rows
    assert row(rows, "demo", "federated").ratio == 1
    assert row(rows, "quarter", "federated").ratio == pytest.approx(0.25, rel=1e-4)
    assert row(rows, "quarter", "alone").down_bytes == runs.PARAMETERS * 5 * runs.ROUNDS
    assert row(rows, "demo", "public").ratio is None


def test_significance_is_the_paired_bootstrap_of_the_averages(run: RunFolder, other: RunFolder) -> None:
    found = row(compare([run, other]).rows, "quarter", "federated").bleu_difference
    one, two = run.read_resamples(), other.read_resamples()
    samples = [average([sent["federated", silo].samples["bleu"] for silo in sorted(runs.SILOS)]) for sent in (one, two)]
    points = [folder.read_scores().average("federated") for folder in (run, other)]
    assert points[0] is not None
    assert points[1] is not None
    expected = paired(samples[1], samples[0], points[1].bleu, points[0].bleu)
    assert found is not None
    assert expected is not None
    assert found.delta == pytest.approx(expected.delta)
    assert (found.low, found.high, found.p) == (expected.low, expected.high, expected.p)


def test_runs_that_do_not_pair_up_say_why(run: RunFolder, tmp_path: Path) -> None:
    shorter = runs.build(tmp_path / "shorter", n=12, resamples=200)
    fewer = runs.build(tmp_path / "fewer", resamples=50)
    bare = runs.build(tmp_path / "bare", n=12, resamples=20)
    bare.resamples.unlink()
    partial = runs.build(tmp_path / "partial", n=12, resamples=20)
    measured = {key: value for key, value in partial.read_resamples().items() if key[1] != "mail"}
    write_measured(partial.resamples, measured)
    found = compare([run, shorter, fewer, bare, partial])
    assert found.notes == [
        "shorter: does not pair with demo: the test set of clinic is another.",
        "fewer: does not pair with demo: it was resampled another number of times.",
        "bare: does not pair with demo: there are no resamples.",
        "partial: does not pair with demo: the test set of clinic is another.",
    ]
    assert all(one.bleu_difference is None for one in found.rows)


def test_runs_over_other_silos_are_shown_and_not_compared(run: RunFolder, tmp_path: Path) -> None:
    other = runs.build(tmp_path / "other", n=12, resamples=20)
    scores = other.read_scores()
    rows = [one for one in scores.rows if one.silo != "mail"]
    scores.model_copy(update={"rows": rows}).write(other.scores)
    found = compare([run, other])
    assert found.notes == ["other: does not pair with demo: it was scored on other silos."]


def test_runs_of_one_name_are_told_apart_by_their_folders(run: RunFolder, tmp_path: Path) -> None:
    twin = runs.build(tmp_path / "demo", n=12, resamples=20)
    assert {one.run for one in compare([run, twin]).rows} == {str(run.path), str(twin.path)}


def test_the_table_has_a_line_for_each_model_and_run(run: RunFolder, other: RunFolder) -> None:
    table = compare([run, other]).table()
    assert len(table.rows) == 8
    assert [cell.text for cell in table.rows[1]][-4:] == ["180 MB", "180 MB", "90,000,000", "× 0.25"]
    assert "paired bootstrap" in table.notes[0]


def test_one_run_alone_has_a_table_too(run: RunFolder) -> None:
    found = compare([run])
    assert len(found.rows) == 4
    assert found.table().notes == []


def test_every_number_can_be_written_as_json(run: RunFolder, other: RunFolder) -> None:
    content = json.loads(json.dumps([asdict(one) for one in compare([run, other]).rows]))
    assert content[1]["bleu_difference"].keys() == {"delta", "low", "high", "p"}
