"""How often one GPU is cut in a day, and which of several takes the next layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.fleet_limits_and_prices import Limits, StatePrices
from gpuplanner.planner.numbered_gpus import IdleGpuPlacer, count_numbered_changes
from gpuplanner.planner.plan_problem import PlanProblem

SMALL, LARGE = "1g.5gb:7", "3g.20gb:2"
TURNS = [[1, 0], [0, 1], [1, 0]]
"""Cut small, large, and small again."""


def pool(problem_of: Any, slots: int, **changes: Any) -> PlanProblem:
    values = {"gpus": 1, "gpus_per_node": 1, "limits": Limits(switches_per_day=2)} | changes
    return problem_of(np.zeros((1, 1, slots)), ["1g.5gb"], **values)


def cuts(problem: PlanProblem, layouts: list[str], counts: list[list[int]]) -> int:
    """Most cuts of one GPU in one day; what is not on is parked as whole GPUs."""
    parked = None if problem.prices is None else np.zeros_like(counts)
    return count_numbered_changes(problem, layouts, np.array(counts), parked)[0]


@pytest.mark.parametrize("prices", [None, StatePrices()])
def test_cuts_are_counted_from_midnight_on(problem_of: Any, prices: StatePrices | None) -> None:
    """The first layout is there before the first slot. Two changes on one day are two, on two days one a day."""
    together = pool(problem_of, 3, prices=prices)
    apart = pool(problem_of, 3, prices=prices, interval_hours=24.0)
    assert cuts(together, [SMALL, LARGE], TURNS) == 2
    assert cuts(apart, [SMALL, LARGE], TURNS) == 1
    assert cuts(together, [SMALL, LARGE], [[1, 0]] * 3) == 0


@pytest.mark.parametrize("prices", [None, StatePrices()])
def test_what_a_gpu_was_cut_to_before_the_plan_is_no_cut_of_its_first_day(problem_of: Any, prices: Any) -> None:
    problem = pool(problem_of, 3, prices=prices, initial={SMALL: 1})
    assert cuts(problem, [SMALL, LARGE], [[1, 0]] * 3) == 0
    assert cuts(problem, [SMALL, LARGE], [[0, 1], [0, 1], [1, 0]]) == 2


@pytest.mark.parametrize("first", [(SMALL, LARGE), (LARGE, SMALL)])
def test_the_gpu_that_was_not_cut_today_is_made_whole(problem_of: Any, first: tuple[str, str]) -> None:
    """Of two cut GPUs one was cut anew; the other is made whole, wherever the first of them stands."""
    problem = pool(problem_of, 3, gpus=2, limits=Limits(switches_per_day=1))
    layouts = [*first, "2g.10gb:3,1g.5gb:1", "gpu"]
    assert cuts(problem, layouts, [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]) == 1


def test_of_gpus_parked_alike_the_last_comes_back(problem_of: Any) -> None:
    """Nodes are filled with cut GPUs from the last one on, so that whole nodes stay free at the other end."""
    place = IdleGpuPlacer(pool(problem_of, 1, gpus=3, prices=StatePrices()), [SMALL, "gpu"])
    all_parked_small = np.full(3, 2, dtype=np.int16)
    assert place.place_next(all_parked_small, np.array([1, 0, 2, 0])).tolist() == [2, 2, 0]
