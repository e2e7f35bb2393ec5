# ruff: noqa: E501 - a mistake and what is said of it stand on one line
"""Recipes in YAML: what is read, what is written, and every mistake in one line that says where, what and what else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmt import choices, reading, recipe
from fedmt.document import compose, dump
from fedmt.errors import RecipeError
from fedmt.recipe import FilePublic, FileSilo, Recipe, ToyPublic, ToySilos

COURTS = """\
name: courts
seed: 1
engine: {architecture: marian, size: small}
public: {from: de, to: en, train: news/train, dev: news/dev}
silos:
  - {name: captions, from: de, to: en, train: captions/train, test: captions/test}
  - {name: koran.v2, from: de, to: no, data: [koran.tmx, more.xlf.gz]}
merge: {kind: samples}
train: {public_epochs: 3, epochs: 1}
rounds: 5
"""


def mistakes(text: str | bytes, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        reading.parse(text, "courts.yaml", overrides)
    return caught.value.mistakes


def mistake(text: str | bytes, *overrides: str) -> str:
    found = mistakes(text, *overrides)
    assert len(found) == 1, found
    return found[0]


def changed(old: str, new: str) -> str:
    assert COURTS.count(old) == 1
    return COURTS.replace(old, new)


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_recipe_of_the_design_is_read() -> None:
    found = reading.parse(COURTS, "courts.yaml")
    assert found.name == "courts"
    assert isinstance(found.public, FilePublic)
    assert found.public.train == ["news/train"]
    assert isinstance(found.silos, list)
    assert [(silo.name, silo.from_, silo.to) for silo in found.silos] == [
        ("captions", "de", "en"),
        ("koran.v2", "de", "no"),
    ]
    assert found.silos[1].data == ["koran.tmx", "more.xlf.gz"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e-3", 0.001),
        ("1.e3", 1000.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("-3", -3),
        ("true", True),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        (".inf", float("inf")),
        ("1.2.3", "1.2.3"),
        ("e3", "e3"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = compose(f"key: {text}", "x").value
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_keys_are_the_words_they_are_written_as() -> None:
    assert compose("no: 1\non: 2\n1e-3: 3\nnull: 4\n", "x").value == {"no": 1, "on": 2, "1e-3": 3, "null": 4}


def test_norwegian_is_a_language_on_either_side() -> None:
    found = reading.parse("silos: [{name: a, from: no, to: de, data: x}]\npublic: {from: de, to: no, data: y}", "x")
    assert isinstance(found.silos, list)
    assert found.silos[0].from_ == "no"
    assert isinstance(found.public, FilePublic)
    assert found.public.to == "no"


def test_anchors_and_merges_are_read_and_keep_their_own_lines() -> None:
    text = "base: &base {from: de, to: en}\nsilo:\n  <<: *base\n  to: fr\n"
    document = compose(text, "x")
    assert document.value["silo"] == {"from": "de", "to": "fr"}
    assert document.place(("silo", "to")) == "x:4"
    assert document.place(("silo", "from")) == "x:1"


def test_a_merge_gives_way_and_the_first_of_several_wins() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: &d {<<: *a, z: 4}\ne: {<<: *d}\n"
    found = compose(text, "x").value
    assert found["c"] == {"x": 3, "y": 1, "z": 2}
    assert found["e"] == {"z": 4, "x": 1, "y": 1}


def test_every_value_has_the_line_it_stands_on() -> None:
    document = compose(COURTS, "courts.yaml")
    assert document.place(("seed",)) == "courts.yaml:2"
    assert document.place(("silos", 1, "data", 0)) == "courts.yaml:7"
    assert document.place(("silos", 1, "nothing", "here")) == "courts.yaml:7"


def test_utf_16_and_a_byte_order_mark_are_read() -> None:
    plain = reading.parse(COURTS, "x")
    assert reading.parse(COURTS.encode("utf-16"), "x") == plain
    assert reading.parse(b"\xef\xbb\xbf" + COURTS.encode(), "x") == plain


def test_paths_are_absolute_from_the_recipes_folder(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        COURTS.replace("[koran.tmx, more.xlf.gz]", "[../koran.tmx, 'tsv:dump.txt', 'opus:Books-v1']")
    )
    found = reading.read(tmp_path / "r.yaml")
    assert isinstance(found.public, FilePublic)
    assert found.public.train == [str(tmp_path.resolve() / "news/train")]
    assert isinstance(found.silos, list)
    home = tmp_path.resolve()
    assert found.silos[1].data == [f"{home.parent}/koran.tmx", f"tsv:{home}/dump.txt", "opus:Books-v1"]


def test_a_pretrained_folder_beside_the_recipe_is_found_and_a_hub_name_stays(tmp_path: Path) -> None:
    (tmp_path / "engines/mine").mkdir(parents=True)
    (tmp_path / "r.yaml").write_text("silos: {source: toy}\nengine: {pretrained: engines/mine}")
    local = reading.read(tmp_path / "r.yaml").engine
    assert local == recipe.Pretrained(pretrained=str(tmp_path.resolve() / "engines/mine"))
    hub = reading.read(tmp_path / "r.yaml", ["engine.pretrained=facebook/nllb"]).engine
    assert hub == recipe.Pretrained(pretrained="facebook/nllb")


def test_a_runs_folder_is_read_by_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("silos: {source: toy}\n")
    assert reading.read(tmp_path) == Recipe(silos=ToySilos(source="toy"))


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["demo", "toy", "courts"])
def test_what_is_written_reads_back_the_same(name: str) -> None:
    from fedmt.cli.recipe import packaged

    found = reading.read(packaged()[name])
    assert reading.parse(reading.write(found), "again") == found


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
numbers = st.floats(min_value=1e-12, max_value=1e12, allow_nan=False)
files = st.lists(st.text(min_size=1).map(str.strip).filter(bool), min_size=1, max_size=3)
recipes = st.builds(
    Recipe,
    name=names,
    seed=st.integers(0, 2**32 - 1),
    public=st.builds(ToyPublic, source=st.just("toy"), pairs=st.integers(10, 10**6)),
    silos=st.one_of(
        st.builds(ToySilos, source=st.just("toy"), silos=st.integers(1, 64)),
        st.lists(
            st.tuples(names, st.sampled_from(["no", "de", "on", "zh_Hans"]), files).map(
                lambda one: FileSilo.model_validate({"name": one[0], "from": one[1], "to": "yes", "data": one[2]})
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda silo: silo.name,
        ),
    ),
    train=st.builds(recipe.Train, peak=st.none() | numbers, clip=st.none() | numbers),
    compute=st.builds(recipe.Compute, threads=st.just("auto") | st.integers(1, 64)),
)


@given(recipes)
def test_any_recipe_reads_back_the_same(value: Recipe) -> None:
    assert reading.parse(reading.write(value), "again") == value


@given(st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none())
def test_any_scalar_reads_back_the_same(value: object) -> None:
    found = compose(dump({"key": value}), "x").value["key"]
    assert found == value
    assert type(found) is type(value)


def test_the_schema_knows_every_field() -> None:
    schema = json.loads(json.dumps(reading.schema()))
    assert schema["anyOf"] == [{"required": ["silos"]}, {"required": ["like"]}]
    assert set(schema["properties"]) == {"like", *Recipe.model_fields}
    assert "from" in schema["$defs"]["FileSilo"]["properties"]


# ── like another ────────────────────────────────────────────────────────────────────────────────────────────────────

PLAIN = """\
name: plain
engine: {architecture: marian, size: small, dropout: 0.2}
silos: {source: toy, silos: 4, families: 2}
public: {source: toy, pairs: 100}
selector: {up: {kind: metasend, send: less, theta: {kind: learned, hidden: 7}}}
merge: {kind: samples, power: 0.5}
train: {epochs: 2, batch_tokens: 500}
baselines: [alone, chained]
"""


@pytest.fixture
def like(tmp_path: Path) -> Callable[..., Recipe]:
    """A recipe like the plain one, which stands in a folder below it."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below/plain.yaml").write_text(PLAIN)

    def read(text: str, *overrides: str) -> Recipe:
        (tmp_path / "over.yaml").write_text(f"like: below/plain.yaml\n{text}\n")
        return reading.read(tmp_path / "over.yaml", overrides)

    return read


