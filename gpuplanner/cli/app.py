"""The application, its conventions and its exit codes."""

from __future__ import annotations

import importlib
import os
import warnings
from enum import IntEnum

import typer

from gpuplanner.errors import (
    GpuPlannerError,
    GpuPlannerWarning,
    InfeasiblePlanError,
    MissingDependencyError,
)

COMMANDS = (
    *("inbox", "live", "bill", "phases", "hints"),
    *("walk", "simulate", "sweep", "machine", "pack", "allocate", "calibrate"),
)
"""Modules of this room that hold commands, in the order in which help shows them."""

INTERRUPTED = "gpuplanner: interrupted; results written before are intact"

app = typer.Typer(
    name="gpuplanner",
    help="How many GPUs, cut how, for whom, by when, how sure, and what does it save?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


def main() -> None:
    """Run the command line and turn errors into one line and an exit code."""
    register_commands()
    warnings.formatwarning = _one_line
    try:
        app()
    except GpuPlannerError as error:
        if os.environ.get("GPUPLANNER_DEBUG"):
            raise
        say(f"gpuplanner: {error}")
        raise SystemExit(exit_code(error)) from None
    except SystemError as error:  # compiled code wraps the Ctrl-C that reaches it
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        say(INTERRUPTED)
        raise SystemExit(Exit.INTERRUPTED) from None
    except SystemExit as end:
        if end.code == Exit.INTERRUPTED:
            say(INTERRUPTED)
        raise


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """What a warning looks like on stderr: ours are for the person at the terminal and say where by themselves."""
    if issubclass(category, GpuPlannerWarning):
        return f"gpuplanner: warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n{line or ''}"


def register_commands() -> None:
    """Import the modules that hold commands, which registers them; none of them loads a heavy library."""
    for module in COMMANDS:
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
    if isinstance(error, InfeasiblePlanError):
        return Exit.INFEASIBLE
    return Exit.BAD_INPUT


def say(text: str) -> None:
    """Talk to the person at the terminal: on stderr, so that data on stdout stays clean."""
    typer.echo(text, err=True)


def put(text: str) -> None:
    """Write data to stdout."""
    typer.echo(text, nl=not text.endswith("\n"))
