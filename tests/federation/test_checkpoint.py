"""A checkpoint is whole or absent; random generators go on where they stood."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from fedmt.errors import RunError
from fedmt.federation import checkpoint
from fedmt.federation.checkpoint import Shelf, State, shelf


def state() -> State:
    tensors = {
        "weights": torch.arange(6.0).reshape(2, 3),
        "random": torch.tensor([1, 2, 255], dtype=torch.uint8),
        "step": torch.tensor(7),
        "half": torch.tensor([0.5], dtype=torch.bfloat16),
    }
    return State(tensors, {"round": 3, "losses": [0.1, None, float("inf")], "name": "Köln", "big": 2**120})


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.safetensors"
    checkpoint.save(path, state())
    back = checkpoint.load(path)
    assert back.numbers == state().numbers
    assert back.tensors.keys() == state().tensors.keys()
    for name, tensor in state().tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)
    assert safetensors.torch.load_file(path).keys() == state().tensors.keys()


def test_writing_to_loaded_tensors_changes_no_file_and_a_new_file_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, state())
    one, other = checkpoint.load(path), checkpoint.load(path)
    one.tensors["weights"].zero_()
    assert torch.equal(other.tensors["weights"], state().tensors["weights"])
    checkpoint.save(path, State({"weights": torch.ones(2, 3)}))
    assert torch.equal(other.tensors["weights"], state().tensors["weights"])


def test_torn_and_foreign_files_are_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, state())
    whole = path.read_bytes()
    contents = [whole[:cut] for cut in range(0, len(whole), 7)]
    contents += [whole + b"x", b"PK\3\4 pickle", safetensors.torch.save({"a": torch.ones(1)})]
    contents += [safetensors.torch.save({"a": torch.ones(1)}, {"fedmt": text}) for text in ("no json", "[1]")]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"a\.safetensors: not a checkpoint of fedmt: ") as caught:
            checkpoint.load(path)
        assert "\n" not in str(caught.value)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, state())
    with pytest.raises(TypeError):
        checkpoint.save(path, State({}, {"round": object()}))
    assert checkpoint.load(path).numbers["round"] == 3


def test_random_generators_go_on_where_they_stood(tmp_path: Path) -> None:
    def draw() -> tuple[list[float], list[float], list[float]]:
        return torch.randn(3).tolist(), np.random.randn(3).tolist(), [random.gauss(0, 1) for _ in range(3)]

    draw()
    checkpoint.save(tmp_path / "r.safetensors", checkpoint.randomness())
    expected = draw()
    draw()
    checkpoint.restore_randomness(checkpoint.load(tmp_path / "r.safetensors"))
    assert draw() == expected


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_shelf_holds_states_by_name(tmp_path: Path, on_disk: bool) -> None:
    kept = shelf(tmp_path if on_disk else None, "run", "alone:../a")
    assert kept.get("fit") is None
    kept.drop("fit")
    kept.put("fit", State({}, {"round": 1}))
    kept.put("fit", State({}, {"round": 2}))
    kept.put("best-1", State())
    found = kept.get("fit")
    assert found is not None
    assert found.numbers == {"round": 2}
    assert sorted(kept.names()) == ["best-1", "fit"]
    kept.drop("fit")
    assert kept.get("fit") is None
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if on_disk else [])


def test_a_shelf_sweeps_what_a_killed_write_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".fit.safetensors.abc.part").write_bytes(b"half")
    (tmp_path / "fit.safetensors").write_bytes(b"x")
    Shelf(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fit.safetensors"]
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Shelf(tmp_path).put("other", State())
    assert [path.name for path in tmp_path.iterdir()] == ["fit.safetensors"]
