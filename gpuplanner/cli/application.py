"""The command-line application: commands, shared options, exit codes and printing of tables."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
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
from datetime import datetime
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from gpuplanner._version import __version__
from gpuplanner.core.errors import (
    GpuPlannerError,
    GpuPlannerWarning,
    InfeasiblePlanError,
    MissingDependencyError,
    OutputError,
    ScenarioError,
    VerificationError,
    escape_controls,
)
from gpuplanner.core.output_column_headings import column_heading, unit_of
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting, read_manifest, resolve_path
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import settings_of
from gpuplanner.core.units_and_number_formats import money_text

if TYPE_CHECKING:
    import polars as pl


INTERRUPT_DELAY_S = 0.5
"""Time after SIGTERM after which SIGINT is sent to interrupt compiled code. [s]"""

COMMANDS = {
    "start_notebook_and_compile_commands": ("start", "notebook"),
    "ingest_commands": ("ingest", "describe", "keygen", "scrape", "bill"),
    "rightsize_phases_and_waits_commands": ("phases", "rightsize", "waits"),
    "size_command": ("size",),
    "forecast_and_cost_commands": ("forecast", "cost"),
    "plan_report_and_demo_commands": ("plan", "report", "demo"),
    "compare_and_fairness_commands": ("compare", "fairness"),
    "simulate_command": ("simulate",),
    "binpack_command": ("binpack",),
    "export_diff_verify_and_catalog_commands": ("catalog", "verify", "export", "diff"),
    "check_watch_and_schedule_commands": ("check", "schedule", "watch"),
}
"""Names of commands by the module of this package that defines them, so that a command imports only its own module."""

COMMANDS_BY_HEADING = {
    "Get started": ("start", "demo", "notebook"),
    "Import data": ("ingest", "scrape", "describe"),
    "Understand usage": ("waits", "fairness", "phases", "rightsize"),
    "Plan": ("size", "forecast", "simulate", "compare", "plan", "binpack", "cost"),
    "Deliver": ("report", "export", "diff", "schedule"),
    "Verify and monitor": ("verify", "check", "watch", "catalog"),
}
"""Names of commands by heading, in the order in which the help lists them; hidden commands are in none."""
PROGRAM_OPTIONS = (
    "-V, --version   Show the version and exit.",
    "-h, --help      Show this message and exit.",
    "--install-completion, --show-completion",
)
"""Options of the program as its help lists them."""

SIGNAL_MESSAGES = {
    130: "gpuplanner: interrupted; results written before are intact",
    143: "gpuplanner: ended by SIGTERM; results written before are intact",
}
"""Message on stderr when a signal ends a run, by exit code."""


class _HeadedGroup(TyperGroup):
    """Group of commands whose help lists them under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer names neither
        """Write the options, then a section for each heading with the first line of each command's help."""
        with formatter.section("Options"):
            formatter.write("".join(f"  {text}\n" for text in PROGRAM_OPTIONS))
        for title, names in COMMANDS_BY_HEADING.items():
            with formatter.section(title):
                for name in names:
                    formatter.write(f"  {name:<11}{str(self.commands[name].help).splitlines()[0].rstrip('.')}\n")


