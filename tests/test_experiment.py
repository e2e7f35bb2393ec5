"""Whole runs: what is in the folder, what equals what, and that every word of a recipe is heard."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import BaseModel
from transformers import MarianMTModel

import fedmt
from fedmt import choices, experiment, reading, recipe
from fedmt.corpus import writer
from fedmt.corpus.pairs import Direction, Pair
from fedmt.corpus.silos import gather
from fedmt.engine import engine as engines
from fedmt.engine.decoder import translate
from fedmt.engine.device import Machine
from fedmt.errors import CorpusError, QuorumError, RecipeError, RunError
from fedmt.events import Dropped, Note, Phase, Scored, Trained, Travelled
from fedmt.learner import SiloLearner
from fedmt.report.folder import RunFolder
from tests.engine import tiny
from tests.small import Done, files, sentences, small

MACHINE = Machine(torch.device("cpu"), "fp32", 1)
ALL = ["public", "alone", "combined", "chained", "personal"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Every baseline, and scores on dev after every round."""
    return Done(tmp_path_factory.mktemp("runs") / "whole", baselines=ALL, score={"every": 1})


# ── the run folder ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_folder_holds_what_the_design_says(whole: Done) -> None:
    found = {path.name for path in whole.house.path.iterdir()}
    assert found == {
        "recipe.yaml", "run.json", "metrics.jsonl", "ledger.jsonl", "scores.json", "resamples.safetensors",
        "checkpoints", "silos", "engine", "hypotheses", "report.html", "README.md",
    }  # fmt: skip
    assert not list(whole.house.path.rglob("*.part"))
    assert RunFolder.open(whole.house.path, scored=True) == whole.house


def test_the_recipe_reads_back(whole: Done) -> None:
    assert reading.read(whole.house.path) == whole.recipe


def test_what_was_told_stands_in_the_metrics(whole: Done) -> None:
    lines = [json.loads(line) for line in whole.house.metrics.read_text().splitlines()]
    assert len(lines) == len(whole.events)
    assert [line["event"] for line in lines] == [type(event).__name__.lower() for event in whole.events]


def test_the_bytes_of_the_scores_are_those_of_the_ledger(whole: Done) -> None:
    lines = [json.loads(line) for line in whole.house.ledger.read_text().splitlines()]
    scores = json.loads(whole.house.scores.read_text())
    for direction in ("up", "down"):
        trained = [line["bytes"] for line in lines if line["step"] == "fit" and line["direction"] == direction]
        assert len(trained) == 2 * 2
        assert scores["bytes"][direction] == sum(trained)
    told = [event for event in whole.of(Travelled) if event.step == "fit"]
    assert sum(event.up_bytes for event in told) == scores["bytes"]["up"]
    assert sum(event.down_bytes for event in told) == scores["bytes"]["down"]
    # What stays in one place is no traffic.
    assert {line["model"] for line in lines} == {"public", "federated"}
    parameters = sum(tensor.numel() for tensor in engines.load(whole.house.engine).tensors().values())
    assert all(line["bytes"] > 4 * parameters == 4 * line["parameters"] for line in lines if line["step"] == "fit")


