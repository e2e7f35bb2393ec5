"""report.html: what a run found, on one page that needs nothing else. Reads a run folder and writes into it."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from fedmt import files
from fedmt.report import examples, exhibit, plots, views
from fedmt.report.folder import RunFolder
from fedmt.report.frame import PANEL, figure, frame, section
from fedmt.report.studies import BANDWIDTH, gather
from fedmt.report.tables import amount, count, signed
from fedmt.score.rows import MACRO, Results

__all__ = ["page", "write"]


def write(folder: RunFolder, bandwidth: float = BANDWIDTH) -> None:
    """`bandwidth` in Mbit/s, for how long what travelled would take."""
    files.write_text(folder.report, page(folder, bandwidth))


def page(folder: RunFolder, bandwidth: float = BANDWIDTH) -> str:
    results = folder.read_scores()
    name = str(folder.read_recipe().get("name", folder.name))
    parts = (_found, _by_silo, _learning, _gain, _bytes, _cross, _examples)
    sections = [part(folder, results) for part in parts]
    sections += [_studies(folder, bandwidth), _made(folder, results), _again(folder, results)]
    about = folder.read_about()
    began = about.started[:16].replace("T", " ") if about else ""
    dated = f" · {escape(began)}" if began else ""
    head, said = f"{escape(name)}{dated}", " ".join(views.headline(results, folder))
    return frame(name, f"fedmt run <b>{head}</b>", said, sections, about.versions.get("fedmt", "") if about else "")


def _found(folder: RunFolder, results: Results) -> str:
    main, against = views.subject(results), results.against
    tiles = []
    gain = results.difference(main, against, MACRO)
    if gain is not None:
        told = f"BLEU over {against}, 95 % between {signed(gain.low)} and {signed(gain.high)}"
        tiles.append((signed(gain.delta), told))
    over = [value for value in results.differences if (value.model, value.against) == (main, "alone")]
    single = [value for value in over if value.metric == "bleu" and value.silo != MACRO]
    if single:
        won = sum(value.p < 0.05 and value.delta > 0 for value in single)
        lost = sum(value.p < 0.05 and value.delta < 0 for value in single)
        tiles.append((f"{won} of {len(single)}", f"silos surely better off than alone; {lost or 'none'} surely worse"))
    best, after = results.average("combined"), results.average(main)
    before = results.average(against)
    if best and after and before and best.bleu > before.bleu and main != "combined":
        share = (after.bleu - before.bleu) / (best.bleu - before.bleu)
        tiles.append((f"{share:.0%}", "of what all text in one place would have gained"))
    total = folder.travelled(main)
    if total.up_bytes + total.down_bytes:
        tiles.append(
            (amount(total.up_bytes + total.down_bytes), f"{amount(total.up_bytes)} up, {amount(total.down_bytes)} down")
        )
    shown = "".join(f"<div><b>{escape(big)}</b><span>{escape(small)}</span></div>" for big, small in tiles)
    about, entries = folder.read_about(), folder.entries()
    table = views.scores(results, about, entries, ("bleu",)).html() + _words(results)
    table += replace(views.scores(results, metrics=("chrf",)), notes=[]).html()
    if any(row.ter is not None for row in results.rows):
        ter = replace(views.scores(results, metrics=("ter",)), title="", notes=["TER counts edits: lower is better."])
        table += f"<details><summary>TER</summary>{ter.html()}</details>"
    return section("", f'<div class="tiles">{shown}</div>\n{table}')


def _by_silo(_: RunFolder, results: Results) -> str:
    main = views.subject(results)
    lead = (
        "Each sign is a model's score on that silo's own test set; "
        f"its line holds 95 % of {count(results.resamples)} resamples."
    )
    drawn = figure(lambda width: plots.dots(results, main, "bleu", "BLEU", width))
    return section("Silo by silo", drawn, lead if results.resamples else "")


def _learning(folder: RunFolder, results: Results) -> str:
    parts = []
    trained = folder.events("trained")
    scored = [record for record in folder.events("scored") if record.get("round") is not None]
    for records, value, unit in ((trained, "dev_loss", "dev loss"), (scored, "bleu", "dev BLEU")):
        # The loss is that of the engine a round began with: what the rounds before it made.
        drawn = plots.curves(records, results.silos, value, shift=-1 if value == "dev_loss" else 0)
        if drawn:
            panels = "".join(plots.panel(silo, some, drawn, unit, PANEL) for silo, some in drawn.items())
            title = (
                "Loss on each silo's dev set, in nats a token" if value == "dev_loss" else "BLEU on each silo's dev set"
            )
            parts.append(f'<h3>{title}</h3><div class="panels">{panels}</div>')
    return section("Learning, round by round", "".join(parts), "By the number of rounds done.") if parts else ""


def _gain(folder: RunFolder, results: Results) -> str:
    about, main = folder.read_about(), views.subject(results)
    against = "alone" if "alone" in results.families else results.against
    sizes = {silo.name: silo.train for silo in about.silos} if about else {}
    known = [silo for silo in results.silos if sizes.get(silo) and results.difference(main, against, silo)]
    if len(known) < 2:
        return ""
    what = "it has alone" if against == "alone" else f"{against} gives it"
    lead = f"What {main} gives a silo over what {what}, by how much text it holds. Hollow: not sure at p < 0.05."
    return section("Who gains", figure(lambda width: plots.gains(results, sizes, main, against, width)), lead)


def _bytes(folder: RunFolder, results: Results) -> str:
    main = views.subject(results)
    entries = folder.entries()
    if not any(entry.model == main for entry in entries):
        return ""
    drawn = figure(lambda width: plots.traffic(entries, main, width))
    whole = folder.travelled(main, scoring=True)
    scoring = whole.up_bytes + whole.down_bytes - sum(entry.bytes for entry in entries if entry.model == main)
    note = f'<p class="note">Scoring it on the silos moved another {amount(scoring)}.</p>' if scoring else ""
    lead = "Every message of training, counted as it was serialised."
    return section("What travelled", drawn + views.travelled(entries, main).html() + note, lead)


def _cross(_: RunFolder, results: Results) -> str:
    if len(results.rows) <= len(results.silos):
        return ""
    lead = "BLEU. The darker, the nearer to the best on that test set."
    return section(
        "Every model on every test set", views.cross(results).html().replace("<table>", '<table class="heat">'), lead
    )


def _examples(folder: RunFolder, results: Results) -> str:
    main, against = views.subject(results), results.against
    if main == against:
        return ""
    found = examples.choose(folder, results.silos, against, main)
    if found is None:
        return section("Examples", "<p>The sentences are with their silos; there are none on this machine.</p>")
    parts = []
    for title, some in (("Most gained", found.best), ("Typical", found.typical), ("Most lost", found.worst)):
        if some:
            parts.append(f"<h3>{title}</h3>" + "".join(_example(one, against, main) for one in some))
    lead = (
        "Chosen by the difference in sentence chrF++. Words that the reference has too are marked. These are sentences "
        "of the silos' test sets: show this page to those who may read them."
    )
    return section("Examples", "".join(parts), lead)


def _example(one: examples.Example, before: str, after: str) -> str:
    def words(text: str) -> str:
        pieces = [
            f"<mark>{escape(word)}</mark>" if right else escape(word)
            for word, right in examples.marked(text, one.reference)
        ]
        return " ".join(pieces) or '<span class="none">(nothing)</span>'

    lines = [
        ("source", escape(one.source), ""),
        ("reference", escape(one.reference), ""),
        (before, words(one.before), before),
        (after, words(one.after), after),
    ]
    rows = "".join(
        f'<dt class="model {escape(model)}">{escape(name)}</dt><dd dir="auto">{text}</dd>'
        for name, text, model in lines
    )
    return f'<article><p class="where">{escape(one.silo)} <b>{signed(one.gain)}</b> chrF++</p><dl>{rows}</dl></article>'


def _studies(folder: RunFolder, bandwidth: float) -> str:
    """Nothing for a run that told nothing of its rounds beyond what stands above."""
    study = gather(folder)
    if not study.told:
        return ""
    lead = "What the papers of federated translation ask of a run. The command fedmt report puts several side by side."
    return section("Studies", exhibit.inside(study, bandwidth), lead)


def _made(folder: RunFolder, results: Results) -> str:
    about = folder.read_about()
    parts = []
    if about:
        parts.append(f"<h3>Text</h3>{views.text(about).html()}")
    choices = folder.events("choice")
    if choices:
        rows = "".join(
            f"<dt>{escape(str(choice['what']))}</dt>"
            f"<dd><b>{escape(str(choice['value']))}</b> {escape(str(choice['reason']))}</dd>"
            for choice in choices
        )
        parts.append(f'<h3>What the program chose, and why</h3><dl class="facts">{rows}</dl>')
    dropped = folder.events("dropped")
    if dropped:
        rows = "".join(
            f"<li>{escape(str(event['silo']))}, round {event['round']}: {escape(str(event['reason']))}</li>"
            for event in dropped
        )
        parts.append(f"<h3>Updates that were not folded</h3><ul>{rows}</ul>")
    signatures = {kind: row.signatures[kind] for row in results.rows for kind in row.signatures}
    several = {row.direction: row.signature for row in results.rows}
    told = "".join(
        f"<dt>{escape(views.TITLES.get(kind, kind))}</dt><dd><code>{escape(signature)}</code></dd>"
        for kind, signature in (signatures or {"bleu": next(iter(several.values()), "")}).items()
    )
    if len(set(several.values())) > 1:
        told += "".join(
            f"<dt>BLEU {escape(way)}</dt><dd><code>{escape(one)}</code></dd>" for way, one in several.items()
        )
    parts.append(f'<h3>Signatures of the scores</h3><dl class="facts">{told}</dl>')
    if about and about.versions:
        rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in about.versions.items())
        parts.append(f'<h3>Versions</h3><dl class="facts short">{rows}</dl>')
    return section("What was run", "".join(parts))


def _again(folder: RunFolder, results: Results) -> str:
    recipe = folder.recipe.read_text(encoding="utf-8")
    spent = f"It took {results.seconds / 60:.0f} minutes. " if results.seconds >= 90 else ""
    return section(
        "How to run it again",
        f"<p>{spent}The same recipe, seed, versions and threads give the same engine, bit for bit.</p>"
        "<pre>fedmt run recipe.yaml --out again\nfedmt compare . again\n"
        'echo "…" | fedmt translate .</pre>'
        f"<details open><summary>recipe.yaml</summary><pre>{escape(recipe)}</pre></details>",
    )


def _words(results: Results) -> str:
    known = {
        "public": "public: the server's engine before any silo took part",
        "alone": "alone: each silo by itself, from the public engine, on its own test set",
        "chained": "chained: one silo after the other",
        "federated": "federated: all silos together, text staying where it is",
        "personal": "personal: federated, then trained on at the silo",
        "combined": "combined: all text in one place, which is what may not be done; for comparison",
    }
    told = "; ".join(known[name] for name in results.families if name in known)
    return f'<p class="note">{escape(told)}.</p>'
