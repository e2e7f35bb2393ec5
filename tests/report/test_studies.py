"""What was saved, what a round costs, where its time goes, how far tensors went: by numbers counted by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

from fedmt.events import Chosen, Dropped, Event, Shifted, Spent, Trained
from fedmt.exchange.ledger import Entry
from fedmt.report import charts, exhibit, html, studies, tallies
from fedmt.report import shifts as moved
from fedmt.report.folder import About, Facts, RunFolder
from fedmt.report.studies import Study
from fedmt.report.svg import width_of
from tests.report import runs
from tests.report.pages import find, texts

SIZES = {"a": 30, "b": 10}
PARTS = {"trained": 100, "shared": 1000, "total": 1000, "total_without_embedding": 600}


def entry(silo: str, round_: int, way: str, size: int, parameters: int, tensors: int, step: str = "fit") -> Entry:
    return Entry("federated", round_, step, silo, way, size, parameters, tensors)  # type: ignore[arg-type]


# Two silos, two rounds; a silo is sent all, and sends all, half or nothing.
ENTRIES = [
    entry("a", 0, "down", 9999, 999, 99, "base"),
    *(entry(silo, round_, "down", 4040, 1000, 10) for silo in "ab" for round_ in (1, 2)),
    entry("a", 1, "up", 4100, 1000, 10),
    entry("b", 1, "up", 2050, 500, 2),
    entry("a", 2, "up", 2050, 500, 4),
    entry("b", 2, "up", 0, 0, 0),
]


def build(
    path: Path,
    entries: Sequence[Entry] = ENTRIES,
    events: Sequence[Event] = (),
    recipe: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Study:
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.recipe.write_text(yaml.safe_dump({"name": path.name, "codec": {"kind": "fp32"}, **(recipe or {})}))
    facts = [Facts(silo, "de-en", size, 1, 1) for silo, size in SIZES.items()]
    folder.write_about(About(facts, engine=dict(engine if engine is not None else {"parts": PARTS})))
    folder.ledger.write_text("".join(json.dumps(asdict(one)) + "\n" for one in entries))
    for event in events:
        folder.tell(event)
    return studies.gather(folder)


def read(drawn: str) -> Any:
    return etree.fromstring(drawn.encode())


def plain(text: str) -> list[list[str]]:
    """The rows of a plain table, by cells."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


# ── savings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_savings_are_against_sending_all_that_is_shared(tmp_path: Path) -> None:
    one = studies.saving(build(tmp_path / "run"))
    assert one is not None
    assert (one.messages, one.tensors, one.parameters, one.bytes) == (4, 16, 2000, 8200)
    # What a sent in its first round is all of it; b never sent all, so that what it was sent tells.
    assert (one.of_tensors, one.of_parameters, one.of_bytes) == (40, 4000, 2 * 4100 + 2 * 4040)
    assert one.saved("tensors") == pytest.approx(0.6)
    assert one.saved("parameters") == pytest.approx(0.5)
    assert one.saved("bytes") == pytest.approx(1 - 8200 / 16280)
    assert one.saved_of_engine("parameters") == pytest.approx(0.5)


def test_a_part_saves_of_the_engine_even_where_all_of_it_is_sent(tmp_path: Path) -> None:
    entries = [entry("a", 1, way, 440, 100, 5) for way in ("down", "up")]
    study = build(tmp_path / "run", entries, engine={"parts": {**PARTS, "shared": 100}}, recipe={"part": {"kind": "x"}})
    one = studies.saving(study)
    assert one is not None
    assert one.saved("parameters") == one.saved("bytes") == 0
    assert one.saved_of_engine("parameters") == pytest.approx(0.9)
    assert one.saved_of_engine("bytes") == pytest.approx(1 - 440 / 4000)


def test_the_losses_that_a_threshold_asks_for_are_bytes_and_no_message_more(tmp_path: Path) -> None:
    entries = [
        entry("a", 1, "down", 4000, 1000, 10),
        entry("a", 1, "up", 80, 0, 0),
        entry("a", 1, "down", 20, 0, 0, "send"),
        entry("a", 1, "up", 400, 100, 3, "send"),
    ]
    one = studies.saving(build(tmp_path / "run", entries))
    assert one is not None
    assert (one.messages, one.bytes) == (1, 480)
    assert one.saved("bytes") == pytest.approx(0.88)


