"""A run's memories: the quantiser that the server learns, the silos' keys, and one exchange of records for each.

Above `memory/` and `federation/`, since it speaks to both: `experiment.py` asks it for a memory as for a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedmt import files
from fedmt.corpus.pairs import Direction, Text
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.steps import forced
from fedmt.errors import RecipeError
from fedmt.events import Choice, Listener
from fedmt.exchange import codec
from fedmt.exchange.ledger import Ledger
from fedmt.federation.keeper import Keeper
from fedmt.federation.memories import Memories, Share
from fedmt.federation.silo import Silo
from fedmt.federation.transport import InProcess, Transport
from fedmt.learner import SiloLearner, encoded
from fedmt.memory import keys, quantise, store
from fedmt.memory.datastore import floats
from fedmt.memory.keys import Ring
from fedmt.memory.quantise import Floats, Quantiser
from fedmt.recipe import Recipe
from fedmt.report.folder import RunFolder

__all__ = ["Remembrance"]

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Remembrance:
    """Of one run. `learners` are the silos that are in this process; `directions` of all, wherever they are."""

    run: str
    recipe: Recipe
    house: RunFolder
    engine: Engine
    machine: Machine
    public: Sequence[Text]
    directions: Mapping[str, Direction]
    learners: Mapping[str, SiloLearner]
    tell: Listener

    def members(self) -> list[str]:
        """Who takes part: as was last asked for (`fedmt memory`), or as the recipe says."""
        assert self.recipe.memory is not None
        kept = self.house.checkpoints / "members.json"
        asked = files.read_json(kept)["members"] if kept.exists() else self.recipe.memory.members
        if strange := [name for name in asked or () if name not in self.directions]:
            allowed = ", ".join(self.directions)
            raise RecipeError(f"memory.members: there is no silo {strange[0]}; allowed: {allowed}")
        return [name for name in self.directions if asked is None or name in asked]

    def quantiser(self) -> Quantiser:
        """Learnt from the server's public text as the resident engine sees it; once, and kept."""
        assert self.recipe.memory is not None
        kept = self.house.checkpoints / "quantiser"
        if not (kept / "quantiser.json").exists():
            made = quantise.train(self._public_states(), self.recipe.memory, self.recipe.seed)
            made.save(kept)
        found = Quantiser.load(kept)
        about = found.about()
        said = f"{about['lists']:,} lists, {about['code_bytes']} bytes a code, of {about['dimension']} dimensions"
        self.tell(Choice("quantiser", said, "learnt from public text"))
        return found

    def _public_states(self) -> Iterator[Floats]:
        train = self.recipe.train
        for text in self.public:
            examples, _ = encoded(self.engine, [text], train.longest, self.tell)
            prefix = len(self.engine.vocabulary.prefix(text.direction))
            yield from floats(forced(self.engine, examples, self.machine, train.batch_tokens, prefix))

    def rings(self) -> dict[str, Ring]:
        """Keys of the silos in this process. In one process nobody needs to compare fingerprints by telephone."""
        pairs = {}
        for name in self.learners:
            folder = self.house.silos / name / "keys"
            if not (folder / "silo.key").exists():
                keys.new(folder)
            pairs[name] = keys.load_private(folder / "silo.key")
        public = {name: pair.public for name, pair in pairs.items()}
        return {name: Ring(pair, public) for name, pair in pairs.items()}

    def exchange(
        self,
        model: str,
        members: Sequence[str],
        shared: Tensors | None,
        digest: int,
        elsewhere: Transport | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """One memory of these members' text: statistics of each member's test set, translated with it.

        `shared` is what they are sent of the engine (none: each has it by its name). A memory of one member alone
        travels nowhere.
        """
        recipe, alone = self.recipe, model != "federated"
        quantiser = Quantiser.load(self.house.checkpoints / "quantiser") if alone else self.quantiser()
        # Silos in this process will load what they are sent into this engine, rounded as it travels.
        hash = "" if alone else self.engine.hash
        transport = elsewhere or self._here(members, recipe)
        ledger = Ledger(self.house.checkpoints / "stayed" / f"{model.replace(':', '.')}.jsonl") if alone else None
        memories = Memories(
            self.run,
            model,
            recipe,
            transport,
            self.house.checkpoints / "memory" / model.replace(":", "."),
            ledger or Ledger(self.house.ledger),
            (lambda _: None) if alone else self.tell,
            {name: str(direction) for name, direction in self.directions.items()},
        )
        payload = b"" if shared is None else codec.encode(shared, recipe.codec)
        count = (sum(tensor.numel() for tensor in shared.values()), len(shared)) if shared else (0, 0)
        learnt = memories.share(Share(quantiser, payload, count, digest), members)
        scores = memories.recite(members)
        if elsewhere is None and not alone:
            self._keep(model, members, learnt, quantiser, hash)
        return scores

    def _here(self, members: Sequence[str], recipe: Recipe) -> InProcess:
        rings = self.rings()

        def silo(name: str) -> Silo:
            folder, learner = self.house.silos / name, self.learners[name]
            return Silo(name, learner, folder, recipe, Keeper(name, learner, folder, recipe, rings[name]))

        return InProcess(silo(name) for name in members)

    def _keep(
        self, model: str, members: Sequence[str], first: Mapping[str, str], quantiser: Quantiser, engine: str
    ) -> None:
        """What its members end with is what a translator wants: the same records all, each its own use of them."""
        rings, parts = self.rings(), dict[Direction, store.Part]()
        for way in dict.fromkeys(self.directions[name] for name in members):
            houses = {
                name: Keeper(name, self.learners[name], self.house.silos / name, self.recipe, rings[name]).house(
                    self.run, model
                )
                for name in members
                if self.directions[name] == way
            }
            owns = {name: house / "own" if (house / "own").exists() else house for name, house in houses.items()}
            chosen = first[str(way)]
            parts[way] = store.Part(houses[chosen] / "records", owns, chosen)
        store.keep(self.house.memory, quantiser, parts, engine)
