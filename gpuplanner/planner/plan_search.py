"""From a problem to a plan: bound, methods and improvement within limits.

Counts do not say which GPU is cut, so limits are checked on numbered GPUs. A plan that breaks one is made
calmer: changes are priced higher until the cheapest path through the states known keeps the limit, and what
the path costs is counted at the true price. The bound of the plan without the limit stays a bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuplanner.core.errors import MissingDependencyError, ScenarioError
from gpuplanner.core.scenario import SearchLimits
from gpuplanner.planner.dynamic_program import dynamic_counts
from gpuplanner.planner.fleet_limits import is_count
from gpuplanner.planner.layout_calendar import calendar_counts
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.linear_model import Effort, relative_gap
from gpuplanner.planner.linear_program import Floor, instant_bound, lower_bound, window_floors
from gpuplanner.planner.numbered_gpus import changes_when_numbered, node_reboots
from gpuplanner.planner.plan_arrays import Fluid, unmet_by_tenant
from gpuplanner.planner.plan_explanation import explain, explain_limits
from gpuplanner.planner.plan_improvement import (
    cheapest_path,
    cheapest_way,
    greedy_counts,
    improved,
    on_alone,
    parked_best,
    parked_since,
    released_twin,
    rounded,
    solve_whole,
    standing,
    static_counts,
    sweep,
)
from gpuplanner.planner.plan_problem import Counts, PlanProblem

# Of the time that is left, what floors of one width may take.
_FLOORS_SHARE = 0.7

# Floors of wider windows cost more than they tell.
_WIDEST_FLOOR = 4

# Up to this many numbers of GPUs (slots times layouts), the whole horizon as one model is the shortest way.
_SMALL = 600

# Up to this many states of the fleet, trying all of them is the shortest way of all.
_FEW_STATES = 30_000

# Where what is parked must still be found out, no more states of all slots together than this.
_FEW_TRIED = 5_000_000

# Parts of a week that the first bound is made of; a wider floor is worth longer ones.
_PARTS = 4


@dataclass(frozen=True)
class State:
    """The best plan and bound so far, and whether little more gives more."""

    counts: Counts | None = None
    cost: float = float("inf")
    bound: float = 0.0
    preliminary: bool = False

    def better(self, fluid: Fluid, counts: Counts | None) -> State:
        """With a plan, if it is cheaper than the one held."""
        if counts is None:
            return self
        cost = fluid.cost(counts, before=fluid.initial)
        return replace(self, counts=counts, cost=cost) if cost < self.cost else self

    def tighter(self, bound: float | None) -> State:
        """With a bound, if it is higher than the one held."""
        return self if bound is None else replace(self, bound=max(self.bound, bound))

    @property
    def plan(self) -> Counts:
        """The plan, once there is one."""
        assert self.counts is not None
        return self.counts

    @property
    def gap(self) -> float:
        """Relative gap; infinite without a plan."""
        return float("inf") if self.counts is None else relative_gap(self.cost, self.bound)


Stages = Iterator[State]


def auto(fluid: Fluid, known: Learned, effort: Effort) -> Stages:
    """Exactly where the fleet is small enough, or its GPUs on are by themselves; else in rounds."""
    found = dynamic_counts(fluid, effort.share(0.5), max_states=_FEW_STATES)
    if found is not None:
        counts, bound = found
        yield State().better(fluid, counts).tighter(bound)
        return
    state, twin = State(), on_alone(fluid) if fluid.parks and fluid.on_cost >= 0 else None
    most = min(_FEW_STATES, _FEW_TRIED // fluid.problem.n_slots)
    found = None if twin is None else dynamic_counts(twin, effort.share(0.5), max_states=most)
    if twin is not None and found is not None:
        counts, bound = found
        state = state.better(fluid, parked_since(fluid, twin, counts, effort)).tighter(bound)
        if state.gap > 0:
            state = state.better(fluid, greedy_counts(fluid, effort.unlimited()))
        yield state
    yield from rounds(fluid, known, effort, state)


def rounds(fluid: Fluid, known: Learned, effort: Effort, state: State | None = None) -> Stages:
    """Greedy; then rounds of bound and plans, each with floors of wider windows; then all at once."""
    # Greedy comes before all limits, so that none of them leaves less than a greedy plan.
    plans = [greedy_counts(fluid, effort.unlimited()), *standing(fluid)]
    first = lower_bound(fluid, (), effort, parts=_PARTS)
    state = (state or State()).tighter(instant_bound(fluid)).tighter(first.bound)
    if state.counts is not None:
        plans.append(state.counts)
    if first.guide is not None:
        plans.append(rounded(fluid, first.guide))
    for counts in plans:
        state = state.better(fluid, counts)
    yield state
    if fluid.problem.limits.switches_per_day is not None:
        known.constant, _ = static_counts(fluid, effort.share(0.3))
    floors, states = known.floors, known.states
    n_slots = fluid.problem.n_slots
    widest = 1 if n_slots * len(fluid.owner) <= _SMALL else min(_WIDEST_FLOOR, n_slots)
    for width in range(1, 1 + widest):
        # What is left of the time must do for the program that makes a bound of the floors.
        found = window_floors(fluid, width, floors, effort.share(_FLOORS_SHARE))
        floors += found.floors
        states.append(found.states)
        if width == 1:
            state = state.tighter(sum(floor.cost for floor in floors))
            if found.complete:
                plans.append(parked_best(fluid, found.states, effort))
        relaxation = lower_bound(fluid, floors, effort, parts=max(1, _PARTS // width))
        state = state.tighter(relaxation.bound)
        if relaxation.guide is not None:
            plans.append(rounded(fluid, relaxation.guide))
            state = state.better(fluid, plans[-1])
        yield state
        if not found.complete:
            break
        for backward in (False, True):
            plans.append(sweep(fluid, state.plan, relaxation.guide, effort, backward=backward))
            state = state.better(fluid, cheapest_way(fluid, [*plans, state.plan], states, effort))
            yield state
        if width > 1:
            for counts in improved(fluid, state.plan, floors, state.bound, effort):
                state = state.better(fluid, counts)
                yield state
    if state.counts is not None and not effort.spent():
        best, proven = solve_whole(fluid, state.counts, floors, effort)
        yield state.better(fluid, best).tighter(proven)


def exact(fluid: Fluid, known: Learned, effort: Effort) -> Stages:
    """Dynamic programming over all states, for small fleets."""
    found = dynamic_counts(fluid, effort)
    if found is None and effort.spent():
        state = State().tighter(instant_bound(fluid))
        yield state.better(fluid, greedy_counts(fluid, effort.unlimited()))
        return
    if found is None:
        expected = "a fleet small enough to try every state"
        got = f"{fluid.problem.gpus} GPUs and {len(fluid.layouts)} layouts"
        raise ScenarioError("plan: method dp", expected, got, "Choose the method 'auto'.")
    counts, bound = found
    yield State().better(fluid, counts).tighter(bound)


def greedy(fluid: Fluid, known: Learned, effort: Effort) -> Stages:
    """Slot after slot without looking ahead, with the bound of all plans."""
    state = State().tighter(instant_bound(fluid))
    state = state.better(fluid, greedy_counts(fluid, effort.unlimited()))
    yield replace(state, preliminary=True)
    try:
        state = state.tighter(lower_bound(fluid, (), effort).bound)
        yield from _bounded(fluid, state, known, effort)
    except MissingDependencyError:
        yield state


def calendar(fluid: Fluid, known: Learned, effort: Effort) -> Stages:
    """Few different vectors of counts, with the bound of all plans."""
    first = lower_bound(fluid, (), effort)
    state = State().tighter(instant_bound(fluid)).tighter(first.bound)
    if fluid.parks:
        # What parked GPUs keep makes many vectors of the same GPUs on; without it few go further.
        twin = released_twin(fluid)
        plan = calendar_counts(twin, known.calendars, effort)
        state = state.better(fluid, parked_since(fluid, twin, plan, effort))
    state = state.better(fluid, calendar_counts(fluid, known.calendars, effort))
    yield from _bounded(fluid, state, known, effort)


def _bounded(fluid: Fluid, state: State, known: Learned, effort: Effort) -> Stages:
    found = window_floors(fluid, 1, (), effort.share(_FLOORS_SHARE))
    known.floors += found.floors
    known.states.append(found.states)
    relaxation = lower_bound(fluid, found.floors, effort)
    yield state.tighter(sum(floor.cost for floor in found.floors)).tighter(relaxation.bound)


def static(fluid: Fluid, known: Learned, effort: Effort) -> Stages:
    """One vector of counts for all slots."""
    counts, bound = static_counts(fluid, effort)
    yield State().better(fluid, counts).tighter(bound)


METHOD_STAGES = {
    "auto": auto,
    "milp": rounds,
    "dp": exact,
    "greedy": greedy,
    "calendar": calendar,
    "static": static,
}
"""Stages of each method."""


@dataclass
class Learned:
    """What a search was told, and what it has learnt besides its best plan and bound.

    - ``calendars``: Most different vectors of counts, for the method ``"calendar"``.
    - ``floors``: Least costs of slots.
    - ``states``, shape (n, n_layouts): States that were the best for some slot.
    - ``constant``, shape (n_slots, n_layouts): The best constant plan, if it was looked for.
    """

    calendars: int = 2
    floors: list[Floor] = field(default_factory=list)
    states: list[Counts] = field(default_factory=list)
    constant: Counts | None = None


_STEEPEST = 2.0**12
_HALVINGS = 5


def keeps_changes(fluid: Fluid, counts: Counts) -> bool:
    """Whether numbered GPUs can follow the counts within the limits of changes."""
    problem, limits = fluid.problem, fluid.problem.limits
    moved = 1 + np.flatnonzero((counts[1:] != counts[:-1]).any(axis=1))
    if limits.change_slots is not None and not np.isin(moved, limits.change_slots).all():
        return False
    at_most = (limits.switches_per_day, limits.node_changes_per_day, limits.most_changes)
    if at_most == (None,) * 3:
        return True
    switches, nodes = changes_when_numbered(problem, fluid.layouts, *fluid.split(counts))
    days = np.array([problem.day_of(slot) for slot in range(len(counts))])
    per_day = max(int(nodes[days == day].sum(axis=0).max()) for day in np.unique(days))
    figures = (switches, per_day, int(nodes.sum()))
    return all(most is None or figure <= most for figure, most in zip(figures, at_most, strict=True))


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


def _calm_path(fluid: Fluid, price: float, plans: Sequence[Counts], states: Sequence[Counts]) -> Counts | None:
    """The cheapest path if changes had another price; None if it still breaks the limit."""
    dear = replace(fluid, ways=fluid.ways.dearer(price))
    path = cheapest_path(dear, plans, [*states, *map(np.asarray, plans)])
    return path if keeps_changes(fluid, path) else None


METHODS = tuple(METHOD_STAGES)
"""``auto``: exact where the fleet is small enough, else ``milp``. ``milp``: rounds of bound and plan, free to
change in every slot. ``dp``: dynamic programming over all states, small fleets only. ``greedy``: slot after
slot without looking ahead. ``calendar``: few different days. ``static``: no change at all."""

_DECIMALS = 9


GAP_TARGET = 0.005
"""Gap at which a search stops, where nobody says another."""


class SearchArguments(SearchLimits, total=False):
    """How a plan is searched for: arguments of :func:`plan` that other searches hand on."""

    method: str
    calendars: int


def plan(
    problem: PlanProblem,
    *,
    method: str = "auto",
    calendars: int = 2,
    time_limit_s: float | None = None,
    gap_target: float = GAP_TARGET,
    seed: int = 0,
    solver: str = "highs",
    work_limit: int | None = None,
) -> Plan:
    """Choose how many GPUs are on with which layout in every slot, with a bound on how good that is.

    First the greedy plan is there. Where few GPUs are on, and the others parked, the best plan of those on by
    themselves is a bound, and often a plan that nothing parked makes dearer. Then, in rounds: each slot's (later,
    each few slots') own optimum in whole GPUs is a floor of a linear program over all slots, which gives a bound
    and is rounded to a plan; a sweep through the slots, forward or backward, rounds it again, knowing the slot
    before; the cheapest path through all states seen so far, and windows of slots solved anew, make the plan
    better. Last, the whole horizon is one model.
    The search ends when the gap is reached. The same problem and seed give the same plan, whatever the machine
    and however busy it is, unless a time limit ends it. Whenever it is stopped there is a bound; by
    ``work_limit``, ``auto`` is never dearer than ``greedy``.

    Parameters
    ----------
    problem : PlanProblem
        Demand, fleet, prices and limits.
    method : {"auto", "milp", "dp", "greedy", "calendar", "static"}
        See :data:`METHODS`.
    calendars : int
        Most different vectors of counts over the horizon, for the method ``"calendar"``.
    time_limit_s : float, optional
        No new step is begun after this time [s]: where it ends depends on the machine.
    gap_target : float
        Relative gap at which to stop; 0 asks for the optimum.
    seed : int
        Seed of the solver.
    solver : {"highs", "cbc"}
        Solver.
    work_limit : int, optional
        No new step is begun after so many units of work, each a million elementary steps and some 15 ms of one
        processor: a limit that gives the same plan on every machine. 2000 if neither limit is given.

    Returns
    -------
    Plan
        Also when there is none to find; see ``Plan.status`` and ``Plan.require``. Ctrl-C returns the best
        plan so far, if there is one.

    Raises
    ------
    ScenarioError
        If an argument makes no sense.
    MissingDependencyError
        If the solver is not installed.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> day = 1 + np.arange(24) % 12 // 4
    >>> problem = PlanProblem(
    ...     "A100-40GB", 4, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[day]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> best = plan(problem, gap_target=0)
    >>> best.status, best.objective, best.changes, best.layouts
    ('optimal', 32.1, 2, ('3g.20gb:2',))
    """
    effort = Effort.begin(
        gap_target=gap_target, time_limit_s=time_limit_s, seed=seed, solver=solver, work_limit=work_limit
    )
    return planned_within(problem, method, calendars, effort)


def planned_within(problem: PlanProblem, method: str, calendars: int, effort: Effort) -> Plan:
    """A plan within limits that a search may share with others; see :func:`plan`."""
    if method not in METHODS:
        raise ScenarioError("plan: method", f"one of {', '.join(METHODS)}", repr(method), "Choose another.")
    if not is_count(calendars, 1):
        raise ScenarioError("plan: calendars", "a whole number from 1", repr(calendars), "Give --calendars 2.")
    began = time.perf_counter()
    fault = explain_limits(problem)
    if fault is not None:
        found = _no_plan(problem, method, "infeasible", "proof", fault)
        return replace(found, seconds=time.perf_counter() - began)
    fluid = Fluid.of(problem)
    state, stopped_by = _search(fluid, method, calendars, effort)
    if state.counts is None:
        text = "No plan that was found keeps the limits on changes: allow more of them, or more time."
        found = _no_plan(problem, method, "unknown", stopped_by, text)
    else:
        found = _plan_of(fluid, state, method, stopped_by)
        found = replace(found, explanation=explain(found, problem, effort))
    return replace(found, seconds=time.perf_counter() - began)


def _search(fluid: Fluid, method: str, calendars: int, effort: Effort) -> tuple[State, str]:
    limited = fluid.problem.limits.of_changes
    known, state = Learned(calendars), State()
    stopped_by = None
    try:
        for state in METHOD_STAGES[method](fluid, known, effort):
            if state.gap <= effort.gap_target and not state.preliminary:
                stopped_by = "proof"
                break
            # The second half of the time is for finding out what limits on changes cost.
            late = limited and state.bound > 0 and effort.left() < 0.5
            if late and state.counts is not None and not keeps_changes(fluid, state.counts):
                break
        if state.counts is None:
            constant = (one for one in standing(fluid) if (one == one[0]).all())
            state = state.better(fluid, min(constant, key=lambda one: fluid.cost(one, before=fluid.initial)))
        if limited and not keeps_changes(fluid, state.plan):
            counts = calmed(fluid, state.plan, known, state.bound, effort, few=method == "calendar")
            state = replace(state, counts=None, cost=float("inf")).better(fluid, counts)
            stopped_by = "proof" if state.gap <= effort.gap_target else None
    except KeyboardInterrupt:
        if state.counts is None or not keeps_changes(fluid, state.counts):
            raise
        return state, "user"
    return state, stopped_by or effort.why_spent() or "passes"


def _plan_of(fluid: Fluid, state: State, method: str, stopped_by: str) -> Plan:
    """The state as a plan; layouts that no GPU ever has are left out."""
    problem, counts = fluid.problem, state.plan
    on, parked = fluid.split(counts)
    used = np.flatnonzero(on.any(axis=0) | parked.any(axis=0))
    # How GPUs are numbered may turn on the layouts that are named: reboots are those of the plan as it is handed on.
    layouts, on, parked = tuple(fluid.layouts[i] for i in used), on[:, used], parked[:, used]
    missing = np.array([fluid.missing(t, row) for t, row in enumerate(counts)]).T
    unmet = unmet_by_tenant(problem, missing)
    pairs = list(zip([fluid.initial, *counts], counts, strict=False))
    return Plan(
        method=method,
        status="optimal" if state.gap == 0 else "feasible",
        stopped_by=stopped_by,
        objective=round(state.cost, _DECIMALS),
        bound=round(min(state.bound, state.cost), _DECIMALS),
        gap=round(state.gap, _DECIMALS),
        layouts=layouts,
        counts=on,
        parked=parked,
        unmet=unmet,
        changes=sum(fluid.changes(before, now) for before, now in pairs),
        departures=sum(fluid.departures(before, now) for before, now in pairs),
        reboots=node_reboots(problem, layouts, on, parked),
        gpu_hours_on=float(on.sum()) * problem.interval_hours,
        unmet_gpu_hours=float((unmet.sum(axis=(0, 2)) * problem.shares).sum() * problem.interval_hours),
    )


def _no_plan(problem: PlanProblem, method: str, status: str, stopped_by: str, explanation: str) -> Plan:
    figures: dict[str, Any] = dict.fromkeys(("objective", "bound", "gap"))
    figures |= dict.fromkeys(("changes", "departures", "reboots"), 0)
    figures |= dict.fromkeys(("gpu_hours_on", "unmet_gpu_hours"), 0.0)
    return Plan(
        method=method,
        status=status,
        stopped_by=stopped_by,
        layouts=(),
        counts=np.zeros((0, 0), dtype=np.int64),
        unmet=np.zeros((len(problem.tenants), len(problem.profiles), 0)),
        explanation=explanation,
        **figures,
    )