app = typer.Typer(
    name="gpuplanner",
    cls=_HeadedGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="\b\nCapacity planning for GPU clusters: how many GPUs, how to partition them with\n"
    "MIG, who uses them, when they run out, and what changing it saves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
"""The command-line application, to which each module of commands adds its own."""


def _print_version(requested: bool) -> None:
    """Print the version and exit, if it was requested."""
    if requested:
        echo(f"gpuplanner {__version__}")
        raise typer.Exit


@app.callback()
def _add_program_options(
    version: Annotated[
        bool, Option("-V", "--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Give the program its own options."""


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
    from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within

    register_commands(*sys.argv[1:2])
    warnings.formatwarning = _format_warning
    with exit_on_sigterm(), allow_overwriting_within(False):
        _run_app()


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise ``SystemExit`` on SIGTERM while the block runs.

    Python runs a signal handler between two bytecode instructions, and one call into polars may take minutes.
    polars does stop on SIGINT. So a thread that is woken by the signal at once sends SIGINT if the handler has not
    run after :data:`INTERRUPT_DELAY_S`.

    Examples
    --------
    >>> with exit_on_sigterm():
    ...     signal.getsignal(signal.SIGTERM).__name__
    'end'
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_handled = threading.Event()

    def end(*_: object) -> None:
        is_handled.set()
        raise SystemExit(Exit.TERMINATED)

    def watch() -> None:
        while signals := os.read(reader, 1):
            if signals[0] == signal.SIGTERM and not is_handled.wait(INTERRUPT_DELAY_S):
                os.kill(os.getpid(), signal.SIGINT)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handler_before = signal.signal(signal.SIGTERM, end)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        signal.signal(signal.SIGTERM, handler_before)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _stop_signal_wakeup() -> None:
    """Stop a forked child from writing its signals to the parent's wakeup pipe."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_stop_signal_wakeup)


def _run_app() -> None:
    """Run the application; turn errors and signals into a message and an exit code."""
    try:
        app(prog_name="gpuplanner")
    except (GpuPlannerError, ModuleNotFoundError) as error:
        if os.environ.get("GPUPLANNER_DEBUG") or str(getattr(error, "name", "")).startswith("gpuplanner"):
            raise
        known_error = name_library(error)
        notify(f"gpuplanner: {known_error}")
        raise SystemExit(exit_code_of(known_error)) from None
    except SystemError as error:  # compiled code wraps the signal that reaches it
        if not isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
            raise
        code = Exit.INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else Exit.TERMINATED
        notify(SIGNAL_MESSAGES[code])
        raise SystemExit(code) from None
    except SystemExit as end:
        if end.code in SIGNAL_MESSAGES:
            notify(SIGNAL_MESSAGES[end.code])
        raise


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning for stderr, as ``warnings.formatwarning`` does; warnings of gpuplanner without file and line."""
    if issubclass(category, GpuPlannerWarning):
        return escape_controls(f"gpuplanner: warning: {message}\n")
    return escape_controls(f"{filename}:{lineno}: {category.__name__}: {message}\n{line or ''}")


def register_commands(command: str = "") -> None:
    """Import the module of a command, or of all commands if it is not known, which registers its commands.

    Parameters
    ----------
    command : str
        First word of the command line.
    """
    own_module = [module for module, names in COMMANDS.items() if command in names]
    for module in own_module or COMMANDS:
        importlib.import_module(f"gpuplanner.cli.{module}")


def name_library(error: GpuPlannerError | ImportError) -> GpuPlannerError:
    """Return an error of gpuplanner as it is, and another failed import with the command that installs the library."""
    if isinstance(error, GpuPlannerError):
        return error
    library = str(error.name).partition(".")[0].replace("_", "-")
    needs = "\n".join(importlib.metadata.requires("gpuplanner") or ())
    extras = re.findall(rf"^{re.escape(library)}\b.*extra == .(\w+)", needs, re.MULTILINE)
    extra = next((name for name in extras if name not in ("all", "dev")), "all")
    problem = f"{error.name} is not installed; this feature needs it."
    return MissingDependencyError(f"{problem} Install the extra: pip install 'gpuplanner[{extra}]' ({error})")


def exit_code_of(error: GpuPlannerError) -> Exit:
    """Exit code of an error.

    Examples
    --------
    >>> exit_code_of(InfeasiblePlanError("no plan")).name
    'INFEASIBLE'
    """
    if isinstance(error, MissingDependencyError):
        return Exit.MISSING_PART
    if isinstance(error, VerificationError):
        return Exit.CHECK_FAILED
    if isinstance(error, InfeasiblePlanError):
        return Exit.INFEASIBLE
    return Exit.BAD_INPUT


def notify(*lines: str, quiet: bool = False) -> None:
    """Print messages to stderr, so that stdout holds data only; nothing if `quiet`."""
    for line in () if quiet else lines:
        typer.echo(escape_controls(line), err=True)


def notify_written(path: Path | None, *, quiet: bool = False) -> None:
    """Print the path of a file that was written to stderr; nothing without a path."""
    if path is not None:
        notify(f"written: {path}", quiet=quiet)


def require_outputs(*files: Path | None, inputs: Iterable[str | Path] = ()) -> None:
    """Raise an error if an output file cannot be written, before the command starts its work.

    Parameters
    ----------
    *files : Path or None
        Output files; None is skipped.
    inputs : iterable of str or Path
        Input files, which no output may overwrite.
    """
    from gpuplanner.core.output_manifests_and_overwrite_checks import require_file

    for file in files:
        if file is not None:
            require_file(file, inputs=inputs)


def echo(*lines: str) -> None:
    """Print data to stdout."""
    try:
        for line in lines:
            typer.echo(escape_controls(line), nl=not line.endswith("\n"))
    except BrokenPipeError:  # the reader closed the pipe, such as head
        raise
    except OSError as error:
        with Path(os.devnull).open("w") as null_file:  # else the interpreter flushes stdout again at exit
            os.dup2(null_file.fileno(), sys.stdout.fileno())
        expected, got = "space to write the output", str(error.strerror)
        todo = "Redirect the output to another disk."
        raise OutputError("cannot write to stdout", expected, got, todo) from error


def check_chart_name(path: Path | None) -> Path | None:
    """Return the path of a chart, or raise an error unless it ends in .html or .svg."""
    if path is not None and path.suffix not in (".html", ".svg"):
        raise typer.BadParameter("expected a file name that ends in .html or .svg")
    return path


def chart_option(text: str) -> Any:  # noqa: ANN401 - what typer takes
    """Make the typer option for a chart file, which must end in .html or .svg, with a help text."""
    return Option(metavar="FILE", callback=check_chart_name, help=text)


def parse_time(text: str | None, time_zone: str = "UTC") -> datetime | None:
    """Parse the ISO 8601 time of the option ``--at``, in a time zone if it has no offset."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--at: expected a time such as 2026-02-14T09:00; got {text!r}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=ZoneInfo(time_zone))


def field_option(name: str, **typer_options: Any) -> Any:  # noqa: ANN401 - what typer takes
    """Make the typer option of a field of the scenario, with its flag and help text.

    Parameters
    ----------
    name : str
        Field of the scenario.
    **typer_options
        Further arguments of ``typer.Option``.
    """
    scenario_field = settings_of(Scenario)[name]
    return Option(scenario_field.flag, **({"help": scenario_field.help} | typer_options))


Json = Annotated[bool, Option("--json", help="Print only JSON on stdout.")]
"""Option ``--json``: JSON instead of text on stdout."""
Out = Annotated[Path, Option("-o", "--out", help="Output folder or file.")]
"""Option ``-o``: output folder or file."""
Tz = Annotated[str | None, Option(help="Time zone of times without an offset, such as Europe/Oslo.")]
"""Option ``--tz``: time zone of times without an offset."""
SmallestGroup = Annotated[int, field_option("smallest_group", metavar="N", min=0, show_default=False)]
"""Option ``--smallest-group``: smallest number of people in a group that is shown by name."""
Overwrite = Annotated[
    bool,
    Option(
        "--overwrite", help="Replace output files that gpuplanner did not write.", callback=allow_overwriting,
        expose_value=False
    )
]  # fmt: skip
"""Option ``--overwrite``: replace output files that gpuplanner did not write."""
Quiet = Annotated[bool, Option("--quiet", help="Print no progress messages on stderr.")]
"""Option ``--quiet``: no progress messages on stderr."""
WorkersOption = Annotated[
    str | None,
    Option(
        "--workers",
        metavar="N|ADDRESS",
        help="Number of processes, or the address of a Dask scheduler (tcp://host:8786); results are the same.",
    ),
]
"""Option ``--workers``: number of processes, or address of a Dask scheduler."""
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Set a field of the scenario, such as nodes=12; repeatable."),
]
"""Option ``--set``: texts ``KEY=VALUE`` that set fields of the scenario; repeatable."""


def find_data(text: str | None) -> str | None:
    """Return the folder of a public trace that an argument names; other arguments as they are."""
    from gpuplanner.usage.dataset_explorer import find_dataset_folder

    # The sample is the usual argument, and needs no look at the public traces.
    return text if text in (None, "sample") else find_dataset_folder(text)


ScenarioPath = Annotated[
    str,
    Argument(
        metavar="SCENARIO", callback=find_data,
        help="Scenario YAML file, folder written by 'gpuplanner start' or 'gpuplanner ingest', or 'sample'.",
    ),
]  # fmt: skip
"""Argument SCENARIO: scenario file, dataset folder, output folder of ``start``, ``sample``, or a public trace."""
GpuModelName = Annotated[str | None, Option(help="GPU model; a unique prefix is enough, such as A100-80.")]
"""Option ``--gpu-model``: GPU model or a unique prefix of its name."""
GpuModels = Annotated[
    list[str] | None,
    Option(
        "--map-gpu",
        metavar="NAME=MODEL[:PROFILE]",
        help="GPU model or MIG profile behind a name in the files, such as a100=A100-40GB-SXM4; repeatable.",
    ),
]
"""Option ``--map-gpu``: texts ``NAME=MODEL``, the GPU model by its label in the source; repeatable."""


@dataclass(frozen=True)
class ScenarioOptions:
    """Fields of the scenario that options of a command set.

    - ``fields``: Values by field, from options of their own.
    - ``assignments``: Texts ``KEY=VALUE`` of ``--set``.
    """

    fields: Mapping[str, Any]
    assignments: tuple[str, ...] = ()

    def make_scenario(self, text: str) -> Scenario:
        """Read a scenario from a YAML file, a dataset folder or the word ``sample``, and set these fields.

        The answers to ``start`` hold for the dataset beside them, and for the folder that holds both.
        """
        path = Path(text)
        if text == "sample":
            scenario = Scenario()
        elif (stated_scenario := scenario_beside(path)) is not None:
            scenario = stated_scenario
        elif path.is_dir():
            from gpuplanner.decision.study_pipeline import read_usual_actuator

            scenario = Scenario(name=path.name, data=str(path), actuator=read_usual_actuator(path))
        elif path.exists() and path.suffix in ("", ".yaml", ".yml"):
            scenario = Scenario.from_yaml(path)
        else:
            got = "another kind of file" if path.exists() else "no such file or folder"
            raise ScenarioError(text, "a scenario file (.yaml) or dataset folder", got, "Check the path.")
        return self.apply_to(scenario)

    def apply_to(self, scenario: Scenario) -> Scenario:
        """Return the scenario with these fields set; an error names the option, not the field."""
        scenario = scenario.with_text(self.assignments)
        try:
            return replace(scenario, **self.fields)
        except ScenarioError:
            for name, value in self.fields.items():
                setting_row = settings_of(Scenario)[name]
                if setting_row.rule is not None and not setting_row.meets_rule(value, scenario):
                    flag = setting_row.flag
                    raise ScenarioError(flag, setting_row.rule.words, repr(value), f"Fix {flag}.") from None
            raise


def scenario_beside(folder: Path) -> Scenario | None:
    """Read the ``scenario.yaml`` that ``start`` wrote, in its output folder or beside its dataset; None without one."""
    is_dataset = (folder / "provenance.json").is_file()
    file = (folder.parent if is_dataset else folder) / "scenario.yaml"
    if not file.is_file():
        return None
    if not is_dataset:
        return Scenario.from_yaml(file)
    # Beside a dataset, any scenario may lie: only the one that start wrote for it holds, as its manifest says.
    written = read_manifest(file.parent)
    if written is None or file.name not in written[1]:
        return None
    scenario = Scenario.from_yaml(file)
    return scenario if resolve_path(scenario.data) == resolve_path(folder) else None


def parse_pairs(texts: Iterable[str], option: str, form: str) -> dict[str, str]:
    """Parse the texts ``NAME=VALUE`` of an option that may be repeated; `form` is what its error message expects."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{option}: expected {form}; got {text!r}")
        pairs[name] = value
    return pairs


def parse_gpu_models(texts: list[str] | None) -> dict[str, str] | None:
    """Parse texts ``NAME=MODEL`` of ``--map-gpu`` to GPU models by their label in a source; None without any."""
    return parse_pairs(texts or [], "--map-gpu", "NAME=MODEL or NAME=MODEL:PROFILE") or None


def parse_workers(text: str | None, default: int = 1) -> int | str:
    """Parse the option ``--workers``: a number of processes, or the address of a Dask scheduler.

    Parameters
    ----------
    text : str, optional
        Value of the option.
    default : int
        Number of processes without the option.
    """
    if text is None:
        return default
    if "://" in text:
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    expected = "a number from 1, or an address such as tcp://host:8786"
    raise typer.BadParameter(f"--workers: expected {expected}; got {text!r}")


def with_fields(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a decorator that replaces the parameter ``options`` of a command by options for scenario fields.

    Parameters
    ----------
    *names : str
        Fields of the scenario that get an option; ``--set`` is added to them.

    Returns
    -------
    callable
        Decorator; the command then gets a :class:`ScenarioOptions` as ``options``.
    """
    rows = settings_of(Scenario)

    def add_options(command: Callable[..., None]) -> Callable[..., None]:
        options = {name: Annotated[rows[name].kinds[0] | None, field_option(name)] for name in names}
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in {**options, "assignments": Set}.items()
        ]
        parameters = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            keyword_only = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += added if parameter.name == "options" else [keyword_only]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:  # noqa: ANN401 - what typer read
            fields = {name: value for name in names if (value := values.pop(name)) is not None}
            command(options=ScenarioOptions(fields, tuple(values.pop("assignments") or ())), **values)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return add_options


MAX_PRINTED_ROWS = 60
"""Largest number of rows of a table that is printed as text."""
CURRENCY_COLUMN = "BillingCurrency"
"""FOCUS column with the currency code of a row."""

PRICE_LABEL_PREFIX = "price_per_"
"""Prefix of the names of printed values that are prices."""
_CURRENCY_SUFFIX = re.compile(r"_([A-Z]{3})$")
"""Suffix of the name of an amount of money: its currency, such as ``_USD``."""
_DECIMAL_PATTERN = re.compile(r"-?\d{1,60}(\.\d{1,30})?")
"""Text that is a decimal number, as amounts of money are in JSON."""


def show(values: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print a mapping as JSON, or as a line for each label and value, with nested mappings indented below."""
    if as_json:
        from gpuplanner.core.serialization import to_json, to_plain

        echo(to_json(to_plain(values)))
        return
    _show_lines(values, "")


def show_tables(tables: Mapping[str, pl.DataFrame], *, as_json: bool = False) -> None:
    """Print tables by name: as one JSON object, or as text with a title each."""
    if as_json:
        show(tables, as_json=True)
        return
    for name, table in tables.items():
        show_frame(table, title=column_heading(name))


def _show_lines(values: Mapping[str, object], indent: str) -> None:
    """Print a line for each label and value, then nested mappings with a larger indent."""
    nested_values = {key: nested for key, value in values.items() if (nested := _as_mappings(value))}
    width = max((len(column_heading(key)) for key in values if key not in nested_values), default=0)
    for key, value in values.items():
        if key not in nested_values:
            echo(
                f"{indent}{column_heading(key):<{width}}  {_money_text(key, value) or cell_text(_in_unit(key, value))}"
            )
    for key, nested in nested_values.items():
        for mappings in nested:
            echo(f"{indent}{column_heading(key)}:")
            _show_lines(mappings, indent + "  ")


def _as_mappings(value: object) -> list[Mapping[str, object]]:
    """Return a mapping, or a list of nothing but mappings, as a list; empty for any other value."""
    items = value if isinstance(value, list) else [value]
    mappings = [item for item in items if isinstance(item, Mapping)]
    return mappings if len(mappings) == len(items) else []


def show_frame(frame: pl.DataFrame, *, as_json: bool = False, title: str = "") -> None:
    """Print a table as JSON rows, or as aligned text of at most :data:`MAX_PRINTED_ROWS` rows.

    Parameters
    ----------
    frame : polars.DataFrame
        Table.
    as_json : bool
        Print JSON.
    title : str
        Title of the text.
    """
    if as_json:
        from gpuplanner.core.serialization import to_json, to_plain

        echo(to_json(to_plain(frame.to_dicts())))
        return
    if title:
        echo(f"{title}\n{'-' * len(title)}")
    rows = [
        [
            _money_text(name, cell, row.get(CURRENCY_COLUMN)) or cell_text(_in_unit(name, cell))
            for name, cell in row.items()
        ]
        for row in frame.head(MAX_PRINTED_ROWS).iter_rows(named=True)
    ]
    names = [column_heading(name) for name in frame.columns]
    columns = list(zip(names, *rows, strict=True)) if rows else [(name,) for name in names]
    widths = [max(map(len, column)) for column in columns]
    are_numbers = [dtype.is_numeric() for dtype in frame.dtypes]
    for line in [names, *rows]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, are_numbers, strict=True)
        ]
        echo("  ".join(cells).rstrip())
    if frame.height > MAX_PRINTED_ROWS:
        echo(f"... {frame.height - MAX_PRINTED_ROWS} more rows (--json prints all)")
    echo("")


def _in_unit(name: str, value: object) -> object:
    """Value of a column in the unit of its heading: a ratio from 0 to 1 as percent.

    Examples
    --------
    >>> _in_unit("idle_share", 0.25), _in_unit("gpu_hours", 0.25)
    (25.0, 0.25)
    """
    unit = unit_of(name)
    return value * 100 if isinstance(value, float) and unit is not None and unit.symbol == "%" else value


def _money_text(name: str, value: object, currency: str | None = None) -> str | None:
    """Text of an amount of money with its decimals; None if the value is no money.

    Parameters
    ----------
    name : str
        Name of the value; a currency suffix (``_USD``) marks money, :data:`PRICE_LABEL_PREFIX` a price.
    value : object
        The value; a Decimal is money.
    currency : str, optional
        ISO 4217 code, if the name has none.
    """
    currency_suffix = _CURRENCY_SUFFIX.search(name)
    if isinstance(value, Decimal) or (currency_suffix and isinstance(value, str) and _DECIMAL_PATTERN.fullmatch(value)):
        return money_text(Decimal(value), currency_suffix[1] if currency_suffix else currency or "")
    if isinstance(value, float) and name.startswith(PRICE_LABEL_PREFIX) and math.isfinite(value):
        return f"{value:,.2f}" if round(value, 2) == value else f"{value:,.4f}"
    return None


def cell_text(value: object) -> str:
    """Text of a value in one line: a dash for None, floats with four digits, or whole from 10,000 on."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return escape_controls(str(value)).replace("\n", "\\n").replace("\t", "\\t")  # a cell is one line
