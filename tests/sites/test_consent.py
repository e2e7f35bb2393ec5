"""A site does nothing that its own settings do not allow, and says why on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedmt.errors import QuorumError
from fedmt.events import Note
from fedmt.federation.messages import Reply, Request, unwire, wire
from fedmt.federation.work import because
from fedmt.sites import consent, runs, settings
from fedmt.sites.audit import Audit
from fedmt.sites.guests import told
from fedmt.sites.settings import SettingsError, Site, read
from fedmt.sites.site import Answering
from tests.sites.small import Direct, Three


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Three:
    return Three(tmp_path_factory.mktemp("three"))


def site(three: Three, **allow: Any) -> Site:
    sets = three.sets["north"]
    return Site.model_validate({"name": "north", **sets, "coordinator": "a.example:443", "allow": allow})


def order(step: str = "fit", silo: str = "north", round: int = 1, **numbers: int) -> Request:
    return Request("r", "federated", round, step, silo, b"", numbers)


@pytest.mark.parametrize(
    ("allow", "changes", "request_", "reason"),
    [
        ({}, {}, order(), None),
        ({"parts": ["all"]}, {}, order(), None),
        ({"parts": ["all"]}, {"part": {"kind": "adapters"}}, order(), "part"),
        ({"parts": ["adapters"]}, {}, order(), "part"),
        ({"selectors": ["all"]}, {"selector": {"up": {"kind": "top_k"}}}, order(), "selector"),
        ({"selectors": ["all"]}, {"selector": {"down": {"kind": "random"}}}, order(), "selector"),
        ({"groups": ["none"]}, {"groups": {"kind": "alone"}}, order(), "groups"),
        ({}, {}, order("gradient"), "groups"),
        ({}, {"groups": {"kind": "gradients", "count": 2}}, order("gradient"), None),
        ({}, {}, order("remember"), "memory"),
        ({"memory": True}, {}, order("remember"), None),
        ({"least_silos": 3}, {}, order(), None),
        ({"least_silos": 3}, {"failures": {"quorum": 0.6}}, order(), "few"),
        ({"least_silos": 4}, {}, order(), "few"),
        ({"most_epochs": 2}, {"train": {"epochs": 3}}, order(), "epochs"),
        ({"most_epochs": 2}, {}, order(epochs=3), "epochs"),
        ({"most_epochs": 2}, {}, order(epochs=2), None),
        ({"most_rounds": 2}, {}, order(), None),
        ({"most_rounds": 1}, {}, order(), "rounds"),
        ({"most_rounds": 2}, {}, order(rounds=3), "rounds"),
        ({"most_rounds": 2}, {}, order(round=3), "rounds"),
        ({}, {}, order(silo="south"), "name"),
    ],
)
def test_an_order_outside_the_settings_is_refused(
    three: Three, allow: dict[str, Any], changes: dict[str, Any], request_: Request, reason: str | None
) -> None:
    no = consent.refusal(site(three, **allow), three.recipe(changes), request_)
    assert (None if no is None else no.reason) == reason
    if no is not None:
        # The identifier travels, and the coordinator has words for it; the site's own say what would be allowed.
        assert because(no.reason) != no.reason
        assert len(no.words.split()) > 3


def test_a_recipe_in_another_direction_is_refused(three: Three) -> None:
    other = three.recipe({"silos": {"source": "sites", "list": [{"name": "north", "from": "de", "to": "fr"}] * 1}})
    no = consent.refusal(site(three, least_silos=1), other, order())
    assert no is not None
    assert no.reason == "direction"


def test_both_logs_say_why_and_the_round_goes_on_where_the_quorum_holds(three: Three, tmp_path: Path) -> None:
    folders = {name: three.site(name) for name in three.sets}
    folders["north"] = three.site("north", allow={"parts": ["all"]})
    recipe = three.recipe({"part": {"kind": "adapters", "width": 4}, "failures": {"quorum": 0.6}, "rounds": 1})
    sites, events = Direct(folders, runs.settings(recipe)), list[Any]()
    runs.carry_out(sites, recipe, tmp_path / "run", resume=False, listen=events.append)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert "north: its settings do not allow this part" in notes
    assert any("refused hello" in line and "part adapters; allowed: all" in line for line in sites.said)
    strict = recipe.model_copy(update={"failures": recipe.failures.model_copy(update={"quorum": 1.0})})
    sites = Direct(folders, runs.settings(strict))
    with pytest.raises(QuorumError, match="north: its settings do not allow this part"):
        runs.carry_out(sites, strict, tmp_path / "strict", resume=False, listen=lambda _: None)


def test_everything_that_leaves_is_in_the_audit_refusals_too(three: Three) -> None:
    folder, recipe = three.site("south"), three.recipe({})
    answering = Answering(folder, settings.read(folder), lambda _: None)
    left = [
        answering(wire(request), {"recipe": told(recipe)})
        for request in (order("hello", "south"), order("fit", "south"), order("hello", "north"))
    ]
    lines = list(Audit(folder / "audit.jsonl", "").lines())[-3:]
    assert [line.bytes for line in lines] == [len(content) for content in left]
    assert [(line.step, line.refused) for line in lines] == [("hello", None), ("fit", "welcome"), ("hello", "name")]
    assert {line.to for line in lines} == {"127.0.0.1:9"}
    assert all(len(line.sha256) == 64 for line in lines)
    assert (folder / "audit.jsonl").stat().st_mode & 0o077 == 0


def test_what_goes_wrong_at_a_site_is_told_there_and_not_elsewhere(three: Three) -> None:
    folder = three.site("east", test="tsv:/nowhere/Kanarienvogel.tsv")
    said: list[str] = []
    answering = Answering(folder, settings.read(folder), said.append)
    reply = unwire(answering(wire(order("hello", "east")), {"recipe": told(three.recipe({}))}))
    assert isinstance(reply, Reply)
    assert reply.refused == "failed:CorpusError"
    assert "Kanarienvogel" in (folder / "errors.log").read_text(encoding="utf-8")
    assert not any("Kanarienvogel" in line for line in said)


@pytest.mark.parametrize("recipe", ["", "{}", "[1", '{"silos": 3}'])
def test_a_run_without_a_recipe_is_refused(three: Three, recipe: str) -> None:
    folder = three.site("south")
    answering = Answering(folder, settings.read(folder), lambda _: None)
    reply = unwire(answering(wire(order("hello", "south")), {"recipe": recipe}))
    assert isinstance(reply, Reply)
    assert reply.refused == "recipe"


def test_mistakes_of_the_settings_are_told_with_their_lines(three: Three) -> None:
    folder = three.site("north", allow={"parts": ["everything"]}, coordinator="nowhere", colour="red")
    with pytest.raises(SettingsError) as caught:
        read(folder)
    said = str(caught.value)
    assert said.count("site.yaml:") == 3
    assert all(name in said for name in ("coordinator", "allow.parts.0", "colour"))
    assert "\n" not in said
