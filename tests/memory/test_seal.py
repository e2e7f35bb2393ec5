"""What is sealed, merged and opened is a permutation of all silos' records; whatever else happens to it is named."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmt.memory import keys, seal, sealed, seen, shuffle
from fedmt.memory.keys import Private, Public
from fedmt.memory.seal import Content, Invitation
from fedmt.memory.sealed import Rows, SealFault, Session
from fedmt.memory.shuffle import Keystream

QUANTISER = hashlib.sha256(b"quantiser").hexdigest()
WIDTH = 24
OUT = WIDTH + sealed.OVERHEAD


class Party:
    """Some silos with their keys, in one session that the first of them made."""

    def __init__(self, *names: str, width: int = WIDTH) -> None:
        self.private: dict[str, Private] = {name: keys.generate() for name in names}
        self.members: dict[str, Public] = {name: key.public for name, key in self.private.items()}
        self.start(Session.new(QUANTISER, "ivfpq-1", width))

    def start(self, session: Session) -> Party:
        self.session = session
        maker = next(iter(self.private.values()))
        self.content, self.invitation = seal.invite(session, maker, self.members.values())
        return self

    def enter(self, name: str, invitation: Invitation | None = None) -> Content:
        return seal.enter(
            invitation or self.invitation, self.private[name], self.members, self.session.quantiser, self.session.format
        )

    def seal(self, path: Path, name: str, records: Rows | Iterable[Rows]) -> Path:
        chunks = [records] if isinstance(records, np.ndarray) else records
        seal.seal(path, self.invitation, self.enter(name), self.members[name], chunks)
        return path

    def open(self, path: Path, name: str, senders: Iterable[str] | None = None) -> Rows:
        with seal.unseal(path, self.private[name], self.session, self.members, senders) as opened:
            chunks = list(opened)
            assert opened.count == sum(map(len, chunks))
        return np.concatenate([np.zeros((0, self.session.record_bytes), np.uint8), *chunks])

    def fault(self, path: Path, name: str = "north", senders: Iterable[str] | None = None) -> SealFault:
        with pytest.raises(SealFault) as caught:
            seal.unseal(path, self.private[name], self.session, self.members, senders)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        return caught.value


def records(count: int, seed: int, width: int = WIDTH) -> Rows:
    return np.random.default_rng(seed).integers(0, 256, (count, width), dtype=np.uint8)


def bag(*arrays: Rows) -> collections.Counter[bytes]:
    return collections.Counter(row.tobytes() for array in arrays for row in array)


def take_apart(path: Path) -> tuple[dict[str, object], bytearray]:
    """The header and the records of a sealed file, as the server has them."""
    content = path.read_bytes()
    size = int.from_bytes(content[8:12], "little")
    return json.loads(content[12 : 12 + size]), bytearray(content[12 + size : -32])


def put_together(path: Path, header: dict[str, object], body: bytes | bytearray) -> Path:
    """As a hostile server does it: the checksum is right, which takes no key."""
    encoded = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    checksum = hashlib.sha256(bytes(body) + encoded).digest()
    path.write_bytes(b"fedmtSL1" + struct.pack("<I", len(encoded)) + encoded + body + checksum)
    return path


@pytest.fixture(scope="module")
def party() -> Party:
    return Party("north", "south", "east")


@pytest.fixture
def merged(party: Party, tmp_path: Path) -> Path:
    files = [party.seal(tmp_path / name, name, records(20, seed)) for seed, name in enumerate(party.private)]
    shuffle.merge(files, tmp_path / "merged")
    return tmp_path / "merged"


# ── round trips ─────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.integers(1, 80), st.randoms(use_true_random=False))
def test_sealed_merged_and_opened_is_a_permutation(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], width: int, chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("sealed")
    party = Party(*(f"silo{number}" for number in range(len(counts))), width=width)
    sent = {
        name: records(count, chance.getrandbits(32), width) for name, count in zip(party.private, counts, strict=True)
    }
    for array in sent.values():
        array[: len(array) // 2, -5:] = 0  # ends in zeros, which no step may strip; and repeats are no replay
    files = [party.seal(folder / name, name, np.array_split(array, 3)) for name, array in sent.items()]
    chance.shuffle(files)
    told = shuffle.merge(files, folder / "merged")
    assert told.count == sum(counts)
    for name in party.private:
        assert bag(party.open(folder / "merged", name)) == bag(*sent.values())
        assert (party.open(folder / name, name, [name]) == sent[name]).all()


def test_many_chunks_and_many_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "CHUNK", 100)
    monkeypatch.setattr(shuffle, "_BUCKET", 128)
    monkeypatch.setattr(seen, "_PART", 64)
    party = Party("north", "south")
    sent = {name: records(count, count) for name, count in (("north", 1234), ("south", 777))}
    files = [party.seal(tmp_path / name, name, array) for name, array in sent.items()]
    shuffle.merge(files, tmp_path / "merged")
    opened = party.open(tmp_path / "merged", "south")
    assert bag(opened) == bag(*sent.values())
    header, body = take_apart(tmp_path / "north")
    again = put_together(tmp_path / "again", header, body[:-OUT] + body[:OUT])
    with pytest.raises(SealFault, match=r"again: record 1,233 is the same as record 0 of .*again: a replay"):
        shuffle.merge([again, tmp_path / "south"], tmp_path / "no")
    assert party.fault(again, "north", ["north"]).reason == "duplicate"


def test_an_opened_file_may_be_read_again(party: Party, merged: Path) -> None:
    with seal.unseal(merged, party.private["east"], party.session, party.members) as opened:
        assert bag(*opened) == bag(*opened) == bag(*(records(20, seed) for seed in range(3)))
        assert opened.sent == {"north": 20, "south": 20, "east": 20}


def test_every_order_is_alike_likely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four records over buckets of one: each of the 24 orders in about a 24th of the merges."""
    monkeypatch.setattr(shuffle, "_BUCKET", 1)
    party, sent = Party("north"), records(4, 1)
    file = party.seal(tmp_path / "north", "north", sent)
    _, body = take_apart(file)
    rows = [bytes(body[start : start + OUT]) for start in range(0, len(body), OUT)]
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    words = Keystream(bytes(32))
    monkeypatch.setattr(shuffle, "write_bytes", lambda path, parts: path.write_bytes(b"".join(parts)))
    for _ in range(1200):
        shuffle.merge([file], tmp_path / "out", words=words)
        shuffled = take_apart(tmp_path / "out")[1]
        counts[tuple(rows.index(bytes(shuffled[start : start + OUT])) for start in range(0, len(body), OUT))] += 1
    assert len(counts) == 24
    # Chi-squared with 23 degrees of freedom: 49.7 is passed once in a thousand; the generator's key is fixed.
    assert sum((count - 50) ** 2 / 50 for count in counts.values()) < 49.7


