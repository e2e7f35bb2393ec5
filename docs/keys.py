"""The tables of docs/recipes.md, made from the recipe's types: `make docs` writes them anew.

A test fails when the file and the types no longer agree.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedmt import checking, recipe

PAGE = Path(__file__).with_name("recipes.md")
BEGIN, END = "<!-- keys: written by `make docs` -->", "<!-- end of keys -->"

_NAME = "a name of letters, digits, `.`, `_` and `-`, 64 at most, that begins with a letter or a digit"
# What the page explains once, above the tables.
SHORTER = {
    f"list of {_NAME}": "list of names",
    _NAME: "a name",
    "a language code, like de, pt-BR or zh_Hans": "a language code",
    "list of public, alone,": "list of any of public, alone,",
}


def renewed(text: str) -> str:
    """The page with its tables as they should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *section("", [recipe.Recipe]), END + after])


def section(path: str, kinds: list[type[BaseModel]]) -> Iterator[str]:
    """What may stand at a path, one table a kind of thing; then all that is below it."""
    yield from (f"### `{path}`" if path else "### At the top", "")
    below: dict[str, list[type[BaseModel]]] = {}
    for kind in kinds:
        rows = []
        for name, field in kind.model_fields.items():
            if fixed(name, field):
                continue
            deeper, found = f"{path}.{name}".lstrip("."), inner(field)
            # What has the shape of its neighbour is told there.
            told = next((one for one, other in below.items() if other == found), deeper)
            if found and told == deeper:
                below[deeper] = found
            rows.append(row(field.alias or name, field, told.replace(".", "") if found else ""))
        if path and (said := f"{opening(kind)}{sentence(kind)}"):
            yield from (said, "")
        if rows:
            yield from ("| key | default | allowed | meaning |", "| --- | --- | --- | --- |", *rows, "")
    for deeper, found in below.items():
        yield from section(deeper, found)


def row(key: str, field: FieldInfo, anchor: str) -> str:
    allowed = f"[a mapping](#{anchor})" if anchor else checking._allowed(field.annotation, field.metadata)
    for long, short in SHORTER.items():
        allowed = allowed.replace(long, short)
    if anchor and any(map(is_list, members(field))):
        allowed += ", or a list of them" if len(inner(field)) > 1 else ""
    assert field.description, f"{key} has no description"
    return f"| `{key}` | {default(field)} | {allowed} | {field.description} |"


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        kind = next((getattr(value, name) for name in checking.TAGS if name in type(value).model_fields), None)
        return f"`{kind}`" if kind else "as below"
    return "none" if value is None else f"`{json.dumps(value).strip(chr(34))}`"


def opening(kind: type[BaseModel]) -> str:
    """What tells this kind of thing from the others that may stand in its place."""
    name = next((name for name in checking.TAGS if name in kind.model_fields), None)
    return f"`{name}: {get_args(kind.model_fields[name].annotation)[0]}`. " if name else ""


def fixed(name: str, field: FieldInfo) -> bool:
    return name in checking.TAGS and len(get_args(field.annotation)) == 1


def sentence(kind: type[BaseModel]) -> str:
    own = kind.__doc__ if kind.__doc__ and "!!!" not in kind.__doc__ else ""
    return " ".join(inspect.cleandoc(own).split())


def members(field: FieldInfo) -> list[Any]:
    return [kind for kind, _ in checking._members(field.annotation, [])]


def is_list(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is list


def inner(field: FieldInfo) -> list[type[BaseModel]]:
    item = checking._items(field.annotation)
    return [*checking._models(field.annotation), *([item] if item else [])]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
