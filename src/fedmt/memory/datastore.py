"""A silo's text as records: of each target token the list and code of the decoder's state before it, and the token.

The state is the decoder's last, the one that goes into the output layer (du2023 and kNN-MT take the input of the last
feed-forward block instead, which not every architecture has in one place). A record is bytes of one fixed length,

    list (2, or 3 where there are more than 65 536) · code · token (3), all little-endian

so that records can be sealed, shuffled and merged without a look inside. They are made and written part by part: the
text's length costs no memory. Only pruning holds them all, and reads the text twice.

Knows engines by their states and output layers; knows nothing of text, of sealing and of searching while translating.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedmt import files
from fedmt.engine.engine import Engine
from fedmt.engine.steps import States, logits_of
from fedmt.errors import RunError
from fedmt.memory.quantise import Quantiser

__all__ = ["Layout", "Pruned", "Records", "build", "floats", "known", "prune", "write"]

Bytes: TypeAlias = NDArray[np.uint8]
Ids: TypeAlias = NDArray[np.int32]

TOKEN_BYTES = 3
# Records that are read, or handed on, together.
PART = 1 << 16
# Logits that stand in memory together.
MOST_LOGITS = 1 << 25
# A header of safetensors is written before the number of records is known: it has this room, filled up with blanks.
HEADER = 256


@dataclass(frozen=True)
class Layout:
    """What stands where in a record."""

    list_bytes: int
    code_bytes: int

    @classmethod
    def of(cls, quantiser: Quantiser) -> Layout:
        return cls(2 if quantiser.list_count <= 1 << 16 else 3, quantiser.code_bytes)

    @property
    def record_bytes(self) -> int:
        return self.list_bytes + self.code_bytes + TOKEN_BYTES

    def pack(self, lists: Ids, codes: Bytes, tokens: Ids) -> Bytes:
        if len(tokens) and int(tokens.max()) >= 1 << 8 * TOKEN_BYTES:
            raise ValueError(f"token {int(tokens.max())}: a record has room for those below {1 << 8 * TOKEN_BYTES}")
        packed = np.empty((len(tokens), self.record_bytes), dtype=np.uint8)
        _spread(lists, packed[:, : self.list_bytes])
        packed[:, self.list_bytes : -TOKEN_BYTES] = codes
        _spread(tokens, packed[:, -TOKEN_BYTES:])
        return packed

    def unpack(self, records: Bytes) -> tuple[Ids, Bytes, Ids]:
        """Lists, codes and tokens; what they mean, nobody has checked."""
        if records.ndim != 2 or records.shape[1] != self.record_bytes or records.dtype != np.uint8:
            raise RunError(f"records of shape {list(records.shape)}: this memory's have {self.record_bytes} bytes each")
        lists, tokens = _gathered(records[:, : self.list_bytes]), _gathered(records[:, -TOKEN_BYTES:])
        return lists, records[:, self.list_bytes : -TOKEN_BYTES], tokens


def _spread(numbers: Ids, places: Bytes) -> None:
    for place in range(places.shape[1]):
        places[:, place] = (numbers >> (8 * place)) & 0xFF


def _gathered(places: Bytes) -> Ids:
    numbers = np.zeros(len(places), dtype=np.int32)
    for place in range(places.shape[1]):
        numbers |= places[:, place].astype(np.int32) << (8 * place)
    return numbers


# ── from states to records ──────────────────────────────────────────────────────────────────────────────────────────


def floats(states: Iterable[States]) -> Iterator[NDArray[np.float32]]:
    """The states alone, as a quantiser learns from them."""
    for part in states:
        yield part.hidden.float().cpu().numpy()


def build(states: Iterable[States], quantiser: Quantiser) -> Iterator[Bytes]:
    """The records of these states (`engine.steps.forced` gives them), a part for each batch.

    Coding takes a tenth of the seconds that an engine of size `small` takes for its states, and less of a larger one's.
    So a thread that codes while the next batch is read would gain less than its core does in another process, with
    another silo's text: `bench/million.py --jobs`.
    """
    layout = Layout.of(quantiser)
    for part in states:
        lists, codes = quantiser.encode(part.hidden.float().cpu().numpy())
        yield layout.pack(lists, codes, part.tokens.cpu().numpy().astype(np.int32))


def known(engine: Engine, states: States) -> NDArray[np.bool_]:
    """Where the engine by itself would have chosen the right token."""
    rows = max(1, MOST_LOGITS // int(engine.model.config.vocab_size))
    found = [
        logits_of(engine, hidden).argmax(-1) == tokens
        for hidden, tokens in zip(torch.split(states.hidden, rows), torch.split(states.tokens, rows), strict=True)
    ]
    return torch.cat(found).cpu().numpy() if found else np.empty(0, dtype=np.bool_)


@dataclass
class Pruned:
    """How many records there were, and how many of them were left out."""

    records: int = 0
    dropped: int = 0


def prune(
    states: Callable[[], Iterable[States]], engine: Engine, quantiser: Quantiser, neighbours: int, probes: int = 16
) -> tuple[Iterator[Bytes], Pruned]:
    """The records of a silo less those that teach nothing: the engine knows the token without them, and knows the
    tokens of all their nearest neighbours in this silo too (PLAC, Zhu et al. 2023).

    `states` is called twice and must give the same both times. The count is whole when the records have all been taken.
    """
    pruned = Pruned()

    def kept() -> Iterator[Bytes]:
        layout, index = Layout.of(quantiser), quantiser.empty()
        index.nprobe = min(probes, quantiser.list_count)
        sure: list[NDArray[np.bool_]] = []
        for part in states():
            index.add_sa_codes(quantiser.joined(*quantiser.encode(part.hidden.float().cpu().numpy())))
            sure.append(known(engine, part))
        # One more at the end stands for a neighbour that was not found (-1), which contradicts nobody.
        flags = np.concatenate([*sure, np.ones(1, dtype=np.bool_)])
        done = 0
        for part in states():
            hidden = part.hidden.float().cpu().numpy()
            own = flags[done : done + len(hidden)]
            # One neighbour more, as each finds itself.
            _, found = index.search(quantiser.project(hidden), neighbours + 1)
            stays = ~(own & flags[found].all(axis=1))
            lists, codes = quantiser.encode(hidden[stays])
            done += len(hidden)
            pruned.records, pruned.dropped = done, pruned.dropped + int((~stays).sum())
            yield layout.pack(lists, codes, part.tokens.cpu().numpy().astype(np.int32)[stays])

    return kept(), pruned


# ── records in a folder ─────────────────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, parts: Iterable[Bytes], quantiser: Quantiser, **about: Any) -> int:
    """The records as `records.safetensors`, one matrix of bytes, as they come; how many there were.

    `records.json` has the quantiser's hash and whatever else is to be said `about` them. The folder is whole or absent.
    """
    layout, count = Layout.of(quantiser), 0

    def fill(part_folder: Path) -> None:
        nonlocal count
        with (part_folder / "records.safetensors").open("wb") as file:
            file.write(bytes(8 + HEADER))
            for part in parts:
                layout.unpack(part[:0])  # their length is right
                file.write(np.ascontiguousarray(part).data)
                count += len(part)
            size = count * layout.record_bytes
            entry = {"dtype": "U8", "shape": [count, layout.record_bytes], "data_offsets": [0, size]}
            file.seek(0)
            file.write(struct.pack("<Q", HEADER) + json.dumps({"records": entry}).encode().ljust(HEADER))
        told = {"schema": 1, "quantiser": quantiser.hash, "records": count, "record_bytes": layout.record_bytes}
        files.write_json(part_folder / "records.json", {**told, **about})

    files.write_folder(folder, fill)
    return count


@dataclass(frozen=True)
class Records:
    """The records of a folder, read part by part."""

    folder: Path
    count: int
    about: dict[str, Any]

    @classmethod
    def open(cls, folder: Path, quantiser: Quantiser) -> Records:
        """Refused, where they were made by another quantiser, or are not whole."""
        try:
            about = files.read_json(folder / "records.json")
            if not isinstance(about, dict) or about.get("schema") != 1:
                raise ValueError("records.json needs a JSON object with schema 1")
            with safe_open(folder / "records.safetensors", framework="np") as file:
                shape, kind = file.get_slice("records").get_shape(), file.get_slice("records").get_dtype()
        except (OSError, ValueError, SafetensorError, RecursionError) as error:
            raise RunError(f"{folder}: no records of a memory: {' '.join(str(error).split())[:200]}") from None
        if about.get("quantiser") != quantiser.hash:
            raise RunError(
                f"{folder}: made with the quantiser {str(about.get('quantiser'))[:16]}…; "
                f"allowed is {quantiser.hash[:16]}…"
            )
        wanted = Layout.of(quantiser).record_bytes
        if kind != "U8" or len(shape) != 2 or shape[1] != wanted or shape[0] != about.get("records"):
            raise RunError(f"{folder}: holds {kind} {shape}, not {about.get('records')} records of {wanted} bytes")
        return cls(folder, int(shape[0]), about)

    def parts(self, size: int = PART) -> Iterator[Bytes]:
        for start in range(0, self.count, size):
            # Opened anew for each: what has been read of a file that is mapped stays in memory until it is closed.
            with safe_open(self.folder / "records.safetensors", framework="np") as file:
                part: Bytes = file.get_slice("records")[start : min(start + size, self.count)]
            yield part
