"""The round loop: what it folds, what it refuses, what it counts, and when it stops."""

from __future__ import annotations

import random
import re
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmt.choices import CodecFp16, CodecFp32
from fedmt.errors import QuorumError, RunError
from fedmt.events import Dropped, Trained, Travelled
from fedmt.exchange import codec
from fedmt.exchange.ledger import Entry, Totals
from fedmt.federation import checkpoint
from fedmt.federation.course import Base, Engines
from fedmt.federation.messages import Reply, Request, wire
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess, Transport
from fedmt.recipe import Recipe
from tests.federation.toy import DIGEST, Federation, Meddling, Tensors, bits, drawn, recipe, same, start

FP32 = CodecFp32()


def meddling(meddle: Callable[[list[Reply]], Iterable[Reply]]) -> Callable[[list[Silo]], Transport]:
    return lambda silos: Meddling(silos, meddle)


def lenient(**settings: Any) -> Recipe:
    return recipe(failures={"quorum": 0.5, **settings})


def without(folder: Path, *missing: int, rounds: int = 1, settings: Recipe | None = None) -> Tensors:
    """What the federation comes to when these silos' replies are lost in every round."""
    lost = {f"silo-{index}" for index in missing}
    keep = meddling(lambda replies: [reply for reply in replies if reply.silo not in lost])
    return Federation(folder / "without", settings or lenient(), transport=keep).train(rounds=rounds)


# ── the sum ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_round_is_the_weighted_mean_of_what_the_silos_sent() -> None:
    merged = Federation(None, samples=(1, 1, 2)).train(rounds=1)
    others = [Federation(None) for _ in range(3)]
    names = [other.names[index] for index, other in enumerate(others)]
    sent = [other.coordinator.train("m", start(), [n], 1, 1)[n] for n, other in zip(names, others, strict=True)]
    for name, tensor in merged.items():
        expected = (sent[0][name].double() + sent[1][name].double() + 2 * sent[2][name].double()) / 4
        torch.testing.assert_close(tensor, expected.float(), rtol=2**-23, atol=0)


def test_one_silo_federated_is_trained_alone() -> None:
    """The coordinator adds nothing: three rounds of a federation of one are three fits of its learner."""
    federation = Federation(None, goals=[2.0])
    merged = federation.train()
    received = [fit["a"] for fit in federation.learners[0].received]
    assert not torch.equal(received[1], received[0])
    assert same(merged, federation.learners[0].tensors())
    one = federation.coordinator.train("alone:silo-0", start(), ["silo-0"], 3, 1)["silo-0"]
    assert same(one, merged)


def test_the_mean_of_equal_silos_is_their_merge_by_samples() -> None:
    samples = Federation(None, samples=(37, 37, 37)).train()
    mean = Federation(None, recipe(merge={"kind": "mean"}), samples=(1, 50, 900)).train()
    assert same(samples, mean)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("on_disk", [True, False])
def test_the_engine_does_not_depend_on_who_is_first(tmp_path: Path, seed: int, on_disk: bool) -> None:
    goals = [float(goal) for goal in range(7)]
    shuffler = random.Random(seed)

    def shuffled(replies: list[Reply]) -> list[Reply]:
        # Bytes of its own, as from a network: what waits must not lean on the sender's memory.
        shuffler.shuffle(replies)
        return [replace(reply, payload=bytes(reply.payload)) for reply in replies]

    folder = tmp_path if on_disk else None
    one = Federation(folder / "a" if folder else None, goals=goals)
    other = Federation(folder / "b" if folder else None, goals=goals, transport=meddling(shuffled))
    assert same(one.train(), other.train())
    assert list(one.ledger.entries()) == list(other.ledger.entries())
    assert len(other.of(Trained)) == 21


def test_written_down_or_not_the_engine_is_the_same(tmp_path: Path) -> None:
    assert same(Federation(tmp_path).train(), Federation(None).train())


def test_the_resident_engines_own_tensors_may_be_the_start() -> None:
    settings = recipe(selector={"up": {"kind": "random", "share": 0.3}}, train={"keep": "best"})
    federation = Federation(None, settings)
    federation.learners[0].load(start())
    live = dict(federation.learners[0].tensors())
    assert same(federation.train(begin=live), Federation(None, settings).train())


