from collections import Counter
from typing import Any

import pytest
import torch
from transformers import MBartConfig, MBartForConditionalGeneration

from fedmt.choices import PartAdapters
from fedmt.engine import adapters, engine
from fedmt.engine.engine import Engine
from fedmt.engine.extension import counts, extend, shared, trained, working
from fedmt.engine.places import places
from tests.engine import tiny
from tests.engine.test_decoder import found

KINDS = ("scratch", "opus", "mbart50", "m2m100", "nllb")


def part(**settings: Any) -> PartAdapters:
    return PartAdapters(**{"kind": "adapters", "width": 4, **settings})


def mbart50() -> Engine:
    """Of its real size, and without a single number."""
    with torch.device("meta"):
        model = MBartForConditionalGeneration(MBartConfig(vocab_size=250054))
    return Engine(model, tiny.learnt("mbart50").vocabulary)


def loaded(kind: str) -> Engine:
    """One's own copy of the engine that has learnt something."""
    made = engine.load(tiny.folder(kind))
    made.load_tensors(tiny.learnt(kind).tensors())
    return made


def warped(made: Engine, seed: int = 5) -> Engine:
    """Everything that the part adds, moved away from where it begins."""
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in made.tensors().items():
        if ".adapter." in name:
            tensor.add_(torch.empty(tensor.shape).normal_(0.0, 0.3, generator=draw))
    return made


# ── the paper's figures ──


def test_liu_et_al_train_8056576_parameters_of_mbart50() -> None:
    made = mbart50()
    assert extend(made, PartAdapters(kind="adapters"), seed=1) == []
    # One adapter: 1024·64 + 64 down, 64·1024 + 1024 up. Two in an encoder's layer, three in a decoder's.
    inserted, norms = 12 * (2 + 3) * (2 * 1024 * 64 + 64 + 1024), (12 * (2 + 3) + 2) * 2 * 1024
    wanted = PartAdapters(kind="adapters")
    assert counts(made, wanted) == {
        "trained": 8_056_576,
        "shared": inserted + norms,
        "total": 610_879_488 + inserted,
        "total_without_embedding": 610_879_488 + inserted - (250_054 + 2 * 1026) * 1024,
    }
    assert trained(made, wanted) == shared(made, wanted) == working(made, wanted)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"norms": False}, 60 * 132_160),
        ({"sides": "encoder"}, 24 * 132_160 + 25 * 2048),
        ({"sides": "decoder"}, 36 * 132_160 + 37 * 2048),
        ({"third": "input"}, 20 * 132_160 + 20 * 2048),
        ({"third": "middle"}, 20 * 132_160 + 20 * 2048),
        ({"third": "output"}, 20 * 132_160 + 22 * 2048),
        ({"third": "output", "sides": "decoder", "norms": False}, 12 * 132_160),
    ],
)
def test_what_is_pruned_is_neither_trained_nor_shared(settings: dict[str, Any], expected: int) -> None:
    made, wanted = mbart50(), PartAdapters(kind="adapters", **settings)
    extend(made, wanted, seed=1)
    assert counts(made, wanted)["trained"] == counts(made, wanted)["shared"] == expected


# ── where ──


def test_thirds_are_those_of_the_paper_and_even_otherwise() -> None:
    assert [list(adapters.third(which, 12)) for which in adapters.THIRDS] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert list(adapters.third("all", 5)) == [0, 1, 2, 3, 4]
    for layers in range(3, 40):
        each = [adapters.third(which, layers) for which in adapters.THIRDS]
        assert [layer for one in each for layer in one] == list(range(layers))
        assert max(map(len, each)) - min(map(len, each)) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_has_one(kind: str) -> None:
    made = engine.load(tiny.folder(kind))
    extend(made, part(), seed=1)
    where = places(made.model)
    each = Counter((where[name].side, where[name].layer) for name in made.tensors() if where[name].role == "adapter")
    assert each == {(side, layer): 4 * of for side, of in (("encoder", 2), ("decoder", 3)) for layer in (0, 1)}
    assert {name for name in made.tensors() if where[name].role == "adapter"} <= set(trained(made, part()))


# ── how they begin ──


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_translates_as_before_bit_for_bit(kind: str) -> None:
    base, made = tiny.learnt(kind), loaded(kind)
    extend(made, part(), seed=1)
    assert made.parameters > base.parameters
    assert made.hash != base.hash
    for beam in (1, 3):
        assert found(made, beam) == found(base, beam)


def test_the_seed_and_the_name_decide_and_nothing_else_does() -> None:
    def drawn(seed: int, **settings: Any) -> dict[str, torch.Tensor]:
        made = engine.load(tiny.folder("opus"))
        before = torch.get_rng_state()
        extend(made, part(**settings), seed)
        assert torch.equal(torch.get_rng_state(), before), "the program's own random state is left alone"
        return {name: tensor for name, tensor in made.tensors().items() if ".adapter." in name}

    both, decoder, other = drawn(1), drawn(1, sides="decoder"), drawn(2)
    assert set(decoder) == {name for name in both if ".decoder." in name}
    downs = [name for name in both if name.endswith("down.weight")]
    for name in both:
        if name in downs:
            assert not torch.equal(both[name], other[name])
            assert 0.1 < both[name].std() * 16**0.5 < 2
        else:
            assert not both[name].any()
        assert name not in decoder or torch.equal(both[name], decoder[name])
    assert len({tuple(both[name].flatten().tolist()) for name in downs}) == len(downs)


# ── what they compute ──


@pytest.mark.parametrize("name", ["self_attn", "fc2"])
def test_an_adapter_is_what_the_paper_says(name: str) -> None:
    made = engine.load(tiny.folder("mbart50"))
    module = made.model.model.encoder.layers[1].get_submodule(name)
    x = torch.randn(2, 3, 32 if name == "fc2" else 16)
    with torch.no_grad():
        plain = module(x) if name == "fc2" else module(x)[0]
        extend(made, part(), seed=1)
        warped(made)
        ours = module(x) if name == "fc2" else module(x)[0]
        down, up = module.adapter.down, module.adapter.up
        added = (plain @ down.weight.T + down.bias).clamp_min(0) @ up.weight.T + up.bias
    assert ours.allclose(plain + added, atol=1e-5)
    assert not ours.allclose(plain, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_take_part_with_cache_and_without(kind: str) -> None:
    base, made = tiny.learnt(kind), loaded(kind)
    extend(made, part(), seed=1)
    warped(made)
    cached, uncached = found(made, 1), found(made, 1, cached=False)
    assert [one.ids for one in cached] == [one.ids for one in uncached]
    assert [one.score for one in cached] == pytest.approx([one.score for one in uncached], abs=1e-5)
    assert [one.score for one in cached] != pytest.approx([one.score for one in found(base, 1)], abs=1e-3)
