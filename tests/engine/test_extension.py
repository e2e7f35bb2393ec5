import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel

from fedmt.choices import Part, PartAll
from fedmt.corpus.batches import Examples
from fedmt.corpus.pairs import Direction
from fedmt.engine import engine, extension
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.extension import extend, load_extension, mistakes, save_extension, shared, trained, working
from fedmt.engine.trainer import Pace, Trainer
from fedmt.errors import EngineError
from fedmt.recipe import Train
from tests.engine import tiny
from tests.engine.test_adapters import loaded
from tests.engine.test_decoder import found

FP32 = Machine(torch.device("cpu"), "fp32", 1)
KINDS = ("scratch", "opus", "mbart50", "m2m100")


def part(**settings: Any) -> Part:
    made: Part = TypeAdapter(Part).validate_python(settings)
    return made


PARTS = {
    "adapters": part(kind="adapters", width=4),
    "decoder": part(kind="adapters", width=3, sides="decoder", norms=False),
    "inserted": part(kind="controllers"),
    "copied": part(kind="controllers", initial="copy", encoder=[], decoder=[2]),
    "A-C": part(kind="controllers", shares="all", encoder=[1], decoder=[1]),
    "designated": part(kind="controllers", how="designated", encoder=[1], decoder=[]),
}


def extended(kind: str, of: Part) -> Engine:
    made = loaded(kind)
    extend(made, of, seed=3)
    return made


def fitted(made: Engine, of: Part, steps: int = 1, machine: Machine = FP32) -> Engine:
    """Trained a little, of its tensors T only."""
    sources = made.vocabulary.encode_source(tiny.SENTENCES[:8], tiny.DIRECTION)
    targets = made.vocabulary.encode_target(tiny.SENTENCES[20:28], tiny.DIRECTION)
    start = made.vocabulary.prefix(tiny.DIRECTION)[0]
    trainer = Trainer(made, Train(batch_tokens=2000, peak=0.01, warmup=0), machine, trained(made, of))
    trainer.fit(Examples.of(sources, targets, 60, start), epochs=steps, seed=1, pace=Pace(0.01, 0), total=steps)
    return made


# ── training ──


@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_training_moves_what_is_trained_and_not_a_bit_of_the_rest(kind: str, which: str) -> None:
    made, of = extended(kind, PARTS[which]), PARTS[which]
    made.model.config.encoder_layerdrop = made.model.model.encoder.layerdrop = 0.0
    made.model.model.decoder.layerdrop = 0.0
    before = {name: tensor.clone() for name, tensor in made.tensors().items()}
    fitted(made, of, steps=4)
    moved = {name for name, tensor in made.tensors().items() if not torch.equal(tensor, before[name])}
    # A key's bias shifts all scores of a query alike: softmax does not see it, and its gradient is but rounding.
    assert {name for name in trained(made, of) if "k_proj.bias" not in name} <= moved <= set(trained(made, of))
    assert all(parameter.requires_grad for name, parameter in made.model.named_parameters() if name in before)


def test_a_gate_moves_at_the_first_step_and_its_layer_at_the_second() -> None:
    made = extended("scratch", PARTS["inserted"])
    before = {name: tensor.clone() for name, tensor in made.tensors().items()}
    fitted(made, PARTS["inserted"])
    moved = {name for name, tensor in made.tensors().items() if not torch.equal(tensor, before[name])}
    assert {name for name in before if name.endswith(".gate")} <= moved


# ── what is trained, and shared ──


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_whole_engine_is_trained_and_shared_without_a_part(kind: str) -> None:
    made = engine.load(tiny.folder(kind))
    before = made.hash
    assert extend(made, PartAll(), seed=1) == []
    assert made.hash == before
    assert not hasattr(made.model.config, "fedmt")
    assert trained(made, PartAll()) == shared(made, PartAll()) == working(made, PartAll()) == list(made.tensors())


def test_what_a_silo_works_on_is_trained_or_shared() -> None:
    made, of = extended("opus", PARTS["A-C"]), PARTS["A-C"]
    assert len(trained(made, of)) < len(shared(made, of))
    assert working(made, of) == shared(made, of) == list(made.tensors())
    reverse = part(kind="controllers", trains="all", encoder=[1], decoder=[1])
    assert working(made, reverse) == list(made.tensors())
    assert shared(made, reverse) == trained(made, of)


# ── mistakes ──


@pytest.mark.parametrize("kind", ["t5", "mt5"])
@pytest.mark.parametrize("which", ["adapters", "inserted", "designated"])
def test_t5_is_not_extended(kind: str, which: str) -> None:
    made = engine.load(tiny.folder(kind))
    with pytest.raises(EngineError, match=rf"^part\.kind: .* than {kind}; allowed are marian, mbart, m2m_100$"):
        extend(made, PARTS[which], seed=1)


