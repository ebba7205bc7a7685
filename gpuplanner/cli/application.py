"""The command-line application: commands, shared options, exit codes and printing of tables."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from gpuplanner._version import __version__
from gpuplanner.core.column_headings import column_heading
from gpuplanner.core.errors import (
    GpuPlannerError,
    GpuPlannerWarning,
    InfeasiblePlanError,
    MissingDependencyError,
    OutputError,
    VerificationError,
    escape_controls,
)
from gpuplanner.core.output_places import allow_overwriting
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import settings_of
from gpuplanner.core.units import money_text

if TYPE_CHECKING:
    import polars as pl


TERMINATED = 128 + signal.SIGTERM
PATIENCE_S = 0.5
"""Compiled code that has not given way by then is interrupted."""

COMMANDS = {
    "start_commands": ("start", "notebook"),
    "ingest_commands": ("ingest", "describe", "keygen", "scrape", "bill"),
    "usage_commands": ("phases", "rightsize", "waits"),
    "size_command": ("size",),
    "forecast_and_cost_commands": ("forecast", "cost"),
    "plan_commands": ("plan", "report", "demo"),
    "compare_commands": ("simulate", "compare", "fairness", "binpack"),
    "export_commands": ("catalog", "verify", "export", "diff"),
    "recurring_commands": ("check", "schedule", "watch"),
}
"""Modules of this package and the commands of each, so that a command loads no other's."""

HEADINGS = {
    "Get started": ("start", "demo", "notebook"),
    "Import data": ("ingest", "scrape", "describe"),
    "Understand usage": ("waits", "fairness", "phases", "rightsize"),
    "Plan": ("size", "forecast", "simulate", "compare", "plan", "binpack", "cost"),
    "Deliver": ("report", "export", "diff", "schedule"),
    "Verify and monitor": ("verify", "check", "watch", "catalog"),
}
"""Commands by heading, in the order in which help lists them; a hidden command is named where it is used."""
OPTIONS = (
    "-V, --version   Show the version and exit.",
    "-h, --help      Show this message and exit.",
    "--install-completion, --show-completion",
)
"""Options of the program as its help lists them."""

ENDED_BY = {
    130: "gpuplanner: interrupted; results written before are intact",
    143: "gpuplanner: ended by SIGTERM; results written before are intact",
}
"""Message on stderr when a signal ends a run, by exit code."""


class _Headed(TyperGroup):
    """Commands under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer names neither
        """Write the options, then a section for each heading with the first line of each command's help."""
        with formatter.section("Options"):
            formatter.write("".join(f"  {text}\n" for text in OPTIONS))
        for title, names in HEADINGS.items():
            with formatter.section(title):
                for name in names:
                    formatter.write(f"  {name:<11}{str(self.commands[name].help).splitlines()[0].rstrip('.')}\n")


