"""`fedmt score` and `fedmt compare`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Call
from tests.report.runs import build


def test_sentences_and_references_are_scored_with_signatures(call: Call, toy_engine: Path, here: Path) -> None:
    done = call("score", toy_engine, "--source", "text.de", "--reference", "text.en")
    assert (done.code, done.err) == (0, "")
    row = next(line for line in done.out.splitlines() if line.startswith("text.de"))
    assert row.split() == ["text.de", "de-en", "3", "100.0", "100.0", "0.0"]
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in done.out
    assert here.is_dir()


def test_any_corpus_file_is_a_test_set_and_several_are_averaged(call: Call, toy_engine: Path, here: Path) -> None:
    (here / "wrong.tsv").write_text("Guten Tag!\tSomething else entirely\n")
    done = call("score", toy_engine, "--data", "text", "--data", "wrong.tsv")
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.strip()}
    assert rows["text"] == ["de-en", "3", "100.0", "100.0", "0.0"]
    assert rows["wrong.tsv"][:3] == ["de-en", "1", "0.0"]
    assert rows["average"][0] == "50.0"
    assert "all sentences" in done.out


def test_json_has_a_line_a_set(call: Call, toy_engine: Path, here: Path) -> None:
    (one,) = call("score", toy_engine, "--data", "text", "--json").records
    assert (one["event"], one["set"], one["direction"], one["n"]) == ("score", "text", "de-en", 3)
    assert (one["bleu"], one["chrf"], one["ter"]) == pytest.approx((100, 100, 0))
    assert set(one["signatures"]) == {"bleu", "chrf", "ter"}
    assert here.is_dir()


def test_a_run_is_scored_on_its_recipes_test_sets(call: Call, toy_run: Path) -> None:
    done = call("score", toy_run, "--from", "de", "--to", "en")
    assert done.code == 2
    assert "its recipe has no test set for de-en" in done.err


def test_runs_are_put_side_by_side(call: Call, tmp_path: Path) -> None:
    build(tmp_path / "whole", n=20, resamples=50)
    build(tmp_path / "half", n=20, resamples=50, seed=2, share=0.5)
    done = call("compare", tmp_path / "whole", tmp_path / "half")
    assert (done.code, done.err) == (0, "")
    assert "× 0.5" in done.out
    rows = call("compare", tmp_path / "whole", tmp_path / "half", "--json").records
    federated = [one for one in rows if one["event"] == "compared" and one["model"] == "federated"]
    assert [one["run"] for one in federated] == ["whole", "half"]
    assert federated[1]["up_bytes"] == pytest.approx(federated[0]["up_bytes"] / 2, rel=0.01)
    assert federated[1]["bleu_difference"]["delta"] == pytest.approx(federated[1]["bleu"] - federated[0]["bleu"])
