"""What one instance more would be worth: which limit binds, where and how hard."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.realised_cost import counts_in


def instance_prices(plan: Plan, problem: PlanProblem) -> Floats:
    """Unmet demand, at its price, that one more instance of each profile would serve in each slot.

    The layouts stay as they are; what the instance serves is chosen anew, so that a larger instance which
    serves small requests now may pass its work on. Where the value is above the price of keeping a share of
    a GPU on, a limit binds: more GPUs, or fewer kept whole, would pay.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    ndarray of float, shape (n_profiles, n_slots)
        Value of one instance for one slot, in GPU-hours at the problem's prices; 0 where nothing is short.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 1, 1, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 3]]]
    ... )
    >>> instance_prices(plan(problem), problem).round(3).tolist()
    [[0.0, 4.286]]
    """
    fluid = Fluid.of(problem)
    counts = counts_in(fluid, plan.require().layouts, plan.counts, plan.parked)
    one_more = [fluid.with_instance(profile) for profile in range(len(problem.profiles))]
    prices = np.zeros((len(problem.profiles), problem.n_slots))
    for slot, now in enumerate(counts):
        if not fluid.missing(slot, now).any():
            continue
        short = _shortage(fluid, slot, now)
        for profile, with_one in enumerate(one_more):
            prices[profile, slot] = max(0.0, short - _shortage(with_one, slot, np.append(now, 1)))
    return prices


def _shortage(fluid: Fluid, slot: int, counts: Counts) -> float:
    """Cost of unmet demand alone."""
    on = float(counts[: len(fluid.layouts)].sum())
    return float(fluid.slot_costs(slot, counts[None])[0]) - fluid.on_cost * on
