"""A receding horizon against hindsight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.planner.fleet_limits_and_prices import StatePrices
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_explanation import arrange_counts_in_columns
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.receding_horizon import roll, slice_problem
from tests.seeds import seeds

EXACT = {"gap_target": 0.0}
PARKED = StatePrices(parked_price=0.1, dress=0.3, instance=0.02, drain=0.4, mode=0.1)


def wavy(problem_of: Any, seed: int, slots: int = 12, **changes: Any) -> PlanProblem:
    rng = np.random.default_rng(seed)
    demand = (1.5 + np.sin(np.arange(slots) / 6 * np.pi)) * rng.uniform(0.5, 1.2, size=(1, 2, slots))
    values = {"gpus": 3, "change_gpu_hours": 0.8, "interval_hours": 0.5}
    problem: PlanProblem = problem_of(demand, ["2g.10gb", "3g.20gb"], **(values | changes))
    return problem


@pytest.mark.parametrize("prices", [None, PARKED])
@pytest.mark.parametrize("seed", seeds(3, 5))
def test_knowing_everything_costs_no_regret(problem_of: Any, seed: int, prices: StatePrices | None) -> None:
    problem = wavy(problem_of, seed, prices=prices)
    done = roll(problem, lambda slot: problem.demand[:, :, slot:], commit=5, horizon=12, **EXACT)
    assert done.replans == 3
    assert done.cost == pytest.approx(done.hindsight_cost, abs=1e-6)
    assert done.counts.shape == (12, len(done.layouts))


@pytest.mark.parametrize("prices", [None, PARKED])
@pytest.mark.parametrize("seed", seeds(3, 5))
def test_naive_forecasts_cost_something_and_keep_every_limit(
    problem_of: Any, seed: int, prices: StatePrices | None
) -> None:
    available = [3] * 6 + [1] * 2 + [3] * 4
    values = {"initial": {"4g.20gb:1,3g.20gb:1": 2}, "parked": prices and {"2g.10gb:3": 1}}
    problem = wavy(problem_of, seed, available=available, prices=prices, **values)
    done = roll(problem, lambda slot: problem.demand[:, :, [slot] * 6], horizon=6, **EXACT)
    arrays = PlanArrays.from_problem(problem)
    counts = arrange_counts_in_columns(arrays, done.layouts, done.counts, done.parked)
    assert all(arrays.keeps_limits(slot, row[None])[0] for slot, row in enumerate(counts))
    assert done.cost == pytest.approx(arrays.total_cost(counts))
    assert done.hindsight.status == "optimal"
    assert done.hindsight.objective is not None
    assert done.cost >= done.hindsight.objective - 1e-6
    assert done.hindsight_cost == pytest.approx(done.hindsight.objective, abs=1e-6)
    assert done.hindsight_cost == pytest.approx(done.hindsight.bound, abs=1e-5)
    assert done.cost >= done.hindsight_cost - 1e-9


def test_the_prefix_is_frozen(problem_of: Any) -> None:
    problem = wavy(problem_of, 3)
    asked: list[int] = []

    def forecast(slot: int) -> np.ndarray:
        asked.append(slot)
        return problem.demand[:, :, slot:]

    done = roll(problem, forecast, commit=4, horizon=6, **EXACT)
    assert asked == [0, 4, 8]
    first = plan(slice_problem(problem, range(6), problem.demand[:, :, :6], None), **EXACT)
    ours = {layout: done.counts[:4, i].tolist() for i, layout in enumerate(done.layouts)}
    for layout, column in zip(first.layouts, first.counts[:4].T.tolist(), strict=True):
        assert ours.get(layout, [0] * 4) == column


def test_the_future_is_not_looked_at(problem_of: Any) -> None:
    """Another true demand with the same forecasts gives the same decisions."""
    problem = wavy(problem_of, 1)
    other = wavy(problem_of, 2)
    believed = wavy(problem_of, 4).demand
    done = [roll(p, lambda slot: believed[:, :, slot:], horizon=4, **EXACT) for p in (problem, other)]
    assert done[0].layouts == done[1].layouts
    assert (done[0].counts == done[1].counts).all()
    assert done[0].cost != done[1].cost


def test_a_forecast_of_things_that_never_come_is_paid_for(problem_of: Any) -> None:
    problem = problem_of(np.zeros((1, 1, 3)), ["gpu"])
    done = roll(problem, lambda slot: np.ones((1, 1, 3)), horizon=3, **EXACT)
    assert done.cost == pytest.approx(3)
    assert done.hindsight_cost == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commit": 0}, "commit 0"),
        ({"forecast": lambda slot: np.ones((1, 1, 9))}, "forecast at interval 0"),
        ({"forecast": lambda slot: np.full((1, 2, 9), np.nan)}, "not finite"),
    ],
)
def test_nonsense_is_refused(problem_of: Any, changes: dict[str, Any], words: str) -> None:
    problem = wavy(problem_of, 0)
    values = {"forecast": lambda slot: problem.demand[:, :, slot:], "commit": 1, "horizon": 4} | changes
    with pytest.raises(ScenarioError, match=words):
        roll(problem, **values)
