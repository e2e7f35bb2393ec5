"""A silo's part in a memory: it seals its records, opens everyone's, and says how well it then translates.

    invite, admit   make a session's content key; wrap it for one more, who has introduced itself
    remember        text → records → one sealed file
    recall          everyone's sealed records → opened, checked, kept
    tune, recite    learn from dev text how to use them; score the test set with them

Everything is kept on disk: asked again, a silo answers with the same file. What it opened stays in its own folder.
"""

from __future__ import annotations

import mmap
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from fedmt import files
from fedmt.errors import Failure, RunError
from fedmt.exchange import codec
from fedmt.federation.checkpoint import State, load, save, under
from fedmt.federation.messages import Number, Reply, Request, reply_to
from fedmt.federation.work import ADMIT, INTRODUCE, INVITE, RECALL, RECITE, REMEMBER, TUNE, Refusal, Scribe
from fedmt.memory import datastore
from fedmt.memory.adaptive import Adaptive
from fedmt.memory.datastore import Records
from fedmt.memory.index import Codes
from fedmt.memory.keys import Public, Ring
from fedmt.memory.quantise import Quantiser, read_sheet, write_sheet
from fedmt.memory.retrieve import Retrieval
from fedmt.memory.seal import Content, Invitation, enter, invite, seal, unseal
from fedmt.memory.sealed import LIMIT, SealFault, Session
from fedmt.memory.shuffle import scattered
from fedmt.recipe import Recipe

__all__ = ["FORMAT", "Keeper", "adaptive_of", "as_tensor", "packed_adaptive"]

FORMAT = "1"
SENDER = "from."

Receive = Callable[[Request, bytes], Mapping[str, Tensor]]
"""The engine that a payload brings, whole, as the silo itself reads it."""