Like = Callable[..., Recipe]


def test_a_recipe_is_like_another_where_it_says_nothing(like: Like) -> None:
    assert like("") == reading.parse(PLAIN, "plain")
    assert like("rounds: 9") == reading.parse(f"{PLAIN}rounds: 9", "plain")


def test_tables_are_gone_into_and_all_else_is_replaced(like: Like) -> None:
    found = like("train: {epochs: 5}\nbaselines: [public]\nselector: {up: {theta: {hidden: 9}}}\npublic: null")
    assert (found.train.epochs, found.train.batch_tokens) == (5, 500)
    assert found.baselines == ["public"]
    assert found.public is None
    theta = choices.ThetaLearned(hidden=9)
    assert found.selector.up == choices.SelectMetaSend(kind="metasend", send="less", theta=theta)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("merge: {kind: mean}", "merge", choices.MergeMean(kind="mean")),
        ("merge: {missing: literal}", "merge", choices.MergeSamples(power=0.5, missing="literal")),
        ("selector: {up: {kind: random}}", "selector", choices.Selectors(up=choices.SelectRandom(kind="random"))),
        ("engine: {pretrained: x/y}", "engine", recipe.Pretrained(pretrained="x/y")),
        ("engine: {size: base}", "engine", recipe.Scratch(size="base", dropout=0.2)),
        ("silos: {source: pypi}", "silos", recipe.PypiSilos(source="pypi")),
    ],
)
def test_a_table_of_another_kind_replaces_the_one_below(like: Like, text: str, path: str, value: object) -> None:
    assert getattr(like(text), path) == value


