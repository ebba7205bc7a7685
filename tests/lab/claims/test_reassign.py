"""Jobs assigned anew every round on a fleet of several types: the programme against all assignments, runs by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings

from gpuplanner.errors import ScenarioError
from gpuplanner.lab.claims.heterogeneous import Assignment, by_assignment, reassign
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.linear import LinearModel
from gpuplanner.solving.solver import solve
from tests.lab.orders import test_dispatch as by_type


def by_programme(problem: Assignment):
    """The integer programme, through PuLP."""
    model = LinearModel()
    columns = model.add_columns(
        [f"x{i}" for i in range(len(problem.value))], cost=-problem.value, high=np.ones(len(problem.value))
    )
    for job in np.unique(problem.job):
        mine = columns[problem.job == job]
        model.add_row(f"job{job}", mine, np.ones(len(mine)), "<=", 1.0)
    for kind, gpus in enumerate(problem.capacity):
        mine = problem.kind == kind
        if mine.any():
            model.add_row(f"kind{kind}", columns[mine], problem.gpus[mine], "<=", gpus)
    answer = solve(model, Effort.begin())
    assert answer.status == "optimal"
    return answer.values > 0.5


def by_trying_all(problem: Assignment):
    """Every combination of options."""
    options = [[-1, *np.flatnonzero(problem.job == job)] for job in np.unique(problem.job)]
    best, value = (), -1.0
    for chosen in itertools.product(*options):
        taken = [option for option in chosen if option >= 0]
        used = np.bincount(problem.kind[taken], problem.gpus[taken], minlength=len(problem.capacity))
        if (used <= problem.capacity).all() and problem.value[taken].sum() > value:
            best, value = taken, problem.value[taken].sum()
    return np.isin(np.arange(len(problem.value)), best)


class TestRounds:
    @settings(max_examples=12, deadline=None)
    @given(workload=by_type.workloads(kinds=2))
    def test_the_programme_finds_the_best_assignment_and_the_run_is_sound(self, most_held, workload):
        fleet, rows = workload

        def both(problem):
            first, second = by_programme(problem), by_trying_all(problem)
            assert math.isclose(problem.value[first].sum(), problem.value[second].sum(), rel_tol=1e-9)
            return first

        jobs, plans = by_type.tables(rows[:5])
        run = reassign(jobs, plans, fleet, by_assignment(both), policy="ilp", round_s=5.0, restart_s=2.0)
        sizes = {kind.name: kind.gpus_per_node for kind in fleet}
        assert all(gpus <= sizes[name] for (name, _), gpus in most_held(run.places).items())
        assert run.outcomes["end"].null_count() == 0

    def test_a_job_alone_takes_the_fastest_option_and_is_never_moved(self):
        jobs, plans = by_type.tables([(7, None, [(1, 1, 1.0, 100.0), (4, 1, 1.0, 30.0)])])
        run = reassign(
            jobs, plans, by_type.TestByHand.FLEET, by_assignment(by_programme), policy="ilp", round_s=10.0
        )
        assert run.outcomes.select("first_start", "end", "preemptions", "gpu_type").row(0) == (
            10,
            25,
            0,
            "large",
        )

    def test_a_move_costs_the_restart(self):
        # The first job has the fast type until the second, which runs nowhere else, comes.
        rows = [(0, None, [(4, 1, 1.0, 1000.0)]), (100, None, [(4, 1, 40.0, 100.0)])]
        jobs, plans = by_type.tables(rows)

        def last_first(problem):
            return (problem.job == problem.job.max()) & (problem.kind == 1) | (
                (problem.job < problem.job.max()) & (problem.kind == 0)
            )

        run = reassign(
            jobs,
            plans,
            by_type.TestByHand.FLEET,
            by_assignment(last_first),
            policy="p",
            round_s=50.0,
            restart_s=30.0,
        )
        # Fast until 100 s with 200 of 1000 s done, then 30 s nothing, slow until the other ends at 150 s, fast again.
        assert run.outcomes["preemptions"].to_list() == [2, 0]
        assert run.outcomes["end"].to_list() == [150 + 30 + (1000 - 200 - 20) / 2, 150]
        assert run.outcomes["lost_gpu_s"].to_list() == [4 * 60, 0]

    def test_an_allocation_that_starts_nobody_is_told_so(self):
        jobs, plans = by_type.tables([(0, None, [(1, 1, 1.0, 1.0)])])
        with pytest.raises(ScenarioError, match="somebody to get on"):
            reassign(
                jobs,
                plans,
                by_type.TestByHand.FLEET,
                by_assignment(lambda p: np.zeros(len(p.value), bool)),
                policy="p",
            )

    def test_an_allocation_of_more_than_there_is_is_told_so(self):
        jobs, plans = by_type.tables([(0, None, [(4, 1, 40.0, 1.0)]), (0, None, [(4, 1, 40.0, 1.0)])])
        with pytest.raises(ScenarioError, match="at most the 4 GPUs of large"):
            reassign(
                jobs,
                plans,
                by_type.TestByHand.FLEET,
                by_assignment(lambda p: np.ones(len(p.value), bool)),
                policy="p",
            )
