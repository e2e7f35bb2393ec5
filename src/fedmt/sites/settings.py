"""`site.yaml`: who a site is, which text it has, and what it lets others ask of it. Typed as recipes are.

Knows no network and no engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, Field, ValidationError

from fedmt import document
from fedmt.choices import Frozen
from fedmt.errors import InputError, RecipeError
from fedmt.recipe import Compute, FileSilo, absolute

__all__ = ["Allowed", "SettingsError", "Site", "read", "read_typed"]

T = TypeVar("T", bound=BaseModel)

Address: TypeAlias = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9._-]+:[0-9]{1,5}$", description="host:port, as in mt.example.org:443")
]
PORT = 9094


class SettingsError(InputError):
    """All mistakes of a settings file, one after the other in one line."""


class Allowed(Frozen):
    """What a coordinator may ask; anything else is refused, and both sides are told why."""

    parts: list[Literal["all", "adapters", "controllers"]] = Field(
        ["all", "adapters", "controllers"], description="of the engine, that may be trained and sent"
    )
    selectors: list[Literal["all", "random", "dynamic_pulling", "top_k", "apf", "metasend"]] = Field(
        ["all", "random", "dynamic_pulling", "top_k", "apf", "metasend"], description="methods that choose what is sent"
    )
    groups: list[Literal["none", "alone", "families", "random", "gradients", "explicit"]] = Field(
        ["none", "alone", "families", "random", "gradients", "explicit"], description="ways of merging in groups"
    )
    memory: bool = Field(False, description="whether sealed records of the text may leave")
    least_silos: Annotated[int, Field(ge=1)] = Field(
        2, description="that a round must have, by the recipe's list and quorum: among few, one's own part shows"
    )
    most_epochs: Annotated[int, Field(ge=0)] = Field(10, description="a round, personal ones included")
    most_rounds: Annotated[int, Field(ge=0)] = Field(1000, description="of one run")
    largest_engine: Annotated[int, Field(ge=1)] = Field(2_000_000_000, description="in parameters")


class Site(FileSilo):
    """One site: its name, its text in one direction, who coordinates, and what is allowed."""

    coordinator: Address = Field(description="where the coordinator's proxy is reached")
    certificate: str | None = Field(
        "coordinator.crt", description="of the authority that signed the coordinator's; none: the system's authorities"
    )
    port: Annotated[int, Field(ge=1, le=65535)] = Field(PORT, description="on this machine alone, between its programs")
    allow: Allowed = Field(Allowed(), description="what the coordinator may ask")
    compute: Compute | None = Field(None, description="device and threads here; none: as the recipe has it")
    keep: Annotated[int, Field(ge=0)] = Field(2, description="finished engines kept, so that they need not come again")


def read(folder: Path) -> Site:
    """The settings of a site's folder, the paths in it absolute."""
    site = read_typed(folder / "site.yaml", Site)
    changed: dict[str, Any] = {
        key: [absolute(name, folder) for name in named]
        for key in ("data", "train", "dev", "test")
        if (named := getattr(site, key)) is not None
    }
    if site.certificate is not None:
        changed["certificate"] = str((folder / site.certificate).resolve())
    return site.model_copy(update=changed)


def read_typed(path: Path, kind: type[T]) -> T:
    """A YAML file as a value of this kind; each mistake with its line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        found = document.compose(content, str(path))
    except RecipeError as error:
        raise SettingsError("; ".join(error.mistakes)) from None
    try:
        return kind.model_validate(found.value)
    except ValidationError as error:
        said = []
        for mistake in error.errors():
            steps = tuple(step for step in mistake["loc"] if not str(step).startswith("function-"))
            said.append(f"{found.place(steps)}: {'.'.join(map(str, steps)) or 'the file'}: {mistake['msg']}")
        raise SettingsError("; ".join(said)) from None
