"""An update says what it holds, and what is wrong with it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedmt.exchange.update import Update, change, mismatch, unfinite


def engine() -> dict[str, Tensor]:
    return {"a": torch.zeros(2, 3), "b": torch.ones(4)}


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_is_finite_and_above_nought(weight: float) -> None:
    with pytest.raises(ValueError, match="weight is above 0"):
        Update(engine(), weight)


def test_a_renamed_update_keeps_its_weight_metrics_and_masks() -> None:
    mask = torch.tensor([True, False, False, True])
    part = Update({"b": engine()["b"]}, 3.0, {"loss": 0.5}, {"b": mask}).renamed(lambda name: f"g/{name}")
    assert list(part.tensors) == list(part.masks) == ["g/b"]
    assert (part.parameters, part.weight, part.metrics) == (2, 3.0, {"loss": 0.5})


def test_names_and_shapes_are_held_against_the_engine() -> None:
    assert mismatch(engine(), engine(), whole=True) is None
    assert mismatch({"b": torch.ones(4)}, engine(), whole=False) is None
    assert mismatch({}, engine(), whole=False) is None
    assert mismatch({"b": torch.ones(4)}, engine(), whole=True) == "1 of 2 tensors missing, the first is 'a'"
    assert mismatch({"x\n": torch.ones(1)}, engine(), whole=False) == r"unknown tensor 'x\n'"
    assert mismatch({"b": torch.ones(2, 2)}, engine(), whole=False) == "tensor 'b' has shape [2, 2], not [4]"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_names_its_tensor(value: float) -> None:
    tensors = {"a": torch.zeros(100, 1000), "empty": torch.empty(0), "b": torch.full((3,), 3e38)}
    assert unfinite(tensors) is None
    tensors["b"][1] = value
    assert unfinite(tensors) == "b"


def test_the_change_is_the_euclidean_norm_over_all_tensors() -> None:
    changed = {"a": torch.full((2, 3), 2.0), "b": torch.tensor([1.0, 1.0, 1.0, 6.0])}
    assert change(Update(changed), engine()) == 7.0  # √(6·2² + 5²)
    # Squares beyond fp32 do not overflow, and more than one piece is counted.
    assert change(Update({"a": torch.full((100_000,), 1e25)}), {"a": torch.zeros(100_000)}) == pytest.approx(
        1e25 * math.sqrt(1e5), rel=1e-6
    )
