"""Write the reference pages: tables, commands and words from the code, published claims from their stored results."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.cli.reference import commands_markdown
from gpuplanner.knobs import knobs_markdown
from gpuplanner.report.words import glossary_markdown
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import TABLES, to_markdown
from gpuplanner.study.bundled import claims_folder

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
