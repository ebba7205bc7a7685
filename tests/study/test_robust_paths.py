"""Plans for sample paths: the one that is taken costs least over all of them, the fixed quantile's beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from gpuplanner.planner import PlanProblem, plan, verify
from gpuplanner.planner.program.realised_cost import realised_costs
from gpuplanner.study.future.outlook import paths_of
from gpuplanner.study.future.path_plans import in_bands, path_plans
from gpuplanner.study.future.plans import plan_problem


@pytest.mark.long
def test_the_plan_that_is_taken_costs_least_over_all_paths(quick):
    found = path_plans(quick, most=3, method="greedy")
    cost = dict(found.table.select("plan", "cost").iter_rows())
    assert cost[found.best] == min(cost.values()) <= cost[found.fixed]
    assert sum(name.startswith("path ") for name in cost) == 3
    assert found.best in found.sentence
    assert found.paths == 200
    for one in found.candidates.values():
        assert verify(one.plan, one.problem) == []


def test_paths_of_a_plan_have_its_shape_and_hold_what_runs(quick):
    problem = plan_problem(quick, "rightsized")
    paths = paths_of(quick, problem.tenants, problem.profiles)
    assert paths.shape[1:] == problem.demand.shape
    assert np.isfinite(paths).all()
    assert paths.min() >= 0
    assert (paths[:, :, :, 0].std(axis=0) < paths[:, :, :, -1].std(axis=0) + 1).all()


def test_bands_of_demand_give_the_plan_of_least_expected_cost():
    """On whole GPUs without costs of change every number of GPUs can be tried: the newsvendor's answer."""
    rng = np.random.default_rng(3)
    paths = rng.poisson(12, (400, 1, 6)).astype(float)
    start = datetime(2026, 11, 2, tzinfo=UTC)
    problem = PlanProblem(
        "A100-40GB", 40, 4, start, 1, ["ads"], ["gpu"], np.ones((1, 1, 6)), change_gpu_hours=0.0
    )
    made = plan(in_bands(problem, paths), gap_target=0)
    every = [replace(made, layouts=("gpu",), counts=np.full((6, 1), gpus)) for gpus in range(41)]
    least = realised_costs(problem, every, paths).mean(axis=1).min()
    found = realised_costs(problem, [made], paths).mean()
    assert found <= 1.01 * least
