"""Translate sentences: greedy or beam search with a length penalty, in batches of like length.

A hypothesis scores Σ log p / length^penalty, where the length counts every token after the start, the end included,
as in Hugging Face's `generate`; its stopping rule is theirs too: a sentence is done when it has as many finished
hypotheses as beams and its best open one, at its present length, is no better than the worst of them.
Knows nothing of how a step is computed (`steps.py`), of files or of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedmt import recipe
from fedmt.corpus.pairs import Direction
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.ensemble import Ensemble, Voice
from fedmt.engine.steps import Steps, stepping
from fedmt.events import Listener, Note

__all__ = ["Hypothesis", "Mixer", "search", "translate"]

# Where an engine has no table of positions; attention over more than this wants other means anyway.
LONGEST_SOURCE = 1024
# Logits of one step, in numbers: large vocabularies make batches small.
MOST_LOGITS = 1 << 26


@dataclass(frozen=True)
class Hypothesis:
    """The tokens of a translation, neither start nor end among them, and its score."""

    ids: list[int]
    score: float


class Mixer(Protocol):
    """What has a say in the next token beside the engine: a memory."""

    def __call__(self, hidden: Tensor, logits: Tensor, live: Tensor, /) -> Tensor:
        """The log-probabilities to choose by, of each row: its last state, and the engine's own logits.

        Rows that are not `live` are finished; what is said of them is not heard.
        """


def translate(
    engine: Engine,
    sentences: Sequence[str],
    direction: Direction,
    settings: recipe.Decode,
    machine: Machine,
    on_progress: Callable[[int, int], None] | None = None,
    listen: Listener | None = None,
    memory: Mixer | None = None,
    voices: Sequence[Voice] = (),
) -> list[str]:
    """Translations in the order of the sentences; an empty sentence gives an empty one.

    `on_progress` hears how many are done, of how many. A source longer than the engine has positions is cut, and
    `listen` hears how many were.
    """
    present = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    sources = engine.vocabulary.encode_source([sentences[index] for index in present], direction)
    longest = _positions(engine)
    cut = [_cut(ids, longest, engine.vocabulary.eos) for ids in sources]
    if listen and (count := sum(len(ids) > longest for ids in sources)):
        listen(Note(f"{count} of {len(sentences)} sources are longer than the engine's {longest} tokens and were cut"))
    found = search(
        engine,
        cut,
        engine.vocabulary.prefix(direction),
        settings,
        machine,
        on_progress=on_progress,
        memory=memory,
        voices=voices,
    )
    texts = [""] * len(sentences)
    decoded = engine.vocabulary.decode([hypothesis.ids for hypothesis in found])
    for index, text in zip(present, decoded, strict=True):
        texts[index] = text
    return texts


def search(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    prefix: Sequence[int],
    settings: recipe.Decode,
    machine: Machine,
    cached: bool = True,
    scored: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    memory: Mixer | None = None,
    voices: Sequence[Voice] = (),
) -> list[Hypothesis]:
    """The best hypothesis for each source. Greedy search gives scores only when they are asked for.

    With a `memory`, tokens are chosen, and scored, by what it makes of the engine's logits; with `voices`, by the mean
    of theirs, in the place of the engine's own.
    """
    vocabulary, model = engine.vocabulary, engine.model
    models = [voice.model for voice in voices] or [model]
    for one in models:
        one.to(machine.device)
    found: list[Hypothesis] = [Hypothesis([], 0.0)] * len(sources)
    steps = min(settings.longest, _positions(engine) - len(prefix))
    banned = sorted({vocabulary.pad, prefix[0]} - {vocabulary.eos})
    logits = int(model.config.vocab_size)
    done = 0
    with ExitStack() as stack:
        for one in models:
            stack.enter_context(stepping(one, machine))
        for batch in _batches(sources, settings, logits):
            width = max(len(sources[index]) for index in batch)
            source = torch.full((len(batch), width), vocabulary.pad)
            for row, index in enumerate(batch):
                source[row, : len(sources[index])] = torch.tensor(sources[index])
            source = source.to(machine.device)
            state: Steps | Ensemble = (
                Ensemble(voices, source, vocabulary.pad, cached)
                if voices
                else Steps(model, source, vocabulary.pad, cached)
            )
            first = torch.tensor([list(prefix)] * len(batch), device=machine.device)
            eos, penalty = vocabulary.eos, settings.length_penalty
            if settings.beam == 1:
                hypotheses = _greedy(state, first, steps, banned, eos, penalty, scored, memory)
            else:
                hypotheses = _beam(state, first, steps, banned, eos, penalty, settings.beam, memory)
            for index, hypothesis in zip(batch, hypotheses, strict=True):
                found[index] = hypothesis
            done += len(batch)
            if on_progress:
                on_progress(done, len(sources))
    return found


def _positions(engine: Engine) -> int:
    return int(getattr(engine.model.config, "max_position_embeddings", None) or LONGEST_SOURCE)


def _cut(ids: Sequence[int], longest: int, eos: int) -> Sequence[int]:
    """The sentence loses its end; the end mark, and a language code behind it, stay."""
    if len(ids) <= longest:
        return ids
    tail = len(ids) - max(index for index, token in enumerate(ids) if token == eos)
    return [*ids[: longest - tail], *ids[-tail:]]


def _batches(sources: Sequence[Sequence[int]], settings: recipe.Decode, logits: int) -> list[list[int]]:
    """Longest first, so that what does not fit in memory shows at once."""
    most_rows = max(1, MOST_LOGITS // (logits * settings.beam))
    batches: list[list[int]] = []
    for index in sorted(range(len(sources)), key=lambda index: (-len(sources[index]), index)):
        width = len(sources[batches[-1][0]]) if batches else 0
        rows = min(settings.batch_tokens // (max(1, width) * settings.beam), most_rows)
        if not batches or len(batches[-1]) >= rows:
            batches.append([])
        batches[-1].append(index)
    return batches


def _staying(live: Tensor) -> Tensor | None:
    """Which rows go on: those alive, and some finished ones for company, so that few shapes occur; none to drop: None.

    Each new shape costs the processor's library a new kernel.
    """
    count = int(live.sum())
    wanted = count if count < 8 else -(-count // 8) * 8
    if wanted >= len(live):
        return None
    order = torch.argsort(~live, stable=True)[:wanted]
    return torch.sort(order).values


def _greedy(
    state: Steps | Ensemble,
    tokens: Tensor,
    steps: int,
    banned: list[int],
    eos: int,
    penalty: float,
    scored: bool,
    memory: Mixer | None,
) -> list[Hypothesis]:
    forced = tokens.shape[1] - 1
    chosen = torch.full((len(tokens), steps), eos, device=tokens.device)
    scores = torch.zeros(len(tokens), device=tokens.device)
    lengths = torch.full((len(tokens),), forced + steps, device=tokens.device)
    row = torch.arange(len(tokens), device=tokens.device)
    live = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    for number in range(steps):
        hidden, logits = state.step(tokens)
        if memory is not None:
            logits = memory(hidden, logits, live)
        spread = logits.logsumexp(-1) if scored else None
        logits[:, banned] = -torch.inf
        best, token = logits.max(-1)
        chosen[row[live], number] = token[live]
        if spread is not None:
            scores[row[live]] += (best - spread)[live]
        ended = live & (token == eos)
        tokens = token[:, None]
        if bool(ended.any()):
            lengths[row[ended]] = forced + number + 1
            live = live & ~ended
            if not bool(live.any()):
                break
            if (stay := _staying(live)) is not None:
                state.keep(stay, stay)
                tokens, row, live = tokens[stay], row[stay], live[stay]
    scores = scores / lengths**penalty
    return [
        Hypothesis(ids[: ids.index(eos)] if eos in ids else ids, score)
        for ids, score in zip(chosen.tolist(), scores.tolist(), strict=True)
    ]


class _Finished:
    """The best finished hypotheses of one sentence, no more than there are beams."""

    def __init__(self, beams: int) -> None:
        self._beams = beams
        self.kept: list[Hypothesis] = []

    def add(self, hypothesis: Hypothesis) -> None:
        self.kept.append(hypothesis)
        self.kept.sort(key=lambda kept: -kept.score)
        del self.kept[self._beams :]

    def beats(self, open_score: float) -> bool:
        return len(self.kept) == self._beams and self.kept[-1].score >= open_score


def _beam(
    state: Steps | Ensemble,
    tokens: Tensor,
    steps: int,
    banned: list[int],
    eos: int,
    penalty: float,
    beams: int,
    memory: Mixer | None,
) -> list[Hypothesis]:
    count, forced, device = len(tokens), tokens.shape[1] - 1, tokens.device
    finished = [_Finished(beams) for _ in range(count)]
    sentence = list(range(count))
    total = torch.zeros(count, 1, device=device)
    history = tokens.new_empty(count, 1, 0)
    live = torch.ones(count, dtype=torch.bool, device=device)
    for number in range(steps):
        length, width = forced + number + 1, total.shape[1]
        hidden, logits = state.step(tokens)
        rows = live.repeat_interleave(width)
        log_probs = logits.log_softmax(-1) if memory is None else memory(hidden, logits, rows)
        log_probs[:, banned] = -torch.inf
        size = log_probs.shape[1]
        candidates = (total.flatten()[:, None] + log_probs).view(len(sentence), -1)
        best, place = candidates.topk(2 * beams)
        parent, token = place // size, place % size
        ends = token == eos
        closing = live[:, None] & (ends[:, :beams] | (number == steps - 1))
        for row, rank in closing.nonzero().tolist() if bool(closing.any()) else ():
            ids = history[row, parent[row, rank]].tolist()
            last = int(token[row, rank])
            score = float(best[row, rank]) / length**penalty
            finished[sentence[row]].add(Hypothesis(ids if last == eos else [*ids, last], score))
        # The first that did not end, in the order of their scores: at most one candidate a beam ended.
        going = torch.argsort(ends, dim=1, stable=True)[:, :beams]
        total, parent, token = (values.gather(1, going) for values in (best, parent, token))
        open_scores = (total[:, 0] / length**penalty).tolist()
        live &= torch.tensor(
            [not finished[index].beats(score) for index, score in zip(sentence, open_scores, strict=True)],
            device=device,
        )
        if number == steps - 1 or not bool(live.any()):
            break
        history = torch.cat([history.gather(1, parent[..., None].expand(-1, -1, number)), token[..., None]], dim=2)
        rows = parent + torch.arange(len(sentence), device=device)[:, None] * width
        stay = _staying(live)
        if stay is not None:
            rows, total, token, history, live = (kept[stay] for kept in (rows, total, token, history, live))
            sentence = [sentence[index] for index in stay.tolist()]
        state.keep(rows.flatten(), stay)
        tokens = token.view(-1, 1)
    return [kept.kept[0] for kept in finished]
