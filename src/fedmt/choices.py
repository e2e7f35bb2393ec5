"""The five choices of a recipe, each a union told apart by `kind`: adding a method is adding a member.

    part × selector (silo→server, server→silo) × codec × merge × groups

Frozen values that say what was asked; what each does stands in the module that its words name: `engine/adapters.py`,
`engine/controllers.py`, `exchange/`, `federation/merge.py`, `federation/groups.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Codec", "Frozen", "Groups", "Merge", "Name", "Part", "Selector", "Selectors", "Share", "Sides", "Theta"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Sides: TypeAlias = Literal["both", "encoder", "decoder"]
Send: TypeAlias = Literal["greater", "less"]
Embedding: TypeAlias = Literal["always", "never"]

_SENDS = "greater: what changed at least so much; less: what changed less"
_EMBEDDING = "what belongs to neither side, an embedding shared by both for one: sent always, or never"


# ── what of the engine is trained, and shared ───────────────────────────────────────────────────────────────────────


class PartAll(Frozen):
    """The whole engine."""

    kind: Literal["all"] = "all"


class PartAdapters(Frozen):
    """Bottlenecks after every attention and feed-forward block, with the layers' norms (Liu et al. 2023)."""

    kind: Literal["adapters"]
    width: Annotated[int, Field(ge=1, le=4096)] = Field(64, description="of the bottleneck")
    sides: Sides = Field("both", description="where they are inserted")
    third: Literal["all", "input", "middle", "output"] = Field(
        "all", description="only this third of each side's layers, counted from the input"
    )
    norms: bool = Field(True, description="train and share the layer norms of those layers too")


Positions: TypeAlias = Annotated[list[Annotated[int, Field(ge=-1, le=512)]], Field(max_length=512)]


class PartControllers(Frozen):
    """Few layers that speak for the whole stack (Roosta et al. 2021)."""

    kind: Literal["controllers"]
    how: Literal["inserted", "designated"] = Field(
        "inserted", description="layers new to the stack, or some that it has"
    )
    encoder: Positions | None = Field(
        None,
        description="their places in the final stack, from 0; none: the second and the last but one, or, "
        "designated, the first and the middle one",
    )
    decoder: Positions | None = Field(None, description="the same, in the decoder")
    initial: Literal["identity", "copy", "random"] | None = Field(
        None, description="inserted layers begin as nothing, as the layer before them, or at random; none: identity"
    )
    shares: Literal["controllers", "all"] = Field("controllers", description="what is exchanged")
    trains: Literal["controllers", "all"] = Field("controllers", description="what is trained")

    @model_validator(mode="after")
    def _positions(self) -> PartControllers:
        for side in ("encoder", "decoder"):
            places: list[int] = getattr(self, side) or []
            if len(set(places)) != len(places):
                raise ValueError(f"{side}: a position stands twice")
            if -1 in places and (self.how == "designated"):
                raise ValueError(f"{side}: -1 is before the first layer: no layer of the stack stands there")
        if self.encoder == [] and self.decoder == []:
            raise ValueError("encoder: no controller at all; name a position in the encoder or the decoder")
        return self

    @property
    def begins(self) -> Literal["identity", "copy", "random"]:
        return self.initial or "identity"

    @model_validator(mode="after")
    def _initial(self) -> PartControllers:
        if self.how == "designated" and self.initial is not None:
            raise ValueError("initial: designated layers begin as they are; only inserted ones have it")
        return self


Part: TypeAlias = Annotated[PartAll | PartAdapters | PartControllers, Field(discriminator="kind")]


# ── what of that travels ────────────────────────────────────────────────────────────────────────────────────────────


class SelectAll(Frozen):
    """Every tensor of the part."""

    kind: Literal["all"] = "all"


class SelectRandom(Frozen):
    """So many of the tensors, drawn anew each round, until `share` of the parameters is reached."""

    kind: Literal["random"]
    share: Share = Field(0.5, description="of the parameters")


class SelectPulling(Frozen):
    """Tensors by how much they changed since the sender's last engine (Passban et al. 2022)."""

    kind: Literal["dynamic_pulling"]
    send: Send = Field("greater", description=_SENDS)
    norm: Literal["mean_abs", "l1", "l2", "relative"] = Field(
        "mean_abs", description="of a tensor's change; l1 and l2 grow with its size, relative is l2 / the tensor's l2"
    )
    median: Literal["parameters", "tensors"] = Field(
        "parameters", description="what `share` counts; tensors: the paper's letter"
    )
    share: Share | None = Field(None, description="that is sent, of each side apart; none: half")
    threshold: Annotated[float, Field(ge=0)] | None = Field(
        None, description="a fixed change to compare with, in the place of a share"
    )
    embedding: Embedding = Field("always", description=_EMBEDDING)

    @model_validator(mode="after")
    def _one_measure(self) -> SelectPulling:
        if self.threshold is not None and (self.share is not None or "median" in self.model_fields_set):
            raise ValueError("threshold: excludes `share` and `median`: a fixed change is not searched for")
        return self


