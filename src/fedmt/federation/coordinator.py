"""The server: round after round it asks silos, folds what they send, and writes down where it stands.

    plan → ask → check each reply → fold → checkpoint

It keeps one running sum, never a list of updates, and folds in the plan's order, so that the engine does not depend on
which silo was the fastest. Where silos merge in groups, a tensor has a name for each group (`groups.py`), and all else
is as it was. A run that was killed goes on from its last whole round. Knows no text, no method and no network.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmt.choices import CodecFp32, GroupsGradients, MergeBounded, SelectMetaSend, ThetaLearned
from fedmt.errors import RunError
from fedmt.events import Chosen, Listener, Note, Shifted, Spent
from fedmt.exchange import codec
from fedmt.exchange.ledger import Ledger
from fedmt.exchange.pulling import changes
from fedmt.exchange.selector import Scene, needs, select, whole
from fedmt.exchange.update import Update, mismatch
from fedmt.federation import checkpoint, replies
from fedmt.federation.checkpoint import Shelf, State, over, under
from fedmt.federation.course import After, Base, Course, Engines, Grouper, Plan, Tally, Tensors
from fedmt.federation.groups import Grouping
from fedmt.federation.merge import bounded, folding
from fedmt.federation.messages import Number, Reply, Request
from fedmt.federation.poll import Poll
from fedmt.federation.thresholds import Thresholds, theta_of
from fedmt.federation.transport import Transport
from fedmt.federation.work import BASE, FIT, GRADIENT, LOSS, SEND, score_step
from fedmt.place import Side
from fedmt.recipe import Recipe

__all__ = ["Coordinator"]

_COURSE = "course"
# Beside tensors by name or `group/name`: no group is called so.
_STATE = "@state"


class Coordinator:
    """`run` names the run in every message: other recipes need other names. `folder` None: nothing is written down.

    `sides` says where each tensor stands (none: all stand together), `grouper` who merges with whom (none: all);
    `own` is a silo that is the server itself.
    """

    def __init__(
        self,
        run: str,
        recipe: Recipe,
        transport: Transport,
        folder: Path | None,
        ledger: Ledger,
        listen: Listener,
        sides: Mapping[str, Side] | None = None,
        grouper: Grouper | None = None,
        own: str | None = None,
    ) -> None:
        self._run = run
        self._recipe = recipe
        self._poll = Poll(transport, recipe.failures, folder, ledger, listen, own)
        self._folder = folder
        self._ledger = ledger
        self._listen = listen
        self._sides = sides or {}
        self._grouper = grouper
        self._memory: dict[str, Shelf] = {}

    def train(
        self,
        model: str,
        start: Tensors,
        silos: Sequence[str],
        rounds: int,
        epochs: int,
        personal: bool = False,
        after: After | None = None,
        base: Base | None = None,
    ) -> Engines:
        """Train `model` from `start` at these silos, and give each silo's tensors: the last round's, or the best's.

        `start` is what is shared of an engine; `base` the rest, where there is one. `after` is called with each whole
        round and its engines once they are written down; when a run is resumed, again with the last of them.
        """
        plan = Plan(model, silos, rounds, epochs, personal, start, base)
        train = self._recipe.train
        shelf = self._shelf(model)
        course = self._resume(shelf, plan) or self._begin(shelf, plan)
        if after is not None and course.round:
            after(course.round, self._engines(plan, course))
        while course.round < rounds and not course.stale(train.patience):
            before, course = course, self._one_round(plan, course)
            if train.keep == "best" and course.best() == before.round:
                shelf.put(_best(before.round), State(before.tensors))
            self._commit(shelf, model, course)
            if after is not None:
                after(course.round, self._engines(plan, course))
        if train.keep == "last" or course.round == 0:
            return self._engines(plan, course)
        if len(course.losses) == course.round:
            course = self._last_loss(plan, course)
            self._commit(shelf, model, course)
        kept = shelf.get(_best(course.best()))
        return self._engines(plan, course if kept is None else replace(course, tensors=kept.tensors))

    def score(
        self, model: str, engines: Engines, silos: Sequence[str], set: str, round: int = 0
    ) -> dict[str, dict[str, Tensor]]:
        """Each silo's statistics of its engine on its set `dev` or `test`; `round` 0: the finished model's."""
        shelf, name = self._shelf(model), f"score-{set}-{round}"
        payloads = _once(lambda tensors: codec.encode(tensors, self._recipe.codec), [engines[silo] for silo in silos])
        digests = _once(zlib.crc32, payloads)
        about = {"run": self._run, "digest": digests, "silos": list(silos)}
        kept = shelf.get(name)
        if kept is not None and about.items() <= kept.numbers.items():
            self._ledger.settle(kept.numbers["ledger"])
            return _by_silo(kept.tensors)
        scores: dict[str, dict[str, Tensor]] = {}

        def take(silo: str, statistics: dict[str, Tensor]) -> None:
            # A view would keep the whole reply.
            scores[silo] = {name: tensor.clone() for name, tensor in statistics.items()}

        step, counts = score_step(set), {silo: _count(engines[silo]) for silo in silos}
        requests = [
            Request(self._run, model, round, step, silo, payload) for silo, payload in zip(silos, payloads, strict=True)
        ]
        del payloads
        self._ledger.forget()
        self._poll(requests, counts, replies.statistics, take, lambda _: (0, 0))
        flat = {f"{silo}/{name}": tensor for silo, table in scores.items() for name, tensor in table.items()}
        sealed = self._ledger.seal()
        shelf.put(name, State(flat, {**about, "ledger": sealed}))
        self._ledger.settle(sealed)
        return scores

    # ── one round ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _one_round(self, plan: Plan, course: Course) -> Course:
        recipe, round, begun = self._recipe, course.round + 1, time.monotonic()
        self._ledger.forget()
        course, all_silos = self._bring_base(plan, course), len(plan.silos)
        if plan.base is not None:
            plan = replace(plan, silos=[silo for silo in plan.silos if silo in course.based])
        thresholds = self._thresholds(plan, course)
        theta = None if thresholds else theta_of(recipe.selector.up, recipe.seed, round)
        requests, counts, state = self._push(plan, course, theta)
        fold, tally, told = folding(recipe.merge, self._folder), Tally(), set[str]()
        spending: dict[str, dict[str, float]] = {}
        sent, merging = [0, 0], [0.0]

        def tell(reply: Reply) -> None:
            if reply.silo not in told:
                told.add(reply.silo)
                self._listen(replies.trained(plan.model, round, reply))

        def read(reply: Reply) -> Update:
            update = replies.update(reply, recipe, self._engine(plan, course, reply.silo), whole(recipe.selector.up))
            tell(reply)
            spending[reply.silo] = replies.spent(reply)
            return update

        def take(silo: str, update: Update) -> None:
            at = time.monotonic()
            sent[0], sent[1] = sent[0] + len(update.tensors), sent[1] + update.parameters
            if recipe.score.shifts:
                self._listen(_shifted(plan.model, round, silo, update, self._engine(plan, course, silo)))
            if isinstance(recipe.merge, MergeBounded):
                update, length = bounded(update, self._engine(plan, course, silo), recipe.merge.norm)
                if length > recipe.merge.norm:
                    allowed = f"{recipe.merge.norm:g}"
                    self._listen(
                        Note(f"{silo}, round {round}: its change of norm {length:.4g} was scaled to {allowed}")
                    )
            key = self._key(course, silo)
            fold.add(update.renamed(key), [key(name) for name in plan.like])
            tally.add(silo, update)
            self._listen(Spent(plan.model, silo, round, spending.pop(silo)))
            merging[0] += time.monotonic() - at

        def up(update: Update) -> tuple[int, int]:
            return update.parameters, len(update.tensors)

        if thresholds is None:
            self._poll(requests, counts, read, take, up, all_silos)
        else:

            def read_losses(reply: Reply) -> replies.Judged:
                judged = replies.judged(reply, recipe, len(plan.like))
                tell(reply)
                return judged

            self._poll(requests, counts, read_losses, thresholds.hear, lambda _: (0, 0), all_silos)
            theta = thresholds.theta(round)
            numbers = {"theta": theta}
            requests = [Request(self._run, plan.model, round, SEND, silo, numbers=numbers) for silo in thresholds.heard]
            self._poll(requests, dict.fromkeys(thresholds.heard, (0, 0)), read, take, up, all_silos)
            learned = thresholds.state()
            state = State({**state.tensors, **learned.tensors}, {**state.numbers, **learned.numbers})
        if theta is not None:
            every = [len(tally.silos) * figure for figure in (len(plan.like), _count(plan.like)[0])]
            self._listen(Chosen(plan.model, round, theta, sent[0] / every[0], sent[1] / every[1], tally.loss()))
            state = State(state.tensors, {**state.numbers, "theta": theta})
        at = time.monotonic()
        merged = fold.result(course.tensors, recipe.merge.rate, recipe.merge.missing)
        spent = {"merge": merging[0] + time.monotonic() - at, "round": time.monotonic() - begun}
        self._listen(Spent(plan.model, "server", round, spent))
        return replace(
            course,
            tensors=merged,
            round=round,
            known=tuple(tally.silos),
            losses=(*course.losses[: course.round], tally.loss()),
            state=state,
        )

    def _push(
        self, plan: Plan, course: Course, theta: float | None
    ) -> tuple[list[Request], dict[str, tuple[int, int]], State]:
        """The requests of a round. All who are sent the same share one payload; the selector's new state goes along."""
        recipe, round, down = self._recipe, course.round + 1, self._recipe.selector.down
        payloads: dict[Any, tuple[memoryview, tuple[int, int]]] = {}
        remembered: dict[str, Tensor] = {}
        if needs(down).before:
            remembered |= over("before", course.tensors)
        down_theta = theta_of(down, recipe.seed, round, course.state.numbers.get("theta"))
        requests, counts = [], {}
        for silo in plan.silos:
            # A part is enough only for a silo that holds the rest.
            part = silo in course.known and not whole(down)
            which = (part, self._together(course, silo))
            if which not in payloads:
                now = self._engine(plan, course, silo)
                update = Update(now)
                if part:
                    place = f"down-{zlib.crc32(repr(which[1]).encode()):08x}"
                    before = under("before", course.state.tensors)
                    scene = Scene(
                        now,
                        self._engine(plan, replace(course, tensors=before), silo) if before else now,
                        {name: self._side(name) for name in now},
                        recipe.seed,
                        round,
                        "",
                        down_theta,
                    )
                    chosen, state = select(down, scene, under(place, course.state.tensors))
                    remembered |= over(place, state)
                    masks = {name: mask for name, mask in chosen.items() if mask is not None}
                    update = Update({name: now[name] for name in chosen}, masks=masks)
                payload = codec.encode(update.tensors, recipe.codec, update.masks)
                payloads[which] = payload, (update.parameters, len(update.tensors))
            payload, counts[silo] = payloads[which]
            numbers = {} if theta is None else {"theta": theta}
            requests.append(self._request(plan, round, FIT, silo, payload, plan.epochs, numbers))
        return requests, counts, State(remembered)

    def _thresholds(self, plan: Plan, course: Course) -> Thresholds | None:
        """Where a threshold is learned, what it has learned so far."""
        up = self._recipe.selector.up
        if plan.personal or not (isinstance(up, SelectMetaSend) and isinstance(up.theta, ThetaLearned)):
            return None
        keys = {silo: tuple(map(self._key(course, silo), plan.like)) for silo in plan.silos}
        sizes = [tensor.numel() for tensor in plan.like.values()]
        return Thresholds(up, self._recipe.merge.missing, sizes, keys, self._recipe.seed, course.state)

    def _last_loss(self, plan: Plan, course: Course) -> Course:
        """The dev loss of the last round's engine, which no further round will measure."""
        engines = self._engines(plan, course)
        payloads = _once(lambda tensors: codec.encode(tensors, self._recipe.codec), [*engines.values()])
        requests = [
            self._request(plan, course.round, LOSS, silo, payload, 0)
            for silo, payload in zip(engines, payloads, strict=True)
        ]
        tally = Tally()
        read = self._read_nothing
        counts = {silo: _count(engine) for silo, engine in engines.items()}
        self._ledger.forget()
        self._poll(requests, counts, read, tally.add, lambda _: (0, 0))
        return replace(course, losses=(*course.losses, tally.loss()))

    def _read_nothing(self, reply: Reply) -> Update:
        replies.check_refusal(reply)
        return Update({}, replies.weight_of(reply, self._recipe), reply.numbers)

    # ── before the first ────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, shelf: Shelf, plan: Plan) -> Course:
        # In one process these may be the resident engine's own, which silos will train.
        start = {name: tensor.detach().clone() for name, tensor in plan.like.items()}
        course = Course(start)
        if self._grouper is None:
            return course
        self._ledger.forget()
        gradients = None
        if isinstance(self._recipe.groups, GroupsGradients):
            course = self._bring_base(plan, course)
            gradients = self._gradients(plan, course)
        grouping = self._grouper(gradients)
        course = replace(course, grouping=grouping)
        tensors = {self._key(course, silo)(name): tensor for silo in plan.silos for name, tensor in start.items()}
        course = replace(course, tensors=tensors)
        self._commit(shelf, plan.model, course)
        return course

    def _bring_base(self, plan: Plan, course: Course) -> Course:
        """What silos lack of the engine, once; or only its digest, where each has it."""
        lacking = [silo for silo in plan.silos if silo not in course.based]
        if plan.base is None or not lacking:
            return course
        tensors = plan.base.tensors
        # Never rounded: the base is what everyone starts from, and it crosses but once.
        payload = codec.encode(tensors, CodecFp32()) if tensors else b""
        based: list[str] = []
        numbers: dict[str, Number] = {"digest": plan.base.digest}
        requests = [Request(self._run, plan.model, 0, BASE, silo, payload, numbers) for silo in lacking]
        counts = dict.fromkeys(lacking, _count(tensors))
        take: Callable[[str, None], None] = lambda silo, _: based.append(silo)  # noqa: E731
        had = len(plan.silos) - len(lacking)
        self._poll(requests, counts, replies.check_refusal, take, lambda _: (0, 0), len(plan.silos), had)
        return replace(course, based=(*course.based, *based))

    def _gradients(self, plan: Plan, course: Course) -> dict[str, Mapping[Side, Tensor]]:
        payload = codec.encode(course.tensors, self._recipe.codec)
        groups = self._recipe.groups
        batches = (groups.batches or 0) if isinstance(groups, GroupsGradients) else 0
        requests = [self._request(plan, 0, GRADIENT, silo, payload, 0, {"batches": batches}) for silo in plan.silos]
        found: dict[str, Mapping[Side, Tensor]] = {}
        counts = dict.fromkeys(plan.silos, _count(course.tensors))
        count: Callable[[Mapping[Side, Tensor]], tuple[int, int]] = lambda sides: (  # noqa: E731
            sum(vector.numel() for vector in sides.values()),
            len(sides),
        )
        self._poll(requests, counts, replies.gradients, found.__setitem__, count)
        return found

    # ── who has what ────────────────────────────────────────────────────────────────────────────────────────────────

    def _side(self, name: str) -> Side:
        return self._sides.get(name, "shared")

    def _key(self, course: Course, silo: str) -> Callable[[str], str]:
        """What the silo's tensors are called among the groups."""
        grouping = course.grouping
        if grouping is None:
            return lambda name: name
        return lambda name: grouping.key(silo, self._side(name), name)

    def _together(self, course: Course, silo: str) -> tuple[str, ...]:
        return () if course.grouping is None else course.grouping.together(silo)

    def _engine(self, plan: Plan, course: Course, silo: str) -> dict[str, Tensor]:
        key = self._key(course, silo)
        return {name: course.tensors[key(name)] for name in plan.like}

    def _engines(self, plan: Plan, course: Course) -> Engines:
        found: dict[tuple[str, ...], Tensors] = {}
        for silo in plan.silos:
            found.setdefault(self._together(course, silo), self._engine(plan, course, silo))
        return {silo: found[self._together(course, silo)] for silo in plan.silos}

    def _request(
        self,
        plan: Plan,
        round: int,
        step: str,
        silo: str,
        payload: codec.Payload,
        epochs: int,
        more: Mapping[str, Number] | None = None,
    ) -> Request:
        numbers: dict[str, Number] = {
            "rounds": plan.rounds,
            "epochs": epochs,
            "seed": self._recipe.seed,
            "personal": int(plan.personal),
            **(more or {}),
        }
        return Request(self._run, plan.model, round, step, silo, payload, numbers)

    # ── durability ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _resume(self, shelf: Shelf, plan: Plan) -> Course | None:
        state = shelf.get(_COURSE)
        if state is None:
            return None
        numbers = state.numbers
        if numbers["run"] != self._run:
            raise RunError(f"{shelf.folder}: belongs to the run {numbers['run']}, not to {self._run}")
        tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(f"{_STATE}/")}
        grouping = None if numbers["grouping"] is None else Grouping.from_numbers(numbers["grouping"])
        kept = State(under(_STATE, state.tensors), numbers["state"])
        course = Course(
            tensors,
            grouping,
            numbers["round"],
            tuple(numbers["known"]),
            tuple(numbers["based"]),
            tuple(numbers["losses"]),
            kept,
        )
        like = {self._key(course, silo)(name): tensor for silo in plan.silos for name, tensor in plan.like.items()}
        if wrong := mismatch(tensors, like, whole=True):
            raise RunError(f"{shelf.folder}: holds another engine: {wrong}")
        self._ledger.settle(numbers["ledger"])
        # Whoever was killed after the course was written down did not come to this.
        _tidy(shelf, course)
        return course

    def _commit(self, shelf: Shelf, model: str, course: Course) -> None:
        sealed = self._ledger.seal()
        numbers = {
            "run": self._run,
            "model": model,
            "round": course.round,
            "known": course.known,
            "based": course.based,
            "losses": course.losses,
            "grouping": None if course.grouping is None else course.grouping.as_numbers(),
            "state": course.state.numbers,
            "ledger": sealed,
        }
        shelf.put(_COURSE, State({**course.tensors, **over(_STATE, course.state.tensors)}, numbers))
        self._ledger.settle(sealed)
        _tidy(shelf, course)

    def _shelf(self, model: str) -> Shelf:
        if self._folder is not None:
            return checkpoint.shelf(self._folder, model)
        return self._memory.setdefault(model, Shelf(None))


