from __future__ import annotations

from pathlib import Path

import pytest

from fedmt.report import views
from fedmt.report.folder import RunFolder
from fedmt.report.tables import number, signed
from fedmt.score.rows import MACRO, Average, Difference, Results, Row
from tests.report import runs


def results(public: float, federated: float, p: float = 0.001, silos: tuple[str, ...] = ("a", "b")) -> Results:
    scores = {"public": public, "federated": federated}
    delta = federated - public
    return Results(
        schema=1,
        rows=[
            Row(model=model, silo=silo, direction="de-en", bleu=bleu, chrf=bleu + 20, n=9, signature="s")
            for model, bleu in scores.items()
            for silo in silos
        ],
        averages=[
            Average(model=model, kind="macro", silos=len(silos), n=9, bleu=bleu, chrf=bleu)
            for model, bleu in scores.items()
        ],
        differences=[
            Difference(
                model="federated", against="public", silo=silo, metric="bleu", delta=delta, low=delta, high=delta, p=p
            )
            for silo in (*silos, *([MACRO] if len(silos) > 1 else []))
        ],
        resamples=100,
    )


def test_the_table_says_what_scores_json_says(run: RunFolder) -> None:
    found = run.read_scores()
    table = views.scores(found, run.read_about(), run.entries())
    titles = [(column.group, column.title) for column in table.columns]
    for row, silo in zip(table.rows, found.silos, strict=True):
        cells = {title: cell.text for title, cell in zip(titles, row, strict=True)}
        for model in found.families:
            expected = found.row(model, silo)
            assert expected is not None
            assert cells["BLEU", model] == number(expected.bleu)
            assert cells["chrF++", model] == number(expected.chrf)
        gain = found.difference("federated", "public", silo)
        assert gain is not None
        assert cells["BLEU", "Δ public"].rstrip("*") == signed(gain.delta)
        assert cells["", "pairs"] == f"{runs.SILOS[silo]:,}"
        assert cells["", "bytes"] == "288 MB"
    average = {title: cell.text for title, cell in zip(titles, table.foot[0], strict=True)}
    macro = found.average("federated")
    assert macro is not None
    assert average["BLEU", "federated"] == number(macro.bleu)
    assert table.foot[1][-1].text == "1.4 GB"


def test_the_best_that_may_be_had_stands_out() -> None:
    strong = [cell.text for cell in views.scores(results(20, 30)).rows[0] if cell.strong]
    assert strong == ["30.0", "50.0"]
    assert not any(cell.shade for cell in views.scores(results(20, 30, p=0.5)).rows[0])


@pytest.mark.parametrize(
    ("public", "federated", "p", "silos", "said"),
    [
        (21.3, 35.8, 0.001, ("a", "b"), "raised the average from 21.3 to 35.8 BLEU."),
        (35.8, 21.3, 0.001, ("a", "b"), "lowered the average from 35.8 to 21.3 BLEU."),
        (21.3, 21.5, 0.4, ("a", "b"), "did not surely change the average: it went from 21.3 to 21.5 BLEU."),
        (21.3, 21.5, 0.4, ("a",), "made no sure change: from 21.3 to 21.5 BLEU."),
    ],
)  # fmt: skip
def test_the_headline_is_honest(
    public: float, federated: float, p: float, silos: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    assert views.headline(results(public, federated, p, silos), RunFolder(tmp_path)) == [f"Training together {said}"]


def test_the_headline_tells_bytes_and_what_each_has_alone(run: RunFolder) -> None:
    said = " ".join(views.headline(run.read_scores(), run))
    assert "where each silo alone reaches" in said
    assert said.endswith("No sentence left a silo; 1.4 GB travelled.")


def test_a_terminal_gets_one_table_or_one_for_each_metric(run: RunFolder) -> None:
    assert len(views.fitting(run, 200)) == 1
    narrow = views.fitting(run, 80)
    assert [table.title for table in narrow] == ["BLEU", "chrF++"]
    assert all(table.width <= 80 for table in narrow)


def test_the_cross_table_has_every_model_on_every_test_set(run: RunFolder) -> None:
    found = run.read_scores()
    table = views.cross(found)
    assert [row[0].text for row in table.rows] == [
        "public", *(f"alone:{silo}" for silo in runs.SILOS), "federated", "combined",
    ]  # fmt: skip
    for model, *cells, _ in table.rows:
        expected = [found.row(model.text, silo) for silo in found.silos]
        assert [cell.text for cell in cells] == [number(row.bleu) for row in expected if row is not None]
    # On the diagonal, a silo's own engine on its own test set.
    own = [[cell.strong for cell in row[1:-1]] for row in table.rows[1:6]]
    assert own == [[x == y for x in range(5)] for y in range(5)]


def test_a_model_scored_on_its_own_silo_only_has_no_average(run: RunFolder) -> None:
    found = run.read_scores()
    own = [row for row in found.rows if ":" not in row.model or row.model.endswith(f":{row.silo}")]
    table = views.cross(found.model_copy(update={"rows": own}))
    assert table.rows[1][-1].text == "–"
    assert [cell.text for cell in table.rows[1][2:6]] == ["–"] * 4


def test_what_travelled_is_summed_by_silo(run: RunFolder) -> None:
    table = views.travelled(run.entries())
    assert [row[0].text for row in table.rows] == list(runs.SILOS)
    assert [cell.text for cell in table.foot[0]] == ["all", "720 MB", "180,000,000", "720 MB", "180,000,000"]


def test_text_is_told_with_its_licence(run: RunFolder) -> None:
    about = run.read_about()
    assert about is not None
    table = views.text(about)
    assert [cell.text for cell in table.rows[4]] == [
        "mail", "de-en", "288", "500", "60", "32", "mail==1.0 on PyPI", "licence of mail",
    ]  # fmt: skip


def test_directions_are_told_where_they_differ() -> None:
    found = results(20, 30)
    rows = [row.model_copy(update={"direction": "fr-en"}) if row.silo == "b" else row for row in found.rows]
    table = views.scores(found.model_copy(update={"rows": rows}))
    assert [row[1].text for row in table.rows] == ["de-en", "fr-en"]
