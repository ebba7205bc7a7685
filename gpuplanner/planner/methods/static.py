"""The best plan that never changes: one vector of layout counts for all slots."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.program.families import build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve


def static_counts(fluid: Fluid, effort: Effort) -> tuple[Counts | None, float | None]:
    """Choose counts once, for all slots together.

    Every GPU that is on stays on, cut as it is, so that the only changes are those from the initial layouts.
    """
    n_slots = fluid.problem.n_slots
    model = build(fluid, range(n_slots), before=fluid.initial, constant=True)
    answer = solve(model.linear, effort, gap=effort.gap_target)
    counts = None if answer.values is None else np.array(model.counts(answer.values))
    return counts, answer.bound
