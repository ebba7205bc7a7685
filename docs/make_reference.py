"""Write the reference pages: tables, commands and glossary from the code, published claims from their results."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl
import typer

from gpuplanner.cli.application import Exit, app, register_commands
from gpuplanner.cli.export_diff_verify_and_catalog_commands import EXAMPLE_FILES
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import TABLES
from gpuplanner.core.setting_rules_and_controls import settings_of
from gpuplanner.core.stage_cache_and_data_folders import claims_folder

HERE = Path(__file__).parent
FIELDS = """A scenario states the data, the cluster, the rules and the prices of an analysis. It is a YAML file with one
line for each field; a field that is not named has its default. `--set KEY=VALUE` changes a field for one run, and many
fields have an option of their own (see [commands](commands.md)). The [glossary](glossary.md) defines the terms.
"""
CLAIMS = {
    "twenty_jobs": (
        "Twenty jobs on eight H100",
        "Right-sized requests on planned MIG layouts raise the utilization of eight H100 from 36 % to 90 % and finish\n"
        "twenty jobs in 59 instead of 114 minutes (a vendor; no data were published).",
        "The setup is calibrated to the reported figures: agreement of the first four rows is no evidence.",
    ),
    "late_phases": (
        "Final phases of training",
        "Jobs need most GPUs early, and their demand falls by 10 % or more in the final phases (a vendor).",
        "Fewer than six jobs give no interval. `gpuplanner phases FOLDER` runs the same test on your own jobs.",
    ),
    "heterogeneous_gpus": (
        "Heterogeneity-aware scheduling",
        "A scheduler that knows the GPU models and predicts the memory of each job with an accuracy above 92 % lowers\n"
        "the mean job completion time by 12 to 18 % (Frenzy, arXiv 2412.14479).",
        "The scheduler is our reconstruction; the paper does not name its baseline.",
    ),
}
"""Title, claim and limit of each program in ``benchmarks/claims``."""
VERDICTS = {"holds": "confirmed", "does not hold": "not confirmed", "inconclusive": "inconclusive"}
"""Words of the page for the stored verdicts."""
PEERS = "## Speed and size against named peers"
"""Heading of the part of ``results.md`` that is written by hand."""


COMMANDS = """# Commands

Every command and every option. Results go to stdout, progress messages to stderr. `--json` prints one JSON object
with stable keys. `SCENARIO` is a [scenario](scenario.md) file, a folder that `ingest` or `start` wrote, or the
word `sample`; `--set KEY=VALUE` changes a field of it. The [glossary](glossary.md) defines the terms.
"""
GLOSSARY = """# Glossary

Terms of pages, tables, commands and this documentation. *Source* names the tool or standard that the term comes from.

| term | meaning | unit | source |
|---|---|---|---|
"""


INPUT_FILES = """# Files that you write

