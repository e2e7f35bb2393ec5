"""The recipes that come along: each is good, each runs at toy size, and docs/papers.md says which row each one is."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedmt import choices, reading
from fedmt.cli import recipe as recipes
from fedmt.corpus import silos
from fedmt.engine import device, engine
from fedmt.engine.decoder import translate
from fedmt.errors import RecipeError
from fedmt.recipe import Recipe, ToySilos
from tests.small import SMALL, Done

PAPERS = ("roosta2021", "passban2022", "liu2023", "chu2024")
NAMES = list(recipes.packaged())
OF_PAPERS = [name for name in NAMES if name.partition("/")[0] in PAPERS]
# A page with one's own file names in it: it can be read, and its files are not there.
PATTERN = "courts"
PAGE = (Path(__file__).resolve().parent.parent / "docs/papers.md").read_text(encoding="utf-8")


@cache
def packaged(name: str) -> Recipe:
    return reading.read(recipes.find(name)) if name == PATTERN else recipes.read(name)


# ── each is good ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_good_and_is_called_as_its_file(name: str) -> None:
    assert packaged(name).name == name.rpartition("/")[2]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_says_in_its_first_line_what_it_is(name: str) -> None:
    first = recipes.find(name).read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert len(first.split()) > 3


def test_no_two_recipes_of_a_paper_are_the_same_run() -> None:
    for paper in PAPERS:
        runs: dict[str, list[str]] = {}
        for name in OF_PAPERS:
            # What all rows share is one of the rows, with more baselines.
            if name.startswith(f"{paper}/") and not name.endswith("common"):
                alike = packaged(name).model_copy(update={"name": "run", "baselines": []})
                runs.setdefault(reading.write(alike), []).append(name)
        assert [names for names in runs.values() if len(names) > 1] == []


# ── each runs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def toy(found: Recipe) -> Recipe:
    """The recipe's methods and their settings, on text and on an engine that take a second."""
    value = found.model_dump(mode="json", by_alias=True)
    small = {key: SMALL[key] for key in ("public", "rounds", "baselines", "decode", "compute")}
    value |= small | {"chain": None, "silos": _silos(found), "part": _part(found.part)}
    # Two layers have no thirds.
    thirds = isinstance(found.part, choices.PartAdapters) and found.part.third != "all"
    value["engine"] = {"size": "small" if thirds else "toy", "vocabulary": 300}
    value["split"] |= SMALL["split"]
    value["train"] |= {**SMALL["train"], "steps": found.train.steps and 2}
    value["score"] |= {"resamples": 5, "against": "public"}
    if value["groups"].get("count"):
        value["groups"]["count"] = min(value["groups"]["count"], value["silos"]["silos"])
    return Recipe.model_validate(value)


def _silos(found: Recipe) -> dict[str, Any]:
    """As few invented silos as have the recipe's shape: one direction, several to one language, or many to many."""
    ends = set(silos.directions(found.silos).values())
    if len(ends) == 1:
        shape: dict[str, Any] = {"silos": 2}
    elif len({direction.target for direction in ends}) == 1:
        shape = {"silos": 3, "families": 2}
    else:
        shape = {"silos": 3, "families": 2, "directions": "many"}
    kept = {key: getattr(found.silos, key) for key in ("share", "mix", "deal") if hasattr(found.silos, key)}
    return {"source": "toy", "pairs": 50, **shape, **kept}


def _part(part: choices.Part) -> dict[str, Any]:
    value: dict[str, Any] = part.model_dump(mode="json")
    if isinstance(part, choices.PartAdapters):
        value["width"] = 8
    if isinstance(part, choices.PartControllers):
        for side in ("encoder", "decoder"):
            asked: list[int] | None = value[side]
            if asked is not None:
                final = 2 + len(asked) * (part.how == "inserted")
                value[side] = sorted({min(position, final - 1) for position in asked})
    return value


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_runs_at_toy_size(name: str, tmp_path: Path) -> None:
    recipe = toy(packaged(name))
    house = Done(tmp_path / "run", recipe).house
    scored = {row.silo for row in house.read_scores().rows if row.model == "federated"}
    assert scored == set(silos.directions(recipe.silos))
    travelled = house.travelled()
    assert min(travelled.up_bytes, travelled.down_bytes) > 0
    made = engine.load(house.engine)
    direction = made.about.directions[0]
    machine = device.choose(recipe.compute)
    assert len(translate(made, ["ba du", "ki"], direction, recipe.decode, machine)) == 2


def test_the_toy_of_a_recipe_keeps_its_methods() -> None:
    for name in NAMES:
        found = packaged(name)
        small = toy(found)
        assert (small.selector, small.codec, small.merge) == (found.selector, found.codec, found.merge), name
        assert (small.part.kind, small.groups.kind) == (found.part.kind, found.groups.kind), name
        assert isinstance(small.silos, ToySilos)


# ── each is a row of a paper ────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_of_papers_names_every_recipe_and_no_other() -> None:
    named = set(re.findall(rf"\b(?:{'|'.join(PAPERS)})/[a-z0-9-]+", PAGE))
    assert named == set(OF_PAPERS)


COMMANDS = sorted(set(re.findall(r"`fedmt run ([^`]+)`", PAGE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_rows_that_are_commands_can_be_run(command: str) -> None:
    name, *overrides = shlex.split(command)
    assert recipes.read(name, overrides) != packaged(name)


# ── each is found ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recipe_of_a_paper_is_found_by_its_name() -> None:
    assert recipes.find("liu2023/adapter-families").name == "adapter-families.yaml"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tuy", "did you mean `toy`? "),
        (
            "tuy",
            "recipes that come along: chu2024/…, courts, demo, du2023/…, liu2023/…, passban2022/…, roosta2021/…, toy",
        ),
        ("adapter-families", "did you mean `liu2023/adapter-families`? "),
        (
            "passban2022/dp",
            "recipes that come along: passban2022/common, passban2022/default, passban2022/dp-greater, ",
        ),
        ("passban2022", "recipes that come along: passban2022/common, passban2022/default, passban2022/dp-greater, "),
    ],
)
def test_a_recipe_that_is_not_there_is_told_with_those_that_are(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        recipes.find(name)
    assert said in str(caught.value)