def _best(round: int | None) -> str:
    return f"best-{round}"


def _tidy(shelf: Shelf, course: Course) -> None:
    """Drop what was the best once."""
    for name in shelf.names():
        if name.startswith("best-") and name != _best(course.best()):
            shelf.drop(name)


def _once(make: Callable[[Any], Any], of: Iterable[Any]) -> list[Any]:
    """What is made of each; of one and the same object, once."""
    made: dict[int, Any] = {}
    result = []
    for one in of:
        if id(one) not in made:
            made[id(one)] = make(one)
        result.append(made[id(one)])
    return result


def _count(tensors: Tensors) -> tuple[int, int]:
    return sum(tensor.numel() for tensor in tensors.values()), len(tensors)


def _shifted(model: str, round: int, silo: str, update: Update, before: Tensors) -> Shifted:
    """How far what was sent whole went."""
    names = [name for name in update.tensors if name not in update.masks]
    relative = changes({name: update.tensors[name] for name in names}, before, "relative")
    mean_abs = changes({name: update.tensors[name] for name in names}, before, "mean_abs")
    return Shifted(model, silo, round, tuple(names), tuple(relative.values()), tuple(mean_abs.values()))


def _by_silo(tensors: Tensors) -> dict[str, dict[str, Tensor]]:
    scores: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        silo, _, name = key.partition("/")
        scores.setdefault(silo, {})[name] = tensor
    return scores
