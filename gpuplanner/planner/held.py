"""Which layouts GPUs keep while they are not on, so that the changes of a plan cost least."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.effort import Effort
from gpuplanner.planner.families import SlotModel, add_changes, add_kept_columns, add_on_columns, add_room
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.problem import Counts
from gpuplanner.planner.solver import solve


def settled(fluid: Fluid, on: Counts, effort: Effort) -> Counts:
    """Complete GPUs on to a plan: the states with the cheapest changes.

    A GPU that is wanted with a layout that no idle one has must give one up; best is the one that is wanted
    latest, as in paging [1]_. With a price for MIG mode beside that of a change it is a flow of GPUs through
    layouts and slots. So its linear program has an optimum in whole numbers, whatever the size of the fleet.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    on : ndarray of int, shape (n_slots, n_layouts)
        GPUs on by layout, within the limits.
    effort : Effort
        Limits of the search; when they are reached, GPUs give up what is most plentiful.

    Returns
    -------
    ndarray of int, shape (n_slots, n_columns)

    References
    ----------
    .. [1] L. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5
       (1966).

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import PlanProblem
    >>> problem = PlanProblem(
    ...     board="H100-80GB-SXM5", gpus=2, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.80gb", "1g.10gb"], demand=[[[1, 0, 1], [7, 14, 7]]],
    ... )
    >>> fluid = Fluid.of(problem)
    >>> fluid.layouts
    ('7g.80gb:1', '1g.10gb:7')
    >>> effort = Effort.begin(gap_target=0, time_limit_s=10, seed=0, solver="highs")
    >>> fluid.held(settled(fluid, np.array([[1, 1], [0, 1], [1, 1]]), effort)).tolist()  # the first is off for a while
    [[1, 1], [1, 1], [1, 1]]
    """
    model = SlotModel(fluid, range(fluid.problem.n_slots))
    add_on_columns(model)
    for columns, now in zip(model.on, on, strict=True):
        model.linear.narrow(columns, now, now)
    add_kept_columns(model)
    add_room(model)
    add_changes(model, fluid.initial, None)
    answer = solve(model.linear, effort)
    guide = fluid.state(on, on[:, fluid.cut]) if answer.values is None else model.states(answer.values)
    return at_need(fluid, on, fluid.held(guide))


def at_need(fluid: Fluid, on: Counts, guide: Counts, before: Counts | None = None) -> Counts:
    """States in which a GPU changes only when it is on with its new layout.

    A change that is made before it is needed can wait: until then its GPU is not on, and at no time more changes
    have been made.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    on : ndarray of int, shape (n_slots, n_layouts)
        GPUs on by layout.
    guide : ndarray of int, shape (n_slots, n_cut)
        GPUs that should have each layout with instances: where a GPU must be given up, layouts that have
        more come first, then those with the most to spare.
    before : ndarray of int, optional, shape (n_cut,)
        GPUs that had each layout in the slot before; if None, those before the first slot.

    Returns
    -------
    ndarray of int, shape (n_slots, n_columns)
    """
    cut = on[:, fluid.cut]
    whole = on[:, ~fluid.cut].sum(axis=1)
    most = np.minimum(fluid.most_cut, fluid.problem.gpus - whole)
    held = before
    if held is None:
        held = cut[0] if fluid.initial is None else fluid.held(fluid.initial)
    path = []
    for wanted, room, aim in zip(cut, most.tolist(), guide, strict=True):
        kept = np.maximum(held, wanted)
        grown = int((kept - held).sum())
        must = max(int(kept.sum()) - room, 0)
        # One that is cut otherwise costs no more than a whole one that is cut, and less if MIG mode has a price.
        may = int(np.clip(kept.sum() - aim.sum(), must, max(must, grown)))
        taken = _most_plentiful(np.minimum(kept - wanted, (kept - aim).clip(0)), may)
        kept = kept - taken
        kept = kept - _most_plentiful(kept - wanted, must - int(taken.sum()))
        path.append(kept)
        held = kept
    return fluid.state(on, np.array(path))


def _most_plentiful(spare: Counts, gpus: int) -> Counts:
    """Take up to so many away, from the layouts that have most to spare."""
    taken = np.zeros_like(spare)
    for layout in np.argsort(-spare, kind="stable").tolist():
        taken[layout] = max(min(int(spare[layout]), gpus), 0)
        gpus -= int(taken[layout])
    return taken
