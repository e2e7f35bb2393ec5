"""What is installed is what was meant: the wheel holds all that the program reads, and the lock is exact and whole."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import fedmt

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_wheel_holds_all_that_the_program_reads(tmp_path: Path) -> None:
    source = ROOT / "src"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(source, tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    make = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    subprocess.run([*make, "."], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    there = {str(path.relative_to(tmp_path / "src")) for path in (tmp_path / "src/fedmt").rglob("*") if path.is_file()}
    assert {"fedmt/py.typed", "fedmt/recipes/demo.yaml", "fedmt/report/page.css", "fedmt/report/page.js"} <= there
    assert there == {name for name in names if name.startswith("fedmt/")}
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert set(re.findall(r"^Provides-Extra: (\w+)$", about, re.MULTILINE)) == {"dev", "flower", "hub", "opus"}


def test_the_lock_is_exact_and_holds_all_that_the_project_asks_for(project: dict[str, Any]) -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    extras = project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"], *extras["dev"], *project["build-system"]["requires"]]
    named = [name for found in re.findall(r"fedmt\[([\w,]+)\]", " ".join(asked)) for name in found.split(",")]
    asked += [one for name in named for one in extras[name]]
    assert {plain(one) for one in asked} - {plain(pin) for pin in pins} == {"fedmt"}


def plain(requirement: str) -> str:
    """The project's name in the one form in which names are compared."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def test_the_version_stands_in_three_places_alike(project: dict[str, Any]) -> None:
    assert project["project"]["version"] == fedmt.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == fedmt.__version__


def test_the_recipes_at_the_top_are_those_that_are_installed() -> None:
    assert (ROOT / "recipes").resolve() == (ROOT / "src/fedmt/recipes").resolve()