def test_no_more_than_one_reply_is_held_at_a_time() -> None:
    alive: list[weakref.ref[Reply]] = []
    most = 0

    class Counting(InProcess):
        def ask(self, requests: Any, deadline: float | None = None) -> Any:
            nonlocal most
            for reply in super().ask(requests, deadline):
                alive.append(weakref.ref(reply))
                most = max(most, sum(other() is not None for other in alive))
                yield reply
                del reply

    Federation(None, goals=range(9), transport=Counting).train()
    assert len(alive) == 27
    assert most == 1


def test_silos_of_a_round_share_one_payload() -> None:
    asked: list[Request] = []

    class Watching(Meddling):
        def ask(self, requests: Any, deadline: float | None = None) -> Any:
            asked.extend(requests)
            return super().ask(requests, deadline)

    Federation(None, transport=lambda silos: Watching(silos, iter)).train(rounds=1)
    assert len({torch.frombuffer(request.payload, dtype=torch.uint8).data_ptr() for request in asked}) == 1


# ── what comes back ─────────────────────────────────────────────────────────────────────────────────────────────────


def spoilt(change: Callable[[Reply], Reply]) -> Callable[[list[Silo]], Transport]:
    """silo-1's replies are not what they should be."""
    return meddling(lambda replies: [change(reply) if reply.silo == "silo-1" else reply for reply in replies])


def tensors(change: Callable[[Tensors], Tensors], one: Any = FP32) -> Callable[[Reply], Reply]:
    def spoil(reply: Reply) -> Reply:
        table = {name: tensor.clone() for name, tensor in codec.decode(reply.payload).items()}
        return replace(reply, payload=codec.encode(change(table), one))

    return spoil


def number(name: str, value: float | None) -> Callable[[Reply], Reply]:
    def spoil(reply: Reply) -> Reply:
        kept = {key: number for key, number in reply.numbers.items() if key != name}
        return replace(reply, numbers=kept if value is None else {**kept, name: value})

    return spoil


def put(value: float) -> Callable[[Tensors], Tensors]:
    def change(table: Tensors) -> Tensors:
        table["b"][1] = value
        return table

    return change


BAD: dict[str, tuple[Callable[[Reply], Reply], str]] = {
    "NaN": (tensors(put(float("nan"))), "tensor 'b' holds a value that is not finite"),
    "infinite": (tensors(put(-float("inf"))), "tensor 'b' holds a value that is not finite"),
    "a shape": (tensors(lambda t: {**t, "a": t["a"].T}), r"tensor 'a' has shape \[3, 2\], not \[2, 3\]"),
    "a name": (tensors(lambda t: {**t, "z": t["a"]}), "unknown tensor 'z'"),
    "a missing name": (tensors(lambda t: {"a": t["a"]}), "2 of 3 tensors missing, the first is 'b'"),
    "a dtype": (tensors(dict, CodecFp16(kind="fp16")), "tensor 'a' is stored as F16, not F32"),
    "garbage": (lambda reply: replace(reply, payload=b"x" * 99), "its header claims"),
    "nothing": (lambda reply: replace(reply, payload=b""), "too short"),
    "torn": (lambda reply: replace(reply, payload=reply.payload[:-1]), "its tensors take 36 bytes"),
    "oversized": (lambda reply: replace(reply, payload=bytes(10**6)), "its reply has 1000000 bytes; 67"),
    "no samples": (number("samples", 0), "it claims 0 training pairs"),
    "broken samples": (number("samples", 2.5), "it claims 2.5 training pairs"),
    "unsaid samples": (number("samples", None), "it does not say its samples"),
    "an unsaid loss": (number("train_loss", None), "it does not say its train_loss"),
    "a replayed round": (
        lambda reply: replace(reply, round=reply.round - 1),
        "no reply but to federated, round 0, fit",
    ),
    "another model": (lambda reply: replace(reply, model="x"), "no reply but to x, round 1, fit"),
    "another run": (lambda reply: replace(reply, run="x"), "no reply but to federated, round 1, fit"),
    "another step": (lambda reply: replace(reply, step="score:dev"), "no reply but to federated, round 1, score:dev"),
    "a refusal": (
        lambda reply: replace(reply, payload=b"", numbers={}, refused="failed:MemoryError"),
        "it failed with MemoryError",
    ),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD.values(), ids=BAD)
