"""Each line of "Where do I change" in CONTRIBUTING.md, tried on a copy: the files that it names are enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import gpuplanner

pytestmark = pytest.mark.lint

PACKAGE = Path(gpuplanner.__file__).parent
JOBS = (
    "JobID|Kontostelle|State|Submit|Start|End|AllocTRES\n"
    "7|vision|COMPLETED|2026-01-05T10:00:00|2026-01-05T10:00:00|2026-01-05T11:00:00|gres/gpu=2\n"
)
DRAWN = """
import polars as pl
from gpuplanner.plot.theme import policy_colours
print(policy_colours(["node_pools"]))
"""
DRAINED = """
from gpuplanner import Scenario
for path in ("operator", "slurm"):
    print(Scenario(path=path).change("H100-80GB-SXM5").drain_s.value)
"""


@pytest.fixture(scope="module")
def where(root) -> dict[str, list[str]]:
    """Files that each line names."""
    text = (
        (root / "CONTRIBUTING.md").read_text("utf-8").split("## Where do I change", 1)[1].split("\n## ", 1)[0]
    )
    rows = (line.strip("|").split("|") for line in text.splitlines() if line.startswith("| "))
    return {cells[0].strip(): re.findall(r"`(gpuplanner/[^`]+\.(?:py|csv))`", cells[1]) for cells in rows}


@pytest.fixture
def changed(tmp_path, where):
    """Make a change in a copy of the package, in the one file that its line names, and run something there."""
    shutil.copytree(PACKAGE, tmp_path / "gpuplanner", ignore=shutil.ignore_patterns("__pycache__"))

    def change(what: str, pattern: str, new: str, *run: str) -> str:
        (named,) = where[what]
        path = tmp_path / named
        text, times = re.subn(pattern, new, path.read_text("utf-8"), flags=re.MULTILINE)
        assert times == 1, f"{named} says it in {times} places"
        path.write_text(text, "utf-8")
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, *run], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return change


def test_a_field_of_a_source(changed, tmp_path):
    (tmp_path / "sacct.txt").write_text(JOBS)
    changed(
        "a field of a source", r'"Account": Field\("account"', '"Kontostelle": Field("account"',
        "-m", "gpuplanner", "ingest", "slurm", "sacct.txt", "--tz", "UTC", "-o", "read",
    )  # fmt: skip
    assert pl.read_parquet(tmp_path / "read" / "jobs.parquet")["tenant"].to_list() == ["vision"]


def test_a_colour(changed):
    shown = changed("a colour", r'"node_pools": BLUE', '"node_pools": "#123456"', "-c", DRAWN)
    assert "#123456" in shown


def test_a_default(changed):
    shown = changed(
        "a default", r'(wait_minutes: float = knob\(\s*"service", )10\.0', r"\g<1>12.5",
        "-m", "gpuplanner", "compare", "--help",
    )  # fmt: skip
    assert re.search(r"default:\s+12\.5", shown, re.DOTALL)


def test_the_minutes_of_a_drain(changed):
    shown = changed("the minutes of a drain", r"(,drain_s,)840,", r"\g<1>1234,", "-c", DRAINED)
    assert shown.split() == ["1234.0", "1234.0"]


def test_a_list_price(changed):
    shown = changed(
        "a list price", r"^(aws,us-east-1,p4de\.24xlarge,A100-80GB,8,on_demand,USD),27\.4471,3\.4309", r"\1,62.16,7.77",
        "-m", "gpuplanner", "catalog", "prices", "A100-80GB",
    )  # fmt: skip
    assert "7.77" in shown
