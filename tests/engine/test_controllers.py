from typing import Any

import pytest
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from fedmt.choices import PartControllers
from fedmt.engine import controllers, engine, steps
from fedmt.engine.engine import SIZES, Engine
from fedmt.engine.extension import counts, extend, mistakes, shared, trained
from fedmt.engine.places import places
from fedmt.errors import EngineError
from tests.engine import tiny
from tests.engine.test_adapters import loaded
from tests.engine.test_decoder import found, generated, sources

KINDS = ("scratch", "opus", "mbart50", "m2m100", "nllb")


def part(**settings: Any) -> PartControllers:
    return PartControllers(**{"kind": "controllers", **settings})


def base() -> Engine:
    """Transformer-base with 8000 pieces, without a single number."""
    size, vocabulary = SIZES["base"], tiny.learnt("scratch").vocabulary
    config = MarianConfig(
        vocab_size=8000,
        pad_token_id=2,
        d_model=size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_ffn_dim=size.inner,
        decoder_ffn_dim=size.inner,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
    )
    with torch.device("meta"):
        return Engine(MarianMTModel(config), vocabulary)


def layers(made: Engine, side: str) -> list[int]:
    """The controllers, as the places have them."""
    found = {place.layer for place in places(made.model).values() if (place.role, place.side) == ("controller", side)}
    return sorted(layer for layer in found if layer is not None)


# ── where ──


@pytest.mark.parametrize(
    ("settings", "layers", "expected"),
    [
        ({}, 6, [1, 6]),
        ({}, 2, [1, 2]),
        ({}, 12, [1, 12]),
        ({"encoder": [1, 7]}, 6, [1, 7]),
        ({"encoder": [7, 3]}, 6, [3, 7]),
        ({"encoder": [-1, 7]}, 6, [0, 7]),
        ({"encoder": [], "decoder": [1]}, 6, []),
        ({"how": "designated"}, 6, [0, 3]),
        ({"how": "designated"}, 2, [0, 1]),
        ({"how": "designated"}, 1, [0]),
        ({"how": "designated", "encoder": [5, 0]}, 6, [0, 5]),
    ],
)
def test_positions_are_those_of_the_final_stack(settings: dict[str, Any], layers: int, expected: list[int]) -> None:
    wanted = part(**settings)
    assert mistakes(wanted, "marian", layers, layers) == []
    assert controllers.positions(wanted, {"encoder": layers, "decoder": layers})["encoder"] == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"encoder": [1, 8]}, "8 is outside the final stack of 8 layers; allowed are -1 to 7"),
        ({"encoder": [7]}, "7 is outside the final stack of 7 layers; allowed are -1 to 6"),
        ({"encoder": [-1, 0]}, "-1 and 0 are the same place, before what was the first layer; name one of them"),
        ({"how": "designated", "encoder": [6]}, "6 is outside the final stack of 6 layers; allowed are 0 to 5"),
    ],
)
def test_a_position_outside_the_final_stack_is_a_mistake(settings: dict[str, Any], expected: str) -> None:
    assert mistakes(part(**settings), "marian", 6, 6) == [("encoder", expected)]
    made = base()
    with pytest.raises(EngineError) as error:
        extend(made, part(**settings), seed=1)
    assert str(error.value) == f"part.encoder: {expected}"
    assert made.model.config.encoder_layers == len(made.model.model.encoder.layers) == 6, "nothing was changed"


def test_a_stack_of_one_layer_needs_positions() -> None:
    assert [key for key, _ in mistakes(part(), "marian", 1, 6)] == ["encoder"]
    assert mistakes(part(encoder=[1]), "marian", 1, 6) == []


def test_a_layer_before_the_first_is_allowed_with_a_warning() -> None:
    for asked in ([-1, 7], [0]):
        warnings = extend(base(), part(encoder=asked), seed=1)
        assert warnings == ["part.encoder: a new layer before the first: Roosta et al. saw such engines diverge"]
    assert extend(base(), part(encoder=[1, 7]), seed=1) == []
    assert extend(base(), part(how="designated", encoder=[0]), seed=1) == []


# ── how much ──


