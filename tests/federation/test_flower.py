"""The Flower transport over a grid in memory: what is sent once, pulled one by one, lost, late, or nothing at all."""

from __future__ import annotations

import gc
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmt.exchange.codec import Payload
from fedmt.federation import flower
from fedmt.federation.flower import Flower, respond
from fedmt.federation.messages import Reply, Request, reply_to, unwire, wire


@pytest.fixture(autouse=True)
def _task() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3


@dataclass
class Node:
    name: str
    node_id: int


@dataclass
class Clock:
    now: float = 0.0
    at: dict[float, Callable[[], None]] = field(default_factory=dict)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when in [when for when in self.at if when <= self.now]:
            self.at.pop(when)()


class Grid:
    """A SuperLink with nodes that answer after so many seconds (None: never)."""

    def __init__(self, clock: Clock, takes: Mapping[str, float | None]) -> None:
        self.clock = clock
        self.takes = dict(takes)
        self.ids = {name: number for number, name in enumerate(takes, 1)}
        self.away: set[str] = set()
        self.ready: dict[str, tuple[float, str, Any]] = {}
        self.pushed: list[Any] = []
        self.pulls: list[int] = []
        self.answer: Callable[[bytes, Mapping[str, Any]], bytes] = echo
        self.spoil: Callable[[Any], Any] = lambda message: message

    def get_nodes(self) -> list[Node]:
        return [Node(name, number) for name, number in self.ids.items() if name not in self.away]

    def push_messages(self, messages: Iterable[Any]) -> Iterator[str]:
        for message in messages:
            self.pushed.append(message)
            id_ = f"m{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = id_
            name = next(name for name, number in self.ids.items() if number == message.metadata.dst_node_id)
            takes = self.takes[name]
            if takes is not None:
                self.ready[id_] = (self.clock() + takes, name, message)
            yield id_

    def pull_messages(self, ids: list[str]) -> Iterator[Any]:
        self.pulls.append(len(ids))
        for id_ in ids:
            when, name, message = self.ready.get(id_, (float("inf"), "", None))
            if message is not None and name in self.away:
                self.ready.pop(id_)
                yield Message(Error(5, "unavailable"), reply_to=message)
            elif when <= self.clock():
                self.ready.pop(id_)
                yield self.spoil(respond(message, {}, self.answer))


def echo(content: bytes, _: Mapping[str, Any]) -> bytes:
    request = unwire(content)
    assert isinstance(request, Request)
    return wire(reply_to(request, request.payload, {"crc": zlib.crc32(request.payload)}))


def asked(names: Iterable[str], payload: Payload = b"abc", round: int = 1) -> list[Request]:
    return [Request("r", "m", round, "fit", name, payload) for name in names]


def made(takes: Mapping[str, float | None], **more: Any) -> tuple[Flower, Grid, Clock]:
    clock = Clock()
    grid = Grid(clock, takes)
    return Flower(grid, clock=clock, sleep=clock.sleep, **more), grid, clock


def test_silos_are_the_connected_nodes_by_the_names_of_their_keys() -> None:
    transport, grid, _ = made({"b": 0, "a": 0, "": 0})
    assert transport.silos() == ["a", "b"]
    grid.away.add("a")
    assert transport.silos() == ["b"]


def test_replies_come_as_they_are_ready_and_one_message_is_pulled_at_a_time() -> None:
    transport, grid, _ = made({"slow": 5, "fast": 1, "middle": 3})
    replies = list(transport.ask(asked(grid.ids)))
    assert [reply.silo for reply in replies] == ["fast", "middle", "slow"]
    assert all(bytes(reply.payload) == b"abc" for reply in replies)
    assert set(grid.pulls) == {1}


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 40_000])
def test_payloads_cross_whole_whatever_their_size(payload: bytes) -> None:
    transport, _, _ = made({"a": 0})
    (reply,) = transport.ask(asked("a", memoryview(payload)))
    assert (bytes(reply.payload), reply.numbers["crc"]) == (payload, zlib.crc32(payload))


def test_what_all_are_sent_is_stored_once_and_no_record_but_arrays_is_used() -> None:
    transport, grid, _ = made({"a": 0, "b": 0})
    list(transport.ask(asked("ab", memoryview(b"shared" * 1000))))
    bodies = [message.content["message"]["body"] for message in grid.pushed]
    assert bodies[0].data is bodies[1].data
    assert bodies[0].object_id == bodies[1].object_id
    assert all(isinstance(record, ArrayRecord) for message in grid.pushed for record in message.content.values())


