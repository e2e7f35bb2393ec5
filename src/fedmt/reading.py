"""A recipe from YAML and back. Every mistake is told at once: `file:line: path: what is wrong; what is allowed`.

`like: other.yaml` at the top of a file: that one is read first, and this one is laid over it. Knows no corpus: what
only other modules can tell (is the file there, is the package known) comes in as `check`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from fedmt import document
from fedmt.checking import Checker, meant
from fedmt.document import COMMAND_LINE, Document
from fedmt.errors import RecipeError
from fedmt.recipe import Pretrained, Recipe, absolute, listed, resolve

__all__ = ["Check", "packaged", "parse", "read", "schema", "write"]

LIKE = "like"
# A table that has one of these otherwise than the one it would be laid over is another kind of thing, and replaces it.
TAGS = ("kind", "source", "architecture", "pretrained", "from")

# What else is wrong with a recipe, by the path of the value: (("silos", 0, "train"), "no such file …").
Check: TypeAlias = Callable[[Recipe], Iterable[tuple[document.Steps, str]]]


def packaged() -> dict[str, Path]:
    """The recipes that come along, by their names: `demo`, `liu2023/families`."""
    folder = Path(str(resources.files("fedmt") / "recipes"))
    found = {file.relative_to(folder).with_suffix("").as_posix(): file for file in folder.rglob("*.yaml")}
    return dict(sorted(found.items()))


def read(path: str | Path, overrides: Sequence[str] = (), check: Check | None = None) -> Recipe:
    """The recipe in a file, its paths made absolute from the file's folder. `overrides` are `key.path=value`."""
    file = _file(Path(path))
    return _made(_whole(document.compose(_bytes(file), str(file)), (file,)), overrides, file.parent, check)


def parse(text: str | bytes, name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a text, its paths as they stand. `name` is what its mistakes are said to be in."""
    return _made(_whole(document.compose(text, name), ()), overrides, None, None)


def write(recipe: Recipe) -> str:
    """YAML that reads back to the same recipe."""
    return document.dump(recipe.model_dump(mode="json", by_alias=True))


def schema() -> dict[str, Any]:
    """The JSON schema of a recipe's file, for editors."""
    found = Recipe.model_json_schema(by_alias=True)
    like = {"type": "string", "title": "Like", "description": "a recipe that this one is laid over"}
    # What a recipe needs may be in the one that it is like.
    needed = {"anyOf": [{"required": found.pop("required")}, {"required": [LIKE]}]}
    properties = {LIKE: like, **found.pop("properties")}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, **needed, "properties": properties}


# ── like ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _whole(found: Document, above: tuple[Path, ...]) -> Document:
    """The document laid over the one it is like. `above`: the files that led here, the document's own last."""
    if not isinstance(found.value, dict) or LIKE not in found.value:
        return found
    place, name = found.place((LIKE,)), found.value.pop(LIKE)
    if not isinstance(name, str) or not name:
        raise RecipeError(f"{place}: {LIKE}: is no recipe's name; allowed: a file, or a recipe that comes along")
    known = packaged()
    beside = _file(above[-1].parent / Path(name).expanduser()) if above else None
    if beside is None or not beside.is_file():
        if name not in known:
            near = meant(name, known) or ";"
            allowed = "a file, named from this one's folder, or a recipe that comes along"
            raise RecipeError(f"{place}: {LIKE}: there is no {name!r}{near} allowed: {allowed}")
        beside = known[name]
    if any(beside.resolve() == file.resolve() for file in above):
        raise RecipeError(f"{place}: {LIKE}: {name!r} is like this one in turn; one of them must stand by itself")
    below = _whole(document.compose(_bytes(beside), str(beside)), (*above, beside))
    if not isinstance(below.value, dict):
        raise RecipeError(f"{place}: {LIKE}: {name!r} holds no recipe")
    _root(below.value, beside.parent)
    found.lay_over(below, TAGS)
    return found


def _file(path: Path) -> Path:
    return path / "recipe.yaml" if path.is_dir() else path


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as handle:
            return handle.read(document.LARGEST + 1)
    except OSError as error:
        raise RecipeError(f"{file}: cannot be read: {error.strerror or error}") from None


def _root(value: dict[str, Any], folder: Path) -> None:
    """Make paths absolute that are relative to another folder than the recipe's own. What is amiss is told later."""
    silos = value.get("silos")
    own = silos.get("list") if isinstance(silos, dict) else silos
    for sets in [value.get("public"), *(own if isinstance(own, list) else [])]:
        for key in ("data", "train", "dev", "test"):
            match sets.get(key) if isinstance(sets, dict) else None:
                case str(one):
                    sets[key] = absolute(one, folder)
                case list(several):
                    sets[key] = [absolute(one, folder) if isinstance(one, str) else one for one in several]
    engine = value.get("engine")
    if isinstance(engine, dict) and isinstance(engine.get("pretrained"), str):
        engine["pretrained"] = _local(engine["pretrained"], folder)


