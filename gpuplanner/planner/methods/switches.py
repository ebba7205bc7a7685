"""Keep a plan within the changes that GPUs, nodes and operators may make.

Counts do not say which GPU is cut, so limits are checked on numbered GPUs. A plan that breaks one is made
calmer: changes are priced higher until the cheapest path through the states known keeps the limit, and what
the path costs is counted at the true price. The bound of the plan without the limit stays a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.methods.best_path import cheapest_path
from gpuplanner.planner.methods.forward import standing
from gpuplanner.planner.methods.one_model import improved, static_counts
from gpuplanner.planner.methods.stages import Learned
from gpuplanner.planner.numbered.assign import changes_when_numbered
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort

_STEEPEST = 2.0**12
_HALVINGS = 5


def keeps_changes(fluid: Fluid, counts: Counts) -> bool:
    """Whether numbered GPUs can follow the counts within the limits of changes."""
    problem, limits = fluid.problem, fluid.problem.limits
    moved = 1 + np.flatnonzero((counts[1:] != counts[:-1]).any(axis=1))
    if limits.change_slots is not None and not np.isin(moved, limits.change_slots).all():
        return False
    if (limits.switches_per_day, limits.node_changes_per_day, limits.most_changes) == (None,) * 3:
        return True
    switches, nodes = changes_when_numbered(problem, fluid.layouts, *fluid.split(counts))
    days = np.array([problem.day_of(slot) for slot in range(len(counts))])
    per_day = max(int(nodes[days == day].sum(axis=0).max()) for day in np.unique(days))
    figures = (
        (switches, limits.switches_per_day),
        (per_day, limits.node_changes_per_day),
        (int(nodes.sum()), limits.most_changes),
    )
    return all(most is None or figure <= most for figure, most in figures)


def calmed(
    fluid: Fluid, counts: Counts, known: Learned, bound: float, effort: Effort, *, few: bool = False
) -> Counts | None:
    """A plan within the limit, as cheap as can be found."""
    constant = known.constant if known.constant is not None else static_counts(fluid, effort)[0]
    still = standing(fluid) + ([] if constant is None else [constant])
    # A search may end before it has learned any states: those of the plan itself are always there.
    states = [np.unique(counts, axis=0), *([] if few else known.states)]
    if few:
        own = [np.tile(one, (len(counts), 1)) for one in states[0]]
        own = [one for one in own if all(fluid.allowed(t, one[:1])[0] for t in range(len(one)))]
        still = own + [one for one in still if (one == one[0]).all()]
    plans = still if few or fluid.problem.limits.change_slots is not None else [counts, *still]
    price = max(float(fluid.ways.taking_up.max(initial=0)), 0.01 * fluid.on_cost)
    low, high = 1.0, 2.0
    found = None
    while high <= _STEEPEST and found is None:
        found = _calm_path(fluid, price * high, plans, states)
        low, high = (low, high) if found is not None else (high, 2 * high)
    if found is None:
        kept = [one for one in still if keeps_changes(fluid, one)]
        return min(kept, key=lambda one: fluid.cost(one, before=fluid.initial)) if kept else None
    best = found
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        found = _calm_path(fluid, price * middle, [*plans, best], states)
        if found is None:
            low = middle
        else:
            high = middle
            best = min(best, found, key=lambda one: fluid.cost(one, before=fluid.initial))
    dear = replace(fluid, ways=fluid.ways.dearer(price * high))
    if few:
        return best
    for better in improved(dear, best, known.floors, bound, effort):
        cheaper = fluid.cost(better, before=fluid.initial) < fluid.cost(best, before=fluid.initial)
        if cheaper and keeps_changes(fluid, better):
            best = better
    return best


def _calm_path(
    fluid: Fluid, price: float, plans: Sequence[Counts], states: Sequence[Counts]
) -> Counts | None:
    """The cheapest path if changes had another price; None if it still breaks the limit."""
    dear = replace(fluid, ways=fluid.ways.dearer(price))
    path = cheapest_path(dear, plans, [*states, *map(np.asarray, plans)])
    return path if keeps_changes(fluid, path) else None