def test_files_of_ones_own_replace_any_other_text(like: Like) -> None:
    files = "{from: de, to: en, data: t.tmx}"
    found = like(f"public: {files}\nsilos: [{{name: a, {files[1:]}]")
    assert isinstance(found.public, FilePublic)
    assert isinstance(found.silos, list)


def test_paths_are_relative_to_the_file_that_they_stand_in(tmp_path: Path) -> None:
    below = tmp_path / "below"
    (below / "engine").mkdir(parents=True)
    (below / "base.yaml").write_text(
        "engine: {pretrained: engine}\npublic: {from: de, to: en, train: [a.tmx, opus:X, tsv:b.txt]}\n"
        "silos: {source: files, list: [{name: a, from: de, to: en, data: c.tmx}]}"
    )
    (tmp_path / "over.yaml").write_text("like: below/base.yaml\npublic: {dev: d.tmx}")
    found = reading.read(tmp_path / "over.yaml")
    assert isinstance(found.public, FilePublic)
    assert found.public.train == [f"{below}/a.tmx", "opus:X", f"tsv:{below}/b.txt"]
    assert found.public.dev == [f"{tmp_path}/d.tmx"]
    assert [silo.data for silo in recipe.listed(found.silos) or ()] == [[f"{below}/c.tmx"]]
    assert found.engine == recipe.Pretrained(pretrained=f"{below}/engine")


