from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmt.errors import Failure, RunError
from fedmt.memory import quantise
from fedmt.memory.quantise import Floats, Quantiser, faiss
from fedmt.recipe import Memory


def states(count: int = 400, width: int = 16, seed: int = 0) -> Floats:
    """Around twenty places, as a decoder's states are, with more to them in some directions than in others."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(20, width))
    made = centres[draw.integers(20, size=count)] + 0.3 * draw.normal(size=(count, width))
    return (made * np.linspace(2, 0.2, width) + 1).astype(np.float32)


def settings(**changes: Any) -> Memory:
    return Memory.model_validate({"lists": 8, "code_bytes": 4, "projection": "none", **changes})


def trained(**changes: Any) -> Quantiser:
    return quantise.train([states()[:150], states()[150:]], settings(**changes), seed=1)


def same(ours: Iterable[Any], theirs: Iterable[Any]) -> bool:
    """Of several arrays, whether each equals the other's."""
    return all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "changes",
    [{}, {"projection": "pca", "dimension": 8}, {"projection": "opq"}, {"projection": "opq", "dimension": 12}],
    ids=str,
)
def test_a_quantiser_comes_back_from_its_folder_and_codes_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    made = trained(**changes)
    made.save(tmp_path)
    read = Quantiser.load(tmp_path, made.hash)
    assert read.hash == made.hash
    assert read.about() == made.about()
    assert read.about()["dimension"] == changes.get("dimension", 16)
    assert same(made.encode(states(seed=5)), read.encode(states(seed=5)))


@pytest.mark.parametrize("lists", [1, 8, 300])
def test_a_code_is_what_faiss_makes_of_the_state(lists: int) -> None:
    """Lists of no byte, one and two."""
    made = trained(lists=lists)
    ids, codes = made.encode(states(seed=3))
    assert ids.max() < lists
    assert len(np.unique(ids)) > lists // 4
    assert codes.shape == (400, 4)
    whole = made.joined(ids, codes)
    assert (whole == made.empty().sa_encode(states(seed=3))).all()
    # The nearest centroid, computed apart.
    apart = ((states(seed=3)[:, None] - made.lists) ** 2).sum(-1)
    assert (apart[np.arange(400), ids] <= apart.min(1) + 1e-4).all()


def test_neighbours_by_codes_are_mostly_those_by_states() -> None:
    keys, asked = states(400), states(50, seed=8)
    true = ((asked[:, None] - keys) ** 2).sum(-1).argsort(1)[:, :10]
    for changes, wanted in (({}, 0.5), ({"projection": "opq"}, 0.5), ({"projection": "pca", "dimension": 12}, 0.45)):
        made = trained(**changes)
        index = made.empty()
        index.add_sa_codes(made.joined(*made.encode(keys)))
        index.nprobe = 8
        _, found = index.search(made.project(asked), 10)
        recall = np.mean([len(set(ours) & set(best)) / 10 for ours, best in zip(found, true, strict=True)])
        assert recall > wanted, changes


def test_training_is_the_same_every_time_and_another_seed_is_another_quantiser() -> None:
    again = [quantise.train([states()], settings(sample=300), seed) for seed in (1, 1, 2)]
    assert again[0].hash == again[1].hash
    assert again[0].hash != again[2].hash


def test_faiss_has_the_threads_that_torch_has() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            trained().empty()
            assert faiss.omp_get_max_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_no_more_states_than_the_sample_are_learnt_from_and_all_are_as_likely() -> None:
    rows = np.arange(5000, dtype=np.float32)[:, None]
    drawn = quantise._sample((rows[start : start + 70] for start in range(0, 5000, 70)), 1000, seed=0)[:, 0]
    assert len(drawn) == len(set(drawn)) == 1000
    assert abs(drawn.mean() - 2500) < 150
    assert (np.sort(drawn) == drawn).all()


def test_the_lists_are_as_many_as_the_text_is_good_for() -> None:
    assert trained(lists=None).list_count == 8  # 400 states, 39 a list: 10
    assert trained(lists=None, sample=256).list_count == 4


