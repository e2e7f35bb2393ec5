import json
import math
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import MarianMTModel

from fedmt import recipe
from fedmt.corpus.pairs import Direction
from fedmt.engine import engine, vocabulary
from fedmt.errors import EngineError, FetchError
from tests.engine import tiny

PIECES = vocabulary.learn(tiny.SENTENCES, 420, ["de", "en"], seed=1)
TOY = recipe.Scratch(size="toy")


def copied(kind: str, tmp_path: Path) -> Path:
    return shutil.copytree(tiny.folder(kind), tmp_path / kind)


# ── from scratch ──


@pytest.mark.parametrize("size", ["toy", "small", "base"])
def test_a_size_has_the_parameters_of_its_shape(size: str) -> None:
    shape = engine.SIZES[size]
    width, inner = shape.width, shape.inner
    attention, feedforward, norm = 4 * (width * width + width), 2 * width * inner + inner + width, 2 * width
    layers = shape.layers * (3 * attention + 2 * feedforward + 5 * norm)
    made = engine.scratch(recipe.Scratch(size=size), PIECES, seed=1)
    assert made.parameters == layers + PIECES.size * width
    assert made.model.config.dropout == shape.dropout


def test_small_with_six_thousand_pieces_is_seven_million_parameters() -> None:
    small = engine.scratch(recipe.Scratch(size="small"), PIECES, seed=1)
    assert small.parameters + (6000 - PIECES.size) * 256 == 7_065_600


def test_the_seed_decides_the_weights_and_nothing_else_does() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = engine.scratch(TOY, PIECES, seed=1)
    assert torch.equal(torch.rand(3), expected), "the program's own random state is left alone"
    again, other = engine.scratch(TOY, PIECES, seed=1), engine.scratch(TOY, PIECES, seed=2)
    assert one.hash == again.hash != other.hash


@pytest.mark.parametrize("size", ["toy", "small"])
def test_a_fresh_engine_expects_every_token_alike(size: str) -> None:
    fresh = engine.scratch(recipe.Scratch(size=size), PIECES, seed=1)
    tensors = fresh.tensors()
    assert not tensors["model.shared.weight"][PIECES.pad].any()
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert bool((tensor == 1).all()), name
        else:
            assert tensor.std() > 0, name
    direction = Direction("de", "en")
    source, labels = (
        PIECES.encode_source(tiny.SENTENCES[:1], direction),
        PIECES.encode_target(tiny.SENTENCES[:1], direction),
    )
    with torch.no_grad():
        loss = fresh.model(input_ids=torch.tensor(source), labels=torch.tensor(labels)).loss
    assert loss.item() == pytest.approx(math.log(PIECES.size), rel=0.15)


def test_the_recipes_dropout_wins_over_the_sizes() -> None:
    assert engine.scratch(recipe.Scratch(size="toy", dropout=0.35), PIECES, 1).model.config.dropout == 0.35


# ── tensors ──


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_tensors_are_the_models_own_each_once_without_tables(kind: str) -> None:
    made = tiny.learnt(kind)
    tensors = made.tensors()
    owned = {name: tensor.data_ptr() for name, tensor in made.model.named_parameters() if name in tensors}
    assert {name: tensor.data_ptr() for name, tensor in tensors.items()} == owned
    assert len(set(owned.values())) == len(owned)
    assert all(dict(made.model.named_parameters())[name].requires_grad for name in tensors)
    untrained = {name for name, tensor in made.model.named_parameters() if name not in tensors}
    assert all("embed_positions" in name for name in untrained)
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_loaded_tensors_are_copied_into_place() -> None:
    one, other = engine.scratch(TOY, PIECES, seed=1), engine.scratch(TOY, PIECES, seed=2)
    where = {name: tensor.data_ptr() for name, tensor in one.tensors().items()}
    name = "model.encoder.layers.1.fc2.weight"
    one.load_tensors({name: other.tensors()[name]})
    assert torch.equal(one.tensors()[name], other.tensors()[name])
    assert one.hash != other.hash
    one.load_tensors(other.tensors())
    assert one.hash == other.hash
    assert where == {name: tensor.data_ptr() for name, tensor in one.tensors().items()}


def test_tied_tensors_stay_tied() -> None:
    one = engine.scratch(TOY, PIECES, seed=1)
    one.load_tensors({"model.shared.weight": torch.ones(PIECES.size, 64)})
    assert bool((one.model.lm_head.weight == 1).all())
    assert bool((one.model.model.encoder.embed_tokens.weight == 1).all())


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("lm_head.weight", torch.ones(1), "the engine has no tensor lm_head.weight"),
        ("model.encoder.layers.0.fc1.bias", torch.ones(3), r"fc1\.bias: is \[3\], the engine's is \[128\]"),
    ],
)
def test_wrong_tensors_change_nothing(name: str, tensor: torch.Tensor, message: str) -> None:
    one = engine.scratch(TOY, PIECES, seed=1)
    before = one.hash
    with pytest.raises(EngineError, match=message):
        one.load_tensors({"model.encoder.layers.0.fc2.bias": torch.ones(64), name: tensor})
    assert one.hash == before


# ── folders ──


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_saved_loaded_and_saved_again_is_byte_identical(kind: str, tmp_path: Path) -> None:
    first = engine.load(tiny.folder(kind)).describe(
        directions=(Direction("de", "en"),), origin="a test", recipe="courts"
    )
    first.save(tmp_path / "first")
    second = engine.load(tmp_path / "first")
    assert (second.hash, second.about) == (first.hash, first.about)
    second.save(tmp_path / "second")
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "second").iterdir())
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_an_engine_is_loaded_in_fp32_and_without_dropout(tmp_path: Path) -> None:
    folder = copied("nllb", tmp_path)
    half = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = engine.load(folder)
    assert {tensor.dtype for tensor in loaded.tensors().values()} == {torch.float32}
    assert not loaded.model.training


