import random
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, MarianMTModel

from fedmt.corpus.pairs import Direction
from fedmt.engine import decoder, engine
from fedmt.engine.decoder import Hypothesis, search, translate
from fedmt.engine.device import Machine
from fedmt.errors import EngineError
from fedmt.events import Note
from fedmt.recipe import Decode
from tests.engine import tiny
from tests.engine.tiny import marian

FP32 = Machine(torch.device("cpu"), "fp32", 1)
BF16 = Machine(torch.device("cpu"), "bf16", 1)
LONGEST = 18
COUNT = 12
SEARCHES = [(1, 1.0), (4, 1.0), (3, 0.0), (2, 2.0)]


def sources(made: engine.Engine, count: int = COUNT) -> list[list[int]]:
    return made.vocabulary.encode_source(tiny.SENTENCES[:count], tiny.DIRECTION)


def found(made: engine.Engine, beam: int, penalty: float = 1.0, **options: Any) -> list[Hypothesis]:
    """Every hypothesis with its score."""
    settings = Decode(beam=beam, length_penalty=penalty, longest=LONGEST, **options.pop("settings", {}))
    texts = options.pop("texts", None) or sources(made)
    prefix = made.vocabulary.prefix(tiny.DIRECTION)
    return search(made, texts, prefix, settings, options.pop("machine", FP32), scored=True, **options)


def generated(made: engine.Engine, beam: int, penalty: float) -> tuple[list[list[int]], list[float] | None]:
    """What Hugging Face's `generate` gives, without start, language, end and padding."""
    vocabulary, prefix = made.vocabulary, made.vocabulary.prefix(tiny.DIRECTION)
    texts = sources(made)
    width = max(map(len, texts))
    ids = torch.tensor([text + [vocabulary.pad] * (width - len(text)) for text in texts])
    forced = len(prefix) - 1
    settings = GenerationConfig(
        max_new_tokens=LONGEST + forced,
        num_beams=beam,
        length_penalty=penalty,
        do_sample=False,
        early_stopping=False,
        pad_token_id=vocabulary.pad,
        eos_token_id=vocabulary.eos,
        decoder_start_token_id=prefix[0],
        forced_bos_token_id=prefix[1] if forced else None,
        suppress_tokens=sorted({vocabulary.pad, prefix[0]} - {vocabulary.eos}),
        return_dict_in_generate=True,
        output_scores=True,
    )
    # What the engine's own configuration would add: a forced end, which ours does not have, and another limit.
    own, made.model.generation_config = made.model.generation_config, GenerationConfig()
    try:
        out = made.model.generate(
            input_ids=ids, attention_mask=(ids != vocabulary.pad).long(), generation_config=settings
        )
    finally:
        made.model.generation_config = own
    rows = [row[1 + forced :] for row in out.sequences.tolist()]
    rows = [row[: row.index(vocabulary.eos)] if vocabulary.eos in row else row for row in rows]
    scores = None if beam == 1 else out.sequences_scores.tolist()
    return [[token for token in row if token != vocabulary.pad] for row in rows], scores


