"""A silo: answers requests about its own text with tensors and numbers, and the same request the same way twice.

It writes its state and its reply down before it answers, so it may be killed at any moment and asked again: for the
round it has just done it sends the kept reply, and a fit that was cut short goes on from the last state it kept.
Knows no file format of text, no Hugging Face and no network: text and engine are behind `Learner`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import shutil
import traceback
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import torch
from torch import Tensor

from fedmt.choices import SelectAll
from fedmt.errors import Diverged, InputError
from fedmt.exchange import codec
from fedmt.exchange.selector import select
from fedmt.exchange.update import mismatch
from fedmt.federation.checkpoint import Shelf, State, shelf
from fedmt.federation.messages import Number, Reply, Request, is_identifier
from fedmt.recipe import Recipe

__all__ = ["FIT", "LOSS", "FitOrder", "FitResult", "Learner", "Silo", "State", "because", "is_statistic", "score_step"]

FIT = "fit"
LOSS = "loss"
_SETS = ("dev", "test")
_STATISTICS = (torch.float64, torch.float32, torch.int64, torch.int32)

_REASONS = {
    "over": "it has already finished a later round",
    "beyond": "the run has no such round",
    "other": "it has already done this round from other tensors or settings",
    "step": "it knows no such step",
    "payload": "it could not read the tensors it was sent",
    "mismatch": "the tensors it was sent are not those of its engine",
    "statistics": "its statistics are not numbers under short names",
    "missing": "it lacks the tensors that were not sent",
    "diverged": "its training diverged; lower the highest learning rate, train.peak or train.public_peak",
    "disk": "its disk is full, or its folder cannot be written",
}
# What may go wrong with a disk; any other error of the system is a failure like others.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def because(refused: str) -> str:
    """A refusal's identifier as a clause."""
    kind, _, name = refused.partition(":")
    return f"it failed with {name}" if kind == "failed" else _REASONS.get(kind, refused)


def score_step(set: str) -> str:
    return f"score:{set}"


@dataclass(frozen=True)
class FitOrder:
    """What a silo is asked to train. `seed` is already this silo's and this round's own."""

    model: str
    round: int
    rounds: int
    epochs: int
    seed: int
    personal: bool = False


@dataclass(frozen=True)
class FitResult:
    """Losses are per target token, in nats; `dev_loss` is the received engine's, before training (None: no dev set)."""

    train_loss: float
    dev_loss: float | None
    tokens: int
    steps: int
    seconds: float


class Learner(Protocol):
    """One silo's text bound to the one resident engine."""

    @property
    def samples(self) -> int:
        """Training pairs."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The live tensors of the trained part of the resident engine."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these into the resident engine, in place; those not named stay as they are."""

    def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
        """Train the resident engine, which holds what the coordinator sent.

        `state` is what this model's last fit here ended with (None: first fit, or a fresh optimiser), or what a killed
        fit of this very order gave to `keep`: then it holds the weights too, and training goes on from there to the
        same end. A long fit gives `keep` such a state now and then. Tensors of a state may be live: they are written
        down before `keep` returns, and before anyone else's fit begins.
        """

    def score(self, model: str, set: str) -> Mapping[str, Tensor]:
        """Statistics of the resident engine on the set `dev` or `test`: numbers, never sentences."""


