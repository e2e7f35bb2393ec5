"""A text's records with the truth behind them: what an attacker has of its own text, and what it guesses of another's.

`received` is what a silo reads out of another's record: the token as it is, and for the state the point that its list
and code stand for. To search codes nobody makes vectors of them; to attack them one does, and nothing stops one.

Knows engines by their states; knows nothing of what is guessed from records, nor how.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmt.corpus.batches import Examples, plan
from fedmt.corpus.pairs import Direction, Pair
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.steps import States, forced
from fedmt.memory.datastore import Layout
from fedmt.memory.quantise import Floats, Quantiser

__all__ = ["Observed", "observe", "received", "states"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Observed:
    """Of each record its key (a state, or what a code stands for) and token; and which sentence's, and which place's.

    `targets` are without the language's code that an engine may be forced to begin with: it is nobody's secret.
    """

    keys: Floats
    tokens: Numbers
    sentence: Numbers
    place: Numbers
    sources: list[list[int]]
    targets: list[list[int]]

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Numbers) -> Observed:
        """These records, in this order."""
        tokens, sentence, place = (array[rows] for array in (self.tokens, self.sentence, self.place))
        return replace(self, keys=self.keys[rows], tokens=tokens, sentence=sentence, place=place)

    def source(self, row: int) -> list[int]:
        return self.sources[self.sentence[row]]

    def before(self, row: int) -> list[int]:
        """The target's tokens before the record's own."""
        return self.targets[self.sentence[row]][: self.place[row]]


def observe(
    engine: Engine, pairs: Sequence[Pair], direction: Direction, machine: Machine, longest: int, batch_tokens: int
) -> Observed:
    """The records of these pairs, their keys the states themselves. Pairs that are too long give none."""
    examples, prefix = _examples(engine, pairs, direction, longest)
    sources = _split(examples.source, examples.source_ends)
    targets = [ids[prefix - 1 :] for ids in _split(examples.target, examples.target_ends)]
    parts = list(forced(engine, examples, machine, batch_tokens, prefix))
    # `forced` goes through the pairs in this order, and through each pair from its first token to its last.
    order = [int(row) for rows in plan(*_lengths(examples), batch_tokens, 0) for row in rows]
    lengths = [len(targets[row]) for row in order]
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return Observed(np.empty((0, 1), dtype=np.float32), none, none, none, sources, targets)
    return Observed(
        np.concatenate([part.hidden.float().cpu().numpy() for part in parts]),
        np.concatenate([part.tokens.cpu().numpy() for part in parts]),
        np.repeat(np.array(order, dtype=np.int64), lengths),
        np.concatenate([np.arange(length) for length in lengths]),
        sources,
        targets,
    )


def received(observed: Observed, quantiser: Quantiser) -> Observed:
    """The same records as another silo reads them: packed, unpacked, and each code made the point it stands for."""
    layout = Layout.of(quantiser)
    records = layout.pack(*quantiser.encode(observed.keys), observed.tokens.astype(np.int32))
    lists, codes, tokens = layout.unpack(records)
    keys: Floats = quantiser.empty(searched=False).sa_decode(quantiser.joined(lists, codes))
    return replace(observed, keys=keys, tokens=tokens.astype(np.int64))


def states(
    engine: Engine,
    texts: Iterable[tuple[Direction, Sequence[Pair]]],
    machine: Machine,
    longest: int,
    batch_tokens: int,
) -> Iterator[States]:
    """The states of text in several directions, for a quantiser to learn from."""
    for direction, pairs in texts:
        examples, prefix = _examples(engine, pairs, direction, longest)
        yield from forced(engine, examples, machine, batch_tokens, prefix)


def _examples(engine: Engine, pairs: Sequence[Pair], direction: Direction, longest: int) -> tuple[Examples, int]:
    longest = min(longest, getattr(engine.model.config, "max_position_embeddings", None) or longest)
    source = engine.vocabulary.encode_source([pair.source for pair in pairs], direction)
    target = engine.vocabulary.encode_target([pair.target for pair in pairs], direction)
    prefix = engine.vocabulary.prefix(direction)
    return Examples.of(source, target, longest, prefix[0]), len(prefix)


def _lengths(examples: Examples) -> tuple[Numbers, Numbers]:
    return examples.source_lengths, examples.target_lengths


def _split(flat: NDArray[np.int32], ends: Numbers) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(flat, ends)[:-1]]
