"""Plans for sample paths: the one that is taken costs least over them, the fixed quantile's beside it."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.study.future.outlook import paths_of
from gpuplanner.study.future.plans import plan_problem, robust_view


@pytest.mark.long
def test_the_plan_for_paths_costs_least_over_them(quick):
    found = robust_view(quick, most=3, method="greedy")
    fixed = f"forecast q{100 * quick.quantile:g}"
    cost = dict(found.summary.select("plan", "expected_cost").iter_rows())
    assert {fixed, "mean"} <= set(cost)
    assert cost[found.least_expected_cost] == min(cost.values()) <= cost[fixed]
    assert sum(name.startswith("path ") for name in cost) == 3


def test_paths_of_a_plan_have_its_shape_and_hold_what_runs(quick):
    problem = plan_problem(quick, "rightsized")
    paths = paths_of(quick, problem.tenants, problem.profiles)
    assert paths.shape[1:] == problem.demand.shape
    assert np.isfinite(paths).all()
    assert paths.min() >= 0
    assert (paths[:, :, :, 0].std(axis=0) < paths[:, :, :, -1].std(axis=0) + 1).all()
