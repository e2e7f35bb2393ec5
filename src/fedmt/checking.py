"""Plain values into typed ones: every mistake found at once, each in words. Knows no YAML and no file.

Pydantic checks the single values and the fields against each other. Which member of a union was meant, and what to say
to a person, is decided here, so that none of its own words reach one.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedmt import choices, recipe
from fedmt.document import COMMAND_LINE, Document, Steps

__all__ = ["Checker", "meant"]

Model = TypeVar("Model", bound=BaseModel)

# The one key whose value says which member of a union is meant.
TAGS = ("kind", "source")

_PATTERNS = {
    get_args(choices.Name)[1].metadata[0].pattern: (
        "a name",
        "a name of letters, digits, `.`, `_` and `-`, 64 at most, that begins with a letter or a digit",
    ),
    get_args(recipe.Language)[2].metadata[0].pattern: ("a language code", "a language code, like de, pt-BR or zh_Hans"),
}
_BAD = object()
_MARK = "\0"


def meant(word: str, known: Iterable[str]) -> str:
    """` did you mean …?`, or nothing when nothing is near."""
    near = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


class Checker:
    """Collects the mistakes of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found: list[tuple[float, str]] = []

    @property
    def mistakes(self) -> list[str]:
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]

    def mistake(self, path: Steps, text: str) -> None:
        place = self.document.place(path)
        line = float("inf") if place == COMMAND_LINE else int(f"0{place.rpartition(':')[2]}") if ":" in place else 0
        text, shown = text.replace("?; ", "? "), self._label(path)
        self._found.append((line, f"{place}: {shown}: {text}" if shown else f"{place}: {text}"))

    def _label(self, path: Steps) -> str:
        """The path as a person writes it: a silo by its name."""
        steps, value = [], self.document.value
        for step in path:
            try:
                value = value[step]
            except (LookupError, TypeError):
                value = None
            name = value.get("name") if isinstance(step, int) and isinstance(value, dict) else None
            steps.append(name if isinstance(name, str) and name else str(step))
        return ".".join(steps)

    def model(self, kind: type[Model], raw: dict[str, Any], path: Steps = ()) -> Model | None:
        """The typed value, whole when no mistake was found; else what could be made of the rest, or nothing."""
        fields = {field.alias or name: (name, field) for name, field in kind.model_fields.items()}
        unknown = [key for key in raw if key not in fields]
        good: dict[str, Any] = {}
        bad: set[str] = set()
        for key in unknown:
            self.mistake((*path, key), _unknown(key, kind, top=not path))
        misspelt = {near for key in unknown for near in difflib.get_close_matches(key, fields, 1, 0.6)}
        before = len(self._found)
        for key, (_, field) in fields.items():
            value: Any = _BAD
            if key in raw:
                value = self._value(field, raw[key], (*path, key), kind.model_config)
            elif not field.is_required() and key not in misspelt:
                continue
            elif key not in misspelt:
                self.mistake((*path, key), f"is missing; allowed: {_allowed(field.annotation, field.metadata)}")
            if value is _BAD:
                bad.add(key)
            else:
                good[key] = value
        parts: dict[str, Any] = {fields[key][0]: value for key, value in good.items()}
        # No other value is equal to a mark, so that what is not known breaks no rule.
        parts |= {fields[key][0]: f"{_MARK}{path}{key}" for key in bad}
        self._cross(kind.model_construct(**parts), path)
        whole = not unknown and len(self._found) == before
        return kind.model_validate(good) if whole else kind.model_construct(**parts)

    def _cross(self, made: BaseModel, path: Steps) -> None:
        """What only the fields together can show: all the rules that are broken, where Pydantic stops at the first."""
        for rule in type(made).__pydantic_decorators__.model_validators.values():
            try:
                rule.func(made)
            except ValueError as error:
                text = str(error)
                named = re.match(r"([a-z_]+): ", text)
                key = named[1] if named and named[1] in type(made).model_fields else None
                if _MARK not in text:
                    self.mistake(path if key is None else (*path, key), text if key is None else text[len(key) + 2 :])
            except (AttributeError, TypeError):
                continue  # a mark stands where the rule reads something else

    def _value(self, field: FieldInfo, raw: Any, path: Steps, config: ConfigDict) -> Any:
        models = _models(field.annotation)
        items = _items(field.annotation)
        if not models and items is None:
            return self._leaf(field.annotation, field.metadata, raw, path, config)
        if raw is None and type(None) in get_args(field.annotation):
            return None
        if isinstance(raw, list) and items is not None:
            if not raw:
                self.mistake(path, "is empty; allowed: one silo or more")
            return [made for index, item in enumerate(raw) if (made := self._one([items], item, (*path, index)))]
        untagged = isinstance(raw, dict) and not any(tag in raw for tag in TAGS)
        if untagged and items is not None and _fit(items, raw) >= max(_fit(kind, raw) for kind in models):
            self.mistake(path, f"must be a list, each begun with `-`; allowed: {_allowed(field.annotation, [])}")
            return _BAD
        made = self._one(models, raw, path, _allowed(field.annotation, field.metadata))
        return _BAD if made is None else made

    def _one(self, kinds: list[type[BaseModel]], raw: Any, path: Steps, allowed: str = "") -> BaseModel | None:
        allowed = allowed or " or ".join(_shape(kind) for kind in kinds)
        if not isinstance(raw, dict):
            tag = next((tag for tag in TAGS if isinstance(raw, str) and raw in _tagged(kinds, tag)), None)
            hint = f"; did you mean {{{tag}: {raw}}}?" if tag else ""
            empty = "is empty" if raw is None else f"{_shown(raw)} is not a mapping"
            self.mistake(path, f"{empty}{hint}; allowed: {allowed}")
            return None
        kind = kinds[0] if len(kinds) == 1 else self._chosen(kinds, raw, path)
        return None if kind is None else self.model(kind, raw, path)

    def _chosen(self, kinds: list[type[BaseModel]], raw: dict[str, Any], path: Steps) -> type[BaseModel] | None:
        """The member of a union that was meant: by its tag, or by the keys that are there."""
        for tag in TAGS:
            known = _tagged(kinds, tag)
            if not known:
                continue
            names = ", ".join(known)
            if tag in raw:
                if raw[tag] not in list(known):
                    near = meant(str(raw[tag]), known)
                    self.mistake((*path, tag), f"{_shown(raw[tag])} is not known{near}; allowed: {names}")
                    return None
                return known[raw[tag]]
            if len(known) == len(kinds):
                self.mistake((*path, tag), f"is missing; allowed: {names}")
                return None
        return max(kinds, key=lambda kind: _fit(kind, raw))

    def _leaf(self, annotation: Any, metadata: list[Any], raw: Any, path: Steps, config: ConfigDict) -> Any:
        allowed = _allowed(annotation, metadata)
        flat = [kind for kind, _ in _members(annotation, metadata)]
        error: ValidationError | None = None
        # Pydantic takes true for 1.
        if not (isinstance(raw, bool) and bool not in flat and (int in flat or float in flat)):
            try:
                return _adapter(annotation, metadata, config).validate_python(raw)
            except ValidationError as caught:
                error = caught
        inner = next((kind for kind in flat if get_origin(kind) is list), None)
        if isinstance(raw, list) and raw and inner is not None:
            before = len(self._found)
            for index, item in enumerate(raw):
                self._leaf(get_args(inner)[0], [], item, (*path, index), config)
            if len(self._found) > before:
                return _BAD
        self.mistake(path, f"{_wrong(raw, flat, annotation, metadata, error)}; allowed: {allowed}")
        return _BAD


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _wrong(raw: Any, flat: list[Any], annotation: Any, metadata: list[Any], error: ValidationError | None) -> str:
    shown = _shown(raw)
    kinds = {one["type"] for one in error.errors()} if error else set()
    if raw is None or raw in ("", [], {}):
        return "is empty"
    for prefix, words in (("greater", "small"), ("less", "large"), ("int_parsing_size", "large")):
        if any(kind.startswith(prefix) for kind in kinds):
            return f"{shown} is too {words}"
    if "finite_number" in kinds:
        return f"{shown} is not a finite number"
    if all(get_origin(kind) is Literal for kind in flat if kind is not type(None)):
        return f"{shown} is not known{meant(str(raw), _literals(flat))}"
    noun = _noun(*next(member for member in _members(annotation, metadata) if member[0] is not type(None)))
    quotes = "; write it in quotes" if str in flat and isinstance(raw, (int, float)) else ""
    near = meant(raw, _literals(flat)) if isinstance(raw, str) else ""
    return f"{shown} is not {noun}{quotes}{near}"