def test_the_way_down_has_a_row_only_where_it_saves(tmp_path: Path) -> None:
    whole = build(tmp_path / "whole")
    half = build(
        tmp_path / "half", [*ENTRIES, entry("a", 3, "down", 2000, 500, 5), entry("a", 3, "up", 4100, 1000, 10)]
    )
    rows = plain(tallies.savings([whole, half]).plain())
    assert [row[0] for row in rows if "up" in row] == ["whole", "half"]
    (down,) = [row for row in rows if "down" in row]
    assert down[1:] == ["9", "900", "3.6 kB", "10.0 %", "10.0 %", "10.1 %", "10.0 %", "10.1 %"]


def test_other_models_and_steps_do_not_count(tmp_path: Path) -> None:
    alone = Entry("alone:a", 1, "fit", "a", "up", 10**6, 10**6, 10**6)
    scored = entry("a", 1, "up", 10**6, 10**6, 10**6, "score:dev")
    assert studies.saving(build(tmp_path / "run", [*ENTRIES, alone, scored])) == studies.saving(
        build(tmp_path / "two" / "run")
    )


def test_a_silo_that_was_left_out_has_saved_nothing(tmp_path: Path) -> None:
    dropped = [Dropped("federated", "b", 2, "it was late"), Dropped("federated", "a", 2, "told before it was resumed")]
    one = studies.saving(build(tmp_path / "run", events=dropped))
    assert one is not None
    assert (one.messages, one.parameters, one.of_parameters) == (3, 2000, 3000)


def test_a_run_without_a_federation_has_no_studies(tmp_path: Path) -> None:
    study = build(tmp_path / "run", [])
    assert tallies.tables([study]) == []
    assert not study.told


# ── costs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_costs_are_with_and_without_embeddings(tmp_path: Path) -> None:
    one = studies.cost(build(tmp_path / "run", recipe={"part": {"kind": "controllers"}}))
    assert one is not None
    # All is shared (A), controllers are trained (C), which hold no embedding.
    assert (one.exchanged, one.exchanged_bare) == (1000, 600)
    assert (one.trained, one.trained_bare) == (100, 100)
    assert (one.engine, one.ratio, one.sent) == (1000, 1.0, 500.0)


def test_an_older_run_tells_its_costs_as_far_as_the_ledger_goes(tmp_path: Path) -> None:
    one = studies.cost(build(tmp_path / "run", engine={"parameters": 5000}, recipe={"part": {"kind": "adapters"}}))
    assert one is not None
    assert (one.exchanged, one.trained, one.exchanged_bare, one.engine) == (1000, None, 1000, 5000)
    assert one.ratio == 5.0


def test_transfer_times_are_those_of_the_paper(tmp_path: Path) -> None:
    """Liu et al., section 2.4: 2.44 GB at 1000 Mbit/s take 19.5 s, and of 12 clients 234 s."""
    entries = [
        entry(f"s{index}", 1, way, 2_440_000_000, 610_000_000, 500) for index in range(12) for way in ("down", "up")
    ]
    study = build(tmp_path / "run", entries, [Spent("federated", "s0", 1, {"train": 7 * 60.0})])
    one = studies.transfer(study)
    assert one is not None
    assert one.up == pytest.approx(19.52)
    assert one.up * one.silos == pytest.approx(234.24)
    assert one.share == pytest.approx(234.24 / (234.24 + 420))
    slow = studies.transfer(study, 100)
    assert slow is not None
    assert slow.up == pytest.approx(195.2)
    row = plain(tallies.transfers([study]).plain())[4]
    assert row[:5] == ["run", "12", "2.4 GB", "19.5 s", "234 s"]


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SPENT = [
    Spent("federated", "a", 1, {"train": 2.0, "choose": 0.5}),
    Spent("federated", "b", 1, {"train": 4.0, "choose": 0.5}),
    Spent("federated", "server", 1, {"merge": 1.0, "round": 10.0}),
    Spent("federated", "a", 2, {"train": 3.0, "choose": 0.5, "judge": 1.0}),
    Spent("federated", "server", 2, {"merge": 1.0, "round": 6.0}),
    Spent("federated", "a", 3, {"train": 99.0}),  # a round that was stopped
    Spent("alone:a", "a", 1, {"train": 50.0}),
]


def test_a_rounds_time_is_parted_among_what_it_went_to(tmp_path: Path) -> None:
    one = studies.time(build(tmp_path / "run", events=SPENT))
    assert one is not None
    assert (one.rounds, one.whole) == (2, 8.0)
    assert one.a_silo == {"train": 3.0, "choose": 0.5, "judge": 1.0}
    assert one.a_round == {"train": 4.5, "choose": 0.75, "judge": 0.5, "merge": 1.0}
    assert one.rest == pytest.approx(8 - 6.75)


