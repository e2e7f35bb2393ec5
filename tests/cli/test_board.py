"""What the live table knows: who trains, what was lost and sent, and how long it will still take."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from fedmt.cli.board import Board, duration
from fedmt.cli.live import Lines, Meter, Throttle
from fedmt.events import Dropped, Event, Fetching, Phase, Progress, Scored, Trained, Travelled


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(board: Board) -> str:
    console = Console(width=140, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(board.render())
    return capture.get()


def told(board: Board, *events: Event) -> None:
    for event in events:
        board.tell(event)


def trained(model: str, who: str, round: int, seconds: float) -> Trained:
    return Trained(model, who, round, 3.0, 2.5, 1000, 10, seconds)


def step(model: str, who: str, round: int, rounds: int, step: int, steps: int = 10) -> Progress:
    return Progress(model, who, round, rounds, step, steps, 3.2, 1234.0)


def test_a_row_shows_what_was_last_heard() -> None:
    board = Board("demo", {"federated": 2}, 2)
    told(
        board,
        Phase("federated", 2, 5, "federated"),
        step("federated", "clinic", 1, 2, 5),
        trained("federated", "clinic", 1, 10.0),
        Travelled("federated", "clinic", 1, 1_500_000, 7, 2_500_000, 7),
        Dropped("federated", "mail", 1, "no reply in 5 s"),
    )
    lines = drawn(board).splitlines()
    assert "demo  federated  part 2 of 5" in lines[0]
    assert "↑ 1.5 MB  ↓ 2.5 MB" in lines[0]
    clinic = next(line for line in lines if line.startswith("clinic"))
    assert clinic.split()[1] == "1/2"
    assert clinic.split()[-7:] == ["3.000", "2.500", "1.5", "MB", "2.5", "MB", "1,234"]
    assert any(line.startswith("mail") and "no reply" in line for line in lines)


def test_columns_that_nothing_stands_in_are_not_drawn() -> None:
    board = Board("demo")
    told(board, Phase("public", 1, 5, "public"), step("public", "public", 1, 3, 5))
    assert "dev loss" not in drawn(board)
    assert "sent" not in drawn(board)
    told(board, trained("public", "public", 1, 1.0))
    assert "dev loss" in drawn(board)


def test_the_scores_of_finished_models_stay() -> None:
    board = Board("demo")
    told(board, Phase("public", 1, 5, "public"), Scored("public", "clinic", "test", 12.34, 30.0, 9))
    told(
        board,
        Phase("alone", 2, 5, "alone:clinic"),
        Scored("alone:clinic", "clinic", "test", 23.45, 40.0, 9),
        Scored("alone:clinic", "mail", "test", 99.9, 99.9, 9),
    )
    assert board.finals == {"public": {"clinic": 12.34}, "alone": {"clinic": 23.45}}
    assert any(line.split() == ["clinic", "12.3", "23.4"] for line in drawn(board).splitlines())


def test_what_travels_to_be_scored_is_counted_and_is_no_row() -> None:
    board = Board("demo")
    told(board, Phase("public", 1, 5, "public"), Travelled("public", "clinic", 0, 10, 1, 20, 1))
    assert (board.up, board.down, board.rows) == (10, 20, {})


def test_a_download_is_a_bar_until_it_is_done() -> None:
    board = Board("demo")
    told(board, Phase("data", 1, 5), Fetching("pretix", 12_000_000, 39_500_000))
    assert "downloading pretix" in drawn(board)
    assert "12.0 MB of 39.5 MB" in drawn(board)
    told(board, Fetching("pretix", 39_500_000, 39_500_000))
    assert "pretix" not in drawn(board)


def left(board: Board) -> tuple[float, bool]:
    found = board.left()
    assert found is not None
    return round(found[0], 6), found[1]


# ── time left ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_participant_takes_as_long_as_its_pace_says() -> None:
    clock = Clock()
    board = Board("demo", {"federated": 2}, 2, clock)
    told(board, Phase("public", 1, 5, "public"), step("public", "public", 1, 4, 0))
    assert board.left() is None
    clock.now += 30
    told(board, step("public", "public", 1, 4, 5))
    # Half a round in 30 s: 60 s a round, of which 3.5 are left.
    assert left(board) == (210, False)


def test_a_turn_that_is_resumed_in_its_middle_is_not_thought_quick() -> None:
    clock = Clock()
    board = Board("demo", {}, 1, clock)
    told(board, Phase("public", 1, 5, "public"), step("public", "public", 1, 1, 8))
    clock.now += 10
    told(board, step("public", "public", 1, 1, 9))
    assert left(board) == (10, True)


def test_before_every_silo_had_a_turn_nothing_is_made_up() -> None:
    clock = Clock()
    board = Board("demo", {"federated": 3}, 2, clock)
    told(board, Phase("federated", 1, 5, "federated"), trained("federated", "clinic", 1, 10.0))
    told(board, step("federated", "mail", 1, 3, 0))
    assert board.left() is None
    clock.now += 4
    told(board, step("federated", "mail", 1, 3, 8))
    # clinic: two rounds of 10 s; mail: a fifth of this round and two more, at 5 s a round.
    assert left(board) == (20 + 5 * 2.2, True)
    told(board, trained("federated", "mail", 1, 5.0))
    assert left(board) == (30, True)


def test_models_still_to_come_are_counted_once_the_paces_are_known() -> None:
    board = Board("demo", {"alone": 2, "combined": 2, "federated": 2, "personal": 3}, 2, Clock())
    told(board, Phase("alone", 1, 5, "alone:clinic"), step("alone:clinic", "clinic", 1, 2, 1))
    told(board, trained("alone:clinic", "clinic", 1, 10.0))
    assert left(board) == (10, False)
    told(board, trained("alone:clinic", "clinic", 2, 10.0), Phase("alone", 2, 5, "alone:mail"))
    told(board, step("alone:mail", "mail", 1, 2, 1), trained("alone:mail", "mail", 1, 4.0))
    # 4 s here, then combined, federated (2 rounds of 14 s each) and personal (3).
    assert left(board) == (4 + 14 * (2 + 2 + 3), True)
    told(board, trained("alone:mail", "mail", 2, 4.0), Phase("combined", 3, 5, "combined"))
    told(board, step("combined", "combined", 1, 2, 10), trained("combined", "combined", 1, 12.0))
    assert left(board) == (12 + 14 * (2 + 3), True)
    told(board, Phase("personal", 4, 5, "personal:mail"), step("personal:mail", "mail", 1, 1, 5))
    told(board, trained("personal:mail", "mail", 1, 12.0))
    # clinic's personal turn is to come, and the federated model.
    assert left(board) == (14 * 2 + 3 * 10, True)


def test_the_links_of_a_chain_are_one_family() -> None:
    board = Board("demo", {"chained": 1}, 1)
    told(board, Phase("chained", 1, 5, "chained"), trained("chained-0:clinic", "clinic", 1, 1.0))
    told(board, trained("chained-1:mail", "mail", 1, 1.0))
    assert list(board.rows) == ["clinic", "mail"]


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_long_work_says_a_line_in_half_a_minute() -> None:
    said: list[str] = []
    clock = Clock()
    lines = Lines(said.append, clock)
    for number in range(1, 101):
        clock.now += 1
        lines(step("public", "public", 1, 1, number, 100))
    assert said == [f"public, public: step {number} of 100, loss 3.200" for number in (30, 60, 90)]


def test_rounds_are_summed_and_kept_apart() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    for round, up in ((1, 1000), (1, 2000), (2, 500)):
        lines(Travelled("federated", "x", round, up, 1, up, 1))
    lines(Phase("report", 5, 5))
    assert said == [
        "federated, round 1: silos sent 3.0 kB and received 3.0 kB",
        "federated, round 2: silos sent 500 B and received 500 B",
        "[5/5] report",
    ]


def test_progress_is_thinned_out_and_its_end_is_not() -> None:
    heard: list[Event] = []
    clock = Clock()
    listen = Throttle(heard.append, 1.0, clock)
    for number in range(1, 11):
        clock.now += 0.3
        listen(step("public", "public", 1, 1, number))
    assert [event.step for event in heard if isinstance(event, Progress)] == [1, 5, 9, 10]
    listen(Phase("report", 5, 5))
    assert heard[-1] == Phase("report", 5, 5)


def test_a_download_leaves_no_line_behind(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter()
    meter(Fetching("pretix", 1_000_000, 2_000_000))
    meter(Fetching("pretix", 2_000_000, 2_000_000))
    assert capsys.readouterr().err == "\rdownloading pretix  1.0 MB of 2.0 MB\x1b[K\r\x1b[K"


def test_telling_and_drawing_cost_next_to_nothing() -> None:
    """Three drawings a second, and some hundred events, must not be felt by training."""
    board = Board("demo", {"federated": 5}, 16)
    for number in range(16):
        told(board, step("federated", f"silo-{number}", 1, 5, 5), trained("federated", f"silo-{number}", 1, 2.0))
    begun = time.process_time()
    for number in range(1000):
        board.tell(step("federated", "silo-3", 2, 5, number, 1000))
    assert time.process_time() - begun < 0.5
    begun = time.process_time()
    for _ in range(3):
        drawn(board)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (65, "1:05"), (7390, "2:03:10")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