def test_a_merge_under_the_same_key_is_the_same_and_under_another_is_not(party: Party, tmp_path: Path) -> None:
    file = party.seal(tmp_path / "north", "north", records(300, 1))
    outs = [tmp_path / str(number) for number in range(4)]
    for out, key in zip(outs, (bytes(32), bytes(32), b"k" * 32, None), strict=True):
        shuffle.merge([file], out, words=Keystream(key))
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert len({out.read_bytes() for out in outs}) == 3


# ── what a file looks like ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [0, 1, 257])
def test_every_record_takes_the_same_28_bytes_more(party: Party, tmp_path: Path, count: int) -> None:
    header, body = take_apart(party.seal(tmp_path / "a", "north", np.zeros((count, WIDTH), np.uint8)))
    assert header["count"] == count
    assert len(body) == count * (WIDTH + 28)
    rows = {bytes(body[start : start + OUT]) for start in range(0, len(body), OUT)}
    # Equal records are not equal when they are sealed: neither nonce nor ciphertext nor tag.
    assert len(rows) == len({row[:12] for row in rows}) == len({row[12:-16] for row in rows}) == count


def test_nothing_in_a_merged_file_says_whose_a_record_is(party: Party, tmp_path: Path) -> None:
    sent = {name: party.seal(tmp_path / name, name, np.zeros((400, WIDTH), np.uint8)) for name in party.private}
    backwards = sorted(sent.values(), key=lambda path: str(take_apart(path)[0]["manifests"]), reverse=True)
    shuffle.merge(backwards, tmp_path / "forth", words=Keystream(bytes(32)))
    header, body = take_apart(tmp_path / "forth")
    assert set(header) == {"version", "session", "count", "keys", "manifests"}
    manifests = header["manifests"]
    assert isinstance(manifests, list)
    # Manifests are sealed and stand in an order that is not the files'; each has the same size.
    assert manifests == sorted(manifests)
    assert {len(one) for one in manifests} == {2 * (53 + 28)}
    for name, path in sent.items():
        own, its = take_apart(path)
        assert party.members[name].fingerprint.encode().hex() not in str(manifests)
        rows = np.frombuffer(bytes(its), np.uint8).reshape(-1, OUT)
        # Nonces of a silo do not lie together: every byte takes many values, no difference of neighbours repeats.
        assert all(len(np.unique(rows[:, column])) > 150 for column in range(OUT))
        assert len({bytes(row) for row in np.diff(rows[:, :12], axis=0)}) == 399
        assert own["keys"] == header["keys"]
    places = {name: [] for name in sent}  # type: dict[str, list[int]]
    whose = {
        take_apart(path)[1][s : s + OUT].hex(): name for name, path in sent.items() for s in range(0, 400 * OUT, OUT)
    }
    for place, start in enumerate(range(0, len(body), OUT)):
        places[whose[body[start : start + OUT].hex()]].append(place)
    # A silo's places are spread over the file: their mean is that of all, 599.5, within five standard errors.
    assert all(abs(sum(one) / 400 - 599.5) < 5 * 346 / 20 for one in places.values())


