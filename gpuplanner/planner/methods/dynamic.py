"""The optimum by dynamic programming over slots, where the fleet is small enough to list its states."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.methods.undominated import Lattice, undominated, useful
from gpuplanner.planner.program.every_state import all_states
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort

MAX_STATES = 100_000
"""States up to which a week of hours takes seconds, and less than 1 GiB of memory."""

# Up to this many states, the way from each to each is worked out.
_MOST_PAIRED = 1500


def dynamic_counts(
    fluid: Fluid, effort: Effort, *, max_states: int = MAX_STATES
) -> tuple[Counts, float] | None:
    r"""Find an optimal plan, or say that there are too many states.

    .. math:: V_t(x) = f_t(x) + \min_{x'} \bigl( V_{t-1}(x') + r(x', x) \bigr)

    over the states that :func:`~gpuplanner.planner.methods.undominated.undominated` leaves. The cost of a change
    :math:`r` is a sum over layouts of what each grows by. So the way from :math:`x'` to :math:`x` may lead,
    one GPU at a time, first down to their common part and then up, at the same cost; and as with a state all
    smaller ones are listed, it never leaves the list. Two passes over the list, a distance transform, find
    the minimum for all :math:`x` at once: the work of a slot grows with the number of states times that of
    layouts, not with the square of the number of states.

    References
    ----------
    Felzenszwalb and Huttenlocher, Distance transforms of sampled functions, Theory of Computing 8 (2012),
    for the two passes.

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
    >>> counts, bound = dynamic_counts(fluid, effort)
    >>> counts.ravel().tolist(), bound
    ([2, 2, 2, 2], 8.0)
    """
    if fluid.parks:
        return _of_all_states(fluid, effort, min(max_states, _MOST_PAIRED))
    lattice = undominated(fluid, max_states, effort)
    if lattice is None:
        return None
    values: list[Floats] = []
    for slot, (own, costs) in enumerate(zip(lattice.own, lattice.costs, strict=True)):
        if effort.spent():
            return None
        if slot:
            entering = _cheapest_arrivals(lattice, lattice.own[slot - 1], values[-1], fluid.ways.taking_up)
            values.append(entering[own] + costs)
        elif fluid.initial is None:
            values.append(costs)
        else:
            values.append(fluid.ways.costs(fluid.initial[None], lattice.states[own])[0] + costs)
    counts = _backtrack(fluid, lattice, values)
    return counts, fluid.cost(counts, before=fluid.initial)


def _of_all_states(fluid: Fluid, effort: Effort, max_states: int) -> tuple[Counts, float] | None:
    """The same where GPUs are parked: over all states, from each to each.

    More GPUs on with a layout than it can ever have work for are never needed: parking them sends no more over any
    edge of the tree of states.
    """
    states = all_states(fluid, max_states, useful(fluid))
    if states is None:
        return None
    between = fluid.ways.costs(states, states)
    values: list[Floats] = []
    for slot in range(fluid.problem.n_slots):
        if effort.spent():
            return None
        costs = np.where(fluid.allowed(slot, states), fluid.slot_costs(slot, states), np.inf)
        if slot:
            costs = costs + (values[-1][:, None] + between).min(axis=0)
        elif fluid.initial is not None:
            costs = costs + fluid.ways.costs(fluid.initial[None], states)[0]
        values.append(costs)
    path = [int(values[-1].argmin())]
    for value in reversed(values[:-1]):
        path.append(int((value + between[:, path[-1]]).argmin()))
    counts = states[path[::-1]]
    return counts, fluid.cost(counts, before=fluid.initial)


def _cheapest_arrivals(lattice: Lattice, own: Counts, values: Floats, prices: Floats) -> Floats:
    """Least cost of coming to each state of the lattice, from own states with these values."""
    cost = np.full(len(lattice.states), np.inf)
    cost[own] = values
    for level in reversed(lattice.levels):
        for below in lattice.below[:, level]:
            there = below >= 0
            down = below[there]
            cost[down] = np.minimum(cost[down], cost[level][there])
    for level in lattice.levels:
        best = cost[level]
        for below, price in zip(lattice.below[:, level], prices.tolist(), strict=True):
            np.minimum(best, np.where(below >= 0, cost[below], np.inf) + price, out=best)
    return cost


def _backtrack(fluid: Fluid, lattice: Lattice, values: list[Floats]) -> Counts:
    """The states that the last value was reached by."""
    path = [lattice.states[lattice.own[-1][values[-1].argmin()]]]
    for own, value in zip(reversed(lattice.own[:-1]), reversed(values[:-1]), strict=True):
        states = lattice.states[own]
        path.append(states[(value + fluid.ways.costs(states, path[-1][None])[:, 0]).argmin()])
    return np.array(path[::-1])