def test_the_costs_of_table_1_by_their_shapes() -> None:
    """Roosta et al. print 94,079,328 parameters of which 15,240,704 are controllers, with a vocabulary of their own."""
    made, wanted = base(), part(encoder=[1, 7], decoder=[1, 7])
    extend(made, wanted, seed=1)
    gates = 4
    found = counts(made, wanted)
    assert found["trained"] == found["shared"] == 2 * 3_152_384 + 2 * 4_204_032 + gates == 14_712_832 + gates
    assert found["total_without_embedding"] == 8 * 3_152_384 + 8 * 4_204_032 + gates
    assert found["total"] == found["total_without_embedding"] + 8000 * 512
    assert found["total_without_embedding"] / found["shared"] == pytest.approx(4.0, abs=1e-5)

    made, wanted = base(), part(how="designated")
    extend(made, wanted, seed=1)
    assert counts(made, wanted)["shared"] == 2 * 3_152_384 + 2 * 4_204_032
    assert counts(made, wanted)["total_without_embedding"] == 6 * 3_152_384 + 6 * 4_204_032


@pytest.mark.parametrize("how", ["inserted", "designated"])
def test_all_or_controllers_are_trained_and_shared(how: str) -> None:
    for trains in ("controllers", "all"):
        for shares in ("controllers", "all"):
            made, wanted = engine.load(tiny.folder("opus")), part(how=how, trains=trains, shares=shares)
            extend(made, wanted, seed=1)
            everything = list(made.tensors())
            few = [name for name in everything if places(made.model)[name].role == "controller"]
            assert 0 < len(few) < len(everything)
            assert trained(made, wanted) == (few if trains == "controllers" else everything)
            assert shared(made, wanted) == (few if shares == "controllers" else everything)


# ── how they begin ──


@pytest.mark.parametrize("where", [{}, {"encoder": [-1, 1, 3], "decoder": [0, 1, 2]}, {"encoder": [], "decoder": [2]}])
@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_translates_as_before_bit_for_bit(kind: str, where: dict[str, list[int]]) -> None:
    plain, made = tiny.learnt(kind), loaded(kind)
    extend(made, part(**where), seed=1)
    assert made.hash != plain.hash
    assert made.model.config.decoder_layers == len(made.model.model.decoder.layers) > 2
    assert made.model.config.num_hidden_layers == made.model.config.encoder_layers
    for side in ("encoder", "decoder"):
        new = [max(0, position) for position in where[side]] if where else [1, 2]
        assert layers(made, side) == new
        kept = [number for number in range(2 + len(new)) if number not in new]
        for old, now in enumerate(kept):
            for name, tensor in plain.model.get_submodule(f"model.{side}.layers.{old}").named_parameters():
                assert torch.equal(made.model.get_parameter(f"model.{side}.layers.{now}.{name}"), tensor)
    for beam in (1, 3):
        assert found(made, beam) == found(plain, beam)


def test_gates_stand_only_where_norms_stand_behind() -> None:
    for kind in KINDS:
        for initial in ("identity", "copy", "random"):
            made = engine.load(tiny.folder(kind))
            extend(made, part(initial=initial), seed=1)
            gates = [name for name in made.tensors() if name.endswith(".gate")]
            assert len(gates) == (4 if kind in ("scratch", "opus") and initial == "identity" else 0)
            assert set(gates) <= set(trained(made, part(initial=initial)))


def test_a_copy_is_of_the_layer_before_it() -> None:
    made = loaded("mbart50")
    old = [dict(layer.named_parameters()) for layer in tiny.learnt("mbart50").model.model.decoder.layers]
    extend(made, part(initial="copy", decoder=[-1, 2, 4]), seed=1)
    copied = [0, 0, 0, 1, 1]
    for layer, of in zip(made.model.model.decoder.layers, copied, strict=True):
        assert all(torch.equal(tensor, old[of][name]) for name, tensor in layer.named_parameters())
    pointers = {tensor.data_ptr() for tensor in made.tensors().values()}
    assert len(pointers) == len(made.tensors()), "a copy, not the same tensor"


