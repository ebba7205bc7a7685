"""What an operator's script would do: each slot as cheap as can be, given the slot before, with no look ahead."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.methods.forward import sweep
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort


def greedy_counts(fluid: Fluid, effort: Effort) -> Counts:
    """Decide slot after slot, each at the least cost of its own and of the change into it.

    A baseline. It gives back a GPU as soon as a slot does without it, cuts it anew in the next, and never
    cuts for a need that grows later: what that costs, the other methods save.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import PlanProblem
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[2, 0, 0, 2]]],
    ...     change_gpu_hours=2.5,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin(gap_target=0, time_limit_s=10, seed=0, solver="highs")
    >>> greedy_counts(fluid, effort).ravel().tolist()  # two idle hours would cost less than a cut
    [2, 0, 0, 2]
    """
    least = np.tile(fluid.pinned, (fluid.problem.n_slots, 1))
    return sweep(fluid, least, None, effort)
