"""Which module may import which, held by reading the source of every one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedmt

ROOT = Path(fedmt.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# What each package may import besides itself and what all may import: data flows one way.
MAY_IMPORT = {
    "corpus": set(),
    "engine": {"corpus"},
    "exchange": set(),
    "score": set(),
    "federation": {"exchange", "memory"},
    "report": {"corpus.pairs", "exchange", "score"},
    "footing": {"learner", "corpus", "engine", "federation"},
    "learner": {"corpus", "engine", "federation", "memory", "score"},
    "remembrance": {"learner", "corpus.pairs", "engine", "exchange", "federation", "memory", "report"},
    "experiment": {
        "footing",
        "learner",
        "remembrance",
        "corpus",
        "engine",
        "exchange",
        "federation",
        "score",
        "report",
    },
    "cli": {
        "corpus",
        "engine",
        "exchange",
        "federation",
        "memory",
        "privacy",
        "score",
        "report",
        "experiment",
        "sites",
    },
    "sites": {"experiment", "footing", "learner", "corpus", "engine", "exchange", "federation", "memory", "report"},
    "app": {"cli.live", "federation.flower", "sites"},
    "serve": {"corpus", "engine", "report"},
    "memory": {"corpus.languages", "corpus.pairs", "engine", "exchange"},
    "privacy": {"corpus.batches", "corpus.pairs", "engine", "exchange", "federation", "memory", "score"},
}
FOR_ALL = {"choices", "place", "recipe", "reading", "errors", "events", "files", "checking", "document"}
# What those may import of each other, so that none of them pulls in more than its name says.
AMONG_THEM = {
    "errors": set(),
    "events": set(),
    "files": {"errors"},
    "choices": set(),
    "place": set(),
    "recipe": {"errors", "choices"},
    "document": {"errors"},
    "checking": {"errors", "document", "choices", "recipe"},
    "reading": {"errors", "document", "recipe", "checking", "files"},
}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever it does so, as a full name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = ROOT.parent.joinpath(*full.split("."))
                yield full if known.with_suffix(".py").is_file() or known.is_dir() else str(node.module), node.lineno


def within(name: str, allowed: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allowed)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    name = name_of(path)
    package = name.partition(".")[0]
    if package in ("__init__", "__main__"):
        return
    if package in FOR_ALL:
        allowed = AMONG_THEM[package] | {package}
    else:
        assert package in MAY_IMPORT, f"{package}: say in this test, and in docs/architecture.md, what it may import"
        allowed = MAY_IMPORT[package] | FOR_ALL | {package}
    for module, line in imports(path):
        inner = module.removeprefix("fedmt.")
        if module == inner or within(inner, allowed):
            continue
        pytest.fail(f"{path.relative_to(ROOT)}:{line}: {package} may not import {inner}")


def roots(path: Path) -> dict[str, int]:
    return {module.partition(".")[0]: line for module, line in imports(path)}


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("flwr", {"federation/flower.py", "sites/supernode.py", "app/server.py", "app/client.py"}),
        ("pickle", set()),
        ("cPickle", set()),
        ("dill", set()),
        ("cloudpickle", set()),
        ("joblib", set()),
        ("shelve", set()),
        ("marshal", set()),
    ],
)
def test_libraries_stay_where_they_belong(library: str, allowed: set[str]) -> None:
    found = {str(path.relative_to(ROOT)) for path in MODULES if library in roots(path)}
    assert found <= allowed


@pytest.mark.parametrize(
    ("package", "libraries"),
    [
        ("corpus", {"transformers", "sentencepiece", "safetensors"}),
        ("exchange", {"transformers", "sentencepiece", "lxml", "polib", "socket", "requests"}),
        ("federation", {"transformers", "sentencepiece", "lxml", "polib", "datasets"}),
        ("report", {"transformers", "sentencepiece"}),
        ("engine", {"lxml", "polib"}),
    ],
)
def test_a_package_does_not_know_what_its_docstring_says_it_does_not(package: str, libraries: set[str]) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert not libraries & set(roots(path)), f"{path.relative_to(ROOT)} knows too much"


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_that_others_give_is_run_as_a_program(path: Path) -> None:
    """No pickle, no YAML of arbitrary objects, no code from the hub, no shell."""
    for function, node in calls(path):
        where = f"{path.relative_to(ROOT)}:{node.lineno}"
        assert function not in ("torch.load", "torch.save", "eval", "exec", "os.system", "numpy.load", "np.load"), where
        assert function not in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"), where
        for keyword in node.keywords:
            name, value = keyword.arg, ast.unparse(keyword.value)
            assert (name, value) not in (("shell", "True"), ("trust_remote_code", "True")), where
            assert (name, value) not in (("weights_only", "False"), ("allow_pickle", "True")), where


def test_every_module_says_what_it_is() -> None:
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree) or not tree.body, f"{path.relative_to(ROOT)} has no docstring"


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


SLOW = ["torch", "transformers", "numpy", "sacrebleu", "lxml", "sentencepiece", "fedmt.recipe"]


@pytest.mark.parametrize(
    "code",
    [
        "import fedmt",
        "from fedmt.cli.main import call; call(['--help'])",
        "from fedmt.cli.main import call; call(['run', '--help'])",
        "from fedmt.cli.main import call; call(['--version'])",
    ],
)
def test_what_is_quick_imports_nothing_that_is_slow(code: str) -> None:
    assert run_python(f"{code}\nimport sys\nprint([name for name in {SLOW} if name in sys.modules])").endswith("[]")


@pytest.mark.parametrize("code", ["import fedmt.recipe", "import fedmt.reading", "import fedmt.events"])
def test_reading_a_recipe_needs_no_torch(code: str) -> None:
    assert run_python(f"{code}\nimport sys\nprint('torch' in sys.modules)") == "False"


def test_the_public_surface_is_what_it_says() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedmt.")
        for alias in node.names
    }
    assert typed | {"__version__"} == set(fedmt.__all__) == set(dir(fedmt))
    for name in fedmt.__all__:
        assert getattr(fedmt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedmt.nothing
