"""YAML into plain values, and the place that each stands at. Knows nothing of recipes.

The scalars are those of YAML 1.2: `no`, `on` and `1:30` are text, `1e-3` is a number. A key is the text it is written
as, whatever it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import yaml

from fedmt.errors import RecipeError

__all__ = ["COMMAND_LINE", "Document", "Steps", "compose", "dump"]

Steps: TypeAlias = tuple[str | int, ...]

COMMAND_LINE = "command line"
LARGEST = 1_000_000
MOST_VALUES = 100_000
DEEPEST = 40

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INT = re.compile(r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"~|null|Null|NULL|")
_MERGE = "tag:yaml.org,2002:merge"
_CORE = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}


@dataclass
class Document:
    """`value` is made of dict, list, str, int, float, bool and None."""

    name: str
    value: Any = None
    lines: dict[Steps, int] = field(default_factory=dict)
    # Which document a value is from, if it is another's.
    others: dict[Steps, str] = field(default_factory=dict)
    commanded: set[Steps] = field(default_factory=set)

    def place(self, path: Steps) -> str:
        """Where the value at `path` stands, or the nearest that holds it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.commanded:
                return COMMAND_LINE
            if path[:end] in self.lines:
                return f"{self.others.get(path[:end], self.name)}:{self.lines[path[:end]]}"
        return self.name

    def replace(self, path: Steps, value: Any) -> None:
        """Put `value` at `path`, whose parent exists, as the command line asks."""
        parent = self.value
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = value
        for known in [known for known in self.lines if known[: len(path)] == path]:
            del self.lines[known]
        self.commanded.add(path)

    def lay_over(self, below: Document, tags: Sequence[str]) -> None:
        """Take from `below` what does not stand here. Both hold mappings.

        Mappings are gone into, unless this one's says by one of the `tags` that it is another kind of thing.
        """
        taken: set[Steps] = set()

        def fill(own: Any, other: Any, path: Steps) -> None:
            if not isinstance(own, dict) or not isinstance(other, dict):
                return
            if any(own[tag] != other.get(tag) for tag in tags if tag in own):
                return
            for key, value in other.items():
                if key in own:
                    fill(own[key], value, (*path, key))
                else:
                    own[key] = value
                    taken.add((*path, key))

        fill(self.value, below.value, ())
        for path, line in below.lines.items():
            if any(path[:end] in taken for end in range(1, len(path) + 1)):
                self.lines[path] = line
                self.others[path] = below.others.get(path, below.name)


class Loader(yaml.SafeLoader):
    pass


Loader.yaml_implicit_resolvers = {}
Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(f"^(?:{_NULL.pattern})$"), None)
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(f"^(?:{_BOOL.pattern})$"), list("tTfF"))
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(f"^(?:{_INT.pattern})$"), list("-+0123456789"))
Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+.0123456789"))
Loader.add_implicit_resolver(_MERGE, re.compile(r"^<<$"), ["<"])


def compose(text: str | bytes, name: str) -> Document:
    """The document that `text` holds. Every mistake that keeps it from being read is reported at once."""
    if len(text) > LARGEST:
        raise RecipeError(f"{name}: is too large for a recipe, which has at most {LARGEST / 1e6:.0f} MB")
    document = Document(name)
    try:
        loader = Loader(_decode(text, name))
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise RecipeError(_unreadable(error, name)) from None
    except yaml.reader.ReaderError as error:
        where = _position(text, error.position)
        raise RecipeError(f"{name}:{where}: is not YAML: the character {_shown(error.character)}") from None
    except RecursionError:
        raise RecipeError(f"{name}: is nested too deep; at most {DEEPEST} levels") from None
    if node is None:
        return document
    reader = _Reader(document)
    document.value = reader.read(node, (), ())
    if reader.mistakes:
        raise RecipeError(reader.mistakes)
    return document


