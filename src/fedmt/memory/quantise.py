"""The product quantiser: from a decoder's state to a list and some bytes of code, learnt from the server's public text.

FAISS's IVFPQ (coarse lists, residual codes of one byte a part), before it, if asked for, a projection to fewer
dimensions. What is kept and sent is its parameters as plain arrays, pinned by their hash; FAISS's own objects are made
of them anew, since its index files are not safe to read from others. Codes are searched as they are: nobody makes
vectors of them again. They are lossy, not one-way: call them obfuscation, not encryption.

Knows nothing of engines, tokens and records.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmt import files
from fedmt.errors import Failure, RunError
from fedmt.exchange import codec
from fedmt.recipe import Memory

with warnings.catch_warnings():
    # SWIG's types have no `__module__`, of which Python 3.12 warns. Its stubs know too little of it to be of use.
    warnings.simplefilter("ignore", DeprecationWarning)
    faiss: Any = import_module("faiss")

__all__ = ["Floats", "Quantiser", "faiss", "read_sheet", "same_threads", "train", "write_sheet"]

Floats: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.uint8]

NAME = "quantiser"
# As many centroids as one byte can name.
CENTROIDS = 256
# FAISS's own measure of how many points make a good centroid.
POINTS_A_LIST = 39
MOST_LISTS = 4096
# A projected vector has so many dimensions for each byte of its code, unless the recipe says otherwise.
DIMENSIONS_A_BYTE = 4
# Rounds; of k-means in the first and in each other one; and states: FAISS's own take minutes.
OPQ_ROUNDS = (10, 8, 4, 16_384)
# Of the codebook's k-means, and the states for each of its centroids.
CODEBOOK_ROUNDS = (12, 128)


@dataclass(frozen=True, eq=False)
class Quantiser:
    """`lists` [n, d] are the coarse centroids, `codebook` [bytes, 256, d / bytes] the residuals' parts; a state is
    first projected by `projection` [d, width] and `shift` [d], where there are any."""

    lists: Floats
    codebook: Floats
    projection: Floats | None = None
    shift: Floats | None = None
    _encoder: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_encoder", self.empty(searched=False))

    @property
    def width(self) -> int:
        """Of the states that it takes: the engine's."""
        return int(self.projection.shape[1] if self.projection is not None else self.lists.shape[1])

    @property
    def list_count(self) -> int:
        return len(self.lists)

    @property
    def code_bytes(self) -> int:
        return len(self.codebook)

    def arrays(self) -> dict[str, Floats]:
        own = {"lists": self.lists, "codebook": self.codebook, "projection": self.projection, "shift": self.shift}
        return {name: array for name, array in own.items() if array is not None}

    @property
    def hash(self) -> str:
        """SHA-256 over all its arrays: who has the same hash writes and reads the same codes."""
        digest = hashlib.sha256(b"fedmt quantiser 1\0")
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name}\0{list(array.shape)}\0".encode())
            digest.update(np.ascontiguousarray(array, dtype="<f4").data)
        return digest.hexdigest()

    def project(self, hidden: Floats) -> Floats:
        """States as they are compared: squared distances are between these."""
        hidden = np.ascontiguousarray(hidden, dtype=np.float32)
        if hidden.ndim != 2 or hidden.shape[1] != self.width:
            raise Failure(f"states of shape {list(hidden.shape)}: the quantiser takes rows of {self.width} numbers")
        if self.projection is not None:
            hidden = hidden @ self.projection.T
        return hidden if self.shift is None else hidden + self.shift

    def encode(self, hidden: Floats) -> tuple[NDArray[np.int32], Bytes]:
        """Of each state the list that it belongs to, and its code."""
        whole: Bytes = self._encoder.sa_encode(self.project(hidden))
        head = whole.shape[1] - self.code_bytes
        ids = np.zeros(len(whole), dtype=np.int32)
        for place in range(head):
            ids |= whole[:, place].astype(np.int32) << (8 * place)
        return ids, whole[:, head:]

    def joined(self, ids: NDArray[np.int32], codes: Bytes) -> Bytes:
        """Lists and codes as FAISS writes them: what `add_sa_codes` wants."""
        head = self._encoder.coarse_code_size()
        places = [(ids >> (8 * place)).astype(np.uint8)[:, None] for place in range(head)]
        return np.ascontiguousarray(np.hstack([*places, codes]))

    def empty(self, searched: bool = True) -> Any:
        """A FAISS index that holds nothing yet; one that is `searched` has tables for it."""
        same_threads()
        count, width = self.lists.shape
        coarse = faiss.IndexFlatL2(width)
        coarse.add(self.lists)
        index = faiss.IndexIVFPQ(coarse, width, count, self.code_bytes, 8)
        faiss.copy_array_to_vector(np.ascontiguousarray(self.codebook).ravel(), index.pq.centroids)
        index.is_trained = True
        if searched:
            index.precompute_table()
        return index

    def save(self, folder: Path) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in self.arrays().items()}
        write_sheet(folder, NAME, tensors, {"schema": 1, "hash": self.hash, **self.about()})

    def about(self) -> dict[str, int]:
        return {
            "width": self.width,
            "dimension": self.lists.shape[1],
            "lists": self.list_count,
            "code_bytes": self.code_bytes,
        }

    @classmethod
    def load(cls, folder: Path, expected_hash: str | None = None) -> Quantiser:
        """The quantiser of a folder; refused where its arrays are not those that the hash was taken of."""
        tensors, numbers = read_sheet(folder, NAME)
        made = cls.of(tensors, str(folder))
        found, claimed = made.hash, str(numbers.get("hash"))
        if found != claimed:
            raise RunError(
                f"{folder}: damaged: its arrays have the hash {found[:16]}…, {NAME}.json says {claimed[:16]}…"
            )
        if expected_hash is not None and found != expected_hash:
            raise RunError(
                f"{folder}: another quantiser than the one agreed on: its hash is {found[:16]}…, "
                f"allowed is {expected_hash[:16]}…"
            )
        return made

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], where: str) -> Quantiser:
        """From arrays that somebody sent, which may be anything."""
        wanted = {"lists": 2, "codebook": 3, "projection": 2, "shift": 1}
        arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}
        if not {"lists", "codebook"} <= set(arrays) <= set(wanted):
            raise RunError(f"{where}: no quantiser: has {', '.join(sorted(arrays))}; allowed: {', '.join(wanted)}")
        for name, array in arrays.items():
            if array.dtype != np.float32 or array.ndim != wanted[name] or not array.size:
                raise RunError(f"{where}: {name} must be numbers of fp32 in {wanted[name]} dimensions")
            if not np.isfinite(array).all():
                raise RunError(f"{where}: {name} holds what is no finite number")
        parts, centroids, part_width = arrays["codebook"].shape
        dimension = arrays["lists"].shape[1]
        fits = parts * part_width == dimension and centroids == CENTROIDS
        fits &= len(arrays["lists"]) <= 1 << 24
        fits &= "projection" not in arrays or len(arrays["projection"]) == dimension
        fits &= "shift" not in arrays or len(arrays["shift"]) == dimension
        if not fits:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in sorted(arrays.items()))
            raise RunError(f"{where}: no quantiser: its arrays do not fit each other: {shapes}")
        return cls(**arrays)


