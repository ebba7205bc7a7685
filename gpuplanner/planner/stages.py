"""How plans are found: each method is a series of states, the best plan and bound so far, ever better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuplanner.errors import ScenarioError, message
from gpuplanner.planner.bound import lower_bound
from gpuplanner.planner.calendar import calendar_states
from gpuplanner.planner.dynamic import dynamic_states
from gpuplanner.planner.effort import Effort, relative_gap
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.forward import rounded, sweep
from gpuplanner.planner.greedy import greedy_states
from gpuplanner.planner.held import at_need, settled
from gpuplanner.planner.known import Known
from gpuplanner.planner.paths import cheapest_path
from gpuplanner.planner.problem import Counts
from gpuplanner.planner.slots import window_floors
from gpuplanner.planner.static import static_states
from gpuplanner.planner.whole import solve_whole
from gpuplanner.planner.windows import improved

# Floors of wider windows cost more than they tell.
_WIDEST_FLOOR = 4

# Up to this many numbers of GPUs (slots times layouts), the whole horizon as one model is the shortest way.
_SMALL = 600

# The best constant plan need not be proven where it is only a beginning.
_NODES = 20

# Beyond so many slots the linear program takes longer than a sweep that does without its guidance.
_LONG = 400

# Up to this many states of the fleet, trying all of them is the shortest way of all.
_FEW_STATES = 30_000


@dataclass(frozen=True)
class State:
    """The best plan and the best bound so far."""

    states: Counts | None = None
    cost: float = float("inf")
    bound: float = 0.0

    def better(self, fluid: Fluid, states: Counts | None) -> State:
        """With a plan, if it is cheaper than the one held; GPUs change in it when they are on, not before."""
        if states is None:
            return self
        states = at_need(fluid, fluid.on(states), fluid.held(states))
        cost = fluid.cost(states, before=fluid.initial)
        return replace(self, states=states, cost=cost) if cost < self.cost else self

    def tighter(self, bound: float | None) -> State:
        """With a bound, if it is higher than the one held."""
        return self if bound is None else replace(self, bound=max(self.bound, bound))

    @property
    def plan(self) -> Counts:
        """The plan, once there is one."""
        assert self.states is not None
        return self.states

    @property
    def gap(self) -> float:
        """Relative gap; infinite without a plan."""
        return float("inf") if self.states is None else relative_gap(self.cost, self.bound)


Stages = Iterator[State]


def auto(fluid: Fluid, known: Known, effort: Effort) -> Stages:
    """Exactly where the fleet is small enough, else in rounds."""
    found = dynamic_states(fluid, effort.share(0.5), max_states=_FEW_STATES)
    if found is not None:
        states, bound = found
        yield State().better(fluid, states).tighter(bound)
    else:
        yield from rounds(fluid, known, effort)


def rounds(fluid: Fluid, known: Known, effort: Effort) -> Stages:
    """Rounds of bound and plan, each with floors of wider windows, then everything at once."""
    # The best constant plan is there at once, should the time not suffice for more.
    known.constant, _ = static_states(fluid, effort.share(0.3), nodes=_NODES)
    state = State().better(fluid, known.constant)
    yield state
    floors, choices = known.floors, known.choices
    plans: list[Counts] = []
    n_slots = fluid.problem.n_slots
    widest = 1 if n_slots * len(fluid.layouts) <= _SMALL else min(_WIDEST_FLOOR, n_slots)
    for width in range(1, 1 + widest):
        found = window_floors(fluid, width, floors, effort)
        if found is None:
            break
        floors += found.floors
        choices.append(found.choices)
        if width == 1:
            plans.append(settled(fluid, found.choices, effort))
            state = state.tighter(sum(floor.cost for floor in floors)).better(fluid, plans[-1])
            yield state
        if width == 1 and n_slots > _LONG:
            plans.append(settled(fluid, fluid.on(greedy_states(fluid, effort)), effort))
            state = state.better(fluid, plans[-1])
            yield state
        bound, guide = lower_bound(fluid, floors, effort)
        state = state.tighter(bound)
        yield state
        if width == 1 and guide is not None:
            plans.append(settled(fluid, rounded(fluid, state.plan, guide, effort), effort))
            state = state.better(fluid, plans[-1])
            yield state
        swept = sweep(fluid, state.plan, guide, effort, backward=width % 2 == 0)
        plans.append(settled(fluid, fluid.on(swept), effort))
        state = state.better(fluid, plans[-1])
        yield state
        if width == 1 and n_slots <= _LONG:
            plans.append(settled(fluid, fluid.on(greedy_states(fluid, effort)), effort))
        state = state.better(fluid, cheapest_path(fluid, [*plans, state.plan], choices))
        yield state
        if width > 1:
            for states in improved(fluid, state.plan, floors, state.bound, effort):
                state = state.better(fluid, states)
                yield state
    if state.states is not None and not effort.spent():
        best, proven = solve_whole(fluid, state.plan, floors, effort)
        yield state.better(fluid, best).tighter(proven)


def exact(fluid: Fluid, known: Known, effort: Effort) -> Stages:
    """Dynamic programming over all states, for small fleets."""
    found = dynamic_states(fluid, effort)
    if found is None:
        text = message(
            "plan: method dp",
            "a fleet small enough to try every state",
            f"{fluid.problem.gpus} GPUs and {len(fluid.layouts)} layouts",
            "Choose the method 'auto'.",
        )
        raise ScenarioError(text)
    states, bound = found
    yield State().better(fluid, states).tighter(bound)


def greedy(fluid: Fluid, known: Known, effort: Effort) -> Stages:
    """Slot after slot without looking ahead, with the bound of all plans."""
    state = State().better(fluid, greedy_states(fluid, effort))
    yield from _bounded(fluid, state, known, effort)


def calendar(fluid: Fluid, known: Known, effort: Effort) -> Stages:
    """Few different vectors of counts, with the bound of all plans."""
    state = State().better(fluid, calendar_states(fluid, known.calendars, effort))
    yield from _bounded(fluid, state, known, effort)


def _bounded(fluid: Fluid, state: State, known: Known, effort: Effort) -> Stages:
    found = window_floors(fluid, 1, (), effort)
    if found is None:
        yield state
        return
    known.floors += found.floors
    known.choices.append(found.choices)
    bound, _ = lower_bound(fluid, found.floors, effort)
    yield state.tighter(sum(floor.cost for floor in found.floors)).tighter(bound)


def static(fluid: Fluid, known: Known, effort: Effort) -> Stages:
    """One vector of counts for all slots."""
    states, bound = static_states(fluid, effort)
    yield State().better(fluid, states).tighter(bound)


METHOD_STAGES = {
    "auto": auto,
    "milp": rounds,
    "dp": exact,
    "greedy": greedy,
    "calendar": calendar,
    "static": static,
}
"""Stages of each method."""
