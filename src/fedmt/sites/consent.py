"""Whether a site does what it is asked: an order outside its own settings is refused, whoever gives it.

Knows no text and no engine; what it goes by is the recipe that came with the run, and the order itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedmt.federation.messages import Request
from fedmt.federation.work import GRADIENT, MEMORY
from fedmt.recipe import Recipe, SitesSilos
from fedmt.sites.settings import Site

__all__ = ["No", "refusal"]


class No(NamedTuple):
    """A refusal: `reason` is the identifier that travels, `words` are for the site's own log."""

    reason: str
    words: str


def refusal(site: Site, recipe: Recipe, request: Request) -> No | None:
    """Why this site will not do it; None: it will."""
    return _stranger(site, recipe, request) or _method(site, recipe, request) or _measure(site, recipe, request)


def _stranger(site: Site, recipe: Recipe, request: Request) -> No | None:
    if request.silo != site.name:
        return No("name", f"the order is for {request.silo}; this is {site.name}")
    named = recipe.silos.list if isinstance(recipe.silos, SitesSilos) else []
    mine = next((one for one in named if one.name == site.name), None)
    if mine is None:
        return No("name", "the recipe does not name this site")
    if (mine.from_, mine.to) != (site.from_, site.to):
        return No("direction", f"the recipe asks for {mine.from_}-{mine.to}; this is {site.from_}-{site.to}")
    return None


def _method(site: Site, recipe: Recipe, request: Request) -> No | None:
    allow = site.allow
    if recipe.part.kind not in allow.parts:
        return No("part", f"part {recipe.part.kind}; allowed: {', '.join(allow.parts)}")
    for selector in (recipe.selector.up, recipe.selector.down):
        if selector.kind not in allow.selectors:
            return No("selector", f"selector {selector.kind}; allowed: {', '.join(allow.selectors)}")
    if recipe.groups.kind not in allow.groups:
        return No("groups", f"groups {recipe.groups.kind}; allowed: {', '.join(allow.groups)}")
    if request.step == GRADIENT and recipe.groups.kind != "gradients":
        return No("groups", f"a gradient, which groups {recipe.groups.kind} have no use for; allowed: gradients")
    if not allow.memory and (request.step in MEMORY or _remembers(site, recipe)):
        return No("memory", "a memory; this site lets no records leave")
    return None


def _remembers(site: Site, recipe: Recipe) -> bool:
    return recipe.memory is not None and (recipe.memory.members is None or site.name in recipe.memory.members)


def _measure(site: Site, recipe: Recipe, request: Request) -> No | None:
    allow, named = site.allow, recipe.silos.list if isinstance(recipe.silos, SitesSilos) else []
    together = max(1, math.ceil(recipe.failures.quorum * len(named) - 1e-9))
    if together < allow.least_silos:
        return No("few", f"rounds of {together} silos; allowed: {allow.least_silos} or more")
    numbers = request.numbers
    epochs = max(recipe.train.epochs, int(numbers.get("epochs", 0)))
    if epochs > allow.most_epochs:
        return No("epochs", f"{epochs} epochs a round; allowed: {allow.most_epochs} or fewer")
    rounds = max(recipe.rounds, int(numbers.get("rounds", 0)), request.round)
    if rounds > allow.most_rounds:
        return No("rounds", f"{rounds} rounds; allowed: {allow.most_rounds} or fewer")
    return None
