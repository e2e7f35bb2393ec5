"""What a part adds to an engine, what of the whole is then trained and shared, and how that is kept on disk.

    T  what is trained        S  what is shared        W = T ∪ S  what a silo works on; the rest is the base

The model's own configuration describes the extension under `fedmt`, so that an extended engine is saved and loaded as
any other. An extension by itself is a folder with W's tensors and `extension.json`, which names the base by its hash:
it is read only together with that very base. Knows no training, no silos, and not what adapters and controllers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from fedmt import files
from fedmt.choices import Frozen, Part, PartAdapters, PartAll, PartControllers
from fedmt.corpus.pairs import Direction
from fedmt.engine import adapters, controllers, engine
from fedmt.engine.engine import About, Engine
from fedmt.engine.places import places
from fedmt.errors import EngineError, Failure

__all__ = [
    "EXTENDABLE",
    "SHEET",
    "Description",
    "complete",
    "counts",
    "described",
    "extend",
    "load_extension",
    "mistakes",
    "save_extension",
    "shared",
    "trained",
    "working",
]

EXTENDABLE = ("marian", "mbart", "m2m_100")
SHEET, TENSORS = "extension.json", "extension.safetensors"

Extending: TypeAlias = Annotated[PartAdapters | PartControllers, Field(discriminator="kind")]
Stacks: TypeAlias = dict[Literal["encoder", "decoder"], Annotated[int, Field(ge=0, le=100_000)]]


class Description(Frozen):
    """An extension as the model's configuration has it."""

    number: Literal[1] = Field(1, alias="schema")
    part: Extending
    layers: Stacks = Field(description="of the stacks, before any was inserted")
    controllers: dict[Literal["encoder", "decoder"], list[int]] = Field(description="their places in the final stacks")
    base: str = Field(description="the hash of the engine that was extended; empty where that is not known")
    rest: str = Field(description="the hash of what of it is neither trained nor shared")

    def dump(self) -> dict[str, Any]:
        return {**self.model_dump(mode="json", by_alias=True), "part": _dump(self.part)}


class Sheet(Frozen):
    """`extension.json`."""

    number: Literal[1] = Field(1, alias="schema")
    base: str = Field(min_length=1, description="the name or the folder of the engine that was extended")
    base_hash: str
    architecture: str
    part: Extending
    hash: str = Field(description="of the extended engine as a whole")
    directions: list[tuple[str, str]]
    origin: str
    recipe: str


# ── extending ───────────────────────────────────────────────────────────────────────────────────────────────────────


def mistakes(part: Part, architecture: str, encoder_layers: int, decoder_layers: int) -> list[tuple[str, str]]:
    """What is wrong with the part for an engine of this shape, before it is extended: the part's key, and why."""
    if isinstance(part, PartAll):
        return []
    if architecture not in EXTENDABLE:
        return [("kind", f"{part.kind} need another engine than {architecture}; allowed are {', '.join(EXTENDABLE)}")]
    stacks = {"encoder": encoder_layers, "decoder": decoder_layers}
    if isinstance(part, PartControllers):
        return controllers.mistakes(part, stacks)
    if part.third == "all":
        return []
    short = [side for side in adapters.covered(part, encoder_layers, decoder_layers) if stacks[side] < 3]
    return [("third", f"the {side} has {stacks[side]} layers and so no thirds; allowed is all") for side in short]


def extend(engine: Engine, part: Part, seed: int) -> list[str]:
    """Insert in place what the part adds; the engine translates as before, unless new layers begin otherwise.

    Gives warnings. An engine that already has what the part adds stays as it is.
    """
    if isinstance(part, PartAll):
        return []
    model, config = engine.model, engine.model.config
    before = described(config, "the engine")
    if before and _inserts(before) is None:
        before = None  # designated layers are the engine's own: nothing is in the way of another part
    own = {side: int(getattr(config, f"{side}_layers", 0)) for side in ("encoder", "decoder")}
    layers: Stacks = before.layers if before else {"encoder": own["encoder"], "decoder": own["decoder"]}
    if found := mistakes(part, config.model_type, layers["encoder"], layers["decoder"]):
        raise EngineError("; ".join(f"part.{key}: {why}" for key, why in found))
    description = _describe(part, layers)
    warnings = controllers.warnings(part) if isinstance(part, PartControllers) else []
    if before:
        if _inserts(before) != _inserts(description):
            raise EngineError(
                f"the engine is already extended by {before.part.kind} other than the part's; begin with its base"
            )
        # With another choice of what is trained, its base is no longer what the hash says.
        if _dump(before.part) != _dump(part):
            config.fedmt = description.dump()
        return warnings
    real = not any(parameter.is_meta for parameter in model.parameters())
    base = engine.hash if real else ""
    if isinstance(part, PartAdapters):
        adapters.insert(model, part, seed)
    elif part.how == "inserted":
        controllers.insert(model, part, _by_side(description.controllers), seed)
    config.fedmt = description.dump()
    rest = engine.hash_without(working(engine, part)) if real else ""
    config.fedmt = description.model_copy(update={"base": base, "rest": rest}).dump()
    return warnings