def test_a_stack_of_two_layers_has_no_thirds() -> None:
    wanted = part(kind="adapters", third="middle")
    expected = "the encoder has 2 layers and so no thirds; allowed is all"
    assert mistakes(wanted, "marian", 2, 3) == [("third", expected)]
    assert mistakes(part(kind="adapters", third="middle", sides="decoder"), "marian", 2, 3) == []
    assert len(mistakes(wanted, "marian", 2, 2)) == 2
    with pytest.raises(EngineError, match=rf"^part\.third: {expected}; part\.third: the decoder"):
        extend(engine.load(tiny.folder("scratch")), wanted, seed=1)


@pytest.mark.parametrize("which", PARTS)
def test_a_part_without_mistakes_has_none(which: str) -> None:
    assert mistakes(PARTS[which], "mbart", 6, 6) == []
    assert mistakes(PartAll(), "t5", 0, 0) == []


# ── extending again ──


@pytest.mark.parametrize("which", ["adapters", "inserted", "copied"])
def test_what_is_there_already_stays_as_it_is(which: str) -> None:
    made = fitted(extended("opus", PARTS[which]), PARTS[which])
    before, description = made.hash, made.model.config.fedmt
    extend(made, PARTS[which], seed=99)
    assert (made.hash, made.model.config.fedmt) == (before, description)
    extend(made, PartAll(), seed=99)
    assert (made.hash, made.model.config.fedmt) == (before, description)


def test_another_extension_upon_an_extension_is_refused() -> None:
    for first, second in [("adapters", "decoder"), ("adapters", "inserted"), ("inserted", "copied")]:
        made = extended("opus", PARTS[first])
        before = made.hash
        with pytest.raises(EngineError, match=r"^the engine is already extended by .*; begin with its base$"):
            extend(made, PARTS[second], seed=1)
        assert made.hash == before
    made = extended("opus", PARTS["designated"])
    extend(made, PARTS["adapters"], seed=1)
    assert any(".adapter." in name for name in made.tensors())


def test_an_engine_extended_twice_has_no_base(tmp_path: Path) -> None:
    made = extended("opus", PARTS["adapters"])
    extend(made, part(kind="adapters", width=4, norms=False), seed=1)
    with pytest.raises(EngineError, match="extended twice"):
        save_extension(made, tmp_path / "extension", "base")


# ── saved whole ──


@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_extended_engine_is_saved_and_loaded_as_any_other(kind: str, which: str, tmp_path: Path) -> None:
    made = fitted(extended(kind, PARTS[which]), PARTS[which], steps=2)
    made.describe(directions=(Direction("de", "en"),), origin="here").save(tmp_path / "engine")
    one, two = engine.load(tmp_path / "engine"), engine.load(tmp_path / "engine")
    assert made.hash == one.hash == two.hash
    assert list(one.tensors()) == list(made.tensors())
    assert trained(one, PARTS[which]) == trained(made, PARTS[which])
    assert shared(one, PARTS[which]) == shared(made, PARTS[which])
    assert one.model.config.fedmt == made.model.config.fedmt
    assert one.about.directions == (Direction("de", "en"),)
    assert found(one, 2) == found(made, 2)
    one.save(tmp_path / "again")
    assert engine.load(tmp_path / "again").hash == made.hash


@pytest.mark.parametrize("kind", ["mbart50", "m2m100"])
def test_transformers_alone_reads_new_layers_where_they_need_no_gate(kind: str, tmp_path: Path) -> None:
    made = fitted(extended(kind, PARTS["inserted"]), PARTS["inserted"], steps=2)
    made.save(tmp_path / "engine")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "engine").eval()
    ids = torch.tensor(made.vocabulary.encode_source(tiny.SENTENCES[:1], tiny.DIRECTION))
    with torch.no_grad():
        ours, logits = (model(input_ids=ids, decoder_input_ids=ids).logits for model in (made.model, theirs))
    assert torch.equal(ours, logits)


def test_stacks_of_the_usual_size_which_a_saved_configuration_does_not_name(tmp_path: Path) -> None:
    config = MarianConfig.from_pretrained(tiny.folder("opus"), encoder_layers=11, decoder_layers=9)
    made = Engine(MarianMTModel(config).eval(), tiny.learnt("opus").vocabulary)
    extend(made, part(kind="controllers", encoder=[5], decoder=[1, 2, 3]), seed=1)
    made.save(tmp_path / "engine")
    assert engine.load(tmp_path / "engine").hash == made.hash


