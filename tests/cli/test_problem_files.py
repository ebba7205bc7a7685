"""``plan`` on problem files: one pool or a fleet; what is written is checked again by ``verify``."""

from __future__ import annotations

import json

import pytest

POOL = {
    "gpu_model": "A100-40GB", "gpus": 4, "gpus_per_node": 2, "slot_start": "2026-11-02T00:00:00+00:00",
    "interval_hours": 1, "tenants": ["ads"], "profiles": ["3g.20gb", "gpu"], "demand": [[[1, 3, 5], [1, 1, 0]]],
}  # fmt: skip


@pytest.fixture
def fleet(tmp_path):
    newer = POOL | {"gpu_model": "H100-80GB-SXM5", "profiles": ["3g.40gb", "gpu"]}
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"pools": {"old": POOL, "new": newer | {"limits": {"switches_per_day": 1}}}}))
    return path


def test_a_fleet_is_planned_written_and_verified(command, tmp_path, fleet):
    out = tmp_path / "plan.json"
    code, printed, said = command("plan", str(fleet), "--json", "-o", str(out))
    result = json.loads(printed)
    assert code == 0
    assert {"status", "objective", "bound", "gap", "unmet_gpu_hours", "changes"} <= set(result)
    assert sum(pool["objective"] for pool in result["pools"].values()) == pytest.approx(result["objective"])
    assert "old: " in said
    code, printed, _ = command("verify", str(out), "--json")
    assert code == 0
    values = json.loads(out.read_text())
    values["pools"]["old"]["plan"]["changes"] += 1
    out.write_text(json.dumps(values))
    code, printed, _ = command("verify", str(out), "--json")
    assert code == 1
    assert json.loads(printed)["problems"][0].startswith("old: changes:")


def test_a_plan_that_does_not_hold_is_not_written(command, monkeypatch, tmp_path, fleet):
    monkeypatch.setattr("gpuplanner.planner.fleet_plans_and_comparisons.verify_fleet", lambda *_: ["old: 9 of 4 GPUs"])
    out = tmp_path / "plan.json"
    code, printed, said = command("plan", str(fleet), "-o", str(out))
    assert (code, printed, out.exists()) == (1, "", False)
    assert "old: 9 of 4 GPUs" in said


def test_one_pool_and_its_limits(command, tmp_path):
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(POOL | {"whole_gpus_kept": 5}))
    code, printed, _ = command("plan", str(path), "--json")
    assert code == 4
    assert json.loads(printed)["status"] == "infeasible"
    path.write_text(json.dumps(POOL | {"demand": [[[1, -3, 5], [1, 1, 0]]]}))
    code, _, said = command("plan", str(path), "--json")
    assert code == 3
    assert "demand is below 0 1 times" in said


@pytest.mark.parametrize("method", ["milp", "dp", "greedy", "calendar", "static"])
def test_every_method_can_be_asked_for(command, tmp_path, method):
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(POOL))
    code, printed, _ = command("plan", str(path), "--method", method, "--work-limit", "500", "--json")
    assert code == 0
    assert json.loads(printed)["objective"] > 0
