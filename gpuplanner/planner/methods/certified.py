"""A certificate for plans whose search left none: those of small fleets, from all states, and those without change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.methods.stages import State
from gpuplanner.planner.program.bound import Relaxation, lower_bound
from gpuplanner.planner.program.families import Floor, build, whole_sums
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.slot_floors import window_floors
from gpuplanner.solving.branching import branch_and_bound
from gpuplanner.solving.effort import Effort

_WIDEST = 2
_WORK = 3000

# Up to this many numbers of GPUs (slots times columns) branching over the whole horizon may close the proof.
_SMALL = 600
_NODES = 1000

# Beyond, each leaf has prices for some hundred rows, so that a tree of a few dozen is a file of half a megabyte.
_NODES_OF_MANY_SLOTS = 60


def certified(found: Plan, problem: PlanProblem) -> Plan:
    """Give a plan a certificate if it has none: floors, the linear program and, where it is small, branching.

    Parameters
    ----------
    found : Plan
        A plan.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    Plan
        The same plan. Its certificate may prove less than its bound; then it says so. None for plans that were not
        found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan, verify_bound
    >>> problem = PlanProblem(
    ...     "A100-40GB", 3, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 2, 4]]]
    ... )
    >>> verify_bound(certified(plan(problem), problem), problem).words
    'proven again, without a solver: no plan costs less than 4.56666667; status optimal'
    """
    if not found.found or found.certificate is not None:
        return found
    assert found.bound is not None
    fluid = Fluid.of(problem)
    effort = Effort.begin(work_limit=_WORK)
    best = _constant(fluid, effort) if found.method == "static" else _free(fluid, effort)
    state = State(bound=found.bound - 1e-6 * max(1.0, abs(found.bound)), relaxation=best)
    return replace(found, certificate=state.proof(fluid))


def _constant(fluid: Fluid, effort: Effort) -> Relaxation:
    """Bound of plans without change: a search that branches on the GPUs on, then on those of a layout."""
    model = build(fluid, range(fluid.problem.n_slots), before=fluid.initial, constant=True)
    on = model.on[0]
    nodes = _NODES if fluid.problem.n_slots * len(fluid.owner) <= _SMALL else _NODES_OF_MANY_SLOTS
    tree = branch_and_bound(model.linear, {"on_0": on[fluid.used]}, on, effort, nodes=nodes)
    return Relaxation(0.0) if tree is None else Relaxation(tree.bound, prices=tree.tree)


def _free(fluid: Fluid, effort: Effort) -> Relaxation:
    """Bound of all plans."""
    problem = fluid.problem
    floors: list[Floor] = []
    for width in range(1, 1 + min(_WIDEST, problem.n_slots)):
        floors += window_floors(fluid, width, floors, effort).floors
    best = lower_bound(fluid, floors, effort)
    if problem.n_slots * len(fluid.owner) <= _SMALL:
        model = build(fluid, range(problem.n_slots), before=fluid.initial, floors=floors)
        columns = np.concatenate(model.on)
        tree = branch_and_bound(model.linear, whole_sums(model), columns, effort, nodes=_NODES)
        if tree is not None and tree.bound > best.bound:
            best = Relaxation(tree.bound, floors=tuple(floors), prices=tree.tree)
    return best
