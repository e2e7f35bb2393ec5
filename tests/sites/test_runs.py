"""A run over sites is the run in one process: the same engine, bit for bit, whatever the method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedmt import experiment, files
from fedmt.corpus.silos import gather
from fedmt.errors import QuorumError
from fedmt.events import Dropped
from fedmt.federation.messages import Reply, Request, unwire
from fedmt.memory import keys
from fedmt.report.folder import RunFolder
from fedmt.sites import runs
from tests.federation.canaries import found
from tests.sites.small import DIRECTIONS, WAYS, Direct, Three


def model(folder: Path) -> bytes:
    return (folder / "engine" / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_sites_give_the_engine_that_one_process_gives(way: dict[str, Any], tmp_path: Path) -> None:
    three = Three(tmp_path)
    here = three.recipe(way, here=True)
    assert all(text.dropped.get("held_out", 0) == 0 for text in gather(here).silos)
    experiment.run(here, tmp_path / "here")
    recipe = three.recipe(way)
    sites = Direct({name: three.site(name) for name in three.sets}, runs.settings(recipe))
    runs.carry_out(sites, recipe, tmp_path / "there", resume=False, listen=lambda _: None)
    assert model(tmp_path / "there") == model(tmp_path / "here")
    replies = [reply for reply in map(unwire, sites.tape) if isinstance(reply, Reply)]
    assert [reply.refused for reply in replies if reply.refused is not None] == []
    assert all(found(message) is None for message in sites.tape)


@pytest.mark.slow
def test_an_engine_that_sites_have_from_an_earlier_run_does_not_come_again(tmp_path: Path) -> None:
    three = Three(tmp_path)
    first = three.recipe({"baselines": [], "rounds": 1})
    folders = {name: three.site(name) for name in three.sets}
    runs.carry_out(
        Direct(folders, runs.settings(first)), first, tmp_path / "first", resume=False, listen=lambda _: None
    )
    named = {
        "engine": {"pretrained": str(tmp_path / "first" / "engine")},
        "train": {"public_epochs": 0, "batch_tokens": 200},
        "part": {"kind": "adapters", "width": 8},
        "codec": {"kind": "fp16"},
    }
    recipe = three.recipe(named)
    sites = Direct(folders, runs.settings(recipe))
    runs.carry_out(sites, recipe, tmp_path / "there", resume=False, listen=lambda _: None)
    experiment.run(three.recipe(named, here=True), tmp_path / "here")
    assert model(tmp_path / "there") == model(tmp_path / "here")
    asked = [message for message in map(unwire, sites.tape) if isinstance(message, Request)]
    assert [len(message.payload) for message in asked if message.step == "base"] == [0, 0, 0]
    whole = (tmp_path / "first" / "engine" / "model.safetensors").stat().st_size
    assert max(len(message.payload) for message in asked) < whole / 2
    here, there = (RunFolder(tmp_path / name).read_scores() for name in ("here", "there"))
    assert there.rows == here.rows

    # A site that has never had it says so, and the others go on.
    (folders["east"] / "state" / "engines").rename(tmp_path / "lost")
    recipe = three.recipe({**named, "failures": {"quorum": 0.6}, "baselines": []})
    sites, events = Direct(folders, runs.settings(recipe)), list[Any]()
    runs.carry_out(sites, recipe, tmp_path / "two", resume=False, listen=events.append)
    reasons = {event.silo: event.reason for event in events if isinstance(event, Dropped)}
    assert set(reasons) == {"east"}
    assert "must be fetched there first" in reasons["east"]


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_from_its_last_whole_round(tmp_path: Path) -> None:
    three = Three(tmp_path)
    recipe = three.recipe(WAYS["metasend"])
    calm = Direct({name: three.site(name) for name in three.sets}, runs.settings(recipe))
    runs.carry_out(calm, recipe, tmp_path / "calm", resume=False, listen=lambda _: None)

    class Cut(Direct):
        left = 9

        def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
            for reply in super().ask(requests, deadline):
                self.left -= 1
                if not self.left:
                    raise KeyboardInterrupt
                yield reply

    cut = Cut({name: three.site(name) for name in three.sets}, runs.settings(recipe))
    with pytest.raises(KeyboardInterrupt):
        runs.carry_out(cut, recipe, tmp_path / "cut", resume=False, listen=lambda _: None)
    for name in three.sets:
        cut.restart(name)
    runs.carry_out(cut, recipe, tmp_path / "cut", resume=True, listen=lambda _: None)
    assert model(tmp_path / "cut") == model(tmp_path / "calm")
    assert (tmp_path / "cut" / "ledger.jsonl").read_bytes() == (tmp_path / "calm" / "ledger.jsonl").read_bytes()


@pytest.mark.slow
def test_a_memory_of_sites_is_the_memory_of_one_process_and_only_members_open_it(tmp_path: Path) -> None:
    three = Three(tmp_path, dict.fromkeys(DIRECTIONS, ("de", "en")))
    way = {"memory": {"code_bytes": 4, "lists": 4, "sample": 2000}, "rounds": 0, "baselines": []}
    experiment.run(three.recipe(way, here=True), tmp_path / "here")
    folders = {name: three.site(name, allow={"memory": True}) for name in three.sets}
    for name, folder in folders.items():
        keys.new(folder / "keys", name)
    for folder in folders.values():
        # What people compare by telephone before they put it there.
        for name, other in folders.items():
            files.write_bytes(folder / "members" / f"{name}.pub", (other / "keys" / f"{name}.pub").read_bytes())
    recipe = three.recipe(way)
    sites = Direct(folders, runs.settings(recipe))
    runs.carry_out(sites, recipe, tmp_path / "there", resume=False, listen=lambda _: None)
    here, there = (RunFolder(tmp_path / name).read_scores() for name in ("here", "there"))
    assert there.rows == here.rows
    assert all(found(message) is None for message in sites.tape)

    refusing = {name: three.site(name) for name in three.sets}
    with pytest.raises(QuorumError, match="its settings let no memory leave"):
        runs.carry_out(
            Direct(refusing, runs.settings(recipe)), recipe, tmp_path / "no", resume=False, listen=lambda _: None
        )
