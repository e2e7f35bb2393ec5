"""The server's part in a memory: it passes on keys that it cannot open, and merges records that it cannot read.

    quantiser → one silo invites → all seal their records → merge, shuffle → all open them → one tunes → all are scored

once for each direction: records do not say which they are of. Whatever is whole stands on disk, so a killed run goes
on; sealed records of a silo stay, so who joins later adds its own and nobody else repeats theirs, and who leaves is
left out of the next merge. Knows no text, and holds no key.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmt import files
from fedmt.errors import Failure, FedmtError, Refused
from fedmt.events import Choice, Listener, Note
from fedmt.exchange import codec
from fedmt.exchange.ledger import Ledger
from fedmt.federation import replies
from fedmt.federation.checkpoint import Shelf, State, over, under
from fedmt.federation.keeper import SENDER, adaptive_of, as_tensor, packed_adaptive
from fedmt.federation.messages import Number, Reply, Request
from fedmt.federation.poll import Poll
from fedmt.federation.transport import Transport
from fedmt.federation.work import ADMIT, INTRODUCE, INVITE, RECALL, RECITE, REMEMBER, TUNE
from fedmt.memory.datastore import Layout
from fedmt.memory.keys import Public
from fedmt.memory.quantise import Quantiser
from fedmt.memory.seal import Invitation
from fedmt.memory.sealed import LIMIT, Reader, SealFault, Session, same
from fedmt.memory.shuffle import merge
from fedmt.recipe import Recipe

__all__ = ["Memories", "Share"]

_NONE = (0, 0)


@dataclass(frozen=True)
class Share:
    """What all silos of a direction are sent: the engine, as a payload and how much that is (empty: each has it by its
    name, and `digest` says which), and the quantiser."""

    quantiser: Quantiser
    engine: codec.Payload = b""
    count: tuple[int, int] = _NONE
    digest: int = 0


class Memories:
    """Of one model of a run. `directions` says for each silo in which of them its text is, as an identifier."""

    def __init__(
        self,
        run: str,
        model: str,
        recipe: Recipe,
        transport: Transport,
        folder: Path,
        ledger: Ledger,
        listen: Listener,
        directions: Mapping[str, str],
    ) -> None:
        assert recipe.memory is not None
        self._run, self._model, self._recipe, self._settings = run, model, recipe, recipe.memory
        self._poll = Poll(transport, recipe.failures, folder, ledger, listen)
        self._folder, self._ledger, self._listen = folder, ledger, listen
        self._directions = directions
        self._shelf = Shelf(folder)

    def share(self, share: Share, members: Sequence[str]) -> dict[str, str]:
        """Everyone's records at every member; and of each direction the silo of the most dev text."""
        found: dict[str, str] = {}
        for way in dict.fromkeys(self._directions[silo] for silo in members):
            silos = [silo for silo in members if self._directions[silo] == way]
            invitation = self._invited(way, silos, share)
            count = self._remembered(way, silos, share, invitation)
            silos = [silo for silo in silos if silo in count]
            self._recalled(way, silos, invitation.session)
            self._tuned(way, silos)
            tuned = self._shelf.get(f"tune-{way}")
            assert tuned is not None
            found[way] = str(tuned.numbers["by"])
        return found

    def recite(self, members: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Statistics of each member's test set, translated with its memory."""
        scores: dict[str, dict[str, Tensor]] = {}
        for way in dict.fromkeys(self._directions[silo] for silo in members):
            about = self._shelf.get(f"recall-{way}")
            assert about is not None
            silos = [silo for silo in members if silo in about.numbers["about"]["silos"]]
            known = {**about.numbers["about"], "silos": silos}
            kept = self._once(f"recite-{way}", known, partial(self._recited, way, silos))
            scores |= {silo: under(silo, kept.tensors) for silo in silos}
        return {silo: table for silo, table in scores.items() if table}

    def _recited(self, way: str, silos: Sequence[str]) -> State:
        tuned, found = self._shelf.get(f"tune-{way}"), dict[str, Tensor]()
        assert tuned is not None

        def take(silo: str, table: dict[str, Tensor]) -> None:
            # A view would keep the whole reply.
            found.update({f"{silo}/{name}": tensor.clone() for name, tensor in table.items()})

        own = [silo for silo in silos if silo in tuned.numbers["own"]]
        if own:
            self._ask(RECITE, own, b"", {}, replies.statistics, take)
        if others := [silo for silo in silos if silo not in own]:
            payload, numbers = packed_adaptive(self._folder / way)
            self._ask(RECITE, others, payload, numbers, replies.statistics, take)
        return State(found)

    # ── stage by stage ──────────────────────────────────────────────────────────────────────────────────────────────

    def _invited(self, way: str, silos: Sequence[str], share: Share) -> Invitation:
        """A session, made by the first member that answers; whoever is not in it is admitted by one who is."""
        quantiser = share.quantiser

        def ask() -> State:
            payload = codec.pack({"quantiser": as_tensor(bytes.fromhex(quantiser.hash))})
            numbers: dict[str, Number] = {"record_bytes": Layout.of(quantiser).record_bytes}
            return State({"invitation": self._from_one(INVITE, silos, payload, numbers)})

        kept = self._once(f"invite-{way}", {"quantiser": quantiser.hash}, ask)
        invitation = Invitation.decode(kept.tensors["invitation"].numpy().tobytes())
        if invitation.session.quantiser != quantiser.hash:
            raise Failure(f"memory of {way}: {silos[0]} made a session for another quantiser")
        return invitation

    def _admitted(self, way: str, joiner: str, invitation: Invitation) -> Invitation:
        """The session with one silo more in it: its key is asked for, and members, who go by their own list of keys,
        wrap the session's for it."""
        kept = self._shelf.get(f"invite-{way}")
        assert kept is not None
        found: list[bytes] = []
        read: Callable[[Reply], bytes] = lambda reply: replies.bytes_of(reply, "public")  # noqa: E731
        self._ask(INTRODUCE, [joiner], b"", {}, read, lambda _, key: found.append(key))
        if Public(found[0]).fingerprint in {key.recipient for key in invitation.keys}:
            return invitation
        payload = codec.pack({"invitation": as_tensor(invitation.encode()), "joiner": as_tensor(found[0])})
        inside = [silo for silo in self.records(way) if silo != joiner]
        tensors = {"invitation": self._from_one(ADMIT, inside, payload, {})}
        sealed = self._ledger.seal()
        numbers = {"about": kept.numbers["about"], "ledgers": [*kept.numbers["ledgers"], sealed]}
        self._shelf.put(f"invite-{way}", State(tensors, numbers))
        self._ledger.settle(sealed)
        return Invitation.decode(bytes(tensors["invitation"].numpy()))

    def _from_one(
        self, step: str, silos: Sequence[str], payload: codec.Payload, numbers: Mapping[str, Number]
    ) -> Tensor:
        """What the first of these silos says that answers well."""
        found: list[Tensor] = []

        def read(reply: Reply) -> Tensor:
            content = replies.bytes_of(reply, "invitation")
            try:
                Invitation.decode(content)
            except SealFault as fault:
                raise Refused(reply.silo, f"it sent no invitation: {fault}") from None
            return as_tensor(content)

        last: Exception | None = None
        for silo in silos:
            try:
                self._ask(step, [silo], payload, numbers, read, lambda _, one: found.append(one))
            except Failure as error:
                last = error
                continue
            return found[0]
        raise Failure(f"memory: no silo answered {step}: {last}")

    def records(self, way: str) -> dict[str, int]:
        """Who has sent how many."""
        kept = self._shelf.get(f"remember-{way}")
        return {} if kept is None else dict(kept.numbers["records"])

    def _remembered(self, way: str, silos: Sequence[str], share: Share, invitation: Invitation) -> dict[str, int]:
        """Sealed records of all these silos, of whom only those are asked who have not sent theirs."""
        name, folder, session = f"remember-{way}", self._folder / way / "sealed", invitation.session
        kept = self._shelf.get(name)
        numbers: dict[str, Any] = {"session": session.id, "records": {}, "dev": {}, "ledgers": []}
        if kept is not None and kept.numbers["session"] == session.id:
            numbers = dict(kept.numbers)
            for sealed in numbers["ledgers"]:
                self._ledger.settle(sealed)
        # Who is no longer in has nothing here either.
        for silo in set(numbers["records"]).difference(silos):
            (folder / silo).unlink(missing_ok=True)
            numbers |= {key: {one: n for one, n in numbers[key].items() if one != silo} for key in ("records", "dev")}
            self._shelf.put(name, State({}, numbers))
        if asked := [silo for silo in silos if silo not in numbers["records"]]:
            self._ledger.forget()
            for joiner in asked if numbers["records"] else ():
                invitation = self._admitted(way, joiner, invitation)
            tensors = {"invitation": as_tensor(invitation.encode())}
            arrays = share.quantiser.arrays()
            tensors |= over("quantiser", {key: torch.from_numpy(array) for key, array in arrays.items()})
            if len(share.engine):
                tensors["engine"] = as_tensor(bytes(share.engine))
            payload = codec.pack(tensors)

            def read(reply: Reply) -> tuple[Path, Mapping[str, Number]]:
                replies.check_refusal(reply)
                return self._sealed(reply, folder, session), reply.numbers

            def take(silo: str, value: tuple[Path, Mapping[str, Number]]) -> None:
                value[0].replace(folder / silo)
                numbers["records"] = {**numbers["records"], silo: int(value[1]["records"])}
                numbers["dev"] = {**numbers["dev"], silo: int(value[1]["dev"])}
                pruned = int(value[1].get("pruned", 0))
                left = f", {pruned:,} left out" if pruned else ""
                self._listen(Note(f"{silo}: {int(value[1]['records']):,} records sealed{left}"))

            self._ask(REMEMBER, asked, payload, {"digest": share.digest}, read, take, share.count, len(silos))
            sealed = self._ledger.seal()
            self._shelf.put(name, State({}, {**numbers, "ledgers": [*numbers["ledgers"], sealed]}))
            self._ledger.settle(sealed)
        return {silo: int(numbers["records"][silo]) for silo in silos if silo in numbers["records"]}

    def _sealed(self, reply: Reply, folder: Path, session: Session) -> Path:
        """The reply's payload as a file, found to be what a silo seals; of what is in it nothing is known here."""
        most = min(self._settings.most or LIMIT, LIMIT)
        path = folder / f".{reply.silo}.part"
        files.write_bytes(path, reply.payload)
        try:
            with Reader(path) as reader:
                same(reply.silo, reader.header.session, session)
                count = reader.header.count
                if count != reply.numbers.get("records") or count > most or type(reply.numbers.get("dev")) is not int:
                    raise SealFault(
                        reply.silo, "count", f"has {count:,} records; allowed: what it says, at most {most:,}"
                    )
                if len(reader.header.manifests) != 1:
                    raise SealFault(reply.silo, "manifest", "is no silo's own file")
                for _ in reader.rows():
                    pass
        except SealFault as fault:
            path.unlink(missing_ok=True)
            raise Refused(reply.silo, f"its sealed records: {fault}") from None
        return path

    def _recalled(self, way: str, silos: Sequence[str], session: Session) -> None:
        folder, counts = self._folder / way, self.records(way)

        def ask() -> State:
            merged = folder / "merged"
            most = min(self._settings.most or LIMIT, LIMIT)
            merge([folder / "sealed" / silo for silo in silos], merged, each=most)
            numbers: dict[str, Number] = {f"{SENDER}{silo}": counts[silo] for silo in silos}
            with merged.open("rb") as file:
                payload = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._ask(RECALL, silos, payload, numbers, replies.check_refusal, lambda *_: None)
            return State()

        self._once(f"recall-{way}", {"session": session.id, "silos": list(silos)}, ask)

    def _tuned(self, way: str, silos: Sequence[str]) -> None:
        """Every silo learns for itself, or one for all; one, too, for those who have too little dev text."""
        about, kept = self._shelf.get(f"recall-{way}"), self._shelf.get(f"remember-{way}")
        assert about is not None
        assert kept is not None
        dev: dict[str, int] = kept.numbers["dev"]
        order = sorted((silo for silo in silos if dev[silo]), key=lambda silo: -dev[silo])
        told = self._once(
            f"tune-{way}", about.numbers["about"], partial(self._asked_to_tune, way, silos, order)
        ).numbers
        for silo, numbers in told["told"].items():
            said = (
                f"{numbers['neighbours']} neighbours, {numbers['probes']} lists, {numbers['looked_up']:.0%} of tokens"
            )
            why = f"its dev text: {numbers['engine_loss']:.2f} nats a token without, {numbers['loss']:.2f} with"
            self._listen(Choice(f"memory of {way} at {silo}", said, why))

    def _asked_to_tune(self, way: str, silos: Sequence[str], order: Sequence[str]) -> State:
        told: dict[str, Mapping[str, Number]] = {}
        seed = {"seed": self._recipe.seed}

        def note(silo: str, numbers: Mapping[str, Number]) -> None:
            if numbers.get("learnt"):
                told[silo] = dict(numbers)

        def read(reply: Reply) -> Mapping[str, Number]:
            replies.check_refusal(reply)
            return reply.numbers

        def read_all(reply: Reply) -> Mapping[str, Number]:
            replies.statistics(reply)
            try:
                adaptive_of(reply, self._folder / way)
            except FedmtError as error:
                raise Refused(reply.silo, str(error)) from None
            return reply.numbers

        if self._settings.learns == "each":
            self._ask(TUNE, silos, b"", {**seed, "own": 1}, read, note)
        own = list(told)
        last: Exception | None = None
        for silo in order if len(own) < len(silos) else ():
            try:
                self._ask(TUNE, [silo], b"", seed, read_all, note)
            except Failure as error:
                last = error
                continue
            return State({}, {"told": told, "own": own, "by": silo})
        if len(own) < len(silos):
            why = last or "there is none"
            raise Failure(f"memory of {way}: no silo's dev text could teach how to use it: {why}")
        return State({}, {"told": told, "own": own, "by": order[0]})

    def _once(self, name: str, about: Mapping[str, Any], ask: Callable[[], State]) -> State:
        """What is asked once, and kept with the ledger's lines; again only where it would be about something else."""
        kept = self._shelf.get(name)
        before: list[Any] = [] if kept is None else list(kept.numbers["ledgers"])
        for sealed in before:
            self._ledger.settle(sealed)
        if kept is not None and kept.numbers["about"] == about:
            return kept
        self._ledger.forget()
        state = ask()
        sealed = self._ledger.seal()
        state = State(state.tensors, {**state.numbers, "about": dict(about), "ledgers": [*before, sealed]})
        self._shelf.put(name, state)
        self._ledger.settle(sealed)
        return state

    def _ask(
        self,
        step: str,
        silos: Sequence[str],
        payload: codec.Payload,
        numbers: Mapping[str, Number],
        read: Callable[[Reply], Any],
        take: Callable[[str, Any], None],
        count: tuple[int, int] = _NONE,
        of: int | None = None,
    ) -> None:
        """`count` is how many parameters and tensors go down; `of` how many silos there are, with those not asked."""
        requests = [Request(self._run, self._model, 0, step, silo, payload, dict(numbers)) for silo in silos]
        had = 0 if of is None else of - len(silos)
        self._poll(requests, dict.fromkeys(silos, count), read, take, lambda _: _NONE, of, had)
