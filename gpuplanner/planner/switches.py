"""Keep a plan within the switches that one GPU may make in a day.

Counts do not say which GPU is cut, so the limit is checked on numbered GPUs. A plan that breaks it is made
calmer: changes are priced higher until the cheapest path through all that is known keeps the limit, and what
the path costs is counted at the true price. The bound of the plan without the limit stays a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.planner.assign import most_switches
from gpuplanner.planner.effort import Effort
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.held import at_need
from gpuplanner.planner.known import Known
from gpuplanner.planner.paths import cheapest_path
from gpuplanner.planner.problem import Counts
from gpuplanner.planner.static import static_states
from gpuplanner.planner.windows import improved

_STEEPEST = 2.0**12
_HALVINGS = 5


def keeps_switches(fluid: Fluid, states: Counts) -> bool:
    """Whether numbered GPUs can follow a plan within the limit."""
    limit = fluid.problem.limits.switches_per_day
    if limit is None:
        return True
    on = fluid.on(states)
    held = np.zeros_like(on)
    held[:, fluid.cut] = fluid.held(states)
    return most_switches(fluid.problem, fluid.layouts, on, held) <= limit


def calmed(fluid: Fluid, states: Counts, known: Known, bound: float, effort: Effort) -> Counts | None:
    """A plan within the limit, as cheap as can be found.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    states : ndarray of int, shape (n_slots, n_columns)
        A plan that breaks the limit.
    known : Known
        States, floors and the constant plan of the search.
    bound : float
        Cost that no plan undercuts.
    effort : Effort
        Limits of the search.

    Returns
    -------
    ndarray of int or None, shape (n_slots, n_columns)
        None if none was found: what changes in service force is then more than the limit.
    """
    constant = known.constant if known.constant is not None else static_states(fluid, effort)[0]
    still = [_as_it_is(fluid)]
    still += [] if constant is None else [constant]
    plans = [states, *still]
    price = max(fluid.change_cost, 0.01 * fluid.on_cost)
    low, high = 1.0, 2.0
    found = None
    while high <= _STEEPEST and found is None:
        found = _calm_path(fluid, price * high, plans, known.choices)
        low, high = (low, high) if found is not None else (high, 2 * high)
    if found is None:
        kept = [one for one in still if keeps_switches(fluid, one)]
        return min(kept, key=lambda one: fluid.cost(one, before=fluid.initial)) if kept else None
    best = found
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        found = _calm_path(fluid, price * middle, [*plans, best], known.choices)
        if found is None:
            low = middle
        else:
            high = middle
            best = min(best, found, key=lambda one: fluid.cost(one, before=fluid.initial))
    dear = replace(fluid, change_cost=price * high)
    for better in improved(dear, best, known.floors, bound, effort):
        cheaper = fluid.cost(better, before=fluid.initial) < fluid.cost(best, before=fluid.initial)
        if cheaper and keeps_switches(fluid, better):
            best = better
    return best


def _as_it_is(fluid: Fluid) -> Counts:
    """Nothing on but what must stay, with the layouts that are there at first."""
    slots = range(fluid.problem.n_slots)
    if fluid.initial is None:
        return np.tile(fluid.pinned, (len(slots), 1))
    on = np.tile(fluid.on(fluid.pinned), (len(slots), 1))
    return at_need(fluid, on, np.tile(fluid.held(fluid.initial), (len(slots), 1)))


def _calm_path(
    fluid: Fluid, price: float, plans: Sequence[Counts], choices: Sequence[Counts]
) -> Counts | None:
    """The cheapest path if changes had another price; None if it still breaks the limit."""
    dear = replace(fluid, change_cost=price)
    path = cheapest_path(dear, plans, choices)
    path = at_need(dear, dear.on(path), dear.held(path))
    return path if keeps_switches(fluid, path) else None
