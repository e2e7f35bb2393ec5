import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoConfig,
    M2M100Tokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    T5Tokenizer,
)

from fedmt.corpus.pairs import Direction
from fedmt.engine import pieces, vocabulary
from fedmt.engine.vocabulary import Pieces, Vocabulary
from fedmt.errors import EngineError
from fedmt.events import Note
from tests.engine import tiny
from tests.engine.tiny import marian

LEARNT = vocabulary.learn(tiny.SENTENCES, 420, ["de", "en"], seed=1)
TO_ENGLISH = Direction("de", "en")


# ── learnt from text ──


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_any_text_comes_back_as_it_was_but_for_spaces_and_composition(text: str) -> None:
    ids = LEARNT.encode_target([text], TO_ENGLISH)
    assert LEARNT.decode(ids) == [pieces.tidy(text)]
    assert ids[0][-1] == LEARNT.eos
    assert ids[0].count(1) == 0, "nothing is unknown"


def test_spaces_are_single_and_accents_composed() -> None:
    assert pieces.tidy("  Fu\u0308r \u00a0 dich\n") == "Für dich"


@pytest.mark.parametrize("kind", ["scratch", "nllb"])
def test_bytes_that_were_no_text_do_not_stop_a_translation(kind: str) -> None:
    """What Python makes of a broken line on the standard input."""
    broken = b"abc \xff def".decode("utf-8", "surrogateescape")
    ours = read(tiny.folder(kind))
    assert ours.encode_source([broken], TO_ENGLISH) == ours.encode_source(["abc \ufffd def"], TO_ENGLISH)


def test_the_same_text_gives_the_same_pieces_and_other_text_gives_others() -> None:
    again = vocabulary.learn(iter(tiny.SENTENCES), 420, ["de", "en"], seed=1)
    assert (again.files, again.hash) == (LEARNT.files, LEARNT.hash)
    assert vocabulary.learn(tiny.SENTENCES[:200], 420, ["de", "en"], seed=1).hash != LEARNT.hash


def test_a_large_text_is_sampled_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LARGEST_SAMPLE", 100)
    first, again, other = (vocabulary.learn(tiny.SENTENCES, 400, [], seed=seed).hash for seed in (1, 1, 2))
    assert first == again != other


def test_a_source_is_marked_with_the_language_it_goes_into_where_there_are_several() -> None:
    tag = LEARNT.encode_source(["Abc"], Direction("en", "de"))[0][0]
    assert LEARNT.encode_source(["Abc"], Direction("en", "de-AT"))[0][0] == tag
    assert LEARNT.encode_source(["Abc"], TO_ENGLISH)[0][0] != tag
    assert LEARNT.encode_source(["Abc"], TO_ENGLISH)[0][1:] == LEARNT.encode_target(["Abc"], TO_ENGLISH)[0]
    assert LEARNT.prefix(TO_ENGLISH) == [LEARNT.start] == [LEARNT.pad]
    with pytest.raises(EngineError, match=r"does not translate into fr; it knows de, en"):
        LEARNT.encode_source(["Abc"], Direction("en", "fr"))


def test_one_target_language_needs_no_tag() -> None:
    one = vocabulary.learn(tiny.SENTENCES, 420, ["en"], seed=1)
    assert one.encode_source(["Abc"], TO_ENGLISH) == one.encode_target(["Abc"], TO_ENGLISH)
    assert one.languages == ("en",)


def test_what_looks_like_a_mark_is_text() -> None:
    text = ">>de<< Abc </s> <pad> <unk> <0x41>"
    ids = LEARNT.encode_source([text], TO_ENGLISH)[0]
    assert not {LEARNT.pad, LEARNT.eos, *LEARNT.encode_source([""], Direction("en", "de"))[0]} & set(ids[1:-1])
    assert LEARNT.decode([ids]) == [text]


def test_the_text_decides_the_size() -> None:
    assert pieces.fitting_size(750_000) == 6000
    assert pieces.fitting_size(3_000_000) == 12_000
    assert (pieces.fitting_size(10), pieces.fitting_size(10**9)) == (800, 32_000)
    assert vocabulary.learn(tiny.SENTENCES, None, [], seed=1).size <= 800


def test_many_characters_need_a_larger_vocabulary() -> None:
    text = ["".join(chr(0x4E00 + (start + step) % 1500) for step in range(50)) for start in range(0, 3000, 25)]
    learnt = vocabulary.learn(text, None, [], seed=1)
    assert learnt.size > 1500 + 256
    with pytest.raises(EngineError, match=r"400 pieces are too few for this text's characters; at least \d+"):
        vocabulary.learn(text, 400, [], seed=1)


def test_a_small_text_gives_fewer_pieces_and_says_so() -> None:
    heard: list[Any] = []
    small = vocabulary.learn(["ab ab ab", "ba"], 5000, [], seed=1, listen=heard.append)
    assert small.size < 300
    assert heard == [Note(f"vocabulary: the public text gives {small.size} pieces, fewer than the 5000 asked for")]


