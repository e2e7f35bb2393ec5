"""What a coordinator and a site say before the first round: `hello` (how much text there is) and `welcome`.

`welcome` brings an engine's configuration and vocabulary, file by file as bytes in tensors, and not its weights: those
come with the steps that need them, or not at all where the site has the engine and its hash says so. Knows no network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedmt import files
from fedmt.engine.engine import Engine
from fedmt.exchange import codec
from fedmt.federation.messages import Number

__all__ = ["HELLO", "LIMIT", "WELCOME", "Welcome", "files_of", "read", "write_files"]

HELLO = "hello"
WELCOME = "welcome"

# Every file that an engine has beside its weights; nothing else is written at a site.
NAMES = (
    "config.json",
    "generation_config.json",
    "fedmt.json",
    "vocab.json",
    "target_vocab.json",
    "source.spm",
    "target.spm",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "sentencepiece.bpe.model",
    "spiece.model",
)
LIMIT = 1 << 28
_HASH = "hash"


@dataclass(frozen=True)
class Welcome:
    """`hash` names the engine whole, as the server's public training left it; `named`: sites have it by the recipe's
    name and get no weights. `past` is the steps that it has been trained, None where that does not count."""

    files: Mapping[str, bytes]
    hash: str
    named: bool
    past: int | None

    def payload(self) -> memoryview:
        tensors = {
            name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in self.files.items()
        }
        tensors[_HASH] = torch.frombuffer(bytearray.fromhex(self.hash), dtype=torch.uint8)
        return codec.pack(tensors)

    def numbers(self) -> dict[str, Number]:
        return {"named": int(self.named), **({} if self.past is None else {"past": self.past})}


def read(payload: codec.Payload, numbers: Mapping[str, Number]) -> Welcome:
    """A welcome from elsewhere, checked; anything else is a ValueError."""
    if memoryview(payload).nbytes > LIMIT:
        raise ValueError(f"a welcome of {memoryview(payload).nbytes} bytes; {LIMIT} are allowed")
    tensors, _ = codec.unpack(payload)
    if strange := sorted(tensors.keys() - {*NAMES, _HASH}):
        raise ValueError(f"{strange[0]!r:.80} is no file of an engine")
    if _HASH not in tensors or "config.json" not in tensors:
        raise ValueError("a welcome has an engine's hash and its configuration")
    if any(tensor.dtype != torch.uint8 or tensor.dim() != 1 for tensor in tensors.values()):
        raise ValueError("a file is a row of bytes")
    found = {name: _content(tensor) for name, tensor in tensors.items()}
    hash, past = found.pop(_HASH), numbers.get("past")
    if len(hash) != 32 or (past is not None and (not isinstance(past, int) or past < 0)):
        raise ValueError("an engine's hash has 32 bytes, and its past is a count of steps")
    return Welcome(found, hash.hex(), bool(numbers.get("named", 0)), past)


def _content(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def files_of(engine: Engine) -> dict[str, bytes]:
    """An engine's files but for the weights, as `save` would write them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        engine.model.config.save_pretrained(folder)
        if engine.model.generation_config is not None:
            engine.model.generation_config.save_pretrained(folder)
        engine.vocabulary.save(folder)
        return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).is_file()}


def write_files(folder: Path, content: Mapping[str, bytes]) -> None:
    def fill(part: Path) -> None:
        for name, text in content.items():
            (part / name).write_bytes(text)

    files.write_folder(folder, fill)
