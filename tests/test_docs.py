"""The documents say what is so: their recipes parse, their commands exist, their links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import fedmt
from fedmt import reading
from fedmt.cli.main import app
from fedmt.corpus.packages import PACKAGES, PRESETS
from fedmt.corpus.reader import ENDINGS, FORMATS
from fedmt.recipe import PypiSilos

ROOT = Path(__file__).resolve().parent.parent
PAGES = [path for folder in (".", "docs", "bench") for path in sorted((ROOT / folder).glob("*.md"))]
PACKAGE = Path(fedmt.__file__).parent
NEEDED = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
NEEDED += [f"docs/{name}.md" for name in ("architecture", "recipes", "corpora", "deploy", "papers", "log")]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks of a page in some languages, each with the line it begins at."""
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1] in languages:
            yield text.count("\n", 0, match.start()) + 2, match[2]


def test_every_document_is_there() -> None:
    assert [name for name in NEEDED if not (ROOT / name).is_file()] == []


# ── recipes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

RECIPES = [
    pytest.param(text, id=f"{name_of(path)}:{line}") for path in PAGES for line, text in blocks(path, "yaml") if text
]
# What a fragment of a recipe leaves out, so that it can be read as one.
REST = {"silos": {"source": "toy"}, "public": {"source": "toy"}}


@pytest.mark.parametrize("text", RECIPES)
def test_recipes_in_documents_are_recipes(text: str) -> None:
    keys = set(yaml.safe_load(text))
    missing = {key: value for key, value in REST.items() if key not in keys}
    reading.parse(text + yaml.safe_dump(missing) if missing else text, "a document")


def test_the_readme_has_a_recipe_of_ones_own_files() -> None:
    whole = [text for _, text in blocks(ROOT / "README.md", "yaml") if "silos:" in text]
    found = [reading.parse(text, "README.md") for text in whole]
    assert any(isinstance(recipe.silos, list) for recipe in found)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").rglob("*.yaml")), ids=name_of)
def test_every_recipe_that_comes_along_is_one(path: Path) -> None:
    assert reading.parse(path.read_text(encoding="utf-8"), name_of(path)).name == path.stem


def keys() -> Any:
    spec = importlib.util.spec_from_file_location("keys", ROOT / "docs/keys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_keys_are_those_of_the_types() -> None:
    text = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    assert keys().renewed(text) == text, "docs/recipes.md is out of date; mend it by: make docs"


def test_the_example_of_a_mistake_is_what_the_program_says() -> None:
    text = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    shown = next(line for line in text.splitlines() if line.startswith("error: courts.yaml"))
    wrong = (ROOT / "recipes/courts.yaml").read_text(encoding="utf-8").replace("{kind: samples}", "{kind: sample}")
    with pytest.raises(fedmt.InputError) as caught:
        reading.parse(wrong, "courts.yaml")
    assert shown == f"error: {caught.value}"


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


def lines(path: Path) -> Iterator[tuple[int, str]]:
    for start, text in blocks(path, "sh"):
        for number, line in enumerate(text.splitlines(), start):
            for part in line.split(" # ")[0].split("|"):
                yield number, part.strip()


def commands(*programs: str) -> list[Any]:
    return [
        pytest.param(line, id=f"{name_of(path)}:{number}")
        for path in PAGES
        for number, line in lines(path)
        if line.split(" ")[0].rpartition("/")[2] in programs
    ]


@pytest.mark.parametrize("line", commands("fedmt"))
def test_commands_in_documents_exist_with_their_options(line: str) -> None:
    """Parsed as the program would, and not carried out."""
    command: Any = typer.main.get_command(app)
    arguments = shlex.split(re.split("[<>]", line)[0])[1:]
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(line, arguments)


@pytest.mark.parametrize("line", commands("make"))
def test_targets_in_documents_exist(line: str) -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {word for word in line.split()[1:] if "=" not in word and not word.startswith("-")} <= targets


def test_the_makefile_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY: help")).split()[1:]
    shown = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in shown.stdout.splitlines()] == phony


# ── links and names ─────────────────────────────────────────────────────────────────────────────────────────────────


