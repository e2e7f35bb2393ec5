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
import time
import traceback
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from fedmt.choices import SelectMetaSend, ThetaLearned
from fedmt.errors import Diverged, InputError
from fedmt.exchange import codec
from fedmt.exchange.metasend import deviations, scaled
from fedmt.exchange.selector import Scene, needs, select, whole
from fedmt.exchange.update import mismatch
from fedmt.federation.checkpoint import Shelf, State, over, shelf, under
from fedmt.federation.keeper import Keeper
from fedmt.federation.messages import Number, Reply, Request, reply_to
from fedmt.federation.work import (
    BASE,
    FIT,
    GRADIENT,
    LOSS,
    MEMORY,
    SEND,
    SETS,
    FitOrder,
    FitResult,
    Learner,
    Refusal,
    is_statistic,
    score_step,
)
from fedmt.recipe import Recipe

__all__ = ["Silo"]

# What may go wrong with a disk; any other error of the system is a failure like others.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


class Silo:
    """`folder` None: nothing is written down, and no reply is kept. `keeper` None: it shares no memory."""

    def __init__(
        self, name: str, learner: Learner, folder: Path | None, recipe: Recipe, keeper: Keeper | None = None
    ) -> None:
        self.name = name
        self._keeper = keeper
        self._learner = learner
        self._folder = folder
        self._recipe = recipe
        self._shelves: dict[tuple[str, str], Shelf] = {}

    def answer(self, request: Request) -> Reply:
        """Do what is asked, or refuse. A failure is a refusal that names its class: its words might quote the text."""
        try:
            if request.step == FIT:
                return self._fit(request)
            if request.step == SEND:
                return self._send(request)
            if request.step == LOSS:
                return self._loss(request)
            if request.step == BASE:
                return self._base(request)
            if request.step == GRADIENT:
                return self._gradient(request)
            if request.step in MEMORY:
                if self._keeper is None:
                    raise Refusal("keys")
                return self._keeper.answer(request, self._whole)
            for name in SETS:
                if request.step == score_step(name):
                    return self._score(request, name)
            return reply_to(request, refused="step")
        except Refusal as no:
            return reply_to(request, refused=no.reason)
        except InputError:
            raise
        except Exception as error:
            # Where nothing can be written, neither can this be.
            with contextlib.suppress(OSError):
                self._note_failure(request)
            return reply_to(request, refused=_refusal(error))

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
            raise Refusal("over")
        if done is not None and request.round == last:
            if done.numbers["digest"] != digest:
                raise Refusal("other")
            if "reply" not in done.tensors:
                raise Refusal("over")
            return _kept(request, done)
        order = _order(request)
        if not 1 <= order.round <= order.rounds:
            raise Refusal("beyond")

        live = self._learner.tensors()
        own = {} if done is None else under("own", done.tensors)
        received = self._received(request, live, own)
        self._learner.load(received)
        before: State | None = None
        midway = shelf.get("midway")
        if midway is not None and midway.numbers["round"] == order.round and midway.numbers["digest"] == digest:
            before = State(under("state", midway.tensors), midway.numbers["state"])
        elif done is not None and self._recipe.train.optimizer == "kept":
            before = State(under("state", done.tensors), done.numbers["state"])
        about = {"round": order.round, "digest": digest}
        judged = self._judge(order, received, done)
        was = _last(own, received, self._learner.shared())

        def keep(state: State) -> None:
            self._put(shelf, "midway", State(over("state", state.tensors), {**about, "state": state.numbers}))

        result, after = self._learner.fit(order, before, keep)
        numbers: dict[str, Number] = {**_numbers(self._learner.samples, result), **judged.numbers}
        recipe, tensors, waiting = self._recipe, dict[str, Tensor](), self._learned_by()
        if waiting is not None:
            # What of it travels is chosen when the threshold is known.
            with _timed(numbers, "choose"):
                found = scaled(deviations(self._shared(live), was), waiting[0].scale)
            statistics = {"deviations": torch.tensor(list(found.values()), dtype=torch.float32), **judged.tensors}
            payload = codec.pack(statistics)
            tensors |= over("was", was)
        else:
            state = {} if done is None else under("select", done.tensors)
            payload, state = self._chosen(order, self._shared(live), was, state, request.numbers.get("theta"), numbers)
            tensors |= over("select", state)
        reply = reply_to(request, payload, numbers)
        if self._remembers():
            tensors |= over("own", live)
        if recipe.merge.missing != "renormalise" and waiting is not None:
            tensors |= over("got", {name: received[name] for name in was})
        # After the last round nobody asks for the optimiser again.
        if order.round < order.rounds and recipe.train.optimizer == "kept":
            tensors |= over("state", after.tensors)
            about |= {"state": after.numbers}
        else:
            about |= {"state": {}}
        about["order"] = asdict(order)
        self._put(shelf, FIT, State(tensors, {**about, "reply": reply.numbers}), payload)
        shelf.drop("midway")
        return reply

    def _send(self, request: Request) -> Reply:
        """What of this round's training passes the threshold."""
        shelf, digest = self._shelf(request), self._digest(request)
        sent, done = shelf.get(SEND), shelf.get(FIT)
        if done is None or done.numbers["round"] != request.round:
            raise Refusal("untrained" if done is None or done.numbers["round"] < request.round else "over")
        if sent is not None and sent.numbers["round"] == request.round:
            if sent.numbers["digest"] != digest:
                raise Refusal("other")
            if "reply" in sent.tensors:
                return _kept(request, sent)
            state = under("before", sent.tensors)
        else:
            state = {} if sent is None else under("select", sent.tensors)
        order = FitOrder(**done.numbers["order"])
        own, was = self._shared(under("own", done.tensors)), under("was", done.tensors)
        numbers = dict(done.numbers["reply"])
        payload, after = self._chosen(order, own, was, state, request.numbers.get("theta"), numbers)
        reply = reply_to(request, payload, numbers)
        kept = State(
            {**over("select", after), **over("before", state)},
            {"round": request.round, "digest": digest, "reply": reply.numbers},
        )
        self._put(shelf, SEND, kept, payload)
        return reply

    def _chosen(
        self,
        order: FitOrder,
        now: Mapping[str, Tensor],
        was: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Number | None,
        numbers: dict[str, Number],
    ) -> tuple[memoryview, dict[str, Tensor]]:
        """What travels, written, and what the selector will want to remember; the seconds go to `numbers`."""
        recipe = self._recipe
        sides = {name: self._learner.side(name) for name in now}
        with _timed(numbers, "choose"):
            scene = Scene(now, was, sides, recipe.seed, order.round, self.name, None if theta is None else float(theta))
            chosen, after = select(recipe.selector.up, scene, state)
        with _timed(numbers, "encode"):
            masks = {name: mask for name, mask in chosen.items() if mask is not None}
            payload = codec.encode({name: now[name] for name in chosen}, recipe.codec, masks)
        return payload, after

    def _judge(self, order: FitOrder, received: Mapping[str, Tensor], done: State | None) -> _Judgement:
        """What the engine just received is worth here, and what of that is each tensor's doing: for the threshold that
        let it through. The gradient meets what this silo had trained, less what became of it."""
        waiting, numbers = self._learned_by(), dict[str, Number]()
        if waiting is None or done is None:
            return _Judgement()
        _, theta = waiting
        with _timed(numbers, "judge"):
            slope = theta.gradient == "soft"
            loss, gradient = self._learner.judge(theta.batches, order.seed, slope)
            if loss is None:
                return _Judgement(numbers)
            numbers["judged"] = loss
            if not slope:
                return _Judgement(numbers)
            own = under("own", done.tensors)
            missing = self._recipe.merge.missing
            less = received if missing == "renormalise" else under("got", done.tensors)
            products = [
                float((gradient[name] * (own[name] if missing == "literal" else own[name] - less[name])).sum())
                for name in self._learner.shared()
            ]
        return _Judgement(numbers, {"products": torch.tensor(products, dtype=torch.float32)})

    def _loss(self, request: Request) -> Reply:
        self._learner.load(self._received(request, self._learner.tensors(), self._own(request)))
        result, _ = self._learner.fit(_order(request), None, lambda _: None)
        return reply_to(request, numbers=_numbers(self._learner.samples, result))

    def _base(self, request: Request) -> Reply:
        try:
            tensors = codec.decode(request.payload) if len(request.payload) else {}
        except ValueError:
            raise Refusal("payload") from None
        if not self._learner.base(tensors, int(request.numbers.get("digest", 0))):
            raise Refusal("base")
        stays = self._stays()
        self._put(self._shelf(request), BASE, State({name: self._learner.tensors()[name] for name in stays}, {}))
        return reply_to(request)

    def _gradient(self, request: Request) -> Reply:
        self._learner.load(self._received(request, self._learner.tensors(), self._own(request)))
        batches = int(request.numbers["batches"]) or None
        return reply_to(
            request, codec.pack({str(side): vector for side, vector in self._learner.gradient(batches).items()})
        )

    def _score(self, request: Request, set: str) -> Reply:
        shelf, name, digest = self._shelf(request), f"score-{set}-{request.round}", self._digest(request)
        done = shelf.get(name)
        if done is not None and done.numbers["digest"] == digest and "reply" in done.tensors:
            return _kept(request, done)
        self._learner.load(self._received(request, self._learner.tensors(), self._own(request)))
        statistics = self._learner.score(request.model, set)
        if not all(is_statistic(name, tensor) for name, tensor in statistics.items()):
            raise Refusal("statistics")
        payload = codec.pack(statistics)
        reply = reply_to(request, payload)
        self._put(shelf, name, State({}, {"digest": digest, "reply": reply.numbers}), payload)
        return reply

    def _whole(self, request: Request, payload: codec.Payload) -> Mapping[str, Tensor]:
        """The engine of a payload; of none, the one that this silo has by its name."""
        live = self._learner.tensors()
        if len(payload):
            return self._received(request, live, self._own(request), payload)
        if not self._learner.base({}, int(request.numbers.get("digest", 0))):
            raise Refusal("base")
        return live

    def _received(
        self,
        request: Request,
        live: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        payload: codec.Payload | None = None,
    ) -> Mapping[str, Tensor]:
        """All that this silo works on: what was sent, and for the rest its own."""
        shared = self._shared(live)
        try:
            sent, masks = codec.decode_chosen(
                request.payload if payload is None else payload, self._recipe.codec, shared
            )
        except ValueError:
            raise Refusal("payload") from None
        if mismatch(sent, shared, whole=False):
            raise Refusal("mismatch")
        if len(sent) == len(live) and not masks:
            return sent
        based = self._shelf(request).get(BASE)
        whole = {**({} if based is None else based.tensors), **own}
        if masks.keys() - whole.keys():
            raise Refusal("missing")
        for name, new in sent.items():
            whole[name] = torch.where(masks[name], new, whole[name]) if name in masks else new
        if mismatch(whole, live, whole=True):
            raise Refusal("missing")
        return whole

    def _shared(self, live: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: live[name] for name in self._learner.shared()}

    def _stays(self) -> set[str]:
        return set(self._learner.tensors()).difference(self._learner.shared())

    def _own(self, request: Request) -> Mapping[str, Tensor]:
        """What this silo has trained and keeps to itself."""
        done = self._shelf(request).get(FIT) if self._stays() else None
        if done is None:
            return {}
        return {name: tensor for name, tensor in under("own", done.tensors).items() if name in self._stays()}

    def _learned_by(self) -> tuple[SelectMetaSend, ThetaLearned] | None:
        """How the server learns a threshold, where it does: then nothing travels before it is known."""
        up = self._recipe.selector.up
        return (up, up.theta) if isinstance(up, SelectMetaSend) and isinstance(up.theta, ThetaLearned) else None

    def _remembers(self) -> bool:
        """Whether the next round needs what this one ended with."""
        selector = self._recipe.selector
        return not whole(selector.down) or needs(selector.up).before or bool(self._stays())

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


@dataclass(frozen=True)
class _Judgement:
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def _refusal(error: Exception) -> str:
    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, OSError) and error.errno in _DISK:
        return "disk"
    return "failed:" + re.sub(r"[^A-Za-z0-9_]", "", type(error).__name__)


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


def _kept(request: Request, done: State) -> Reply:
    return reply_to(request, done.tensors["reply"].numpy().data, done.numbers["reply"])


def _last(own: Mapping[str, Tensor], received: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """The silo's last engine: what it trained before this round, or, in its first, what it was sent."""
    return {name: own.get(name, received[name]) for name in names}


@contextlib.contextmanager
def _timed(numbers: dict[str, Number], what: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    numbers[f"{what}_seconds"] = numbers.get(f"{what}_seconds", 0.0) + time.perf_counter() - begun
