"""README.md: the model card of a run, in the form that the Hugging Face hub reads."""

from __future__ import annotations

import json
from typing import Any

import yaml

from fedmt import files
from fedmt.report import views
from fedmt.report.folder import About, RunFolder
from fedmt.report.tables import amount, count
from fedmt.score.rows import Results

__all__ = ["text", "write"]


def write(folder: RunFolder) -> None:
    files.write_text(folder.card, text(folder))


def text(folder: RunFolder) -> str:
    results, about = folder.read_scores(), folder.read_about()
    name = str(folder.read_recipe().get("name", folder.name))
    front = yaml.safe_dump(_front(name, folder, results), sort_keys=False, allow_unicode=True)
    parts = [f"---\n{front}---\n", f"# {name}\n", " ".join(views.headline(results, folder)) + "\n"]
    parts.append(_scores(folder, results, about))
    parts.append(_use(folder, results))
    parts.append(_text(folder, about))
    parts.append(_training(folder, results, about))
    parts.append(_limits(results))
    return "\n".join(part for part in parts if part)


def _front(name: str, folder: RunFolder, results: Results) -> dict[str, Any]:
    main = views.subject(results)
    directions = list(dict.fromkeys(row.direction for row in results.rows))
    languages = list(dict.fromkeys(code for direction in directions for code in direction.split("-", 1)))
    rows = [row for silo in results.silos if (row := results.row(main, silo)) is not None]
    return {
        "language": languages,
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["translation", "federated-learning", "fedmt", *_kind(folder)],
        "license": "other",
        "license_name": "see-the-text-it-was-trained-on",
        "metrics": ["bleu", "chrf", *(["ter"] if any(row.ter is not None for row in rows) else [])],
        "model-index": [
            {
                "name": name,
                "results": [
                    {
                        "task": {"type": "translation", "name": f"Translation {row.direction}"},
                        "dataset": {"type": row.silo, "name": f"{row.silo} (held-back test set, {row.n} sentences)"},
                        "metrics": [
                            {"type": "bleu", "value": round(row.bleu, 2), "name": "BLEU"},
                            {"type": "chrf", "value": round(row.chrf, 2), "name": "chrF++"},
                        ],
                    }
                    for row in rows
                ],
            }
        ],
    }


def _kind(folder: RunFolder) -> list[str]:
    try:
        kind = json.loads((folder.engine / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return []
    return [str(kind)] if kind else []


def _scores(folder: RunFolder, results: Results, about: About | None) -> str:
    tables = [
        views.scores(results, about, folder.entries(), ("bleu",)).markdown(),
        views.scores(results, metrics=("chrf",)).markdown(),
    ]
    signatures = {kind: one for row in results.rows for kind, one in row.signatures.items()}
    told = [f"- {views.TITLES.get(kind, kind)}: `{one}`" for kind, one in signatures.items()]
    told = told or [f"- BLEU: `{results.rows[0].signature}`"] if results.rows else []
    return "## Scores\n\n" + "\n".join(tables) + "\nsacreBLEU's signatures:\n\n" + "\n".join(told) + "\n"


def _use(folder: RunFolder, results: Results) -> str:
    pairs = [row.direction.partition("-") for row in results.rows]
    source, _, target = pairs[0] if pairs else ("", "", "")
    several = len({pair[2] for pair in pairs}) > 1
    tag = ""
    if several and "marian" in _kind(folder):
        tag = f"\nThe target language stands before the sentence, as `>>{target}<< …`.\n"
    ask = f" --from {source} --to {target}" if len({row.direction for row in results.rows}) > 1 else ""
    return f"""## Use

With fedmt, in this folder:

```sh
echo "…" | fedmt translate .{ask}
```

With transformers:

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("engine")
model = AutoModelForSeq2SeqLM.from_pretrained("engine")
tokens = tokenizer(["…"], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**tokens), skip_special_tokens=True))
```
{tag}"""


def _text(folder: RunFolder, about: About | None) -> str:
    if about is None:
        return ""
    told = "The licences of the text may bind what is done with an engine trained on it."
    if (folder.hypotheses / "source").exists():
        told += " `hypotheses/` and `report.html` hold sentences of the test sets: leave them out of what you pass on."
    return f"## Text\n\n{views.text(about).markdown()}\n{told}\n"


def _training(folder: RunFolder, results: Results, about: About | None) -> str:
    recipe = folder.read_recipe()
    main = views.subject(results)
    total = folder.travelled(main)
    lines = ["## Training", ""]
    if total.up_bytes + total.down_bytes:
        lines.append(
            f"{amount(total.up_bytes)} went up ({count(total.up_parameters)} parameters) and "
            f"{amount(total.down_bytes)} went down ({count(total.down_parameters)} parameters), "
            "counted as serialised. What travelled is tensors and numbers; sentences stayed in their silos."
        )
        lines.append("")
    shown = {
        key: recipe[key]
        for key in ("engine", "part", "selector", "codec", "merge", "groups", "rounds", "train")
        if key in recipe
    }
    lines += ["```yaml", yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).rstrip(), "```", ""]
    lines.append("The whole recipe is `recipe.yaml`; `fedmt run recipe.yaml --out again` runs it again.")
    if about and about.versions:
        lines += ["", "Made with " + ", ".join(f"{name} {value}" for name, value in about.versions.items()) + "."]
    return "\n".join(lines) + "\n"


def _limits(results: Results) -> str:
    small = [silo for silo in results.silos if (row := results.row(views.subject(results), silo)) and row.n < 200]
    lines = [
        "## Limits",
        "",
        "- The engine knows the silos' subjects and kinds of sentence; on other text it is as good as unknown.",
        "- It translates sentence by sentence; it may leave out or invent. A person must read what matters.",
        "- That no sentence travels does not prove that none can be guessed from what travels: "
        "no secure sums and no differential privacy were used.",
    ]
    if small:
        lines.append(f"- The test sets of {', '.join(small)} are small (under 200 sentences): mind their intervals.")
    return "\n".join(lines) + "\n"
