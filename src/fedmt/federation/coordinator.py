"""The server: round after round it asks silos, folds what they send, and writes down where it stands.

    plan → ask → check each reply → fold → checkpoint

It keeps one running sum, never a list of updates, and folds in the plan's order, so that the engine does not depend on
which silo was the fastest. A run that was killed goes on from its last whole round. Knows no text, and no network.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from fedmt.choices import GroupsNone, SelectAll
from fedmt.errors import QuorumError, Refused, RunError
from fedmt.events import Dropped, Listener, Trained, Travelled
from fedmt.exchange import codec
from fedmt.exchange.ledger import Ledger, Totals
from fedmt.exchange.selector import select
from fedmt.exchange.update import Update, change, mismatch, unfinite
from fedmt.federation import checkpoint
from fedmt.federation.asking import Asking
from fedmt.federation.checkpoint import Shelf, State
from fedmt.federation.merge import Fold, weight
from fedmt.federation.messages import Number, Reply, Request
from fedmt.federation.silo import FIT, LOSS, because, is_statistic, score_step
from fedmt.federation.transport import Transport
from fedmt.recipe import Recipe

__all__ = ["After", "Coordinator"]

After: TypeAlias = Callable[[int, Mapping[str, Tensor]], None]

_COURSE = "course"
_NEEDED = ("samples", "train_loss", "tokens", "steps", "seconds")
# A reply may be larger than the engine by its names; statistics have a limit of their own.
_SLACK = 1 << 16
_LARGEST_STATISTICS = 1 << 26


@dataclass(frozen=True)
class _Course:
    """Where a model's training stands after `round` whole rounds.

    `losses[r]` is the dev loss of the engine after r rounds; silos measure it as they receive it, so the last engine's
    is known a round later. `known` are the silos that hold an engine to which a part can be sent.
    """

    tensors: Mapping[str, Tensor]
    round: int = 0
    known: tuple[str, ...] = ()
    losses: tuple[float | None, ...] = ()

    def best(self) -> int | None:
        known = [round for round, loss in enumerate(self.losses) if loss is not None]
        return min(known, key=lambda round: (self.losses[round], round)) if known else None

    def stale(self, patience: int | None) -> bool:
        best = self.best()
        return patience is not None and best is not None and len(self.losses) - 1 - best >= patience


@dataclass(frozen=True)
class _Plan:
    model: str
    silos: Sequence[str]
    rounds: int
    epochs: int
    personal: bool


@dataclass
class _Tally:
    """The dev losses of one exchange, weighed as the merge weighs."""

    sum: float = 0.0
    weight: float = 0.0
    silos: list[str] = field(default_factory=list)

    def add(self, silo: str, update: Update) -> None:
        self.silos.append(silo)
        if (loss := update.metrics.get("dev_loss")) is not None:
            self.sum += update.weight * (loss if math.isfinite(loss) else math.inf)
            self.weight += update.weight

    def loss(self) -> float | None:
        return self.sum / self.weight if self.weight else None


class Coordinator:
    """`run` names the run in every message: other recipes need other names. `folder` None: nothing is written down."""

    def __init__(
        self,
        run: str,
        recipe: Recipe,
        transport: Transport,
        folder: Path | None,
        ledger: Ledger,
        listen: Listener,
    ) -> None:
        # Another member of this union would want a running sum of its own for each group.
        assert isinstance(recipe.groups, GroupsNone)
        self._run = run
        self._recipe = recipe
        self._transport = transport
        self._folder = folder
        self._ledger = ledger
        self._listen = listen
        self._memory: dict[str, Shelf] = {}

    def train(
        self,
        model: str,
        start: Mapping[str, Tensor],
        silos: Sequence[str],
        rounds: int,
        epochs: int,
        personal: bool = False,
        after: After | None = None,
    ) -> dict[str, Tensor]:
        """Train `model` from `start` at these silos, and give its tensors: the last round's, or the best's.

        `after` is called with each whole round and its tensors once they are written down; when a run is resumed, again
        with the last of them.
        """
        plan = _Plan(model, silos, rounds, epochs, personal)
        train = self._recipe.train
        shelf = self._shelf(model)
        course = self._resume(shelf, start)
        if after is not None and course.round:
            after(course.round, course.tensors)
        while course.round < rounds and not course.stale(train.patience):
            before, course = course, self._one_round(plan, course)
            if train.keep == "best" and course.best() == before.round:
                shelf.put(_best(before.round), State(before.tensors))
            self._commit(shelf, model, course)
            if after is not None:
                after(course.round, course.tensors)
        if train.keep == "last" or course.round == 0:
            return dict(course.tensors)
        if len(course.losses) == course.round:
            course = self._last_loss(plan, course)
            self._commit(shelf, model, course)
        kept = shelf.get(_best(course.best()))
        return dict(course.tensors if kept is None else kept.tensors)

    def score(
        self, model: str, tensors: Mapping[str, Tensor], silos: Sequence[str], set: str, round: int = 0
    ) -> dict[str, dict[str, Tensor]]:
        """Each silo's statistics of `tensors` on its set `dev` or `test`; `round` 0: the finished model's."""
        shelf, name = self._shelf(model), f"score-{set}-{round}"
        payload = codec.encode(tensors, self._recipe.codec)
        about = {"run": self._run, "digest": zlib.crc32(payload), "silos": list(silos)}
        kept = shelf.get(name)
        if kept is not None and about.items() <= kept.numbers.items():
            self._ledger.settle(kept.numbers["ledger"])
            return _by_silo(kept.tensors)
        scores: dict[str, dict[str, Tensor]] = {}

        def read(reply: Reply) -> dict[str, Tensor]:
            _check_refusal(reply)
            _check_size(reply, _LARGEST_STATISTICS)
            statistics = _decoded(reply, lambda content: codec.unpack(content)[0])
            if not all(is_statistic(name, tensor) for name, tensor in statistics.items()):
                raise Refused(reply.silo, "its statistics are not numbers under short names")
            return statistics

        def take(silo: str, statistics: dict[str, Tensor]) -> None:
            # A view would keep the whole reply.
            scores[silo] = {name: tensor.clone() for name, tensor in statistics.items()}

        step, count = score_step(set), (_parameters(tensors), len(tensors))
        requests = [Request(self._run, model, round, step, silo, payload) for silo in silos]
        self._exchange(requests, dict.fromkeys(silos, count), read, take, lambda _: (0, 0))
        flat = {f"{silo}/{name}": tensor for silo, table in scores.items() for name, tensor in table.items()}
        sealed = self._ledger.seal()
        shelf.put(name, State(flat, {**about, "ledger": sealed}))
        self._ledger.settle(sealed)
        return scores

    def _one_round(self, plan: _Plan, course: _Course) -> _Course:
        recipe, base, round = self._recipe, course.tensors, course.round + 1
        down = recipe.selector.down
        part = list(base) if isinstance(down, SelectAll) else select(down, base, recipe.seed, round, "")
        # A part is enough only for a silo that holds the rest. All who are sent the same share one payload.
        encoded: dict[int, memoryview] = {}
        requests, counts = [], {}
        for silo in plan.silos:
            names = part if silo in course.known else list(base)
            if len(names) not in encoded:
                encoded[len(names)] = codec.encode({name: base[name] for name in names}, recipe.codec)
            counts[silo] = (sum(base[name].numel() for name in names), len(names))
            requests.append(self._request(plan, round, FIT, silo, encoded[len(names)], plan.epochs))
        fold, tally, told = Fold(), _Tally(), set[str]()

        def read(reply: Reply) -> Update:
            update = self._read_update(reply, base)
            if reply.silo not in told:
                told.add(reply.silo)
                self._listen(_trained(plan.model, round, reply))
            return update

        def take(silo: str, update: Update) -> None:
            fold.add(update)
            tally.add(silo, update)

        self._exchange(requests, counts, read, take, lambda update: (update.parameters, len(update.tensors)))
        return replace(
            course,
            tensors=fold.result(base, recipe.merge.rate),
            round=round,
            known=tuple(tally.silos),
            losses=(*course.losses[: course.round], tally.loss()),
        )

    def _last_loss(self, plan: _Plan, course: _Course) -> _Course:
        """The dev loss of the last round's engine, which no further round will measure."""
        payload = codec.encode(course.tensors, self._recipe.codec)
        requests = [self._request(plan, course.round, LOSS, silo, payload, 0) for silo in plan.silos]
        count = (_parameters(course.tensors), len(course.tensors))
        tally = _Tally()

        def read(reply: Reply) -> Update:
            _check_refusal(reply)
            return Update({}, self._weight(reply), reply.numbers)

        self._exchange(requests, dict.fromkeys(plan.silos, count), read, tally.add, lambda _: (0, 0))
        return replace(course, losses=(*course.losses, tally.loss()))

    def _exchange(
        self,
        requests: list[Request],
        down: Mapping[str, tuple[int, int]],
        read: Callable[[Reply], Any],
        take: Callable[[str, Any], None],
        up: Callable[[Any], tuple[int, int]],
    ) -> None:
        """Ask, give what was read to `take` in the requests' order, name who was dropped, and hold the quorum."""
        failures = self._recipe.failures
        first = requests[0] if requests else None
        if first is None:
            raise QuorumError("a federation needs a silo")
        self._ledger.forget()
        asking = Asking(requests, down, read, take, up, self._folder)
        asking.through(self._transport, failures.deadline)
        totals: dict[str, Totals] = {request.silo: Totals() for request in requests}
        for entry in asking.entries():
            self._ledger.write(entry)
            totals[entry.silo] += Totals.of(entry)
        for silo, reason in asking.dropped.items():
            self._listen(Dropped(first.model, silo, first.round, reason))
        for silo, total in totals.items():
            self._listen(Travelled(first.model, silo, first.round, *_figures(total), first.step))
        need = max(1, math.ceil(failures.quorum * len(requests) - 1e-9))
        if (have := len(requests) - len(asking.dropped)) < need:
            why = "; ".join(f"{silo}: {reason}" for silo, reason in asking.dropped.items())
            raise QuorumError(
                f"{first.model}, round {first.round}, {first.step}: {have} of {len(requests)} silos answered, "
                f"{need} are needed ({why})"
            )

    def _request(self, plan: _Plan, round: int, step: str, silo: str, payload: codec.Payload, epochs: int) -> Request:
        numbers: dict[str, Number] = {
            "rounds": plan.rounds,
            "epochs": epochs,
            "seed": self._recipe.seed,
            "personal": int(plan.personal),
        }
        return Request(self._run, plan.model, round, step, silo, payload, numbers)

    def _read_update(self, reply: Reply, base: Mapping[str, Tensor]) -> Update:
        """The reply as an update, or Refused: nothing of it has touched the sum before all of it is checked."""
        recipe = self._recipe
        _check_refusal(reply)
        _check_size(reply, codec.size(base, recipe.codec) + _SLACK)
        tensors = _decoded(reply, lambda content: codec.decode(content, recipe.codec))
        whole = isinstance(recipe.selector.up, SelectAll)
        if wrong := mismatch(tensors, base, whole):
            raise Refused(reply.silo, wrong)
        if (name := unfinite(tensors)) is not None:
            raise Refused(reply.silo, f"tensor {name!r} holds a value that is not finite")
        largest = recipe.failures.largest_norm
        if largest is not None and (norm := change(tensors, base)) > largest:
            raise Refused(reply.silo, f"its change has norm {norm:.4g}, above {largest:g}")
        return Update(tensors, self._weight(reply), reply.numbers)

    def _weight(self, reply: Reply) -> float:
        if missing := [name for name in _NEEDED if name not in reply.numbers]:
            raise Refused(reply.silo, f"it does not say its {missing[0]}")
        samples = reply.numbers["samples"]
        if not isinstance(samples, int) or samples < 1:
            raise Refused(reply.silo, f"it claims {samples} training pairs")
        return weight(self._recipe.merge, samples)

    def _resume(self, shelf: Shelf, start: Mapping[str, Tensor]) -> _Course:
        state = shelf.get(_COURSE)
        if state is None:
            # In one process these may be the resident engine's own, which silos will train.
            return _Course({name: tensor.detach().clone() for name, tensor in start.items()})
        numbers = state.numbers
        if numbers["run"] != self._run:
            raise RunError(f"{shelf.folder}: belongs to the run {numbers['run']}, not to {self._run}")
        if wrong := mismatch(state.tensors, start, whole=True):
            raise RunError(f"{shelf.folder}: holds another engine: {wrong}")
        self._ledger.settle(numbers["ledger"])
        return _Course(state.tensors, numbers["round"], tuple(numbers["known"]), tuple(numbers["losses"]))

    def _commit(self, shelf: Shelf, model: str, course: _Course) -> None:
        sealed = self._ledger.seal()
        numbers = {
            "run": self._run,
            "model": model,
            "round": course.round,
            "known": course.known,
            "losses": course.losses,
            "ledger": sealed,
        }
        shelf.put(_COURSE, State(course.tensors, numbers))
        self._ledger.settle(sealed)
        for name in shelf.names():
            if name.startswith("best-") and name != _best(course.best()):
                shelf.drop(name)

    def _shelf(self, model: str) -> Shelf:
        if self._folder is not None:
            return checkpoint.shelf(self._folder, model)
        return self._memory.setdefault(model, Shelf(None))