def test_the_scores_are_a_stable_format(whole: Done) -> None:
    scores = json.loads(whole.house.scores.read_text())
    assert scores["schema"] == 1
    assert scores["seconds"] > 0
    test = {text.name: len(text.test) for text in gather(whole.recipe).silos}
    models = ["public", "federated", "combined", "chained"]
    models += [f"{kind}:{silo}" for kind in ("alone", "personal") for silo in test]
    rows = {(row["model"], row["silo"]): row for row in scores["rows"]}
    assert rows.keys() == {(model, silo) for model in models for silo in test}
    for (model, silo), row in rows.items():
        assert (row["n"], row["direction"]) == (test[silo], "qaa-qtz")
        assert 0 <= row["bleu"] <= 100
        assert 0 <= row["chrf"] <= 100
        assert row["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
        # Edits are counted where a model is at home: elsewhere they would take longer than the translating.
        assert (row["ter"] is None) == (model.partition(":")[2] not in ("", silo))
    finals = {(event.model, event.silo): event.bleu for event in whole.of(Scored) if event.round is None}
    assert finals == {key: pytest.approx(row["bleu"]) for key, row in rows.items()}


def test_the_hypotheses_stand_beside_their_references(whole: Done) -> None:
    for text in gather(whole.recipe).silos:
        assert whole.house.read_lines("source", text.name) == [pair.source for pair in text.test]
        assert whole.house.read_lines("reference", text.name) == [pair.target for pair in text.test]
    made = engines.load(whole.house.engine)
    for text in gather(whole.recipe).silos:
        sources = [pair.source for pair in text.test]
        again = translate(made, sources, text.direction, whole.recipe.decode, MACHINE)
        assert whole.house.read_lines("federated", text.name) == again


def test_the_engine_is_the_federated_one_and_says_where_it_is_from(whole: Done) -> None:
    made = engines.load(whole.house.engine)
    assert {name: tensor.numpy().tobytes() for name, tensor in sorted(made.tensors().items())} == whole.bits()
    assert made.about.directions == (Direction("qaa", "qtz"),)
    assert made.about.recipe == "small"
    assert made.about.origin == "marian toy of random weights, trained by fedmt"


def test_every_stretch_is_announced_and_none_is_missing(whole: Done) -> None:
    phases = whole.of(Phase)
    assert [phase.part for phase in phases] == list(range(1, len(phases) + 1))
    assert {phase.parts for phase in phases} == {len(phases)}
    assert [phase.model for phase in phases if phase.model] == [
        "public", "alone:toy-1", "alone:toy-2", "chained", "combined", "federated", "personal:toy-1", "personal:toy-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 0, "train": {"public_epochs": 0}},
        {"baselines": ["alone"], "silos": {"source": "toy", "silos": 3, "pairs": 40}, "rounds": 0},
    ],
)
def test_the_number_of_stretches_is_known_from_the_start(tmp_path: Path, changes: dict[str, Any]) -> None:
    done = Done(tmp_path / "run", **changes)
    assert {phase.parts for phase in done.of(Phase)} == {len(done.of(Phase))}


# ── scores on dev between rounds ────────────────────────────────────────────────────────────────────────────────────


def test_dev_scores_come_every_so_many_rounds(whole: Done, tmp_path: Path) -> None:
    told = [event for event in whole.of(Scored) if event.round is not None]
    dev = {text.name: len(text.dev) for text in gather(whole.recipe).silos}
    assert [(event.model, event.silo, event.set, event.round, event.n) for event in told] == [
        ("federated", silo, "dev", round, dev[silo]) for round in (1, 2) for silo in dev
    ]
    seldom = Done(tmp_path / "run", score={"every": 2}, rounds=3)
    assert {event.round for event in seldom.of(Scored) if event.set == "dev"} == {2}


def test_they_stand_in_the_ledger_and_not_in_the_costs_of_the_method(whole: Done, tmp_path: Path) -> None:
    never = Done(tmp_path / "run")
    steps = {(entry.step, entry.round) for entry in whole.house.entries("federated", scoring=True)}
    assert steps == {("fit", 1), ("fit", 2), ("score:dev", 1), ("score:dev", 2), ("score:test", 0)}
    assert "score:dev" not in {entry.step for entry in never.house.entries(scoring=True)}
    assert whole.house.travelled("federated") == never.house.travelled("federated")
    assert whole.bits() == never.bits(), "looking changes nothing"


def test_silos_without_dev_text_are_not_asked(tmp_path: Path) -> None:
    silos = [{"name": "clinic", **files(tmp_path, "clinic", 1)}, {"name": "court", **files(tmp_path, "court", 2)}]
    del silos[0]["dev"]
    public = files(tmp_path, "public", 3)
    done = Done(tmp_path / "run", public=public, silos=silos, score={"every": 1}, rounds=1)
    assert [event.silo for event in done.of(Scored) if event.set == "dev"] == ["court"]
    (path,) = [name for name in silos if "dev" in name]
    del path["dev"]
    done = Done(tmp_path / "none", public=public, silos=silos, score={"every": 1}, rounds=1)
    assert not [event for event in done.of(Scored) if event.set == "dev"]
    assert all(event.dev_loss is None for event in done.of(Trained) if event.model == "federated")


