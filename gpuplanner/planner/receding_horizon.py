"""Replanning over a receding horizon, and whether a new plan is worth its changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from gpuplanner.core.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.planner.fleet_limits import is_count
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_explanation import realised_cost, realised_costs
from gpuplanner.planner.plan_problem import Counts, Floats, PlanProblem
from gpuplanner.planner.plan_search import SearchArguments, plan

DRAWS = 1000


@dataclass(frozen=True)
class Verdict:
    """What a new plan gains over the one in force, changes paid for, at the prices of the problem [GPU h].

    - ``gain``, ``low``, ``high``: Mean over the paths of demand, and the 5 % and 95 % quantiles.
    - ``chance``: That it gains on average: share of draws of the evidence anew on which the mean is above nothing.
    """

    gain: float
    low: float
    high: float
    chance: float

    def worth(self, chance: float) -> bool:
        """Whether it gains on average, and surely enough."""
        return self.gain > 0 and self.chance >= chance


def weigh(
    problem: PlanProblem,
    standing: Plan,
    new: Plan,
    paths: Floats,
    *,
    until: int | None = None,
    days: int | None = None,
) -> Verdict:
    """Hold a new plan against the one in force on paths of demand.

    Parameters
    ----------
    problem : PlanProblem
        Prices, limits and the layouts before its first slot; its demand is not looked at.
    standing, new : Plan
        Two plans for its slots; changes of either are paid for as they come.
    paths : ndarray of float, shape (n_paths, n_profiles, n_slots)
        Demand of all tenants together.
    until : int, optional
        Slots to the next decision, at which the new plan may be gone over to just as well: what is weighed is to wait
        as long. None: the plan in force is kept to the end.
    days : int, optional
        Days of the past that the paths are made of: they are as much evidence, however many paths there are. None:
        each path is evidence of its own.

    Returns
    -------
    Verdict

    Raises
    ------
    ScenarioError
        If tenants have different prices of unmet demand.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["gpu"], demand=[[[1, 1, 1]]],
    ...     initial={"gpu": 3}, change_gpu_hours=0.0,
    ... )
    >>> fewer = plan(problem)
    >>> paths = np.array([[[1.0, 1.0, 1.0]], [[3.0, 3.0, 3.0]]])
    >>> weigh(problem, standing_plan(fewer, problem), fewer, paths)  # 6 GPU-hours less; or 6 short, at 10 each
    Verdict(gain=-24.0, low=-51.0, high=3.0, chance=0.217)
    >>> weigh(problem, standing_plan(fewer, problem), fewer, paths[:1], until=1)  # the other two could be saved later
    Verdict(gain=2.0, low=2.0, high=2.0, chance=1.0)
    """
    if until is not None and until < problem.n_slots:
        stays, goes = (rows_of(one.layouts, one.counts) for one in (standing, new))
        problem, paths = replace(problem, demand=problem.demand[:, :, : until + 1]), paths[:, :, : until + 1]
        standing = standing_plan(new, problem, [*stays[:until], goes[until]])
        new = replace(new, counts=new.counts[: until + 1], parked=new.parked[: until + 1])
    costs = realised_costs(problem, [standing, new], paths)
    gains = costs[0] - costs[1]
    low, high = (round(float(one), 9) for one in np.quantile(gains, (0.05, 0.95)))
    drawn = np.random.default_rng(0).integers(0, len(gains), (DRAWS, min(days or len(gains), len(gains))))
    chance = float((gains[drawn].mean(axis=1) > 0).mean())
    return Verdict(round(float(gains.mean()), 9), low, high, chance)


def rows_of(layouts: Sequence[str], counts: Counts) -> list[Mapping[str, int]]:
    """Slot by slot, GPUs by layout."""
    return [dict(zip(layouts, row, strict=True)) for row in counts.tolist()]


def standing_plan(plan: Plan, problem: PlanProblem, course: Sequence[Mapping[str, int]] | None = None) -> Plan:
    """A plan that keeps the layouts before the first slot, or goes on with a course of them and stays at its last."""
    rows: list[Mapping[str, int]] = list(course) if course else [problem.initial or {}]
    rows = (rows + rows[-1:] * problem.n_slots)[: problem.n_slots]
    layouts, counts, _ = _counts_of(rows, [])
    idle = np.zeros_like(counts)
    return replace(plan, layouts=layouts, counts=counts, parked=idle, bound=None, gap=None)


Accept = Callable[[int, PlanProblem, Plan, Plan], bool]
"""From a slot, the problem ahead, the plan in force and a new one to whether the new one is taken."""
Forecast = Callable[[int], ArrayLike]
"""Demand believed at a slot for the slots from it on, shape (n_tenants, n_profiles, at least the horizon)."""


@dataclass(frozen=True, eq=False)
class Online:
    """What was done slot by slot, beside the best that could have been done.

    Parameters
    ----------
    layouts : tuple of str
        Layouts in use, as text.
    counts : ndarray of int, shape (n_slots, n_layouts)
        GPUs that were on with each layout.
    parked : ndarray of int, shape (n_slots, n_layouts)
        GPUs that kept each layout, and were not on.
    cost : float
        What they cost under the true demand.
    hindsight : Plan
        The plan made with the true demand known from the start, with its bound.
    replans : int
        How often it was decided anew.
    """

    layouts: tuple[str, ...]
    counts: Counts
    parked: Counts
    cost: float
    hindsight: Plan
    replans: int

    @property
    def hindsight_cost(self) -> float:
        """Cost of the best plan known for the true demand; what was done is one of them."""
        assert self.hindsight.objective is not None, "a plan that was found has a cost"
        return min(self.cost, self.hindsight.objective)


def roll(
    problem: PlanProblem,
    forecast: Forecast,
    *,
    commit: int = 1,
    horizon: int = 24,
    accept: Accept | None = None,
    hindsight: Plan | None = None,
    **how: Unpack[SearchArguments],
) -> Online:
    """Plan some slots ahead from a forecast, do the first of them, and plan anew from where that leads.

    Parameters
    ----------
    problem : PlanProblem
        True demand, prices and limits. The demand is used to measure, never to decide.
    forecast : callable
        From a slot to the demand then believed for the slots from it on.
    commit : int
        Slots done before the next plan, at most `horizon`.
    horizon : int
        Slots planned ahead; fewer near the end.
    accept : callable, optional
        Asked of every new plan, with the slot, the problem ahead and the plan in force, which goes on where it says
        no; the last layouts of a plan stay until another one is accepted. None: every new plan is taken.
    hindsight : Plan, optional
        The plan made with the true demand known, where it was made before. None: it is made.
    **how
        Arguments of :func:`~gpuplanner.planner.plan_search.plan`, for each plan.

    Returns
    -------
    Online

    Raises
    ------
    ScenarioError
        If an argument makes no sense, or the forecast has another shape than the demand.
    InfeasiblePlanError
        If some plan could not be made; the slot is named.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=0.1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[1, 0, 1, 2]]],
    ...     change_gpu_hours=0.3,
    ... )
    >>> naive = roll(problem, lambda slot: problem.demand[:, :, [slot] * 4], horizon=4)
    >>> known = roll(problem, lambda slot: problem.demand[:, :, slot:], horizon=4)
    >>> naive.counts.ravel().tolist(), known.counts.ravel().tolist()
    ([1, 0, 1, 2], [2, 2, 2, 2])
    >>> round(naive.cost - naive.hindsight_cost, 3), known.cost == known.hindsight_cost
    (0.2, True)
    """
    if not (is_count(commit, 1) and is_count(horizon, commit)):
        expected = "whole numbers, commit at least 1 and horizon no less than commit"
        raise ScenarioError("roll", expected, f"commit {commit!r} and horizon {horizon!r}", "Fix these.")
    now, kept = problem.initial, problem.parked
    done: list[Mapping[str, int]] = []
    idle: list[Mapping[str, int]] = []
    course: list[Mapping[str, int]] = []
    replans = 0
    while len(done) < problem.n_slots:
        slots = range(len(done), min(len(done) + horizon, problem.n_slots))
        believed = _believed(problem, forecast(slots.start), slots)
        part = stretch(problem, slots, believed, now, kept)
        ahead = plan(part, **how)
        if not ahead.found:
            where = f"plan at interval {slots.start}"
            raise InfeasiblePlanError(where, "a plan", ahead.status, ahead.explanation)
        standing = None if accept is None or now is None else standing_plan(ahead, part, course)
        if accept is None or standing is None or accept(slots.start, part, standing, ahead):
            replans += 1
        else:
            ahead = standing
        for rows, counts in ((done, ahead.counts), (idle, ahead.parked)):
            rows += rows_of(ahead.layouts, counts[:commit])
        course = rows_of(ahead.layouts, ahead.counts[commit:]) or done[-1:]
        now, kept = ({text: gpus for text, gpus in rows[-1].items() if gpus} for rows in (done, idle))
    layouts, counts, parked = _counts_of(done, idle)
    cost = realised_cost(problem, layouts, counts, parked)
    best = hindsight or plan(problem, **how).require()
    return Online(layouts, counts, parked, cost, best, replans)


def stretch(
    problem: PlanProblem,
    slots: range,
    demand: Floats,
    initial: Mapping[str, int] | None,
    parked: Mapping[str, int] | None = None,
) -> PlanProblem:
    """The problem of some consecutive slots, with a demand for them and the GPUs on, and parked, before them."""
    available = None if problem.available is None else problem.available[slots.start : slots.stop]
    start = problem.slot_times[slots.start]
    kept = None if problem.prices is None else parked
    return replace(problem, slot_start=start, demand=demand, available=available, initial=initial, parked=kept)


def _counts_of(
    on: Sequence[Mapping[str, int]], parked: Sequence[Mapping[str, int]]
) -> tuple[tuple[str, ...], Counts, Counts]:
    """Layouts in use, and counts of GPUs on and parked, shape (n, n_layouts) each, from rows by layout text."""
    layouts = tuple(dict.fromkeys(text for row in (*on, *parked) for text, gpus in row.items() if gpus))
    counts, kept = (
        np.array([[row.get(text, 0) for text in layouts] for row in rows], dtype=np.int64) for rows in (on, parked)
    )
    return layouts, counts.reshape(len(on), len(layouts)), kept.reshape(len(parked), len(layouts))


def _believed(problem: PlanProblem, given: ArrayLike, slots: range) -> Floats:
    demand = np.asarray(given, dtype=np.float64)
    expected = problem.demand.shape[:2]
    if demand.ndim != 3 or demand.shape[:2] != expected or demand.shape[2] < len(slots):
        where = f"forecast at interval {slots.start}"
        shape = f"the shape ({expected[0]}, {expected[1]}, at least {len(slots)})"
        todo = "Give the demand of all teams and profiles from this interval on."
        raise ScenarioError(where, shape, str(demand.shape), todo)
    return demand[:, :, : len(slots)]