def _literals(flat: list[Any]) -> list[str]:
    return [str(word) for kind in flat if get_origin(kind) is Literal for word in get_args(kind)]


def _shown(raw: Any) -> str:
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, dict):
        return "a mapping"
    if isinstance(raw, list):
        return "a list"
    text = repr(raw)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _noun(kind: Any, metadata: list[Any]) -> str:
    pattern = next((one.pattern for one in metadata if getattr(one, "pattern", None)), None)
    if pattern in _PATTERNS:
        return _PATTERNS[pattern][0]
    if get_origin(kind) is list:
        return "a list"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, "known")


def _allowed(annotation: Any, metadata: Iterable[Any]) -> str:
    """What a field takes, in words."""
    words = []
    for kind, limits in _members(annotation, list(metadata)):
        if kind is type(None):
            words.append("null")
        elif get_origin(kind) is Literal:
            words.extend(map(str, get_args(kind)))
        elif get_origin(kind) is list:
            inner = get_args(kind)[0]
            text = _shape(inner) if _is_model(inner) else _allowed(inner, [])
            words.append(f"a list of {text}" if inner is not str else "a file, or a list of files")
        elif _is_model(kind):
            words.append(_shape(kind))
        else:
            pattern = next((one.pattern for one in limits if getattr(one, "pattern", None)), None)
            words.append(_PATTERNS[pattern][1] if pattern in _PATTERNS else f"{_noun(kind, limits)}{_range(limits)}")
    # Literals are a plain list; other things that may stand side by side read better apart.
    return ", ".join(words) if len(words) < 2 or " " not in "".join(words) else ", or ".join(words)