def test_hugging_face_loads_what_was_saved(tmp_path: Path) -> None:
    made = engine.scratch(TOY, PIECES, seed=1)
    made.save(tmp_path / "engine")
    theirs, found = MarianMTModel.from_pretrained(tmp_path / "engine", output_loading_info=True)
    assert not any(found.values())
    for name, tensor in theirs.named_parameters():
        assert torch.equal(tensor, dict(made.model.named_parameters())[name]), name


def test_saving_over_an_engine_replaces_it(tmp_path: Path) -> None:
    one, other = engine.scratch(TOY, PIECES, seed=1), engine.scratch(TOY, PIECES, seed=2)
    one.save(tmp_path / "engine")
    other.save(tmp_path / "engine")
    assert engine.load(tmp_path / "engine").hash == other.hash
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_saving_and_loading_is_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    engine.load(tiny.folder("mt5")).save(tmp_path / "engine")
    engine.load(tmp_path / "engine")
    assert capfd.readouterr() == ("", "")


def test_the_hash_sees_weights_biases_and_vocabulary(tmp_path: Path) -> None:
    hashes = {engine.load(tiny.folder("opus")).hash}
    biased = engine.load(tiny.folder("opus"))
    biased.model.final_logits_bias[0, 0] += 1
    hashes.add(biased.hash)
    folder = copied("opus", tmp_path)
    ids = json.loads((folder / "vocab.json").read_text())
    swapped = dict(zip(reversed(ids), ids.values(), strict=True))
    (folder / "vocab.json").write_text(json.dumps(swapped))
    hashes.add(engine.load(folder).hash)
    assert len(hashes) == 3


# ── what is refused ──


def changed(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return change


def written(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def lacking(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.decoder.layers.1.fc1.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("config.json"), "is no engine's folder: it has no config.json"),
        (written("config.json", b"{"), "cannot be read"),
        (written("config.json", b"\xff\xfe"), "cannot be read"),
        (written("config.json", b"[]"), "must be a JSON object"),
        (written("config.json", b"{}"), "no model_type is not an architecture that fedmt knows; allowed are marian"),
        (changed(model_type="bert"), "bert is not an architecture that fedmt knows; allowed are marian, mbart"),
        (changed(d_model="wide"), "cannot be loaded"),
        (changed(d_model=24), "cannot be loaded"),
        (changed(vocab_size=7), "cannot be loaded"),
        (changed(encoder_layers=3), "lacks 16 of the model's tensors, model.encoder.layers.2"),
        (without("model.safetensors"), "has no .safetensors weights; fedmt never loads pickled ones"),
        (written("model.safetensors", b""), "cannot be loaded"),
        (written("model.safetensors", b"\x80\x04 no tensors"), "cannot be loaded"),
        (cut_short, "cannot be loaded"),
        (lacking, "lacks 1 of the model's tensors, model.decoder.layers.1.fc1.weight"),
        (without("vocab.json"), "a Marian vocabulary needs vocab.json"),
        (written("fedmt.json", b'{"directions": [["de"]]}'), "needs directions, origin and recipe"),
    ],
)
def test_a_broken_folder_gives_one_line(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = copied("scratch", tmp_path)
    change(folder)
    with pytest.raises(EngineError, match=message) as caught:
        engine.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@dataclass
class Trap:
    path: str

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.touch, (Path(self.path),)  # type: ignore[return-value]


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    folder = copied("scratch", tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(str(tmp_path / "sprung"))))
    with pytest.raises(EngineError, match="never loads pickled"):
        engine.load(folder)
    assert not (tmp_path / "sprung").exists()


def test_code_beside_an_engine_is_never_run(tmp_path: Path) -> None:
    folder = copied("scratch", tmp_path)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nclass Own: pass\n")
    changed(auto_map={"AutoModel": "own.Own", "AutoModelForSeq2SeqLM": "own.Own"})(folder)
    engine.load(folder)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["runs/demo/engine", "./engine", "/no/such/engine", "~/engine"])
def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where nobody has made the demo
    monkeypatch.setattr(engine, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(EngineError, match=f"{name}: no such folder"):
        engine.load(name)


def test_a_name_beside_folders_that_are_here_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngineError, match="runs/demo: no such folder"):
        engine.load("runs/demo")


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        (LocalEntryNotFoundError("no\nnetwork"), EngineError, "neither a folder here nor fetched before"),
        (OSError("disk\nfull"), FetchError, "cannot be fetched from the Hugging Face hub: disk full"),
    ],
)
def test_what_the_hub_does_not_give_is_one_line(
    trouble: Exception, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(engine, "snapshot_download", fail)
    with pytest.raises(kind, match=f"^a/b: {message}.*$"):
        engine.load("a/b")


def test_a_name_that_no_hub_could_have_gives_one_line() -> None:
    with pytest.raises(EngineError, match="neither a folder nor a name"):
        engine.load("a b c")


def test_only_configuration_vocabulary_and_safetensors_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def fetch(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(tiny.folder("opus"))

    monkeypatch.setattr(engine, "snapshot_download", fetch)
    loaded = engine.load("Helsinki-NLP/opus-mt-de-en", revision="main")
    assert (asked["name"], asked["revision"]) == ("Helsinki-NLP/opus-mt-de-en", "main")
    assert asked["allow_patterns"] == ["*.json", "*.safetensors", "*.spm", "*.model"]
    assert loaded.about.origin == "Helsinki-NLP/opus-mt-de-en"
