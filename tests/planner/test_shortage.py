"""The cost of missing instances, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.planner.plan_arrays import build_shortage_steps, split_unmet_demand

TIERS = ("guaranteed", "standard", "best_effort")


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_steps_add_up_to_the_price_of_the_unmet_demand(problem_of: Any, data: st.DataObject) -> None:
    tenants = data.draw(st.integers(1, 4))
    demand = data.draw(st.lists(st.floats(0, 4).map(lambda x: round(x, 2)), min_size=tenants, max_size=tenants))
    tiers = data.draw(st.lists(st.sampled_from(TIERS), min_size=tenants, max_size=tenants))
    price = {"guaranteed": 30.0, "standard": 10.0, "best_effort": 2.5}
    problem = problem_of(
        np.array(demand).reshape(-1, 1, 1),
        ["2g.10gb"],
        tiers=tiers,
        unmet_price=[price[t] for t in tiers],
        interval_hours=2.0,
    )
    steps = build_shortage_steps(problem)[0]
    needed = int(problem.required_instances[0, 0])
    assert steps.width.sum() == needed
    assert (np.diff(steps.cost) > 0).all()
    per_instance = np.repeat(steps.cost, steps.width)
    for missing in range(needed + 1):
        unmet = split_unmet_demand(problem, np.array([[missing]]))
        assert (unmet <= problem.demand + 1e-12).all()
        hours = unmet[:, 0, 0] * 2 / 7 * 2.0
        assert per_instance[:missing].sum() == pytest.approx(float(hours @ np.array(problem.unmet_price)))


def test_the_first_missing_instance_costs_only_its_fraction(problem_of: Any) -> None:
    steps = build_shortage_steps(problem_of([[[2.3]]], ["gpu"]))[0]
    assert steps.width.tolist() == [1, 2]
    assert steps.cost == pytest.approx([3.0, 10.0])