# ── refusals ──


def test_another_quantiser_than_the_one_agreed_on_is_refused(tmp_path: Path) -> None:
    made = trained()
    made.save(tmp_path)
    with pytest.raises(RunError, match=r"another quantiser than the one agreed on.*allowed is 0000"):
        Quantiser.load(tmp_path, "0" * 64)


@pytest.mark.parametrize("name", ["lists", "codebook", "projection", "shift"])
def test_a_changed_number_is_refused(name: str, tmp_path: Path) -> None:
    made = trained(projection="pca", dimension=8)
    arrays = {key: torch.from_numpy(array.copy()) for key, array in made.arrays().items()}
    arrays[name].view(-1)[-1] += 1e-3
    quantise.write_sheet(tmp_path, "quantiser", arrays, {"schema": 1, "hash": made.hash})
    with pytest.raises(RunError, match="damaged: its arrays have the hash"):
        Quantiser.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lists": torch.full((8, 16), torch.nan)}, "lists holds what is no finite number"),
        ({"lists": torch.zeros(8, 15)}, "do not fit each other"),
        ({"codebook": torch.zeros(4, 255, 4)}, "do not fit each other"),
        ({"codebook": torch.zeros(4, 1024)}, "codebook must be numbers of fp32 in 3 dimensions"),
        ({"lists": torch.zeros(8, 16, dtype=torch.float64)}, "lists must be numbers of fp32"),
        ({"lists": torch.zeros(0, 16)}, "lists must be numbers"),
        ({"projection": torch.zeros(8, 32)}, "do not fit each other"),
        ({"other": torch.zeros(1)}, "allowed: lists, codebook, projection, shift"),
    ],
)
def test_arrays_that_are_no_quantiser_are_refused(change: dict[str, torch.Tensor], said: str) -> None:
    arrays = {name: torch.from_numpy(array) for name, array in trained().arrays().items()}
    with pytest.raises(RunError, match=said):
        Quantiser.of({**arrays, **change}, "there")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 2}', "{" * 10_000])
def test_a_sheet_that_is_none_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    trained().save(tmp_path)
    (tmp_path / "quantiser.json").write_text(content)
    with pytest.raises(RunError, match="cannot be read as a memory's quantiser") as caught:
        Quantiser.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    trained().save(tmp_path)
    path = tmp_path / "quantiser.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(RunError, match="cannot be read"):
        Quantiser.load(tmp_path)
    path.unlink()
    with pytest.raises(RunError, match="No such file"):
        Quantiser.load(tmp_path)


def test_what_cannot_be_is_said_with_what_can() -> None:
    with pytest.raises(Failure, match="255 states of public text are too few for a quantiser; at least 256"):
        quantise.train([states(255)], settings(), 1)
    with pytest.raises(Failure, match="allowed for this engine: 1, 2, 4, 8, 16, or a projection"):
        quantise.train([states()], settings(code_bytes=5), 1)
    with pytest.raises(Failure, match=r"memory.lists: 500 of 400 states"):
        quantise.train([states()], settings(lists=500), 1)
    with pytest.raises(Failure, match=r"memory.dimension: 20 is more than the engine's width; allowed: at most 16"):
        quantise.train([states()], settings(projection="pca", dimension=20), 1)
    with pytest.raises(Failure, match="takes rows of 16 numbers"):
        trained().encode(states(3, 8))


@pytest.mark.parametrize(
    ("given", "said"),
    [({"dimension": 8}, "nothing is projected"), ({"dimension": 10, "projection": "pca"}, "no multiple of the 4")],
)
def test_a_dimension_that_has_no_sense_is_a_mistake_of_the_recipe(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings(**given)


def test_what_is_written_is_json_and_safetensors(tmp_path: Path) -> None:
    trained().save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quantiser.json", "quantiser.safetensors"]
    assert json.loads((tmp_path / "quantiser.json").read_text())["lists"] == 8