def test_neither_plaintext_nor_content_key_is_in_what_the_server_has(party: Party, tmp_path: Path) -> None:
    canary = b"canary-token-8217"
    row = np.frombuffer(canary.ljust(WIDTH), np.uint8)
    files = [party.seal(tmp_path / name, name, np.stack([row] * 5)) for name in party.private]
    shuffle.merge(files, tmp_path / "merged")
    for path in (*files, tmp_path / "merged"):
        content = path.read_bytes() + party.invitation.encode()
        assert canary not in content
        assert party.content._secret not in content
        assert party.content._secret.hex().encode() not in content
    assert party.content._secret.hex() not in repr(party.content) + repr(party.invitation)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["east", "merged", "north", "south"]


# ── who may enter ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_invitation_travels(party: Party) -> None:
    again = Invitation.decode(party.invitation.encode())
    assert again == party.invitation
    assert party.enter("south", again)._secret == party.content._secret
    with pytest.raises(SealFault, match="header"):
        Invitation.decode(party.invitation.encode()[:-1])


def test_who_is_not_invited_cannot_enter(party: Party) -> None:
    stranger, session = keys.generate(), party.session
    with pytest.raises(SealFault, match="wrong key") as caught:
        seal.enter(party.invitation, stranger, party.members, session.quantiser, session.format)
    assert caught.value.reason == "key"
    with pytest.raises(SealFault, match="allowed: 0000"):
        seal.enter(party.invitation, party.private["east"], party.members, "0" * 64, session.format)
    with pytest.raises(SealFault, match="allowed: flat"):
        seal.enter(party.invitation, party.private["east"], party.members, session.quantiser, "flat")


def test_a_session_that_the_server_made_is_refused(party: Party) -> None:
    server = keys.generate()
    _, slipped = seal.invite(party.session, server, party.members.values())
    with pytest.raises(SealFault, match="none of the members"):
        party.enter("south", slipped)
    other = dataclasses.replace(party.invitation, session=dataclasses.replace(party.session, id="0" * 32))
    with pytest.raises(SealFault, match="another session"):
        party.enter("south", other)


def test_a_joiner_adds_its_records_and_a_leaver_takes_them_away(tmp_path: Path) -> None:
    party = Party("north", "south")
    sent = {name: records(30, seed) for seed, name in enumerate(("north", "south", "west"))}
    files = [party.seal(tmp_path / name, name, sent[name]) for name in ("north", "south")]
    party.private["west"] = keys.generate()
    party.members["west"] = party.private["west"].public
    party.invitation = party.invitation.admit(party.enter("south"), party.private["south"], party.members["west"])
    files.append(party.seal(tmp_path / "west", "west", sent["west"]))
    shuffle.merge(files, tmp_path / "all")
    for name in party.private:
        assert bag(party.open(tmp_path / "all", name)) == bag(*sent.values())
    shuffle.merge([files[0], files[2]], tmp_path / "without")
    assert bag(party.open(tmp_path / "without", "west", ["north", "west"])) == bag(sent["north"], sent["west"])
    assert "manifest of south is missing" in str(party.fault(tmp_path / "without"))


@pytest.mark.parametrize("session", [("", QUANTISER, "f", 1), ("0" * 32, "ab", "f", 1), ("0" * 32, QUANTISER, "", 1)])
def test_a_session_is_what_it_should_be(session: tuple[str, str, str, int]) -> None:
    with pytest.raises(ValueError, match="a session is"):
        Session(*session)
    for size in (0, 4097, 2.0, True):
        with pytest.raises(ValueError, match="a session is"):
            Session.new(QUANTISER, "f", size)  # type: ignore[arg-type]