def test_a_recipe_is_like_one_that_is_like_a_third_or_comes_along(tmp_path: Path, like: Like) -> None:
    like("rounds: 9")
    (tmp_path / "top.yaml").write_text("like: over.yaml\nseed: 7")
    found = reading.read(tmp_path / "top.yaml")
    assert (found.seed, found.rounds, found.train.epochs) == (7, 9, 2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/recipe.yaml").write_text(reading.write(found))
    assert reading.parse("like: toy\nrounds: 1", "text").name == "toy"
    (tmp_path / "again.yaml").write_text("like: run\n")
    assert reading.read(tmp_path / "again.yaml") == found


def test_what_is_written_has_no_like(like: Like) -> None:
    found = like("rounds: 9")
    assert "like" not in reading.write(found)
    assert reading.parse(reading.write(found), "again") == found


def test_the_command_line_is_laid_over_all(like: Like) -> None:
    found = like("merge: {rate: 0.5}", "merge.power=2", "silos.silos=3")
    assert found.merge == choices.MergeSamples(power=2, rate=0.5)
    assert isinstance(found.silos, ToySilos)
    assert (found.silos.silos, found.silos.families) == (3, 2)


def test_a_mistake_is_told_where_it_stands(tmp_path: Path, like: Like) -> None:
    plain = tmp_path / "below/plain.yaml"
    plain.write_text(PLAIN.replace("epochs: 2", "epochs: two").replace("families: 2", "families: 99"))
    with pytest.raises(RecipeError) as caught:
        like("\ntrain: {clip: -1, peka: 2}\nsilos: {silos: 1}", "rounds=x")
    places = {text.removeprefix(f"{tmp_path}/").partition(": ")[::2] for text in caught.value.mistakes}
    assert {(place, text.partition(": ")[0]) for place, text in places} == {
        ("over.yaml:3", "train.peka"),
        ("over.yaml:3", "train.clip"),
        ("below/plain.yaml:3", "silos.families"),
        ("below/plain.yaml:7", "train.epochs"),
        ("command line", "rounds"),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("like: gone.yaml", "over.yaml:1: like: there is no 'gone.yaml'; allowed: a file"),
        ("rounds: 1\nlike: tuy", "over.yaml:2: like: there is no 'tuy'; did you mean `toy`? allowed: a file"),
        ("like: over.yaml", "over.yaml:1: like: 'over.yaml' is like this one in turn"),
        ("like: mutual.yaml", "mutual.yaml:1: like: 'over.yaml' is like this one in turn"),
        ("like: [toy]", "over.yaml:1: like: is no recipe's name"),
        ("like:", "over.yaml:1: like: is no recipe's name"),
        ("like: empty.yaml", "over.yaml:1: like: 'empty.yaml' holds no recipe"),
    ],
)
def test_what_a_recipe_cannot_be_like(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "over.yaml").write_text(text)
    (tmp_path / "mutual.yaml").write_text("like: over.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(RecipeError) as caught:
        reading.read(tmp_path / "over.yaml")
    assert len(caught.value.mistakes) == 1
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(said)


def test_like_stands_in_a_file_and_not_on_the_command_line() -> None:
    assert mistake(COURTS, "like=toy").startswith("command line: like: stands at the top of a recipe's file")


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────


def test_overrides_reach_every_kind_of_place() -> None:
    found = reading.parse(
        COURTS,
        "x",
        [
            "rounds=7",
            "train.peak=1e-3",
            "silos.captions.to=no",
            "silos.koran.v2.data=[a.tmx, b.tmx]",
            "silos.0.name=titles",
            "selector.up.kind=random",
            "selector.up.share=0.25",
            "score={every: 2}",
            "name='1:30'",
        ][:-1],
    )
    assert found.rounds == 7
    assert found.train.peak == 0.001
    assert found.train.public_epochs == 3
    assert isinstance(found.silos, list)
    assert (found.silos[0].name, found.silos[0].to) == ("titles", "no")
    assert found.silos[1].data == ["a.tmx", "b.tmx"]
    assert found.selector.up == choices.SelectRandom(kind="random", share=0.25)
    assert found.score.every == 2


def test_an_override_may_hold_an_equals_sign_and_may_empty_a_field() -> None:
    found = reading.parse(COURTS, "x", ["silos.captions.train=a=b", "train.clip="])
    assert isinstance(found.silos, list)
    assert found.silos[0].train == ["a=b"]
    assert found.train.clip is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rounds", "command line: 'rounds' is not of the form key.path=value"),
        ("=3", "command line: '=3' is not of the form key.path=value"),
        ("a..b=3", "command line: 'a..b=3' is not of the form key.path=value"),
        ("rounds=[1", "command line: rounds: '[1' is not a YAML value"),
        ("trian.epochs=3", "command line: trian: is not known here; did you mean `train`?"),
        ("train.epoch=3", "command line: train.epoch: is not known here; did you mean `epochs`?"),
        ("rounds=3x", "command line: rounds: '3x' is not a whole number; allowed: a whole number ≥ 0"),
        ("silos.captoins.to=en", "command line: silos.captoins: there is none; allowed: captions, koran.v2, 0 to 1"),
        ("silos.2.to=en", "command line: silos.2: there is none"),
        ("name.first=x", "command line: name.first: name is 'courts', which holds no first"),
        ("public=", "command line: public: an engine from scratch learns its vocabulary from public text"),
    ],
)
def test_a_mistake_on_the_command_line_is_placed_there(override: str, said: str) -> None:
    assert mistake(COURTS, override).startswith(said)


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = "a name of letters, digits, `.`, `_` and `-`, 64 at most, that begins with a letter or a digit"

