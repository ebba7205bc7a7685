"""What no plan can beat: a linear program over all slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuplanner.planner.contract.problem import Floats
from gpuplanner.planner.program.families import Floor, build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve


def lower_bound(fluid: Fluid, floors: Sequence[Floor], effort: Effort) -> tuple[float, Floats | None]:
    """Cost that no plan undercuts.

    All slots with all changes, in fractions of GPUs, with rows that bring back what fractions lose: the
    optimum, in whole GPUs, of each slot, and of each few slots in a row, by themselves.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    floors : sequence of Floor
        From :func:`~gpuplanner.planner.program.slot_floors.window_floors`.
    effort : Effort
        Limits of the search.

    Returns
    -------
    bound : float
        The bound; 0 if the program was not solved in time.
    guide : ndarray of float or None, shape (n_slots, n_layouts)
        GPUs by layout, in fractions, that reach the bound.
    """
    model = build(fluid, range(fluid.problem.n_slots), before=fluid.initial, floors=floors)
    answer = solve(model.linear, effort, relaxed=True)
    if answer.bound is None or answer.values is None:
        return 0.0, None
    return max(0.0, answer.bound), np.array([answer.values[columns] for columns in model.on])