def test_sharded_weights_are_found(tmp_path: Path) -> None:
    made = fitted(extended("mbart50", PARTS["adapters"]), PARTS["adapters"])
    made.save(tmp_path / "engine")
    for file in (tmp_path / "engine").glob("*.safetensors"):
        file.unlink()
    made.model.save_pretrained(tmp_path / "engine", max_shard_size="20KB")
    assert len(list((tmp_path / "engine").glob("*.safetensors"))) > 2
    assert engine.load(tmp_path / "engine").hash == made.hash


def tensors_changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


ONE = "model.encoder.layers.0.fc2.adapter.up.weight"
DAMAGE: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "lost": (lambda tensors: tensors.pop(ONE), "lacks 1 of the extension's tensors, "),
    "extra": (
        lambda tensors: tensors.update({ONE.replace(".0.", ".7."): torch.zeros(2)}),
        "has 1 tensors that are not the extension's, ",
    ),
    "shape": (lambda tensors: tensors.update({ONE: torch.zeros(16, 5)}), r"is \[16, 5\], the extension's is \[16, 4\]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_tensor_lost_or_strange_is_one_line(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGE[damage]
    extended("opus", PARTS["adapters"]).save(tmp_path / "engine")
    tensors_changed(tmp_path / "engine", change)
    with pytest.raises(EngineError, match=message) as error:
        engine.load(tmp_path / "engine")
    assert "\n" not in str(error.value)


def described(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    folder = tmp_path / "engine"
    extended("opus", PARTS["inserted"]).save(folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.update(fedmt=7), "fedmt: Input should be"),
        (lambda config: config.update(fedmt={}), "fedmt: part: Field required"),
        (lambda config: config["fedmt"].update(schema=2), "fedmt: schema: Input should be 1"),
        (lambda config: config["fedmt"].update(more=1), "fedmt: more: Extra inputs"),
        (lambda config: config["fedmt"]["part"].update(kind="mixture"), "fedmt: part: Input tag 'mixture'"),
        (lambda config: config["fedmt"]["part"].update(encoder=[9]), "fedmt.part.encoder: 9 is outside"),
        (lambda config: config["fedmt"]["part"].update(decoder=[0, 1]), "fedmt.controllers: are not where the part"),
        (lambda config: config["fedmt"]["layers"].update(encoder=3), "fedmt.controllers: are not where"),
        (lambda config: config["fedmt"]["layers"].pop("encoder"), "fedmt.layers: needs encoder and decoder"),
        (
            lambda config: config["fedmt"]["part"].update(how="designated", initial="copy"),
            "fedmt: part.controllers: Value error, initial",
        ),
        (lambda config: config.pop("fedmt"), "has tensors of an extension, .*gate for one, that config.json"),
    ],
)
def test_a_description_that_cannot_be_is_one_line(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=message) as error:
        engine.load(described(tmp_path, change))
    assert "\n" not in str(error.value)


# ── saved by itself ──