# ── what the server will not merge ──────────────────────────────────────────────────────────────────────────────────


def refused(files: list[Path], out: Path, most: int = sealed.LIMIT, each: int = sealed.LIMIT) -> SealFault:
    with pytest.raises(SealFault) as caught:
        shuffle.merge(files, out, most=most, each=each)
    assert not out.exists()
    assert not list(out.parent.glob("*.part"))
    return caught.value


def test_caps_hold(party: Party, tmp_path: Path) -> None:
    files = [party.seal(tmp_path / name, name, records(10, seed)) for seed, name in enumerate(("north", "south"))]
    assert shuffle.merge(files, tmp_path / "out", most=20, each=10).count == 20
    (tmp_path / "out").unlink()
    assert "north: has 10 records; allowed: at most 9" in str(refused(files, tmp_path / "out", each=9))
    assert "south: makes it 20 records; allowed: at most 19" in str(refused(files, tmp_path / "out", most=19))
    with pytest.raises(SealFault, match="more than 9"):
        seal.seal(tmp_path / "no", party.invitation, party.content, party.members["north"], [records(10, 1)], most=9)
    assert not (tmp_path / "no").exists()


def test_replays_and_strangers_are_refused_by_the_server(party: Party, tmp_path: Path) -> None:
    first = party.seal(tmp_path / "first", "north", records(5, 1))
    out = tmp_path / "out"
    assert refused([], out).reason == "count"
    assert refused([first, tmp_path / "gone"], out).reason == "unreadable"
    fault = refused([first, first], out)
    assert (fault.reason, "same manifest" in str(fault)) == ("duplicate", True)
    header, body = take_apart(party.seal(tmp_path / "second", "south", records(5, 2)))
    _, others = take_apart(first)
    again = put_together(tmp_path / "again", header, body[:OUT] + others[OUT : 2 * OUT] + body[2 * OUT :])
    assert "again: record 1 is the same as record 1 of" in str(refused([first, again], out))
    # The same ciphertext under another nonce would not open; the server need not wait for that.
    copied = bytes(12) + others[12:OUT]
    again = put_together(tmp_path / "again", header, body[: 4 * OUT] + copied)
    assert "again: record 4 is the same as record 0 of" in str(refused([first, again], out))
    shuffle.merge([first, tmp_path / "second"], tmp_path / "merged")
    assert refused([tmp_path / "merged"], out).reason == "manifest"
    other = Party("north")
    assert refused([first, other.seal(tmp_path / "other", "north", records(5, 1))], out).reason == "session"
    rekeyed = Party("north")
    rekeyed.private, rekeyed.members = party.private, party.members
    rekeyed.start(party.session)
    assert refused([first, rekeyed.seal(tmp_path / "rekeyed", "south", records(5, 1))], out).reason == "key"


# ── what a silo will not open ───────────────────────────────────────────────────────────────────────────────────────


def test_wrong_keys_and_sessions_are_named(party: Party, merged: Path) -> None:
    session, members = party.session, party.members
    for key, value, reason in (
        ("id", "0" * 32, "session"),
        ("quantiser", "0" * 64, "quantiser"),
        ("format", "flat", "format"),
        ("record_bytes", WIDTH + 1, "format"),
    ):
        other = dataclasses.replace(session, **{key: value})  # type: ignore[arg-type]
        with pytest.raises(SealFault) as caught:
            seal.unseal(merged, party.private["north"], other, members)
        assert caught.value.reason == reason
    with pytest.raises(SealFault, match="wrong key"):
        seal.unseal(merged, keys.generate(), session, members)


