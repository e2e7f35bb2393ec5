"""Pieces: a SentencePiece vocabulary in Marian's layout, learnt from public text or read from a folder.

Knows nothing of models. Text is not normalised beyond Unicode composition and single spaces, so that what an engine
writes can be what people wrote; characters that were never seen are spelt in bytes, so that nothing is unknown.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

from fedmt.corpus.pairs import Direction
from fedmt.engine import codes
from fedmt.errors import EngineError
from fedmt.events import Listener, Note

__all__ = ["Pieces", "Side", "fitting_size", "learn", "tidy"]

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
BYTES = 256
COVERAGE = 0.9995
LARGEST_SAMPLE = 2_000_000
LONGEST = 512
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def tidy(text: str) -> str:
    """Composed, with single spaces; half of a surrogate pair, which no encoder takes, becomes the replacement mark."""
    text = _SURROGATE.sub("\ufffd", text)
    return " ".join(unicodedata.normalize("NFC", text).split())


def fitting_size(words: int) -> int:
    """How many pieces so many words of text can teach: 6000 for 750,000 words was measured, and the root is Heaps'."""
    size = round(6000 * math.sqrt(words / 750_000))
    return min(32_000, max(800, size // 8 * 8))


def learn(
    sentences: Iterable[str],
    size: int | None,
    languages: Sequence[str] = (),
    seed: int = 0,
    listen: Listener | None = None,
) -> Pieces:
    """Joint byte-pair encoding of both sides. `languages` are those translated into: with two or more each has a tag.

    The text decides the size where none is given; a text too small for the size asked gives fewer pieces, and a note.
    """
    sample = _sample((clean for text in sentences if (clean := tidy(text))), seed)
    if not sample:
        raise EngineError("vocabulary: there is no text to learn it from; it needs public text")
    tags = [_tag(language) for language in languages] if len(languages) > 1 else []
    characters = Counter(character for text in sample for character in text)
    needed = 3 + len(tags) + BYTES + _covering(characters) + 1
    if size is None:
        size = max(fitting_size(sum(text.count(" ") + 1 for text in sample)), (needed + needed // 4) // 8 * 8)
    elif size < needed:
        raise EngineError(f"vocabulary: {size} pieces are too few for this text's characters; at least {needed}")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=COVERAGE,
            normalization_rule_name="identity",
            max_sentence_length=1 << 16,
            eos_id=0,
            unk_id=1,
            pad_id=2,
            bos_id=-1,
            control_symbols=tags,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise EngineError(f"vocabulary: SentencePiece cannot learn from this text: {error}") from error
    pieces = _in_marian_layout(model.getvalue(), languages)
    if pieces.size < size and listen:
        listen(Note(f"vocabulary: the public text gives {pieces.size} pieces, fewer than the {size} asked for"))
    return pieces


def _sample(sentences: Iterable[str], seed: int) -> list[str]:
    """All of them, or so many drawn evenly."""
    draw = random.Random(seed)
    kept: list[str] = []
    for count, sentence in enumerate(sentences):
        if count < LARGEST_SAMPLE:
            kept.append(sentence)
        elif (place := draw.randrange(count + 1)) < LARGEST_SAMPLE:
            kept[place] = sentence
    return kept


def _covering(characters: Counter[str]) -> int:
    """How many of the commonest characters make up the share that SentencePiece keeps whole."""
    left = COVERAGE * characters.total()
    for number, (_, count) in enumerate(characters.most_common(), start=1):
        left -= count
        if left <= 0:
            return number
    return len(characters)


def _tag(language: str) -> str:
    return f">>{language}<<"


def _json(value: object) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _in_marian_layout(model: bytes, languages: Sequence[str]) -> Pieces:
    spm = sentencepiece.SentencePieceProcessor(model_proto=model)
    config = {
        "tokenizer_class": "MarianTokenizer",
        "eos_token": EOS,
        "unk_token": UNK,
        "pad_token": PAD,
        "model_max_length": LONGEST,
        "separate_vocabs": False,
        "languages": list(languages),
    }
    return Pieces(
        {
            "source.spm": model,
            "target.spm": model,
            "vocab.json": _json({spm.id_to_piece(index): index for index in range(len(spm))}),
            "tokenizer_config.json": _json(config),
        }
    )


class Pieces:
    """The vocabulary of a Marian engine: two SentencePiece models and the ids that the engine gives their pieces.

    A source is `[>>xx<<] pieces </s>`, a target `pieces </s>`; `start` opens the decoder, as in every Marian engine
    the padding does.
    """

    FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json", "tokenizer_config.json")

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.hash = files_hash(files)
        config = json.loads(files.get("tokenizer_config.json", b"{}"))
        source_ids: dict[str, int] = json.loads(files["vocab.json"])
        target_ids: dict[str, int] = (
            json.loads(files["target_vocab.json"]) if config.get("separate_vocabs") else source_ids
        )
        self._source = Side(files["source.spm"], source_ids)
        self._target = Side(files["target.spm"], target_ids)
        self.eos, self.pad = target_ids[EOS], target_ids[PAD]
        self.start = self.pad
        self.size = len(target_ids)
        self._tags = {piece[2:-2]: index for piece, index in source_ids.items() if _is_tag(piece)}
        self.languages = tuple(self._tags) or tuple(config.get("languages", ()))
        self._silent = {self.eos, self.pad, target_ids[UNK], *self._tags.values()}

    @classmethod
    def read(cls, folder: Path) -> Pieces:
        files = {name: (folder / name).read_bytes() for name in cls.FILES if (folder / name).is_file()}
        missing = [name for name in cls.FILES if name not in files and not name.startswith(("target_v", "tokenizer"))]
        if missing:
            raise EngineError(f"{folder}: a Marian vocabulary needs {', '.join(missing)}")
        try:
            return cls(files)
        except (ValueError, KeyError, RuntimeError, TypeError) as error:
            raise EngineError(f"{folder}: the vocabulary cannot be read: {error}") from error

    def save(self, folder: Path) -> None:
        write_files(folder, self.files)

    def encode_source(self, texts: Sequence[str], direction: Direction) -> list[list[int]]:
        front = [self._tag(direction)] if self._tags else []
        return [[*front, *ids, self.eos] for ids in self._source.encode([tidy(text) for text in texts])]

    def encode_target(self, texts: Sequence[str], direction: Direction) -> list[list[int]]:  # noqa: ARG002
        return [[*ids, self.eos] for ids in self._target.encode([tidy(text) for text in texts])]

    def prefix(self, direction: Direction) -> list[int]:
        if self._tags:
            self._tag(direction)
        return [self.start]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self._target.decode([[index for index in ids if index not in self._silent] for ids in sequences])

    def _tag(self, direction: Direction) -> int:
        language = codes.find(direction.target, self._tags)
        if language is None:
            raise EngineError(
                f"the engine does not translate into {direction.target}; it knows {', '.join(sorted(self._tags))}"
            )
        return self._tags[language]


class Side:
    """One SentencePiece model, and the engine's ids of its pieces."""

    def __init__(self, model: bytes, ids: dict[str, int] | None = None, unknown: int | None = None) -> None:
        self._spm = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._spm.id_to_piece(index) for index in range(len(self._spm))]
        self.ids = {piece: index for index, piece in enumerate(pieces)} if ids is None else ids
        self._unknown = self.ids[UNK] if unknown is None else unknown
        self._map = [self.ids.get(piece, self._unknown) for piece in pieces]
        self._same = self._map == list(range(len(self.ids)))
        self._pieces = {index: piece for piece, index in self.ids.items()}

    def encode(self, texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = self._spm.encode(texts, out_type=int, num_threads=1)
        if self._same:
            return found
        table, unknown = self._map, self._spm.unk_id()
        # The joint list of ids can hold a character that this side's model lacks: then its surface decides.
        return [
            [self.ids.get(piece, self._unknown) for piece in self._spm.encode(text, out_type=str)]
            if unknown in ids
            else [table[index] for index in ids]
            for text, ids in zip(texts, found, strict=True)
        ]

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [
            self._spm.decode_pieces([self._pieces.get(index, UNK) for index in ids]).replace("▁", " ").strip()
            for ids in sequences
        ]


def _is_tag(piece: str) -> bool:
    return len(piece) > 4 and piece.startswith(">>") and piece.endswith("<<")


def files_hash(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