def test_a_round_that_is_told_again_counts_once_and_its_steps_together(tmp_path: Path) -> None:
    again = [
        Spent("federated", "a", 1, {"train": 70.0}),
        Spent("federated", "server", 1, {"merge": 70.0, "round": 700.0}),
        Spent("federated", "a", 1, {"train": 2.0}),
        Spent("federated", "a", 1, {"encode": 0.25}),
        Spent("federated", "server", 1, {"merge": 1.0, "round": 4.0}),
    ]
    one = studies.time(build(tmp_path / "run", events=again))
    assert one is not None
    assert one.a_silo == {"train": 2.0, "encode": 0.25}
    assert (one.rounds, one.whole) == (1, 4.0)


def test_shares_of_a_round_are_in_the_table(tmp_path: Path) -> None:
    rows = plain(tallies.times([build(tmp_path / "run", events=SPENT)]).plain())
    (shares,) = [row for row in rows if row[0] == "of the round"]
    assert shares[1:] == ["56.2 %", "9.4 %", "–", "6.2 %", "12.5 %", "15.6 %", "100.0 %", "43.8 %"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.00001, "< 0.1 ms"), (0.0034, "3.4 ms"), (0.09, "90 ms"), (0.35, "0.35 s"), (19.52, "19.5 s"),
     (234.2, "234 s"), (12_345.0, "12,345 s")],
)  # fmt: skip
def test_seconds_are_readable_at_any_size(value: float | None, text: str) -> None:
    assert tallies.seconds(value) == text


# ── what passed, learning ───────────────────────────────────────────────────────────────────────────────────────────


def test_what_passed_is_from_the_ledger_and_theta_from_what_was_told(tmp_path: Path) -> None:
    found = studies.passed(build(tmp_path / "run", events=[Chosen("federated", 2, 0.25, 0.9, 0.9)]))
    assert [(one.round, one.tensors, one.parameters, one.theta) for one in found] == [
        (1, 0.6, 0.75, None), (2, 0.2, 0.25, 0.25),
    ]  # fmt: skip


def test_learning_is_by_steps_done_before_and_weighted_by_pairs(tmp_path: Path) -> None:
    events = [
        Trained("federated", "a", 1, 9.0, 4.0, 10, 6, 1.0),
        Trained("federated", "b", 1, 9.0, 8.0, 10, 2, 1.0),
        Trained("federated", "a", 2, 9.0, 2.0, 10, 6, 1.0),
        Trained("federated", "b", 2, 9.0, None, 10, 2, 1.0),
        Trained("alone:a", "a", 1, 9.0, 99.0, 10, 6, 1.0),
    ]
    assert studies.learning(build(tmp_path / "run", events=events)) == [(0, 5.0), (4, 2.0)]


def test_equal_steps_stand_at_one_place_whatever_the_rounds() -> None:
    many = [(steps, 5.0 - steps / 100) for steps in range(0, 100, 10)]
    few = [(0, 5.0), (50, 4.5)]
    tree = read(charts.learning({"many": many, "few": few}, 912.0))
    at = {title.text: float(title.getparent().get("cx")) for title in tree.iter("title")}
    assert at["few, 1 rounds done, 50 steps: 4.500"] == at["many, 5 rounds done, 50 steps: 4.500"]
    assert at["few, 0 rounds done, 0 steps: 5.000"] < at["many, 1 rounds done, 10 steps: 4.900"]


def test_on_a_telephone_names_take_no_width_from_the_curves() -> None:
    curves = {"a": [(0.0, 5.0), (9.0, 4.0)], "b": [(0.0, 5.0), (9.0, 3.0)]}
    tree = read(charts.learning(curves, 350.0))
    assert max(float(spot.get("cx")) for spot in tree.iter("circle")) >= 335
    assert {text.text for text in tree.iter("text") if text.get("class") == "label"} == {"a", "b"}


def test_the_names_of_many_runs_stand_apart_and_within() -> None:
    for width in (350.0, 912.0):
        for many in (2, 20, 40):
            curves = {f"a-run-of-long-name-{index}": [(0.0, 5.0), (9.0, 4.0)] for index in range(many)}
            tree = read(charts.learning(curves, width))
            labels = [text for text in tree.iter("text") if text.get("class") == "label"]
            places = [(float(text.get("x")), float(text.get("y"))) for text in labels]
            assert len(labels) == many
            assert all(
                abs(y - other) >= 11 or abs(x - beside) >= 100
                for index, (x, y) in enumerate(places)
                for beside, other in places[index + 1 :]
            )
            assert max(x for x, _ in places) + 120 <= width + 20


