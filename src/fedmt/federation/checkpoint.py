"""State on disk, in one .safetensors file: tensors, and numbers as JSON in its metadata. Whole or absent.

Knows not what they mean.
"""

from __future__ import annotations

import json
import mmap
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from fedmt import files
from fedmt.errors import RunError
from fedmt.exchange import codec

__all__ = ["Shelf", "State", "load", "over", "randomness", "restore_randomness", "save", "shelf", "sweep", "under"]

_KEY = "fedmt"


@dataclass(frozen=True)
class State:
    """What must outlive a process: named tensors of any dtype, and numbers that JSON can hold."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


def over(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, their names behind a prefix."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that stand behind the prefix, without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def save(path: Path, state: State) -> None:
    files.write_bytes(path, codec.parts(state.tensors, {_KEY: json.dumps(state.numbers)}))


def load(path: Path) -> State:
    """The state of a file; its tensors are read from the disk as they are used, and writing to them changes no file."""
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        tensors, metadata = codec.unpack(memoryview(content))
        numbers = json.loads(metadata[_KEY])
        if not isinstance(numbers, dict):
            raise ValueError("its numbers are not a table")
    except KeyError:
        raise RunError(f"{path}: not a checkpoint of fedmt: a .safetensors file of someone else") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a checkpoint of fedmt: {error}") from None
    return State(tensors, numbers)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def randomness() -> State:
    """Where the random generators of torch, numpy and Python stand."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, following = random.getstate()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_available():
        tensors |= {f"cuda:{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    numbers = {
        "numpy": [str(kind), int(position), int(has_gauss), float(gauss)],
        "python": [version, internal, following],
    }
    return State(tensors, numbers)


def restore_randomness(state: State) -> None:
    torch.set_rng_state(state.tensors["torch"])
    kind, position, has_gauss, gauss = state.numbers["numpy"]
    np.random.set_state((kind, state.tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, gauss))
    version, internal, following = state.numbers["python"]
    random.setstate((version, tuple(internal), following))
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda:{index}" in state.tensors:
                torch.cuda.set_rng_state(state.tensors[f"cuda:{index}"], index)


class Shelf:
    """States by name: files of one folder, or of memory where the folder is None."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[str, State] = {}
        if folder is not None and folder.exists():
            sweep(folder)

    def put(self, name: str, state: State) -> None:
        if self.folder is None:
            self._memory[name] = state
        else:
            save(self._path(name), state)

    def get(self, name: str) -> State | None:
        if self.folder is None:
            return self._memory.get(name)
        path = self._path(name)
        return load(path) if path.exists() else None

    def drop(self, name: str) -> None:
        self._memory.pop(name, None)
        if self.folder is not None:
            self._path(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        if self.folder is None:
            return list(self._memory)
        return sorted(path.stem for path in self.folder.glob("*.safetensors"))

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"


def shelf(folder: Path | None, *names: str) -> Shelf:
    """A shelf in a folder of these names, which may hold any characters."""
    return Shelf(None if folder is None else folder.joinpath(*(quote(name, safe="") for name in names)))
