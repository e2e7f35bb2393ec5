"""A run whose silos are at sites: `experiment.run` over a transport, once the sites have said who they are."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from pydantic import ValidationError

from fedmt import experiment, files
from fedmt.errors import RecipeError
from fedmt.events import Listener
from fedmt.federation.transport import Transport
from fedmt.recipe import Recipe, SitesSilos
from fedmt.report.folder import RunFolder
from fedmt.sites.guests import Guests, told
from fedmt.sites.site import RECIPE

__all__ = ["carry_out", "of_sites", "parse", "settings"]


def of_sites(recipe: Recipe) -> Recipe:
    """The same recipe, if its silos are at sites."""
    if not isinstance(recipe.silos, SitesSilos):
        raise RecipeError("silos: are here, not at sites; run it by `fedmt run`, or give `silos: {source: sites, …}`")
    return recipe


def settings(recipe: Recipe) -> dict[str, str]:
    """What Flower brings to each site with the run."""
    return {RECIPE: told(of_sites(recipe))}


def parse(text: str) -> Recipe:
    """The recipe as `settings` wrote it, or any in JSON."""
    try:
        return of_sites(Recipe.model_validate(json.loads(text)))
    except (ValueError, ValidationError) as error:
        raise RecipeError(f"the run's setting `recipe` holds none: {' '.join(str(error).split())[:300]}") from None


def carry_out(
    transport: Transport,
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool,
    listen: Listener,
    wait: float | None = None,
    patience: float = 0.0,
) -> RunFolder:
    """The whole run. `wait`: seconds for all sites to be connected, before those who are must do; none: no limit.
    `patience`: seconds, before each step, for as many as the quorum needs."""
    run = _name(folder / ".run", of_sites(recipe))
    guests = Guests(transport, recipe, run, folder / ".sites.json", listen, patience)
    # A finished run asks nobody any more.
    facts = [] if (folder / "README.md").exists() else guests.facts(wait)
    sites = experiment.Sites(guests, facts, guests.welcome, run)
    return experiment.run(recipe, folder, resume=resume, listen=listen, sites=sites)


def _name(kept: Path, recipe: Recipe) -> str:
    """What sites know the run by. They keep what they did in it, so the same recipe run anew has a name of its own."""
    if not kept.exists():
        files.write_text(kept, f"{experiment.identity(recipe)}-{secrets.token_hex(4)}")
    return kept.read_text(encoding="utf-8")