# ── how far tensors went ────────────────────────────────────────────────────────────────────────────────────────────

TENSORS = ("model.shared.weight", "model.encoder.layers.0.fc1.weight", "model.encoder.layers.0.fc1.bias",
           "model.decoder.layers.0.encoder_attn.k_proj.weight", "model.decoder.layers.0.fc1.weight")  # fmt: skip
FULL = [entry("a", round_, way, 100, 50, 5) for round_ in (1, 2, 3, 4, 5) for way in ("down", "up")]


def shifted(round_: int, *relative: float, tensors: Sequence[str] = TENSORS, silo: str = "a") -> Shifted:
    return Shifted("federated", silo, round_, tuple(tensors), tuple(relative), tuple(10 * one for one in relative))


def test_tensors_are_told_apart_by_side_and_the_first_middle_and_last_round_are_shown(tmp_path: Path) -> None:
    events = [shifted(round_, 9.0, 0.1, 0.0, 0.001, 0.01) for round_ in range(1, 6)]
    found = moved.shifts(build(tmp_path / "run", FULL, events))
    assert [(one.side, one.round) for one in found] == [
        (side, round_) for side in ("encoder", "decoder") for round_ in (1, 3, 5)
    ]
    encoder, decoder = found[0], found[3]
    assert (encoder.values, encoder.still) == ([-1.0], 1)
    assert decoder.values == pytest.approx([-3, -2])
    assert [cut.name for cut in decoder.cuts] == ["half of them"]
    assert decoder.cuts[0].at == pytest.approx(-2.5)


METASEND = {"selector": {"up": {"kind": "metasend", "scale": "log_minmax", "send": "greater"}}}


def test_a_threshold_is_drawn_at_the_change_it_means_on_each_silos_scale(tmp_path: Path) -> None:
    entries = [*FULL, *(entry("b", 1, way, 100, 50, 5) for way in ("down", "up"))]
    events: list[Event] = [
        shifted(1, 1.0, 0.1, 0.1, 0.0001, 0.1),
        shifted(1, 1.0, 0.1, 0.1, 0.01, 0.0, silo="b"),
        Chosen("federated", 1, 0.25, 0.5, 0.5),
    ]
    found = moved.shifts(build(tmp_path / "run", entries, events, METASEND))
    theta = found[0].cuts[0]
    # From 1e-4 to 1, a quarter is at 1e-3; from 1e-2 to 1 (what did not change sets no scale), at 10^-1.5.
    assert theta.name == "θ 0.25"
    assert theta.at == pytest.approx((-3 - 1.5) / 2)


@pytest.mark.parametrize(
    ("change", "whole", "at"),
    [
        ({"scale": "raw"}, True, math.log10(0.25)),
        ({"scale": "minmax"}, True, math.log10(0.1 + 0.25 * 0.9)),
        ({}, False, -1.0),
        ({"send": "less"}, False, 0.0),
    ],
)
def test_a_threshold_on_other_scales_and_where_only_what_was_sent_is_told(
    change: Mapping[str, str], whole: bool, at: float
) -> None:
    recipe = {"selector": {"up": {**METASEND["selector"]["up"], **change}}}
    event = {"relative": [1.0, 0.5, 0.1, 1e30]}
    assert moved.cut(recipe, 0.25, [event], whole) == pytest.approx(at)


def test_another_runs_threshold_is_drawn_among_the_tensors_of_one_that_sends_all(tmp_path: Path) -> None:
    whole = build(tmp_path / "whole", FULL, [shifted(1, 1.0, 0.1, 0.1, 0.01, 0.1)])
    other = build(tmp_path / "other", FULL, [Chosen("federated", 1, 0.5, 0.5, 0.5)], METASEND)
    cuts = moved.shifts(whole, [other])[0].cuts
    assert [cut.name for cut in cuts] == ["θ 0.50 of other", "half of them"]
    assert cuts[0].at == pytest.approx(-1.0)


def test_dynamic_pulling_is_shown_by_what_it_goes_by(tmp_path: Path) -> None:
    recipe = {"selector": {"up": {"kind": "dynamic_pulling", "norm": "mean_abs"}}}
    study = build(tmp_path / "run", FULL, [shifted(1, 1.0, 0.1, tensors=TENSORS[:2])], recipe)
    assert not moved.every(study)
    (encoder,) = moved.shifts(study)
    assert encoder.values == [0.0]
    assert encoder.cuts == []


