"""The integer programme of a round: which option each job gets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuplanner.lab.claims.heterogeneous.reassign import Assignment
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.linear import LinearModel
from gpuplanner.solving.solver import solve

GAP = 0.005


def by_programme(problem: Assignment, *, gap: float = GAP) -> NDArray[np.bool_]:
    """Solve the assignment: at most one option a job, within the GPUs of every type, largest sum of values.

    Examples
    --------
    >>> both = Assignment(np.array([1.0, 0.8]), np.array([0, 1]), np.array([0, 0]), np.array([4, 4]), (4,))
    >>> by_programme(both).tolist()
    [True, False]
    """
    ones = np.ones(len(problem.value))
    model = LinearModel()
    columns = model.add_columns([f"x{place}" for place in range(len(ones))], cost=-problem.value, high=ones)
    for job in np.unique(problem.job):
        mine = columns[problem.job == job]
        model.add_row(f"job{job}", mine, ones[: len(mine)], "<=", 1.0)
    for kind, gpus in enumerate(problem.capacity):
        mine = problem.kind == kind
        if mine.any():
            model.add_row(f"kind{kind}", columns[mine], problem.gpus[mine], "<=", gpus)
    effort = Effort.begin()
    values = solve(model, effort, gap=gap).values
    assert values is not None  # nobody gets anything is always possible
    chosen: NDArray[np.bool_] = values > 0.5
    return chosen
