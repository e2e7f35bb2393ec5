from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedmt.errors import RunError
from fedmt.report import views
from fedmt.score.bootstrap import resample, seed_of
from fedmt.score.rows import MACRO, Bytes, Measured, Results, collect, family, order, read_measured, write_measured
from fedmt.score.statistics import measure
from tests.score.test_statistics import sentences

DIRECTIONS = {"clinic": "de-en", "court": "de-en"}


def measured(silo: str, n: int, right: float, *, ter: bool = True, language: str = "en") -> Measured:
    hypotheses, references = sentences(n, n)
    draw = np.random.default_rng(1).random(n)
    hypotheses = [
        reference if chance < right else hypothesis
        for hypothesis, reference, chance in zip(hypotheses, references, draw, strict=True)
    ]
    statistics = measure(hypotheses, references, language, ter=ter)
    return Measured(statistics.summed(), resample(statistics, 200, seed_of(silo)))


@pytest.fixture(scope="module")
def sent() -> dict[tuple[str, str], Measured]:
    levels = {"public": 0.0, "alone:clinic": 0.3, "alone:court": 0.2, "federated": 0.6}
    return {(model, silo): measured(silo, n, right) for model, right in levels.items() for silo, n in SIZES.items()}


SIZES = {"clinic": 80, "court": 30}


def test_models_are_of_families_in_the_order_of_the_tables() -> None:
    models = ["combined", "federated", "alone:b", "public", "personal:a", "alone:a", "chained", "other"]
    assert sorted(models, key=order) == [
        "public", "alone:a", "alone:b", "chained", "federated", "personal:a", "combined", "other",
    ]  # fmt: skip
    assert family("alone:clinic") == "alone"


def test_every_model_has_a_row_on_every_silo(sent: dict[tuple[str, str], Measured]) -> None:
    results = collect(sent, DIRECTIONS)
    assert [(row.model, row.silo) for row in results.rows] == [
        (model, silo) for model in ("public", "alone:clinic", "alone:court", "federated") for silo in SIZES
    ]
    row = results.row("alone", "clinic")
    assert row is not None
    assert row.model == "alone:clinic"
    assert row.intervals["bleu"][0] < row.bleu < row.intervals["bleu"][1]
    assert (results.silos, results.families) == (["clinic", "court"], ["public", "alone", "federated"])


def test_macro_is_the_mean_of_silos_and_micro_the_score_of_all_sentences(
    sent: dict[tuple[str, str], Measured],
) -> None:
    results = collect(sent, DIRECTIONS)
    macro, micro = results.average("federated"), results.average("federated", "micro")
    assert macro is not None
    assert micro is not None
    each = [sent["federated", silo].statistics for silo in SIZES]
    assert macro.bleu == pytest.approx(sum(part.scores().bleu for part in each) / 2)
    assert micro.bleu == (each[0] + each[1]).scores().bleu
    assert (macro.n, micro.n, macro.silos) == (110, 110, 2)


def test_an_alone_engine_counts_in_the_average_on_its_own_silo_only(sent: dict[tuple[str, str], Measured]) -> None:
    average = collect(sent, DIRECTIONS).average("alone")
    assert average is not None
    own = [sent[f"alone:{silo}", silo].statistics.scores().bleu for silo in SIZES]
    assert average.bleu == pytest.approx(sum(own) / 2)


def test_what_each_has_after_all_is_compared_with_what_it_had_alone(sent: dict[tuple[str, str], Measured]) -> None:
    own = {(f"personal:{silo}", silo): measured(silo, n, 0.9) for silo, n in SIZES.items()}
    results = collect({**sent, **own}, DIRECTIONS)
    gain = results.difference("personal", "alone", MACRO)
    assert gain is not None
    assert gain.delta > 0
    assert gain.p < 0.05
    table = views.scores(results)
    assert [column.title for column in table.columns if "Δ" in column.title][-1] == "Δ personal"
    assert "Δ personal is personal minus alone" in table.notes[0]


def test_models_are_compared_with_the_named_baseline_and_federated_with_alone(
    sent: dict[tuple[str, str], Measured],
) -> None:
    results = collect(sent, DIRECTIONS, against="public")
    found = {(value.model, value.against) for value in results.differences}
    assert found == {("alone", "public"), ("federated", "public"), ("federated", "alone")}
    gain = results.difference("federated", "public", MACRO)
    assert gain is not None
    assert gain.low < gain.delta < gain.high
    assert gain.p < 0.05
    assert {value.silo for value in results.differences} == {"clinic", "court", MACRO}
    assert {value.metric for value in results.differences} == {"bleu", "chrf", "ter"}