app = typer.Typer(
    name="gpuplanner",
    cls=_Headed,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="\b\nCapacity planning for GPU clusters: how many GPUs, how to partition them with\n"
    "MIG, who uses them, when capacity runs out, and what changing it saves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(requested: bool) -> None:
    if requested:
        put(f"gpuplanner {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        Option("-V", "--version", callback=_version, is_eager=True, help="Show the version and exit."),
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
    from gpuplanner.core.output_places import allow_overwriting_within

    register_commands(*sys.argv[1:2])
    warnings.formatwarning = _one_line
    with ended_by_sigterm(), allow_overwriting_within(False):
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
        app(prog_name="gpuplanner")
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
        return escape_controls(f"gpuplanner: warning: {message}\n")
    return escape_controls(f"{filename}:{lineno}: {category.__name__}: {message}\n{line or ''}")


def register_commands(asked: str = "") -> None:
    """Import the modules that hold commands, which registers them; none of them loads a heavy library.

    Of a command whose module has its name, that one alone: the others would take longer than what it does.
    """
    alone = [module for module, names in COMMANDS.items() if asked in names]
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
    if isinstance(error, VerificationError):
        return Exit.CHECK_FAILED
    if isinstance(error, InfeasiblePlanError):
        return Exit.INFEASIBLE
    return Exit.BAD_INPUT


def say(*lines: str, quiet: bool = False) -> None:
    """Talk to the person at the terminal: on stderr, so that data on stdout stays clean; not with `quiet`."""
    for line in () if quiet else lines:
        typer.echo(escape_controls(line), err=True)


def say_written(path: Path | None, *, quiet: bool = False) -> None:
    """Name a file that was written, if one was asked for."""
    if path is not None:
        say(f"written: {path}", quiet=quiet)


def require_outputs(*files: Path | None, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse files that cannot be written, before anything takes time; None stands for one nobody asked for."""
    from gpuplanner.core.output_places import require_file

    for file in files:
        if file is not None:
            require_file(file, inputs=inputs)


def put(*lines: str) -> None:
    """Write data to stdout."""
    try:
        for line in lines:
            typer.echo(escape_controls(line), nl=not line.endswith("\n"))
    except BrokenPipeError:  # whoever reads it has seen enough
        raise
    except OSError as error:
        with Path(os.devnull).open("w") as nowhere:  # or the interpreter tries once more when it ends
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        expected, got = "space to write the output", str(error.strerror)
        todo = "Redirect the output to another disk."
        raise OutputError("cannot write to stdout", expected, got, todo) from error


def drawable(path: Path | None) -> Path | None:
    """A name that says what to draw; the rest is no name of a chart."""
    if path is not None and path.suffix not in (".html", ".svg"):
        raise typer.BadParameter("expected a file name that ends in .html or .svg")
    return path


def chart_option(text: str) -> Any:  # noqa: ANN401 - what typer takes
    """The option of a file to draw to, with its help text."""
    return Option(metavar="FILE", callback=drawable, help=text)


def instant(text: str | None) -> datetime | None:
    """An instant that somebody gave; UTC if it has no zone."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def of_row(name: str, **how: Any) -> Any:  # noqa: ANN401 - what typer takes
    """The option of a field of a scenario, as its row says; further arguments are typer's."""
    row = settings_of(Scenario)[name]
    return Option(row.flag, **({"help": row.help} | how))


Json = Annotated[bool, Option("--json", help="Print only JSON on stdout.")]
Out = Annotated[Path, Option("-o", "--out", help="Output folder or file.")]
Tz = Annotated[str | None, Option(help="Time zone of times without an offset, such as Europe/Oslo.")]
SmallestGroup = Annotated[int, of_row("smallest_group", metavar="N", min=0)]
Overwrite = Annotated[
    bool,
    Option(
        "--overwrite", help="Replace output files that gpuplanner did not write.", callback=allow_overwriting,
        expose_value=False
    )
]  # fmt: skip
Quiet = Annotated[bool, Option("--quiet", help="Print no progress messages on stderr.")]
WorkersAsked = Annotated[
    str | None,
    Option(
        "--workers",
        metavar="N|ADDRESS",
        help="Number of processes, or the address of a Dask scheduler (tcp://host:8786); results are the same.",
    ),
]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Set a field of the scenario, such as nodes=12; repeatable."),
]
ScenarioPath = Annotated[
    str,
    Argument(
        metavar="SCENARIO",
        help="Scenario YAML file, folder written by 'gpuplanner start' or 'gpuplanner ingest', or 'sample'.",
    ),
]
GpuModelName = Annotated[str | None, Option(help="GPU model; a unique prefix is enough, such as A100-80.")]
GpuModels = Annotated[
    list[str] | None,
    Option(
        "--map-gpu",
        metavar="NAME=MODEL[:PROFILE]",
        help="GPU model or MIG profile behind a name in the files, such as a100=A100-40GB-SXM4; repeatable.",
    ),
]


@dataclass(frozen=True)
class Given:
    """What a command was told of a scenario: fields by options of their own, and assignments by ``--set``."""

    fields: Mapping[str, Any]
    assignments: tuple[str, ...] = ()

    def scenario(self, text: str) -> Scenario:
        """Make a scenario of a YAML file, of a trace folder, or of the word ``sample``, and change what was told.

        The answers to ``start`` hold for the dataset beside them, and for the folder that holds both.
        """
        path = Path(text)
        if text == "sample":
            found = Scenario()
        elif (beside := scenario_beside(path)) is not None:
            found = beside
        elif path.is_dir():
            from gpuplanner.decision.study_pipeline import read_usual_actuator

            found = Scenario(name=path.name, data=str(path), actuator=read_usual_actuator(path))
        else:
            found = Scenario.from_yaml(path)
        return self.changed(found)

    def changed(self, scenario: Scenario) -> Scenario:
        """The scenario with what was told."""
        return replace(scenario.with_text(self.assignments), **self.fields)


def scenario_beside(folder: Path) -> Scenario | None:
    """Read the ``scenario.yaml`` that ``start`` wrote, in its output folder or beside its dataset; None without one."""
    is_dataset = (folder / "provenance.json").is_file()
    file = (folder.parent if is_dataset else folder) / "scenario.yaml"
    if not file.is_file():
        return None
    found = Scenario.from_yaml(file)
    return found if not is_dataset or Path(found.data).resolve() == folder.resolve() else None


def stated_models(texts: list[str] | None) -> dict[str, str] | None:
    """GPU models by the words of a source, as the user gave them; None if none were given."""
    found = {}
    for text in texts or []:
        word, equals, name = text.partition("=")
        if not (equals and word and name):
            raise typer.BadParameter(f"--map-gpu: expected NAME=MODEL or NAME=MODEL:PROFILE; got {text!r}")
        found[word] = name
    return found or None


def workers_of(text: str | None, otherwise: int = 1) -> int | str:
    """A number of processes, or the address of a scheduler, as somebody gave it."""
    if text is None:
        return otherwise
    if "://" in text:
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    expected = "a number from 1, or an address such as tcp://host:8786"
    raise typer.BadParameter(f"--workers: expected {expected}; got {text!r}")


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of some fields of a scenario, and ``--set``, where it has ``given``."""
    rows = settings_of(Scenario)

    def expanded(command: Callable[..., None]) -> Callable[..., None]:
        options = {name: Annotated[rows[name].kinds[0] | None, of_row(name)] for name in names}
        asked = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in {**options, "assignments": Set}.items()
        ]
        parameters = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            parameters += asked if own.name == "given" else [own.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

        @functools.wraps(command)
        def told(**values: Any) -> None:  # noqa: ANN401 - what typer read
            fields = {name: value for name in names if (value := values.pop(name)) is not None}
            command(given=Given(fields, tuple(values.pop("assignments") or ())), **values)

        told.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        told.__annotations__ = {one.name: one.annotation for one in parameters}
        return told

    return expanded


MAX_ROWS = 60
CURRENCY = "BillingCurrency"
"""Column of a table of money that says of which currency a row is."""

PRICE = "price_per_"
_OF_CURRENCY = re.compile(r"_([A-Z]{3})$")
_EXACT = re.compile(r"-?\d{1,60}(\.\d{1,30})?")


def show(values: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print a mapping: JSON, or a line for each label and value; nested mappings stand below."""
    if as_json:
        from gpuplanner.core.serialization import to_json, to_plain

        put(to_json(to_plain(values)))
        return
    _show_lines(values, "")


def show_tables(tables: Mapping[str, pl.DataFrame], *, as_json: bool = False) -> None:
    """Print tables under their names: one JSON object, or one aligned text after the other."""
    if as_json:
        show(tables, as_json=True)
        return
    for name, table in tables.items():
        show_frame(table, title=column_heading(name))


def _show_lines(values: Mapping[str, object], indent: str) -> None:
    within = {key: nested for key, value in values.items() if (nested := _mappings(value))}
    width = max((len(column_heading(key)) for key in values if key not in within), default=0)
    for key, value in values.items():
        if key not in within:
            put(f"{indent}{column_heading(key):<{width}}  {_amount(key, value) or _text(value)}")
    for key, nested in within.items():
        for each in nested:
            put(f"{indent}{column_heading(key)}:")
            _show_lines(each, indent + "  ")


def _mappings(value: object) -> list[Mapping[str, object]]:
    """A mapping, or the mappings of a list of nothing else; none of any other value."""
    each = value if isinstance(value, list) else [value]
    mappings = [one for one in each if isinstance(one, Mapping)]
    return mappings if len(mappings) == len(each) else []


def show_frame(frame: pl.DataFrame, *, as_json: bool = False, title: str = "") -> None:
    """Print a table: JSON rows, or aligned text, the first rows of a long one."""
    if as_json:
        from gpuplanner.core.serialization import to_json, to_plain

        put(to_json(to_plain(frame.to_dicts())))
        return
    if title:
        put(f"{title}\n{'-' * len(title)}")
    rows = [
        [_amount(name, cell, row.get(CURRENCY)) or _text(cell) for name, cell in row.items()]
        for row in frame.head(MAX_ROWS).iter_rows(named=True)
    ]
    names = [column_heading(name) for name in frame.columns]
    columns = list(zip(names, *rows, strict=True)) if rows else [(name,) for name in names]
    widths = [max(map(len, column)) for column in columns]
    right = [dtype.is_numeric() for dtype in frame.dtypes]
    for line in [names, *rows]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        put("  ".join(cells).rstrip())
    if frame.height > MAX_ROWS:
        put(f"... {frame.height - MAX_ROWS} more rows (--json prints all)")
    put("")


def _amount(name: str, value: object, currency: str | None = None) -> str | None:
    """An amount of money as text with its decimals; None if it is none.

    Money is a Decimal, a price, or a total whose name ends in its currency.
    """
    ending = _OF_CURRENCY.search(name)
    if isinstance(value, Decimal) or (ending and isinstance(value, str) and _EXACT.fullmatch(value)):
        return money_text(Decimal(value), ending[1] if ending else currency or "")
    if isinstance(value, float) and name.startswith(PRICE) and math.isfinite(value):
        return f"{value:,.2f}" if round(value, 2) == value else f"{value:,.4f}"
    return None


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return escape_controls(str(value)).replace("\n", "\\n").replace("\t", "\\t")  # a cell is one line
