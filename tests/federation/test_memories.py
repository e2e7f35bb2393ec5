"""One round of sealed records: who ends with what, who is asked again, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedmt.errors import Failure, QuorumError
from fedmt.events import Dropped
from fedmt.exchange import codec
from fedmt.exchange.codec import Payload
from fedmt.federation.memories import Share
from fedmt.federation.messages import Reply, Request, unwire
from fedmt.federation.silo import Silo
from fedmt.federation.transport import Transport
from fedmt.memory.seal import Invitation, unseal
from fedmt.memory.sealed import Reader
from tests.federation.memory_toy import NAMES, Counting, Federation, key, quantiser, settings
from tests.federation.toy import start


def tapped(
    down: Callable[[Request], Request] = lambda request: request, up: Callable[[Reply], Reply] = lambda reply: reply
) -> Callable[[list[Silo]], Transport]:
    return lambda silos: Counting(silos, down, up)


def damaged(payload: Payload, at: int = -60) -> bytes:
    changed = bytearray(payload)
    changed[at] ^= 1
    return bytes(changed)


def test_everyone_ends_with_everyones_records(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    found = made.share()
    for name in NAMES:
        assert made.has(name) == made.written(*NAMES)
    assert found == {"de-en": "agency"}
    scores = made.memories.recite(NAMES)
    assert {name: float(table["bleu"][0]) for name, table in scores.items()} == dict.fromkeys(NAMES, 30 + 37 + 44)


@pytest.mark.parametrize(
    ("learns", "dev", "taught"),
    [
        ("each", (5, 6, 7), [1.0, 2.0, 3.0]),
        # The agency has the most dev text.
        ("one", (5, 6, 7), [3.0, 3.0, 3.0]),
        # Who has none uses what another learnt.
        ("each", (5, 0, 7), [1.0, 3.0, 3.0]),
        ("one", (9, 0, 7), [1.0, 1.0, 1.0]),
    ],
)
def test_each_learns_for_itself_or_one_for_all(
    learns: str, dev: tuple[int, int, int], taught: list[float], tmp_path: Path
) -> None:
    made = Federation(tmp_path, settings(learns=learns), transport=tapped(), dev=dev)
    made.share()
    made.memories.recite(NAMES)
    recited = [one for name in NAMES for one in made.writers[name].recited]
    assert [size for size, _ in recited] == [111] * 3
    assert [temperature for _, temperature in recited] == pytest.approx(taught)
    assert isinstance(made.transport, Counting)
    replies = [message for message in map(unwire, made.transport.tape) if isinstance(message, Reply)]
    carried = [message.silo for message in replies if message.step == "tune" and len(message.payload)]
    assert len(carried) == (0 if learns == "each" and all(dev) else 1)


def test_nobody_can_learn_without_dev_text(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no silo's dev text could teach how to use it: there is none"):
        Federation(tmp_path, dev=(0, 0, 0)).share()


def test_records_are_of_the_engine_that_was_sent(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    made.share()
    for writer in made.writers.values():
        assert {name: tensor.tolist() for name, tensor in writer.held.items()} == {
            name: tensor.tolist() for name, tensor in start().items()
        }


def test_the_ledger_is_what_crossed(tmp_path: Path) -> None:
    made = Federation(tmp_path, transport=tapped())
    made.share()
    made.memories.recite(NAMES)
    assert isinstance(made.transport, Counting)
    entries = list(made.ledger.entries())
    assert sum(entry.bytes for entry in entries) == sum(map(len, made.transport.tape))
    assert {entry.step for entry in entries} == {"invite", "remember", "recall", "tune", "recite"}


def test_a_second_start_asks_nobody_again(tmp_path: Path) -> None:
    first = Federation(tmp_path)
    first.share()
    scores = first.memories.recite(NAMES)
    told = (tmp_path / "ledger.jsonl").read_bytes()
    second = Federation(tmp_path, transport=tapped())
    second.share()
    again = second.memories.recite(NAMES)
    assert isinstance(second.transport, Counting)
    assert second.transport.tape == []
    assert {name: table["bleu"].tolist() for name, table in again.items()} == {
        name: table["bleu"].tolist() for name, table in scores.items()
    }
    assert (tmp_path / "ledger.jsonl").read_bytes() == told


@pytest.mark.parametrize("step", ["invite", "remember", "recall", "tune", "recite"])
def test_a_run_that_was_killed_goes_on(step: str, tmp_path: Path) -> None:
    """Killed when this step had been answered by two: nothing of it is on the server's disk."""

    class Killed(BaseException):
        pass

    seen: list[str] = []

    def up(reply: Reply) -> Reply:
        if reply.step == step:
            seen.append(reply.silo)
            if len(seen) == (2 if step in ("remember", "recall", "recite") else 1):
                raise Killed
        return reply

    first = Federation(tmp_path, transport=tapped(up=up))

    def through(made: Federation) -> None:
        made.share()
        made.memories.recite(NAMES)

    with pytest.raises(Killed):
        through(first)
    second = Federation(tmp_path)
    through(second)
    assert second.has("agency") == second.written(*NAMES)
    whole = Federation(tmp_path / "whole")
    through(whole)
    lines = [[(entry.step, entry.silo, entry.direction) for entry in made.ledger.entries()] for made in (second, whole)]
    assert lines[0] == lines[1]


