"""How fast an engine translates with a memory of all silos' text, and how well: without, with all looked up, as learnt.

    python bench/decoding.py [--silos NAME ...] [--beam 1,5] [--repeats 3] [--sentences 200] [--cache FOLDER]

The real silos of the preset `german-english-8`. A `small` engine is trained on the public text; its states make the
quantiser, all silos' training text becomes records, and one silo's dev text teaches how to use them, twice: looking up
every token in the most lists, and by the recipe's defaults. All three then translate the same test sentences in turns,
in one process and the same batches: what else the machine does falls on all alike, but the order changes from turn to
turn. Each system's words are its own translations', and a ratio is the median over turns of its words per second by
the plain engine's in the same turn. `time` is the same of sentences: longer translations count against it. BLEU is the
mean over silos. Threads are those of OMP_NUM_THREADS; the seconds are the processor's with `--busy`, else the clock's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedmt.corpus.batches import Examples
from fedmt.corpus.pairs import Text
from fedmt.corpus.silos import Gathered, gather
from fedmt.engine import device
from fedmt.engine import engine as engines
from fedmt.engine.decoder import translate
from fedmt.engine.device import Machine
from fedmt.engine.engine import Engine
from fedmt.engine.pieces import learn
from fedmt.engine.steps import States, forced
from fedmt.engine.trainer import Trainer, pace
from fedmt.learner import encoded
from fedmt.memory import datastore, quantise, retrieve
from fedmt.memory.index import Codes
from fedmt.memory.quantise import Quantiser
from fedmt.memory.retrieve import Retrieval
from fedmt.recipe import Decode, Memory, Recipe, Scratch
from fedmt.score.statistics import measure

SEED = 1
FORCED_TOKENS = 4000


@dataclass
class System:
    """One of the three, and what its turns gave."""

    name: str
    probes: int
    memory: Retrieval | None
    speeds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    bleu: float = 0.0

    @property
    def looked_up(self) -> float:
        return self.memory.looked_up / max(1, self.memory.asked) if self.memory else 0.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def trained(text: Gathered, plan: Recipe, machine: Machine, cache: Path) -> Engine:
    """The engine of the public text, made once for each folder, text and number of epochs."""
    epochs = plan.train.public_epochs
    # What the silos are tested on is not in the public text: of other silos it is another text.
    pairs = sum(len(one.train) for one in text.public)
    folder = cache / f"engine-{epochs}-{pairs}-{SEED}"
    if folder.is_dir():
        return engines.load(folder)
    sentences = (sentence for one in text.public for pair in one.train for sentence in pair)
    targets = sorted({one.direction.target for one in text.public})
    made = engines.scratch(Scratch(size="small"), learn(sentences, None, targets, SEED, lambda _: None), SEED)
    train, dev = encoded(made, text.public, plan.train.longest, lambda _: None)
    trainer, begun = Trainer(made, plan.train, machine), time.perf_counter()
    total = epochs * trainer.steps(train)
    trainer.fit(
        train,
        epochs=epochs,
        seed=SEED,
        pace=pace(plan.train, 0, total, int(made.model.config.d_model)),
        total=total,
    )
    say(f"trained {total} steps in {time.perf_counter() - begun:.0f} s; dev loss {trainer.loss(dev):.3f}")
    made.save(folder)
    return made


def states(engine: Engine, examples: Examples, text: Text, machine: Machine) -> Iterator[States]:
    return forced(engine, examples, machine, FORCED_TOKENS, len(engine.vocabulary.prefix(text.direction)))


def indexed(engine: Engine, text: Gathered, plan: Recipe, machine: Machine) -> tuple[Quantiser, Codes]:
    """All silos' training text by a quantiser of the public text."""
    settings, longest = plan.memory or Memory(), plan.train.longest
    public = encoded(engine, text.public, longest, lambda _: None)[0]
    quantiser = quantise.train(datastore.floats(states(engine, public, text.public[0], machine)), settings, SEED)

    def parts() -> Iterator[datastore.Bytes]:
        for one in text.silos:
            train = encoded(engine, [one], longest, lambda _: None)[0]
            yield from datastore.build(states(engine, train, one, machine), quantiser)

    return quantiser, Codes(quantiser, parts(), int(engine.model.config.vocab_size))


