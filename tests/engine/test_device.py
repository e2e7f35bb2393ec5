"""What a machine computes on: the recipe's word first, else what is there; every choice with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from fedmt.engine import device
from fedmt.errors import CommandError
from fedmt.recipe import Compute


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Four cores, no accelerator and no word from outside, whatever runs the test."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(device, "_quota", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(device, "_cpu_multiplies_bf16", lambda: True)
    return monkeypatch


def chosen(**settings: object) -> dict[str, tuple[str, str]]:
    machine = device.choose(Compute.model_validate(settings))
    found = {choice.what: (choice.value, choice.reason) for choice in machine.choices}
    assert found["device"][0] == machine.device.type
    assert found["precision"][0] == machine.precision
    assert found["threads"][0] == str(machine.threads)
    return found


def test_what_is_found_is_taken_and_said(cores: pytest.MonkeyPatch) -> None:
    assert chosen() == {
        "device": ("cpu", "no accelerator was found"),
        "precision": ("bf16", "the processor multiplies bf16 in hardware"),
        "threads": ("4", "4 cores are ours"),
    }
    assert torch.get_num_threads() == 4
    cores.setattr(device, "_cpu_multiplies_bf16", lambda: False)
    assert chosen()["precision"] == ("fp32", "the processor has no bf16 instructions")


def test_an_accelerator_is_taken_where_there_is_one(cores: pytest.MonkeyPatch) -> None:
    cores.setattr(torch.cuda, "is_available", lambda: True)
    cores.setattr(torch.cuda, "get_device_name", lambda: "Some Chip")
    cores.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert chosen()["device"] == ("cuda", "found Some Chip")
    assert chosen()["precision"] == ("fp32", "the accelerator has no bf16")
    cores.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
    assert chosen()["precision"] == ("bf16", "the accelerator multiplies bf16 in hardware")


def test_the_recipe_has_the_last_word(cores: pytest.MonkeyPatch) -> None:
    cores.setenv("OMP_NUM_THREADS", "1")
    assert chosen(device="cpu", precision="fp32", threads=3) == {
        "device": ("cpu", "the recipe says so"),
        "precision": ("fp32", "the recipe says so"),
        "threads": ("3", "the recipe says so"),
    }
    assert torch.get_num_threads() == 3


def test_more_threads_than_cores_are_warned_of(cores: pytest.MonkeyPatch) -> None:
    assert "though 4 cores are ours: this will be slow" in chosen(threads=8)["threads"][1]
    assert cores is not None


@pytest.mark.parametrize(
    ("limit", "threads"), [("1", "1"), ("3", "3"), ("64", "4"), ("0", "4"), ("many", "4"), ("", "4")]
)
def test_the_environment_can_take_fewer_threads(cores: pytest.MonkeyPatch, limit: str, threads: str) -> None:
    cores.setenv("OMP_NUM_THREADS", limit)
    assert chosen()["threads"][0] == threads


def test_many_cores_are_not_all_taken(cores: pytest.MonkeyPatch) -> None:
    cores.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert chosen()["threads"] == ("16", "64 cores are ours, and more than 16 do not help")


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_what_is_not_there_cannot_be_asked_for(cores: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(CommandError, match=f"compute.device: {name} is asked for, .* allowed here: auto, cpu$"):
        chosen(device=name)
    assert cores is not None


def test_a_containers_share_of_the_cores_counts(cores: pytest.MonkeyPatch) -> None:
    """A container sees all cores of its host and may use a few: as many threads as cores would wait for each other."""
    cores.setattr(device, "_quota", lambda: 2)
    assert chosen()["threads"] == ("2", "this container may use 2 of 4 cores")
    cores.setattr(device, "_quota", lambda: 9)
    assert chosen()["threads"] == ("4", "4 cores are ours")


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", None),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("120000 100000", 1),
        ("20000 100000", 1),
        ("-1 100000", None),
        ("", None),
        ("x y", None),
    ],
)
def test_the_share_is_read_as_linux_writes_it(text: str, cores: int | None) -> None:
    assert device.share(text) == cores