MISTAKES = [
    ("rounds: 5", "rounds: 3x", ":10: rounds: '3x' is not a whole number; allowed: a whole number ≥ 0"),
    ("rounds: 5", "rounds: 2.5", ":10: rounds: 2.5 is not a whole number; allowed: a whole number ≥ 0"),
    ("rounds: 5", "rounds: -1", ":10: rounds: -1 is too small; allowed: a whole number ≥ 0"),
    ("rounds: 5", "rounds: true", ":10: rounds: true is not a whole number; allowed: a whole number ≥ 0"),
    ("rounds: 5", "rounds:", ":10: rounds: is empty; allowed: a whole number ≥ 0"),
    ("rounds: 5", "rounds: [5]", ":10: rounds: a list is not a whole number; allowed: a whole number ≥ 0"),
    ("seed: 1", "seed: 4294967296", ":2: seed: 4294967296 is too large; allowed: a whole number ≥ 0 and < 4294967296"),
    ("epochs: 1", "clip: .nan", ":9: train.clip: nan is not a finite number; allowed: a number > 0, or null"),
    ("small", "smal", ":3: engine.size: 'smal' is not known; did you mean `small`? allowed: toy, small, base"),
    ("samples", "sample", ":8: merge.kind: 'sample' is not known; did you mean `samples`? allowed: samples, mean, bounded, trimmed, median"),
    ("{kind: samples}", "mean", ":8: merge: 'mean' is not a mapping; did you mean {kind: mean}? allowed: {kind: samples}, or {kind: mean}, or {kind: bounded, norm}, or {kind: trimmed}, or {kind: median}"),
    ("{kind: samples}", "{}", ":8: merge.kind: is missing; allowed: samples, mean, bounded, trimmed, median"),
    ("{kind: samples}", "", ":8: merge: is empty; allowed: {kind: samples}, or {kind: mean}, or {kind: bounded, norm}, or {kind: trimmed}, or {kind: median}"),
    ("name: courts", "name: my courts", f":1: name: 'my courts' is not a name; allowed: {NAMES}"),
    ("name: courts", "name: 2024", f":1: name: 2024 is not a name; write it in quotes; allowed: {NAMES}"),
    ("to: no", "to: norsk", ":7: silos.koran.v2.to: 'norsk' is not a language code; allowed: a language code, like de, pt-BR or zh_Hans"),
    ("to: no", "to: de", ":7: silos.koran.v2: translates de into itself"),
    ("to: no", "too: no", ":7: silos.koran.v2.too: is not known here; did you mean `to`? allowed: from, to, data, train, dev, test, name"),
    ("to: no, ", "", ":7: silos.koran.v2.to: is missing; allowed: a language code, like de, pt-BR or zh_Hans"),
    ("[koran.tmx, more.xlf.gz]", "[]", ":7: silos.koran.v2.data: is empty; allowed: a file, or a list of files, or null"),
    ("[koran.tmx, more.xlf.gz]", "[a, 3]", ":7: silos.koran.v2.data.1: 3 is not text; write it in quotes; allowed: text"),
    (", data: [koran.tmx, more.xlf.gz]", "", ":7: silos.koran.v2: needs `data` (split by hash) or `train`"),
    ("name: koran.v2", "name: captions", ":5: silos: the name captions stands twice"),
    ("name: koran.v2", "name: combined", ":5: silos: the name combined is fedmt's own, as are public, combined, macro; choose another"),
    ("{architecture: marian, size: small}", "small", ":3: engine: 'small' is not a mapping; allowed: {architecture, size, vocabulary, dropout}, or {pretrained, revision}"),
    ("{architecture: marian, size: small}", "{pretraind: x}", ":3: engine.pretraind: is not known here; did you mean `pretrained`? allowed: pretrained, revision"),
    ("size: small", "size:small", ":3: engine.size:small: is not known here; did you mean `size: small`, with a space? allowed: architecture, size, vocabulary, dropout"),
    ("rounds: 5", "compute: {threads: many}", ":10: compute.threads: 'many' is not a whole number; allowed: a whole number ≥ 1, or auto"),
    ("rounds: 5", "baselines: [alon]", ":10: baselines.0: 'alon' is not known; did you mean `alone`? allowed: public, alone, combined, chained, personal, weights, memory, ensemble, ensemble_sized"),
    ("rounds: 5", "chain: [captions]", ":10: chain: must name each silo once: captions, koran.v2"),
    ("rounds: 5", "split: {dev: 0.49, test: 0.499999999}\nscore: {against: gold}", ":11: score.against: 'gold' is not a model; allowed: public, federated, combined, alone:SILO"),
    ("rounds: 5", "score: {against: 'alone:koran'}", ":10: score.against: no silo 'koran'; did you mean `koran.v2`? allowed: captions, koran.v2"),
    ("rounds: 5", "score: {against: chained}", ":10: score.against: 'chained' needs `chained` among the baselines"),
    ("public: {from: de", "public: {source: pipy, from: de", ":4: public.source: 'pipy' is not known; allowed: pypi, toy"),
    ("rounds: 5", "rounds: 5\nrounds: 6", ":11: rounds: stands twice, first in line 10"),
    ("rounds: 5", "rounds: !!python/object:os.system x", ":10: rounds: the tag !!python/object:os.system is not known here; write the value without it"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES, ids=[new[:40] or said[:40] for _, new, said in MISTAKES])
def test_a_mistake_says_where_what_and_what_is_allowed(old: str, new: str, said: str) -> None:
    assert mistake(changed(old, new)) == f"courts.yaml{said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("silos: {name: a, from: de, to: en, data: x}", "courts.yaml:1: silos: must be a list, each begun with `-`"),
        ("silos: {preset: german-english-8}", "courts.yaml:1: silos.source: is missing; allowed: pypi, toy"),
        ("silos: {source: toy, limit: 3}", "courts.yaml:1: silos.limit: is not known here; allowed: source, silos, pairs"),
        ("silos: {source: pypi, preset: german}", "courts.yaml:1: silos.preset: 'german' is not known"),
        ("silos: []\npublic: {source: toy}", "courts.yaml:1: silos: is empty; allowed: one silo or more"),
        ("silos: [x]\npublic: {source: toy}", "courts.yaml:1: silos.0: 'x' is not a mapping; allowed: {from, to, data, train, dev, test, name}"),
        ("rounds: 3", "courts.yaml:1: silos: is missing; allowed: {source: pypi, preset, names, limit, "),
        ("- silos", "courts.yaml:1: is not a recipe; a recipe is a mapping of `key: value`"),
        ("", "courts.yaml: is empty; a recipe has at least `silos`"),
        ("# nothing\n", "courts.yaml: is empty; a recipe has at least `silos`"),
        ("epochs: 3\nsilos: {source: toy}", "courts.yaml:1: epochs: is not known here; did you mean `train.epochs`?"),
        ("train: {rounds: 3}\nsilos: {source: toy}", "courts.yaml:1: train.rounds: is not known here; did you mean `rounds` at the top of the recipe?"),
    ],
)  # fmt: skip
def test_the_silos_that_were_meant_are_the_ones_spoken_of(text: str, said: str) -> None:
    assert mistake(text).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2", "courts.yaml:2:2: is not YAML: expected ',' or ']', but got ':'"),
        ("a:\n\t- b", "courts.yaml:2:1: is not YAML: a tab; indent by spaces"),
        ("a: b: c", "courts.yaml:1:5: is not YAML: a `:` where none can stand; text that holds one needs quotes"),
        ("a: 'b", "courts.yaml:1:6: is not YAML: found unexpected end of stream"),
        ("a: *b", "courts.yaml:1:4: is not YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 1", "courts.yaml:2:1: a second document begins here; a recipe is one"),
        ("a: \x00", "courts.yaml:1:4: is not YAML: the character U+0000"),
        (b"a: 1\nb: \xff", "courts.yaml:2: is not text in UTF-8"),
        ("? [a]\n: b", "courts.yaml:1: a key must be a word"),
        ("a: !!int x", "courts.yaml:1: a: 'x' is not what its tag !!int says"),
        ("a: &a [*a]", "courts.yaml:1: a.0: an alias that holds itself"),
        ("[" * 5000, "courts.yaml: is nested too deep; at most 40 levels"),
        ("[" * 50 + "]" * 50, "courts.yaml:1: is nested too deep; at most 40 levels"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text: str | bytes, said: str) -> None:
    assert mistake(text).startswith(said)


