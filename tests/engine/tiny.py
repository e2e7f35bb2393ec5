"""Tiny engines of every architecture, with tokenizers trained here, in the layout in which the hub keeps them."""

from __future__ import annotations

import atexit
import functools
import io
import json
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    MT5Config,
    MT5ForConditionalGeneration,
    NllbTokenizer,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

from fedmt import recipe
from fedmt.corpus.pairs import Direction
from fedmt.engine import engine, vocabulary

KINDS = ("scratch", "opus", "mbart50", "mbart25", "m2m100", "nllb", "t5", "mt5")
DIRECTION = Direction("de", "en")

_DRAW = random.Random(0)
_WORDS = ["".join(_DRAW.choice("abcdefghiklmnorstuäé") for _ in range(_DRAW.randint(2, 6))) for _ in range(150)]
SENTENCES = [" ".join(_DRAW.choices(_WORDS, k=_DRAW.randint(2, 12))).capitalize() + "." for _ in range(300)]


def spm(kind: str, size: int, sentences: list[str] = SENTENCES, **settings: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    return model.getvalue()


def scored(model: bytes) -> list[tuple[str, float]]:
    side = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(side.id_to_piece(index), side.get_score(index)) for index in range(len(side))]


def merges(pieces: list[str]) -> list[tuple[str, str]]:
    """The merges of a byte-pair encoding whose pieces stand in the order of their making."""
    rank = {piece: index for index, piece in enumerate(pieces)}
    splits = ((piece[:cut], piece[cut:]) for piece in pieces for cut in range(1, len(piece)))
    known = [(left, right) for left, right in splits if left in rank and right in rank]
    return sorted(known, key=lambda pair: (rank[pair[0] + pair[1]], rank[pair[0]], rank[pair[1]]))


SHAPE = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "init_std": 0.3,
}
T5_SHAPE = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}


def make(kind: str, folder: Path) -> Path:
    """One of KINDS: a folder that an engine can be loaded from."""
    torch.manual_seed(7)
    folder.mkdir(parents=True)
    if kind == "scratch":
        pieces = vocabulary.learn(SENTENCES, 420, ["de", "en"], seed=1)
        engine.scratch(recipe.Scratch(size="toy"), pieces, seed=1).save(folder)
    else:
        _MAKERS[kind](folder)
    return folder


def _opus(folder: Path) -> None:
    """Two SentencePiece models under one list of ids that follows neither, the padding last."""
    for name, sentences in (("source.spm", SENTENCES[:150]), ("target.spm", SENTENCES[150:])):
        (folder / name).write_bytes(spm("unigram", 200, sentences))
    both = {piece for name in ("source.spm", "target.spm") for piece, _ in scored((folder / name).read_bytes())[3:]}
    tokens = ["</s>", "<unk>", *sorted(both), "ß", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "de", "target_lang": "en"}))
    pad = len(tokens) - 1
    config = MarianConfig(
        **SHAPE,
        vocab_size=len(tokens),
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        scale_embedding=True,
        activation_function="swish",
    )
    model = MarianMTModel(config)
    model.final_logits_bias.normal_()
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(folder)


def _mbart(folder: Path, tokenizer_class: type[MBart50Tokenizer | MBartTokenizer]) -> None:
    model = spm("unigram", 200)
    pieces = scored(model)
    if tokenizer_class is MBartTokenizer:
        codes = vocabulary_codes("MBartTokenizer")
        pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")] + pieces[3:]
        pieces += [(code, 0.0) for code in (*codes, "<mask>")]
    tokenizer = tokenizer_class(vocab=pieces)
    tokenizer.save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    start = 2 if tokenizer_class is MBart50Tokenizer else None
    config = MBartConfig(
        **SHAPE, vocab_size=len(tokenizer), decoder_start_token_id=start, scale_embedding=True, forced_eos_token_id=2
    )
    MBartForConditionalGeneration(config).save_pretrained(folder)