def _describe(part: PartAdapters | PartControllers, layers: Stacks) -> Description:
    where = controllers.positions(part, _by_side(layers)) if isinstance(part, PartControllers) else {}
    return Description.model_validate(
        {"part": _dump(part), "layers": layers, "controllers": where, "base": "", "rest": ""}
    )


def _inserts(description: Description) -> tuple[object, ...] | None:
    """What tells insertions apart; none where nothing is inserted."""
    part = description.part
    if isinstance(part, PartAdapters):
        return part.width, part.sides, part.third
    # Whether there are gates follows from `initial` and the architecture, and one engine has only one of that.
    return None if part.how == "designated" else (part.begins == "identity", sorted(description.controllers.items()))


def _dump(part: PartAdapters | PartControllers) -> dict[str, Any]:
    """`initial` may not even be named where layers are designated."""
    designated = isinstance(part, PartControllers) and part.how == "designated"
    return part.model_dump(mode="json", exclude={"initial"} if designated else None)


def _by_side(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(side): value for side, value in values.items()}


# ── trained, shared ─────────────────────────────────────────────────────────────────────────────────────────────────


def trained(engine: Engine, part: Part) -> list[str]:
    """T, in the order of the engine's tensors."""
    return _chosen(engine, part, part.trains if isinstance(part, PartControllers) else part.kind)


def shared(engine: Engine, part: Part) -> list[str]:
    """S, in the order of the engine's tensors."""
    return _chosen(engine, part, part.shares if isinstance(part, PartControllers) else part.kind)


def working(engine: Engine, part: Part) -> list[str]:
    """W, in the order of the engine's tensors."""
    either = {*trained(engine, part), *shared(engine, part)}
    return [name for name in engine.tensors() if name in either]


def _chosen(engine: Engine, part: Part, which: Literal["all", "adapters", "controllers"]) -> list[str]:
    names = list(engine.tensors())
    if which == "all":
        return names
    where, config = places(engine.model), engine.model.config
    if isinstance(part, PartAdapters):
        counts = config.encoder_layers, config.decoder_layers
        return [name for name in names if adapters.takes(part, where[name], *counts)]
    return [name for name in names if where[name].role == "controller"]


def counts(engine: Engine, part: Part) -> dict[str, int]:
    """Parameters trained and shared, and of the whole engine with and without embeddings and output layer."""
    sizes, where = {name: tensor.numel() for name, tensor in engine.tensors().items()}, places(engine.model)
    return {
        "trained": sum(sizes[name] for name in trained(engine, part)),
        "shared": sum(sizes[name] for name in shared(engine, part)),
        "total": sum(sizes.values()),
        "total_without_embedding": sum(
            size for name, size in sizes.items() if where[name].role not in ("embedding", "head")
        ),
    }


# ── within an engine's folder ───────────────────────────────────────────────────────────────────────────────────────


def described(config: PreTrainedConfig, name: str) -> Description | None:
    """The extension that an engine's configuration describes; a description that cannot be is an error."""
    found = getattr(config, "fedmt", None)
    if found is None:
        return None
    where = f"{name}: config.json: fedmt"
    description: Description = _validated(Description, found, where)
    part = description.part
    layers = description.layers
    if len(layers) < 2:
        raise EngineError(f"{where}.layers: needs encoder and decoder")
    if wrong := mistakes(part, str(config.model_type), layers["encoder"], layers["decoder"]):
        raise EngineError(f"{where}.part.{wrong[0][0]}: {wrong[0][1]}")
    expected = _describe(part, layers)
    if description.controllers != expected.controllers:
        raise EngineError(f"{where}.controllers: are not where the part says; allowed is {expected.controllers}")
    new = _inserts(description) is not None
    for side in ("encoder", "decoder"):
        final = layers[side] + (len(expected.controllers.get(side, ())) if new else 0)
        if (now := getattr(config, f"{side}_layers")) != final:
            raise EngineError(f"{where}.layers.{side}: leads to {final} layers; the engine has {now}")
    return description