# ── who comes, who goes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_later_joiner_adds_its_records_and_nobody_repeats_theirs(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    made.share(["court", "clinic"])
    assert made.has("court") == made.written("court", "clinic")
    made.share()
    assert made.asked() == {"court": 1, "clinic": 1, "agency": 1}
    for name in NAMES:
        assert made.has(name) == made.written(*NAMES)
    sent = [entry.silo for entry in made.ledger.entries() if (entry.step, entry.direction) == ("remember", "up")]
    assert sent == list(NAMES)


def test_one_whom_the_first_did_not_know_is_let_in_by_who_does(tmp_path: Path) -> None:
    Federation(tmp_path, names=NAMES[:2]).share()
    made = Federation(tmp_path, known=lambda silo, other: silo != "court" or other != "agency")
    # The court opens the merged file all the same? No: it knows nobody by that key, and says so.
    with pytest.raises(QuorumError, match="court"):
        made.share()
    knowing = Federation(tmp_path)
    knowing.share()
    assert knowing.has("agency") == knowing.written(*NAMES)
    assert {entry.step for entry in knowing.ledger.entries()} >= {"introduce", "admit"}


def test_nobody_is_let_in_whom_no_member_knows(tmp_path: Path) -> None:
    Federation(tmp_path, names=NAMES[:2]).share()
    made = Federation(tmp_path, known=lambda silo, other: silo == other or "agency" not in (silo, other))
    with pytest.raises(Failure, match="knows nobody by the key"):
        made.share()
    assert made.asked() == {"court": 0, "clinic": 0, "agency": 0}


