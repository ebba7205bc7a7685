"""What it costs to leave demand unmet, and whose demand it is.

Pooled demand d needs R = ceil(d) instances. With k of them missing, max(0, d - (R - k)) of the demand is left
unmet, taken from the lowest tier first. Its cost is convex in k with breaks at whole instances only, so that
few linear steps give it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.contract.problem_check import TIERS


@dataclass(frozen=True)
class ShortageSteps:
    """Cost of missing instances in one slot, as linear steps; within a profile from cheap to dear.

    - ``profile``, shape (n_steps,): Profile of each step, by position.
    - ``width``, shape (n_steps,): Instances in the step.
    - ``cost``, shape (n_steps,): Cost of each instance of the step that is missing, for the slot.
    """

    profile: Counts
    width: Counts
    cost: Floats


def tenant_order(problem: PlanProblem) -> list[list[int]]:
    """Groups of tenants in the order in which they go short: lowest tier, then cheapest, first.

    Within a group the shortage is shared in proportion to demand.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A30", 1, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a", "b", "c"], ["1g.6gb"], np.ones((3, 1, 1)),
    ...     tiers=["guaranteed", "best_effort", "guaranteed"],
    ... )
    >>> tenant_order(problem)
    [[1], [0, 2]]
    """
    keys = [
        (-TIERS.index(tier), price) for tier, price in zip(problem.tiers, problem.unmet_price, strict=True)
    ]
    return [[i for i, key in enumerate(keys) if key == one] for one in sorted(set(keys))]


def shortage_steps(problem: PlanProblem) -> list[ShortageSteps]:
    """Steps of every slot of a problem."""
    groups = tenant_order(problem)
    prices = np.array([problem.unmet_price[group[0]] for group in groups])
    demand = np.array([problem.admitted[group].sum(axis=0) for group in groups]).reshape(
        len(groups), *problem.demand.shape[1:]
    )
    weights = problem.shares * problem.slot_hours
    required = problem.required
    return [_slot_steps(demand[:, :, t], required[:, t], prices, weights) for t in range(problem.n_slots)]


def _slot_steps(demand: Floats, required: Counts, prices: Floats, weights: Floats) -> ShortageSteps:
    steps: list[tuple[int, int, float]] = []
    for profile, needed in enumerate(required.tolist()):
        if needed:
            pieces = _profile_steps(demand[:, profile], needed, prices * weights[profile])
            steps += [(profile, width, cost) for width, cost in pieces]
    profiles, widths, costs = zip(*steps, strict=True) if steps else ((), (), ())
    return ShortageSteps(
        np.array(profiles, dtype=np.int64), np.array(widths, dtype=np.int64), np.array(costs)
    )


def _profile_steps(demand: Floats, needed: int, prices: Floats) -> list[tuple[int, float]]:
    """Width and cost per instance of each step, for demand by group in the order of going short."""
    breaks = np.concatenate([[0.0], np.cumsum(demand)])
    costs = np.concatenate([[0.0], np.cumsum(demand * prices)])
    spare = max(0.0, needed - float(breaks[-1]))
    near = np.concatenate([np.floor(breaks + spare), np.ceil(breaks + spare), [0.0, 1.0, needed]])
    missing = np.unique(near.clip(0, needed))
    totals = np.interp((missing - spare).clip(0), breaks, costs)
    widths = np.diff(missing)
    slopes = np.diff(totals) / widths
    joined: list[tuple[int, float]] = []
    for width, slope in zip(widths.astype(int).tolist(), slopes.tolist(), strict=True):
        if joined and np.isclose(joined[-1][1], slope, rtol=1e-9, atol=1e-12):
            joined[-1] = (joined[-1][0] + width, joined[-1][1])
        else:
            joined.append((width, slope))
    return joined


def unmet_by_tenant(problem: PlanProblem, missing: Counts) -> Floats:
    """Demand left unmet when instances are missing.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A30", 1, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a", "b"], ["1g.6gb"], [[[1.5]], [[0.8]]],
    ...     tiers=["standard", "best_effort"],
    ... )
    >>> unmet_by_tenant(problem, np.array([[2]])).ravel().round(3).tolist()
    [0.5, 0.8]
    """
    served = problem.required - missing
    left = np.where(missing > 0, problem.pooled - served, 0.0).clip(0.0)
    unmet = np.zeros_like(problem.admitted)
    for group in tenant_order(problem):
        demand = problem.admitted[group]
        total = demand.sum(axis=0)
        taken = np.minimum(left, total)
        unmet[group] = demand * np.divide(taken, total, out=np.zeros_like(total), where=total > 0)
        left = left - taken
    return unmet
