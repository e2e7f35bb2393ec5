"""What every vocabulary of an engine can do, whichever tokenizer is behind it. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fedmt.corpus.pairs import Direction
from fedmt.engine.pieces import Pieces, learn
from fedmt.engine.pretrained import Pretrained

__all__ = ["Pieces", "Pretrained", "Vocabulary", "learn", "read"]


class Vocabulary(Protocol):
    """Text to ids and back.

    `encode_target` gives labels: the decoder reads them shifted right behind `prefix(direction)[0]`. Where the engine's
    labels begin with a language code, they have it, and `prefix` is the start and that code, otherwise the start only.
    """

    @property
    def pad(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def start(self) -> int:
        """What the decoder reads first."""

    @property
    def size(self) -> int: ...
    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages it tells apart; none, where it tells none apart."""

    @property
    def hash(self) -> str:
        """SHA-256 over its files."""

    def encode_source(self, texts: Sequence[str], direction: Direction) -> list[list[int]]: ...
    def encode_target(self, texts: Sequence[str], direction: Direction) -> list[list[int]]: ...
    def prefix(self, direction: Direction) -> list[int]:
        """The decoder's forced first ids."""

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]: ...
    def save(self, folder: Path) -> None: ...


def read(folder: Path, config: Any) -> Vocabulary:
    """The vocabulary that stands in an engine's folder. `config` is the model's."""
    if config.model_type == "marian":
        return Pieces.read(folder)
    return Pretrained.read(folder, config)
