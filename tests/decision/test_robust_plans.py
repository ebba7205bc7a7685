"""Three plans over sample paths: mean and CVaR cost of each, counted by hand, and the one to prefer."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision import layout_planning as module
from gpuplanner.decision.layout_planning import PlannedProblem, make_plan_problem, weigh_plans_over_paths
from gpuplanner.forecast.rolling_demand_forecast import demand_paths
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_verification import verify
from tests.planner.conftest import MONDAY


@pytest.fixture
def two_futures(monkeypatch):
    """One slot of full GPUs: nine paths want one GPU, the tenth wants four; a GPU short costs 10."""

    def forecast_at(scenario, view):
        demand = {0.5: [[[1.0]], [[0.0]]], 0.9: [[[1.5]], [[0.5]]]}[scenario.quantile]
        return PlanProblem("A100-40GB", 4, 4, MONDAY, 1, ["ads", "bio"], ["gpu"], demand)

    paths = np.array([[[[1.0]], [[0.0]]]] * 9 + [[[[3.0]], [[1.0]]]])
    monkeypatch.setattr(module, "make_plan_problem", forecast_at)
    monkeypatch.setattr(module, "demand_paths", lambda *_: paths)
    monkeypatch.setattr(module, "largest_gang", lambda _: 0)
    return Scenario()


def test_mean_and_cvar_of_each_plan_are_those_counted_by_hand(two_futures):
    found = weigh_plans_over_paths(two_futures)
    rows = {row["plan"]: row for row in found.table.to_dicts()}
    # The mean is 1.3 GPUs: 0.3 short for an hour costs 3, a GPU 1.
    assert {name: row["gpu_hours"] for name, row in rows.items()} == {"mean": 2, "q50": 1, "q90": 2}
    assert rows["q50"]["mean_cost"] == pytest.approx(1 + 0.1 * 10 * 3)
    assert rows["q50"]["cvar_cost"] == pytest.approx(1 + 10 * 3)
    for name in ("mean", "q90"):
        assert rows[name]["mean_cost"] == pytest.approx(2 + 0.1 * 10 * 2)
        assert rows[name]["cvar_cost"] == pytest.approx(2 + 10 * 2)
    assert found.table["mean_cost"].to_list() == pytest.approx([4, 4, 4])
    assert found.preferred_plan == "mean"  # all three cost the same on average
    assert (
        "Choose the plan for mean: its mean cost over 10 paths is 4 GPU-hours, its CVaR (10 %) 22"
        in found.preference_text
    )
    assert found.to_dict()["preferred"] == "mean"
    assert found.plans["mean"].problem.demand[:, 0, 0].tolist() == pytest.approx([1.2, 0.1])


def test_paths_of_a_plan_have_its_shape_and_hold_what_runs(quick):
    problem = make_plan_problem(quick, "rightsized")
    paths = demand_paths(quick, problem.tenants, problem.profiles)
    assert paths.shape[1:] == problem.demand.shape
    assert np.isfinite(paths).all()
    assert paths.min() >= 0
    assert (paths[:, :, :, 0].std(axis=0) < paths[:, :, :, -1].std(axis=0) + 1).all()


@pytest.mark.long
def test_the_preferred_plan_of_the_sample_costs_least_and_holds(quick):
    found = weigh_plans_over_paths(quick, "greedy")
    assert found.n_paths == 200
    assert set(found.plans) == {"mean", "q50", "q90"}
    for one in found.plans.values():
        assert isinstance(one, PlannedProblem)
        assert verify(one.plan, one.problem) == []
    cost = dict(found.table.select("plan", "mean_cost").iter_rows())
    assert cost[found.preferred_plan] == min(cost.values())
    assert (found.table["cvar_cost"] >= found.table["mean_cost"]).all()