# ── what equals what ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("settings", [{}, {"compute": {"precision": "bf16"}, "merge": {"kind": "mean"}}])
def test_one_silo_federated_is_trained_alone_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    done = Done(
        tmp_path / "run",
        silos={"source": "toy", "silos": 1, "pairs": 60},
        baselines=["alone", "combined", "chained"],
        rounds=3,
        **settings,
    )
    federated = done.bits()
    assert federated != done.bits("public")
    for model in ("alone:toy-1", "combined", "chained-0:toy-1"):
        assert done.bits(model) == federated, model
    scores = done.house.read_scores()
    rows = [scores.row(model, "toy-1") for model in ("federated", "alone:toy-1", "combined", "chained")]
    assert len({(row.bleu, row.chrf, row.ter) for row in rows if row}) == 1
    assert None not in rows


def test_the_mean_of_equal_silos_is_their_merge_by_samples(tmp_path: Path) -> None:
    public = files(tmp_path, "public", 9)
    equal = [{"name": name, **files(tmp_path, name, seed)} for seed, name in enumerate(("clinic", "court"))]
    unequal = [equal[0], {"name": "court", **files(tmp_path, "more", 1, train=40)}]

    def engine(name: str, silos: list[dict[str, str]], kind: str) -> dict[str, bytes]:
        return Done(tmp_path / name, silos=silos, merge={"kind": kind}, public=public).bits()

    assert engine("a", equal, "mean") == engine("b", equal, "samples")
    assert engine("c", unequal, "mean") != engine("d", unequal, "samples")


def test_the_same_seed_gives_the_same_engine_and_another_does_not(whole: Done, tmp_path: Path) -> None:
    """Whatever else was trained beside it."""
    again = Done(tmp_path / "again")
    assert again.engine() == whole.engine()
    other = Done(tmp_path / "other", seed=2)
    assert other.engine() != whole.engine()


def test_a_fresh_optimiser_is_not_a_kept_one(whole: Done, tmp_path: Path) -> None:
    fresh = Done(tmp_path / "fresh", train={"optimizer": "fresh"})
    assert fresh.bits() != whole.bits()
    # In the first round there is nothing to keep.
    first = [[event.train_loss for event in done.of(Trained) if (event.model, event.round) == ("federated", 1)]
             for done in (fresh, whole)]  # fmt: skip
    assert first[0] == first[1]


def test_the_baselines_begin_where_the_federation_does(whole: Done) -> None:
    """Their first dev losses are those of the engine that was trained on public text."""
    begun = {
        (event.model, event.who): event.dev_loss
        for event in whole.of(Trained)
        if event.round == 1 and event.model != "public"
    }
    for silo in ("toy-1", "toy-2"):
        assert begun[f"alone:{silo}", silo] == begun["federated", silo]
    # The first of the chain is the largest; the second begins where it ended.
    assert begun["chained-0:toy-2", "toy-2"] == begun["alone:toy-2", "toy-2"]
    assert begun["chained-1:toy-1", "toy-1"] != begun["alone:toy-1", "toy-1"]
    assert begun["personal:toy-1", "toy-1"] != begun["federated", "toy-1"]


def test_alone_is_trained_as_long_as_federated(whole: Done) -> None:
    def steps(model: str) -> int:
        return sum(event.steps for event in whole.of(Trained) if event.model == model)

    assert steps("alone:toy-1") + steps("alone:toy-2") == steps("federated")
    assert steps("personal:toy-1") == steps("alone:toy-1") / 2


def test_fp16_halves_what_travels_and_nothing_else(whole: Done, tmp_path: Path) -> None:
    half = Done(tmp_path / "half", codec={"kind": "fp16"}, baselines=["alone"])
    for model in ("federated",):
        wide, narrow = whole.house.travelled(model), half.house.travelled(model)
        for direction in ("up", "down"):
            # But for the headers of four messages, which name every tensor.
            assert getattr(wide, f"{direction}_bytes") / 2 < getattr(narrow, f"{direction}_bytes")
            assert getattr(narrow, f"{direction}_bytes") < getattr(wide, f"{direction}_bytes") / 2 + 4 * 8000
        assert wide.up_parameters == narrow.up_parameters
    assert half.bits("alone:toy-1") == whole.bits("alone:toy-1"), "what stays in one place is not rounded"
    assert half.bits() != whole.bits()