def test_a_bad_update_is_named_and_the_round_goes_on(
    tmp_path: Path, spoil: Callable[[Reply], Reply], reason: str
) -> None:
    federation = Federation(tmp_path, lenient(), transport=spoilt(spoil))
    assert same(federation.train(rounds=1), without(tmp_path, 1))
    (dropped,) = federation.of(Dropped)
    assert (dropped.model, dropped.silo, dropped.round) == ("federated", "silo-1", 1)
    assert re.search(reason, dropped.reason)
    assert [event.who for event in federation.of(Trained)] == ["silo-0", "silo-2"]
    # What came was counted though it was not folded.
    assert sum(entry.silo == "silo-1" and entry.direction == "up" for entry in federation.ledger.entries()) == 1


def test_without_a_quorum_the_round_does_not_happen(tmp_path: Path) -> None:
    federation = Federation(tmp_path, transport=spoilt(tensors(put(float("nan")))))
    with pytest.raises(QuorumError) as caught:
        federation.train()
    assert str(caught.value) == (
        "federated, round 1, fit: 2 of 3 silos answered, 3 are needed "
        "(silo-1: tensor 'b' holds a value that is not finite)"
    )
    assert not list(federation.ledger.entries())
    assert same(Federation(tmp_path).train(), Federation(None).train())


@pytest.mark.parametrize(
    ("quorum", "silos", "need"), [(1.0, 3, 3), (0.5, 4, 2), (0.5, 5, 3), (0.01, 3, 1), (0.6, 5, 3)]
)
def test_the_quorum_is_a_share_rounded_up(quorum: float, silos: int, need: int) -> None:
    def only(count: int) -> Federation:
        return Federation(
            None,
            recipe(failures={"quorum": quorum}),
            goals=range(silos),
            transport=meddling(lambda replies: replies[:count]),
        )

    only(need).train(rounds=1)
    with pytest.raises(QuorumError, match=f"{need - 1} of {silos} silos answered, {need} "):
        only(need - 1).train(rounds=1)


def test_a_large_change_is_refused_where_a_largest_is_set() -> None:
    def push(table: Tensors) -> Tensors:
        return {name: tensor + 100 for name, tensor in table.items()}

    free = Federation(None, transport=spoilt(tensors(push)))
    free.train(rounds=1)
    assert not free.of(Dropped)
    bound = Federation(None, lenient(largest_norm=100.0), transport=spoilt(tensors(push)))
    bound.train(rounds=1)
    assert [event.silo for event in bound.of(Dropped)] == ["silo-1"]
    # Nine values moved by a hundred each, and by a little training.
    assert "norm 30" in bound.of(Dropped)[0].reason
    assert bound.of(Dropped)[0].reason.endswith("above 100")


def test_a_late_reply_is_not_taken_for_the_next_rounds(tmp_path: Path) -> None:
    """silo-2 is a round late every time: what it sends for round r comes while round r + 1 is under way."""
    held: list[Reply] = []

    def late(replies: list[Reply]) -> list[Reply]:
        now = [*held, *replies[:2]]
        held[:] = replies[2:]
        return now

    federation = Federation(tmp_path, lenient(deadline=7.0), transport=meddling(late))
    assert same(federation.train(), without(tmp_path, 2, rounds=3, settings=lenient(deadline=7.0)))
    assert [(event.silo, event.round, event.reason) for event in federation.of(Dropped)] == [
        ("silo-2", 1, "no reply within 7 s"),
        ("silo-2", 2, "no reply but to federated, round 1, fit"),
        ("silo-2", 3, "no reply but to federated, round 2, fit"),
    ]
    assert [e.round for e in federation.ledger.entries() if (e.silo, e.direction) == ("silo-2", "up")] == [1, 2]


