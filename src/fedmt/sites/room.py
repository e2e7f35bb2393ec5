"""What a site has of one run: the engine, the part of it that the run works on, and the silo over both.

In one process a silo shares the server's engine; here it has one whose weights are still to come. So the base, once it
has come, is written down, and nothing is answered from an engine that is not whole. Knows no network and no consent.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fedmt import footing
from fedmt.choices import CodecFp32
from fedmt.corpus.pairs import Text
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.trainer import Past, Trainer
from fedmt.events import Listener
from fedmt.exchange import codec
from fedmt.federation import checkpoint
from fedmt.federation.checkpoint import State
from fedmt.federation.keeper import Keeper
from fedmt.federation.messages import Reply, Request
from fedmt.federation.silo import Silo
from fedmt.federation.work import BASE, Refusal
from fedmt.learner import SiloLearner, encoded
from fedmt.memory.keys import Ring
from fedmt.recipe import Recipe
from fedmt.sites.greeting import Welcome

__all__ = ["PUBLIC", "Room"]

# The one model of a run that is scored before its part is laid.
PUBLIC = "public"


class Room:
    def __init__(
        self,
        house: Path,
        name: str,
        text: Text,
        engine: Engine,
        welcome: Welcome,
        recipe: Recipe,
        machine: Machine,
        ring: Ring | None,
        listen: Listener,
    ) -> None:
        self._base = house / "base.safetensors"
        self._named = welcome.named
        past: Past = welcome.past
        ids = encoded(engine, [text], recipe.train.longest, listen)
        plain = copy.deepcopy(engine) if "public" in recipe.baselines else None
        ground = footing.lay(engine, recipe, machine)
        self.engine = engine
        laid = past if ground.trains_all else None
        learner = _SiteLearner(
            text, *ids, ground.trainer, engine, machine, ground.recipe, laid, listen, None, ground.portion
        )
        learner.named = self._named
        keeper = None if ring is None else Keeper(name, learner, house / "silo", ground.recipe, ring)
        self._silo = Silo(name, learner, house / "silo", ground.recipe, keeper)
        # What all share comes with each round: only what is beside it is waited for.
        self._whole = self._named or set(ground.portion.shared) == set(engine.tensors())
        if not self._whole and self._base.exists():
            engine.load_tensors(checkpoint.load(self._base).tensors)
            self._whole = True
        self._plain: Silo | None = None
        if plain is not None:
            # An engine that everyone has by its name does not count as sent: it is scored as in one place, unrounded.
            order = recipe.model_copy(update={"codec": CodecFp32()}) if self._named else recipe
            trainer = Trainer(plain, recipe.train, machine)
            scored = SiloLearner(text, *ids, trainer, plain, machine, recipe, past, listen)
            self._plain, self._pristine = Silo(name, scored, house / "silo", order), plain

    def answer(self, request: Request) -> Reply:
        if request.model == PUBLIC:
            if self._plain is None:
                raise Refusal("step")
            if self._named:
                # It is here already, and was not sent.
                request = replace(request, payload=codec.encode(self._pristine.tensors(), CodecFp32()))
            return self._plain.answer(request)
        if request.step == BASE:
            return self._take_base(request)
        if not self._whole:
            # What it was sent of the engine is gone from here, and will not come a second time.
            raise Refusal("base")
        return self._silo.answer(request)

    def _take_base(self, request: Request) -> Reply:
        reply = self._silo.answer(request)
        if reply.refused is None and not self._named:
            checkpoint.save(self._base, State(self.engine.tensors(), {}))
            self._whole = True
        return reply


class _SiteLearner(SiloLearner):
    """Where the weights come by message, the digest of the engine they make cannot be known before they have all come:
    then it is the names that must be complete."""

    named = False

    def base(self, tensors: Mapping[str, Tensor], digest: int) -> bool:
        if self.named:
            return super().base(tensors, digest)
        own = self._engine.tensors()
        if tensors.keys() != own.keys() - set(self.shared()):
            return False
        if any(tensors[name].shape != own[name].shape for name in tensors):
            return False
        self._engine.load_tensors(tensors)
        return True