def test_aliases_do_not_grow_without_bound() -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    text = "\n".join(["a0: &a0 [x]", *levels])
    assert mistake(text) == "courts.yaml:1: its aliases grow to more than 100000 values"


def test_a_corpus_given_for_a_recipe_is_not_read_whole() -> None:
    assert mistake("x" * 2_000_000) == "courts.yaml: is too large for a recipe, which has at most 1 MB"


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = changed("size: small", "size: smal").replace("to: no", "to: norsk").replace("rounds: 5", "rounds: x")
    text = text.replace("name: captions", "name: koran.v2") + "chain: [a]\nsplit: {dev: 0.4, most_dev: 0}\n"
    places = [re.match(r"courts.yaml:(\d+): ([\w.]+): ", one) for one in mistakes(text, "train.epochs=-1")[:-1]]
    assert [(int(found[1]), found[2]) for found in places if found] == [
        (3, "engine.size"),
        (5, "silos"),
        (7, "silos.koran.v2.to"),
        (10, "rounds"),
        (11, "chain"),
        (12, "split.most_dev"),
    ]
    assert mistakes(text, "train.epochs=-1")[-1].startswith("command line: train.epochs: -1 is too small")


def test_a_field_that_failed_by_itself_is_not_blamed_again() -> None:
    assert len(mistakes(changed("public: {from: de, to: en, train: news/train, dev: news/dev}", "public: 3"))) == 1
    assert len(mistakes(changed("data: [koran.tmx, more.xlf.gz]", "data: 3"))) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*Recipe.model_fields, "kind", "source", "from", "up", "x"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_no_words_of_the_machinery_reach_a_person(value: Any) -> None:
    text = dump(value if isinstance(value, dict) else {"silos": value})
    try:
        reading.parse(text, "courts.yaml")
    except RecipeError as error:
        for one in error.mistakes:
            assert re.match(r"courts\.yaml(:\d+)?: ", one)
            assert not re.search(
                r"Input should|function-|tagged-union|pydantic|Value error|validation|NoneType|\bstr\b", one
            )


def test_what_others_find_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(COURTS)
    with pytest.raises(RecipeError) as caught:
        reading.read(tmp_path / "r.yaml", (), lambda _: [(("silos", 1, "data"), "no such file")])
    assert caught.value.mistakes == [f"{tmp_path}/r.yaml:7: silos.koran.v2.data: no such file"]


@pytest.mark.parametrize("name", ["nothing.yaml", "."])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=r"cannot be read: No such file"):
        reading.read(tmp_path / name)
