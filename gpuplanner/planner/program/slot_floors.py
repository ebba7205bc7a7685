"""What slots cost by themselves at least, whatever happens around them: the floors of every plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.program.families import Floor, build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve

_NODES = 300


@dataclass(frozen=True)
class Floors:
    """Result of :func:`window_floors`.

    Parameters
    ----------
    floors : list of Floor
        One for each window.
    states : ndarray of int, shape (n_windows * width, n_layouts)
        Counts in each slot of each window that reach, or nearly reach, its floor.
    """

    floors: list[Floor]
    states: Counts


def window_floors(fluid: Fluid, width: int, known: Sequence[Floor], effort: Effort) -> Floors | None:
    """Least cost of every window of consecutive slots: a tiny model each, solved once if windows repeat.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    width : int
        Slots in a window, at most those of the problem.
    known : sequence of Floor
        Floors of narrower windows, which make the search shorter.
    effort : Effort
        Limits of the search.

    Returns
    -------
    Floors or None
        None if the time ran out, or the solver failed, before every window had an answer.
    """
    solved: dict[tuple[bytes, ...], tuple[float, Counts]] = {}
    floors, states = [], []
    for start in range(fluid.problem.n_slots - width + 1):
        window = range(start, start + width)
        key = tuple(part for slot in window for part in _key(fluid, slot))
        if key not in solved:
            model = build(fluid, window, floors=known)
            # For single slots the gap must be small: all that follows rests on their floors.
            gap = effort.gap_target * (0.05 if width == 1 else 0.2)
            answer = solve(model.linear, effort, gap=gap, nodes=_NODES)
            if answer.values is None:
                return None
            solved[key] = (max(0.0, answer.bound or 0.0), model.counts(answer.values))
        cost, counts = solved[key]
        floors.append(Floor(window, cost))
        states.append(counts)
    return Floors(floors, np.concatenate(states))


def _key(fluid: Fluid, slot: int) -> tuple[bytes, ...]:
    """All that the model of one slot depends on."""
    steps = fluid.steps[slot]
    limits = (fluid.gpus[slot], fluid.cuttable[slot])
    arrays = (fluid.problem.required[:, slot], steps.profile, steps.width, steps.cost, *limits)
    return tuple(array.tobytes() for array in arrays)
