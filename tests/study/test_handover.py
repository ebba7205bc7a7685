"""What is said of the changes of a plan: by the plan, by its check, and by its export."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuplanner.planner import PlanProblem, assign, plan, plan_to_json
from gpuplanner.study import changes_of_plan, verify_any
from gpuplanner.study.handover import account_of_changes


def problem_on(board: str, small: str, large: str) -> PlanProblem:
    """Two GPUs on one node: whole at first, then both cut, then one of them cut otherwise."""
    demand = [[[0, 14, 7], [0, 0, 1], [2, 0, 0]]]
    return PlanProblem(
        board, 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], [small, large, "gpu"], demand, initial={}
    )


@pytest.mark.parametrize(
    ("names", "paid", "reboots", "out"),
    [
        (("H100-80GB-SXM5", "1g.10gb", "7g.80gb"), "0.15", 0, "0.05"),  # three changes of a minute each
        (
            ("A100-80GB", "1g.10gb", "7g.80gb"),
            "0.48",
            1,
            "0.35",
        ),  # two GPUs for ten minutes, one for a minute
    ],
)
def test_plan_check_and_export_tell_the_same(
    tmp_path: Path, names: tuple[str, str, str], paid: str, reboots: int, out: str
) -> None:
    problem = problem_on(*names)
    found = plan(problem, gap_target=0)
    assert (found.changes, found.mode_changes, found.unmet_gpu_hours) == (3, 2, 0)
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(found, problem))
    said = account_of_changes(assign(found, problem), problem)
    assert said.startswith(
        f"3 changes of layout, 2 of them with a change of MIG mode, at the plan's prices {paid} GPU-hours; "
    )
    assert said.endswith(f"{reboots} reboots, and GPUs out of service for {out} GPU-hours once work has left")
    assert changes_of_plan(path) == said
    assert said in verify_any(path, None).findings
