from __future__ import annotations

import re
from typing import Any

import pytest
from lxml import etree

from fedmt.exchange.ledger import Entry
from fedmt.report import plots
from fedmt.report.folder import RunFolder
from fedmt.score.rows import Difference, Results
from tests.report import runs


def read(svg: str) -> Any:
    """Well formed, every number finite, and nothing that stands outside of the drawing."""
    tree: Any = etree.fromstring(svg)
    assert not re.search(r"nan|inf\b", svg)
    _, _, width, height = map(float, tree.get("viewBox").split())
    for sign in tree.iter("circle"):
        assert 0 <= float(sign.get("cx")) <= width
        assert 0 <= float(sign.get("cy")) <= height
    for bar in tree.iter("rect"):
        assert 0 <= float(bar.get("x")) <= float(bar.get("x")) + float(bar.get("width")) <= width
        assert 0 <= float(bar.get("y")) <= float(bar.get("y")) + float(bar.get("height")) <= height
    for text in tree.iter("text"):
        assert 0 <= float(text.get("x")) <= width
        assert 0 <= float(text.get("y")) <= height
    return tree


def titles(tree: Any) -> list[str]:
    return [title.text for title in tree.iter("title")]


@pytest.mark.parametrize("width", [340.0, 912.0])
def test_every_model_has_a_sign_on_every_silo_where_its_score_is(run: RunFolder, width: float) -> None:
    found = run.read_scores()
    tree = read(plots.dots(found, "federated", "bleu", "BLEU", width))
    told = titles(tree)
    for silo in found.silos:
        for model in found.families:
            row = found.row(model, silo)
            assert row is not None
            low, high = row.intervals["bleu"]
            assert f"{model} on {silo}: {row.bleu:.1f} BLEU, 95 % between {low:.1f} and {high:.1f}" in told
    signs = [
        (float(title.text.split(": ")[1].split()[0]), float(title.getparent().find("circle").get("cx")))
        for title in tree.iter("title")
        if title.text.startswith("federated")
    ]
    ordered = sorted(signs)
    assert [place for _, place in ordered] == sorted(place for _, place in signs)
    assert len(signs) == 6


def test_curves_are_gathered_by_silo_and_family() -> None:
    records = [
        {"model": "alone:a", "who": "a", "round": 1, "dev_loss": 3.0},
        {"model": "alone:a", "who": "a", "round": 2, "dev_loss": 2.0},
        {"model": "federated", "who": "a", "round": 1, "dev_loss": 3.0},
        {"model": "federated", "who": "a", "round": 2, "dev_loss": 1.5},
        {"model": "federated", "who": "b", "round": 1, "dev_loss": 9.0},
        {"model": "federated", "who": "b", "round": 2, "dev_loss": None},
        {"model": "public", "who": "public", "round": 1, "dev_loss": 4.0},
        {"model": "chained-0:a", "who": "a", "round": 1, "dev_loss": 4.0},
        {"model": "chained-0:a", "who": "a", "round": 2, "dev_loss": 3.0},
    ]
    found = plots.curves(records, ["a", "b"], "dev_loss", shift=-1)
    assert found == {"a": [plots.Curve("alone", [(0, 3.0), (1, 2.0)]), plots.Curve("federated", [(0, 3.0), (1, 1.5)])]}


def test_panels_share_one_scale(run: RunFolder) -> None:
    found = plots.curves(run.events("trained"), list(runs.SILOS), "dev_loss")
    drawn = [read(plots.panel(silo, some, found, "dev loss", 286.0)) for silo, some in found.items()]
    ticks = [[text.text for text in tree.iter("text") if text.get("class") == "tick"] for tree in drawn]
    assert len(drawn) == 5
    assert all(one == ticks[0] for one in ticks)
    for tree in drawn:
        assert len(list(tree.iter("path"))) == 2
        assert len(titles(tree)) == 2 * runs.ROUNDS
        assert {text.text for text in tree.iter("text")} >= {"alone", "federated"}


def entry(silo: str, round_: int, way: str, size: int) -> Entry:
    return Entry("federated", round_, "fit", silo, way, size, size // 4, 9)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [340.0, 912.0])
def test_bars_are_as_tall_as_their_bytes(width: float) -> None:
    entries = [entry("a", 1, "up", 300), entry("b", 1, "up", 100), entry("a", 1, "down", 200), entry("b", 2, "up", 400)]
    tree = read(plots.traffic(entries, "federated", width))
    heights = {bar.find("title").text: float(bar.get("height")) + 1 for bar in tree.iter("rect")}
    assert len(heights) == 4
    unit = heights["b, round 1, up: 100 B"]
    assert heights["a, round 1, up: 300 B"] == pytest.approx(3 * unit, abs=0.05)
    assert heights["a, round 1, down: 200 B"] == pytest.approx(2 * unit, abs=0.05)
    assert heights["b, round 2, up: 400 B"] == pytest.approx(4 * unit, abs=0.05)


def test_many_rounds_and_silos_still_fit() -> None:
    entries = [
        entry(f"an-organisation-of-a-long-name-{silo}", round_, way, 1000 + 50 * silo)
        for silo in range(30)
        for round_ in range(1, 61)
        for way in ("up", "down")
    ]
    tree = read(plots.traffic(entries, "federated", 912.0))
    assert len(list(tree.iter("rect"))) == 30 * 60 * 2


def gain(silo: str, delta: float, p: float) -> Difference:
    return Difference(
        model="federated", against="alone", silo=silo, metric="bleu", delta=delta, low=delta - 2, high=delta + 2, p=p
    )


@pytest.mark.parametrize("width", [340.0, 912.0])
def test_gains_stand_over_sizes_and_what_is_not_sure_is_hollow(run: RunFolder, width: float) -> None:
    found: Results = run.read_scores().model_copy(
        update={"differences": [gain("clinic", -1, 0.3), gain("mail", 20, 0.001), gain("ticketing", 5, 0.02)]}
    )
    tree = read(plots.gains(found, runs.SILOS, "federated", "alone", width))
    signs = {title.text.split(",")[0]: title.getparent() for title in tree.iter("title")}
    assert {silo: sign.get("class") for silo, sign in signs.items()} == {
        "clinic": "hollow", "mail": "solid", "ticketing": "solid",
    }  # fmt: skip
    across = {silo: float(sign.get("cx")) for silo, sign in signs.items()}
    down = {silo: float(sign.get("cy")) for silo, sign in signs.items()}
    assert across["mail"] < across["ticketing"] < across["clinic"]
    assert down["mail"] < down["ticketing"] < down["clinic"]


def test_models_are_told_apart_by_form_and_not_by_colour_alone() -> None:
    forms = [
        re.sub(r' class="model [a-z]+"', "", plots.mark(0, 0, model))
        for model in ("public", "alone:x", "chained", "federated", "personal:x", "combined")
    ]
    assert len(set(forms)) == 6
