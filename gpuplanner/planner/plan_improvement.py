"""Improvement of plans: best path, forward pass and re-optimised windows.

Alone, one big model is hopeless at middle sizes. Begun from a good plan and with the floors of slots in it,
it closes small problems and tightens the bound of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.core.errors import MissingDependencyError
from gpuplanner.planner.linear_model import TOLERANCE, Effort, relative_gap
from gpuplanner.planner.linear_program import (
    Floor,
    SlotModel,
    add_changes,
    add_fleet,
    add_on_columns,
    add_whole_kept,
    best_in_window,
    build,
    start_values,
)
from gpuplanner.planner.milp_solver import solve
from gpuplanner.planner.plan_arrays import Fluid
from gpuplanner.planner.plan_explanation import counts_in
from gpuplanner.planner.plan_problem import Counts, Floats

_KEPT = 200
_PATH_NODES = 50

# Part of the price of a layout that a GPU which comes back pays, as some find one that was kept for them.
_SHARE_TAKEN_UP = 0.3


def shortest_path(costs: Sequence[Floats] | Floats, entering: Floats, between: Callable[[int], Floats]) -> list[int]:
    """Position of the state of each slot that together cost least: dynamic programming over slots.

    States cost `costs` by slot, and coming to those of the first one costs `entering`; `between` says for another slot
    what it costs to come from each state of the slot before to each of its own, infinite where that is forbidden.

    Examples
    --------
    >>> shortest_path([np.zeros(2), np.array([1.0, 0.0])], np.array([0.0, 5.0]), lambda slot: 2.0 - 2.0 * np.eye(2))
    [0, 0]
    """
    value, origins = entering + costs[0], []
    for slot, own in enumerate(costs[1:], 1):
        total = value[:, None] + between(slot)
        origins.append(total.argmin(axis=0))
        value = total.min(axis=0) + own
    chosen = [int(value.argmin())]
    for origin in reversed(origins):
        chosen.append(int(origin[chosen[-1]]))
    return chosen[::-1]


def cheapest_path(fluid: Fluid, plans: Sequence[Counts], states: Sequence[Counts] = ()) -> Counts:
    """Choose a state for each slot among all states of given plans, at the least total cost.

    A state is a vector of counts. A state found for one slot often suits another: demand comes back every
    day. In each slot the states of the plans themselves and the cheapest others take part, so that the
    result is never dearer than the best of the plans.
    """
    pool = np.unique(np.concatenate([*plans, *states]), axis=0)
    planned = np.stack(plans, axis=1)
    held = [_candidates(fluid, slot, pool, own) for slot, own in enumerate(planned)]
    first = held[0][0]
    entering = np.zeros(len(first))
    if fluid.initial is not None:
        entering = fluid.ways.costs(fluid.initial[None], first)[0]

    def between(slot: int) -> Floats:
        before, now = held[slot - 1][0], held[slot][0]
        costs = fluid.ways.costs(before, now)
        if not fluid.may_change[slot]:
            costs[(before[:, None] != now[None]).any(axis=2)] = np.inf
        return costs

    path = shortest_path([costs for _, costs in held], entering, between)
    return np.array([own[at] for (own, _), at in zip(held, path, strict=True)])


def _candidates(fluid: Fluid, slot: int, pool: Counts, own: Counts) -> tuple[Counts, Floats]:
    """States that may be taken in a slot, with their costs."""
    others = pool[fluid.allowed(slot, pool)]
    cheapest = np.argsort(fluid.slot_costs(slot, others), kind="stable")[:_KEPT]
    states = np.unique(np.concatenate([own, others[cheapest]]), axis=0)
    return states, fluid.slot_costs(slot, states)


def parked_best(fluid: Fluid, counts: Counts, effort: Effort) -> Counts:
    """Choose anew what parked GPUs keep, with the GPUs on as they are, at the least cost of changes.

    With the GPUs on fixed, what is left is a flow on the tree of states, which fractions solve in whole numbers
    unless whole nodes reboot for it.
    """
    if not fluid.parks or effort.spent():
        return counts
    n_on = len(fluid.layouts)
    there = counts.any(axis=0) if fluid.initial is None else counts.any(axis=0) | (fluid.initial > 0)
    # Layouts that no GPU has are kept for nothing, and what emptying and waking cost is known already.
    ever = np.bincount(fluid.owner, weights=there, minlength=n_on) > 0
    free = ever[fluid.owner] & ~fluid.used
    lean = replace(fluid, ways=fluid.ways.some(fluid.ways.beyond @ free > 0))
    model = SlotModel(lean, range(len(counts)))
    add_on_columns(model)
    for on, now in zip(model.on, counts, strict=True):
        fixed = np.where(fluid.used, now, 0)
        model.linear.narrow(on[~free], fixed[~free], fixed[~free])
    add_fleet(model)
    add_whole_kept(model)
    add_changes(model, fluid.initial, None)
    answer = solve(model.linear, effort, gap=0.2 * effort.gap_target, nodes=_PATH_NODES)
    if answer.values is None:
        return counts
    found = model.counts(answer.values)
    return min(found, counts, key=lambda one: fluid.cost(one, before=fluid.initial))


def kept_on(fluid: Fluid, near: Counts | None, now: Counts) -> Counts:
    """Counts of a slot whose parked GPUs keep what they had in the slot next to it, as far as there is room."""
    if near is None or not fluid.parks:
        return now
    n_on = len(fluid.layouts)
    beside = fluid.owner[n_on:]
    kept = (near[beside] + near[n_on:] - now[beside]).clip(0)
    cut = int(now[:n_on][fluid.cut[:n_on]].sum())
    room = min(fluid.problem.gpus_held - int(now[:n_on].sum()), fluid.problem.gpus_held_cut - cut)
    while kept.sum() > room:
        kept[kept.argmax()] -= 1
    return np.concatenate([now[:n_on], kept])


def cheapest_way(fluid: Fluid, plans: list[Counts], states: list[Counts], effort: Effort) -> Counts:
    """The cheapest path through states, and what parked GPUs keep along it.

    States of single slots say nothing of what is parked. So the path is that of the GPUs on, at a part of the price
    of taking up a layout.
    """
    if not fluid.parks:
        return cheapest_path(fluid, plans, states)
    ways = fluid.ways
    between = np.where((ways.beyond[:, ~fluid.used] > 0).any(axis=1), _SHARE_TAKEN_UP, 1.0)
    rough = replace(fluid, ways=replace(ways, come=ways.come * between, go=ways.go * between))
    path = cheapest_path(rough, *([one * fluid.used for one in some] for some in (plans, states)))
    return _parked_along(fluid, path, effort)


def released_twin(fluid: Fluid) -> Fluid:
    """The same with GPUs released where they are not needed, and the same layouts."""
    return Fluid.of(replace(fluid.problem, prices=None, parked=None), fluid.layouts)


def on_alone(fluid: Fluid) -> Fluid:
    """The GPUs on by themselves, woken and emptied: no plan with parked ones costs less than the best of theirs."""
    on, ways = fluid.used, fluid.ways.some(fluid.ways.beyond @ ~fluid.used == 0)
    arrays = {name: getattr(fluid, name)[on] for name in ("owner", "cut", "pinned")}
    return replace(
        fluid,
        problem=replace(fluid.problem, prices=None, parked=None),
        cover=fluid.cover[:, on],
        ways=replace(ways, beyond=ways.beyond[:, on]),
        initial=None if fluid.initial is None else fluid.initial[on],
        **arrays,
    )


def parked_since(fluid: Fluid, twin: Fluid, counts: Counts | None, effort: Effort) -> Counts | None:
    """A plan of :func:`released_twin` with the best that parked GPUs keep under it."""
    if counts is None:
        return None
    return _parked_along(fluid, counts_in(fluid, twin.layouts, counts), effort)


def _parked_along(fluid: Fluid, path: Counts, effort: Effort) -> Counts:
    """The best that parked GPUs keep while the GPUs on are those of a path."""
    lazily = path.copy()
    for slot in range(len(path)):
        lazily[slot] = kept_on(fluid, lazily[slot - 1] if slot else fluid.initial, path[slot])
    return parked_best(fluid, lazily, effort)


_SHARE_OF_GAP = 0.2
_SWEEP_NODES = 200


def rounded(fluid: Fluid, guide: Floats) -> Counts:
    """Each slot of a guide in whole GPUs, rounded in the way that costs least: a plan at no cost of time."""
    counts = np.tile(fluid.pinned, (len(guide), 1))
    for slot, row in enumerate(guide):
        near = [np.ceil(row - TOLERANCE), np.rint(row), np.floor(row + TOLERANCE)]
        tried = np.maximum(np.array(near, dtype=np.int64), fluid.pinned)
        tried = tried[fluid.allowed(slot, tried)]
        if len(tried):
            counts[slot] = tried[fluid.slot_costs(slot, tried).argmin()]
    return counts


def standing(fluid: Fluid) -> list[Counts]:
    """Plans that nobody has to search for, the last of which keeps every limit that can be kept.

    GPUs as they are at first, wherever there is room; as many whole ones as may be on; those alone that must stay.
    What is not on is parked as it was.
    """
    n_slots, pinned = fluid.problem.n_slots, fluid.pinned
    first = pinned if fluid.initial is None else fluid.initial
    alone, whole = (kept_on(fluid, first, now) for now in (pinned, _whole_ones(fluid)))
    plans = [np.tile(alone, (n_slots, 1)) for _ in range(3)]
    for plan, state in zip(plans, (np.maximum(first, pinned), whole), strict=False):
        there = [bool(fluid.allowed(slot, state[None])[0]) for slot in range(n_slots)]
        plan[there] = state
    return plans


def _whole_ones(fluid: Fluid) -> Counts:
    """GPUs that must stay, and beside them as many whole ones as may be on in every slot."""
    counts = fluid.pinned.copy()
    counts[np.flatnonzero(fluid.used & ~fluid.cut)] += max(0, int(fluid.gpus.min() - counts.sum()))
    return counts


def sweep(
    fluid: Fluid, fallback: Counts | None, guide: Floats | None, effort: Effort, *, backward: bool = False
) -> Counts:
    """Decide slot after slot in whole GPUs, each as cheap as can be beside the one decided before.

    A slot by itself does not see what comes; the guide, made of fractions, has seen the whole horizon. A slot
    may leave it by one GPU a layout beyond rounding. Where the solver has no answer a slot is as in the fallback;
    without one it is decided by exchanges.
    """
    counts = np.tile(fluid.pinned, (fluid.problem.n_slots, 1)) if fallback is None else fallback.copy()
    last = len(counts) - 1
    for slot in range(last, -1, -1) if backward else range(last + 1):
        before = None if backward and slot else fluid.before(counts, slot)
        after = counts[slot + 1] if backward and slot < last else None
        model = build(fluid, range(slot, slot + 1), before=before, after=after)
        if guide is not None:
            low, high = np.floor(guide[slot] + TOLERANCE) - 1, np.ceil(guide[slot] - TOLERANCE) + 1
            model.linear.narrow(model.on[0], low, high)
        answer = best_in_window(model, effort, gap=_SHARE_OF_GAP * effort.gap_target, nodes=_SWEEP_NODES)
        if answer is not None or fallback is None:
            now = _exchanged(fluid, slot, before) if answer is None else model.counts(answer[0])[0]
            counts[slot] = kept_on(fluid, after if backward else before, now)
    return parked_best(fluid, counts, effort)


def _exchanged(fluid: Fluid, slot: int, before: Counts | None) -> Counts:
    """Counts of a slot without a solver: the exchange of GPUs that saves most, again and again until none does.

    GPUs of a layout are put on, taken off or get another one, 1, 2, 4 or more at a time.
    """
    n, parked = len(fluid.layouts), fluid.owner[len(fluid.layouts) :]
    ends = np.eye(n + 1, dtype=np.int64)[:, 1:]
    ways = (ends[:, None] - ends[None]).reshape(-1, n)
    sizes = 2 ** np.arange(int(fluid.gpus[slot]).bit_length() + 1)
    steps = np.pad((sizes[:, None, None] * ways).reshape(-1, n), ((0, 0), (0, len(parked))))

    def cost(states: Counts) -> Floats:
        own = fluid.slot_costs(slot, states)
        if before is None:
            return own
        kept = (before[parked] + before[n:] - states[:, parked]).clip(0)
        costs: Floats = own + fluid.ways.costs(before[None], np.hstack([states[:, :n], kept]))[0]
        return costs

    now = fluid.pinned if before is None else np.maximum(before * fluid.used, fluid.pinned)
    now = now if fluid.allowed(slot, now[None])[0] else fluid.pinned
    while True:
        near = np.vstack([now, now + steps])
        near = near[fluid.allowed(slot, near)]
        costs = cost(near)
        best = int(costs.argmin())
        if costs[best] >= costs[0] - TOLERANCE:
            return now
        now = near[best]


def greedy_counts(fluid: Fluid, effort: Effort) -> Counts:
    """Decide slot after slot, each at the least cost of its own and of the change into it.

    A baseline. It gives back a GPU as soon as a slot does without it, cuts it anew in the next, and never
    cuts for a need that grows later: what that costs, the other methods save. Without a solver, or without time for
    one, exchanges of GPUs decide, which come near that.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_problem import PlanProblem
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[2, 0, 0, 2]]],
    ...     change_gpu_hours=2.5,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin()
    >>> greedy_counts(fluid, effort).ravel().tolist()  # two idle hours would cost less than a cut
    [2, 0, 0, 2]
    """
    try:
        return sweep(fluid, None, None, effort)
    except MissingDependencyError:
        return sweep(fluid, None, None, replace(effort, deadline=0.0))


_WIDTH = 4
_WINDOW_NODES = 200


def solve_whole(
    fluid: Fluid, counts: Counts, floors: Sequence[Floor], effort: Effort
) -> tuple[Counts | None, float | None]:
    """Solve all slots together, beginning from a plan."""
    model = build(fluid, range(len(counts)), before=fluid.initial, floors=floors)
    start = start_values(model, counts, fluid.initial, None)
    answer = solve(model.linear, effort, gap=effort.gap_target, start=start, nodes=_WINDOW_NODES)
    return None if answer.values is None else model.counts(answer.values), answer.bound


def static_counts(fluid: Fluid, effort: Effort) -> tuple[Counts | None, float | None]:
    """Choose counts once, for all slots together.

    Every GPU that is on stays on, cut as it is, so that the only changes are those from the initial layouts.
    """
    n_slots = fluid.problem.n_slots
    model = build(fluid, range(n_slots), before=fluid.initial, constant=True)
    answer = solve(model.linear, effort, gap=effort.gap_target)
    counts = None if answer.values is None else np.array(model.counts(answer.values))
    return counts, answer.bound


def improved(fluid: Fluid, counts: Counts, floors: Sequence[Floor], bound: float, effort: Effort) -> Iterator[Counts]:
    """Yield better and better plans until the gap is reached, no window helps, or the time is up.

    Windows cover the horizon twice, the second time shifted by half a window, again and again while that
    helps.
    """
    counts = counts.copy()
    cost = fluid.cost(counts, before=fluid.initial)
    helped = True
    while helped:
        helped = False
        for window in _windows(fluid.problem.n_slots):
            if relative_gap(cost, bound) <= effort.gap_target or effort.spent():
                return
            saved = _resolve(fluid, counts, window, floors, effort)
            if saved > TOLERANCE * max(1.0, cost):
                helped = True
                cost -= saved
                yield counts.copy()


def _windows(n_slots: int) -> Iterator[range]:
    for first in (0, -(_WIDTH // 2)):
        for start in range(first, n_slots, _WIDTH):
            window = range(max(start, 0), min(start + _WIDTH, n_slots))
            if len(window):
                yield window


def _resolve(fluid: Fluid, counts: Counts, window: range, floors: Sequence[Floor], effort: Effort) -> float:
    """Solve one window; put the answer into the counts if it is cheaper, and say by how much."""
    inside = slice(window.start, window.stop)
    before = fluid.before(counts, window.start)
    after = counts[window.stop] if window.stop < len(counts) else None
    model = build(fluid, window, before=before, after=after, floors=floors)
    gap, start = _SHARE_OF_GAP * effort.gap_target, start_values(model, counts[inside], before, after)
    answer = solve(model.linear, effort, gap=gap, start=start, nodes=_WINDOW_NODES)
    if answer.values is None:
        return 0.0

    def cost(slots: Counts) -> float:
        leaving = 0.0 if after is None else fluid.ways.cost(slots[-1], after)
        return fluid.cost(slots, start=window.start, before=before) + leaving

    found = model.counts(answer.values)
    saved = cost(counts[inside]) - cost(found)
    if saved > 0:
        counts[inside] = found
    return max(saved, 0.0)
