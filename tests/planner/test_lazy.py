"""The rule without forecasts: its proven factor, and lazy capacity provisioning computed another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.planner import PlanProblem
from gpuplanner.planner.lazy import lazy
from gpuplanner.planner.program.fluid import Fluid

EXACT = {"gap_target": 0.0, "time_limit_s": 60.0}


def one_layout(problem_of: Any, demand: Any, **changes: Any) -> PlanProblem:
    values = {"gpus": 4, "unmet_price": 2.0, "initial": {"7g.40gb:1": 0}}
    problem: PlanProblem = problem_of(np.array([[demand]], dtype=float), ["7g.40gb"], **(values | changes))
    return problem


def provisioned(problem: PlanProblem) -> list[int]:
    """Lazy capacity provisioning by its definition: the range between the last numbers of two best prefixes."""
    fluid = Fluid.of(problem)
    numbers = np.arange(problem.gpus + 1)
    price = problem.change_gpu_hours
    pays_up = price * (numbers[None] - numbers[:, None]).clip(0)
    pays_down = price * (numbers[:, None] - numbers[None]).clip(0)
    up, down = pays_up[0].astype(float), pays_down[0].astype(float)
    now, done = 0, []
    for slot in range(problem.n_slots):
        costs = fluid.slot_costs(slot, numbers[:, None])
        up, down = (
            (value[:, None] + cost).min(axis=0) + costs for value, cost in ((up, pays_up), (down, pays_down))
        )
        low = int(np.flatnonzero(up <= up.min() + 1e-9)[0])
        high = int(np.flatnonzero(down <= down.min() + 1e-9)[-1])
        assert low <= high
        now = min(max(now, low), high)
        done.append(now)
    return done


@settings(max_examples=60, deadline=None)
@given(
    demand=st.lists(st.sampled_from([0, 0, 0.3, 1, 1.5, 2, 3.7]), min_size=1, max_size=14),
    change=st.sampled_from([0.05, 0.5, 1.5, 4.0, 20.0]),
    price=st.sampled_from([0.5, 1.2, 10.0]),
)
def test_one_layout_costs_at_most_three_times_hindsight(
    problem_of: Any, demand: list[float], change: float, price: float
) -> None:
    problem = one_layout(problem_of, demand, change_gpu_hours=change, unmet_price=price)
    if not Fluid.of(problem).layouts:
        return
    done = lazy(problem, **EXACT)
    assert done.hindsight.status == "optimal"
    assert done.cost <= 3 * done.hindsight.objective + 1e-6  # type: ignore[operator]
    assert done.cost >= done.hindsight.objective - 1e-6  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(30))
def test_one_layout_is_lazy_capacity_provisioning(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.choice([0, 0.4, 1, 2, 3.5], size=15)
    problem = one_layout(problem_of, demand, change_gpu_hours=float(rng.choice([0.3, 1.1, 2.7, 6.0])))
    done = lazy(problem, **EXACT)
    ours = done.counts.sum(axis=1).tolist()
    assert ours == provisioned(problem)


def test_the_future_changes_nothing_done_before(problem_of: Any) -> None:
    rng = np.random.default_rng(0)
    demand = rng.choice([0.2, 1, 2.4], size=(1, 2, 10))
    other = demand.copy()
    other[:, :, 6:] = 3.0
    for limit in (500, 1):
        made = [
            lazy(problem_of(d, ["2g.10gb", "3g.20gb"], change_gpu_hours=1.0), max_states=limit, **EXACT)
            for d in (demand, other)
        ]
        texts = made[0].layouts
        for i, layout in enumerate(texts):
            column = made[1].counts[:6, made[1].layouts.index(layout)] if layout in made[1].layouts else 0
            assert (made[0].counts[:6, i] == column).all()


def test_dear_changes_are_not_made_for_a_short_time(problem_of: Any) -> None:
    problem = one_layout(problem_of, [2, 1, 2, 1, 2, 1, 2], change_gpu_hours=10.0, unmet_price=100.0)
    done = lazy(problem, **EXACT)
    assert done.counts.ravel().tolist() == [2] * 7
    assert done.replans == 0


@pytest.mark.parametrize("seed", range(4))
def test_several_layouts_keep_the_limits(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.choice([0, 1, 2.4], size=(1, 2, 10))
    problem = problem_of(
        demand, ["2g.10gb", "3g.20gb"], change_gpu_hours=1.0, available=[3] * 5 + [1] * 2 + [3] * 3
    )
    for limit in (500, 1):
        done = lazy(problem, max_states=limit, **EXACT)
        assert (done.counts.sum(axis=1) <= problem.gpus_in_service).all()
        assert done.cost >= done.hindsight.objective - 1e-6  # type: ignore[operator]
        assert done.competitive_ratio < 3
