"""Write the reference pages that are made from the code: tables, commands and words."""

from __future__ import annotations

from pathlib import Path

from gpuplanner.cli.reference import commands_markdown
from gpuplanner.knobs import knobs_markdown
from gpuplanner.report.words import glossary_markdown
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import TABLES, to_markdown

HERE = Path(__file__).parent
FIELDS = """What is planned, on what data, by which rules and at which price. A file of them is YAML, a line a field;
what it does not name has its default. Commands change a field with `--set KEY=VALUE`, and some by options of their own.
"""


def pages() -> dict[str, str]:
    """Text of each page by file name."""
    tables = "\n".join(to_markdown(name, schema) for name, schema in TABLES.items())
    intro = "All times are UTC instants. Units stand in the names. Missing is never zero.\n"
    return {
        "tables.md": f"# Tables\n\n{intro}\n{tables}",
        "commands.md": commands_markdown(),
        "glossary.md": glossary_markdown(),
        "scenario.md": f"# A scenario\n\n{FIELDS}\n{knobs_markdown(Scenario)}",
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
