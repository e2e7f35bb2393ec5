"""A site answers: it greets, makes the engine that the coordinator describes, and lets its silo do what was asked.

All of a run stands in its folder under `state/runs`: the welcome, the base, the silo's own state. So the process may be
killed at any moment, and another answers the same. What goes wrong is told here, in words, and elsewhere by an
identifier. Knows no network: bytes come in, bytes go out, and each reply is in the audit before it goes.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from fedmt import files
from fedmt.corpus.pairs import Text
from fedmt.corpus.silos import gather
from fedmt.engine import device
from fedmt.engine import engine as engines
from fedmt.engine.engine import Engine
from fedmt.errors import FedmtError
from fedmt.events import Event
from fedmt.federation.messages import Number, Reply, Request, reply_to, unwire, wire
from fedmt.federation.work import Refusal, score_step
from fedmt.memory.keys import Ring, load_private, load_public
from fedmt.recipe import FileSilo, Recipe
from fedmt.sites import consent, greeting
from fedmt.sites.audit import Audit
from fedmt.sites.greeting import HELLO, WELCOME, Welcome
from fedmt.sites.room import Room
from fedmt.sites.settings import Site

__all__ = ["RECIPE", "Answering"]

RECIPE = "recipe"
_OLD = 30 * 24 * 3600.0
_FINAL = score_step("test")


class Answering:
    """One site at work. `listen` is told what happens, for the site's own log."""

    def __init__(self, folder: Path, site: Site, listen: Callable[[str], None]) -> None:
        self._folder = folder
        self._site = site
        self._listen = listen
        self._audit = Audit(folder / "audit.jsonl", site.coordinator)
        self._recipes: dict[str, Recipe] = {}
        self._text: tuple[Recipe, Text] | None = None
        self._room: tuple[str, Room] | None = None

    def __call__(self, content: bytes, settings: Mapping[str, Any]) -> bytes:
        """The bytes of a reply; a ValueError where the bytes are no request."""
        request = unwire(content)
        if not isinstance(request, Request):
            raise ValueError("a site answers requests")
        try:
            reply = self._answer(request, settings)
        except Refusal as no:
            reply = reply_to(request, refused=no.reason)
        except Exception as error:
            # Its words might quote the text.
            self._note(traceback.format_exc())
            reply = reply_to(request, refused=f"failed:{type(error).__name__}")
        answer = wire(reply)
        try:
            self._audit.write(reply, answer)
        except OSError as error:
            self._say(f"audit.jsonl cannot be written ({error.strerror}): nothing leaves")
            raise
        what = "" if reply.refused is None else f", refused: {reply.refused}"
        self._say(f"{request.model}, round {request.round}, {request.step}: {len(answer)} bytes left{what}")
        return answer

    def _answer(self, request: Request, settings: Mapping[str, Any]) -> Reply:
        told = str(settings.get(RECIPE, ""))
        recipe = self._recipe(told)
        if (no := consent.refusal(self._site, recipe, request)) is not None:
            self._say(f"refused {request.step} of the run {request.run}: {no.words}")
            raise Refusal(no.reason)
        if request.step == HELLO:
            return self._hello(request, recipe)
        house = self._folder / "state" / "runs" / quote(request.run, safe="")
        if request.step == WELCOME:
            return self._welcome(request, recipe, told, house)
        reply = self._enter(request, recipe, told, house).answer(request)
        if request.step == _FINAL and request.model == "federated" and request.round == 0 and reply.refused is None:
            self._keep(house)
        return reply

    def _recipe(self, told: str) -> Recipe:
        if told not in self._recipes:
            try:
                self._recipes = {told: Recipe.model_validate(json.loads(told))}
            except (ValueError, ValidationError):
                self._say("refused: what came with the run is no recipe of this version of fedmt")
                raise Refusal("recipe") from None
        return self._recipes[told]

    # ── greeting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hello(self, request: Request, recipe: Recipe) -> Reply:
        text = self._read(recipe)
        numbers: dict[str, Number] = {"train": len(text.train), "dev": len(text.dev), "test": len(text.test)}
        return reply_to(request, numbers=numbers | {f"dropped.{rule}": count for rule, count in text.dropped.items()})

    def _welcome(self, request: Request, recipe: Recipe, told: str, house: Path) -> Reply:
        try:
            welcome = greeting.read(request.payload, request.numbers)
        except ValueError as error:
            self._say(f"refused the welcome of the run {request.run}: {error}")
            raise Refusal("payload") from None
        self._sweep(house.parent)
        greeting.write_files(house / "engine", welcome.files)
        kept = {"recipe": told, "hash": welcome.hash, "named": welcome.named, "past": welcome.past}
        files.write_json(house / "welcome.json", kept)
        self._room = None
        self._enter(request, recipe, told, house)
        return reply_to(request)

    def _enter(self, request: Request, recipe: Recipe, told: str, house: Path) -> Room:
        """The run's room, as it was left; a run that this site was not welcomed to is refused."""
        if self._room is not None and self._room[0] == request.run:
            return self._room[1]
        if not (house / "welcome.json").is_file():
            raise Refusal("welcome")
        kept = files.read_json(house / "welcome.json")
        if kept["recipe"] != told:
            self._say(f"refused {request.step}: the run {request.run} was begun with another recipe")
            raise Refusal("recipe")
        welcome = Welcome({}, kept["hash"], kept["named"], kept["past"])
        if welcome.named:
            engine = self._named(recipe, welcome)
        else:
            engine = engines.blank(house / "engine", self._site.allow.largest_engine)
        machine = device.choose(self._site.compute or recipe.compute)
        text = self._read(recipe)
        room = Room(house, self._site.name, text, engine, welcome, recipe, machine, self._ring(recipe), self._event)
        self._room = (request.run, room)
        return room

    def _named(self, recipe: Recipe, welcome: Welcome) -> Engine:
        """An engine that is here already: kept from an earlier run, or in the cache by the recipe's name."""
        kept = self._folder / "state" / "engines" / welcome.hash[:32]
        name = getattr(recipe.engine, "pretrained", None)
        for source, revision in ((kept, None), (name, getattr(recipe.engine, "revision", None))):
            # A name, never a place on this machine's disk: which files are read here is not for others to say.
            if source is None or (isinstance(source, str) and Path(source).exists()):
                continue
            try:
                engine = engines.load(source, revision)
            except FedmtError as error:
                self._say(f"the engine {source}: {error}")
                continue
            if engine.hash == welcome.hash:
                return engine
            self._say(f"the engine {source} is not the coordinator's: their hashes differ")
        raise Refusal("engine")

    def _read(self, recipe: Recipe) -> Text:
        """This site's text, cleaned and split as the recipe says."""
        if self._text is None or self._text[0] is not recipe:
            own = FileSilo.model_validate(self._site.model_dump(by_alias=True, include=set(FileSilo.model_fields)))
            plan = recipe.model_copy(update={"silos": [own], "public": None})
            self._text = recipe, gather(plan, self._event).silos[0]
        return self._text[1]

    def _ring(self, recipe: Recipe) -> Ring | None:
        if recipe.memory is None or not self._site.allow.memory:
            return None
        members = {path.stem: load_public(path) for path in sorted((self._folder / "members").glob("*.pub"))}
        return Ring(load_private(self._folder / "keys" / f"{self._site.name}.key"), members)

    # ── what stays ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self, house: Path) -> None:
        """The finished engine, by its hash: a later run that begins from it need not send it."""
        if not self._site.keep or self._room is None:
            return
        shelf = self._folder / "state" / "engines"
        try:
            engine = self._room[1].engine
            place = shelf / engine.hash[:32]
            if not place.is_dir():
                engine.save(place)
        except (OSError, FedmtError) as error:
            self._note(f"{house.name}: the finished engine was not kept: {error}\n")
            return
        there = sorted((path for path in shelf.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for old in there[: -self._site.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _sweep(self, shelf: Path) -> None:
        """Runs that nobody has asked about for long are over."""
        for old in shelf.glob("*/welcome.json"):
            newest = max((path.stat().st_mtime for path in old.parent.rglob("*") if path.is_file()), default=0.0)
            if time.time() - newest > _OLD:
                shutil.rmtree(old.parent, ignore_errors=True)

    def _event(self, event: Event) -> None:
        if text := getattr(event, "text", None):
            self._say(str(text))

    def _say(self, text: str) -> None:
        self._listen(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}")

    def _note(self, text: str) -> None:
        """What is not for the journal of the machine: it may quote the text."""
        path = self._folder / "errors.log"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")
            path.chmod(0o600)
        except OSError as error:
            self._say(f"{path}: {error.strerror}")
