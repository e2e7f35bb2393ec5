from __future__ import annotations

import json
from typing import Any

import yaml

from fedmt.report import card
from fedmt.report.folder import RunFolder


def front(text: str) -> dict[str, Any]:
    _, head, _ = text.split("---\n", 2)
    found = yaml.safe_load(head)
    assert isinstance(found, dict)
    return found


def test_the_front_matter_is_what_the_hub_reads(run: RunFolder) -> None:
    found = front(card.text(run))
    assert found["language"] == ["de", "en"]
    assert found["pipeline_tag"] == "translation"
    assert found["metrics"] == ["bleu", "chrf", "ter"]
    assert found["license"] == "other"
    listed = found["model-index"][0]["results"]
    scores = run.read_scores()
    assert [one["dataset"]["type"] for one in listed] == scores.silos
    for one, silo in zip(listed, scores.silos, strict=True):
        row = scores.row("federated", silo)
        assert row is not None
        assert one["metrics"][0]["value"] == round(row.bleu, 2)


def test_the_card_tells_use_text_scores_bytes_and_limits(run: RunFolder) -> None:
    text = card.text(run)
    for told in (
        'AutoModelForSeq2SeqLM.from_pretrained("engine")',
        "fedmt translate .",
        "licence of mail",
        "tok:13a",
        "720 MB went up (180,000,000 parameters)",
        "no differential privacy",
        "leave them out of what you pass on",
        "small (under 200 sentences)",
    ):
        assert told in text


def test_a_card_without_sentences_does_not_warn_of_them(small: RunFolder) -> None:
    for file in small.hypotheses.rglob("*.txt"):
        file.unlink()
    (small.hypotheses / "source").rmdir()
    assert "leave them out" not in card.text(small)


def test_the_engines_kind_is_a_tag(small: RunFolder) -> None:
    small.engine.mkdir()
    (small.engine / "config.json").write_text(json.dumps({"model_type": "marian"}))
    card.write(small)
    assert "marian" in front(small.card.read_text())["tags"]
    (small.engine / "config.json").write_text("torn")
    assert "marian" not in front(card.text(small))["tags"]


def test_a_run_that_tells_nothing_of_its_text_has_a_card(small: RunFolder) -> None:
    small.about.unlink()
    small.ledger.unlink()
    text = card.text(small)
    assert "## Text" not in text
    assert "went up" not in text
