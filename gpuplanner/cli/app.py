"""The application, its conventions and its exit codes."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpuplanner._version import __version__
from gpuplanner.errors import (
    CheckError,
    GpuPlannerError,
    GpuPlannerWarning,
    InfeasiblePlanError,
    MissingDependencyError,
    OutputError,
    message,
    printable,
)

TERMINATED = 128 + signal.SIGTERM
PATIENCE_S = 0.5
"""Compiled code that has not given way by then is interrupted."""

COMMANDS = (
    *("start", "start.notebook", "start.compiling", "inbox", "readings", "phases", "hints", "size"),
    *("forecast", "planning", "simulate", "compare", "cost", "machine", "diff", "pack", "waits"),
    *("recurring.check", "recurring.months", "recurring.watch"),
)
"""Modules of this room that hold commands."""

HEADINGS = {
    "Get started": ("start", "demo", "notebook"),
    "Import data": ("ingest", "describe"),
    "Understand usage": ("waits", "fairness", "phases", "hints"),
    "Plan": ("size", "forecast", "simulate", "compare", "plan", "pack", "cost"),
    "Deliver": ("report", "export", "diff", "schedule"),
    "Verify and monitor": ("verify", "check", "watch", "catalog"),
}
"""Commands by heading, in the order in which help lists them; a hidden command is named where it is used."""

ENDED_BY = {
    130: "gpuplanner: interrupted; results written before are intact",
    143: "gpuplanner: ended by SIGTERM; results written before are intact",
}
"""What is said when a signal ends a run, by exit code."""


class _Headed(TyperGroup):
    """Commands under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer names neither
        """Write a section for each heading; of a help text its first clause."""
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        for title, names in HEADINGS.items():
            listed = [name for name in names if name in shown]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, re.split(r"[:;.]\s", f"{shown[name].help} ")[0]) for name in listed]
                )


app = typer.Typer(
    name="gpuplanner",
    cls=_Headed,
    help="How many GPUs, cut how, for whom, by when, how sure, and what does it save?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        put(f"gpuplanner {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version, and end.")
    ] = False,
) -> None: ...


class Exit(IntEnum):
    """Exit codes that scripts may rely on."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    BAD_INPUT = 3
    INFEASIBLE = 4
    TIME_LIMIT = 5
    NOTHING_IN_TIME = 6
    MISSING_PART = 7
    INTERRUPTED = 130
    TERMINATED = 143


def main() -> None:
    """Run the command line and turn errors into one line and an exit code."""
    from gpuplanner.files.ours import overwriting

    register_commands(*sys.argv[1:2])
    warnings.formatwarning = _one_line
    with ended_by_sigterm(), overwriting(False):
        _run()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise ``SystemExit`` while the block runs.

    Python runs the handler of a signal between two of its own steps, and one step of polars may take minutes.
    But polars gives way to SIGINT; so a thread, which the system tells of the signal at once, sends one if the
    handler was not run by then.

    Examples
    --------
    >>> with ended_by_sigterm():
    ...     signal.getsignal(signal.SIGTERM).__name__
    'end'
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = threading.Event()

    def end(*_: object) -> None:
        handled.set()
        raise SystemExit(TERMINATED)

    def watch() -> None:
        while told := os.read(reader, 1):
            if told[0] == signal.SIGTERM and not handled.wait(PATIENCE_S):
                os.kill(os.getpid(), signal.SIGINT)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGTERM, end)
    told_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(told_before)
        signal.signal(signal.SIGTERM, before)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _let_go() -> None:
    """A forked child must not tell its parent of its own signals."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_let_go)


def _run() -> None:
    try:
        app()
    except GpuPlannerError as error:
        if os.environ.get("GPUPLANNER_DEBUG"):
            raise
        say(f"gpuplanner: {error}")
        raise SystemExit(exit_code(error)) from None
    except SystemError as error:  # compiled code wraps the signal that reaches it
        if not isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
            raise
        code = Exit.INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else Exit.TERMINATED
        say(ENDED_BY[code])
        raise SystemExit(code) from None
    except SystemExit as end:
        if end.code in ENDED_BY:
            say(ENDED_BY[end.code])
        raise


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """What a warning looks like on stderr: ours are for the person at the terminal and say where by themselves."""
    if issubclass(category, GpuPlannerWarning):
        return printable(f"gpuplanner: warning: {message}\n")
    return printable(f"{filename}:{lineno}: {category.__name__}: {message}\n{line or ''}")


def register_commands(asked: str = "") -> None:
    """Import the modules that hold commands, which registers them; none of them loads a heavy library.

    Of a command whose module has its name, that one alone: the others would take longer than what it does.
    """
    alone = [module for module in COMMANDS if asked and module.rpartition(".")[2] == asked]
    for module in alone or COMMANDS:
        importlib.import_module(f"gpuplanner.cli.{module}")


def exit_code(error: GpuPlannerError) -> Exit:
    """Exit code of an error.

    Examples
    --------
    >>> exit_code(InfeasiblePlanError("no plan")).name
    'INFEASIBLE'
    """
    if isinstance(error, MissingDependencyError):
        return Exit.MISSING_PART
    if isinstance(error, CheckError):
        return Exit.CHECK_FAILED
    if isinstance(error, InfeasiblePlanError):
        return Exit.INFEASIBLE
    return Exit.BAD_INPUT


def say(text: str) -> None:
    """Talk to the person at the terminal: on stderr, so that data on stdout stays clean."""
    typer.echo(printable(text), err=True)


def put(text: str) -> None:
    """Write data to stdout."""
    try:
        typer.echo(printable(text), nl=not text.endswith("\n"))
    except BrokenPipeError:  # whoever reads it has seen enough
        raise
    except OSError as error:
        with Path(os.devnull).open("w") as nowhere:  # or the interpreter tries once more when it ends
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        what, todo = "cannot write to stdout", "Send it elsewhere."
        raise OutputError(message(what, "a place with free space", str(error.strerror), todo)) from error