class SelectTop(Frozen):
    """The largest single values: of each side apart, element by element."""

    kind: Literal["top_k"]
    by: Literal["value", "change"] = Field("value", description="what must be large: the value, or its change")
    share: Share = Field(0.5, description="of the parameters")


class SelectApf(Frozen):
    """Single values that still move (adaptive parameter freezing, Chen et al. 2021, a baseline of Chu et al. 2024)."""

    kind: Literal["apf"]
    window: Annotated[int, Field(ge=1)] = Field(
        4, description="rounds between checks, and the step of a freeze's length"
    )
    threshold: Annotated[float, Field(ge=0, le=1)] = Field(
        0.05, description="effective perturbation below which a value is frozen: 0 moves to and fro, 1 straight on"
    )
    smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of the moving averages, a check")


class ThetaLearned(Frozen):
    """A small network at the server, from the silos' losses to a threshold."""

    kind: Literal["learned"] = "learned"
    gradient: Literal["soft", "reinforce", "spsa"] = Field(
        "soft", description="soft: straight through; reinforce and spsa: from loss values alone"
    )
    hidden: Annotated[int, Field(ge=1, le=100_000)] = Field(100, description="units of its hidden layer")
    rate: Annotated[float, Field(gt=0)] = Field(0.01, description="its learning rate (Adam)")
    batches: Annotated[int, Field(ge=1)] = Field(
        16, description="of dev text that each silo judges the merged engine on"
    )
    temperature: Annotated[float, Field(gt=0)] = Field(0.5, description="of the soft gate, in units of log deviation")
    price: Annotated[float, Field(ge=0)] = Field(0.0, description="λ, of a share of 1 sent, in nats of dev loss")
    step: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.1, description="how far reinforce and spsa go from their threshold to try others"
    )


class ThetaFixed(Frozen):
    """One threshold for all rounds."""

    kind: Literal["fixed"]
    value: Annotated[float, Field(ge=0)] = Field(0.5, description="on the scale; `raw` may go beyond 1")


class ThetaRandom(Frozen):
    """A threshold drawn anew each round, between 0 and 1."""

    kind: Literal["random"]


Theta: TypeAlias = Annotated[ThetaLearned | ThetaFixed | ThetaRandom, Field(discriminator="kind")]


class Pruning(Frozen):
    """A second filter: what passed, less what a small network finds to matter little."""

    hidden: Annotated[int, Field(ge=1, le=100_000)] = Field(100, description="units of its hidden layer")
    below: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="importance under which a tensor is not sent")


class SelectMetaSend(Frozen):
    """Tensors whose relative change passes a threshold that the server learns (Chu et al. 2024)."""

    kind: Literal["metasend"]
    send: Send = Field("greater", description=_SENDS)
    theta: Theta = Field(ThetaLearned(), description="where the threshold comes from")
    scale: Literal["log_minmax", "minmax", "raw"] = Field(
        "log_minmax", description="how deviations are brought between 0 and 1, where the threshold is"
    )
    pruning: Pruning | None = Field(None, description="a second filter on what passed; none: no other")


Selector: TypeAlias = Annotated[
    SelectAll | SelectRandom | SelectPulling | SelectTop | SelectApf | SelectMetaSend, Field(discriminator="kind")
]


class Selectors(Frozen):
    up: Selector = Field(SelectAll(), description="silo → server")
    down: Selector = Field(SelectAll(), description="server → silo")


# ── how it is written ───────────────────────────────────────────────────────────────────────────────────────────────


class CodecFp32(Frozen):
    """Four bytes a number; nothing is lost."""

    kind: Literal["fp32"] = "fp32"


class CodecFp16(Frozen):
    """Two bytes a number, rounded; what is too large becomes the largest."""

    kind: Literal["fp16"]


Codec: TypeAlias = Annotated[CodecFp32 | CodecFp16, Field(discriminator="kind")]


# ── how updates become one ──────────────────────────────────────────────────────────────────────────────────────────


Rate: TypeAlias = Annotated[
    float,
    Field(gt=0, le=10, description="how far the server goes, of the way to the merged engine; above 1: beyond it"),
]
Missing: TypeAlias = Annotated[
    Literal["renormalise", "keep_server", "literal"],
    Field(
        description="what a silo counts for where it sent nothing: renormalise: nothing, the senders are the whole; "
        "keep_server: the server's own value; literal: zero, as equation 4 of Chu et al. has it"
    ),
]


