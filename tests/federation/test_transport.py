"""Silos in this process answer in turn; a late one is not waited for twice."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable

import pytest

from fedmt.choices import CodecFp32
from fedmt.exchange import codec
from fedmt.federation.messages import Request
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess
from tests.federation.toy import Arithmetic, Engine, recipe, start


def silos(check: Callable[[str], None] | None = None, count: int = 3) -> list[Silo]:
    engine = Engine()
    return [Silo(f"s{index}", Arithmetic(engine, 1.0, check=check), None, recipe()) for index in range(count)]


def requests(count: int = 3) -> list[Request]:
    payload = codec.encode(start(), CodecFp32())
    numbers = {"rounds": 1, "epochs": 1, "seed": 1, "personal": 0}
    return [Request("r", "m", 1, "fit", f"s{index}", payload, numbers) for index in range(count)]


def test_replies_come_one_by_one_in_turn() -> None:
    worked: list[str] = []
    federation = InProcess(silos(worked.append))
    assert federation.silos() == ["s0", "s1", "s2"]
    replies = federation.ask(requests())
    assert not worked
    assert next(replies).silo == "s0"
    assert len(worked) == 12  # one silo's four steps, each checked thrice
    assert [reply.silo for reply in replies] == ["s1", "s2"]


def test_only_those_asked_answer() -> None:
    assert [reply.silo for reply in InProcess(silos()).ask(requests()[1:2])] == ["s1"]


def test_a_given_reply_is_not_held_while_the_next_silo_works() -> None:
    replies = InProcess(silos()).ask(requests())
    reply = next(replies)
    watch = weakref.ref(reply)
    del reply
    gc.collect()
    assert watch() is None


def test_each_silo_has_the_whole_deadline_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """s1 takes 8 seconds, the others 4; together they take longer than the deadline of 5."""
    clock = 0.0
    silo = 0

    def check(where: str) -> None:
        nonlocal clock
        if where == "step":
            clock += 2.0 if silo == 1 else 1.0

    def now() -> float:
        return clock

    monkeypatch.setattr(time, "monotonic", now)
    federation = InProcess(silos(check))
    given = []
    for one in requests():
        silo = int(one.silo[1])
        given += [reply.silo for reply in federation.ask([one], deadline=5.0)]
    assert given == ["s0", "s2"]
    silo = 0
    assert len(list(InProcess(silos(check)).ask(requests(), deadline=5.0))) == 3
