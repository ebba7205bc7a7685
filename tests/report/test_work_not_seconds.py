"""What is planned does not depend on the machine: searches count work, and read no clock unless one was asked for."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.layout_planning import plan_view
from gpuplanner.planner.layout_plan import plan_to_json
from gpuplanner.report.report_rendering import write_report

SMALL = {"horizon_intervals": 24, "replications": 2, "policies": "fewer_nodes", "month": "2026-02"}
BUSY = "while True: pass"


def no_clock() -> float:
    raise AssertionError("a search without a time limit looked at the clock")


@pytest.mark.long
def test_nothing_of_a_report_looks_at_a_clock_to_stop(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "gpuplanner.planner.linear_programs_and_search_limits.time", SimpleNamespace(monotonic=no_clock)
    )
    study = write_report(Scenario(**SMALL), tmp_path / "report")
    assert study.plan.is_feasible
    with pytest.raises(AssertionError, match="looked at the clock"):
        plan_view(Scenario(**SMALL, time_limit_s=60), "rightsized")


@pytest.mark.long
@pytest.mark.parametrize("method", ["milp", pytest.param("calendar", marks=pytest.mark.long), "static", "greedy"])
def test_every_method_ends_by_work_with_the_same_bytes(quick, method):
    hurried = quick.but(path=Scenario().actuator, gap_target=0.0, work_limit=40)
    texts = set()
    for _ in range(2):
        found = plan_view(hurried, "rightsized", method)
        assert found.plan.stopped_by in ("work_limit", "passes", "proof")
        texts.add(plan_to_json(found.plan, found.problem))
    assert len(texts) == 1


def test_a_limit_of_work_is_a_whole_number():
    with pytest.raises(ScenarioError, match="work_limit"):
        Scenario(work_limit=0)


@pytest.mark.long
def test_a_plan_has_the_same_bytes_alone_and_beside_three_busy_loops(tmp_path):
    def planned(name: str) -> bytes:
        out = tmp_path / name
        command = ["-m", "gpuplanner", "plan", "sample", "--no-compare", "--quiet", "-o", str(out)]
        ended = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, check=True)
        return out.read_bytes() + ended.stdout

    alone = planned("alone.json")
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(3)]
    try:
        assert planned("beside.json") == alone
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
