"""The package of ``docs/extend.md`` adds a reader, a policy and an exporter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

JOBS = """\
nr,group,submitted_at,began_at,ended_at,ending,cards
1,vision,2026-01-05T10:00:00Z,2026-01-05T10:05:00Z,2026-01-05T12:05:00Z,COMPLETED,2
2,speech,2026-01-05T11:00:00Z,2026-01-05T11:00:00Z,2026-01-05T12:00:00Z,FAILED,1
"""
USED = """
import json, sys, warnings
from datetime import UTC
from datetime import datetime
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from gpuplanner.ingest.source_registry import read
    from gpuplanner.decision.policy_comparison import POLICY_NAMES
    from gpuplanner.planner.plan_problem import PlanProblem
    from gpuplanner.planner.plan_search import plan
    from gpuplanner.report.layout_schedule_files import make_calendar_bundle
    problem = PlanProblem("A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 4]]],
                          change_gpu_hours=0.05, nodes=["n1"])
    pack = make_calendar_bundle(plan(problem, gap_target=0), problem, formats="slice_list")
jobs = read("auto", "jobs.csv").jobs
hours = (jobs["gpus"] * (jobs["end_time"] - jobs["start_time"]).dt.total_hours()).sum()

from gpuplanner import Scenario
from gpuplanner.decision.comparison_record import compare_policies
found = compare_policies(Scenario(policies="last_nodes_first,fewer_nodes")) if "compare" in sys.argv else None
print(json.dumps({
    "hours": hours, "policies": POLICY_NAMES, "said": [str(one.message) for one in said],
    "files": {name: text for name, text in pack.files.items() if name.startswith("other/")},
    "compared": None if found is None else [(one.policy, one.gpu_hours, one.meets_target) for one in found.policies],
}))
"""


@pytest.fixture
def used(root, tmp_path):
    """What is seen by a process that has the package, and one that is broken."""
    page = (root / "docs" / "extend.md").read_text("utf-8")
    [project] = re.findall(r"```toml\n(.*?)```", page, re.S)
    (tmp_path / "planner_extras").mkdir()
    for name, code in re.findall(r"\(`(planner_extras/\w+\.py)`\):\n\n```python\n(.*?)```", page, re.S):
        (tmp_path / name).write_text(code)
    groups = re.sub(r'\[project.entry-points."(.*?)"\]', r"[\1]", project.partition("\n\n")[2]).replace('"', "")
    bad = {"lantern =": "slurm =", "slices:slice_list": "missing:NONE"}
    broken = groups
    for right, wrong in bad.items():
        broken = broken.replace(right, wrong)
    for name, points in (("planner_extras", groups), ("planner_broken", broken)):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
    (tmp_path / "jobs.csv").write_text(JOBS)

    def run(*words: str) -> dict:
        path = os.pathsep.join(map(str, (tmp_path, root)))
        done = subprocess.run(
            [sys.executable, "-c", USED, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_reader_and_exporter_of_another_package_are_used_and_a_broken_one_stops_nothing(used):
    told = used()
    assert told["hours"] == 5.0
    assert told["policies"][-1] == "last_nodes_first"
    [(name, text)] = told["files"].items()
    assert name == "other/slice_list/slices.csv"
    assert "3g.20gb" in text
    taken, twice, missing = sorted(told["said"], key=lambda text: "NONE" in text)
    assert "entry point 'slurm'" in taken
    assert "entry point 'last_nodes_first'" in twice
    assert "a name that nothing else has" in taken
    assert "ModuleNotFoundError" in missing


@pytest.mark.long
def test_a_way_of_another_package_is_compared_beside_ours(used):
    """Both are simulated on the same jobs: none provisions more than the 64 GPUs of the sample all week."""
    rows = {policy: (hours, holds) for policy, hours, holds in used("compare")["compared"]}
    assert set(rows) >= {"fewer_nodes", "last_nodes_first"}
    hours, holds = rows["last_nodes_first"]
    assert holds
    assert 0 < hours <= 64 * 24 * 7
