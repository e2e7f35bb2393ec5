"""Several engines as one."""

from __future__ import annotations

import copy

import pytest
import torch

from fedmt import recipe
from fedmt.engine.decoder import search
from fedmt.engine.device import choose
from fedmt.engine.ensemble import Ensemble, Voice
from fedmt.engine.steps import Steps, stepping
from tests.engine import tiny

MACHINE = choose(recipe.Compute(device="cpu", precision="fp32", threads=1))
SETTINGS = recipe.Decode(longest=20)


def found(kind: str, voices: list[Voice], beam: int) -> list[list[int]]:
    made = tiny.learnt(kind)
    sources = made.vocabulary.encode_source(tiny.SENTENCES[:12], tiny.DIRECTION)
    settings = SETTINGS.model_copy(update={"beam": beam})
    prefix = made.vocabulary.prefix(tiny.DIRECTION)
    return [one.ids for one in search(made, sources, prefix, settings, MACHINE, voices=voices)]


def other(kind: str) -> Voice:
    model = copy.deepcopy(tiny.learnt(kind).model)
    torch.manual_seed(3)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.3 * tensor.std())
    return Voice(model)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kind", ["scratch", "mbart50", "t5"])
def test_an_engine_twice_is_the_engine(kind: str, beam: int) -> None:
    model = tiny.learnt(kind).model
    voices = [Voice(model, 0.3), Voice(copy.deepcopy(model), 0.7)]
    assert found(kind, voices, beam) == found(kind, [], beam)


def test_a_voice_without_weight_says_nothing() -> None:
    model = tiny.learnt("scratch").model
    assert found("scratch", [Voice(model), Voice(other("scratch").model, 1e-9)], 4) == found("scratch", [], 4)
    assert found("scratch", [Voice(model, 1e-9), other("scratch")], 4) != found("scratch", [], 4)


def test_probabilities_are_averaged() -> None:
    made, second = tiny.learnt("scratch"), other("scratch")
    source = torch.tensor(made.vocabulary.encode_source(tiny.SENTENCES[:1], tiny.DIRECTION))
    tokens = torch.tensor([made.vocabulary.prefix(tiny.DIRECTION)])
    pad = made.vocabulary.pad
    with stepping(made.model, MACHINE), stepping(second.model, MACHINE):
        together = Ensemble([Voice(made.model, 1.0), Voice(second.model, 3.0)], source, pad).step(tokens)[1]
        apart = [Steps(model, source, pad).step(tokens)[1].softmax(-1) for model in (made.model, second.model)]
    assert torch.allclose(together.exp(), 0.25 * apart[0] + 0.75 * apart[1], atol=1e-6)
