"""An engine: a translation model and its vocabulary. Made from nothing, loaded from a folder or the hub, saved whole.

Knows nothing of training, decoding or federation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartForConditionalGeneration,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from fedmt import files, recipe
from fedmt.corpus.pairs import Direction
from fedmt.engine import vocabulary as vocabularies
from fedmt.engine.vocabulary import Pieces, Vocabulary
from fedmt.errors import EngineError, Failure, FetchError

__all__ = ["ARCHITECTURES", "SIZES", "About", "Engine", "Size", "blank", "load", "scratch"]

LONGEST = 512

ARCHITECTURES: dict[str, type[PreTrainedModel]] = {
    "marian": MarianMTModel,
    "mbart": MBartForConditionalGeneration,
    "m2m_100": M2M100ForConditionalGeneration,
    "t5": T5ForConditionalGeneration,
    "mt5": MT5ForConditionalGeneration,
}
# Configuration, vocabulary and safetensors; never a pickle, never code.
_WANTED = ["*.json", "*.safetensors", "*.spm", "*.model"]


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    inner: int
    heads: int
    dropout: float


SIZES = {
    "toy": Size(width=64, layers=2, inner=128, heads=4, dropout=0.1),
    "small": Size(width=256, layers=3, inner=1024, heads=4, dropout=0.1),
    "base": Size(width=512, layers=6, inner=2048, heads=8, dropout=0.1),
}


@dataclass(frozen=True)
class About:
    """What the folder says beside the model: which ways the engine translates, and where it comes from."""

    directions: tuple[Direction, ...] = ()
    origin: str = ""
    recipe: str = ""


@dataclass
class Engine:
    model: PreTrainedModel
    vocabulary: Vocabulary
    about: About = field(default_factory=About)

    def tensors(self) -> dict[str, Tensor]:
        """What training can change, each tensor once, by its name. They are the model's own, not copies."""
        fixed = _fixed(self.model)
        return {name: tensor.detach() for name, tensor in self.model.named_parameters() if name not in fixed}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into the model in place; a name it does not have, or another shape, is an error."""
        own = self.tensors()
        for name, tensor in tensors.items():
            if name not in own:
                raise EngineError(f"the engine has no tensor {name}")
            if own[name].shape != tensor.shape:
                raise EngineError(f"{name}: is {list(tensor.shape)}, the engine's is {list(own[name].shape)}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors().values())

    @property
    def hash(self) -> str:
        """SHA-256 over everything that decides a translation: the model's state and the vocabulary."""
        return self.hash_without(())

    def hash_without(self, names: Iterable[str]) -> str:
        """The same over all but these tensors."""
        digest, left_out = hashlib.sha256(self.vocabulary.hash.encode()), set(names)
        for name, tensor in sorted(_state(self.model).items()):
            if name in left_out:
                continue
            digest.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def describe(self, **changes: Any) -> Engine:
        """The same engine, its `about` changed."""
        return replace(self, about=replace(self.about, **changes))

    def save(self, folder: Path) -> None:
        """In Hugging Face layout; the folder is whole or absent."""

        def fill(part: Path) -> None:
            try:
                with _quiet():
                    self.model.save_pretrained(part)
            except SafetensorError as error:
                raise Failure(f"{folder}: cannot be written: {_one_line(error)}") from error
            self.vocabulary.save(part)
            about = {
                "schema": 1,
                "directions": [list(direction) for direction in self.about.directions],
                "origin": self.about.origin,
                "recipe": self.about.recipe,
                "vocabulary": self.vocabulary.hash,
            }
            files.write_json(part / "fedmt.json", about)

        files.write_folder(folder, fill)


def _fixed(model: PreTrainedModel) -> set[str]:
    """Names that are computed and never trained: tables of sinusoids."""
    return set(getattr(model, "_keys_to_ignore_on_save", None) or ())


def _state(model: PreTrainedModel) -> dict[str, Tensor]:
    kept = dict(model.named_parameters())
    persistent = model.state_dict().keys()
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in persistent}
    return {name: tensor for name, tensor in {**kept, **buffers}.items() if name not in _fixed(model)}


def scratch(settings: recipe.Scratch, vocabulary: Pieces, seed: int) -> Engine:
    """A Marian engine of random weights: post-norm, one embedding for source, target and output."""
    size = SIZES[settings.size]
    dropout = size.dropout if settings.dropout is None else settings.dropout
    config = MarianConfig(
        vocab_size=vocabulary.size,
        d_model=size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_ffn_dim=size.inner,
        decoder_ffn_dim=size.inner,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        activation_function="relu",
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=LONGEST,
        pad_token_id=vocabulary.pad,
        eos_token_id=vocabulary.eos,
        forced_eos_token_id=vocabulary.eos,
        decoder_start_token_id=vocabulary.start,
    )
    with torch.random.fork_rng(devices=[]):
        model = MarianMTModel(config)
        initialise(model, seed)
    model.generation_config = GenerationConfig(
        pad_token_id=vocabulary.pad,
        eos_token_id=vocabulary.eos,
        forced_eos_token_id=vocabulary.eos,
        decoder_start_token_id=vocabulary.start,
        bad_words_ids=[[vocabulary.pad]],
        max_length=LONGEST,
        num_beams=1,
    )
    model.eval()
    return Engine(model, vocabulary, About(origin=f"{settings.architecture} {settings.size} of random weights"))


