"""The vocabularies of engines that others trained: MBart, M2M100, NLLB and T5, read from their own files.

A `tokenizer.json` is read by `tokenizers`, a SentencePiece model by `sentencepiece` with the ids that the engine's
family gives its pieces; no tokenizer class of transformers is asked, so that protobuf is not needed and nothing that
stands in a sentence is ever taken for a special token. Knows nothing of models but their configuration.

    family     source              labels            the decoder reads first
    MBart-50   [de_DE] X </s>      [en_XX] Y </s>    </s>
    M2M100     [__de__] X </s>     [__en__] Y </s>   </s>
    NLLB       [deu_Latn] X </s>   [eng_Latn] Y </s> </s>
    MBart-25   X </s> [de_DE]      Y </s>            [en_XX]
    T5         translate German to English: X </s>   Y </s>   <pad>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tokenizers import Tokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100_CODES
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES as MBART_CODES
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART50_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

from fedmt.corpus.pairs import Direction
from fedmt.engine import codes
from fedmt.engine.pieces import Side, files_hash, tidy, write_files
from fedmt.errors import EngineError

__all__ = ["Pretrained"]

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
)


class _Text(Protocol):
    """Text to ids and back, without any id that is not text."""

    def encode(self, texts: list[str]) -> list[list[int]]: ...
    def decode(self, sequences: list[list[int]]) -> list[str]: ...


class _Fast:
    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [str(text).strip() for text in self._tokenizer.decode_batch(sequences, skip_special_tokens=True)]


@dataclass(frozen=True)
class _Family:
    """How one family of engines marks the languages, and how its SentencePiece file becomes ids."""

    marks: Literal["before", "after", "task"]
    languages: tuple[str, ...]
    model: str
    ids: Callable[[_Family, dict[str, bytes], Side], dict[str, int]]


def _fairseq_ids(family: _Family, files: dict[str, bytes], side: Side) -> dict[str, int]:  # noqa: ARG001
    """MBart's and NLLB's: four of their own, the model's pieces, the languages, the mask."""
    return {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *list(side.ids)[3:]])}


def _m2m100_ids(family: _Family, files: dict[str, bytes], side: Side) -> dict[str, int]:  # noqa: ARG001
    found: dict[str, int] = json.loads(files["vocab.json"])
    return found


def _own_ids(family: _Family, files: dict[str, bytes], side: Side) -> dict[str, int]:  # noqa: ARG001
    return side.ids


FAMILIES = {
    "MBart50Tokenizer": _Family("before", tuple(MBART50_CODES), "sentencepiece.bpe.model", _fairseq_ids),
    "MBartTokenizer": _Family("after", tuple(MBART_CODES), "sentencepiece.bpe.model", _fairseq_ids),
    "NllbTokenizer": _Family("before", tuple(NLLB_CODES), "sentencepiece.bpe.model", _fairseq_ids),
    "M2M100Tokenizer": _Family(
        "before", tuple(f"__{code}__" for code in M2M100_CODES["m2m100"]), "sentencepiece.bpe.model", _m2m100_ids
    ),
    "T5Tokenizer": _Family("task", (), "spiece.model", _own_ids),
}
MARKS = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))")


def _read(family: _Family, files: dict[str, bytes]) -> tuple[_Text, dict[str, int]]:
    """The tokenizer and every token's id, languages included."""
    if "tokenizer.json" in files:
        tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
        return _Fast(tokenizer), tokenizer.get_vocab(with_added_tokens=True)
    if family.model not in files:
        raise ValueError(f"it needs tokenizer.json or {family.model}")
    ids = family.ids(family, files, Side(files[family.model]))
    behind = [*family.languages, *(["<mask>"] if family.ids is _fairseq_ids else [])]
    added = {token: len(ids) + index for index, token in enumerate(behind)}
    return Side(files[family.model], ids), {**ids, **added, **json.loads(files.get("added_tokens.json", b"{}"))}


def _languages(family: _Family, tokens: dict[str, int]) -> dict[str, int]:
    """By its own code: the languages that the family was trained on, and those that someone added to the tokenizer."""
    if family.marks == "task":
        return {}
    known = [token for token in family.languages if token in tokens]
    last = max((tokens[token] for token in known), default=0)
    later = [token for token, index in tokens.items() if index > last and _LANGUAGE.fullmatch(token)]
    return {token.strip("_"): tokens[token] for token in [*known, *later]}