def test_a_random_half_of_the_tensors_is_half_of_the_bytes(whole: Done, tmp_path: Path) -> None:
    some = Done(tmp_path / "some", selector={"up": {"kind": "random", "share": 0.5}})
    share = some.house.travelled("federated").up_bytes / whole.house.travelled("federated").up_bytes
    assert 0.35 < share < 0.65
    assert some.house.travelled("federated").down_bytes == whole.house.travelled("federated").down_bytes


def test_an_own_order_of_the_chain_is_kept(whole: Done, tmp_path: Path) -> None:
    def order(done: Done) -> list[str]:
        return list(dict.fromkeys(event.model for event in done.of(Trained) if event.model.startswith("chained")))

    given = Done(tmp_path / "run", baselines=["chained"], chain=["toy-1", "toy-2"])
    assert order(given) == ["chained-0:toy-1", "chained-1:toy-2"]
    assert order(whole) == ["chained-0:toy-2", "chained-1:toy-1"], "the largest first"
    assert given.house.read_scores().models == ["chained", "federated"]


def test_without_cross_scores_each_own_model_is_scored_at_home(tmp_path: Path) -> None:
    done = Done(tmp_path / "run", baselines=["alone", "personal"], score={"cross": False})
    rows = [(row.model, row.silo) for row in done.house.read_scores().rows]
    assert rows == [
        ("alone:toy-1", "toy-1"), ("alone:toy-2", "toy-2"), ("federated", "toy-1"), ("federated", "toy-2"),
        ("personal:toy-1", "toy-1"), ("personal:toy-2", "toy-2"),
    ]  # fmt: skip


def test_no_rounds_leave_the_public_engine(tmp_path: Path) -> None:
    done = Done(tmp_path / "run", rounds=0, baselines=["public", "alone", "personal"])
    public = done.bits("public")
    made = engines.load(done.house.engine)
    assert {name: tensor.numpy().tobytes() for name, tensor in sorted(made.tensors().items())} == public
    assert {event.model for event in done.of(Trained)} == {"public", "personal:toy-1", "personal:toy-2"}
    assert json.loads(done.house.scores.read_text())["bytes"] == {"up": 0, "down": 0}
    scores = done.house.read_scores()
    for silo in ("toy-1", "toy-2"):
        bleu = {model: row.chrf for model in ("public", "federated", "alone") if (row := scores.row(model, silo))}
        assert len(set(bleu.values())) == 1


def test_a_federation_from_random_weights(tmp_path: Path) -> None:
    done = Done(tmp_path / "run", train={"public_epochs": 0}, rounds=1, baselines=["public"])
    assert {event.model for event in done.of(Trained)} == {"federated"}
    assert done.bits() != {}


# ── files, and engines that others trained ──────────────────────────────────────────────────────────────────────────


def write(path: Path, found: list[tuple[str, str]], format: str) -> str:
    writer.write(path, [Pair(*pair) for pair in found], Direction("de", "en"), format)
    return str(path)


def test_a_run_over_files_with_sets_of_its_own(tmp_path: Path) -> None:
    """Moses, TMX and gzip; explicit dev and test sets, and one silo that is split by hash."""
    clinic = {
        key: write(tmp_path / f"clinic-{key}", sentences(count, seed), "moses")
        for seed, (key, count) in enumerate({"train": 30, "dev": 5, "test": 7}.items())
    }
    court = write(tmp_path / "court.tmx.gz", sentences(60, 7), "tmx")
    silos = [
        {"name": "clinic", "from": "de", "to": "en", **clinic},
        {"name": "court", "from": "de", "to": "en", "data": court},
    ]
    public = files(tmp_path, "public", 5)
    with Path(public["train"]).open("a") as file:
        file.write("kopiert\tkopiert\n")
    done = Done(tmp_path / "run", public=public, silos=silos)
    assert done.house.read_lines("source", "clinic") == [source for source, _ in sentences(7, 2)]
    about = done.house.read_about()
    assert about is not None
    sizes = {facts.name: (facts.train, facts.dev, facts.test) for facts in about.silos}
    assert sizes["clinic"] == (30, 5, 7)
    assert sum(sizes["court"]) == 60
    assert min(sizes["court"]) > 0
    assert about.public is not None
    assert (about.public.train, about.public.dropped) == (24, {"copies": 1})
    assert {row.silo: row.n for row in done.house.read_scores().rows} == {"clinic": 7, "court": sizes["court"][2]}


