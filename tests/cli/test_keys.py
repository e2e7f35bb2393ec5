"""`fedmt keys`: a pair is made once, and its fingerprint is the same whichever half is asked."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from tests.conftest import Call


def test_new_makes_a_pair_and_says_its_fingerprint(call: Call, here: Path) -> None:
    done = call("keys", "new", "keys", "--name", "north")
    assert (done.code, done.err) == (0, "")
    mark = re.search(r"fingerprint: ((?:[a-z2-7]{4}-){5}[a-z2-7]{4})$", done.out.strip())
    assert mark is not None
    assert stat.S_IMODE((here / "keys/north.key").stat().st_mode) == 0o600
    assert call("keys", "fingerprint", "keys/north.pub").out == f"{mark[1]}\n"
    assert call("keys", "fingerprint", "keys/north.key", "keys/north.pub").out.split() == [
        *(mark[1], "keys/north.key"),
        *(mark[1], "keys/north.pub"),
    ]
    private = (here / "keys/north.key").read_text().splitlines()[1]
    assert private not in done.out


def test_both_as_json(call: Call, here: Path) -> None:
    (made,) = call("keys", "new", here, "--json").records
    assert made["event"] == "key"
    assert (made["private"], made["public"]) == (str(here / "silo.key"), str(here / "silo.pub"))
    (told,) = call("keys", "fingerprint", made["public"], "--json").records
    assert told == {"event": "fingerprint", "path": made["public"], "fingerprint": made["fingerprint"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["new", "keys"], "keys/silo.key: there is a key already"),
        (["new", "keys", "--name", "a/b"], "'a/b': no name for a key"),
        (["fingerprint", "gone.pub"], "gone.pub: there is no such key"),
        (["fingerprint", "text.de"], "text.de: is no public key"),
        (["fingerprint", "keys"], "keys: Is a directory"),
        (["new", "text.de/keys"], "Not a directory"),
    ],
)
def test_what_is_wrong_is_one_line(call: Call, here: Path, arguments: list[str], told: str) -> None:
    assert call("keys", "new", "keys").code == 0
    done = call("keys", *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert here.is_dir()