def _family(config: Any, settings: dict[str, Any], files: dict[str, bytes]) -> str:
    for name in (settings.get("tokenizer_class"), getattr(config, "tokenizer_class", None)):
        if name and (short := str(name).removesuffix("Fast")) in FAMILIES:
            return short
    match config.model_type:
        case "mbart":
            return "MBartTokenizer" if config.vocab_size < 250_050 and "50" not in str(settings) else "MBart50Tokenizer"
        case "m2m_100":
            return "M2M100Tokenizer" if "vocab.json" in files else "NllbTokenizer"
    return "T5Tokenizer"


class Pretrained:
    """The vocabulary of an MBart, M2M100, NLLB or T5-style engine."""

    def __init__(self, files: dict[str, bytes], config: Any) -> None:
        self.files = files
        self.hash = files_hash(files)
        settings = json.loads(files.get("tokenizer_config.json", b"{}"))
        name = _family(config, settings, files)
        self._family = FAMILIES[name]
        self._text, tokens = _read(self._family, files)
        self._languages = _languages(self._family, tokens)
        self._marks = "after" if settings.get("legacy_behaviour") else self._family.marks
        self._start_is_language = name == "MBartTokenizer"
        self.eos, self.pad = tokens["</s>"], tokens["<pad>"]
        self.languages = tuple(self._languages)
        start = getattr(config, "decoder_start_token_id", None)
        self.start: int = self.eos if start is None else start
        self.size = max(tokens.values()) + 1
        self._tasks: dict[str, Any] = getattr(config, "task_specific_params", None) or {}
        self._unknown = tokens["<unk>"]
        self._silent = {tokens[mark] for mark in MARKS if mark in tokens}.union(self._languages.values())

    @classmethod
    def read(cls, folder: Path, config: Any) -> Pretrained:
        files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        try:
            return cls(files, config)
        except (ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise EngineError(f"{folder}: the vocabulary cannot be read: {error!r}") from error

    def save(self, folder: Path) -> None:
        write_files(folder, self.files)

    def encode_source(self, texts: Sequence[str], direction: Direction) -> list[list[int]]:
        if self._marks == "task":
            task = self._task(direction)
            return [[*ids, self.eos] for ids in self._spell(task + tidy(text) for text in texts)]
        self._language(direction.target)
        language = self._language(direction.source)
        found = self._spell(tidy(text) for text in texts)
        if self._marks == "after":
            return [[*ids, self.eos, language] for ids in found]
        return [[language, *ids, self.eos] for ids in found]

    def encode_target(self, texts: Sequence[str], direction: Direction) -> list[list[int]]:
        front = self.prefix(direction)[1:]
        return [[*front, *ids, self.eos] for ids in self._spell(tidy(text) for text in texts)]

    def prefix(self, direction: Direction) -> list[int]:
        if self._marks == "task":
            return [self.start]
        language = self._language(direction.target)
        return [language] if self._start_is_language else [self.start, language]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self._text.decode([[index for index in ids if index not in self._silent] for ids in sequences])

    def _spell(self, texts: Iterable[str]) -> list[list[int]]:
        """A `tokenizer.json` may spell "</s>" in a sentence with the mark's own id: there it is an unknown word."""
        found = self._text.encode(list(texts))
        return [[self._unknown if index in self._silent else index for index in ids] for ids in found]

    def _language(self, asked: str) -> int:
        code = codes.find(asked, self._languages)
        if code is None:
            raise EngineError(f"the engine does not know the language {asked}; it knows {', '.join(self.languages)}")
        return self._languages[code]

    def _task(self, direction: Direction) -> str:
        """The engine's own words for the task if its configuration gives them, otherwise T5's."""
        source, target = (language.lower().replace("-", "_") for language in direction)
        task = self._tasks.get(f"translation_{source}_to_{target}")
        if isinstance(task, dict) and isinstance(task.get("prefix"), str):
            return str(task["prefix"])
        names = [codes.english(language) or language for language in direction]
        return f"translate {names[0]} to {names[1]}: "