def test_records_that_the_server_drops_swaps_or_keeps_back_are_missed(party: Party, tmp_path: Path) -> None:
    files = [party.seal(tmp_path / name, name, records(20, seed)) for seed, name in enumerate(party.private)]
    shuffle.merge(files, tmp_path / "merged")
    header, body = take_apart(tmp_path / "merged")
    bad = tmp_path / "bad"
    fault = party.fault(put_together(bad, header | {"count": 59}, body[:-OUT]))
    assert (fault.reason, "has 59 records, and 60 were sent" in str(fault)) == ("count", True)
    # North sends a second time; the server has the records of both uploads, and mixes them.
    _, twice = take_apart(party.seal(tmp_path / "again", "north", records(20, 0)))
    old = take_apart(files[0])[1][:OUT]
    at = next(start for start in range(0, len(body), OUT) if body[start : start + OUT] == old)
    fault = party.fault(put_together(bad, header, body[:at] + twice[:OUT] + body[at + OUT :]))
    assert (fault.reason, "not the ones they sent" in str(fault)) == ("manifest", True)
    fault = party.fault(put_together(bad, header, body[:-OUT] + body[:OUT]))
    assert (fault.reason, "record 59 is the same as record 0" in str(fault)) == ("duplicate", True)
    manifests = header["manifests"]
    assert isinstance(manifests, list)
    assert "is missing" in str(party.fault(put_together(bad, header | {"manifests": manifests[1:]}, body)))
    assert "two manifests" in str(
        party.fault(put_together(bad, header | {"manifests": [*manifests, manifests[0]]}, body))
    )
    assert "has records of south" in str(party.fault(tmp_path / "merged", senders=["north", "east"]))


def test_records_of_another_session_are_refused_though_all_else_is_the_same(party: Party, tmp_path: Path) -> None:
    other = Party("north")
    other.private, other.members = party.private, party.members
    other.start(Session.new(QUANTISER, "ivfpq-1", WIDTH))
    header, body = take_apart(party.seal(tmp_path / "a", "north", records(9, 1)))
    its_header, its_body = take_apart(other.seal(tmp_path / "b", "north", records(9, 1)))
    bad = tmp_path / "bad"
    fault = party.fault(put_together(bad, header, body[: 8 * OUT] + its_body[:OUT]), senders=["north"])
    assert (fault.reason, "record 8 was altered, or is of another session" in str(fault)) == ("altered", True)
    posing = its_header | {"session": header["session"]}
    assert party.fault(put_together(bad, posing, its_body), senders=["north"]).reason == "key"
    assert party.fault(
        put_together(bad, header | {"manifests": its_header["manifests"]}, body), senders=["north"]
    ).reason == ("manifest")
    assert party.fault(tmp_path / "b", senders=["north"]).reason == "session"


@pytest.mark.parametrize("key", ["id", "quantiser", "format"])
def test_the_same_content_key_opens_nothing_that_was_sealed_for_something_else(party: Party, key: str) -> None:
    value = {"id": "0" * 32, "quantiser": "0" * 64, "format": "flat"}[key]
    other = Content(dataclasses.replace(party.session, **{key: value}), party.content._secret)  # type: ignore[arg-type]
    assert np.array_equal(party.content.unseal(party.content.seal(records(3, 1))), records(3, 1))
    assert other.unseal(party.content.seal(records(3, 1))) == 0
    assert other.read_manifest(party.content.manifest(party.members["east"], 3, np.zeros(2, np.uint64))) is None


def test_another_order_is_the_same_file(party: Party, merged: Path, tmp_path: Path) -> None:
    header, body = take_apart(merged)
    turned = put_together(tmp_path / "turned", header, body[OUT:] + body[:OUT])
    assert bag(party.open(turned, "south")) == bag(party.open(merged, "south"))


