"""Every two choices of a recipe together: part × selector up × selector down × codec × merge × groups × architecture.

A covering of all pairs, made here, each member a whole run at toy size that is killed and resumed. What holds of all
of them: the engine that comes out is whole, loads and decodes; the ledger has every byte that was serialised, and no
other; a run killed in the middle of a round ends bit for bit where an undisturbed one does.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedmt.engine import device, engine
from fedmt.engine.decoder import translate
from fedmt.exchange.ledger import Entry, Ledger
from fedmt.federation import messages
from fedmt.federation.messages import Reply, Request
from fedmt.federation.transport import InProcess
from fedmt.recipe import Compute, Decode
from tests.engine import tiny
from tests.small import Done, files

FACTORS: dict[str, dict[str, Any]] = {
    "part": {
        "all": {"kind": "all"},
        "adapters": {"kind": "adapters", "width": 4},
        "encoder adapters without norms": {"kind": "adapters", "width": 4, "sides": "encoder", "norms": False},
        "inserted": {"kind": "controllers", "encoder": [1], "decoder": [1]},
        "designated": {"kind": "controllers", "how": "designated", "encoder": [0], "decoder": [1]},
        "own": {"kind": "controllers", "encoder": [1], "decoder": [1], "trains": "all", "initial": "copy"},
        "shared": {"kind": "controllers", "encoder": [1], "decoder": [1], "shares": "all", "initial": "random"},
    },
    "up": {
        "all": {"kind": "all"},
        "random": {"kind": "random"},
        "pulling": {"kind": "dynamic_pulling"},
        "pulling less": {"kind": "dynamic_pulling", "send": "less", "norm": "l2", "median": "tensors"},
        "top": {"kind": "top_k", "share": 0.05},
        "top changes": {"kind": "top_k", "by": "change"},
        "apf": {"kind": "apf", "window": 1, "threshold": 0.5},
        "metasend": {"kind": "metasend"},
        "metasend from losses": {
            "kind": "metasend",
            "send": "less",
            "theta": {"kind": "learned", "gradient": "reinforce", "hidden": 5},
            "pruning": {"hidden": 5},
        },
        "metasend at random": {"kind": "metasend", "theta": {"kind": "random"}, "scale": "minmax"},
    },
    "down": {
        "all": {"kind": "all"},
        "random": {"kind": "random"},
        "pulling": {"kind": "dynamic_pulling", "share": 0.33},
        "top": {"kind": "top_k", "by": "change", "share": 0.1},
        "apf": {"kind": "apf", "window": 1, "threshold": 0.5},
        "metasend": {"kind": "metasend", "theta": {"kind": "fixed", "value": 0.4}},
    },
    "codec": {"fp32": {"kind": "fp32"}, "fp16": {"kind": "fp16"}},
    "merge": {
        "samples": {"kind": "samples"},
        "root": {"kind": "samples", "power": 0.5, "missing": "keep_server", "rate": 1.5},
        "mean": {"kind": "mean", "missing": "literal"},
        "bounded": {"kind": "bounded", "norm": 0.5},
        "trimmed": {"kind": "trimmed", "share": 0.34},
        "median": {"kind": "median"},
    },
    "groups": {
        "none": {"kind": "none"},
        "alone": {"kind": "alone"},
        "families": {"kind": "families"},
        "random": {"kind": "random", "count": 2, "sides": "decoder"},
        "gradients": {"kind": "gradients", "count": 2, "batches": 1},
        "explicit": {"kind": "explicit", "encoder": {"two": ["toy-1", "toy-2"]}},
    },
    "architecture": {"marian": None, "mbart": None, "m2m_100": None},
}


def covering(factors: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Rows in which every two values of two factors meet: greedily, the row that brings most new pairs first."""
    names = list(factors)
    left = {
        frozenset({(one, a), (other, b)})
        for one, other in itertools.combinations(names, 2)
        for a in factors[one]
        for b in factors[other]
    }
    rows = []
    while left:
        row = dict(min(left, key=lambda pair: sorted(pair)))
        for name in names:
            if name not in row:
                row[name] = max(
                    factors[name],
                    key=lambda value: sum(frozenset({(name, value), had}) in left for had in row.items()),
                )
        left -= {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
        rows.append({name: row[name] for name in names})
    return rows


ROWS = covering({name: list(values) for name, values in FACTORS.items()})


def test_the_rows_cover_every_pair() -> None:
    met = {frozenset(pair) for row in ROWS for pair in itertools.combinations(row.items(), 2)}
    pairs = 0
    for one, other in itertools.combinations(FACTORS, 2):
        for a, b in itertools.product(FACTORS[one], FACTORS[other]):
            assert frozenset({(one, a), (other, b)}) in met
            pairs += 1
    assert pairs == len(met), "a row has values that no factor has"


def changes(row: Mapping[str, str], folder: Path) -> dict[str, Any]:
    chosen = {name: FACTORS[name][value] for name, value in row.items()}
    found: dict[str, Any] = {name: chosen[name] for name in ("part", "codec", "merge", "groups")}
    found["selector"] = {"up": chosen["up"], "down": chosen["down"]}
    found["silos"] = {"source": "toy", "silos": 3, "pairs": 45, "families": 2}
    if row["architecture"] != "marian":
        kind = {"mbart": "mbart50", "m2m_100": "m2m100"}[row["architecture"]]
        found["engine"] = {"pretrained": str(tiny.folder(kind))}
        found["public"] = None
        found["silos"] = [
            {**files(folder, f"toy-{number}", number), "name": f"toy-{number}", "from": source}
            for number, source in enumerate(("de", "fi", "de"), 1)
        ]
    return found


class Counting(InProcess):
    """Every message as it is serialised; stops the world after so many."""

    seen: list[tuple[str, int]] = []  # noqa: RUF012
    last: int | None = None

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        for request in requests:
            self._count("down", request)
            for reply in super().ask([request], deadline):
                self._count("up", reply)
                yield reply

    def _count(self, direction: str, message: Request | Reply) -> None:
        if message.model != "federated":
            return
        type(self).seen.append((direction, len(messages.wire(message))))
        if type(self).last is not None and len(type(self).seen) == type(self).last:
            raise Killed


class Killed(BaseException):
    """Like `kill -9`: nothing catches it."""


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: " · ".join(row.values()))
def test_any_two_choices_go_together(row: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmt.experiment.InProcess", Counting)
    monkeypatch.setattr(Counting, "last", None)
    monkeypatch.setattr(Counting, "seen", [])
    settings = changes(row, tmp_path)
    whole = Done(tmp_path / "whole", **settings)

    entries = [entry for entry in Ledger(whole.house.ledger).entries() if entry.model == "federated"]
    assert Counter((entry.direction, entry.bytes) for entry in entries) == Counter(Counting.seen)
    fits = [entry for entry in entries if entry.step == "fit" and entry.direction == "down"]
    assert {entry.round for entry in fits} == {1, 2}
    assert sum(entry.parameters for entry in entries if entry.direction == "up") > 0

    made = engine.load(whole.house.engine)
    machine = device.choose(Compute(device="cpu", precision="fp32", threads=1))
    direction = made.about.directions[0]
    (line,) = translate(made, ["a b c"], direction, Decode(longest=6), machine)
    assert isinstance(line, str)

    # Killed in the second round, in the middle of an exchange.
    monkeypatch.setattr(Counting, "seen", [])
    monkeypatch.setattr(Counting, "last", _in_the_second_round(entries))
    with pytest.raises(Killed):
        Done(tmp_path / "killed", **settings)
    monkeypatch.setattr(Counting, "last", None)
    again = Done(tmp_path / "killed", resume=True, **settings)
    assert again.bits() == whole.bits()
    assert again.engine() == whole.engine()
    assert _lines(again) == _lines(whole)


def _in_the_second_round(entries: list[Entry]) -> int:
    before = sum(entry.round < 2 and entry.step in ("base", "gradient", "fit", "send") for entry in entries)
    return before + 4


def _lines(done: Done) -> list[Entry]:
    return list(Ledger(done.house.ledger).entries())