@pytest.mark.parametrize(("beam", "penalty"), SEARCHES)
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_search_finds_what_hugging_faces_finds(kind: str, beam: int, penalty: float) -> None:
    made = tiny.learnt(kind)
    ours = found(made, beam, penalty)
    ids, scores = generated(made, beam, penalty)
    assert [hypothesis.ids for hypothesis in ours] == ids
    if scores is not None:
        assert [hypothesis.score for hypothesis in ours] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_engines_of_these_tests_tell_sentences_apart_and_end_them(kind: str) -> None:
    """Otherwise the other tests would hold of any decoder."""
    rows = {tuple(one.ids) for beam, penalty in SEARCHES for one in found(tiny.learnt(kind), beam, penalty)}
    assert len(rows) > 3
    assert len({len(row) for row in rows}) > 1


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_cached_decoding_is_uncached_decoding(kind: str, beam: int) -> None:
    made = tiny.learnt(kind)
    cached, uncached = found(made, beam), found(made, beam, cached=False)
    assert [hypothesis.ids for hypothesis in cached] == [hypothesis.ids for hypothesis in uncached]
    assert [hypothesis.score for hypothesis in cached] == pytest.approx([other.score for other in uncached], abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_batches_change_nothing(kind: str, beam: int) -> None:
    made = tiny.learnt(kind)
    together = found(made, beam)
    for batch_tokens in (16, 200):
        apart = found(made, beam, settings={"batch_tokens": batch_tokens})
        assert [hypothesis.ids for hypothesis in apart] == [hypothesis.ids for hypothesis in together]
        assert [hypothesis.score for hypothesis in apart] == pytest.approx([one.score for one in together], abs=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
def test_results_stand_in_the_order_of_the_sentences(beam: int) -> None:
    made = tiny.learnt("mbart50")
    order = list(range(COUNT))
    random.Random(1).shuffle(order)
    mixed = found(made, beam, texts=[sources(made)[index] for index in order])
    straight = found(made, beam)
    assert [hypothesis.ids for hypothesis in mixed] == [straight[index].ids for index in order]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_score_is_the_models_own_probability_of_the_translation(kind: str) -> None:
    """Computed apart, by one forward pass over the whole translation."""
    made = tiny.learnt(kind)
    prefix, eos = made.vocabulary.prefix(tiny.DIRECTION), made.vocabulary.eos
    texts = sources(made)[:6]
    for text, hypothesis in zip(texts, found(made, 1, penalty=0.5, texts=texts), strict=True):
        whole = [*prefix, *hypothesis.ids, *([eos] if len(hypothesis.ids) < LONGEST else [])]
        with torch.no_grad():
            logits = made.model(input_ids=torch.tensor([text]), decoder_input_ids=torch.tensor([whole[:-1]])).logits[0]
        log_probs = logits.log_softmax(-1)[len(prefix) - 1 :]
        chosen = sum(float(row[token]) for row, token in zip(log_probs, whole[len(prefix) :], strict=True))
        assert hypothesis.score == pytest.approx(chosen / (len(whole) - 1) ** 0.5, abs=1e-4)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_padding_and_the_start_are_never_written(kind: str) -> None:
    made = engine.load(tiny.folder(kind))
    never = {made.vocabulary.pad, made.vocabulary.prefix(tiny.DIRECTION)[0]} - {made.vocabulary.eos}
    # The head likes nothing better than what must not be written.
    made.model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, torch.tensor([*never]), 100.0))
    for beam in (1, 3):
        for hypothesis in found(made, beam, texts=sources(made)[:4]):
            assert not never & set(hypothesis.ids)
            assert hypothesis.ids


@pytest.mark.parametrize("beam", [1, 4])
def test_a_wider_search_scores_no_worse(beam: int) -> None:
    made = tiny.learnt("t5")
    narrow, wide = found(made, beam, penalty=0.0), found(made, 24, penalty=0.0)
    better = sum(second.score >= first.score - 1e-4 for first, second in zip(narrow, wide, strict=True))
    assert better >= COUNT - 1


@pytest.mark.parametrize("beam", [1, 4])
def test_no_translation_is_longer_than_the_longest(beam: int) -> None:
    made = tiny.learnt("opus")
    settings = Decode(beam=beam, longest=3)
    hypotheses = search(made, sources(made), made.vocabulary.prefix(tiny.DIRECTION), settings, FP32)
    assert max(len(hypothesis.ids) for hypothesis in hypotheses) <= 3


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", ["opus", "mbart50", "m2m100"])
def test_no_translation_is_longer_than_the_engines_positions(kind: str, beam: int) -> None:
    made = engine.load(tiny.folder(kind))
    settings = Decode(beam=beam, longest=500)
    prefix = made.vocabulary.prefix(tiny.DIRECTION)
    hypotheses = search(made, sources(made)[:3], prefix, settings, FP32)
    assert max(len(hypothesis.ids) for hypothesis in hypotheses) <= 64 - len(prefix)


def test_bf16_finds_about_the_same() -> None:
    made = tiny.learnt("t5")
    exact, rough = found(made, 4), found(made, 4, machine=BF16)
    assert sum(abs(one.score - two.score) < 0.1 for one, two in zip(exact, rough, strict=True)) >= COUNT - 3


# ── translate ──


def test_text_goes_in_and_text_comes_out() -> None:
    made = tiny.learnt("mbart25")
    texts = translate(made, tiny.SENTENCES[:COUNT], tiny.DIRECTION, Decode(longest=LONGEST), FP32)
    assert texts == made.vocabulary.decode([hypothesis.ids for hypothesis in found(made, 1)])


@pytest.mark.parametrize("beam", [1, 2])
def test_an_empty_sentence_gives_an_empty_translation(beam: int) -> None:
    made = tiny.learnt("mt5")
    texts = ["", tiny.SENTENCES[0], " \t\n", tiny.SENTENCES[1], ""]
    translated = translate(made, texts, tiny.DIRECTION, Decode(beam=beam, longest=LONGEST), FP32)
    alone = translate(made, tiny.SENTENCES[:2], tiny.DIRECTION, Decode(beam=beam, longest=LONGEST), FP32)
    assert translated == ["", alone[0], "", alone[1], ""]
    assert translate(made, [], tiny.DIRECTION, Decode(beam=beam), FP32) == []
    assert translate(made, ["", " "], tiny.DIRECTION, Decode(beam=beam), FP32) == ["", ""]