def anchors(path: Path) -> set[str]:
    """As a forge makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.exists(), f"{name_of(path)}: {link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name_of(path)}: {name_of(target)} has no heading {anchor}"


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a checkout")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_nothing_names_the_machine_it_was_written_on() -> None:
    private = re.compile(r"(?<![\w.}])/(?:work|root|home/\w+|Users/\w+|tmp/w)/")
    for path in tracked():
        text = path.read_text(encoding="utf-8", errors="replace")
        if path != Path(__file__) and (found := private.search(text)):
            line = text.count("\n", 0, found.start()) + 1
            pytest.fail(f"{name_of(path)}:{line}: names {found[0]}")


# ── architecture ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_map_names_every_module_and_no_other() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    told = text.split("## Modules")[1].split("\n## ")[0]
    for paragraph in re.split(r"\n\n", told):
        head = re.match(r"\*\*(\w+/|Above all|For all)\*\*: ", paragraph)
        if head is None:
            continue
        folder = PACKAGE / head[1] if head[1].endswith("/") else PACKAGE
        named = {folder / name for name in re.findall(r"`(\w+\.py)`", paragraph)}
        assert [str(path) for path in named if not path.is_file()] == []
    known = {path.name for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    assert known == set(re.findall(r"`(\w+\.py)`", told))


CONTRACTS = "\n".join(text for _, text in blocks(ROOT / "docs/architecture.md", "python"))


def contracts() -> Iterator[Any]:
    package = ""
    for line in CONTRACTS.splitlines():
        if line.startswith("# "):
            package = "" if line == "# the top" else line.removeprefix("# ").removesuffix("/")
        elif line:
            match = re.match(r"([\w.]+)(?:\((.*?)\))?(?:\s+#.*)?$", line)
            assert match is not None, line
            name = ".".join(filter(None, ("fedmt", package, match[1])))
            yield pytest.param(name, match[2], id=name)


@pytest.mark.parametrize(("name", "parameters"), list(contracts()))
def test_contracts_are_those_of_the_code(name: str, parameters: str | None) -> None:
    module: Any = fedmt
    steps = name.split(".")[1:]
    while steps and importlib.util.find_spec(f"{module.__name__}.{steps[0]}"):
        module = importlib.import_module(f"{module.__name__}.{steps.pop(0)}")
        if not hasattr(module, "__path__"):
            break
    found = module
    for step in steps:
        found = getattr(found, step)
    if parameters is None:
        return
    told = [word.strip() for word in parameters.split(",") if word.strip()]
    real = [one for one in inspect.signature(found).parameters if one != "self"]
    if told[-1:] == ["…"]:
        assert real[: len(told) - 1] == told[:-1]
    else:
        assert real == told


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(path: Path) -> list[list[str]]:
    """All rows of all tables of a page, a list of cells each."""
    text = path.read_text(encoding="utf-8")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_the_documented_packages_are_those_there_are() -> None:
    told = {cells[0]: cells[1:] for cells in rows(ROOT / "docs/corpora.md") if cells[0] in PACKAGES}
    real = {
        package.name: [package.organisation, package.version, package.licence, package.about]
        for package in PACKAGES.values()
    }
    assert told == real


def test_the_readme_says_how_much_the_demo_downloads() -> None:
    silos = reading.parse((ROOT / "recipes/demo.yaml").read_text(encoding="utf-8"), "demo").silos
    assert isinstance(silos, PypiSilos)
    preset = PRESETS[silos.preset]
    used = {one.package for one in preset.silos if silos.names is None or one.name in silos.names}
    used |= {one.package for one in preset.public}
    told = re.search(r"(\d+) MB, once", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert told is not None
    assert int(told[1]) == pytest.approx(sum(PACKAGES[name].size for name in used) / 1e6, abs=5)


def test_the_documented_formats_and_presets_are_those_there_are() -> None:
    told = {cells[0].strip("`"): cells for cells in rows(ROOT / "docs/corpora.md")}
    assert set(FORMATS) | set(PRESETS) <= set(told)
    for ending, format in ENDINGS.items():
        assert f"`{ending}`" in told[format][1], f"docs/corpora.md does not say that {ending} is {format}"