def test_nothing_is_given_and_nothing_left_behind_when_the_last_record_is_bad(
    party: Party, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "CHUNK", 10)
    header, body = take_apart(party.seal(tmp_path / "a", "north", records(100, 1)))
    body[-1] ^= 1
    bad = put_together(tmp_path / "bad", header, body)
    assert "record 99 was altered" in str(party.fault(bad, senders=["north"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "bad"]


Damage = Callable[[random.Random, bytearray], bytes | bytearray]


def flip(chance: random.Random, content: bytearray) -> bytearray:
    for _ in range(chance.choice([1, 1, 1, 5])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def cut(chance: random.Random, content: bytearray) -> bytearray:
    start = chance.randrange(len(content))
    return content[:start] if chance.random() < 0.5 else content[:start] + content[start + chance.randrange(1, 90) :]


def insert(chance: random.Random, content: bytearray) -> bytearray:
    start = chance.randrange(len(content) + 1)
    return content[:start] + chance.randbytes(chance.randrange(1, 90)) + content[start:]


def overwrite(chance: random.Random, content: bytearray) -> bytearray:
    start, size = chance.randrange(len(content)), chance.randrange(1, 200)
    return content[:start] + chance.randbytes(len(content[start : start + size])) + content[start + size :]


@pytest.mark.parametrize("damage", [flip, cut, insert, overwrite])
def test_damage_is_refused_and_never_crashes(party: Party, merged: Path, tmp_path: Path, damage: Damage) -> None:
    chance = random.Random(f"{damage.__name__}1")
    whole = merged.read_bytes()
    reasons: collections.Counter[str] = collections.Counter()
    for _ in range(150):
        damaged = bytes(damage(chance, bytearray(whole)))
        if damaged != whole:
            (tmp_path / "bad").write_bytes(damaged)
            reasons[party.fault(tmp_path / "bad").reason] += 1
    assert reasons.total() > 145
    assert len(reasons) >= 2


def test_malice_is_refused_and_never_crashes(party: Party, merged: Path, tmp_path: Path) -> None:
    """Five hundred times the server changes something it could gain by, and mends count and checksum."""
    chance = random.Random(1)
    other = Party("north", "south", "east")
    its_header, its_body = take_apart(other.seal(tmp_path / "other", "north", records(60, 5)))
    first, first_body = take_apart(merged)
    reasons: collections.Counter[str] = collections.Counter()
    for turn in range(500):
        header, body = json.loads(json.dumps(first)), bytearray(first_body)
        rows = [body[start : start + OUT] for start in range(0, len(body), OUT)]
        at = chance.randrange(len(rows))
        own = next(one for one in header["keys"] if one["recipient"] == party.members["north"].fingerprint)
        match turn % 10:
            case 0:
                rows[at] = flip(chance, rows[at])
            case 1:
                rows[at] = rows[(at + 1 + chance.randrange(58)) % 60]
            case 2:
                rows[at] = its_body[at * OUT : (at + 1) * OUT]
            case 3:
                rows.insert(chance.randrange(60), rows[at])
            case 4:
                del rows[at : at + chance.randrange(1, 9)]
            case 5:
                part = chance.choice(["maker", "ephemeral", "box"])
                own[part] = bytes(flip(chance, bytearray.fromhex(own[part]))).hex()
            case 6:
                part = chance.choice(["maker", "recipient", "ephemeral", "box"])
                own[part] = chance.choice([*header["keys"], *its_header["keys"], {part: 3}])[part]  # type: ignore[misc]
                if own in first["keys"]:  # type: ignore[operator]
                    own["box"] = ""
            case 7:
                at = chance.randrange(3)
                header["manifests"][at] = bytes(flip(chance, bytearray.fromhex(header["manifests"][at]))).hex()
            case 8:
                key = chance.choice(["id", "quantiser", "format", "record_bytes"])
                value = {
                    "id": "ab" * 16,
                    "quantiser": "cd" * 32,
                    "format": "x",
                    "record_bytes": chance.randrange(0, 99),
                }
                header["session"][key] = chance.choice([value[key], None, [], -1, 10**30, 24.0, "\ud800"])
                if header["session"] == first["session"] and type(header["session"][key]) is int:
                    header["session"][key] = 0
            case 9:
                key = chance.choice(["version", "count", "keys", "manifests", "session", "more"])
                header[key] = chance.choice([None, 2, -1, [], {}, [{}], "a", ["zz"], [[[]]], True, 10**30])
        if turn % 10 in (3, 4):
            header["count"] = len(rows)
        bad = put_together(tmp_path / "bad", header, b"".join(rows))
        reasons[party.fault(bad).reason] += 1
    assert reasons.total() == 500
    assert {"altered", "duplicate", "count", "key", "manifest", "session", "quantiser", "format", "header"} <= set(
        reasons
    )
    assert {"version", "truncated"} & set(reasons)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (b"fedmt", "truncated"),
        (b"PK\x03\x04" + bytes(40), "format"),
        (b"fedmtSL1\xff\xff\xff\xff", "header"),
        (b"fedmtSL1\x10\x00\x00\x00{}", "truncated"),
        (b"fedmtSL1" + struct.pack("<I", 200_000) + b"[" * 200_000, "header"),
        (b"fedmtSL1\x04\x00\x00\x00\xff\xfe\xfd\xfc", "header"),
        (b"fedmtSL1\x0d\x00\x00\x00" + b'{"version":7}', "version"),
    ],
)
def test_what_is_no_sealed_file_is_said_to_be_none(party: Party, tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "bad").write_bytes(content)
    assert party.fault(tmp_path / "bad").reason == reason
    assert refused([tmp_path / "bad"], tmp_path / "out").reason == reason


def test_a_file_that_is_not_there_is_named(party: Party, tmp_path: Path) -> None:
    assert party.fault(tmp_path / "gone").reason == "unreadable"
    assert party.fault(tmp_path).reason == "unreadable"
