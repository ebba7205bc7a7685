"""Write ``docs/results.md`` from what benchmarks print: ``python docs/make_results.py --date 2026-11-27 geometry``.

The benchmarks that are named are run, or read from ``--outputs FOLDER`` where ``NAME.txt`` is what one printed; rows of
all others stay as they stand in the page. Figures are ratios of CPU seconds, of memory or of GPUs, never wall clock:
they hold on other machines too, as far as these are like ours.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PAGE = HERE / "results.md"
INTRO = """# What was measured against whom

Ratios as the benchmarks print them; above 1 this package is better. Each row is made by `python benchmarks/NAME.py`,
which checks first that both sides say the same, and put here by `python docs/make_results.py`. What was done on data
that was kept back, and on large inputs, has pages of its own:

- [forecasts](forecast.md)
- [ways to run a fleet](equal_service.md)
- [memory of training jobs](memory.md)
- [packing](packing.md)
- [large inputs](scale.md)

| what | against | data | ratio | benchmark | date |
|---|---|---|---|---|---|
"""


class Claim(NamedTuple):
    """A figure of a benchmark: what it says, and where it stands in what is printed."""

    benchmark: str
    options: tuple[str, ...]
    what: str
    against: str
    data: str
    figure: str


JOBS = ("--jobs", "300000")
ROWS = ("--rows", "200000", "--samples", "300000", "--rounds", "1")
CLAIMS = (
    Claim("geometry", (), "all layouts of 19 boards, CPU", "the textbook search", "the catalogue",
          r"^all +\S+ +\S+ +(\S+)$"),
    Claim("describe_scale", JOBS, "a year of jobs described, CPU", "polars by hand", "300,000 made-up jobs",
          r"^  ratio +(\S+)"),
    Claim("describe_scale", JOBS, "the same, largest memory", "polars by hand", "300,000 made-up jobs",
          r"^  ratio +\S+ +\S+ +(\S+)"),
    Claim("reading", ROWS, "a job list read and checked, CPU", "pandas, same checks", "Philly, 53,257 jobs",
          r"^Philly +\S+ +\S+ +(\S+)"),
    Claim("reading", ROWS, "the same, a longer list", "pandas, same checks", "200,000 made-up rows",
          r"^\d+ rows +\S+ +\S+ +(\S+)"),
    Claim("services", (), "GPUs for 200 services, rates x 5", "each service sized alone", "profiles of ParvaGPU",
          r"^200 services, rates x 5 +(\d+) .* +(\d+) +\d+ +\w+ *$"),
)  # fmt: skip


def printed(claim: Claim, outputs: Path | None) -> str:
    """What a benchmark prints."""
    if outputs is not None:
        return (outputs / f"{claim.benchmark}.txt").read_text(encoding="utf-8")
    script = HERE.parent / "benchmarks" / f"{claim.benchmark}.py"
    command = [sys.executable, str(script), *claim.options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def ratio(claim: Claim, text: str) -> str:
    """The figure; of two numbers, how many times the first the second is."""
    found = re.search(claim.figure, text, re.MULTILINE)
    if found is None:
        sought = f"{claim.benchmark} printed no line like {claim.figure}"
        raise ValueError(sought)
    figures = [float(one) for one in found.groups()]
    return f"{figures[0] if len(figures) == 1 else figures[1] / figures[0]:.2f}"


def rows(date: str, names: list[str], outputs: Path | None) -> Iterator[str]:
    """A row a claim: measured now, or as the page has it."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.is_file() else []
    kept = {tuple(line.split(" | ")[:2]): line for line in lines}
    texts = dict.fromkeys(names, "")
    for claim in CLAIMS:
        if claim.benchmark in texts:
            text = texts[claim.benchmark] = texts[claim.benchmark] or printed(claim, outputs)
            cells = [claim.what, claim.against, claim.data, ratio(claim, text), f"`{claim.benchmark}`", date]
            yield f"| {' | '.join(cells)} |"
        elif (key := (f"| {claim.what}", claim.against)) in kept:
            yield kept[key]


def main() -> None:
    """Measure what is named, and write the page."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="*", choices=sorted({one.benchmark for one in CLAIMS}))
    asked.add_argument("--date", required=True, help="day of the measurement, YYYY-MM-DD")
    asked.add_argument("--outputs", type=Path, help="folder with what benchmarks printed, NAME.txt")
    given = asked.parse_args()
    table = list(rows(given.date, given.names, given.outputs))
    PAGE.write_text(INTRO + "\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