def bars(tree: Any) -> list[tuple[float, float]]:
    return [(float(bar.get("x")), float(bar.get("height"))) for bar in tree.iter("rect")]


def test_a_histogram_counts_a_silos_tensors_in_bins_of_one_scale() -> None:
    one = moved.Shifts(1, "encoder", [-2.1, -2.1, -2.1, -1.1], 2, 0, [])
    other = moved.Shifts(2, "encoder", [-3.9, 0.9], 2, 0, [])
    tree = read(charts.histogram(one, [one, other], "change", 286.0))
    (left, tall), (right, small) = bars(tree)
    assert tall == pytest.approx(3 * small, abs=0.05)
    assert left < right
    ticks = {text.text: float(text.get("x")) for text in tree.iter("text")}
    assert left < ticks["0.01"] < right < ticks["0.1"]
    assert "2 tensors a silo" in ticks
    assert next(title.text for title in tree.iter("title")).startswith("1.5 tensors went ")
    again = bars(read(charts.histogram(other, [one, other], "change", 286.0)))
    assert again[0][0] < left
    assert right < again[1][0]


@pytest.mark.parametrize("places", [(-2.0, -1.9), (0.9, 0.95), (-3.9, 0.9), (-3.9, -3.9)])
def test_no_threshold_runs_through_the_name_of_another(places: tuple[float, float]) -> None:
    cuts = [moved.Cut("θ 0.41 of metasend", places[0], "theta"), moved.Cut("half of them", places[1], "half")]
    one = moved.Shifts(1, "encoder", [-3.9, 0.9], 1, 0, cuts)
    tree = read(charts.histogram(one, [one], "change", 286.0))
    drawn = [group for group in tree.iter("g") if group.get("class", "").startswith("cut")]
    assert len(drawn) == 2
    for group in drawn:
        text = group.find("text")
        x, y, long = float(text.get("x")), float(text.get("y")), width_of(text.text, 11.5)
        start, end = (x - long, x) if text.get("text-anchor") == "end" else (x, x + long)
        assert -30 < start < end < 290
        for other in drawn:
            rule = other.find("line")
            if other is not group and float(rule.get("y1")) < y:
                assert not start < float(rule.get("x1")) < end


# ── pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def telling(folder: RunFolder, theta: bool = True) -> None:
    for round_ in (1, 2, 3):
        for silo in runs.SILOS:
            folder.tell(shifted(round_, 0.5, 0.1, 0.02, 0.003, 0.01, silo=silo))
            folder.tell(Spent("federated", silo, round_, {"train": 1.5, "choose": 0.01}))
        folder.tell(Spent("federated", "server", round_, {"merge": 0.2, "round": 9.0}))
        if theta:
            folder.tell(Chosen("federated", round_, 0.4, 0.5, 0.38))


def test_a_report_has_studies_only_where_a_run_told_of_its_rounds(small: RunFolder) -> None:
    assert "Studies" not in texts(html.page(small), "//h2")
    telling(small)
    page = html.page(small, 8.0)
    assert "Studies" in texts(page, "//h2")
    titles = texts(page, "//caption") + texts(page, "//h3")
    studied = ["Tensors, parameters and bytes saved", "C-Cost and T-Cost", "Transfer time at 8 Mbit/s"]
    studied += ["Where a round's time goes", "What passed, round by round", "How far tensors went", "Encoder"]
    for title in studied:
        assert title in titles
    # 4 bytes of 7.2 million parameters, at a megabyte a second.
    assert "28.8 s" in texts(page, "//td")


def test_several_runs_have_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    folders = [runs.build(tmp_path / name, n=8, resamples=20) for name in ("whole", attack.replace("/", ""))]
    telling(folders[0], theta=False)
    telling(folders[1])
    page = exhibit.write(folders, tmp_path / "out").read_text()
    assert not find(page, "//link | //img | //iframe | //*[@src] | //*[@href]")
    assert not re.search(r"https?://|@import|url\(", page)
    assert len(find(page, "//script")) == 1
    assert texts(page, "//h2") == [
        "Learning at equal steps", "What an exchange costs", "Where a round's time goes", "What passed, round by round",
        "How far tensors went",
    ]  # fmt: skip
    assert len(find(page, "//figure[@class='wide']//*[contains(@class, 'run')]/*[@class='curve']")) == 2
    assert "nan" not in re.sub(r"<script>.*</script>", "", page, flags=re.S).lower().split()
