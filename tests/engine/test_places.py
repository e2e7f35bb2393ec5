from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from fedmt.choices import PartAdapters
from fedmt.engine import adapters, engine
from fedmt.engine.places import Place, places
from fedmt.errors import EngineError
from tests.engine import tiny


def counted(model: PreTrainedModel, **wanted: object) -> int:
    """Parameters that training can change whose place has all of these."""
    where = places(model)
    return sum(
        tensor.numel()
        for name, tensor in model.named_parameters()
        if tensor.requires_grad and all(getattr(where[name], key) == value for key, value in wanted.items())
    )


@pytest.fixture(scope="module")
def mbart50() -> PreTrainedModel:
    with torch.device("meta"):
        return MBartForConditionalGeneration(MBartConfig(vocab_size=250054))


@pytest.fixture(scope="module")
def transformer_base() -> PreTrainedModel:
    size = engine.SIZES["base"]
    with torch.device("meta"):
        return MarianMTModel(
            MarianConfig(
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
        )


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_every_tensor_has_a_place(kind: str, tmp_path: Path) -> None:
    made = engine.load(tiny.make(kind, tmp_path / kind))
    where = places(made.model)
    assert set(made.tensors()) <= set(where)
    counts = Counter((place.side, place.layer, place.role) for place in where.values())
    for side in ("encoder", "decoder"):
        for layer in (0, 1):
            for role in ("attention", "feedforward", "norm"):
                assert counts[side, layer, role] > 0
    assert {layer for side, layer, role in counts if role == "cross_attention"} == {0, 1}
    assert not [place for place in where.values() if place.side == "encoder" and place.role == "cross_attention"]
    assert counts["shared", None, "embedding"] == 1
    for place in where.values():
        assert (place.end is None) == (place.layer is not None or place.side == "shared"), place
    if kind in ("t5", "mt5"):
        assert where["encoder.final_layer_norm.weight"] == Place("encoder", None, "norm", "output")


def test_a_layer_of_transformer_base_has_the_parameters_of_the_papers(transformer_base: PreTrainedModel) -> None:
    # Attention: 4 (512² + 512); feed-forward: 2 · 512 · 2048 + 2048 + 512; each norm: 2 · 512.
    attention, feedforward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    for layer in range(6):
        assert counted(transformer_base, side="encoder", layer=layer) == attention + feedforward + 2 * norm == 3_152_384
        assert (
            counted(transformer_base, side="decoder", layer=layer)
            == 2 * attention + feedforward + 3 * norm
            == 4_204_032
        )


def test_the_norms_of_mbart50_are_131072_parameters(mbart50: PreTrainedModel) -> None:
    # 12 × 2 in the encoder's layers, 12 × 3 in the decoder's, and on each side one behind the embedding and one last.
    assert counted(mbart50, role="norm") == (12 * 2 + 12 * 3 + 2 * 2) * 2 * 1024 == 131_072
    assert counted(mbart50, role="norm", side="encoder", layer=None) == 2 * 2 * 1024


def test_the_roles_of_mbart50_add_up_to_the_model(mbart50: PreTrainedModel) -> None:
    roles = ("embedding", "attention", "cross_attention", "feedforward", "norm", "head")
    assert sum(counted(mbart50, role=role) for role in roles) == 610_879_488
    assert counted(mbart50, side="shared") == 250_054 * 1024


def test_nllb_and_t5_count_by_their_shapes() -> None:
    with torch.device("meta"):
        nllb = M2M100ForConditionalGeneration(
            M2M100Config(vocab_size=256206, encoder_layers=12, decoder_layers=12, d_model=1024)
        )
        t5 = T5ForConditionalGeneration(T5Config())
    assert counted(nllb) == 615_073_792
    # No embedding norm in M2M100: a last norm on each side only.
    assert counted(nllb, role="norm") == (12 * 2 + 12 * 3 + 2) * 2 * 1024
    # T5's norms have no bias, and the relative positions of each side belong to its first layer's attention.
    assert counted(t5, role="norm") == (6 * 2 + 6 * 3 + 2) * 512
    assert counted(t5, side="encoder", layer=0, role="attention") == 4 * 512 * 512 + 32 * 8
    assert counted(t5, side="encoder", layer=1, role="attention") == 4 * 512 * 512


def test_names_are_placed_as_a_reader_would(mbart50: PreTrainedModel) -> None:
    where = places(mbart50)
    assert where["model.shared.weight"] == Place("shared", None, "embedding")
    assert where["model.encoder.layernorm_embedding.weight"] == Place("encoder", None, "norm", "input")
    assert where["model.decoder.embed_positions.weight"] == Place("decoder", None, "embedding", "input")
    assert where["model.encoder.layers.11.fc2.bias"] == Place("encoder", 11, "feedforward")
    assert where["model.decoder.layers.3.encoder_attn.q_proj.weight"] == Place("decoder", 3, "cross_attention")
    assert where["model.decoder.layers.3.encoder_attn_layer_norm.bias"] == Place("decoder", 3, "norm")
    assert where["model.decoder.layer_norm.weight"] == Place("decoder", None, "norm", "output")
    assert where["final_logits_bias"] == Place("decoder", None, "head", "output")


def test_an_output_apart_from_the_embedding_is_the_head(tmp_path: Path) -> None:
    where = places(engine.load(tiny.make("mt5", tmp_path / "mt5")).model)
    assert where["lm_head.weight"] == Place("decoder", None, "head", "output")


def test_what_a_part_adds_has_a_place() -> None:
    made = engine.load(tiny.folder("opus"))
    adapters.insert(made.model, PartAdapters(kind="adapters", width=2), seed=1)
    where = places(made.model)
    assert where["model.encoder.layers.0.fc2.adapter.down.weight"] == Place("encoder", 0, "adapter")
    assert where["model.decoder.layers.1.encoder_attn.adapter.up.bias"] == Place("decoder", 1, "adapter")
    assert where["model.decoder.layers.1.encoder_attn.q_proj.weight"] == Place("decoder", 1, "cross_attention")


def test_a_layer_is_a_controller_where_the_configuration_says_so() -> None:
    made = engine.load(tiny.folder("opus"))
    made.model.config.fedmt = {"controllers": {"encoder": [1], "decoder": []}}
    where = places(made.model)
    assert {place.role for place in where.values() if (place.side, place.layer) == ("encoder", 1)} == {"controller"}
    assert where["model.encoder.layers.1.fc1.bias"] == Place("encoder", 1, "controller")
    assert [place.side for place in where.values() if place.role == "controller"] == ["encoder"] * 16


def test_an_unknown_architecture_is_refused() -> None:
    with torch.device("meta"):
        bert = BertModel(BertConfig(num_hidden_layers=1))
    with pytest.raises(EngineError, match=r"bert: an unknown architecture; allowed are marian, mbart"):
        places(bert)


def test_an_unknown_tensor_is_refused(mbart50: PreTrainedModel) -> None:
    mbart50.model.encoder.extra = torch.nn.Linear(2, 2)
    try:
        with pytest.raises(EngineError, match=r"model\.encoder\.extra\.weight"):
            places(mbart50)
    finally:
        del mbart50.model.encoder.extra