`gpuplanner catalog example NAME` prints each of these files: a whole, valid example with its keys described at the top.
Copy it, change the rows, and delete the sections that you do not need. An unknown or missing key is an error that names
the line and all missing keys.
"""
"""Head of the page of files that users write."""
INPUT_FILE_SENTENCES = {
    "prices": "Your prices, for `--price-book`, or `price_book` in the scenario.",
    "burst": "Jobs that may run on rented GPUs, for `cost --burst`.",
    "quotas": "Quotas and queue rules, for `compare --quotas-to-try`, or `quotas` in the scenario.",
    "projects": "Announced work, releases and freezes, for `start --projects` and `compare --projects`.",
    "calendar": "Releases, holidays and maintenance, for `forecast --calendar`: kinds are names of your own, and the "
    "forecast learns how demand differs in past spans of a kind. Times need an offset.",
    "announced": "Jobs that are agreed but not submitted, for `forecast --announced`: team, first and last instant, "
    "and GPUs of each.",
}
"""What each file is for, by name of the example."""


def results_page() -> str:
    """Page of measured results: the published claims, then what stands under :data:`PEERS` already."""
    parts = [
        "# Benchmarks and published claims",
        "## Published claims",
        "We re-tested three published claims. A figure is confirmed if its 95 % interval lies within the claimed\n"
        "range. `python benchmarks/claims/NAME.py` reproduces each table; the detailed tables are in\n"
        "`benchmarks/claims/results`.",
    ]
    for name, (title, claim, limit) in CLAIMS.items():
        table = pl.read_csv(claims_folder() / f"{name}.csv")
        program = f"Program: `benchmarks/claims/{name}.py`. {limit}"
        parts += [f"### {title}", claim, markdown_table(table), program]
    by_hand = (HERE / "results.md").read_text(encoding="utf-8").partition(PEERS)[2]
    return "\n\n".join(parts) + f"\n\n{PEERS}{by_hand}"


def markdown_table(table: pl.DataFrame) -> str:
    """Rows of a table of figures in Markdown, numbers in three significant digits."""
    rows = ["| figure | unit | claimed | measured | 95 % interval | verdict |", "|---|---|---|---|---|---|"]
    for row in table.iter_rows(named=True):
        low, high = row["claimed_low"], row["claimed_high"]
        if low is None:
            claimed = f"at most {high:.3g}"
        elif high is None:
            claimed = f"at least {low:.3g}"
        else:
            claimed = f"{low:.3g} to {high:.3g}"
        interval = "none" if row["low"] is None else f"{row['low']:.3g} to {row['high']:.3g}"
        cells = (row["figure"], row["unit"], claimed, f"{row['measured']:.3g}", interval, VERDICTS[row["verdict"]])
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def commands_markdown() -> str:
    """Reference text of every command with its arguments and options, and of the exit codes."""
    register_commands()
    group: Any = typer.main.get_command(app)
    parts = [COMMANDS, _exit_codes()]
    for name, command in sorted(_leaves(group, "gpuplanner")):
        parts.append(f"## `{name}`\n\n{(command.help or '').strip()}\n\n{_parameters(command)}")
    return "\n".join(parts)


def _leaves(command: Any, name: str) -> list[tuple[str, Any]]:  # noqa: ANN401 - click's own types
    children = getattr(command, "commands", None)
    if not children:
        return [(name, command)]
    return [leaf for key, child in children.items() for leaf in _leaves(child, f"{name} {key}")]


def _parameters(command: Any) -> str:  # noqa: ANN401
    rows = ["| parameter | meaning |", "|---|---|"]
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        shown = ", ".join(names) if names[0].startswith("-") else parameter.metavar or names[0].upper()
        rows.append(f"| `{shown}` | {(getattr(parameter, 'help', '') or '').strip()} |")
    return "\n".join(rows) + "\n"


def _exit_codes() -> str:
    meanings = {
        Exit.DONE: "done",
        Exit.CHECK_FAILED: "a check failed",
        Exit.USAGE: "invalid command line",
        Exit.BAD_INPUT: "invalid input, or the output cannot be written",
        Exit.INFEASIBLE: "infeasible: no plan meets the limits",
        Exit.TIME_LIMIT: "a plan was found, but the time limit came before the requested optimality gap",
        Exit.NOTHING_IN_TIME: "no plan was found within the time limit",
        Exit.MISSING_PART: "an optional library is not installed",
        Exit.INTERRUPTED: "interrupted",
        Exit.TERMINATED: "ended by SIGTERM; temporary files were removed",
    }
    rows = [f"| {code.value} | {text} |" for code, text in meanings.items()]
    return "## Exit codes\n\n| code | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def one_line(text: str) -> str:
    """A text of several lines in one, as a table cell needs it."""
    return " ".join(text.split())


def options_markdown(kind: type) -> str:
    """The rows of a dataclass as tables, one a group."""
    rows, parts = settings_of(kind).values(), []
    for group in dict.fromkeys(row.group for row in rows):
        parts += [f"## {group.capitalize()}\n", "| field | default | allowed | meaning |", "|---|---|---|---|"]
        parts += [
            f"| `{row.name}` | {row.default_text} | {row.allowed_values or row.types} | {one_line(row.meaning)} |"
            for row in rows
            if row.group == group
        ]
        parts.append("")
    return "\n".join(parts).replace("``", "`")


def glossary_markdown() -> str:
    """The glossary as a table; each term has an anchor, such as ``glossary.md#queue-wait``."""
    path = HERE.parent / "gpuplanner" / "report" / "glossary.csv"
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    return GLOSSARY + "".join(
        f'| <a id="{anchor(row["word"])}"></a>{row["word"]} | {row["meaning"]} | {row["unit"]} | {row["source"]} |\n'
        for row in sorted(rows, key=lambda row: row["word"].lower())
    )


def input_files_markdown() -> str:
    """The files that users write: each example as ``catalog example`` prints it, keys at the top."""
    parts = [INPUT_FILES]
    for name, file in EXAMPLE_FILES.items():
        path = HERE.parent / "gpuplanner" / "core" / "examples" / file
        kind = path.suffix.removeprefix(".").replace("csv", "text")
        about, text = INPUT_FILE_SENTENCES[name], path.read_text(encoding="utf-8")
        heading = f"## `{file}`\n\n{about} `gpuplanner catalog example {name} > {file}`"
        parts.append(f"{heading}\n\n```{kind}\n{text}```\n")
    return "\n".join(parts)


def anchor(term: str) -> str:
    """Anchor of a term in the glossary."""
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def format_table_reference(name: str, schema: type[dy.Schema]) -> str:
    """Format the reference of one table in Markdown: meaning, columns, types, units and bounds."""
    lines = [f"## `{name}`", "", (schema.__doc__ or "").strip(), ""]
    lines += ["| column | type | unit | may be missing | meaning |", "|---|---|---|---|---|"]
    for column_name, column in schema.columns().items():
        facts = column.metadata or {}
        dtype = "text" if column.dtype == pl.String else str(column.dtype)
        if isinstance(column, dy.Enum):
            dtype = "one of " + ", ".join(column.categories)
        lines.append(
            f"| `{column_name}` | {dtype} | {facts.get('unit') or '-'} "
            f"| {'yes' if column.nullable else 'no'} | {facts.get('meaning', '')} |"
        )
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Text of each page by file name."""
    tables = "\n".join(format_table_reference(name, schema) for name, schema in TABLES.items())
    intro = (
        "Columns of the tables that `ingest` writes and that pass between steps; `tables/README.md` in a report\n"
        "explains all its tables. All times are UTC. A missing value is null, never 0. The [glossary](glossary.md)\n"
        "defines the terms.\n"
    )
    return {
        "tables.md": f"# Tables\n\n{intro}\n{tables}",
        "commands.md": commands_markdown(),
        "glossary.md": glossary_markdown(),
        "results.md": results_page(),
        "input_files.md": input_files_markdown(),
        "scenario.md": f"# Scenario\n\n{FIELDS}\n{options_markdown(Scenario)}",
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
