"""The rule without forecasts: it never looks ahead, keeps the limits, and is lazy about layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.planner import Limits, roll
from gpuplanner.planner.lazy import lazy

EXACT = {"gap_target": 0.0, "time_limit_s": 60.0}


def two_layouts(problem_of: Any, large: Any, small: Any, **changes: Any) -> Any:
    """One GPU, wanted in one piece or in seven."""
    demand = np.array([[large, [7 * wanted for wanted in small]]], dtype=float)
    values = {"gpus": 1, "unmet_price": 2.0, "change_gpu_hours": 1.5}
    return problem_of(demand, ["7g.40gb", "1g.5gb"], **(values | changes))


def test_one_layout_is_cut_once_and_follows_the_demand(problem_of: Any) -> None:
    demand = [0, 2, 0, 1, 3, 0, 3]
    problem = problem_of(
        np.array([[demand]]), ["7g.40gb"], change_gpu_hours=9.0, unmet_price=100.0, initial={}
    )
    done = lazy(problem, **EXACT)
    assert done.counts.ravel().tolist() == demand
    assert done.cost == pytest.approx(sum(demand) + 3 * 9.0)
    assert done.regret == pytest.approx(0)
    assert done.replans == 2  # two GPUs for the second slot, the third for the fifth


def test_another_layout_comes_when_its_absence_has_cost_as_much(problem_of: Any) -> None:
    # Every slot served otherwise would have saved 1, of 1.5 that a change costs, there and back.
    slots = 6
    problem = two_layouts(problem_of, [1] + [0] * slots, [0] + [1] * slots)
    done = lazy(problem, **EXACT)
    small = done.counts[:, done.layouts.index("1g.5gb:7")]
    first = int(np.flatnonzero(small)[0])
    assert first == 4
    assert small[first:].all()


def test_a_short_wish_does_not_change_layouts(problem_of: Any) -> None:
    large = [1, 0, 1, 0, 1, 0, 1]
    problem = two_layouts(problem_of, large, [1 - wanted for wanted in large], change_gpu_hours=10.0)
    done = lazy(problem, **EXACT)
    assert done.layouts == ("7g.40gb:1",)
    assert done.replans == 0


@pytest.mark.parametrize("method", ["lazy", "roll"])
def test_a_limit_on_switches_is_refused_by_name(problem_of: Any, method: str) -> None:
    problem = two_layouts(problem_of, [1, 0], [0, 1], limits=Limits(switches_per_day=1))
    with pytest.raises(ScenarioError, match=f"{method}: limits: expected no switches_per_day"):
        lazy(problem) if method == "lazy" else roll(
            problem, lambda slot: problem.demand[:, :, slot:], horizon=2
        )


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
