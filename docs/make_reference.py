"""Write the reference pages: tables, commands and words from the code, published claims from their stored results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import typer

from gpuplanner.cli.application import Exit, app, register_commands
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import knobs_of
from gpuplanner.core.schema_checks import to_markdown
from gpuplanner.core.schemas import TABLES
from gpuplanner.core.stage_cache import claims_folder
from gpuplanner.report.figure_formats import glossary

HERE = Path(__file__).parent
FIELDS = """What is planned, on what data, by which rules and at which price. A file of them is YAML, a line a field;
what it does not name has its default. Commands change a field with `--set KEY=VALUE`, and some by options of their own.
"""
CLAIMS = {
    "twenty_jobs": (
        "Twenty jobs on eight H100",
        "Right-sized requests on planned MIG layouts raise the utilization of eight H100 from 36 % to 90 % and finish\n"
        "twenty jobs in 59 instead of 114 minutes (a vendor; no data were published).",
        "The design is calibrated to the reported figures, so that agreement of the first four is no evidence.",
    ),
    "late_phases": (
        "Late phases of training",
        "Jobs need most GPUs early; their demand shrinks by a tenth or more in late phases (a vendor's premise).",
        "Fewer than six jobs give no interval. `gpuplanner phases FOLDER` makes the same test on your own jobs.",
    ),
    "heterogeneous_gpus": (
        "Heterogeneity-aware scheduling",
        "Scheduling that knows the GPU models and predicts the memory of a job with an accuracy above 92 % lowers the\n"
        "mean time to completion by 12 to 18 % (Frenzy, arXiv 2412.14479).",
        "The scheduler is a reconstruction, and what it was compared with is unknown.",
    ),
}
"""Title, claim and limit of each program in ``benchmarks/claims``."""
PEERS = "## Speed and size against named peers"
"""Heading of the part of ``results.md`` that is written by hand."""


COMMANDS = """# Commands

Data goes to stdout, talk to stderr. `--json` prints what scripts may rely on. `SCENARIO` is a scenario file, a
folder written by `ingest`, or the word `sample`; `--set KEY=VALUE` changes a field of it.
"""
WORDS = "# Words\n\nOne meaning each, in code, tables and reports alike.\n\n| word | meaning |\n|---|---|\n"


def results_page() -> str:
    """Page of measured results: the published claims, then what stands under :data:`PEERS` already."""
    parts = [
        "# Measured results",
        "## Published claims",
        "A figure holds if its 95 % interval lies within the claimed range. `python benchmarks/claims/NAME.py` makes\n"
        "each table again; more tables stand in `benchmarks/claims/results`.",
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
        cells = (row["figure"], row["unit"], claimed, f"{row['measured']:.3g}", interval, row["verdict"])
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
        Exit.USAGE: "wrong use of the command line",
        Exit.BAD_INPUT: "bad input, or an output that cannot be written",
        Exit.INFEASIBLE: "no plan keeps the limits",
        Exit.TIME_LIMIT: "a plan was found, but the time limit was reached before the gap asked for",
        Exit.NOTHING_IN_TIME: "nothing was found in time",
        Exit.MISSING_PART: "an optional library is missing",
        Exit.INTERRUPTED: "interrupted",
        Exit.TERMINATED: "ended by SIGTERM; cleared up as after an interrupt",
    }
    rows = [f"| {code.value} | {text} |" for code, text in meanings.items()]
    return "## Exit codes\n\n| code | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def knobs_markdown(kind: type) -> str:
    """The rows of a dataclass as tables, one a group."""
    rows, parts = knobs_of(kind).values(), []
    for group in dict.fromkeys(row.group for row in rows):
        parts += [
            f"## {group.capitalize()}\n",
            "| field | default | allowed | meaning |",
            "|---|---|---|---|",
        ]
        parts += [
            f"| `{row.name}` | {row.usual} | {row.allowed or row.types} | {row.meaning} |"
            for row in rows
            if row.group == group
        ]
        parts.append("")
    return "\n".join(parts).replace("``", "`")


def glossary_markdown() -> str:
    """The table of words for the documentation."""
    return WORDS + "".join(f"| {one.word} | {one.meaning} |\n" for one in glossary())


def pages() -> dict[str, str]:
    """Text of each page by file name."""
    tables = "\n".join(to_markdown(name, schema) for name, schema in TABLES.items())
    intro = "All times are UTC instants. Units stand in the names. Missing is never zero.\n"
    return {
        "tables.md": f"# Tables\n\n{intro}\n{tables}",
        "commands.md": commands_markdown(),
        "glossary.md": glossary_markdown(),
        "results.md": results_page(),
        "scenario.md": f"# A scenario\n\n{FIELDS}\n{knobs_markdown(Scenario)}",
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
