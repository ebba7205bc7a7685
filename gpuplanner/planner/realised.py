"""What given counts cost under a demand that they were not made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuplanner.planner.effort import Effort
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.held import settled
from gpuplanner.planner.problem import Counts, PlanProblem

_SECONDS = 60.0


def realised_cost(
    problem: PlanProblem, layouts: Sequence[str], counts: Counts, held: Counts | None = None
) -> float:
    """Cost of counts under the demand of a problem, whatever demand they were planned for.

    Parameters
    ----------
    problem : PlanProblem
        True demand, prices and limits; whether the counts keep the limits is not checked.
    layouts : sequence of str
        Layout texts; also those that no plan for the true demand would use.
    counts : ndarray of int, shape (n_slots, n_layouts)
        GPUs that are on with each layout.
    held : ndarray of int, optional, shape (n_slots, n_layouts)
        GPUs that have each layout, on or not. If None, those with the cheapest changes.

    Returns
    -------
    float
        In the units of ``Plan.objective``: price of GPUs on, of demand unmet and of changes.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     board="H100-80GB-SXM5", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["3g.40gb"], demand=[[[2, 2, 4]]],
    ... )
    >>> best = plan(problem)
    >>> realised_cost(problem, best.layouts, best.counts) == best.objective
    True
    >>> round(realised_cost(problem, best.layouts, best.counts[[0, 0, 0]]), 3)  # 2 of 4 missing at the end
    11.571
    """
    fluid = Fluid.of(problem, also=layouts)
    on = counts_in(fluid, layouts, counts)
    if held is None:
        effort = Effort.begin(gap_target=0.0, time_limit_s=_SECONDS, seed=0, solver="highs")
        states = settled(fluid, on, effort)
    else:
        states = fluid.state(on, counts_in(fluid, layouts, held)[:, fluid.cut])
    return fluid.cost(states, before=fluid.initial)


def counts_in(fluid: Fluid, layouts: Sequence[str], counts: Counts) -> Counts:
    """Counts with a column for every layout of the arrays, shape (n, n_layouts)."""
    spread = np.zeros((len(counts), len(fluid.layouts)), dtype=np.int64)
    spread[:, [fluid.layouts.index(layout) for layout in layouts]] = counts
    return spread


def counts_of(rows: Sequence[Mapping[str, int]]) -> tuple[tuple[str, ...], Counts]:
    """Layouts in use, and counts of shape (n, n_layouts), from rows by layout text.

    Examples
    --------
    >>> layouts, counts = counts_of([{"gpu": 1}, {"7g.40gb:1": 2, "gpu": 1}])
    >>> layouts, counts.tolist()
    (('gpu', '7g.40gb:1'), [[1, 0], [1, 2]])
    """
    layouts = tuple(dict.fromkeys(layout for row in rows for layout, gpus in row.items() if gpus))
    counts = [[row.get(layout, 0) for layout in layouts] for row in rows]
    return layouts, np.array(counts, dtype=np.int64).reshape(len(rows), len(layouts))
