"""What slots cost by themselves at least, whatever happens around them: the floors of every plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.families import Floor, SlotModel, build, whole_sums
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.branching import branch_and_bound
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve

_NODES = 300


@dataclass(frozen=True)
class Floors:
    """Result of :func:`window_floors`.

    - ``floors``: One for each window, as far as the time sufficed.
    - ``states``, shape (n_floors * width, n_columns): Counts in each slot of each window that reach, or nearly reach,
      its floor.
    - ``complete``: Whether every window has its floor.
    """

    floors: list[Floor]
    states: Counts
    complete: bool


def window_floors(fluid: Fluid, width: int, known: Sequence[Floor], effort: Effort) -> Floors:
    """Least cost of every window of consecutive slots: a tiny model each, solved once if windows repeat."""
    solved: dict[tuple[bytes, ...], tuple[float, Counts]] = {}
    floors: list[Floor] = []
    states = [np.zeros((0, len(fluid.owner)), dtype=np.int64)]
    last = fluid.problem.n_slots - width
    for start in range(last + 1):
        window = range(start, start + width)
        key = tuple(part for slot in window for part in _key(fluid, slot))
        if key not in solved:
            model = build(fluid, window, floors=known)
            # For single slots the gap must be small: all that follows rests on their floors.
            gap = effort.gap_target * (0.05 if width == 1 else 0.2)
            answer = best_in_window(model, effort, gap=gap, nodes=_NODES)
            if answer is None:
                break
            values, bound = answer
            solved[key] = (max(0.0, bound), model.counts(values))
        cost, counts = solved[key]
        floors.append(Floor(window, cost))
        states.append(counts)
    return Floors(floors, np.concatenate(states), complete=len(floors) > last)


def best_in_window(
    model: SlotModel, effort: Effort, *, gap: float, nodes: int
) -> tuple[Floats, float] | None:
    """Column values of a model of few slots, and what no values undercut; None without an answer in time.

    With HiGHS by branch and bound on its linear programs; where that finds no answer, and with CBC, by the solver.
    """
    found = None
    if effort.solver == "highs":
        columns = np.concatenate(model.on)
        found = branch_and_bound(model.linear, whole_sums(model), columns, effort, gap=gap, nodes=nodes)
    if found is not None and found.values is not None:
        return found.values, found.bound
    answer = solve(model.linear, effort, gap=gap, nodes=nodes)
    if answer.values is None:
        return None
    return answer.values, found.bound if found is not None else answer.bound or 0.0


def _key(fluid: Fluid, slot: int) -> tuple[bytes, ...]:
    """All that the model of one slot depends on."""
    steps = fluid.steps[slot]
    limits = (fluid.gpus[slot], fluid.cuttable[slot])
    arrays = (fluid.problem.required[:, slot], steps.profile, steps.width, steps.cost, *limits)
    return tuple(array.tobytes() for array in arrays)