def test_a_leavers_records_are_gone(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    made.share()
    made.share(["court", "agency"])
    assert made.has("court") == made.has("agency") == made.written("court", "agency")
    assert not (made.server / "de-en" / "sealed" / "clinic").exists()
    with Reader(made.server / "de-en" / "merged") as reader:
        assert reader.header.count == len(made.written("court", "agency"))


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_damaged_records_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    def up(reply: Reply) -> Reply:
        return (
            replace(reply, payload=damaged(reply.payload))
            if (reply.step, reply.silo) == ("remember", "clinic")
            else reply
        )

    plan = settings().model_copy(update={"failures": settings().failures.model_copy(update={"quorum": 0.6})})
    made = Federation(tmp_path, plan, transport=tapped(up=up))
    made.share()
    assert [one.silo for one in made.events if isinstance(one, Dropped)] == ["clinic"]
    assert made.has("court") == made.written("court", "agency")
    strict = Federation(tmp_path / "strict", transport=tapped(up=up))
    with pytest.raises(QuorumError, match=r"clinic: its sealed records: .* is damaged"):
        strict.share()


def test_a_silo_uses_nothing_of_a_merge_that_was_altered(tmp_path: Path) -> None:
    def down(request: Request) -> Request:
        return replace(request, payload=damaged(request.payload)) if request.step == "recall" else request

    made = Federation(tmp_path, transport=tapped(down=down))
    with pytest.raises(QuorumError, match="not as they were sealed"):
        made.share()
    for name in NAMES:
        assert not (made.keepers[name].house("run-1", "federated") / "records").exists()


def test_a_server_cannot_leave_out_a_silo_that_it_names(tmp_path: Path) -> None:
    """Its manifest would be missing."""
    whole = Federation(tmp_path / "other")
    whole.share(["court", "clinic"])
    kept = (whole.server / "de-en" / "merged").read_bytes()

    def down(request: Request) -> Request:
        return replace(request, payload=kept) if request.step == "recall" else request

    made = Federation(tmp_path, transport=tapped(down=down))
    with pytest.raises(QuorumError, match=r"not as they were sealed|session"):
        made.share()


def test_another_quantiser_than_the_sessions_is_refused(tmp_path: Path) -> None:
    first = Federation(tmp_path)
    invitation = first.memories._invited("de-en", list(NAMES), _share(first))
    other = quantiser(seed=9)
    assert other.hash != first.quantiser.hash
    with pytest.raises(QuorumError, match="quantiser"):
        first.memories._remembered("de-en", list(NAMES), replace(_share(first), quantiser=other), invitation)
    assert first.asked() == dict.fromkeys(NAMES, 0)


def _share(made: Federation) -> Share:
    return Share(made.quantiser, codec.encode(start(), made.plan.codec), (9, 3))


def test_more_records_than_were_agreed_on_are_refused(tmp_path: Path) -> None:
    made = Federation(tmp_path, settings(most=40))
    with pytest.raises(QuorumError, match="agency"):
        made.share()
    assert [one.silo for one in made.events if isinstance(one, Dropped)] == ["agency"]


def test_what_a_silo_seals_is_in_no_order_of_its_text(tmp_path: Path) -> None:
    """Or the server with one member could read its targets, word by word."""
    made = Federation(tmp_path)
    made.share()
    session = Invitation.decode((tmp_path / "silos/court/memory/run-1/federated/invitation").read_bytes()).session
    members = {name: own.public for name, own in made.private.items()}
    path = made.server / "de-en" / "sealed" / "agency"
    with unseal(path, made.private["clinic"], session, members, ["agency"]) as opened:
        order = [bytes(row) for part in opened for row in part]
    text = [bytes(row) for row in made.writers["agency"].drawn(made.quantiser)]
    assert sorted(order) == sorted(text)
    places = [text.index(row) for row in order]
    assert sum(later == earlier + 1 for earlier, later in itertools.pairwise(places)) < len(text) // 4


def test_a_silo_without_keys_says_so(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    silo = Silo("court", made.writers["court"], tmp_path / "bare", made.plan)
    reply = silo.answer(Request("run-1", "federated", 0, "remember", "court"))
    assert reply.refused == "keys"


def test_who_was_not_invited_cannot_read(tmp_path: Path) -> None:
    """The stranger has a key of its own, and even sees all that crosses."""
    made = Federation(tmp_path, transport=tapped())
    made.share()
    assert isinstance(made.transport, Counting)
    stranger = Federation(tmp_path / "stranger", names=["stranger"])
    keeper = stranger.keepers["stranger"]
    for message in map(unwire, made.transport.tape):
        if isinstance(message, Request) and message.step == "remember":
            asked = replace(message, silo="stranger", payload=bytes(message.payload))
            silo = Silo("stranger", stranger.writers["stranger"], tmp_path / "s", stranger.plan, keeper)
            assert silo.answer(asked).refused == "uninvited"
    assert key(tmp_path, "court").public != key(tmp_path / "stranger", "stranger").public


def test_the_server_keeps_no_record_in_the_open(tmp_path: Path) -> None:
    made = Federation(tmp_path, transport=tapped())
    made.share()
    made.memories.recite(NAMES)
    records = made.written(*NAMES)
    assert isinstance(made.transport, Counting)
    whole = b"".join(path.read_bytes() for path in made.server.rglob("*") if path.is_file())
    assert len(whole) > 111 * len(records[0])
    crossed = b"".join(made.transport.tape)
    assert [one for one in records if one in whole or one in crossed] == []
    # Where they may stand they are found.
    own = b"".join(path.read_bytes() for path in (tmp_path / "silos").rglob("*") if path.is_file())
    assert all(one in own for one in records)
    assert json.loads((tmp_path / "silos/court/memory/run-1/federated/records/records.json").read_text())["sent"] == {
        "court": 30,
        "clinic": 37,
        "agency": 44,
    }
