"""Solvers: honest status, the same answer on every way, and what happens when they fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pulp
import pytest

from gpuplanner.core.errors import MissingDependencyError, ScenarioError
from gpuplanner.planner import milp_solvers as solver
from gpuplanner.planner.interval_milp import WindowBound, build_slot_model
from gpuplanner.planner.linear_programs_and_search_limits import LinearModel, SearchEffort, relative_gap
from gpuplanner.planner.plan_arrays import PlanArrays


def effort(**changes: Any) -> SearchEffort:
    return SearchEffort.begin(**changes)


def knapsack(n: int, rows: int, seed: int = 0) -> LinearModel:
    """Cover rows of random weights: small ones are easy, large ones cannot be closed in seconds."""
    rng = np.random.default_rng(seed)
    model = LinearModel()
    columns = model.add_columns([f"x{i}" for i in range(n)], cost=rng.integers(10, 100, n), high=[1] * n)
    for row in range(rows):
        weights = rng.integers(5, 100, n)
        model.add_row(f"r{row}", columns, weights, ">=", float(weights.sum()) / 3)
    return model


@pytest.fixture(scope="module")
def week(problem_of: Any) -> LinearModel:
    hours = np.arange(24)
    demand = [[1.3 + hours % 5, 0.7 + hours % 3, 1 + 0 * hours]]
    problem = problem_of(demand, ["1g.5gb", "3g.20gb", "gpu"], gpus=6, change_gpu_hours=0.2)
    floors = [WindowBound(range(t, t + 1), 1.5) for t in range(24)]
    return build_slot_model(PlanArrays.from_problem(problem), range(24), window_bounds=floors).linear


@pytest.mark.parametrize("relaxed", [False, True])
def test_both_solvers_agree(week: LinearModel, relaxed: bool) -> None:
    one, other = (solver.solve(week, effort(solver=name), relaxed=relaxed) for name in ("highs", "cbc"))
    assert one.status == other.status == "optimal"
    assert one.objective == pytest.approx(other.objective)
    for answer in (one, other):
        assert answer.bound is not None
        assert answer.objective is not None
        assert answer.bound <= answer.objective
        assert relative_gap(answer.objective, answer.bound) == 0


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_no_answer_is_said_to_be_none(name: str) -> None:
    model = LinearModel()
    x = model.add_columns(["x"], cost=[1.0], high=[3.0])
    model.add_row("too_much", x, [1.0], ">=", 5.0)
    assert solver.solve(model, effort(solver=name)) == solver.Solution("infeasible")


@pytest.mark.parametrize("name", ["highs", pytest.param("cbc", marks=pytest.mark.long)])
def test_a_stopped_solver_is_not_believed_to_be_optimal(name: str) -> None:
    """Both report 'Optimal' when they are stopped; and how far they came does not depend on the machine."""
    model = knapsack(120, 40)
    answer, again = (solver.solve(model, effort(solver=name, work_limit=40)) for _ in range(2))
    np.testing.assert_array_equal(answer.values, again.values)
    assert (answer.objective, answer.bound) == (again.objective, again.bound)
    assert answer.status in ("feasible", "unknown")
    if answer.status == "feasible":
        assert answer.values is not None
        np.testing.assert_allclose(answer.values, np.rint(answer.values), atol=1e-6)
        for row in model.rows:
            assert answer.values[row.columns] @ row.coefficients >= row.rhs - 1e-6


def test_time_that_is_up_gives_no_answer(week: LinearModel) -> None:
    late = SearchEffort(gap_target=0.0, deadline=time.monotonic() - 1)
    assert late.is_spent()
    assert solver.solve(week, late) == solver.Solution("unknown")


def test_a_crash_of_the_solver_is_an_unknown_answer(monkeypatch: pytest.MonkeyPatch, week: LinearModel) -> None:
    def crash(*_: object) -> None:
        raise pulp.PulpSolverError("Pulp: Error while executing cbc")

    monkeypatch.setattr(pulp.PULP_CBC_CMD, "actualSolve", crash)
    assert solver.solve(week, effort(solver="cbc")) == solver.Solution("unknown")


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, week: LinearModel, name: str
) -> None:
    def missing(library: str, extra: str) -> None:
        raise MissingDependencyError(f"{library}: pip install 'gpuplanner[{extra}]'")

    monkeypatch.setattr(solver, "import_optional", missing)
    with pytest.raises(MissingDependencyError, match=r"gpuplanner\[plan\]"):
        solver.solve(week, effort(solver=name))


def test_interrupt_stops_a_long_solve_at_once() -> None:
    model = knapsack(solver._MIN_COLUMNS_FOR_SOLVER_THREAD, 60)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    timer = threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            solver.solve(model, effort(time_limit_s=600))
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 300  # an interrupt heard only when the solver ends comes at its limit


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gap_target": -0.1}, "gap_target must be at least 0"),
        ({"time_limit_s": 0}, "time_limit_s must be above 0"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"solver": "gurobi"}, "solver must be one of highs, cbc"),
    ],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        effort(**changes)
