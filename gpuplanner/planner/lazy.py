"""Deciding slot by slot without any forecast: stay until staying has cost more than changing."""

from __future__ import annotations

import itertools

import numpy as np

from gpuplanner.planner.changes import change_costs
from gpuplanner.planner.effort import TOLERANCE, Effort
from gpuplanner.planner.families import build
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.held import at_need
from gpuplanner.planner.lattice import Lattice
from gpuplanner.planner.online import Online, refuse_switches
from gpuplanner.planner.paths import best_on
from gpuplanner.planner.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.realised import counts_of
from gpuplanner.planner.search import plan
from gpuplanner.planner.solver import solve
from gpuplanner.schemas import WHOLE_GPU

MAX_STATES = 500
"""States of the fleet up to which all of them are weighed in every slot."""

_NODES = 300


def lazy(
    problem: PlanProblem,
    *,
    max_states: int = MAX_STATES,
    time_limit_s: float = 10.0,
    gap_target: float = 0.005,
    seed: int = 0,
    solver: str = "highs",
) -> Online:
    r"""Follow the demand as lazily as pays, seeing no slot before it has come.

    GPUs go on and off as each slot needs them, which costs no change; what has to be decided is which layouts
    they have. Let :math:`w_t(h)` be the least cost of all slots so far for a fleet that now has :math:`h` (the
    work function), and :math:`r(h, g)` the cost of changing from :math:`h` to :math:`g`. The fleet that has
    :math:`g` goes to the :math:`h` with the least :math:`w_t(h) + r(h, g)`, the nearest of these if there are
    several. So it stays until some other choice has been cheaper by all that the way back would cost: a
    generalised ski rental. GPUs change at the latest when they are needed, and then no more than are needed.

    This is the work function algorithm, whose proven factor grows with the number of states and says nothing of
    use here. What it cost beside hindsight stands in the result. With more than `max_states` states only what
    suits the slots that have come is weighed.

    Parameters
    ----------
    problem : PlanProblem
        Demand, prices and limits; the demand of a slot is looked at when its turn comes.
    max_states : int
        Up to this number, all states of the fleet are weighed.
    time_limit_s, gap_target, seed, solver
        Of the search in hindsight, as for :func:`~gpuplanner.planner.plan`, and of the models of single slots.

    Returns
    -------
    Online
        ``replans`` counts the slots in which GPUs took up other layouts.

    Raises
    ------
    ScenarioError
        If the problem limits switches a day, which the rule does not know.

    References
    ----------
    Borodin, Linial, Saks, An optimal on-line algorithm for metrical task system, Journal of the ACM 39 (1992).

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     board="H100-80GB-SXM5", gpus=1, gpus_per_node=1, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.80gb", "1g.10gb"],
    ...     demand=[[[1, 0, 0, 0, 0], [0, 7, 7, 7, 7]]], unmet_price=2.0, change_gpu_hours=1.5,
    ... )
    >>> done = lazy(problem)  # is cut anew once the demand that was not met has cost as much as that
    >>> done.layouts, done.counts.tolist()
    (('7g.80gb:1', '1g.10gb:7'), [[1, 0], [0, 0], [0, 0], [0, 0], [0, 1]])
    """
    refuse_switches(problem, "lazy")
    fluid = Fluid.of(problem)
    effort = Effort.begin(gap_target=gap_target, time_limit_s=time_limit_s, seed=seed, solver=solver)
    lattice = Lattice.of(fluid, max_states)
    rule = _WorkFunction(fluid)
    if lattice is not None:
        rule.weigh(lattice.vectors[:, : len(fluid.layouts)])
    done: list[Counts] = []
    for slot in range(problem.n_slots):
        if lattice is None:
            rule.weigh(_best_choice(fluid, slot, effort)[None])
        done.append(rule.decide(slot))
    states = np.array(done)
    changed = sum(fluid.changes(before, now)[0] > 0 for before, now in itertools.pairwise(done))
    cut = [text for text in fluid.layouts if text != WHOLE_GPU]
    rows = [dict(zip(fluid.layouts, row, strict=True)) for row in fluid.on(states).tolist()]
    rows += [dict(zip(cut, row, strict=True)) for row in fluid.held(states).tolist()]
    layouts, both = counts_of(rows)
    cost = fluid.cost(states, before=fluid.initial)
    hindsight = plan(problem, time_limit_s=time_limit_s, gap_target=gap_target, seed=seed, solver=solver)
    return Online(layouts, both[: len(done)], both[len(done) :], cost, hindsight.require(), changed)


class _WorkFunction:
    """Least cost so far of having each choice of layouts that is weighed."""

    def __init__(self, fluid: Fluid) -> None:
        self.fluid = fluid
        self.now = fluid.initial
        self.choices = fluid.on(fluid.pinned)[None]
        held = self.choices[:, fluid.cut]
        if fluid.initial is not None:
            held = np.maximum(held, fluid.held(fluid.initial))
        self.held: Counts = held
        self.work: Floats = np.array([fluid.change_price(fluid.initial, self._states(held)[0])])

    def weigh(self, choices: Counts) -> None:
        """Take choices of GPUs on into account from now on, and that GPUs have layouts for them."""
        fluid = self.fluid
        self.choices = np.unique(np.concatenate([self.choices, choices]), axis=0)
        cut = choices[:, fluid.cut]
        if self.now is not None:
            cut = np.concatenate([cut, [self._with(on) for on in choices]])
        fresh = [row for row in np.unique(cut, axis=0) if not (self.held == row).all(axis=1).any()]
        for row in fresh:
            ways = self.work
            if self.now is not None:
                ways = ways + change_costs(fluid, self._states(self.held), self._states(row[None]))[:, 0]
            self.held, self.work = np.concatenate([self.held, row[None]]), np.append(self.work, ways.min())

    def decide(self, slot: int) -> Counts:
        """State for a slot whose demand has come."""
        fluid = self.fluid
        costs, on = best_on(fluid, slot, self.choices, self.held)
        states = self._states(self.held)
        if self.now is None:
            self.work = costs
            best = int(costs.argmin())
        else:
            ways = change_costs(fluid, states, states)
            self.work = (self.work[:, None] + ways).min(axis=0) + costs
            score = self.work + change_costs(fluid, states, self.now[None])[:, 0]
            near = np.flatnonzero(score <= score.min() + TOLERANCE)
            best = int(near[np.abs(self.held[near] - fluid.held(self.now)).sum(axis=1).argmin()])
        before = fluid.held(states[best] if self.now is None else self.now)
        self.now = at_need(fluid, on[best][None], self.held[best][None], before)[0]
        return self.now

    def _with(self, on: Counts) -> Counts:
        """What GPUs would have if those that the fleet has now were kept, as far as possible."""
        assert self.now is not None
        states = at_need(self.fluid, on[None], on[None, self.fluid.cut], self.fluid.held(self.now))
        return self.fluid.held(states[0])

    def _states(self, held: Counts) -> Counts:
        """States in which nothing is on."""
        return self.fluid.state(np.zeros((len(held), len(self.fluid.layouts)), dtype=np.int64), held)


def _best_choice(fluid: Fluid, slot: int, effort: Effort) -> Counts:
    """GPUs on that are best for a slot by itself; the least that may be on if the time is up."""
    model = build(fluid, range(slot, slot + 1))
    answer = solve(model.linear, effort, gap=effort.gap_target, nodes=_NODES)
    state = fluid.pinned if answer.values is None else model.states(answer.values)[0]
    return fluid.on(state)