def test_a_second_answer_is_counted_but_not_folded(tmp_path: Path) -> None:
    federation = Federation(tmp_path, transport=meddling(lambda replies: [*replies, *replies]))
    assert same(federation.train(), Federation(None).train())
    assert not federation.of(Dropped)
    once = Federation(None)
    once.train()
    assert federation.ledger.totals().up_bytes == 2 * once.ledger.totals().up_bytes


def test_strangers_are_passed_over(tmp_path: Path) -> None:
    def stranger(replies: list[Reply]) -> list[Reply]:
        return [replace(replies[0], silo="stranger"), *replies]

    federation = Federation(tmp_path, transport=meddling(stranger))
    assert same(federation.train(), Federation(None).train())
    assert all(entry.silo != "stranger" for entry in federation.ledger.entries())


def test_a_silo_that_is_not_there_is_not_asked(tmp_path: Path) -> None:
    federation = Federation(tmp_path, lenient())
    merged = federation.coordinator.train("federated", start(), [*federation.names, "away"], 1, 1)["away"]
    assert same(merged, Federation(None).train(rounds=1))
    assert [(event.silo, event.reason) for event in federation.of(Dropped)] == [("away", "not connected")]
    assert all(entry.silo != "away" for entry in federation.ledger.entries())


def test_a_silo_that_fails_once_is_taken_again(tmp_path: Path) -> None:
    failures = iter([True])

    def once(where: str) -> None:
        if where == "step" and next(failures, False):
            raise ValueError("Der Patient")

    federation = Federation(tmp_path, lenient(), check=once)
    federation.train(rounds=2)
    assert [(event.silo, event.round) for event in federation.of(Dropped)] == [("silo-0", 1)]
    assert "ValueError" in federation.of(Dropped)[0].reason
    assert [(event.who, event.round) for event in federation.of(Trained) if event.who == "silo-0"] == [("silo-0", 2)]


# ── what travels ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_ledger_counts_the_literal_bytes(tmp_path: Path) -> None:
    sent: list[tuple[str, str, int]] = []

    class Wire(Meddling):
        def ask(self, requests: Any, deadline: float | None = None) -> Any:
            sent.extend((request.silo, "down", len(wire(request))) for request in requests)
            for reply in super().ask(requests, deadline):
                sent.append((reply.silo, "up", len(wire(reply))))
                yield reply

    federation = Federation(tmp_path, transport=lambda silos: Wire(silos, iter))
    merged = federation.train(rounds=2)
    federation.coordinator.score("federated", dict.fromkeys(federation.names, merged), federation.names, "test")
    entries = list(federation.ledger.entries())
    assert sorted((entry.silo, entry.direction, entry.bytes) for entry in entries) == sorted(sent)
    assert [(entry.round, entry.step, entry.silo, entry.direction) for entry in entries[:4]] == [
        (1, "fit", "silo-0", "down"),
        (1, "fit", "silo-0", "up"),
        (1, "fit", "silo-1", "down"),
        (1, "fit", "silo-1", "up"),
    ]
    assert {(e.step, e.direction, e.parameters, e.tensors) for e in entries} == {
        ("fit", "down", 9, 3),
        ("fit", "up", 9, 3),
        ("score:test", "down", 9, 3),
        ("score:test", "up", 0, 0),
    }