@pytest.mark.parametrize("kind", ["opus", "mbart50", "mbart25", "m2m100"])
def test_a_source_longer_than_the_positions_is_cut_and_counted(kind: str) -> None:
    made = tiny.learnt(kind)
    long = " ".join(tiny.SENTENCES[:20])
    heard: list[Any] = []
    texts = [tiny.SENTENCES[0], long, long]
    translated = translate(made, texts, tiny.DIRECTION, Decode(longest=LONGEST), FP32, listen=heard.append)
    assert heard == [Note("2 of 3 sources are longer than the engine's 64 tokens and were cut")]
    assert translated[0] == translate(made, texts[:1], tiny.DIRECTION, Decode(longest=LONGEST), FP32)[0]
    assert translated[1] == translated[2]


def test_a_cut_source_keeps_its_marks() -> None:
    assert decoder._cut([7, 1, 2, 3, 4, 0], 6, 0) == [7, 1, 2, 3, 4, 0]
    assert decoder._cut([7, 1, 2, 3, 4, 0], 4, 0) == [7, 1, 2, 0]
    assert decoder._cut([1, 2, 3, 4, 0, 7], 4, 0) == [1, 2, 0, 7]


def test_progress_counts_the_sentences() -> None:
    heard: list[tuple[int, int]] = []
    made = tiny.learnt("opus")
    settings = Decode(longest=5, batch_tokens=100)
    translate(
        made, tiny.SENTENCES[:COUNT], tiny.DIRECTION, settings, FP32, on_progress=lambda *done: heard.append(done)
    )
    assert heard[-1] == (COUNT, COUNT)
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert len(heard) > 1


def test_a_language_that_the_engine_does_not_know_is_an_error() -> None:
    with pytest.raises(EngineError, match="does not know the language tlh"):
        translate(tiny.learnt("nllb"), ["Abc"], Direction("de", "tlh"), Decode(), FP32)


def test_the_model_is_afterwards_as_it_was() -> None:
    made = engine.load(tiny.folder("t5"))
    before = made.hash
    for training in (True, False):
        made.model.train(training)
        attention = made.model.config._attn_implementation
        translate(made, tiny.SENTENCES[:2], tiny.DIRECTION, Decode(longest=5), FP32)
        assert made.model.training is training
        assert {made.model.config._attn_implementation, made.model.decoder.config._attn_implementation} == {attention}
    assert made.hash == before
    assert all(tensor.requires_grad for tensor in made.model.parameters())


def test_what_hangs_on_a_module_takes_part() -> None:
    """An adapter is a hook on a sublayer; with cache and without, it must be heard."""
    made = engine.load(tiny.folder("scratch"))
    plain = found(made, 1)
    heard: list[torch.Size] = []

    def adapter(_: torch.nn.Module, __: Any, output: Any) -> Any:
        heard.append(output[0].shape)
        return output[0] + 3.0 * output[0].sin(), *output[1:]

    for layer in made.model.model.decoder.layers:
        layer.self_attn.register_forward_hook(adapter)
        layer.encoder_attn.register_forward_hook(adapter)
    cached, uncached = found(made, 1), found(made, 1, cached=False)
    assert heard
    assert [one.score for one in cached] == pytest.approx([other.score for other in uncached], abs=1e-4)
    assert [one.score for one in cached] != pytest.approx([one.score for one in plain], abs=1e-3)


def test_marian_mt_model_generates_the_same_translations(tmp_path: Any) -> None:
    """The promise of the saved folder: whoever loads it with transformers alone gets our translations."""
    made = tiny.learnt("scratch")
    made.save(tmp_path / "engine")
    tokenizer, model = marian(tmp_path / "engine"), MarianMTModel.from_pretrained(tmp_path / "engine")
    batch = tokenizer([f">>en<< {text}" for text in tiny.SENTENCES[:8]], return_tensors="pt", padding=True)
    model.generation_config.max_length = None
    theirs = tokenizer.batch_decode(model.generate(**batch, max_new_tokens=LONGEST), skip_special_tokens=True)
    ours = translate(made, tiny.SENTENCES[:8], tiny.DIRECTION, Decode(longest=LONGEST - 1), FP32)
    assert ours == theirs