@pytest.mark.parametrize("kind", ["opus", "mbart50", "t5"])
def test_a_pretrained_engine_needs_no_public_text(tmp_path: Path, kind: str) -> None:
    folder = shutil.copytree(tiny.folder(kind), tmp_path / kind)
    silos = [{"name": name, **files(tmp_path, name, seed)} for seed, name in enumerate(("clinic", "court"))]
    done = Done(
        tmp_path / "run",
        engine={"pretrained": str(folder)},
        public=None,
        silos=silos,
        baselines=["public", "alone"],
        train={"peak": 1e-3},
    )
    begun = engines.load(folder)
    before = {name: tensor.numpy().tobytes() for name, tensor in sorted(begun.tensors().items())}
    made = engines.load(done.house.engine)
    after = {name: tensor.numpy().tobytes() for name, tensor in sorted(made.tensors().items())}
    assert after == done.bits()
    assert all(after[name] != before[name] for name in before), "the whole engine is trained"
    assert made.vocabulary.hash == begun.vocabulary.hash
    assert made.about.directions == (Direction("de", "en"),)
    assert "public" not in {event.model for event in done.of(Trained)}
    # It is scored as it came.
    hypotheses = done.house.read_lines("public", "clinic")
    assert hypotheses == translate(
        begun, [source for source, _ in sentences(8, 2)], Direction("de", "en"), done.recipe.decode, MACHINE
    )


def test_a_pretrained_engine_may_be_trained_on_public_text_first(tmp_path: Path) -> None:
    silos = [{"name": "clinic", **files(tmp_path, "clinic", 1)}]
    public = files(tmp_path, "public", 2)
    done = Done(tmp_path / "run", engine={"pretrained": str(tiny.folder("opus"))}, public=public, silos=silos, rounds=1)
    assert [event.model for event in done.of(Trained)] == ["public", "federated"]


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_not_written_over(whole: Done) -> None:
    before = whole.engine()
    with pytest.raises(RunError, match="holds a run already; resume it, or choose another folder"):
        experiment.run(small(seed=9), whole.house.path)
    assert whole.engine() == before


def test_a_chain_must_name_the_silos_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="chain: must name each silo once; allowed: toy-1, toy-2"):
        Done(tmp_path / "run", baselines=["chained"], chain=["toy-1", "clinic"])


def test_a_silo_named_as_we_name_our_own_is_refused() -> None:
    for name in recipe.TAKEN:
        with pytest.raises(ValueError, match=f"the name {name} is fedmt's own"):
            small(silos=[{"name": name, "from": "de", "to": "en", "data": "x.tsv"}])


def test_what_is_wrong_with_a_silo_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    """The public training may have taken hours."""
    silos = [{"name": name, **files(tmp_path, name, seed)} for seed, name in enumerate(("clinic", "court"))]
    Path(silos[1]["train"]).write_text("\t".join(2 * [" ".join(map(str, range(100)))]) + " z\n")
    told: list[object] = []
    recipe = small(public=files(tmp_path, "public", 5), silos=silos, train={"longest": 50})
    with pytest.raises(CorpusError, match=r"^court .* each of its 1 training pairs is longer"):
        experiment.run(recipe, tmp_path / "run", listen=told.append)
    assert not [event for event in told if isinstance(event, Trained)]


def test_training_that_diverges_says_what_to_lower(tmp_path: Path) -> None:
    with pytest.raises(
        QuorumError, match=r"toy-1: its training diverged; lower the highest learning rate, train\.peak"
    ):
        Done(tmp_path / "run", train={"peak": 1e30, "public_epochs": 0, "warmup": 0}, rounds=3)


def test_a_silo_that_fails_is_left_out_where_the_recipe_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = SiloLearner.fit

    def failing(self: SiloLearner, order: Any, *rest: Any) -> Any:
        if self._text.name == "toy-1" and order.model == "federated" and order.round == 1:
            raise MemoryError
        return fit(self, order, *rest)

    monkeypatch.setattr(SiloLearner, "fit", failing)
    done = Done(tmp_path / "run", failures={"quorum": 0.5})
    (dropped,) = done.of(Dropped)
    assert (dropped.model, dropped.silo, dropped.round) == ("federated", "toy-1", 1)
    assert dropped.reason == "it failed with MemoryError"
    assert [event.who for event in done.of(Trained) if event.model == "federated"] == ["toy-2", "toy-1", "toy-2"]


