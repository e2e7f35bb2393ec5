"""The program `fedmt`: its commands, and the one place where errors become lines and exit codes.

0 done · 1 failed · 2 what you gave is wrong · 130 stopped by Ctrl-C
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import fedmt
from fedmt.cli import (
    attack,
    compare,
    coordinator,
    data,
    demo,
    keys,
    memory,
    recipe,
    report,
    run,
    score,
    site,
    translate,
)
from fedmt.cli.session import Session, write_line
from fedmt.errors import FedmtError, RecipeError

try:
    from typer import TyperException as Misuse  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # as Flower's pins have it, Typer is older and its errors are click's
    from click import ClickException as Misuse  # type: ignore[assignment, unused-ignore]

__all__ = ["app", "call", "main"]

STOPPED = 130
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

_EXAMPLES = """[bold]Examples[/]

fedmt demo

fedmt run courts.yaml rounds=3 --out runs/courts

fedmt translate runs/courts < letter.de > letter.en
"""

app = typer.Typer(
    name="fedmt",
    help="Train one translation engine on text that stays where it is.",
    epilog=_EXAMPLES,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo", rich_help_panel="Train")(demo.demo)
app.command("run", rich_help_panel="Train")(run.run)
app.command("translate", rich_help_panel="Use")(translate.translate)
app.command("score", rich_help_panel="Use")(score.score)
app.command("compare", rich_help_panel="Use")(compare.compare)
app.command("report", rich_help_panel="Use")(report.report)
app.command("memory", rich_help_panel="Use")(memory.memory)
app.command("attack", rich_help_panel="Use")(attack.attack)
app.add_typer(site.app, name="site", rich_help_panel="Across sites")
app.add_typer(coordinator.app, name="coordinator", rich_help_panel="Across sites")
app.add_typer(data.app, name="data", rich_help_panel="Prepare")
app.add_typer(keys.app, name="keys", rich_help_panel="Prepare")
app.add_typer(recipe.app, name="recipe", rich_help_panel="Prepare")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedmt {fedmt.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has answered
        bool, typer.Option("--version", metavar="", help="Say the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> NoReturn:
    """The console script."""
    # A batch system ends a job by SIGTERM: stop as cleanly as for Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """One call of the program: its exit code. No exception leaves here."""
    session = Session(json="--json" in arguments)
    command = typer.main.get_command(app)
    try:
        with command.make_context("fedmt", list(arguments), obj=session) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as done:
        return done.exit_code
    except KeyboardInterrupt:
        return _stopped(session)
    except BrokenPipeError:
        # Who read our output has gone; the interpreter would complain of it once more at its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RecipeError as error:
        return _tell(session, error, error.mistakes, error.exit_code)
    except FedmtError as error:
        return _tell(session, error, [str(error)], error.exit_code)
    except Misuse as error:
        return _tell(session, error, [_usage(error)], 2)
    except OSError as error:
        # A full disk does not say which file was being written.
        place = session.folder if error.filename is None and error.errno in _DISK else error.filename
        if place is None:
            return _unexpected(session, error)
        code = 2 if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG) else 1
        return _tell(session, error, [f"{os.fsdecode(place)[:200]}: {error.strerror}"], code)
    except Exception as error:
        return _unexpected(session, error)


def _tell(session: Session, error: BaseException, lines: Sequence[str], code: int) -> int:
    lines = [_one_line(line) for line in lines]
    if session.json:
        write_line({"event": "error", "kind": type(error).__name__, "errors": lines, "exit_code": code})
    for line in lines:
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {line}", err=True)
    return code


def _one_line(text: str) -> str:
    """What stands in a file may hold line ends, or signs that move a terminal's cursor."""
    return "".join(sign if sign.isprintable() else " " for sign in " ".join(text.split()))


def _usage(error: Misuse) -> str:
    """Typer's own words, with where to read more."""
    text = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{text[:1].lower()}{text[1:]}; see {context.command_path if context else 'fedmt'} --help"


def _stopped(session: Session) -> int:
    resume = f"; resume with: {session.resume}" if session.resume else ""
    if session.json:
        write_line({"event": "stopped", "resume": session.resume})
    typer.echo(f"stopped{resume}", err=True)
    return STOPPED


def _unexpected(session: Session, error: Exception) -> int:
    """A mistake of ours: one line for the user, the traceback in a file for who mends it."""
    if os.environ.get("FEDMT_DEBUG") == "1":
        traceback.print_exception(error)
        return 1
    text = "".join(traceback.format_exception(error))
    folder = session.folder if session.folder is not None and session.folder.is_dir() else None
    try:
        file = (folder or Path(tempfile.mkdtemp(prefix="fedmt-"))) / "traceback.txt"
        file.write_text(text, encoding="utf-8")
        where = f"the traceback is in {file}"
    except OSError:
        where = "set FEDMT_DEBUG=1 to see the traceback"
    said = f"{type(error).__name__}: {error}"
    return _tell(session, error, [f"this should not have happened: {said[:200]}; {where}"], 1)