def _range(limits: list[Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {value}"
        for name, sign in signs.items()
        for one in limits
        if (value := getattr(one, name, None)) is not None
    ]
    return f" {' and '.join(found)}" if found else ""


def _shape(kind: type[BaseModel]) -> str:
    """A mapping by its keys; a method, of which there are many, by its kind and what it must be told."""
    tag = next((tag for tag in TAGS if tag in kind.model_fields), None)
    keys = []
    for name, field in kind.model_fields.items():
        key = field.alias or name
        if name == tag:
            keys.append(f"{key}: {get_args(field.annotation)[0]}")
        elif tag != "kind" or field.is_required():
            keys.append(key)
    return f"{{{', '.join(keys)}}}"


def _unknown(key: str, kind: type[BaseModel], *, top: bool) -> str:
    known = [field.alias or name for name, field in kind.model_fields.items()]
    near = meant(key, known)
    if key.partition(":")[0] in known:
        near = f"; did you mean `{key.replace(':', ': ')}`, with a space?"
    elif top and 0 < len(_below().get(key, ())) <= 3:
        near = f"; did you mean `{'` or `'.join(_below()[key])}`?"
    elif not top and key in recipe.Recipe.model_fields:
        near = f"; did you mean `{key}` at the top of the recipe?"
    return f"is not known here{near}; allowed: {', '.join(known)}"


@cache
def _below() -> dict[str, list[str]]:
    """Where in a recipe a key belongs that someone wrote at its top."""
    found: dict[str, list[str]] = {}
    for name, field in recipe.Recipe.model_fields.items():
        for kind in _models(field.annotation):
            for inner in kind.model_fields:
                labels = found.setdefault(inner, [])
                labels.extend({f"{name}.{inner}"} - set(labels))
    return found


# ── types ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _members(annotation: Any, metadata: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The members of a union, each with what limits it."""
    if get_origin(annotation) is Annotated:
        kind, *more = get_args(annotation)
        limits = [limit for one in more for limit in (one.metadata if isinstance(one, FieldInfo) else [one])]
        yield from _members(kind, [*limits, *metadata])
    elif get_origin(annotation) in (Union, types.UnionType):
        for kind in get_args(annotation):
            yield from _members(kind, metadata)
    else:
        yield annotation, metadata


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [kind for kind, _ in _members(annotation, []) if _is_model(kind)]


def _items(annotation: Any) -> type[BaseModel] | None:
    """The model of which a field takes a list, if it does."""
    lists = [get_args(kind)[0] for kind, _ in _members(annotation, []) if get_origin(kind) is list]
    return next((inner for inner in lists if _is_model(inner)), None)


def _tagged(kinds: list[type[BaseModel]], tag: str) -> dict[str, type[BaseModel]]:
    return {get_args(kind.model_fields[tag].annotation)[0]: kind for kind in kinds if tag in kind.model_fields}


def _fit(kind: type[BaseModel], raw: dict[str, Any]) -> tuple[int, int]:
    """How many of the keys that are there this model knows, and how many of those it needs."""
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    near = [match for key in raw for match in difflib.get_close_matches(key, fields, 1, 0.75)]
    return len(near), sum(fields[key].is_required() for key in near)


def _adapter(annotation: Any, metadata: list[Any], config: ConfigDict) -> TypeAdapter[Any]:
    plain = ConfigDict(allow_inf_nan=False, str_strip_whitespace=bool(config.get("str_strip_whitespace")))
    wanted: Any = Annotated[annotation, *metadata] if metadata else annotation
    adapter: TypeAdapter[Any] = TypeAdapter(wanted, config=plain)
    return adapter