def complete(model: PreTrainedModel, folder: Path, name: str, unexpected: Iterable[str]) -> None:
    """Hang on a model just read from `folder` what its configuration describes, and read that from there too.

    `unexpected` are the tensors of the folder that the model alone has no place for.
    """
    strange, description = set(unexpected), described(model.config, name)
    if description is None:
        if ours := sorted(one for one in strange if ".adapter." in one or one.endswith(".gate")):
            raise EngineError(
                f"{name}: has tensors of an extension, {ours[0]} for one, that config.json does not describe"
            )
        return
    had, part = {one for one, _ in model.named_parameters()}, description.part
    if isinstance(part, PartAdapters):
        adapters.insert(model, part, seed=0)
    elif controllers.gated(part, model.config.model_type):
        controllers.gate(model, _by_side(description.controllers))
    added = {one: parameter for one, parameter in model.named_parameters() if one not in had}
    try:
        found: dict[str, Tensor] = {}
        for file in _weights(folder):
            with safe_open(folder / file, framework="pt") as tensors:
                found |= {one: tensors.get_tensor(one) for one in added.keys() & set(tensors.keys())}
    except (SafetensorError, OSError) as error:
        raise EngineError(f"{name}: cannot be loaded: {_one_line(error)}") from error
    _compare({one: found[one] for one in found} | {one: torch.empty(0) for one in strange - added.keys()}, added, name)
    with torch.no_grad():
        for one, parameter in added.items():
            parameter.copy_(found[one])


def _weights(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    # Names within the folder, whatever a stranger's index says.
    return sorted({Path(str(file)).name for file in files.read_json(index)["weight_map"].values()})


def _compare(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], name: str) -> None:
    if missing := sorted(wanted.keys() - found.keys()):
        raise EngineError(f"{name}: lacks {len(missing)} of the extension's tensors, {missing[0]} for one")
    if strange := sorted(found.keys() - wanted.keys()):
        raise EngineError(f"{name}: has {len(strange)} tensors that are not the extension's, {strange[0]} for one")
    for one, tensor in wanted.items():
        if found[one].shape != tensor.shape:
            raise EngineError(f"{name}: {one} is {list(found[one].shape)}, the extension's is {list(tensor.shape)}")


# ── by itself ───────────────────────────────────────────────────────────────────────────────────────────────────────


def save_extension(engine: Engine, folder: Path, base: str) -> None:
    """Only what is trained or shared; `base` is the name or the folder of the engine that was extended.

    A relative folder may be meant from `folder` or from where a program is started; what is there is tried first.
    """
    description = described(engine.model.config, "the engine")
    if description is None:
        raise EngineError("the engine has no extension; save it whole")
    if not description.base:
        raise EngineError("the engine was extended twice and has no base that is known; save it whole")
    names = working(engine, description.part)
    if engine.hash_without(names) != description.rest:
        raise EngineError("the engine's base has changed since it was extended; save it whole")
    own = engine.tensors()
    sheet = Sheet(
        base=base,
        base_hash=description.base,
        architecture=engine.model.config.model_type,
        part=description.part,
        hash=engine.hash,
        directions=[(direction.source, direction.target) for direction in engine.about.directions],
        origin=engine.about.origin,
        recipe=engine.about.recipe,
    )

    def fill(part: Path) -> None:
        try:
            save_file({name: own[name].cpu().contiguous() for name in names}, part / TENSORS, {"format": "pt"})
        except SafetensorError as error:
            raise Failure(f"{folder}: cannot be written: {_one_line(error)}") from error
        files.write_json(
            part / SHEET, {**sheet.model_dump(mode="json", by_alias=True), "part": _dump(description.part)}
        )

    files.write_folder(folder, fill)


def load_extension(folder: Path, base: Engine | None = None) -> Engine:
    """An extension upon its base: upon the engine given, which is changed in place, or the one that it names."""
    path = folder / SHEET
    try:
        sheet = _validated(Sheet, files.read_json(path), str(path))
        tensors = load_file(folder / TENSORS)
    except (SafetensorError, OSError, ValueError) as error:
        raise EngineError(f"{folder}: cannot be read: {_one_line(error)}") from error
    if base is None:
        beside = folder / sheet.base
        name = beside if beside.is_dir() else Path(sheet.base)
        if (name / SHEET).is_file():
            raise EngineError(f"{path}: base: {sheet.base} is an extension itself; it must be a whole engine")
        try:
            base = engine.load(name if name.is_dir() else sheet.base)
        except EngineError as error:
            raise EngineError(f"{path}: base: {error}") from error
    config = base.model.config
    before = described(config, "the engine")
    found = before.base if before and _inserts(before) else base.hash
    if found != sheet.base_hash or config.model_type != sheet.architecture:
        raise EngineError(
            f"{path}: base: extends the {sheet.architecture} engine of hash {sheet.base_hash[:12]}…; "
            f"{sheet.base} is {config.model_type}, {found[:12] or 'of no hash that is known'}…"
        )
    extend(base, sheet.part, seed=0)
    own = base.tensors()
    _compare(tensors, {name: own[name] for name in working(base, sheet.part)}, str(folder))
    base.load_tensors(tensors)
    if base.hash != sheet.hash:
        raise EngineError(f"{folder}: is damaged: the engine's hash is not what {SHEET} says")
    directions = tuple(Direction(source, target) for source, target in sheet.directions)
    return Engine(base.model, base.vocabulary, About(directions, sheet.origin, sheet.recipe))


def _validated(kind: Any, value: Any, where: str) -> Any:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise EngineError(f"{where}: {key + ': ' if key else ''}{_one_line(first['msg'])}") from error


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