class Keeper:
    """`folder` is the silo's; each session of a run has a folder of its own in it."""

    def __init__(self, name: str, learner: Scribe, folder: Path, recipe: Recipe, ring: Ring) -> None:
        assert recipe.memory is not None
        self._name, self._learner, self._recipe, self._ring = name, learner, recipe, ring
        self._settings = recipe.memory
        self._folder = folder
        self._index: tuple[Path, int, Codes] | None = None

    def house(self, run: str, model: str) -> Path:
        return self._folder / "memory" / quote(run, safe="") / quote(model, safe="")

    def answer(self, request: Request, receive: Receive) -> Reply:
        house = self.house(request.run, request.model)
        try:
            if request.step == INVITE:
                return self._invite(request, house)
            if request.step == INTRODUCE:
                return reply_to(request, codec.pack({"public": as_tensor(self._ring.private.public.raw)}))
            if request.step == ADMIT:
                return self._admit(request)
            if request.step == REMEMBER:
                return self._remember(request, house, receive)
            if request.step == RECALL:
                return self._recall(request, house)
            if request.step == TUNE:
                return self._tune(request, house)
            assert request.step == RECITE
            return self._recite(request, house)
        except RunError as error:
            self._note(house, str(error))
            raise Refusal("sealed:records") from None
        except SealFault as fault:
            # Its words name files and fingerprints; what travels is the kind.
            self._note(house, str(fault))
            raise Refusal(
                "uninvited" if fault.reason == "key" else f"sealed:{fault.reason.replace(' ', '-')}"
            ) from None

    # ── the session ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _invite(self, request: Request, house: Path) -> Reply:
        """This silo makes the content key. The server has passed on who takes part; only members known here do."""
        kept = house / "invitation"
        tensors = _unpacked(request)
        digest = bytes_of(tensors, "quantiser").hex()
        if kept.exists():
            found = Invitation.decode(kept.read_bytes())
            if found.session.quantiser == digest:
                return reply_to(request, codec.pack({"invitation": as_tensor(found.encode())}))
        session = Session.new(digest, self._format, int(request.numbers["record_bytes"]))
        _, made = invite(session, self._ring.private, self._ring.members.values())
        files.write_bytes(kept, made.encode())
        return reply_to(request, codec.pack({"invitation": as_tensor(made.encode())}))

    def _admit(self, request: Request) -> Reply:
        """Let somebody in whose key was compared here."""
        tensors = _unpacked(request)
        invitation = Invitation.decode(bytes_of(tensors, "invitation"))
        joiner = Public(bytes_of(tensors, "joiner"))
        if joiner not in self._ring.members.values():
            raise Refusal("stranger")
        content = self._enter(invitation, invitation.session.quantiser)
        admitted = invitation.admit(content, self._ring.private, joiner)
        return reply_to(request, codec.pack({"invitation": as_tensor(admitted.encode())}))

    def _enter(self, invitation: Invitation, quantiser: str) -> Content:
        return enter(invitation, self._ring.private, self._ring.members, quantiser, self._format)

    @property
    def _format(self) -> str:
        return f"{self._learner.direction}.{FORMAT}"

    # ── what is sent, what is received ──────────────────────────────────────────────────────────────────────────────

    def _remember(self, request: Request, house: Path, receive: Receive) -> Reply:
        tensors = _unpacked(request)
        invitation = Invitation.decode(bytes_of(tensors, "invitation"))
        sealed, told = house / "sealed", house / "sealed.json"
        if told.exists():
            numbers = files.read_json(told)
            if numbers.pop("session") == invitation.session.id:
                return reply_to(request, _mapped(sealed), numbers)
        try:
            quantiser = Quantiser.of(under("quantiser", tensors), "quantiser")
        except RunError:
            raise Refusal("quantiser") from None
        if quantiser.hash != invitation.session.quantiser:
            raise Refusal("quantiser")
        content = enter(invitation, self._ring.private, self._ring.members, quantiser.hash, self._format)
        engine = receive(request, bytes_of(tensors, "engine") if "engine" in tensors else b"")
        self._learner.load(engine)
        save(house / "engine.safetensors", State(engine, {}))
        quantiser.save(house)
        begun = time.perf_counter()
        written = self._learner.records(quantiser)
        public, most = self._ring.private.public, min(self._settings.most or LIMIT, LIMIT)
        records = scattered(written.parts, invitation.session.record_bytes, house)
        count = seal(sealed, invitation, content, public, records, most)
        numbers = {
            "records": count,
            "pruned": written.pruned(),
            "dev": self._learner.dev_pairs,
            "seconds": time.perf_counter() - begun,
        }
        files.write_bytes(house / "session", invitation.encode())
        files.write_json(told, {"session": invitation.session.id, **numbers})
        return reply_to(request, _mapped(sealed), numbers)

    def _recall(self, request: Request, house: Path) -> Reply:
        """All of it or nothing: nothing is kept of a file of which one record is not as it was sealed."""
        quantiser, session = self._own(house)
        received, records = house / "received", house / "records"
        files.write_bytes(received, request.payload)
        senders = [name.removeprefix(SENDER) for name in request.numbers if name.startswith(SENDER)]
        everyone = {**self._ring.members, self._name: self._ring.private.public}
        try:
            with unseal(received, self._ring.private, session, everyone, senders) as opened:
                count = datastore.write(records, opened, quantiser, sent=opened.sent)
        finally:
            received.unlink(missing_ok=True)
        self._index = None
        shutil.rmtree(house / "own", ignore_errors=True)
        return reply_to(request, numbers={"records": count})

    # ── what comes of it ────────────────────────────────────────────────────────────────────────────────────────────

    def _tune(self, request: Request, house: Path) -> Reply:
        """Asked for its `own`, a silo keeps what it learns, and the reply has only how well it did."""
        index, own = self._codes(house), bool(request.numbers.get("own", 0))
        try:
            tuned = self._learner.tune(index, int(request.numbers["seed"]))
        except Failure:
            if own:
                return reply_to(request, numbers={"learnt": 0})
            raise Refusal("dev") from None
        tuned.adaptive.save(house / "own" if own else house)
        payload, numbers = packed_adaptive(house / "own" if own else house)
        told = {
            "learnt": 1,
            "tokens": tuned.tokens,
            "engine_loss": float(tuned.engine_loss),
            "loss": float(tuned.loss),
            "looked_up": float(tuned.looked_up),
        }
        return reply_to(request, b"" if own else payload, {**numbers, **told})

    def _recite(self, request: Request, house: Path) -> Reply:
        adaptive = adaptive_of(request, house) if len(request.payload) else self.learnt(house)
        memory = Retrieval(self._codes(house), adaptive)
        begun = time.perf_counter()
        statistics = self._learner.recite(request.model, memory)
        numbers: dict[str, Number] = {
            "asked": memory.asked,
            "looked_up": memory.looked_up,
            "seconds": time.perf_counter() - begun,
        }
        return reply_to(request, codec.pack(statistics), numbers)

    @staticmethod
    def learnt(house: Path) -> Adaptive:
        if not (house / "own" / "adaptive.json").exists():
            raise Refusal("untuned")
        return Adaptive.load(house / "own")

    def _codes(self, house: Path) -> Codes:
        """The index of what was recalled, and the engine that goes with it, resident."""
        quantiser, _ = self._own(house)
        records = Records.open(house / "records", quantiser)
        stamp = (house / "records" / "records.safetensors").stat().st_mtime_ns
        self._learner.load(load(house / "engine.safetensors").tensors)
        if self._index is None or self._index[:2] != (records.folder, stamp):
            self._index = records.folder, stamp, Codes(quantiser, records.parts(), self._learner.vocabulary_size)
        return self._index[2]

    def _own(self, house: Path) -> tuple[Quantiser, Session]:
        """What this silo sealed its own records with."""
        if not (house / "session").exists():
            raise Refusal("forgotten")
        session = Invitation.decode((house / "session").read_bytes()).session
        return Quantiser.load(house, session.quantiser), session

    def _note(self, house: Path, words: str) -> None:
        """What went wrong stays at the silo."""
        house.mkdir(parents=True, exist_ok=True)
        with (house / "errors.log").open("a", encoding="utf-8") as file:
            file.write(f"{words}\n")


def as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def bytes_of(tensors: Mapping[str, Tensor], name: str) -> bytes:
    if name not in tensors or tensors[name].dtype != torch.uint8:
        raise Refusal("payload")
    return tensors[name].numpy().tobytes()


def packed_adaptive(folder: Path) -> tuple[memoryview, dict[str, Number]]:
    """What `Adaptive.save` wrote, as it travels: tensors, and numbers (no threshold: none)."""
    tensors, numbers = read_sheet(folder, "adaptive")
    return codec.pack(tensors), {name: value for name, value in numbers.items() if value is not None}


def adaptive_of(message: Request | Reply, folder: Path) -> Adaptive:
    """What travelled, checked and kept in a folder."""
    numbers: dict[str, Number | None] = {"threshold": None}
    numbers |= {name: message.numbers[name] for name in _ADAPTIVE if name in message.numbers}
    tensors, _ = codec.unpack(message.payload)
    write_sheet(folder, "adaptive", {name: tensor.clone() for name, tensor in tensors.items()}, numbers)
    return Adaptive.load(folder)


_ADAPTIVE = ("schema", "neighbours", "width", "probes", "threshold", "temperature")


def _unpacked(request: Request) -> dict[str, Tensor]:
    try:
        return codec.unpack(request.payload)[0]
    except ValueError:
        raise Refusal("payload") from None


def _mapped(path: Path) -> memoryview:
    """A file as it lies: read as it is sent."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