def test_random_layers_are_the_seeds_and_their_names() -> None:
    def drawn(seed: int, **where: list[int]) -> dict[str, torch.Tensor]:
        made = engine.load(tiny.folder("opus"))
        before = torch.get_rng_state()
        extend(made, part(initial="random", **where), seed)
        assert torch.equal(torch.get_rng_state(), before), "the program's own random state is left alone"
        return made.tensors()

    one, again, fewer, other = drawn(1), drawn(1), drawn(1, encoder=[], decoder=[1]), drawn(2)
    name = "model.decoder.layers.1.encoder_attn.q_proj.weight"
    assert torch.equal(one[name], again[name])
    assert torch.equal(one[name], fewer[name])
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one[name.replace(".1.", ".2.")])
    assert bool((one["model.decoder.layers.1.final_layer_norm.weight"] == 1).all())
    assert not one["model.decoder.layers.1.fc1.bias"].any()
    assert one[name].std() == pytest.approx((2 / 32) ** 0.5, rel=0.2)


# ── decoding ──


def opened(made: Engine) -> Engine:
    """Moved off identity, as training does: gates ajar, and what was zero no longer is."""
    draw = torch.Generator().manual_seed(4)
    for name, tensor in made.tensors().items():
        if name.endswith(".gate"):
            tensor.fill_(0.6)
        elif name.endswith(("out_proj.weight", "fc2.weight")) and not tensor.any():
            tensor.copy_(torch.empty(tensor.shape).normal_(0.0, 0.3, generator=draw))
    return made


def apart(made: Engine, monkeypatch: pytest.MonkeyPatch) -> float:
    """The largest difference of a log-probability with cache and without, in double precision, over twelve steps.

    With the engine's own attention: that of `stepping` rounds its softmax to single precision.
    """
    rows, pad = sources(made, 6), made.vocabulary.pad
    width = max(map(len, rows))
    source = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    tokens = torch.randint(5, 60, (len(rows), 12), generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(steps, "_kept", lambda states: states)
    monkeypatch.setattr(steps, "_logits", lambda model, hidden: model.lm_head(hidden))
    made.model.double()
    worst = 0.0
    with torch.inference_mode():
        states = [steps.Steps(made.model, source, pad, cached) for cached in (True, False)]
        for state in states:
            state._bias = torch.zeros(len(rows), 1, 1, width).double().masked_fill((source == pad)[:, None, None], -1e9)
        for token in tokens.T[:, :, None]:
            first, second = (state.step(token)[1].log_softmax(-1) for state in states)
            worst = max(worst, float((first - second).abs().max()))
    return worst


@pytest.mark.parametrize("initial", ["identity", "copy", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_decoding_is_uncached_decoding(kind: str, initial: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loaded(kind)
    extend(made, part(initial=initial, encoder=[1], decoder=[0, 2, 3]), seed=1)
    opened(made)
    assert [one.score for one in found(made, 1)] != pytest.approx([one.score for one in found(tiny.learnt(kind), 1)])
    cached, uncached = found(made, 2), found(made, 2, cached=False)
    assert [one.ids for one in cached] == [one.ids for one in uncached]
    assert apart(made, monkeypatch) < 1e-9


def test_the_test_above_would_see_a_number_that_was_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = loaded("scratch")
    extend(made, part(initial="copy", decoder=[1]), seed=1)
    for attention in (made.model.model.decoder.layers[2].self_attn, made.model.model.decoder.layers[2].encoder_attn):
        attention.layer_idx = 1
    assert apart(made, monkeypatch) > 1e-2


@pytest.mark.parametrize("kind", ["scratch", "mbart50", "m2m100"])
def test_hugging_faces_generate_finds_the_same_with_another_number_of_layers_a_side(kind: str) -> None:
    made = loaded(kind)
    extend(made, part(encoder=[], decoder=[1, 3]), seed=1)
    opened(made)
    ids, scores = generated(made, 3, 1.0)
    ours = found(made, 3)
    assert isinstance(made.model.generation_config, GenerationConfig)
    assert [one.ids for one in ours] == ids
    assert [one.score for one in ours] == pytest.approx(scores, abs=1e-4)
