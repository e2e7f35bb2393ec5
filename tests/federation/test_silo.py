"""A silo answers the same request the same way twice, goes on where it was killed, and lets no text out."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmt.choices import CodecFp32
from fedmt.errors import Diverged, EngineError
from fedmt.exchange import codec
from fedmt.federation.checkpoint import State
from fedmt.federation.messages import Reply, Request, wire
from fedmt.federation.silo import Silo
from fedmt.federation.work import FitOrder, FitResult, because
from fedmt.recipe import Recipe
from tests.federation.toy import Arithmetic, Engine, Tensors, drawn, recipe, same, start

FP32 = CodecFp32()
SETTINGS = {"rounds": 5, "epochs": 1, "seed": 1, "personal": 0}


def ask(round: int = 1, tensors: Tensors | None = None, step: str = "fit", **changes: Any) -> Request:
    payload = codec.encode(start() if tensors is None else tensors, FP32)
    numbers = {**SETTINGS, **changes.pop("numbers", {})}
    return Request(
        **{"run": "r", "model": "m", "round": round, "step": step, "silo": "s", **changes},
        payload=payload,
        numbers=numbers,
    )


class Setup:
    def __init__(self, folder: Path | None, settings: Recipe | None = None, **learner: Any) -> None:
        self.engine = Engine()
        self.learner = Arithmetic(self.engine, goal=2.0, **learner)
        self.silo = Silo("s", self.learner, folder, settings or recipe())


def tensors_of(reply: Reply) -> Tensors:
    assert reply.refused is None
    return codec.decode(reply.payload)


def test_it_sends_what_it_trained_with_its_numbers(tmp_path: Path) -> None:
    setup = Setup(tmp_path, samples=12)
    reply = setup.silo.answer(ask())
    assert same(tensors_of(reply), setup.engine.tensors)
    assert not same(tensors_of(reply), start())
    assert same(setup.learner.received[0], start())
    dev = sum(float((tensor - 2).square().sum()) for tensor in start().values())
    spent = {"seconds", "choose_seconds", "encode_seconds"}
    assert reply.numbers.keys() == {"samples", "train_loss", "dev_loss", "tokens", "steps"} | spent
    assert (reply.numbers["samples"], reply.numbers["steps"]) == (12, 4)
    assert reply.numbers["dev_loss"] == pytest.approx(dev)


def test_asked_again_it_sends_the_kept_reply_without_training(tmp_path: Path) -> None:
    first = Setup(tmp_path)
    reply = first.silo.answer(ask())
    assert wire(first.silo.answer(ask())) == wire(reply)
    other = Setup(tmp_path)
    assert wire(other.silo.answer(ask())) == wire(reply)
    assert (len(first.learner.fits), len(other.learner.fits)) == (1, 0)


def test_without_a_folder_it_never_trains_a_round_twice() -> None:
    setup = Setup(None)
    setup.silo.answer(ask())
    assert setup.silo.answer(ask()).refused == "over"
    assert len(setup.learner.fits) == 1


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (ask(1), "over"),
        (ask(2, {name: tensor + 1 for name, tensor in start().items()}), "other"),
        (ask(2, numbers={"epochs": 2}), "other"),
        (ask(6), "beyond"),
        (ask(0), "over"),
        (ask(0, model="n"), "beyond"),
        (ask(3, step="dance"), "step"),
        (ask(3, {"a": torch.ones(3, 2)}), "mismatch"),
        (ask(3, {**start(), "x": torch.ones(1)}), "mismatch"),
        (ask(3, {"a": torch.ones(2, 3)}), "missing"),
        (ask(3, {"a": torch.ones(2, 3)}, step="score:dev"), "missing"),
    ],
)
def test_what_it_cannot_do_it_refuses(tmp_path: Path, request_: Request, refused: str) -> None:
    setup = Setup(tmp_path)
    setup.silo.answer(ask(2))
    reply = setup.silo.answer(request_)
    assert reply.refused == refused
    assert because(refused) != refused
    assert not reply.payload
    assert len(setup.learner.fits) == 1


def test_bytes_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    assert setup.silo.answer(Request("r", "m", 1, "fit", "s", b"garbage", SETTINGS)).refused == "payload"


def test_it_may_miss_rounds_and_go_on(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.silo.answer(ask(1))
    assert setup.silo.answer(ask(4)).refused is None


@pytest.mark.parametrize(("optimizer", "kept"), [("kept", True), ("fresh", False)])
@pytest.mark.parametrize("on_disk", [True, False])
def test_the_optimiser_goes_from_round_to_round_unless_it_is_fresh(
    tmp_path: Path, optimizer: str, kept: bool, on_disk: bool
) -> None:
    settings = recipe(train={"optimizer": optimizer})
    folder = tmp_path if on_disk else None
    setup = Setup(folder, settings)
    setup.silo.answer(ask(1))
    second = Setup(folder, settings) if on_disk else setup
    second.silo.answer(ask(2))
    state = second.learner.states[-1]
    assert (state is not None) == kept
    if state is not None:
        assert state.numbers["total"] == 4


def test_models_and_runs_have_their_own_states(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.silo.answer(ask(1))
    changed: list[dict[str, Any]] = [{"model": "personal:s"}, {"run": "r2"}]
    for changes in changed:
        assert setup.silo.answer(replace(ask(1), **changes)).refused is None
    assert setup.learner.states == [None, None, None]
    setup.silo.forget("r", "m")
    assert setup.silo.answer(ask(1)).refused is None
    assert len(setup.learner.fits) == 4


def test_a_seed_is_of_its_silo_and_round_but_not_of_the_model(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for request in (ask(1), ask(2), ask(1, model="alone:s")):
        setup.silo.answer(request)
    first, second, alone = (order.seed for order in setup.learner.fits)
    assert first == alone != second
    other = Setup(None)
    other.silo.answer(ask(1, silo="t"))
    assert other.learner.fits[0].seed != first


def test_of_a_random_half_only_the_drawn_tensors_travel(tmp_path: Path) -> None:
    settings = recipe(selector={"up": {"kind": "random", "share": 0.5}}, seed=9)
    setup = Setup(tmp_path, settings)
    sent = [sorted(tensors_of(setup.silo.answer(ask(round)))) for round in (1, 2, 3, 4)]
    assert sent == [sorted(drawn(settings.selector.up, 9, round, "s")) for round in (1, 2, 3, 4)]
    assert len({tuple(names) for names in sent}) > 1


@pytest.mark.parametrize("on_disk", [True, False])
def test_what_it_was_not_sent_it_keeps_of_its_own(tmp_path: Path, on_disk: bool) -> None:
    settings = recipe(selector={"down": {"kind": "random", "share": 0.5}})
    folder = tmp_path if on_disk else None
    setup = Setup(folder, settings)
    own = {name: tensor.clone() for name, tensor in tensors_of(setup.silo.answer(ask(1))).items()}
    for tensor in setup.engine.tensors.values():
        tensor.fill_(99.0)  # another silo used the engine in between
    again = Setup(folder, settings) if on_disk else setup
    again.silo.answer(ask(2, {"b": torch.tensor([5.0, 6.0])}))
    assert same(again.learner.received[-1], {**own, "b": torch.tensor([5.0, 6.0])})


class Broken(Exception):
    pass


def failing(error: BaseException) -> Callable[[str], None]:
    def check(_: str) -> None:
        raise error

    return check


def test_a_failure_is_a_refusal_that_names_its_class_and_keeps_its_words(tmp_path: Path) -> None:
    setup = Setup(tmp_path, check=failing(Broken("Der Patient heißt Müller")))
    reply = setup.silo.answer(ask())
    assert reply.refused == "failed:Broken"
    assert because("failed:Broken") == "it failed with Broken"
    assert b"Patient" not in wire(reply)
    assert "Der Patient heißt Müller" in (tmp_path / "errors.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("error", "refused", "told"),
    [
        (Diverged("no finite gradient"), "diverged", "its training diverged; lower the highest learning rate"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk", "its disk is full"),
        (OSError(errno.ECONNRESET, "reset"), "failed:ConnectionResetError", "it failed with ConnectionResetError"),
    ],
)
def test_what_can_be_mended_is_told(tmp_path: Path, error: Exception, refused: str, told: str) -> None:
    reply = Setup(tmp_path, check=failing(error)).silo.answer(ask())
    assert reply.refused == refused
    assert because(refused).startswith(told)


def test_a_silo_that_cannot_even_note_a_failure_still_answers(tmp_path: Path) -> None:
    (tmp_path / "errors.log").mkdir()
    assert Setup(tmp_path, check=failing(Broken())).silo.answer(ask()).refused == "failed:Broken"


@pytest.mark.parametrize("error", [EngineError("no such engine"), KeyboardInterrupt()])
def test_what_the_user_did_is_not_a_refusal(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        Setup(tmp_path, check=failing(error)).silo.answer(ask())


def test_scores_are_kept_until_other_tensors_are_scored(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    first = setup.silo.answer(ask(0, step="score:test"))
    statistics, _ = codec.unpack(first.payload)
    assert statistics["counts"].tolist() == [1, 4]
    assert statistics["bleu"].dtype == torch.float64
    again = Setup(tmp_path)
    assert wire(again.silo.answer(ask(0, step="score:test"))) == wire(first)
    assert again.learner.scored == 0
    other = again.silo.answer(ask(0, {name: tensor * 2 for name, tensor in start().items()}, step="score:test"))
    assert other.payload != first.payload
    assert again.silo.answer(ask(0, step="score:dev")).payload != first.payload
    assert again.learner.scored == 2


@pytest.mark.parametrize(
    "statistics",
    [{"Guten Tag": torch.ones(1)}, {"t": torch.frombuffer(bytearray(b"Guten Tag"), dtype=torch.uint8)}],
)
def test_statistics_that_could_hold_text_stay_at_home(tmp_path: Path, statistics: Mapping[str, Tensor]) -> None:
    class Talkative(Arithmetic):
        def score(self, model: str, set: str) -> Mapping[str, Tensor]:  # noqa: ARG002
            return statistics

    reply = Silo("s", Talkative(Engine(), 1.0), tmp_path, recipe()).answer(ask(0, step="score:test"))
    assert reply.refused == "statistics"
    assert not reply.payload


def test_the_loss_of_an_engine_is_asked_without_training(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    reply = setup.silo.answer(ask(5, step="loss", numbers={"epochs": 0}))
    assert reply.numbers["dev_loss"] == pytest.approx(sum(float((t - 2).square().sum()) for t in start().values()))
    assert not reply.payload
    assert same(setup.engine.tensors, start())


def test_no_dev_set_is_no_loss(tmp_path: Path) -> None:
    class Blind(Arithmetic):
        def fit(self, order: FitOrder, state: State | None, keep: Callable[[State], None]) -> tuple[FitResult, State]:
            result, after = super().fit(order, state, keep)
            return replace(result, dev_loss=None), after

    reply = Silo("s", Blind(Engine(), 1.0), tmp_path, recipe()).answer(ask())
    assert "dev_loss" not in reply.numbers
