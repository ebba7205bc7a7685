"""What an operator's script would do: each slot as cheap as can be, given the slot before, with no look ahead."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.effort import Effort
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.forward import sweep
from gpuplanner.planner.problem import Counts


def greedy_states(fluid: Fluid, effort: Effort) -> Counts:
    """Decide slot after slot, each at the least cost of its own and of the change into it.

    A baseline. It cuts a GPU anew whose layout the next slot will want again, and never cuts for a need that
    grows later: what that costs, the other methods save.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    effort : Effort
        Limits of the search; slots that the time does not suffice for have the least that may be on.

    Returns
    -------
    ndarray of int, shape (n_slots, n_columns)
        A plan that keeps every limit.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import PlanProblem
    >>> problem = PlanProblem(
    ...     board="H100-80GB-SXM5", gpus=1, gpus_per_node=1, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.80gb", "1g.10gb"],
    ...     demand=[[[1, 0, 1], [0, 7, 0]]], unmet_price=1.3, change_gpu_hours=0.2,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin(gap_target=0, time_limit_s=10, seed=0, solver="highs")
    >>> states = greedy_states(fluid, effort)  # to leave the hour between unserved would cost less than two cuts
    >>> fluid.on(states).tolist()
    [[1, 0], [0, 1], [1, 0]]
    """
    least = np.tile(fluid.pinned, (fluid.problem.n_slots, 1))
    return sweep(fluid, least, None, effort)
