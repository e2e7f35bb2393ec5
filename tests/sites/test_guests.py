"""Sites that come late, forget, or are killed: each is welcomed before anything else, and answers as it would have."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedmt.events import Dropped, Note
from fedmt.federation.messages import Reply, Request, unwire
from fedmt.federation.work import FIT
from fedmt.sites import greeting, runs
from fedmt.sites.guests import Guests, told
from tests.sites.small import WAYS, Direct, Three


class Happening(Direct):
    """Before a round's requests to a site go out, something happens to it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.before: dict[tuple[int, str], Any] = {}

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        for request in requests:
            happens = self.before.pop((request.round, request.silo), None) if request.step == FIT else None
            if happens is not None:
                happens()
            yield from super().ask([request], deadline)


def model(folder: Path) -> bytes:
    return (folder / "engine" / "model.safetensors").read_bytes()


def sites(three: Three, recipe: Any, name: str) -> Happening:
    folders = {one: three.folder / name / one for one in three.sets}
    for one, folder in folders.items():
        shutil.copytree(three.site(one), folder, dirs_exist_ok=True)
    return Happening(folders, runs.settings(recipe))


@pytest.mark.slow
def test_a_site_that_is_killed_between_rounds_answers_as_if_it_had_not_been(tmp_path: Path) -> None:
    three = Three(tmp_path)
    recipe = three.recipe({**WAYS["adapters, families"], "rounds": 2})
    calm, harried = sites(three, recipe, "calm"), sites(three, recipe, "harried")
    for name in three.sets:
        harried.before |= {(round, name): lambda name=name: harried.restart(name) for round in (1, 2)}
    for transport, out in ((calm, "a"), (harried, "b")):
        runs.carry_out(transport, recipe, tmp_path / out, resume=False, listen=lambda _: None)
    assert model(tmp_path / "a") == model(tmp_path / "b")


@pytest.mark.slow
def test_a_site_may_leave_and_come_between_rounds(tmp_path: Path) -> None:
    three = Three(tmp_path)
    recipe = three.recipe({"failures": {"quorum": 0.6}, "rounds": 3, "baselines": []})
    transport, events = sites(three, recipe, "theirs"), list[Any]()
    transport.away = {"north"}
    transport.before = {
        (1, "south"): lambda: transport.away.clear(),
        (3, "south"): lambda: transport.away.add("east"),
    }
    # Who is away is seen before a round begins: what happens in one is for the next.
    runs.carry_out(transport, recipe, tmp_path / "run", resume=False, listen=events.append, wait=0)
    left_out = [(event.round, event.silo) for event in events if isinstance(event, Dropped)]
    assert (1, "north") in left_out
    assert not any(event == (2, "north") for event in left_out)
    assert any(isinstance(event, Note) and event.text.startswith("welcomed north:") for event in events)
    asked = [message for message in map(unwire, transport.tape) if isinstance(message, Request)]
    first = [message.step for message in asked if message.silo == "north"]
    assert first[:2] == ["welcome", "fit"]


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_step_that_needs_a_site_waits_for_it(tmp_path: Path, patience: float) -> None:
    three = Three(tmp_path)
    recipe = three.recipe({})
    transport = sites(three, recipe, "theirs")
    transport.away = {"north"}
    guests = Guests(
        transport, recipe, "run", tmp_path / "kept", lambda _: None, patience, lambda _: transport.away.clear()
    )
    assert ("north" in guests.silos()) == (patience > 0)


@pytest.mark.slow
def test_a_site_that_lost_its_disk_is_welcomed_again_or_refuses_but_never_answers_from_another_engine(
    tmp_path: Path,
) -> None:
    three = Three(tmp_path)
    for number, (way, refused) in enumerate(((WAYS["all"], None), (WAYS["adapters, families"], "base"))):
        recipe = three.recipe({**way, "rounds": 2, "failures": {"quorum": 0.6}, "baselines": []})
        transport = sites(three, recipe, f"theirs{number}")

        def lose(transport: Happening = transport) -> None:
            shutil.rmtree(transport.folders["south"] / "state")
            transport.restart("south")

        transport.before = {(2, "south"): lose}
        runs.carry_out(transport, recipe, tmp_path / f"run{number}", resume=False, listen=lambda _: None)
        replies = [message for message in map(unwire, transport.tape) if isinstance(message, Reply)]
        steps = [(one.step, one.refused) for one in replies if one.silo == "south" and one.round == 2]
        assert steps == [("fit", "welcome"), ("fit", refused)]


def test_the_recipe_that_sites_are_told_names_no_place_of_the_servers(tmp_path: Path) -> None:
    three = Three(tmp_path)
    text = told(three.recipe({}))
    assert str(tmp_path) not in text
    assert runs.parse(text).silos == three.recipe({}).silos


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors.pop("config.json"),
        lambda tensors: tensors.pop("hash"),
        lambda tensors: tensors.update({"../../evil": tensors["hash"]}),
        lambda tensors: tensors.update({"evil.py": tensors["hash"]}),
        lambda tensors: tensors.update({"config.json": tensors["hash"].float()}),
        lambda tensors: tensors.update({"hash": tensors["hash"][:5]}),
    ],
)
def test_a_welcome_that_is_none_is_not_written_down(spoil: Any) -> None:
    from fedmt.exchange import codec

    good = greeting.Welcome({"config.json": b"{}"}, "ab" * 32, False, None)
    assert greeting.read(good.payload(), good.numbers()) == good
    tensors, _ = codec.unpack(good.payload())
    spoil(tensors)
    with pytest.raises(ValueError):
        greeting.read(codec.pack(tensors), {})
