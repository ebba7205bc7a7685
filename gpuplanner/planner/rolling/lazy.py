"""Deciding slot by slot without any forecast: stay until staying has cost more than changing."""

from __future__ import annotations

import itertools

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.methods.best_path import kept_on
from gpuplanner.planner.methods.dynamic import all_states
from gpuplanner.planner.methods.search import plan
from gpuplanner.planner.program.families import build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.rolling.online import Online
from gpuplanner.solving.effort import TOLERANCE, Effort
from gpuplanner.solving.solver import solve

MAX_STATES = 500
"""States of the fleet up to which all of them are weighed in every slot."""

_NODES = 300


def lazy(
    problem: PlanProblem,
    *,
    max_states: int = MAX_STATES,
    time_limit_s: float | None = None,
    gap_target: float = 0.005,
    seed: int = 0,
    solver: str = "highs",
) -> Online:
    r"""Follow the demand as lazily as pays, seeing no slot before it has come.

    Let :math:`w_t(y)` be the least cost of all slots so far for a fleet that is now in state :math:`y` (the
    work function), and :math:`r(y, x)` the cost of changing from :math:`y` to :math:`x`. The fleet in state
    :math:`x` goes to the state with the least :math:`w_t(y) + r(y, x)`, the nearest of these if there are
    several. So it stays until some other state has been cheaper by all that the way back would cost: a
    generalised ski rental.

    *One layout.* Slot costs are convex in the number of GPUs, and the rule is lazy capacity provisioning: the
    number moves no further than into the range between the last number of an optimal plan for the slots so
    far that pays for switching on, and that of one that pays for switching off. It costs at most 3 times as
    much as the best plan in hindsight if the fleet is empty at first (``initial`` with 0 GPUs), and no
    deterministic rule without foresight has a smaller factor.

    *Several layouts.* The rule is the work function algorithm, whose proven factor grows with the number of
    states and says nothing of use here. What it cost beside hindsight stands in the result. With more than
    `max_states` states only the best states of each slot that has come are weighed.

    References
    ----------
    Lin, Wierman, Andrew, Thereska, Dynamic right-sizing for power-proportional data centers, INFOCOM 2011
    (factor 3, fractions); Albers and Quedenfeld, Optimal algorithms for right-sizing data centers, SPAA 2018
    (factor 3 in whole numbers, and that it is best possible); Borodin, Linial, Saks, An optimal on-line
    algorithm for metrical task system, Journal of the ACM 39 (1992), for the work function.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[1, 0, 0, 0, 0, 1]]],
    ...     change_gpu_hours=2.5, initial={"7g.40gb:1": 0},
    ... )
    >>> lazy(problem).counts.ravel().tolist()  # gives the GPU back when idling has cost as much as a cut
    [1, 1, 1, 0, 0, 1]
    """
    fluid = Fluid.of(problem)
    effort = Effort.begin(gap_target=gap_target, time_limit_s=time_limit_s, seed=seed, solver=solver)
    states = all_states(fluid, max_states)
    rule = _WorkFunction(fluid, states)
    done: list[Counts] = []
    for slot in range(problem.n_slots):
        if states is None:
            best = _best_state(fluid, slot, effort)
            for state in (best, kept_on(fluid, rule.now, best)):
                rule.weigh(state)
        done.append(rule.decide(slot))
    changed = sum(bool((now != before).any()) for before, now in itertools.pairwise(done))
    on, parked = fluid.split(np.array(done))
    used = np.flatnonzero(on.any(axis=0) | parked.any(axis=0))
    layouts = tuple(fluid.layouts[i] for i in used)
    hindsight = plan(problem, time_limit_s=time_limit_s, gap_target=gap_target, seed=seed, solver=solver)
    cost = fluid.cost(np.array(done), before=fluid.initial)
    return Online(layouts, on[:, used], parked[:, used], cost, hindsight.require(), changed)


class _WorkFunction:
    """Least cost so far of being in each state that is weighed."""

    def __init__(self, fluid: Fluid, states: Counts | None) -> None:
        self.fluid = fluid
        self.now = fluid.initial
        start = fluid.pinned if fluid.initial is None else fluid.initial
        self.states = start[None].astype(np.int64)
        self.work: Floats = np.zeros(1)
        if states is not None:
            for state in states:
                self.weigh(state)

    def weigh(self, state: Counts) -> None:
        """Take a state into account from now on."""
        if (self.states == state).all(axis=1).any():
            return
        free = self.now is None
        ways = self.work if free else self.work + self.fluid.ways.costs(self.states, state[None])[:, 0]
        self.states = np.concatenate([self.states, state[None]])
        self.work = np.append(self.work, ways.min())

    def decide(self, slot: int) -> Counts:
        """State for a slot whose demand has come."""
        costs = self.fluid.slot_costs(slot, self.states)
        costs = np.where(self.fluid.allowed(slot, self.states), costs, np.inf)
        if self.now is None:
            self.work = costs
            self.now = self.states[costs.argmin()]
            return self.now
        self.work = (self.work[:, None] + self.fluid.ways.costs(self.states, self.states)).min(axis=0)
        self.work += costs
        score = self.work + self.fluid.ways.costs(self.states, self.now[None])[:, 0]
        best = np.flatnonzero(score <= score.min() + TOLERANCE)
        self.now = self.states[best[np.abs(self.states[best] - self.now).sum(axis=1).argmin()]]
        return self.now


def _best_state(fluid: Fluid, slot: int, effort: Effort) -> Counts:
    """Best state of a slot by itself; the least that may be on if the time is up."""
    model = build(fluid, range(slot, slot + 1))
    answer = solve(model.linear, effort, gap=effort.gap_target, nodes=_NODES)
    least: Counts = fluid.pinned.astype(np.int64)
    return least if answer.values is None else model.counts(answer.values)[0] * fluid.used