@pytest.mark.parametrize("nothing", [[], ["", "  \n"]])
def test_no_text_is_an_error(nothing: list[str]) -> None:
    with pytest.raises(EngineError, match="there is no text to learn it from"):
        vocabulary.learn(nothing, None, [], seed=1)


def test_learning_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    vocabulary.learn(tiny.SENTENCES, 420, [], seed=1)
    assert capfd.readouterr() == ("", "")


def test_marian_tokenizer_reads_the_same_folder_in_the_same_way(tmp_path: Path) -> None:
    LEARNT.save(tmp_path)
    theirs = marian(tmp_path)
    texts = [*tiny.SENTENCES[:50], "Straße № 5 – 你好 🙂", "a  b"]
    sources, targets = LEARNT.encode_source(texts, TO_ENGLISH), LEARNT.encode_target(texts, TO_ENGLISH)
    assert theirs([f">>en<< {text}" for text in texts]).input_ids == sources
    assert theirs(text_target=texts).input_ids == targets
    assert theirs.batch_decode(targets, skip_special_tokens=True) == LEARNT.decode(targets)
    assert (theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (LEARNT.pad, LEARNT.eos, LEARNT.size)


@pytest.mark.slow
def test_encoding_is_quick() -> None:
    texts = tiny.SENTENCES * 100
    start = time.process_time()
    LEARNT.encode_source(texts, TO_ENGLISH)
    assert len(texts) / (time.process_time() - start) > 10_000, "sentences a second"


# ── read from a folder ──


def read(folder: Path) -> Vocabulary:
    return vocabulary.read(folder, AutoConfig.from_pretrained(folder))


def hugging_face(kind: str, folder: Path) -> tuple[Any, Callable[[list[str]], Any]]:
    """Their tokenizer and how it encodes sources from German into English."""
    languages = {"mbart50": ("de_DE", "en_XX"), "mbart25": ("de_DE", "en_XX"), "nllb": ("deu_Latn", "eng_Latn")}
    source, target = languages.get(kind, ("de", "en"))
    classes = {"mbart50": MBart50Tokenizer, "mbart25": MBartTokenizer, "nllb": NllbTokenizer, "m2m100": M2M100Tokenizer}
    if kind == "opus":
        theirs = marian(folder)
    elif kind == "t5":
        theirs = T5Tokenizer.from_pretrained(folder)
        return theirs, lambda texts: theirs([f"translate German to English: {text}" for text in texts]).input_ids
    else:
        theirs = classes[kind].from_pretrained(folder, src_lang=source, tgt_lang=target)
    return theirs, lambda texts: theirs(texts).input_ids


@pytest.mark.parametrize("kind", ["opus", "mbart50", "mbart25", "m2m100", "nllb", "t5"])
def test_a_pretrained_vocabulary_does_as_hugging_faces(kind: str) -> None:
    ours = read(tiny.folder(kind))
    theirs, encode = hugging_face(kind, tiny.folder(kind))
    texts = [*tiny.SENTENCES[:40], "Zweiß 42% ß?"]
    assert ours.encode_source(texts, TO_ENGLISH) == encode(texts)
    labels = ours.encode_target(texts, TO_ENGLISH)
    expected = theirs(text_target=texts).input_ids
    # MBart-25 reads the target's code first instead of writing it last.
    assert labels == ([ids[:-1] for ids in expected] if kind == "mbart25" else expected)
    # Theirs does not count M2M100's languages among the marks.
    decoded = theirs.batch_decode(labels, skip_special_tokens=True)
    assert ours.decode(labels) == [text.removeprefix("__en__").strip() for text in decoded]
    assert ours.decode(labels[:40]) == texts[:40]
    assert (ours.pad, ours.eos) == (theirs.pad_token_id, theirs.eos_token_id)


@pytest.mark.parametrize("kind", ["mbart50", "mbart25", "nllb", "t5"])
def test_a_sentencepiece_file_alone_gives_the_ids_of_tokenizer_json(kind: str, tmp_path: Path) -> None:
    shutil.copytree(tiny.folder(kind), tmp_path / kind)
    whole = read(tmp_path / kind)
    (tmp_path / kind / "tokenizer.json").unlink()
    alone = read(tmp_path / kind)
    texts = tiny.SENTENCES[:40]
    for vocabulary_of in (whole, alone):
        assert vocabulary_of.decode(vocabulary_of.encode_target(texts, TO_ENGLISH)) == texts
    assert alone.encode_source(texts, TO_ENGLISH) == whole.encode_source(texts, TO_ENGLISH)
    assert alone.encode_target(texts, TO_ENGLISH) == whole.encode_target(texts, TO_ENGLISH)
    assert (alone.languages, alone.prefix(TO_ENGLISH)) == (whole.languages, whole.prefix(TO_ENGLISH))


@pytest.mark.parametrize(
    ("kind", "first_source", "last_source", "first_label", "prefix"),
    [
        ("mbart50", "de_DE", "</s>", "en_XX", ["</s>", "en_XX"]),
        ("mbart25", None, "de_DE", None, ["en_XX"]),
        ("m2m100", "__de__", "</s>", "__en__", ["</s>", "__en__"]),
        ("nllb", "deu_Latn", "</s>", "eng_Latn", ["</s>", "eng_Latn"]),
    ],
)
def test_languages_stand_where_the_family_wants_them(
    kind: str, first_source: str | None, last_source: str, first_label: str | None, prefix: list[str]
) -> None:
    ours = read(tiny.folder(kind))
    theirs, _ = hugging_face(kind, tiny.folder(kind))
    source, label = ours.encode_source(["Abc"], TO_ENGLISH)[0], ours.encode_target(["Abc"], TO_ENGLISH)[0]
    if first_source and first_label:
        assert theirs.convert_ids_to_tokens([source[0], label[0]]) == [first_source, first_label]
    assert theirs.convert_ids_to_tokens(source[-1]) == last_source
    assert theirs.convert_ids_to_tokens(label[-1]) == "</s>"
    assert theirs.convert_ids_to_tokens(ours.prefix(TO_ENGLISH)) == prefix
    with pytest.raises(EngineError, match=r"does not know the language tlh; it knows .*"):
        ours.prefix(Direction("de", "tlh"))
    with pytest.raises(EngineError, match=r"does not know the language tlh"):
        ours.encode_source(["Abc"], Direction("tlh", "en"))


def test_legacy_nllb_marks_the_source_behind(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.folder("nllb"), tmp_path / "nllb")
    before = read(folder).encode_source(["Abc"], TO_ENGLISH)[0]
    settings_ = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_ | {"legacy_behaviour": True}))
    assert read(folder).encode_source(["Abc"], TO_ENGLISH)[0] == [*before[1:], before[0]]


