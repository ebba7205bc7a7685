"""The exact step, on its own, against everything tried."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.planner.linear_programs_and_search_limits import cover_with_fewest_patterns
from gpuplanner.planner.packing_bounds import build_window_bound
from gpuplanner.planner.packing_files_and_verification import verify_packing
from gpuplanner.planner.packing_problem import Packing, PackingProblem, build_packing_grid
from gpuplanner.planner.packing_search import decide_bin_count, pack
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(20, 40))
def test_the_optimum_is_found_and_one_bin_less_is_impossible(draw, fewest, seed):
    problem = draw(seed)
    grid = build_packing_grid(problem)
    program = build_window_bound(problem, grid, (0, grid.n_moments), np.arange(problem.n_items))
    while not program.exhausted:
        program.step()
    best = fewest(problem)
    found = decide_bin_count(program, best, time_limit_s=60, seed=0)
    assert not found.impossible
    bins = int(found.bin_of.max()) + 1
    assert bins == best
    assert verify_packing(Packing(bins, 1, found.bin_of, None, "proof", 0.0), problem) == []
    if best > 1:
        less = decide_bin_count(program, best - 1, time_limit_s=60, seed=0)
        assert (less.bin_of, less.impossible) == (None, True)


def test_a_solver_without_time_decides_nothing():
    rng = np.random.default_rng(0)
    patterns = rng.random((400, 60)) < 0.06
    chosen, decided = cover_with_fewest_patterns(patterns, 12, time_limit_s=1e-9, seed=0)
    assert (chosen, decided) == (None, False)


def test_an_instance_that_long_stayed_one_bin_apart():
    """Drawn as the class of long small items is: thousands of labels lie on the way to few patterns."""
    rng = np.random.default_rng(152)
    starts = rng.integers(1, 51, 50)
    problem = PackingProblem(starts, starts + rng.integers(20, 60, 50), rng.integers(25, 51, 50), 100)
    found = pack(problem, time_limit_s=60)
    assert (found.bins, found.lower_bound, found.stopped_by) == (14, 14, "proof")
    assert verify_packing(found, problem) == []
