"""How plans are found: each method is a series of states, the best plan and bound so far, ever better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpuplanner.errors import MissingDependencyError
from gpuplanner.planner.contract.plain_values import refuse
from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.methods.best_path import (
    cheapest_way,
    on_alone,
    parked_best,
    parked_since,
    released_twin,
)
from gpuplanner.planner.methods.calendar import calendar_counts
from gpuplanner.planner.methods.dynamic import dynamic_counts
from gpuplanner.planner.methods.forward import greedy_counts, rounded, standing, sweep
from gpuplanner.planner.methods.one_model import improved, solve_whole, static_counts
from gpuplanner.planner.program.bound import instant_bound, lower_bound
from gpuplanner.planner.program.families import Floor
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.slot_floors import window_floors
from gpuplanner.solving.effort import Effort, relative_gap

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
        refuse(
            "plan: method dp",
            "a fleet small enough to try every state",
            f"{fluid.problem.gpus} GPUs and {len(fluid.layouts)} layouts",
            "Choose the method 'auto'.",
        )
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