def test_without_resamples_there_are_scores_and_no_differences(sent: dict[tuple[str, str], Measured]) -> None:
    bare = {key: Measured(value.statistics) for key, value in sent.items()}
    results = collect(bare, DIRECTIONS)
    assert results.differences == []
    assert results.rows[0].intervals == {}
    assert results.average("public") is not None


def test_a_silo_without_test_text_counts_in_no_average(sent: dict[tuple[str, str], Measured]) -> None:
    empty = measure([], [])
    more = {**sent, ("public", "empty"): Measured(empty.summed(), resample(empty, 200, 1))}
    results = collect(more, {**DIRECTIONS, "empty": "de-en"})
    average = results.average("public")
    assert average is not None
    assert average.silos == 2
    assert results.rows[2].n == 0


def test_test_sets_cut_in_two_ways_have_no_micro_average(sent: dict[tuple[str, str], Measured]) -> None:
    mixed = {
        ("public", "clinic"): sent["public", "clinic"],
        ("public", "court"): measured("court", 30, 0, language="zh"),
    }
    results = collect(mixed, DIRECTIONS)
    assert results.average("public") is not None
    assert results.average("public", "micro") is None


def test_ter_is_averaged_only_where_every_silo_has_it(sent: dict[tuple[str, str], Measured]) -> None:
    mixed = {("public", "clinic"): sent["public", "clinic"], ("public", "court"): measured("court", 30, 0, ter=False)}
    average = collect(mixed, DIRECTIONS).average("public")
    assert average is not None
    assert average.ter is None


def test_scores_json_has_the_stable_format(sent: dict[tuple[str, str], Measured], tmp_path: Path) -> None:
    results = collect(sent, DIRECTIONS, bytes_=Bytes(up=10, down=20), seconds=1.5)
    results.write(tmp_path / "scores.json")
    content = json.loads((tmp_path / "scores.json").read_text())
    assert content["schema"] == 1
    assert content["bytes"] == {"up": 10, "down": 20}
    assert content["seconds"] == 1.5
    assert {"model", "silo", "direction", "bleu", "chrf", "n", "signature"} <= content["rows"][0].keys()
    assert Results.read(tmp_path / "scores.json") == results


def test_what_silos_sent_is_kept_and_gives_the_same_scores(
    sent: dict[tuple[str, str], Measured], tmp_path: Path
) -> None:
    write_measured(tmp_path / "resamples.safetensors", sent)
    back = read_measured(tmp_path / "resamples.safetensors")
    assert collect({key: back[key] for key in sent}, DIRECTIONS) == collect(sent, DIRECTIONS)


ROW = {"model": "public", "silo": "a", "direction": "de-en", "bleu": 1.0, "chrf": 2.0, "n": 3, "signature": "s"}


def test_a_minimal_file_and_one_of_tomorrow_are_read(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({"schema": 1, "rows": [{**ROW, "comet": 0.8}], "weather": "fine"}))
    assert Results.read(path).rows[0].bleu == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema": 1, "rows": [', "cannot be read as JSON"),
        ("[]", "its schema is None"),
        ('{"schema": 2, "rows": []}', "its schema is 2; this version of fedmt reads 1"),
        ('{"schema": 1}', "rows: field required"),
        (json.dumps({"schema": 1, "rows": [{**ROW, "bleu": "high"}]}), r"rows\.0\.bleu: "),
        (json.dumps({"schema": 1, "rows": [{**ROW, "n": -1}]}), r"rows\.0\.n: "),
    ],
)
def test_a_broken_scores_json_gives_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text(content)
    with pytest.raises(RunError, match=message) as caught:
        Results.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_scores_json_says_that_the_run_is_not_scored(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has not been scored"):
        Results.read(tmp_path / "scores.json")


def test_a_broken_file_of_resamples_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "resamples.safetensors"
    path.write_bytes(b"no tensors")
    with pytest.raises(RunError, match="cannot be read as safetensors") as caught:
        read_measured(path)
    assert "\n" not in str(caught.value)
