"""`fedmt translate --explain`: of each token, the engine's own probability, the chosen k, and the neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmt.cli.session import show, write_line

if TYPE_CHECKING:
    from fedmt.corpus.pairs import Direction
    from fedmt.engine.device import Machine
    from fedmt.engine.engine import Engine
    from fedmt.memory.retrieve import Explained, Retrieval
    from fedmt.recipe import Decode

__all__ = ["Explainer"]

END = "⏎"
# Neighbours that a table has room for.
SHOWN = 4


class Explainer:
    """Translates a sentence with a memory, and says of each token why it stands there."""

    def __init__(
        self, engine: Engine, direction: Direction, settings: Decode, machine: Machine, memory: Retrieval
    ) -> None:
        self._engine, self._direction, self._settings = engine, direction, settings
        self._machine, self._memory = machine, memory

    def tell(self, sentence: str, as_json: bool) -> None:
        translation, tokens = self._explained(sentence)
        if as_json:
            write_line(
                {"source": sentence, "translation": translation, "tokens": [self._numbers(one) for one in tokens]}
            )
            return
        show_tokens(sentence, translation, [self._numbers(one) for one in tokens])

    def _explained(self, sentence: str) -> tuple[str, list[Explained]]:
        from fedmt.corpus.batches import Examples
        from fedmt.engine.decoder import search
        from fedmt.engine.steps import forced
        from fedmt.memory.retrieve import explain

        if not sentence.strip():
            return "", []
        vocabulary = self._engine.vocabulary
        sources = vocabulary.encode_source([sentence], self._direction)
        prefix = vocabulary.prefix(self._direction)
        found = search(self._engine, sources, prefix, self._settings, self._machine, memory=self._memory)[0]
        # As labels are: what the decoder is forced to begin with stands in them, but for what it reads first.
        labels = [*prefix[1:], *found.ids, vocabulary.eos]
        examples = Examples.of(sources, [labels], max(len(sources[0]), len(labels)), prefix[0])
        states = forced(self._engine, examples, self._machine, 1 << 16, len(prefix))
        text = " ".join(vocabulary.decode([found.ids])[0].split())
        return text, explain(self._memory, self._engine, states)

    def _numbers(self, one: Explained) -> dict[str, Any]:
        chosen = max(one.shares, key=lambda count: one.shares[count])
        near = [
            {"token": self._piece(each.token), "distance": each.distance, "weight": each.weight}
            for each in one.neighbours
        ]
        return {
            "token": self._piece(one.token),
            "engine": one.engine,
            "mixed": one.mixed,
            "looked_up": one.looked_up,
            "k": chosen,
            "shares": {str(count): share for count, share in one.shares.items()},
            "neighbours": near,
        }

    def _piece(self, token: int) -> str:
        if token == self._engine.vocabulary.eos:
            return END
        return self._engine.vocabulary.decode([[token]])[0] or f"#{token}"


def show_tokens(sentence: str, translation: str, tokens: list[dict[str, Any]]) -> None:
    from fedmt.report.tables import Cell, Column, Table

    titles = ("engine", "with memory")
    columns = [Column("token", align="left"), *(Column(title) for title in titles), Column("k")]
    columns.append(Column("neighbours: token, what it counts for, distance", align="left"))
    rows = []
    for one in tokens:
        near = [f"{each['token']} {each['weight']:.2f} ({each['distance']:.0f})" for each in one["neighbours"][:SHOWN]]
        told = ", ".join(near) if one["looked_up"] else "not looked up"
        cells = [Cell(one["token"]), *(Cell(f"{one[key]:.3f}") for key in ("engine", "mixed"))]
        rows.append([*cells, Cell(str(one["k"]) if one["looked_up"] else "–"), Cell(told)])
    notes = [f"k is the number of neighbours that counts most; {END} ends the sentence"]
    show(Table(f"{sentence}  →  {translation}", columns, rows, [], notes))
