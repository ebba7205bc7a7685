"""What given counts cost under a demand that they were not made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.planner.contract.problem import Counts, PlanProblem
from gpuplanner.planner.program.fluid import Fluid


def realised_cost(
    problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None = None
) -> float:
    """Cost of counts under the demand of a problem, whatever demand they were planned for.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["3g.20gb"], demand=[[[2, 2, 4]]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> best = plan(problem)
    >>> realised_cost(problem, best.layouts, best.counts) == best.objective
    True
    >>> round(realised_cost(problem, best.layouts, best.counts[[0, 0, 0]]), 3)  # 2 of 4 missing at the end
    11.571
    """
    known = dict.fromkeys(layouts, 0) | dict(problem.initial or {})
    fluid = Fluid.of(replace(problem, initial=known))
    before = None if problem.initial is None else fluid.initial
    return fluid.cost(counts_in(fluid, layouts, counts, parked), before=before)


def counts_in(fluid: Fluid, layouts: Sequence[str], counts: Counts, parked: Counts | None = None) -> Counts:
    """Counts of GPUs on, and parked, with every column of the arrays, shape (n, n_columns)."""
    spread = np.zeros((len(counts), len(fluid.owner)), dtype=np.int64)
    spread[:, [fluid.layouts.index(layout) for layout in layouts]] = counts
    if parked is not None and fluid.parks:
        kept = {fluid.layouts[i]: place for place, i in enumerate(fluid.owner) if not fluid.used[place]}
        for layout, column in zip(layouts, parked.T, strict=True):
            if layout in kept:
                spread[:, kept[layout]] = column
    return spread