def based(kind: str, tmp_path: Path) -> Path:
    """A base with something learnt, in a folder."""
    loaded(kind).save(tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_extension_is_loaded_upon_its_base(kind: str, which: str, tmp_path: Path) -> None:
    base, of = based(kind, tmp_path), PARTS[which]
    made = engine.load(base)
    extend(made, of, seed=3)
    made = fitted(made, of, steps=2).describe(directions=(Direction("de", "en"),), origin="here", recipe="r")
    save_extension(made, tmp_path / "extension", str(base))
    assert set(load_file(tmp_path / "extension" / "extension.safetensors")) == set(working(made, of))
    assert sorted(path.name for path in (tmp_path / "extension").iterdir()) == [
        "extension.json",
        "extension.safetensors",
    ]
    assert engine.load(tmp_path / "extension").hash == made.hash, "as any engine is loaded"
    bases = [None, engine.load(base)]
    if which != "designated":  # where nothing was inserted, a trained engine is another base
        bases.append(engine.load(tmp_path / "extension"))
    for upon in bases:
        again = load_extension(tmp_path / "extension", upon)
        assert (again.hash, again.about) == (made.hash, made.about)
        assert again.model.config.fedmt == made.model.config.fedmt
    assert found(again, 2) == found(made, 2)


def test_a_relative_base_is_looked_for_beside_the_extension(tmp_path: Path) -> None:
    made = engine.load(based("opus", tmp_path))
    extend(made, PARTS["adapters"], seed=1)
    save_extension(made, tmp_path / "extension", "../base")
    assert engine.load(tmp_path / "extension").hash == made.hash


def test_an_extension_of_an_engine_loaded_whole(tmp_path: Path) -> None:
    base = based("opus", tmp_path)
    made = engine.load(base)
    extend(made, PARTS["inserted"], seed=1)
    fitted(made, PARTS["inserted"]).save(tmp_path / "whole")
    save_extension(engine.load(tmp_path / "whole"), tmp_path / "extension", str(base))
    assert engine.load(tmp_path / "extension").hash == made.hash


def test_another_base_is_refused(tmp_path: Path) -> None:
    base = based("opus", tmp_path)
    made = engine.load(base)
    extend(made, PARTS["adapters"], seed=1)
    save_extension(made, tmp_path / "extension", str(base))
    other = engine.load(base)
    other.load_tensors({"model.encoder.layers.0.fc1.bias": torch.ones(32)})
    with pytest.raises(
        EngineError, match=rf"extends the marian engine of hash {made.model.config.fedmt['base'][:12]}…"
    ):
        load_extension(tmp_path / "extension", other)
    assert not any(".adapter." in name for name in other.tensors()), "nothing was changed"
    other.save(base)
    with pytest.raises(EngineError, match=r"extension\.json: base: extends the marian engine of hash"):
        engine.load(tmp_path / "extension")
    shutil.rmtree(base)
    with pytest.raises(EngineError, match=r"extension\.json: base: .*no such folder"):
        engine.load(tmp_path / "extension")


def test_a_base_that_was_trained_since_is_not_forgotten(tmp_path: Path) -> None:
    made = extended("opus", PARTS["adapters"])
    made.load_tensors({"model.encoder.layers.0.fc1.bias": torch.ones(32)})
    with pytest.raises(EngineError, match="base has changed since"):
        save_extension(made, tmp_path / "extension", "base")
    with pytest.raises(EngineError, match="has no extension"):
        save_extension(loaded("opus"), tmp_path / "extension", "base")
    assert not (tmp_path / "extension").exists()


def alone(tmp_path: Path) -> Path:
    base = based("opus", tmp_path)
    made = engine.load(base)
    extend(made, PARTS["adapters"], seed=1)
    save_extension(made, tmp_path / "extension", str(base))
    return tmp_path / "extension"


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_tensor_of_an_extension_lost_or_strange_is_one_line(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGE[damage]
    folder = alone(tmp_path)
    tensors_changed(folder, change)
    with pytest.raises(EngineError, match=message):
        engine.load(folder)


def test_a_damaged_extension_is_one_line(tmp_path: Path) -> None:
    folder = alone(tmp_path)
    tensors, sheet = folder / extension.TENSORS, folder / extension.SHEET
    whole, text = tensors.read_bytes(), sheet.read_text()

    def refused(message: str) -> None:
        with pytest.raises(EngineError, match=message) as error:
            engine.load(folder)
        assert "\n" not in str(error.value)

    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("is damaged: the engine's hash is not what extension.json says")
    tensors.write_bytes(whole[: len(whole) // 2])
    refused("extension: cannot be read: ")
    tensors.unlink()
    refused("extension: cannot be read: ")
    tensors.write_bytes(whole)
    changes: list[tuple[Callable[[dict[str, Any]], object], str]] = [
        (lambda value: value.pop("part"), r"extension\.json: part: Field required"),
        (lambda value: value.update(schema=3), r"extension\.json: schema: Input should be 1"),
        (lambda value: value.update(architecture="mbart"), "extends the mbart engine .* is marian"),
        (lambda value: value.update(base=str(folder)), "is an extension itself; it must be a whole engine"),
        (lambda value: value.update(directions=[["de"]]), "directions"),
    ]
    for change, message in changes:
        value = json.loads(text)
        change(value)
        sheet.write_text(json.dumps(value))
        refused(message)
    sheet.write_text("[1")
    refused("extension: cannot be read: ")


@pytest.mark.parametrize("which", ["adapters", "inserted"])
@pytest.mark.parametrize("kind", ["scratch", "mbart50"])
def test_bf16_trains_and_translates_with_an_extension(kind: str, which: str) -> None:
    low = Machine(torch.device("cpu"), "bf16", 1)
    made, of = extended(kind, PARTS[which]), PARTS[which]
    assert [one.ids for one in found(made, 1, machine=low)] == [
        one.ids for one in found(tiny.learnt(kind), 1, machine=low)
    ]
    before = made.hash
    fitted(made, of, steps=2, machine=low)
    assert made.hash != before
    assert all(tensor.dtype == torch.float32 and bool(tensor.isfinite().all()) for tensor in made.tensors().values())
    assert len(found(made, 2, machine=low)) == 12