def test_it_tells_who_trained_and_what_travelled(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.train(rounds=2)
    assert [(event.who, event.round) for event in federation.of(Trained)] == [
        (name, round) for round in (1, 2) for name in federation.names
    ]
    first = federation.of(Trained)[0]
    assert (first.model, first.tokens, first.steps, first.seconds) == ("federated", 100, 4, 0.25)
    total = Totals()
    for event in federation.of(Travelled):
        assert (event.up_parameters, event.down_parameters) == (9, 9)
        total += Totals(event.up_bytes, event.up_parameters, event.down_bytes, event.down_parameters)
    assert total == federation.ledger.totals("federated")


def test_fp16_halves_the_bytes_and_rounds_what_travels(tmp_path: Path) -> None:
    federation = Federation(tmp_path, recipe(codec={"kind": "fp16"}), goals=[1.0])
    merged = federation.train(rounds=1)
    trained = federation.learners[0].tensors()
    assert all(torch.equal(merged[name], trained[name].half().float()) for name in merged)
    assert any(not torch.equal(merged[name], trained[name]) for name in merged)


def test_a_random_half_up_merges_over_its_senders(tmp_path: Path) -> None:
    settings = recipe(selector={"up": {"kind": "random", "share": 0.3}}, seed=4)
    federation = Federation(tmp_path, settings)
    merged = federation.train(rounds=1)
    sent = {name: drawn(settings.selector.up, 4, 1, name) for name in federation.names}
    for tensor_name, before in start().items():
        senders = [silo for silo, names in sent.items() if tensor_name in names]
        assert torch.equal(merged[tensor_name], before) == (not senders)
    entries = [entry for entry in federation.ledger.entries() if entry.direction == "up"]
    assert [entry.tensors for entry in entries] == [len(names) for names in sent.values()]


def test_a_random_half_down_goes_to_those_who_hold_the_rest(tmp_path: Path) -> None:
    """The first round sends everything; a silo that was lost for a round is sent everything again."""
    lost = {("silo-1", 2)}
    settings = recipe(selector={"down": {"kind": "random", "share": 0.5}}, failures={"quorum": 0.5})
    transport = meddling(lambda replies: [reply for reply in replies if (reply.silo, reply.round) not in lost])
    federation = Federation(tmp_path, settings, transport=transport)
    federation.train(rounds=4)
    down = {(e.silo, e.round): e.tensors for e in federation.ledger.entries() if e.direction == "down"}
    part = {round: len(drawn(settings.selector.down, settings.seed, round, "")) for round in (2, 3, 4)}
    assert all(count < 3 for count in part.values())
    assert [down[name, 1] for name in federation.names] == [3, 3, 3]
    assert [down[name, 2] for name in federation.names] == [part[2]] * 3
    assert [down[name, 3] for name in federation.names] == [part[3], 3, part[3]]
    assert [down[name, 4] for name in federation.names] == [part[4]] * 3
    assert [event.silo for event in federation.of(Dropped)] == ["silo-1"]


# ── when to stop, and what to keep ──────────────────────────────────────────────────────────────────────────────────


class Losses:
    """Silos report these dev losses, round by round, instead of their own."""

    def __init__(self, *rounds: tuple[float | None, ...]) -> None:
        self._rounds = rounds

    def __call__(self, replies: list[Reply]) -> list[Reply]:
        done = []
        for index, reply in enumerate(replies):
            # The engine after r rounds is measured in round r + 1, and the last one's by a question of its own.
            engine = reply.round - 1 if reply.step == "fit" else reply.round
            done.append(number("dev_loss", self._rounds[engine][index])(reply))
        return done


def federation_of_two(folder: Path | None, losses: Losses, **train: Any) -> Federation:
    return Federation(folder, recipe(train=train), (1.0, 3.0), (1, 3), transport=meddling(losses))


def test_training_stops_when_the_weighted_loss_has_not_improved(tmp_path: Path) -> None:
    # Weights 1 and 3: the losses are 4, 3.25, 3.5, 3.25, …; the best is after one round, and two more are not better.
    losses = Losses((4, 4), (1, 4), (5, 3), (1, 4), (0, 0), (0, 0))
    federation = federation_of_two(tmp_path, losses, patience=2)
    merged = federation.train(rounds=6)
    assert max(event.round for event in federation.of(Trained)) == 4
    assert same(merged, federation_of_two(None, losses).train(rounds=4))
    again = federation_of_two(tmp_path, losses, patience=2)
    assert same(again.train(rounds=6), merged)
    assert not again.events


@pytest.mark.parametrize(("best", "on_disk"), [(0, True), (1, True), (2, False), (3, True), (3, False)])
def test_the_engine_of_the_lowest_loss_is_kept(tmp_path: Path, best: int, on_disk: bool) -> None:
    losses = Losses(*[(1.0 + (round != best), 1.0) for round in range(4)])
    folder = tmp_path if on_disk else None
    federation = federation_of_two(folder, losses, keep="best")
    kept = federation.train(rounds=3)
    expected = start() if best == 0 else federation_of_two(None, losses).train(rounds=best)
    assert same(kept, expected)
    assert same(federation_of_two(folder, losses, keep="best").train(rounds=3), expected)
    if on_disk:
        files = sorted(path.name for path in (tmp_path / "rounds" / "federated").iterdir())
        assert files == ["course.safetensors"] if best == 3 else [f"best-{best}.safetensors", "course.safetensors"]
    asked = [entry for entry in federation.ledger.entries() if entry.step == "loss"]
    assert [(entry.direction, entry.parameters) for entry in asked] == [("down", 9), ("up", 0)] * 2


def test_silos_without_a_dev_set_do_not_count_and_without_any_the_last_is_kept(tmp_path: Path) -> None:
    one = Losses((None, 2), (0, 3), (None, 1), (0, 9))
    assert same(
        federation_of_two(tmp_path / "a", one, keep="best").train(rounds=3),
        federation_of_two(None, one).train(rounds=2),
    )
    none = Losses(*[(None, None)] * 4)
    kept = federation_of_two(tmp_path / "b", none, keep="best", patience=1).train(rounds=3)
    assert same(kept, federation_of_two(None, none).train(rounds=3))


def test_a_loss_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    losses = Losses((2, 2), (float("nan"), 0), (1, float("inf")), (3, 3))
    assert same(federation_of_two(tmp_path, losses, keep="best").train(rounds=3), start())


def test_no_rounds_change_nothing(tmp_path: Path) -> None:
    for keep in ("last", "best"):
        federation = Federation(tmp_path / keep, recipe(train={"keep": keep}))
        assert same(federation.train(rounds=0), start())
        assert not federation.events


# ── going on ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_goes_on_from_its_last_whole_round(tmp_path: Path) -> None:
    Federation(tmp_path).train(rounds=2)
    federation = Federation(tmp_path)
    merged = federation.train(rounds=2)
    assert not federation.events
    assert all(bits(merged[name]) == bits(tensor) for name, tensor in Federation(None).train(rounds=2).items())


def test_what_is_done_after_a_round_finds_it_written_down_and_is_done_again_after_a_kill(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def trained(rounds: int, last: int | None = None) -> tuple[list[tuple[int, float]], Federation]:
        federation, seen = Federation(tmp_path), list[tuple[int, float]]()

        def after(round: int, engines: Engines) -> None:
            (path,) = (tmp_path / "rounds").rglob("course.safetensors")
            assert checkpoint.load(path).numbers["round"] == round
            scores = federation.coordinator.score("federated", engines, federation.names, "dev", round)
            seen.append((round, float(scores["silo-0"]["bleu"])))
            if round == last:
                raise Killed

        federation.coordinator.train("federated", start(), federation.names, rounds, 1, after=after)
        return seen, federation

    with pytest.raises(Killed):
        trained(3, last=2)
    seen, federation = trained(3)
    assert [round for round, _ in seen] == [2, 3]
    assert [learner.scored for learner in federation.learners] == [1, 1, 1], "round 2 was scored before"
    plain = Federation(None).train(rounds=3)
    assert same(Federation(tmp_path).train(rounds=3), plain)
    steps = [(entry.step, entry.round) for entry in federation.ledger.entries() if entry.direction == "down"]
    order = [step for round in (1, 2, 3) for step in (("fit", round), ("score:dev", round))]
    assert list(dict.fromkeys(steps)) == order
    assert {event.step for event in federation.of(Travelled)} == {"fit", "score:dev"}


def test_another_runs_or_engines_rounds_are_not_taken_up(tmp_path: Path) -> None:
    Federation(tmp_path).train(rounds=1)
    with pytest.raises(RunError, match="belongs to the run run-1, not to run-2"):
        Federation(tmp_path, run="run-2").train()
    with pytest.raises(RunError, match="holds another engine: tensor 'b' has shape"):
        Federation(tmp_path).train(begin={**start(), "b": torch.ones(5)})


# ── scores ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def scores(federation: Federation, engine: Tensors, **more: Any) -> dict[str, dict[str, Tensor]]:
    return federation.coordinator.score(
        "federated", dict.fromkeys(federation.names, engine), federation.names, "test", **more
    )


def test_scores_are_each_silos_own_statistics_and_asked_once(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    found = scores(federation, start())
    assert list(found) == federation.names
    assert found["silo-1"]["counts"].tolist() == [9, 4]
    assert found["silo-1"]["counts"].dtype == torch.int64
    assert found["silo-0"]["bleu"].item() == sum(float((t.double() - 1).square().sum()) for t in start().values())
    ledger = list(federation.ledger.entries())
    again = Federation(tmp_path)
    repeated = scores(again, start())
    assert {silo: list(table) for silo, table in repeated.items()} == {
        silo: list(table) for silo, table in found.items()
    }
    assert all(torch.equal(repeated[silo][name], found[silo][name]) for silo in found for name in found[silo])
    assert not any(learner.scored for learner in again.learners)
    assert list(again.ledger.entries()) == ledger
    scores(again, {name: tensor + 1 for name, tensor in start().items()})
    scores(again, start(), round=2)
    assert [learner.scored for learner in again.learners] == [2, 2, 2]


def test_bad_scores_are_refused_and_named(tmp_path: Path) -> None:
    texts = {"note": torch.frombuffer(bytearray(b"Guten Tag"), dtype=torch.uint8)}
    for index, (payload, reason) in enumerate(
        [
            (codec.pack(texts), "its statistics are not numbers"),
            (b"garbage!", "too short|header claims"),
            (bytes(1 << 27), "bytes; 67108864 are allowed"),
        ]
    ):
        spoil = spoilt(lambda reply, payload=payload: replace(reply, payload=payload))  # type: ignore[misc]
        federation = Federation(tmp_path / str(index), lenient(), transport=spoil)
        assert list(scores(federation, start())) == ["silo-0", "silo-2"]
        (dropped,) = federation.of(Dropped)
        assert re.search(reason, dropped.reason)
    strict = Federation(tmp_path / "strict", transport=meddling(lambda replies: replies[:1]))
    with pytest.raises(QuorumError, match="federated, round 0, score:test: 1 of 3 silos answered"):
        scores(strict, start())


def test_a_line_of_the_ledger_reads_as_it_was_written(tmp_path: Path) -> None:
    federation = Federation(tmp_path, goals=[1.0])
    federation.train(rounds=1)
    down, up = federation.ledger.entries()
    assert down == Entry("federated", 1, "fit", "silo-0", "down", down.bytes, 9, 3)
    assert down.bytes % 4 == 0
    assert down.bytes > 36 < up.bytes


# ── the base ────────────────────────────────────────────────────────────────────────────────────────────────────────


def based(federation: Federation, digest: int = DIGEST, rounds: int = 3) -> Engines:
    train = federation.coordinator.train
    return train("federated", start(), federation.names, rounds, 1, base=Base({}, digest))


def test_the_base_is_brought_once(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    assert same(based(federation)["silo-0"], Federation(None).train())
    steps = [(entry.step, entry.round) for entry in federation.ledger.entries() if entry.direction == "down"]
    assert steps == [("base", 0)] * 3 + [("fit", round) for round in (1, 2, 3) for _ in range(3)]


def test_silos_of_another_engine_are_not_trained_with(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    with pytest.raises(QuorumError, match=r"base: 0 of 3 silos answered.*not the one the federation begins from"):
        based(federation, digest=8)
    assert not any(learner.fits for learner in federation.learners)


def test_who_did_not_get_the_base_is_brought_it_before_it_trains(tmp_path: Path) -> None:
    lost: list[str] = []

    def lose(replies: list[Reply]) -> list[Reply]:
        kept = [reply for reply in replies if not (reply.step == "base" and reply.silo == "silo-1" and not lost)]
        lost.extend(reply.silo for reply in replies if reply not in kept)
        return kept

    settings = recipe(failures={"quorum": 0.6})
    federation = Federation(tmp_path, settings, transport=meddling(lose))
    based(federation)
    assert [[order.round for order in learner.fits] for learner in federation.learners] == [
        [1, 2, 3],
        [2, 3],
        [1, 2, 3],
    ]
    strict = Federation(None, transport=meddling(lambda replies: replies[1:]))
    with pytest.raises(QuorumError, match="base: 2 of 3"):
        based(strict)
