"""What no plan can beat: a linear program over all slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.problem import Floats
from gpuplanner.planner.program.families import Floor, build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import TOLERANCE, Effort
from gpuplanner.solving.solver import solve

_PART = 168


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The linear program over all slots, solved.

    - ``bound``: Cost that no plan undercuts; 0 if the program was not solved in time.
    - ``guide``, shape (n_slots, n_layouts): GPUs by layout, in fractions, that reach the bound.
    """

    bound: float
    guide: Floats | None = None


def instant_bound(fluid: Fluid) -> float:
    """Cost that no plan undercuts, without a solver: slot by slot, the set of requests that costs most by itself.

    An instance of a set is missing at its price, or takes at least its part of the GPU that holds most of them.
    """
    total = fluid.idle_cost * fluid.problem.n_slots
    most = fluid.cover.max(axis=1, initial=0)
    part = np.where(most > 0, fluid.on_cost / most.clip(1), np.inf)
    for steps in fluid.steps:
        asked = fluid.demanded[:, steps.profile] * steps.width
        alone = (asked * np.minimum(steps.cost, part[:, None])).sum(axis=1)
        total += float(alone.max(initial=0.0))
    return total * (1 - TOLERANCE) if fluid.on_cost >= 0 else 0.0


def lower_bound(fluid: Fluid, floors: Sequence[Floor], effort: Effort, *, parts: int = 1) -> Relaxation:
    """Cost that no plan undercuts.

    All slots with all changes, in fractions of GPUs, with rows that bring back what fractions lose: the
    optimum, in whole GPUs, of each slot, and of each few slots in a row, by themselves. A horizon of many slots is
    taken week by week, as the time of a program grows nearly with the square of its size: changes from one part to
    the next are then free, so that the sum of all bounds is a bound. Where GPUs are parked, which doubles the program
    of a slot, a week is taken in as many `parts` as asked for.
    """
    n_slots = fluid.problem.n_slots
    width = _PART // parts if fluid.parks else _PART
    if n_slots <= (width if width < _PART else 2 * width):
        width = n_slots
    bound = 0.0
    guides: list[Floats] = []
    for start in range(0, n_slots, width):
        part = range(start, min(start + width, n_slots))
        model = build(fluid, part, before=None if start else fluid.initial, floors=floors)
        answer = solve(model.linear, effort, relaxed=True)
        if answer.bound is None or answer.values is None:
            return Relaxation(0.0)
        bound += answer.bound
        guides += [answer.values[columns] for columns in model.on]
    return Relaxation(max(0.0, bound), np.array(guides))