def initialise(model: PreTrainedModel, seed: int) -> None:
    """Random weights that depend on the seed and the shapes only.

    What a layer adds to its input starts small: after Xavier with gain 0.4, as are small embeddings. Post-norm layers
    learn with far fewer steps of warmup so (28 BLEU where plain Xavier gave none, docs/log.md). Biases are zero.
    """
    draw = torch.Generator().manual_seed(seed)
    fixed = _fixed(model)
    for name, tensor in model.named_parameters():
        if name not in fixed:
            initialise_tensor(name, tensor, draw, model.config.pad_token_id)


@torch.no_grad()
def initialise_tensor(name: str, tensor: Tensor, draw: torch.Generator, padding: int) -> None:
    if "norm" in name:
        tensor.fill_(1.0 if name.endswith("weight") else 0.0)
    elif name.endswith("bias"):
        tensor.zero_()
    elif "shared" in name or "embed" in name:
        tensor.normal_(0.0, 0.02, generator=draw)
        tensor[padding].zero_()
    else:
        adds = name.rsplit(".", 2)[-2] in ("v_proj", "out_proj", "fc1", "fc2")
        nn.init.xavier_normal_(tensor, gain=0.4 if adds else 1.0, generator=draw)


def load(name: str | Path, revision: str | None = None) -> Engine:
    """A Marian, MBart, M2M100, NLLB or T5-style engine by folder, or by its name on the Hugging Face hub.

    Where an extension stands there by itself, it is loaded upon its base.
    """
    # Extensions are made of engines: they cannot be imported before engines are.
    from fedmt.engine import extension

    folder = _folder(name, revision)
    if not (folder / "config.json").is_file() and (folder / extension.SHEET).is_file():
        return extension.load_extension(folder)
    config = _json(folder / "config.json")
    architecture = ARCHITECTURES.get(str(config.get("model_type")))
    if architecture is None:
        raise EngineError(
            f"{name}: {config.get('model_type', 'no model_type')} is not an architecture that fedmt knows; "
            f"allowed are {', '.join(ARCHITECTURES)} (NLLB is m2m_100)"
        )
    if not any(folder.glob("*.safetensors")):
        raise EngineError(f"{name}: has no .safetensors weights; fedmt never loads pickled ones")
    try:
        with _quiet():
            model, found = architecture.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
    except Exception as error:  # whatever transformers trips over, the folder is at fault
        raise EngineError(f"{name}: cannot be loaded: {_one_line(error)}") from error
    if missing := sorted(found["missing_keys"]):
        raise EngineError(f"{name}: lacks {len(missing)} of the model's tensors, {missing[0]} for one")
    extension.complete(model, folder, str(name), found["unexpected_keys"])
    model.eval()
    return Engine(model, vocabularies.read(folder, model.config), _about(folder, str(name)))


def blank(folder: Path, most: int) -> Engine:
    """The engine that a folder describes, its weights still to come; one of more than `most` parameters is refused.

    The folder may be from elsewhere: it is read as configuration and vocabulary, and nothing of it is run.
    """
    from fedmt.engine import extension

    described = _json(folder / "config.json")
    architecture = ARCHITECTURES.get(str(described.get("model_type")))
    if architecture is None:
        raise EngineError(f"{folder}: {described.get('model_type', 'no model_type')} is not an architecture of fedmt")
    try:
        config = architecture.config_class.from_dict(described)
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in architecture(config).parameters())
        if size > most:
            raise EngineError(f"{folder}: describes {size} parameters; {most} are allowed")
        if extension.described(config, str(folder)) is not None:
            raise EngineError(f"{folder}: describes an extended engine, of which a silo needs the weights too")
        with torch.random.fork_rng(devices=[]), _quiet():
            model = architecture(config).float()
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_dict(_json(folder / "generation_config.json"))
    except EngineError:
        raise
    except Exception as error:  # whatever transformers trips over, the folder is at fault
        raise EngineError(f"{folder}: cannot be made: {_one_line(error)}") from error
    model.eval()
    return Engine(model, vocabularies.read(folder, model.config), _about(folder, str(folder)))


def _folder(name: str | Path, revision: str | None) -> Path:
    folder = Path(name)
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", "extension.json")):
            raise EngineError(f"{name}: is no engine's folder: it has no config.json")
        return folder
    beside = folder.parent != Path() and folder.parent.is_dir()
    if folder.is_absolute() or str(name).startswith((".", "~")) or str(name).count("/") > 1 or beside:
        raise EngineError(f"{name}: no such folder; an engine is a folder or a name on the Hugging Face hub")
    try:
        return Path(snapshot_download(str(name), revision=revision, allow_patterns=_WANTED, ignore_patterns=["*/*"]))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise EngineError(f"{name}: neither a folder nor a name on the Hugging Face hub") from error
    except RevisionNotFoundError as error:
        raise EngineError(f"{name}: the Hugging Face hub has no revision {revision} of it") from error
    except LocalEntryNotFoundError as error:
        # More often a name mistyped than a network lost; the line says both.
        raise EngineError(
            f"{name}: neither a folder here nor fetched before, and the Hugging Face hub cannot be reached"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise FetchError(f"{name}: cannot be fetched from the Hugging Face hub: {_one_line(error)}") from error


def _about(folder: Path, origin: str) -> About:
    path = folder / "fedmt.json"
    if not path.is_file():
        return About(origin=origin)
    about = _json(path)
    try:
        directions = tuple(Direction(source, target) for source, target in about["directions"])
        return About(directions, str(about["origin"]), str(about["recipe"]))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{path}: needs directions, origin and recipe, as fedmt writes them") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = files.read_json(path)
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: cannot be read: {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path}: must be a JSON object")
    return value


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers draws progress bars over the run's own table, and warns of an output apart from the embedding."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