def same_threads() -> None:
    """FAISS computes with as many threads as torch was given, and not with all that there are."""
    faiss.omp_set_num_threads(torch.get_num_threads())


def train(states: Iterable[Floats], settings: Memory, seed: int) -> Quantiser:
    """Learn a quantiser from states of public text, of which a sample stands in memory and no more."""
    same_threads()
    sample = _sample(states, settings.sample, seed)
    count, width = sample.shape
    if count < CENTROIDS:
        raise Failure(f"memory: {count} states of public text are too few for a quantiser; at least {CENTROIDS}")
    dimension = _dimension(width, settings)
    projection = shift = None
    if settings.projection == "pca":
        # Rotated at random behind it, or the first bytes of a code would tell nearly all and the last nearly nothing.
        matrix = faiss.PCAMatrix(width, dimension, 0, True)
        matrix.train(sample)
        shift = faiss.vector_to_array(matrix.b).astype(np.float32)
    elif settings.projection == "opq":
        matrix = faiss.OPQMatrix(width, settings.code_bytes, dimension)
        matrix.niter, matrix.niter_pq_0, matrix.niter_pq, matrix.max_train_points = OPQ_ROUNDS
        # One of ours, or it would print a warning for each part in each round where there are few states.
        inner = faiss.ProductQuantizer(dimension, settings.code_bytes, 8)
        inner.cp.min_points_per_centroid = 1
        matrix.pq = inner
        matrix.train(sample)
    if settings.projection != "none":
        projection = faiss.vector_to_array(matrix.A).reshape(dimension, width).astype(np.float32)
        sample = sample @ projection.T + (0 if shift is None else shift)
    lists = settings.lists or min(MOST_LISTS, 1 << max(0, (count // POINTS_A_LIST).bit_length() - 1))
    if lists > count:
        raise Failure(f"memory.lists: {lists} of {count} states of public text; allowed: at most as many as states")
    coarse = faiss.IndexFlatL2(dimension)
    index = faiss.IndexIVFPQ(coarse, dimension, lists, settings.code_bytes, 8)
    # It would print a warning where there are few; that there are enough is decided above.
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    index.cp.seed = index.pq.cp.seed = seed % 2**31
    index.pq.cp.niter, index.pq.cp.max_points_per_centroid = CODEBOOK_ROUNDS
    index.train(np.ascontiguousarray(sample, dtype=np.float32))
    codebook = faiss.vector_to_array(index.pq.centroids).reshape(settings.code_bytes, CENTROIDS, -1)
    return Quantiser(coarse.reconstruct_n(0, lists), codebook.astype(np.float32), projection, shift)


def _dimension(width: int, settings: Memory) -> int:
    parts = settings.code_bytes
    if settings.projection == "none":
        dimension = width
    else:
        dimension = settings.dimension or min(width, DIMENSIONS_A_BYTE * parts) // parts * parts
    if dimension > width:
        raise Failure(f"memory.dimension: {dimension} is more than the engine's width; allowed: at most {width}")
    if dimension % parts or not dimension:
        allowed = ", ".join(str(number) for number in range(1, 65) if width % number == 0)
        raise Failure(
            f"memory.code_bytes: {parts} parts of one byte cannot share {dimension or width} dimensions evenly; "
            f"allowed for this engine: {allowed}, or a projection to a multiple of them"
        )
    return dimension


def _sample(states: Iterable[Floats], most: int, seed: int) -> Floats:
    """So many of the states, all equally likely, in the order in which they came."""
    random = np.random.default_rng(seed)
    kept: list[Floats] = []
    lots: list[NDArray[np.float64]] = []
    held = 0
    for part in states:
        kept.append(np.asarray(part, dtype=np.float32))
        lots.append(random.random(len(part)))
        held += len(part)
        if held > 2 * most:
            kept, lots = _fewest(kept, lots, most)
            held = most
    if held > most:
        kept, lots = _fewest(kept, lots, most)
    return np.ascontiguousarray(np.concatenate(kept)) if kept else np.empty((0, 1), dtype=np.float32)


def _fewest(
    kept: list[Floats], lots: list[NDArray[np.float64]], most: int
) -> tuple[list[Floats], list[NDArray[np.float64]]]:
    drawn = np.concatenate(lots)
    chosen = np.sort(np.argpartition(drawn, most - 1)[:most])
    return [np.concatenate(kept)[chosen]], [drawn[chosen]]


# ── arrays and numbers in a folder ──────────────────────────────────────────────────────────────────────────────────


def write_sheet(folder: Path, name: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """`name.safetensors` and `name.json`; the latter last, so that where it stands both do."""
    files.write_bytes(folder / f"{name}.safetensors", codec.parts(tensors))
    files.write_json(folder / f"{name}.json", dict(numbers))


def read_sheet(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_sheet` wrote; each tensor a copy of its own."""
    path = folder / f"{name}.json"
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(numbers, dict) or numbers.get("schema") != 1:
            raise ValueError("needs a JSON object with schema 1")
        path = folder / f"{name}.safetensors"
        tensors, _ = codec.unpack(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())[:200]
        raise RunError(f"{path}: cannot be read as a memory's {name}: {reason}") from None
    return {key: tensor.clone() for key, tensor in tensors.items()}, numbers
