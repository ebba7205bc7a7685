"""The reader of ``docs/where_to_change.md`` is one file, and every command finds it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HISTORY = """\
run,group,queued,began,finished,outcome,cards,hosts
a,vision,2026-01-05T08:00:00Z,2026-01-05T08:30:00Z,2026-01-05T10:30:00Z,ok,4,n1
b,vision,2026-01-05T09:00:00+01:00,2026-01-05T09:00:00Z,2026-01-05T10:00:00Z,broken,2,n1
c,speech,2026-01-05T09:00:00Z,,,queued,8,
d,speech,2026-01-05T09:00:00Z,2026-01-05T09:00:00Z,2026-01-05T08:00:00Z,ok,8,n2
e,speech,2026-01-05T09:00:00Z,2026-01-05T09:00:00Z,2026-01-05T10:00:00Z,lost,8,n2
"""


@pytest.fixture
def gpuplanner(root: Path, tmp_path: Path):
    """The command line of a copy of the package with the reader of the page in it."""
    page = (root / "docs" / "where_to_change.md").read_text()
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "Beacon" in code)
    house = shutil.copytree(root / "gpuplanner", tmp_path / "gpuplanner", ignore=shutil.ignore_patterns("__pycache__"))
    (house / "ingest" / "schedulers" / "beacon.py").write_text(code)
    outside = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*words: object) -> object:
        command = [
            sys.executable,
            "-c",
            "from gpuplanner.cli.application import main; main()",
            *map(str, words),
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=outside)
        return json.loads(done.stdout)

    return run


@pytest.mark.long
def test_the_reader_of_the_page_reaches_every_door(gpuplanner, tmp_path: Path):
    path = tmp_path / "history.csv"
    path.write_text(HISTORY)
    assert "beacon" in gpuplanner("ingest", "--list")
    facts = gpuplanner("ingest", "auto", path, "-o", tmp_path / "mine")
    assert (facts["source"], facts["rows_in"], facts["rows_kept"], facts["rows_rejected"]) == ("beacon", 5, 3, 2)
    assert facts["gpu_hours"] == 4 * 2 + 2 * 1
    again = gpuplanner("ingest", "beacon", path, "-o", tmp_path / "mine")
    assert again == facts
    told = gpuplanner("describe", tmp_path / "mine")
    held = {row["tenant"]: row["no_telemetry"] for row in told["allocated GPU-hours by observed activity"]}
    assert held == {"vision": pytest.approx(10.0)}