def test_after_the_deadline_a_reply_is_late_and_a_later_ask_gives_it() -> None:
    transport, _, clock = made({"a": 1, "b": 20})
    assert [reply.silo for reply in transport.ask(asked("ab"), 10)] == ["a"]
    assert 10 <= clock.now < 11
    replies = list(transport.ask(asked("ab", round=2), 30))
    assert sorted((reply.silo, reply.round) for reply in replies) == [("a", 2), ("b", 1), ("b", 2)]


def test_a_site_that_goes_is_asked_again_when_it_is_back() -> None:
    transport, grid, clock = made({"a": 4})
    clock.at = {2: lambda: grid.away.add("a"), 90: lambda: grid.away.clear()}
    (reply,) = transport.ask(asked("a"))
    assert reply.silo == "a"
    assert len(grid.pushed) == 2


def test_a_site_that_stays_away_is_not_waited_for_without_end() -> None:
    transport, grid, clock = made({"a": 1, "b": 4}, gone=60)
    clock.at = {2: lambda: grid.away.add("b")}
    assert [reply.silo for reply in transport.ask(asked("ab"))] == ["a"]
    assert 60 < clock.now < 70


def test_an_answer_that_is_no_message_is_a_refusal_by_name() -> None:
    transport, grid, _ = made({"a": 0, "b": 0})
    spoiled = {
        "text": lambda message: Message(RecordDict({"message": ConfigRecord({"text": "a"})}), reply_to=message),
        "bytes": lambda message: Message(
            RecordDict({"message": ArrayRecord({"head": Array("uint8", (3,), "bytes", b"abc")})}), reply_to=message
        ),
        "another array": lambda message: Message(
            RecordDict({"message": ArrayRecord({"head": Array("float32", (1,), "bytes", b"abcd")})}), reply_to=message
        ),
    }
    for spoil in spoiled.values():
        grid.spoil = lambda _, spoil=spoil: spoil(grid.pushed[-1])  # type: ignore[misc]
        assert [reply.refused for reply in transport.ask(asked("a"))] == ["unreadable"]


def test_a_site_cannot_answer_in_anothers_name() -> None:
    transport, grid, _ = made({"a": 0, "b": 0})
    grid.answer = lambda *_: wire(Reply("r", "m", 1, "fit", "b", b"", {}))
    assert [(reply.silo, reply.refused) for reply in transport.ask(asked("a"))] == [("a", "unreadable")]


def test_too_large_an_answer_is_refused() -> None:
    transport, _, _ = made({"a": 0}, most=1000)
    assert [reply.refused for reply in transport.ask(asked("a", b"x" * 2000))] == ["unreadable"]


def test_a_site_answers_bytes_that_are_no_request_with_an_error_without_words() -> None:
    secret = "Der Kanarienvogel"

    def fails(*_: Any) -> bytes:
        raise ValueError(secret)

    request = Message(RecordDict({"message": ArrayRecord({})}), 1, flower.KIND)
    request.metadata.__dict__["_message_id"] = "m"
    reply = respond(request, {}, fails)
    assert reply.has_error()
    assert secret not in str(reply.error.reason)


def test_an_answer_is_not_kept_while_the_next_is_waited_for() -> None:
    transport, *_ = made({"a": 0, "b": 1})
    replies = transport.ask(asked("ab", b"x" * 1000))
    payload = next(replies).payload
    assert isinstance(payload, memoryview)
    watched = payload.obj
    del payload
    gc.collect()
    # This name, and the call's own.
    assert sys.getrefcount(watched) == 2
    assert [reply.silo for reply in replies] == ["b"]


def test_a_request_that_is_refused_forever_is_not_sent_forever() -> None:
    transport, grid, _ = made({"a": 0})

    def fails(*_: Any) -> bytes:
        raise ValueError("no")

    grid.answer = fails
    assert list(transport.ask(asked("a"))) == []
    assert 1 < len(grid.pushed) <= 20


def test_a_request_that_was_lost_on_the_way_is_sent_again() -> None:
    transport, grid, clock = made({"a": None, "b": 1})
    clock.at = {5: lambda: grid.takes.update(a=1)}
    assert [reply.silo for reply in transport.ask(asked("ab"))] == ["b", "a"]
    assert clock.now < 60
    assert [bool(message.content["message"]) for message in grid.pushed] == [True, True, False, True]


def test_a_site_that_works_for_long_is_sent_its_request_once() -> None:
    transport, grid, _ = made({"a": 5000})
    assert [reply.silo for reply in transport.ask(asked("a"))] == ["a"]
    assert [bool(message.content["message"]) for message in grid.pushed].count(True) == 1
    assert len(grid.pushed) < 20