# ── nothing of a recipe is unheard ──────────────────────────────────────────────────────────────────────────────────


def models(kind: Any) -> Iterator[type[BaseModel]]:
    """Every table that a recipe may have."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from models(field.annotation)
    for part in get_args(kind):
        yield from models(part)


def test_every_field_of_a_recipe_is_read_somewhere() -> None:
    """As an attribute, or in a pattern. A `kind` is read by asking for its class, or for its word."""
    source = Path(fedmt.__file__).parent
    asked, words = set[str](), set[str]()
    for path in source.rglob("*.py"):
        if path.name == "recipe.py" and path.parent == source:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                asked.add(node.attr)
            if isinstance(node, ast.MatchClass):
                asked |= {*node.kwd_attrs, node.cls.id if isinstance(node.cls, ast.Name) else ""}
            if isinstance(node, ast.Name):
                asked.add(node.id)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    found = set(models(recipe.Recipe))
    assert {recipe.Train, choices.SelectRandom, recipe.FileSilo, recipe.Failures} <= found
    for model in found:
        for name in model.model_fields:
            if name in ("kind", "source"):
                (word,) = get_args(model.model_fields[name].annotation)
                read = model.__name__ in asked or (name in asked and word in words)
                assert read, f"nobody asks whether it is {model.__name__}"
            else:
                assert name in asked, f"nobody reads {model.__name__}.{name}"


# ── it learns ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two small silos of one grammar, each with words of its own. A quarter of a minute."""
    return Done(
        tmp_path_factory.mktemp("runs") / "learnt",
        engine={"size": "toy", "vocabulary": 500, "dropout": 0.0},
        public={"source": "toy", "pairs": 800},
        silos={"source": "toy", "silos": 2, "pairs": 300},
        split={"dev": 0.05, "test": 0.1},
        train={"public_epochs": 12, "epochs": 2, "public_peak": 4e-3, "peak": 2e-3, "warmup": 50},
        rounds=3,
        baselines=["public"],
        decode={"longest": 40},
        score={"resamples": 300},
    )


@pytest.mark.slow
def test_training_together_helps(learnt: Done) -> None:
    scores = learnt.house.read_scores()
    for silo in scores.silos:
        public, federated = scores.row("public", silo), scores.row("federated", silo)
        assert public is not None
        assert federated is not None
        assert federated.chrf > public.chrf + 8
    difference = scores.difference("federated", "public", "macro")
    assert difference is not None
    assert difference.delta > 10
    assert difference.p < 0.05
    assert difference.low > 0


@pytest.mark.slow
def test_transformers_reads_the_engine_and_translates_the_same(learnt: Done) -> None:
    model: Any = MarianMTModel.from_pretrained(learnt.house.engine)
    tokenizer = tiny.marian(learnt.house.engine)
    made = engines.load(learnt.house.engine)
    for text in gather(learnt.recipe).silos[:1]:
        sources = [pair.source for pair in text.test][:20]
        inputs = tokenizer(sources, return_tensors="pt", padding=True)
        with torch.no_grad():
            found = model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=60)
        theirs = tokenizer.batch_decode(found, skip_special_tokens=True)
        settings = recipe.Decode(longest=60)
        assert [text.strip() for text in theirs] == translate(made, sources, text.direction, settings, MACHINE)


def test_notes_say_how_much_text_there_is(whole: Done) -> None:
    notes = [event.text for event in whole.of(Note)]
    for text in gather(whole.recipe).silos:
        assert any(note.startswith(f"{text.name} (qaa-qtz): {len(text.train)} train") for note in notes)


def test_silos_keep_to_themselves_what_their_models_wrote(whole: Done) -> None:
    """The hypotheses of a silo are written where the silo is, and what is kept of a training is removed after it."""
    assert {path.parent.name for path in whole.house.hypotheses.rglob("*.txt")} >= {"federated", "alone.toy-1"}
    assert not [path for path in whole.house.silos.rglob("*") if path.is_file()]
