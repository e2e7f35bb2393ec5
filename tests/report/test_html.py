from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fedmt.events import Dropped
from fedmt.report import html
from fedmt.report.folder import About, Facts, RunFolder
from fedmt.score.bootstrap import resample, seed_of
from fedmt.score.rows import Measured, collect, write_measured
from fedmt.score.statistics import measure
from tests.report import runs
from tests.report.pages import find, texts


@pytest.fixture(scope="module")
def page(run: RunFolder) -> str:
    return html.page(run)


def test_the_page_needs_nothing_else(page: str) -> None:
    assert find(page, "//meta[@http-equiv='Content-Security-Policy']/@content") == [
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    ]
    assert not find(page, "//link | //img | //iframe | //*[@src] | //*[@href]")
    assert not re.search(r"https?://|@import|url\(", page)


def test_every_section_is_there(page: str) -> None:
    assert texts(page, "//h2") == [
        "Silo by silo", "Learning, round by round", "Who gains", "What travelled", "Every model on every test set",
        "Examples", "What was run", "How to run it again",
    ]  # fmt: skip
    assert "raised the average" in texts(page, "//h1")[0]


def test_what_was_run_is_told(page: str, run: RunFolder) -> None:
    shown = texts(page, "//pre")
    assert yaml.safe_load(shown[-1]) == run.read_recipe()
    assert "avx512_bf16" in page
    assert "tok:13a" in page
    assert "licence of mail" in page
    assert "fedmt run recipe.yaml" in shown[0]


def test_each_figure_is_drawn_for_a_screen_and_for_a_telephone(page: str) -> None:
    wide, narrow = (find(page, f"//figure[@class='{size}']/svg/@width") for size in ("wide", "narrow"))
    assert len(wide) == len(narrow) == 3
    assert all(float(width) <= 360 for width in narrow)


def test_an_engine_that_writes_markup_does_not_get_it_into_the_page(tmp_path: Path) -> None:
    folder = runs.build(tmp_path / "run", n=8, resamples=20)
    attack = "<script>alert(1)</script> <img src=x onerror=alert(2)> & \" ' ]]> end"
    for name in ("source", "reference", "federated"):
        folder.write_lines(name, "mail", [attack] * 8)
    folder.write_lines("public", "mail", ["nothing"] * 8)
    folder.tell(Dropped("federated", "mail", 2, attack))
    recipe = folder.read_recipe() | {"name": attack}
    folder.recipe.write_text(yaml.safe_dump(recipe))
    page = html.page(folder)
    assert len(find(page, "//script")) == 1
    assert not find(page, "//img")
    assert attack in texts(page, "//dd")
    assert any(attack in text for text in texts(page, "//li"))
    assert texts(page, "//title")[0].startswith(attack)


def test_without_text_the_page_says_where_it_is(tmp_path: Path) -> None:
    folder = runs.build(tmp_path / "run", n=8, resamples=20, text=False)
    page = html.page(folder)
    assert "The sentences are with their silos" in page
    assert not find(page, "//article")


def test_the_least_that_a_run_can_leave_has_a_report(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.recipe.write_text("rounds: 0\n")
    statistics = measure(["a b c d"], ["a b c e"], ter=False)
    collect({("public", "one"): Measured(statistics.summed())}, {"one": "de-en"}).write(folder.scores)
    html.write(folder)
    page = folder.report.read_text()
    assert texts(page, "//h1") == [f"The public engine scores {statistics.scores().bleu:.1f} BLEU on average."]
    assert texts(page, "//h2") == ["Silo by silo", "What was run", "How to run it again"]


def test_twelve_silos_of_long_names_and_all_models_have_a_report(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.recipe.write_text("name: many\n")
    silos = [f"association-of-municipal-archives-{number}" for number in range(12)]
    ways = [f"{'de' if number % 2 else 'fr'}-{'en' if number % 3 else 'zh'}" for number in range(12)]
    models = ["public", "federated", "combined", "chained"]
    models += [f"{kind}:{silo}" for kind in ("alone", "personal") for silo in silos]
    statistics = measure(["a b c d e", "f g h"], ["a b c d x", "f g"])
    samples = resample(statistics, 20, seed_of("x"))
    measured = {(model, silo): Measured(statistics.summed(), samples) for model in models for silo in silos}
    collect(measured, dict(zip(silos, ways, strict=True))).write(folder.scores)
    write_measured(folder.resamples, measured)
    folder.write_about(About([Facts(silo, way, 10, 1, 2) for silo, way in zip(silos, ways, strict=True)]))
    page = html.page(folder)
    assert len(find(page, "//table[@class='heat']/tbody/tr")) == 4 + 24
    assert "nan" not in re.sub(r"<script>.*</script>", "", page, flags=re.S).lower().split()
    assert "did not surely change" in texts(page, "//h1")[0]


def test_a_run_that_helped_nobody_says_so(tmp_path: Path) -> None:
    folder = runs.build(tmp_path / "run", n=8, resamples=20)
    found = folder.read_scores()
    turned = {"public": "federated", "federated": "public"}
    rows = [row.model_copy(update={"model": turned.get(row.model, row.model)}) for row in found.rows]
    averages = [one.model_copy(update={"model": turned.get(one.model, one.model)}) for one in found.averages]
    worse = [
        one.model_copy(update={"delta": -one.delta, "low": -one.high, "high": -one.low})
        for one in found.differences
        if (one.model, one.against) == ("federated", "public")
    ]
    found.model_copy(update={"rows": rows, "averages": averages, "differences": worse}).write(folder.scores)
    assert "Training together lowered the average" in html.page(folder)


def test_ter_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    folder = runs.build(tmp_path / "run", n=8, resamples=20)
    assert texts(html.page(folder), "//details/summary")[0] == "TER"
    found = folder.read_scores()
    # Too slow for every model on every test set: each silo's own engine is enough.
    rows = [row if row.model != "alone:clinic" else row.model_copy(update={"ter": None}) for row in found.rows]
    found.model_copy(update={"rows": rows}).write(folder.scores)
    assert texts(html.page(folder), "//details//tbody/tr[1]/*")[2] == "–"
    bare = [row.model_copy(update={"ter": None}) for row in found.rows]
    found.model_copy(update={"rows": bare}).write(folder.scores)
    assert "TER" not in texts(html.page(folder), "//details/summary")