# ── from plain values ───────────────────────────────────────────────────────────────────────────────────────────────


def _made(found: Document, overrides: Sequence[str], folder: Path | None, check: Check | None) -> Recipe:
    if found.value is None:
        found.value = {}
        if not overrides:
            raise RecipeError(f"{found.name}: is empty; a recipe has at least `silos`")
    if not isinstance(found.value, dict):
        raise RecipeError(f"{found.name}:1: is not a recipe; a recipe is a mapping of `key: value`")
    wrong = [text for override in overrides for text in _override(found, override)]
    checker = Checker(found)
    recipe = checker.model(Recipe, found.value)
    wrong = [*checker.mistakes, *wrong]
    if not wrong and recipe is not None:
        if folder is not None:
            recipe = _whole_paths(recipe, folder)
        for path, text in [*_crossed(recipe), *(check(recipe) if check else ())]:
            checker.mistake(path, text)
        wrong = checker.mistakes
    if wrong or recipe is None:
        raise RecipeError(wrong)
    return recipe


def _whole_paths(recipe: Recipe, folder: Path) -> Recipe:
    recipe = resolve(recipe, folder)
    if isinstance(recipe.engine, Pretrained):
        engine = recipe.engine.model_copy(update={"pretrained": _local(recipe.engine.pretrained, folder)})
        return recipe.model_copy(update={"engine": engine})
    return recipe


def _local(engine: str, folder: Path) -> str:
    """An engine's folder by its whole path; one of the hub by its name."""
    local = folder / Path(engine).expanduser()
    return str(local.resolve()) if local.is_dir() else engine


def _crossed(recipe: Recipe) -> Iterator[tuple[document.Steps, str]]:
    against = recipe.score.against
    run = ["public", "federated", *(name for name in recipe.baselines if name in ("combined", "chained"))]
    kind, colon, silo = against.partition(":")
    if colon and kind in ("alone", "personal"):
        if kind not in recipe.baselines:
            yield ("score", "against"), f"{against!r} needs `{kind}` among the baselines"
        elif (own := listed(recipe.silos)) and silo not in (names := [one.name for one in own]):
            yield ("score", "against"), f"no silo {silo!r}{meant(silo, names)}; allowed: {', '.join(names)}"
    elif against in ("combined", "chained") and against not in run:
        yield ("score", "against"), f"{against!r} needs `{against}` among the baselines"
    elif against not in run:
        known = [*run, *(f"{name}:SILO" for name in ("alone", "personal") if name in recipe.baselines)]
        yield ("score", "against"), f"{against!r} is not a model{meant(against, known)}; allowed: {', '.join(known)}"


# ── key.path=value ──────────────────────────────────────────────────────────────────────────────────────────────────


def _override(found: Document, override: str) -> list[str]:
    """Put one override in its place; what is wrong with it by itself. Whether its key is known shows later."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", key):
        return [f"{COMMAND_LINE}: {override!r} is not of the form key.path=value"]
    if key == LIKE:
        return [f"{COMMAND_LINE}: {LIKE}: stands at the top of a recipe's file; here, name that recipe itself"]
    try:
        value = document.compose(text, COMMAND_LINE).value
    except RecipeError:
        return [f"{COMMAND_LINE}: {key}: {text!r} is not a YAML value; quotes may help: {key}='\"…\"'"]
    path: document.Steps = ()
    current, rest = found.value, key.split(".")
    while rest:
        if isinstance(current, list):
            step, rest = _item(current, rest)
            if step is None:
                names = [name for one in current if (name := _name(one))]
                at = ".".join([*map(str, path), rest[0]])
                return [
                    f"{COMMAND_LINE}: {at}: there is none; allowed: {_listed(current, names)}{meant(rest[0], names)}"
                ]
            path = (*path, step)
        elif isinstance(current, dict):
            path, rest = (*path, rest[0]), rest[1:]
            if rest and current.get(path[-1]) is None:
                found.replace(path, {})
        else:
            return [f"{COMMAND_LINE}: {key}: {'.'.join(map(str, path))} is {current!r}, which holds no {rest[0]}"]
        if rest:
            current = current[path[-1]]
    found.replace(path, value)
    return []


def _item(items: list[Any], rest: list[str]) -> tuple[int | None, list[str]]:
    """Which item the next steps name, by its place or by its name; a name may hold dots."""
    for end in range(len(rest), 0, -1):
        name = ".".join(rest[:end])
        for index, item in enumerate(items):
            if _name(item) == name:
                return index, rest[end:]
    if rest[0].isdecimal() and int(rest[0]) < len(items):
        return int(rest[0]), rest[1:]
    return None, rest


def _name(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else None


def _listed(items: list[Any], names: list[str]) -> str:
    places = f"0 to {len(items) - 1}" if items else "nothing, the list is empty"
    return ", ".join([*names, places])