def _m2m100(folder: Path) -> None:
    model = spm("bpe", 200)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece, _ in scored(model)[3:])]
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer"}))
    size = len(tokens) + len(vocabulary_codes("M2M100Tokenizer")) + 8
    config = M2M100Config(**SHAPE, vocab_size=size, decoder_start_token_id=2, scale_embedding=True)
    M2M100ForConditionalGeneration(config).save_pretrained(folder)


def _nllb(folder: Path) -> None:
    model = spm("bpe", 200)
    pieces = [piece for piece, _ in scored(model)[3:]]
    codes = vocabulary_codes("NllbTokenizer")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces, *codes, "<mask>"]
    tokenizer = NllbTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=merges(pieces))
    tokenizer.save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    config = M2M100Config(**SHAPE, vocab_size=len(tokens) + 2, decoder_start_token_id=2, scale_embedding=True)
    M2M100ForConditionalGeneration(config).save_pretrained(folder)


def _t5(folder: Path) -> None:
    model = spm(
        "unigram", 250, SENTENCES + ["translate German to English: "] * 20, pad_id=0, eos_id=1, unk_id=2, bos_id=-1
    )
    T5Tokenizer(vocab=scored(model), extra_ids=0).save_pretrained(folder)
    (folder / "spiece.model").write_bytes(model)
    T5ForConditionalGeneration(T5Config(**T5_SHAPE, vocab_size=256)).save_pretrained(folder)


def _mt5(folder: Path) -> None:
    """Gated feed-forward, the output apart from the embedding, and no tokenizer.json, as mT5 is on the hub."""
    model = spm("unigram", 250, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    mt5 = MT5ForConditionalGeneration(MT5Config(**T5_SHAPE, vocab_size=256, feed_forward_proj="gated-gelu"))
    mt5.lm_head.weight = torch.nn.Parameter(torch.randn(256, 16))
    mt5.save_pretrained(folder)


_MAKERS = {
    "opus": _opus,
    "mbart50": lambda folder: _mbart(folder, MBart50Tokenizer),
    "mbart25": lambda folder: _mbart(folder, MBartTokenizer),
    "m2m100": _m2m100,
    "nllb": _nllb,
    "t5": _t5,
    "mt5": _mt5,
}


def vocabulary_codes(family: str) -> tuple[str, ...]:
    from fedmt.engine.pretrained import FAMILIES

    return FAMILIES[family].languages


def taught(
    model: PreTrainedModel,
    sources: list[list[int]],
    labels: list[list[int]],
    start: int,
    pad: int,
    rate: float,
    steps: int,
) -> None:
    """A few steps by heart, so that translations differ and end, as those of random weights do not."""

    def padded(rows: list[list[int]], fill: int) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows])

    source, target = padded(sources, pad), padded(labels, -100)
    shifted = torch.cat([torch.full((len(labels), 1), start), target[:, :-1].clamp_min(0)], dim=1)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    model.eval()  # no dropout: what it learns hangs neither on chance nor on which tests came before
    for _ in range(steps):
        logits = model(input_ids=source, attention_mask=source != pad, decoder_input_ids=shifted).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@functools.cache
def folder(kind: str) -> Path:
    """One folder of each kind for all tests; they do not write into it."""
    root = tempfile.mkdtemp(prefix="tiny-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return make(kind, Path(root) / kind)


@functools.cache
def learnt(kind: str) -> engine.Engine:
    """An engine that has learnt some pairs by heart; tests leave it as it is."""
    made = engine.load(folder(kind))
    sources = made.vocabulary.encode_source(SENTENCES[:24], DIRECTION)
    labels = made.vocabulary.encode_target(SENTENCES[50:74], DIRECTION)
    rate, steps = (0.005, 40) if kind == "scratch" else (0.02, 25)
    taught(made.model, sources, labels, made.vocabulary.prefix(DIRECTION)[0], made.vocabulary.pad, rate, steps)
    return made


def marian(folder: Path) -> MarianTokenizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends sacremoses, which it then does not use
        return MarianTokenizer.from_pretrained(folder)