def _best(round: int | None) -> str:
    return f"best-{round}"


def _parameters(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _figures(total: Totals) -> tuple[int, int, int, int]:
    return total.up_bytes, total.up_parameters, total.down_bytes, total.down_parameters


def _trained(model: str, round: int, reply: Reply) -> Trained:
    numbers = reply.numbers
    return Trained(
        model,
        reply.silo,
        round,
        float(numbers["train_loss"]),
        float(numbers["dev_loss"]) if "dev_loss" in numbers else None,
        int(numbers["tokens"]),
        int(numbers["steps"]),
        float(numbers["seconds"]),
    )


def _check_refusal(reply: Reply) -> None:
    if reply.refused is not None:
        raise Refused(reply.silo, because(reply.refused))


def _check_size(reply: Reply, largest: int) -> None:
    if (size := memoryview(reply.payload).nbytes) > largest:
        raise Refused(reply.silo, f"its reply has {size} bytes; {largest} are allowed")


def _decoded(reply: Reply, read: Callable[[codec.Payload], dict[str, Tensor]]) -> dict[str, Tensor]:
    try:
        return read(reply.payload)
    except ValueError as error:
        raise Refused(reply.silo, str(error)) from None


def _by_silo(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    scores: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        silo, _, name = key.partition("/")
        scores.setdefault(silo, {})[name] = tensor
    return scores