def test_an_engines_own_task_prefix_wins_over_t5s(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.folder("t5"), tmp_path / "t5")
    plain = read(folder)
    config = json.loads((folder / "config.json").read_text())
    config["task_specific_params"] = {"translation_de_to_en": {"prefix": "abc: "}}
    (folder / "config.json").write_text(json.dumps(config))
    own = read(folder)
    assert own.encode_source(["dich"], TO_ENGLISH) == own.encode_target(["abc: dich"], TO_ENGLISH)
    assert own.encode_source(["dich"], Direction("en", "de")) == plain.encode_source(["dich"], Direction("en", "de"))


def test_a_language_that_someone_added_is_known(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.folder("nllb"), tmp_path / "nllb")
    tokenizer = NllbTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["hsb_Latn"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    assert read(folder).prefix(Direction("de", "hsb"))[1] == len(tokenizer) - 1


@pytest.mark.parametrize("kind", ["opus", "mbart50", "m2m100", "nllb", "t5", "mt5"])
def test_marks_in_a_sentence_are_text(kind: str) -> None:
    ours = read(tiny.folder(kind))
    plain, marked = ours.encode_target(["abc", "abc </s> <pad> <s> <mask> de_DE __de__ deu_Latn"], TO_ENGLISH)
    marks = {ours.pad, ours.eos, *ours.prefix(TO_ENGLISH), *ours.prefix(Direction("en", "de"))}
    assert not marks & set(marked[len(ours.prefix(TO_ENGLISH)) : -1])
    assert marked[-1] == plain[-1] == ours.eos


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_saved_and_read_it_is_the_same(kind: str, tmp_path: Path) -> None:
    ours = read(tiny.folder(kind))
    ours.save(tmp_path)
    shutil.copy(tiny.folder(kind) / "config.json", tmp_path)
    again = read(tmp_path)
    assert (again.hash, again.size, again.languages) == (ours.hash, ours.size, ours.languages)
    assert all((tiny.folder(kind) / path.name).read_bytes() == path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_nothing_in_gives_nothing_out(kind: str) -> None:
    ours = read(tiny.folder(kind))
    assert ours.encode_source([], TO_ENGLISH) == ours.encode_target([], TO_ENGLISH) == []
    assert ours.decode([]) == []
    assert ours.decode([[], [ours.eos, ours.pad]]) == ["", ""]


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("opus", "vocab.json", None, "a Marian vocabulary needs vocab.json"),
        ("opus", "source.spm", b"not a model", "the vocabulary cannot be read"),
        ("opus", "vocab.json", b"{", "the vocabulary cannot be read"),
        ("opus", "vocab.json", b"[1]", "the vocabulary cannot be read"),
        ("opus", "vocab.json", b'{"a": 1}', "the vocabulary cannot be read"),
        ("nllb", "tokenizer.json", b"{}", "the vocabulary cannot be read"),
        ("mt5", "spiece.model", None, "it needs tokenizer.json or spiece.model"),
        ("mt5", "spiece.model", b"", "the vocabulary cannot be read"),
        ("m2m100", "vocab.json", b"[]", "the vocabulary cannot be read"),
        ("mbart50", "tokenizer_config.json", b"[]", "the vocabulary cannot be read"),
    ],
)
def test_a_broken_vocabulary_gives_one_line(
    kind: str, name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny.folder(kind), tmp_path / kind)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(EngineError, match=message) as caught:
        read(folder)
    assert str(caught.value).startswith(f"{folder}: ")
    assert "\n" not in str(caught.value)


def test_pieces_are_pieces() -> None:
    assert isinstance(read(tiny.folder("opus")), Pieces)