class Silo:
    """`folder` None: nothing is written down, and no reply is kept."""

    def __init__(self, name: str, learner: Learner, folder: Path | None, recipe: Recipe) -> None:
        self.name = name
        self._learner = learner
        self._folder = folder
        self._recipe = recipe
        self._shelves: dict[tuple[str, str], Shelf] = {}

    def answer(self, request: Request) -> Reply:
        """Do what is asked, or refuse. A failure is a refusal that names its class: its words might quote the text."""
        try:
            if request.step == FIT:
                return self._fit(request)
            if request.step == LOSS:
                return self._loss(request)
            for name in _SETS:
                if request.step == score_step(name):
                    return self._score(request, name)
            return _reply(request, refused="step")
        except _No as no:
            return _reply(request, refused=no.reason)
        except InputError:
            raise
        except Exception as error:
            # Where nothing can be written, neither can this be.
            with contextlib.suppress(OSError):
                self._note_failure(request)
            return _reply(request, refused=_refusal(error))

    def forget(self, run: str, model: str) -> None:
        """Remove what is kept of a model that is finished."""
        self._shelves.pop((run, model), None)
        if self._folder is not None:
            shutil.rmtree(self._folder / quote(run, safe="") / quote(model, safe=""), ignore_errors=True)

    def _fit(self, request: Request) -> Reply:
        shelf = self._shelf(request)
        digest = self._digest(request)
        done = shelf.get(FIT)
        last = 0 if done is None else int(done.numbers["round"])
        if request.round < last:
            raise _No("over")
        if done is not None and request.round == last:
            if done.numbers["digest"] != digest:
                raise _No("other")
            if "reply" not in done.tensors:
                raise _No("over")
            return _kept(request, done)
        order = _order(request)
        if not 1 <= order.round <= order.rounds:
            raise _No("beyond")

        live = self._learner.tensors()
        self._learner.load(self._received(request, live, _under("own", done)))
        before: State | None = None
        midway = shelf.get("midway")
        if midway is not None and midway.numbers["round"] == order.round and midway.numbers["digest"] == digest:
            before = State(_under("state", midway), midway.numbers["state"])
        elif done is not None and self._recipe.train.optimizer == "kept":
            before = State(_under("state", done), done.numbers["state"])
        about = {"round": order.round, "digest": digest}

        def keep(state: State) -> None:
            self._put(shelf, "midway", State(_over("state", state.tensors), {**about, "state": state.numbers}))

        result, after = self._learner.fit(order, before, keep)
        recipe = self._recipe
        names = select(recipe.selector.up, live, recipe.seed, order.round, self.name)
        payload = codec.encode({name: live[name] for name in names}, recipe.codec)
        reply = _reply(request, payload, _numbers(self._learner.samples, result))

        tensors: dict[str, Tensor] = {}
        if not isinstance(recipe.selector.down, SelectAll):
            tensors |= _over("own", live)
        # After the last round nobody asks for the optimiser again.
        if order.round < order.rounds and recipe.train.optimizer == "kept":
            tensors |= _over("state", after.tensors)
            about |= {"state": after.numbers}
        else:
            about |= {"state": {}}
        self._put(shelf, FIT, State(tensors, {**about, "reply": reply.numbers}), payload)
        shelf.drop("midway")
        return reply

    def _loss(self, request: Request) -> Reply:
        self._learner.load(self._received(request, self._learner.tensors(), {}))
        result, _ = self._learner.fit(_order(request), None, lambda _: None)
        return _reply(request, numbers=_numbers(self._learner.samples, result))

    def _score(self, request: Request, set: str) -> Reply:
        shelf, name, digest = self._shelf(request), f"score-{set}-{request.round}", self._digest(request)
        done = shelf.get(name)
        if done is not None and done.numbers["digest"] == digest and "reply" in done.tensors:
            return _kept(request, done)
        self._learner.load(self._received(request, self._learner.tensors(), {}))
        statistics = self._learner.score(request.model, set)
        if not all(is_statistic(name, tensor) for name, tensor in statistics.items()):
            raise _No("statistics")
        payload = codec.pack(statistics)
        reply = _reply(request, payload)
        self._put(shelf, name, State({}, {"digest": digest, "reply": reply.numbers}), payload)
        return reply

    def _received(
        self, request: Request, live: Mapping[str, Tensor], own: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """The whole part: what was sent, and for the rest this silo's own."""
        try:
            sent = codec.decode(request.payload, self._recipe.codec)
        except ValueError:
            raise _No("payload") from None
        if mismatch(sent, live, whole=False):
            raise _No("mismatch")
        if len(sent) == len(live):
            return sent
        whole = {**own, **sent}
        if mismatch(whole, live, whole=True):
            raise _No("missing")
        return whole

    def _put(self, shelf: Shelf, name: str, state: State, payload: memoryview | None = None) -> None:
        tensors = dict(state.tensors)
        if shelf.folder is None:
            tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        elif payload is not None:
            tensors["reply"] = torch.frombuffer(payload, dtype=torch.uint8)
        shelf.put(name, State(tensors, state.numbers))

    def _digest(self, request: Request) -> str:
        """Tells one order from another, for what is kept of it; no defence against forgery."""
        if self._folder is None:
            return ""
        return f"{zlib.crc32(request.payload):08x} {json.dumps(dict(request.numbers), sort_keys=True)}"

    def _shelf(self, request: Request) -> Shelf:
        key = (request.run, request.model)
        if key not in self._shelves:
            self._shelves[key] = shelf(self._folder, *key)
        return self._shelves[key]

    def _note_failure(self, request: Request) -> None:
        """What went wrong stays at the silo."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "errors.log").open("a", encoding="utf-8") as file:
                file.write(f"{request.model}, round {request.round}, {request.step}:\n{traceback.format_exc()}\n")


class _No(Exception):
    """A refusal on its way out."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def _refusal(error: Exception) -> str:
    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, OSError) and error.errno in _DISK:
        return "disk"
    return "failed:" + re.sub(r"[^A-Za-z0-9_]", "", type(error).__name__)


def is_statistic(name: str, tensor: Tensor) -> bool:
    """Names are narrow and values wide, so that neither can carry a sentence unseen."""
    return is_identifier(name) and tensor.dtype in _STATISTICS


def _order(request: Request) -> FitOrder:
    numbers = request.numbers
    seed = f"{numbers['seed']}/{request.silo}/{request.round}"
    return FitOrder(
        model=request.model,
        round=request.round,
        rounds=int(numbers["rounds"]),
        epochs=int(numbers["epochs"]),
        seed=int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big"),
        personal=bool(numbers["personal"]),
    )


def _numbers(samples: int, result: FitResult) -> dict[str, Number]:
    numbers: dict[str, Number] = {
        "samples": int(samples),
        "train_loss": float(result.train_loss),
        "tokens": int(result.tokens),
        "steps": int(result.steps),
        "seconds": float(result.seconds),
    }
    if result.dev_loss is not None:
        numbers["dev_loss"] = float(result.dev_loss)
    return numbers


def _reply(
    request: Request,
    payload: codec.Payload = b"",
    numbers: Mapping[str, Number] | None = None,
    refused: str | None = None,
) -> Reply:
    return Reply(
        request.run, request.model, request.round, request.step, request.silo, payload, numbers or {}, refused=refused
    )


def _kept(request: Request, done: State) -> Reply:
    return _reply(request, done.tensors["reply"].numpy().data, done.numbers["reply"])


def _over(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, state: State | None) -> dict[str, Tensor]:
    if state is None:
        return {}
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in state.tensors.items() if name.startswith(start)}
