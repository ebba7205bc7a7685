"""The rule without forecasts: its proven factor, and lazy capacity provisioning computed another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.planner import PlanProblem, StatePrices
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.realised_cost import realised_cost
from gpuplanner.planner.rolling.lazy import lazy

EXACT = {"gap_target": 0.0}


def one_layout(problem_of: Any, demand: Any, **changes: Any) -> PlanProblem:
    values = {"gpus": 4, "unmet_price": 2.0, "initial": {"7g.40gb:1": 0}}
    problem: PlanProblem = problem_of(np.array([[demand]], dtype=float), ["7g.40gb"], **(values | changes))
    return problem


def provisioned(problem: PlanProblem) -> list[int]:
    """Lazy capacity provisioning by its definition: the range between the last numbers of two best prefixes."""
    fluid = Fluid.of(problem)
    numbers = np.arange(problem.gpus + 1)
    held = np.pad(numbers[:, None], ((0, 0), (0, len(fluid.owner) - 1)))
    prices = problem.prices
    # What goes off comes back, so that only the sum of both ways counts.
    price = problem.change_gpu_hours if prices is None else prices.wake + prices.drain
    pays_up = price * (numbers[None] - numbers[:, None]).clip(0)
    pays_down = price * (numbers[:, None] - numbers[None]).clip(0)
    up, down = pays_up[0].astype(float), pays_down[0].astype(float)
    now, done = 0, []
    for slot in range(problem.n_slots):
        costs = fluid.slot_costs(slot, held)
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


@pytest.mark.parametrize("seed", range(30))
def test_one_layout_is_provisioned_so_where_gpus_are_parked(problem_of: Any, seed: int) -> None:
    """Waking and emptying cost what switching on and off does; an hour on costs what it costs beyond one parked."""
    rng = np.random.default_rng(seed)
    demand = rng.choice([0, 0.4, 1, 2, 3.5], size=15)
    wake, drain = rng.choice([0.1, 0.5, 1.3, 3.0], size=2)
    prices = StatePrices(parked_price=float(rng.choice([0, 0.25])), wake=wake, drain=drain)
    problem = one_layout(problem_of, demand, prices=prices, parked={"7g.40gb:1": 4})
    done = lazy(problem, **EXACT)
    assert done.counts.sum(axis=1).tolist() == provisioned(problem)
    assert done.cost <= 3 * done.hindsight.objective + 1e-6  # type: ignore[operator]


@pytest.mark.parametrize("parks", [False, True])
def test_the_future_changes_nothing_done_before(problem_of: Any, parks: bool) -> None:
    rng = np.random.default_rng(0)
    demand = rng.choice([0.2, 1, 2.4], size=(1, 2, 10))
    other = demand.copy()
    other[:, :, 6:] = 3.0
    prices = StatePrices(dress=0.5, drain=0.5, parked_price=0.1) if parks else None
    for limit in (500, 1):
        made = [
            lazy(
                problem_of(d, ["2g.10gb", "3g.20gb"], change_gpu_hours=1.0, prices=prices),
                max_states=limit,
                **EXACT,
            )
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


@pytest.mark.parametrize("prices", [None, StatePrices(dress=0.5, drain=0.5, parked_price=0.1)])
@pytest.mark.parametrize("seed", range(4))
def test_several_layouts_keep_the_limits(problem_of: Any, seed: int, prices: StatePrices | None) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.choice([0, 1, 2.4], size=(1, 2, 10))
    problem = problem_of(
        demand,
        ["2g.10gb", "3g.20gb"],
        change_gpu_hours=1.0,
        available=[3] * 5 + [1] * 2 + [3] * 3,
        prices=prices,
    )
    for limit in (500, 1):
        done = lazy(problem, max_states=limit, **EXACT)
        assert (done.counts.sum(axis=1) <= problem.gpus_in_service).all()
        assert done.cost >= done.hindsight.objective - 1e-6  # type: ignore[operator]
        assert done.competitive_ratio < 3
        assert ((done.counts + done.parked).sum(axis=1) <= problem.gpus).all()
        assert realised_cost(problem, done.layouts, done.counts, done.parked) == pytest.approx(done.cost)