def systems(engine: Engine, index: Codes, teacher: Text, plan: Recipe, machine: Machine) -> list[System]:
    """Without a memory, with all of it asked for every token, and with the defaults."""
    settings = plan.memory or Memory()
    most = settings.model_copy(update={"gate": None, "probes": settings.most_probes})
    dev = encoded(engine, [teacher], plan.train.longest, lambda _: None)[1]
    found = [System("plain engine", 0, None)]
    for name, how in (("full retrieval", most), ("default", settings)):
        tuned = retrieve.tune(index, engine, states(engine, dev, teacher, machine), how, SEED)
        say(
            f"{name}: learnt of {teacher.name}'s {tuned.tokens:,} dev tokens; held-out loss {tuned.engine_loss:.3f} "
            f"without, {tuned.loss:.3f} with all looked up in {tuned.adaptive.probes} lists; "
            f"the gate lets {tuned.looked_up:.0%} pass"
        )
        found.append(System(name, tuned.adaptive.probes, Retrieval(index, tuned.adaptive)))
    return found


def turn(
    system: System, engine: Engine, silos: list[Text], beam: int, machine: Machine, clock: Callable[[], float]
) -> None:
    begun = clock()
    said = [
        translate(
            engine, [pair.source for pair in one.test], one.direction, Decode(beam=beam), machine, memory=system.memory
        )
        for one in silos
    ]
    seconds = clock() - begun
    system.speeds.append(sum(len(line.split()) for lines in said for line in lines) / seconds)
    system.rates.append(sum(map(len, said)) / seconds)
    # The same in every turn: nothing here is random.
    system.bleu = statistics.fmean(
        measure(lines, [pair.target for pair in one.test], one.direction.target, ter=False).scores().bleu
        for lines, one in zip(said, silos, strict=True)
    )


def by_plain(found: list[float], plain: list[float]) -> float:
    return statistics.median(own / other for own, other in zip(found, plain, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", nargs="+", help="whose text is in the memory and is translated; else all eight")
    parser.add_argument("--teacher", default="smart-home", help="the silo whose dev text teaches how to look up")
    parser.add_argument("--beam", default="1,5")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=200, help="of each silo's test set")
    parser.add_argument("--epochs", type=int, default=8, help="of the public text that the engine is trained for")
    parser.add_argument("--busy", action="store_true", help="seconds of the processor, on a machine that others use")
    parser.add_argument("--cache", type=Path, help="where the engine is kept; else it goes when this ends")
    options = parser.parse_args()
    silos = {"source": "pypi", "preset": "german-english-8", "names": options.silos}
    plan = Recipe.model_validate({"silos": silos, "train": {"public_epochs": options.epochs}, "memory": {}})
    machine, text = device.choose(plan.compute), gather(plan)
    teacher = next((one for one in text.silos if one.name == options.teacher), text.silos[0])
    with tempfile.TemporaryDirectory() as aside:
        engine = trained(text, plan, machine, options.cache or Path(aside))
    quantiser, index = indexed(engine, text, plan, machine)
    asked = [Text(one.name, one.direction, [], [], one.test[: options.sentences]) for one in text.silos]
    clock = time.process_time if options.busy else time.perf_counter
    print(
        f"{len(index):,} records of {len(text.silos)} silos in {quantiser.list_count:,} lists, "
        f"{sum(len(one.test) for one in asked):,} sentences, {engine.parameters / 1e6:.1f} M parameters, "
        f"{machine.precision}, {machine.threads} threads, {options.repeats} turns, "
        f"seconds {'of the processor' if options.busy else 'by the clock'}\n"
    )
    print(f"{'beam':>4}  {'system':<15}{'words/s':>9}{'ratio':>7}{'time':>7}{'looked up':>11}{'probes':>8}{'BLEU':>7}")
    learnt = systems(engine, index, teacher, plan, machine)
    for beam in (int(one) for one in options.beam.split(",")):
        three = [replace(one, memory=one.memory and Retrieval(index, one.memory.adaptive)) for one in learnt]
        for one in three:
            one.speeds, one.rates = [], []
        for number in range(options.repeats):
            for place in range(len(three)):
                turn(three[(place + number) % len(three)], engine, asked, beam, machine, clock)
        plain = three[0]
        for one in three:
            print(
                f"{beam:>4}  {one.name:<15}{statistics.median(one.speeds):>9,.0f}"
                f"{by_plain(one.speeds, plain.speeds):>7.2f}{by_plain(one.rates, plain.rates):>7.2f}"
                f"{one.looked_up:>11.1%}{one.probes:>8}{one.bleu:>7.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