def dump(value: Any) -> str:
    """YAML that reads back the same here, and in a reader of YAML 1.1 too."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - a file to be read by people has no anchors
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = any(pattern.fullmatch(text) for pattern in (_INT, _FLOAT, _BOOL, _NULL))
    # What is not printable stands escaped: some of it would be folded away as a line's end.
    style = '"' if not text.isprintable() else "'" if plain else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.mistakes: list[str] = []
        self.values = 0

    def read(self, node: yaml.Node, path: Steps, above: tuple[yaml.Node, ...]) -> Any:
        line = node.start_mark.line + 1
        self.document.lines.setdefault(path, line)
        self.values += 1
        # Aliases are copied, so a few lines of them could grow without bound, and a cycle without end.
        if self.values > MOST_VALUES:
            self._grown(node)
        if any(node is upper for upper in above):
            raise RecipeError(f"{self.document.name}:{line}: {self._at(path)}an alias that holds itself")
        if len(above) >= DEEPEST:
            raise RecipeError(f"{self.document.name}:{line}: is nested too deep; at most {DEEPEST} levels")
        if node.tag not in _CORE and node.tag != _MERGE:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._mistake(line, path, f"the tag {tag} is not known here; write the value without it")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*above, node))
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index), (*above, node)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Steps, above: tuple[yaml.Node, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key, value in self._keys(node, path):
            name, line = key.value, key.start_mark.line + 1
            if name in first:
                self._mistake(line, (*path, name), f"stands twice, first in line {first[name]}")
                continue
            first[name] = line
            self.document.lines[(*path, name)] = line
            found[name] = self.read(value, (*path, name), above)
        # What `<<` adds gives way to the keys that stand here, and an earlier `<<` goes before a later one.
        for other in self._merged(node):
            if isinstance(other, yaml.MappingNode):
                for key, value in self._keys(other, path):
                    if key.value not in found:
                        self.document.lines[(*path, key.value)] = key.start_mark.line + 1
                        found[key.value] = self.read(value, (*path, key.value), above)
            else:
                self._mistake(other.start_mark.line + 1, path, "`<<` wants a mapping")
        return found

    def _keys(self, node: yaml.MappingNode, path: Steps) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            if isinstance(key, yaml.ScalarNode):
                yield key, value
            else:
                self._mistake(key.start_mark.line + 1, path, "a key must be a word")

    def _merged(self, node: yaml.MappingNode, depth: int = 0) -> Iterator[yaml.Node]:
        for key, value in node.value:
            if key.tag == _MERGE and depth < DEEPEST:
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    self.values += 1
                    if self.values > MOST_VALUES:
                        self._grown(key)
                    yield other
                    if isinstance(other, yaml.MappingNode):
                        yield from self._merged(other, depth + 1)

    def _grown(self, node: yaml.Node) -> NoReturn:
        line = node.start_mark.line + 1
        raise RecipeError(f"{self.document.name}:{line}: its aliases grow to more than {MOST_VALUES} values")

    def _scalar(self, node: yaml.ScalarNode, path: Steps) -> Any:
        kind = node.tag.rpartition(":")[2]
        text = node.value
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text, 0 if text[:2].lower() in ("0o", "0x") else 10)
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (KeyError, ValueError):
            self._mistake(node.start_mark.line + 1, path, f"{text!r} is not what its tag !!{kind} says")
            return None
        return text

    def _mistake(self, line: int, path: Steps, text: str) -> None:
        self.mistakes.append(f"{self.document.name}:{line}: {self._at(path)}{text}")

    @staticmethod
    def _at(path: Steps) -> str:
        return f"{'.'.join(map(str, path))}: " if path else ""


def _decode(text: str | bytes, name: str) -> str:
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    encoding = "utf-16" if text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return text.decode(encoding)
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{name}:{line}: is not text in UTF-8") from None


def _unreadable(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    problem = (error.problem or error.context or "").replace("\n", " ")
    if "single document" in (error.context or ""):
        return f"{where}: a second document begins here; a recipe is one"
    if r"'\t'" in problem:
        return f"{where}: is not YAML: a tab; indent by spaces"
    if problem == "mapping values are not allowed here":
        problem = "a `:` where none can stand; text that holds one needs quotes"
    return f"{where}: is not YAML: {problem}"


def _position(text: str | bytes, index: int) -> str:
    before = (text if isinstance(text, str) else text.decode("utf-8", "replace"))[:index]
    return f"{before.count(chr(10)) + 1}:{index - before.rfind(chr(10))}"


def _shown(character: Any) -> str:
    return f"U+{character:04X}" if isinstance(character, int) else repr(character)
