"""Errors become lines and exit codes in one place; nothing else is ever shown."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fedmt
from fedmt.errors import CorpusError, QuorumError, RecipeError
from tests.conftest import Call

Raise = Callable[[BaseException], None]


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Raise:
    """A command that ends in a given way: `fedmt compare a b`."""

    def set(error: BaseException) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("fedmt.report.folder.RunFolder.open", fail)

    return set


def test_help_is_grouped_and_has_examples(call: Call) -> None:
    done = call("--help")
    assert (done.code, done.err) == (0, "")
    for group, commands in {
        "Train": "demo run",
        "Use": "translate score compare report memory attack",
        "Across sites": "site coordinator",
        "Prepare": "data keys recipe",
    }.items():
        inside = done.out[done.out.index(f"─ {group} ─") :]
        inside = inside[: inside.index("╰")]
        assert re.findall(r"│ (\w+) ", inside) == commands.split()
    assert "fedmt translate runs/courts" in done.out
    assert "Traceback" not in done.out


@pytest.mark.parametrize(
    "command",
    ["demo", "run", "translate", "score", "compare", "report", "data", "data inspect", "data fetch", "data convert",
     "data list", "keys", "keys new", "keys fingerprint",
     "site", "site init", "site check", "site run",
     "coordinator", "coordinator init", "coordinator register", "coordinator start", "coordinator run",
     "recipe", "recipe check", "recipe show", "recipe schema"],
)  # fmt: skip
def test_every_command_has_help(call: Call, command: str) -> None:
    done = call(*command.split(), "-h")
    assert (done.code, done.err) == (0, "")
    assert "Usage: fedmt" in done.out


def test_without_a_command_there_is_help(call: Call) -> None:
    assert call().out == call("--help").out


def test_the_version_is_the_packages(call: Call) -> None:
    assert call("--version").out == f"fedmt {fedmt.__version__}\n"
    pyproject = Path(fedmt.__file__).parents[2] / "pyproject.toml"
    assert f'version = "{fedmt.__version__}"' in pyproject.read_text()


def test_an_input_error_is_one_line_and_two(call: Call, raising: Raise) -> None:
    raising(CorpusError("a.tmx:3: is torn"))
    done = call("compare", "a", "b")
    assert (done.code, done.out, done.err) == (2, "", "error: a.tmx:3: is torn\n")


def test_a_failure_is_one_line_and_one(call: Call, raising: Raise) -> None:
    raising(QuorumError("1 of 3 silos answered"))
    done = call("compare", "a", "b")
    assert (done.code, done.err) == (1, "error: 1 of 3 silos answered\n")


def test_a_recipes_mistakes_are_a_line_each(call: Call, raising: Raise) -> None:
    raising(RecipeError(["r.yaml:1: one", "r.yaml:2: two"]))
    done = call("compare", "a", "b")
    assert (done.code, done.err) == (2, "error: r.yaml:1: one\nerror: r.yaml:2: two\n")


def test_what_stands_in_a_file_cannot_move_the_cursor(call: Call, raising: Raise) -> None:
    raising(CorpusError("a\nb\x1b[2Jc\u2028d"))
    assert call("compare", "a", "b").err == "error: a b [2Jc d\n"


def test_errors_are_json_too(call: Call, raising: Raise) -> None:
    raising(RecipeError(["r.yaml:1: one", "r.yaml:2: two"]))
    done = call("compare", "a", "b", "--json")
    assert done.records == [
        {"event": "error", "kind": "RecipeError", "errors": ["r.yaml:1: one", "r.yaml:2: two"], "exit_code": 2}
    ]
    assert done.err.count("\n") == 2


def test_what_should_not_happen_is_one_line_with_the_traceback_elsewhere(
    call: Call, raising: Raise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raising(ZeroDivisionError("division by zero"))
    done = call("compare", "a", "b")
    assert done.code == 1
    said = re.fullmatch(
        r"error: this should not have happened: ZeroDivisionError: division by zero; the traceback is in (\S+)\n",
        done.err,
    )
    assert said
    assert "ZeroDivisionError: division by zero" in Path(said[1]).read_text()
    assert "Traceback" in Path(said[1]).read_text()


def test_who_mends_the_program_may_see_the_traceback(
    call: Call, raising: Raise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMT_DEBUG", "1")
    raising(ZeroDivisionError("division by zero"))
    done = call("compare", "a", "b")
    assert done.code == 1
    assert done.err.startswith("Traceback")


def test_what_the_system_refuses_is_one_line(call: Call, raising: Raise) -> None:
    raising(PermissionError(13, "Permission denied", "runs/a"))
    done = call("compare", "a", "b")
    assert (done.code, done.err) == (1, "error: runs/a: Permission denied\n")


def test_a_stop_without_anything_to_resume(call: Call, raising: Raise) -> None:
    raising(KeyboardInterrupt())
    done = call("compare", "a", "b")
    assert (done.code, done.err) == (130, "stopped\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_program_in_one_line(number: signal.Signals, tmp_path: Path, toy_engine: Path) -> None:
    """As Ctrl-C does at a terminal, and a batch system at the end of a job's time."""
    reader, writer = os.pipe()
    program = [sys.executable, "-m", "fedmt", "translate", str(toy_engine), "--output", str(tmp_path / "out")]
    with subprocess.Popen(program, stdin=reader, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # The half-written output is there once the program waits for its first line.
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    os.close(reader)
    os.close(writer)
    assert (process.returncode, out, err) == (130, b"", b"stopped\n")
    assert list(tmp_path.iterdir()) == []


def test_the_installed_program_and_the_module_are_the_same() -> None:
    program = Path(sys.executable).with_name("fedmt")
    for command in ([str(program)], [sys.executable, "-m", "fedmt"]):
        done = subprocess.run([*command, "frobnicate"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: no such command 'frobnicate'; see fedmt --help\n"


def test_json_never_holds_what_is_no_json(call: Call) -> None:
    done = call("recipe", "check", "nothing", "--json")
    assert done.code == 2
    assert [json.loads(line)["event"] for line in done.out.splitlines()] == ["error"]