class MergeSamples(Frozen):
    """Weights in proportion to the silos' training pairs, or to a power of them."""

    kind: Literal["samples"] = "samples"
    power: Annotated[float, Field(ge=0, le=4)] = Field(1.0, description="α of n^α; 0 weighs all the same")
    missing: Missing = "renormalise"
    rate: Rate = 1.0


class MergeMean(Frozen):
    """Every silo weighs the same."""

    kind: Literal["mean"]
    missing: Missing = "renormalise"
    rate: Rate = 1.0


class MergeBounded(Frozen):
    """As `samples`, but no silo moves the engine further than `norm`: longer changes are scaled down, and named."""

    kind: Literal["bounded"]
    norm: Annotated[float, Field(gt=0)] = Field(description="of a silo's whole change, the Euclidean one")
    power: Annotated[float, Field(ge=0, le=4)] = Field(0.0, description="α of n^α; 0 weighs all the same")
    missing: Missing = "renormalise"
    rate: Rate = 1.0


class MergeTrimmed(Frozen):
    """Value by value, the mean without a share of the highest and as many of the lowest; all silos weigh the same."""

    kind: Literal["trimmed"]
    share: Annotated[float, Field(ge=0, lt=0.5)] = Field(0.2, description="of the silos, cut off at each end")
    missing: Literal["renormalise"] = Field("renormalise", description="only those who sent a value are compared")
    rate: Rate = 1.0


class MergeMedian(Frozen):
    """Value by value, the middle one; of an even number, the mean of two. All silos weigh the same."""

    kind: Literal["median"]
    missing: Literal["renormalise"] = Field("renormalise", description="only those who sent a value are compared")
    rate: Rate = 1.0


Merge: TypeAlias = Annotated[
    MergeSamples | MergeMean | MergeBounded | MergeTrimmed | MergeMedian, Field(discriminator="kind")
]


# ── who merges with whom ────────────────────────────────────────────────────────────────────────────────────────────

# What neither side is grouped by (a shared embedding) merges with everyone, except among the groups of `alone`.
_GROUPED = "which sides are grouped; the other merges with everyone"


class GroupsNone(Frozen):
    """Everyone merges with everyone."""

    kind: Literal["none"] = "none"


class GroupsAlone(Frozen):
    """Nobody merges with anybody."""

    kind: Literal["alone"]


class GroupsFamilies(Frozen):
    """Encoders merge by the family of the source language, decoders by the target's."""

    kind: Literal["families"]
    sides: Sides = Field("both", description=_GROUPED)
    level: Literal["family", "branch"] = Field(
        "branch", description="Indo-European is a family; Germanic, Romance and Slavic are branches of it"
    )


class GroupsRandom(Frozen):
    """Groups of like sizes, drawn by the recipe's seed, for each side apart."""

    kind: Literal["random"]
    sides: Sides = Field("both", description=_GROUPED)
    count: Annotated[int, Field(ge=1)] | None = Field(
        None, description="groups a side; none: as many as there are families of its languages"
    )


class GroupsGradients(Frozen):
    """Groups of silos whose gradients on the first engine's layer norms point the same way."""

    kind: Literal["gradients"]
    sides: Sides = Field("both", description=_GROUPED)
    count: Annotated[int, Field(ge=1)] | None = Field(None, description="groups a side")
    threshold: Annotated[float, Field(gt=0, le=2)] | None = Field(
        None, description="cosine distance, average linkage, beyond which groups are not joined"
    )
    batches: Annotated[int, Field(ge=1)] | None = Field(
        None, description="of each silo's training text, that its mean gradient is over; none: all"
    )

    @model_validator(mode="after")
    def _one_measure(self) -> GroupsGradients:
        if (self.count is None) == (self.threshold is None):
            raise ValueError("count: name either a `count` of groups or a `threshold`, and not both")
        return self


class GroupsExplicit(Frozen):
    """Groups by name: lists of silos. Whoever stands in none merges with all others that stand in none."""

    kind: Literal["explicit"]
    encoder: dict[Name, list[Name]] = Field({}, description="names of groups, and their silos")
    decoder: dict[Name, list[Name]] = Field({}, description="the same, for the decoder")

    @model_validator(mode="after")
    def _once(self) -> GroupsExplicit:
        for side in ("encoder", "decoder"):
            names = [silo for group in getattr(self, side).values() for silo in group]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{side}: the silo {twice[0]} stands in two groups")
        return self


Groups: TypeAlias = Annotated[
    GroupsNone | GroupsAlone | GroupsFamilies | GroupsRandom | GroupsGradients | GroupsExplicit,
    Field(discriminator="kind"),
]
