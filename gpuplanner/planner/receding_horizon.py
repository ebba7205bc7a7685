"""Replanning over a receding horizon, and whether a new plan is worth its changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from gpuplanner.core.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.planner.fleet_limits_and_prices import is_count
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_explanation import realised_cost, realised_costs
from gpuplanner.planner.plan_problem import Counts, Floats, PlanProblem
from gpuplanner.planner.plan_search import SearchArguments, plan

MEAN_GAIN_BOOTSTRAP_DRAWS = 1000
"""Bootstrap resamples from which the probability of a mean gain above 0 is computed."""


@dataclass(frozen=True)
class PlanGain:
    """Gain of a new plan over the current one, changes included, at the prices of the problem [GPU h].

    - ``gain``, ``low``, ``high``: Mean over the demand paths, and the 5 % and 95 % quantiles. [GPU h]
    - ``chance``: Bootstrap probability that the mean gain is above 0. [0-1]
    """

    gain: float
    low: float
    high: float
    chance: float

    def worth(self, chance: float) -> bool:
        """Whether the mean gain is above 0, with at least the given bootstrap probability."""
        return self.gain > 0 and self.chance >= chance


def weigh(
    problem: PlanProblem,
    current_plan: Plan,
    new_plan: Plan,
    paths: Floats,
    *,
    decision_slot: int | None = None,
    days: int | None = None,
) -> PlanGain:
    """Compare the cost of a new plan with that of the current one on sample paths of demand.

    Parameters
    ----------
    problem : PlanProblem
        Prices, limits and the layouts before its first interval; its demand is not used.
    current_plan, new_plan : Plan
        Two plans for its intervals; changes of either are paid for when they come.
    paths : ndarray of float, shape (n_paths, n_profiles, n_slots)
        Demand of all tenants together. [instances]
    decision_slot : int, optional
        Interval of the next decision, at which the new plan can be taken just as well: the comparison is with waiting
        until then. None: the current plan is kept to the end.
    days : int, optional
        Days of the past that the paths are made of: the evidence for the bootstrap, however many paths there are. None:
        each path counts as a day.

    Returns
    -------
    PlanGain

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
    PlanGain(gain=-24.0, low=-51.0, high=3.0, chance=0.217)
    >>> weigh(problem, standing_plan(fewer, problem), fewer, paths[:1], decision_slot=1)  # two could be saved later
    PlanGain(gain=2.0, low=2.0, high=2.0, chance=1.0)
    """
    if decision_slot is not None and decision_slot < problem.n_slots:
        # Waiting: the current plan until the next decision, then the new one.
        current_counts = counts_by_layout(current_plan.layouts, current_plan.counts)
        new_counts = counts_by_layout(new_plan.layouts, new_plan.counts)
        end = decision_slot + 1
        problem = replace(problem, demand=problem.demand[:, :, :end])
        paths = paths[:, :, :end]
        current_plan = standing_plan(new_plan, problem, [*current_counts[:decision_slot], new_counts[decision_slot]])
        new_plan = replace(new_plan, counts=new_plan.counts[:end], parked=new_plan.parked[:end])
    costs = realised_costs(problem, [current_plan, new_plan], paths)
    gains = costs[0] - costs[1]
    low, high = (round(float(quantile), 9) for quantile in np.quantile(gains, (0.05, 0.95)))
    draws = np.random.default_rng(0).integers(
        0, len(gains), (MEAN_GAIN_BOOTSTRAP_DRAWS, min(days or len(gains), len(gains)))
    )
    chance = float((gains[draws].mean(axis=1) > 0).mean())
    return PlanGain(round(float(gains.mean()), 9), low, high, chance)


def counts_by_layout(layouts: Sequence[str], counts: Counts) -> list[Mapping[str, int]]:
    """Convert counts to GPUs by layout text, interval by interval."""
    return [dict(zip(layouts, row, strict=True)) for row in counts.tolist()]


def standing_plan(plan: Plan, problem: PlanProblem, planned_rows: Sequence[Mapping[str, int]] | None = None) -> Plan:
    """Build a plan that keeps the layouts before the first interval, or follows `planned_rows` and stays at the last.

    Parameters
    ----------
    plan : Plan
        Plan whose other fields are kept.
    problem : PlanProblem
        Intervals, and GPUs by layout before the first.
    planned_rows : sequence of mapping of str to int, optional
        GPUs by layout, interval by interval.
    """
    rows: list[Mapping[str, int]] = list(planned_rows) if planned_rows else [problem.initial or {}]
    rows = (rows + rows[-1:] * problem.n_slots)[: problem.n_slots]
    layouts, counts, _ = _as_count_arrays(rows, [])
    idle_counts = np.zeros_like(counts)
    return replace(plan, layouts=layouts, counts=counts, parked=idle_counts, bound=None, gap=None)


AcceptPlan = Callable[[int, PlanProblem, Plan, Plan], bool]
"""Callback that decides whether :func:`roll` takes a new plan: from the interval, the problem ahead, the current plan
and the new plan to True or False.
"""
DemandForecast = Callable[[int], ArrayLike]
"""Callback that returns the demand expected from an interval on [instances], shape (n_tenants, n_profiles, at least the
horizon).
"""


@dataclass(frozen=True, eq=False)
class RollingPlan:
    """Result of :func:`roll`: the counts interval by interval, and the best plan in hindsight.

    Parameters
    ----------
    layouts : tuple of str
        Layouts in use, as text.
    counts : ndarray of int, shape (n_slots, n_layouts)
        Powered-on GPUs with each layout.
    parked : ndarray of int, shape (n_slots, n_layouts)
        Idle GPUs with each layout.
    cost : float
        Their cost under the true demand. [GPU h]
    hindsight : Plan
        Plan made with the true demand known from the start, with its bound.
    replans : int
        Number of new plans that were taken.
    """

    layouts: tuple[str, ...]
    counts: Counts
    parked: Counts
    cost: float
    hindsight: Plan
    replans: int

    @property
    def hindsight_cost(self) -> float:
        """Cost of the best known plan for the true demand, the executed one included [GPU h]."""
        assert self.hindsight.objective is not None, "a plan that was found has a cost"
        return min(self.cost, self.hindsight.objective)


def roll(
    problem: PlanProblem,
    forecast: DemandForecast,
    *,
    commit: int = 1,
    horizon: int = 24,
    accept: AcceptPlan | None = None,
    hindsight: Plan | None = None,
    **how: Unpack[SearchArguments],
) -> RollingPlan:
    """Plan some intervals ahead from a forecast, execute the first, and plan again from there (receding horizon).

    Parameters
    ----------
    problem : PlanProblem
        True demand, prices and limits. The demand is used to measure, never to decide.
    forecast : callable
        From an interval to the demand expected from it on.
    commit : int
        Intervals executed before the next plan, at most `horizon`.
    horizon : int
        Intervals planned ahead; fewer near the end.
    accept : callable, optional
        Called with the interval, the problem ahead, the current plan and a new one; False keeps the current plan, whose
        last layouts remain until another one is accepted. None: every new plan is taken.
    hindsight : Plan, optional
        Plan made with the true demand known, if it was made before.
    **how
        Arguments of :func:`~gpuplanner.planner.plan_search.plan`, for each plan.

    Returns
    -------
    RollingPlan

    Raises
    ------
    ScenarioError
        If an argument is invalid, or the forecast has another shape than the demand.
    InfeasiblePlanError
        If some plan could not be made; the message names the interval.

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
    on_counts, idle_counts = problem.initial, problem.parked
    on_rows: list[Mapping[str, int]] = []
    idle_rows: list[Mapping[str, int]] = []
    planned_rows: list[Mapping[str, int]] = []
    replans = 0
    while len(on_rows) < problem.n_slots:
        slots = range(len(on_rows), min(len(on_rows) + horizon, problem.n_slots))
        expected_demand = _check_forecast(problem, forecast(slots.start), slots)
        slot_problem = slice_problem(problem, slots, expected_demand, on_counts, idle_counts)
        next_plan = plan(slot_problem, **how)
        if not next_plan.is_feasible:
            context = f"plan at interval {slots.start}"
            raise InfeasiblePlanError(context, "a plan", next_plan.status, next_plan.explanation)
        current_plan = (
            None if accept is None or on_counts is None else standing_plan(next_plan, slot_problem, planned_rows)
        )
        if accept is None or current_plan is None or accept(slots.start, slot_problem, current_plan, next_plan):
            replans += 1
        else:
            next_plan = current_plan
        for rows, counts in ((on_rows, next_plan.counts), (idle_rows, next_plan.parked)):
            rows += counts_by_layout(next_plan.layouts, counts[:commit])
        planned_rows = counts_by_layout(next_plan.layouts, next_plan.counts[commit:]) or on_rows[-1:]
        on_counts, idle_counts = (
            {text: gpus for text, gpus in rows[-1].items() if gpus} for rows in (on_rows, idle_rows)
        )
    layouts, counts, parked = _as_count_arrays(on_rows, idle_rows)
    cost = realised_cost(problem, layouts, counts, parked)
    best = hindsight or plan(problem, **how).require()
    return RollingPlan(layouts, counts, parked, cost, best, replans)


def slice_problem(
    problem: PlanProblem,
    slots: range,
    demand: Floats,
    initial: Mapping[str, int] | None,
    parked: Mapping[str, int] | None = None,
) -> PlanProblem:
    """Return the problem of some consecutive intervals, with their demand and the GPUs before them.

    Parameters
    ----------
    problem : PlanProblem
        The whole problem.
    slots : range
        Intervals.
    demand : ndarray of float, shape (n_tenants, n_profiles, n_slots)
        Demand of these intervals.
    initial, parked : mapping of str to int, optional
        Powered-on and idle GPUs by layout before them.
    """
    available = None if problem.available is None else problem.available[slots.start : slots.stop]
    start = problem.slot_times[slots.start]
    idle_counts = None if problem.prices is None else parked
    return replace(problem, slot_start=start, demand=demand, available=available, initial=initial, parked=idle_counts)


def _as_count_arrays(
    on: Sequence[Mapping[str, int]], parked: Sequence[Mapping[str, int]]
) -> tuple[tuple[str, ...], Counts, Counts]:
    """Convert rows by layout text to layouts and counts of powered-on and idle GPUs, (n_slots, n_layouts) each."""
    layouts = tuple(dict.fromkeys(text for row in (*on, *parked) for text, gpus in row.items() if gpus))
    counts, idle_counts = (
        np.array([[row.get(text, 0) for text in layouts] for row in rows], dtype=np.int64) for rows in (on, parked)
    )
    return layouts, counts.reshape(len(on), len(layouts)), idle_counts.reshape(len(parked), len(layouts))


def _check_forecast(problem: PlanProblem, forecast_demand: ArrayLike, slots: range) -> Floats:
    """Return the demand forecast for intervals, or raise a ScenarioError if its shape is wrong."""
    demand = np.asarray(forecast_demand, dtype=np.float64)
    expected = problem.demand.shape[:2]
    if demand.ndim != 3 or demand.shape[:2] != expected or demand.shape[2] < len(slots):
        context = f"forecast at interval {slots.start}"
        shape = f"the shape ({expected[0]}, {expected[1]}, at least {len(slots)})"
        todo = "Give the demand of all teams and profiles from this interval on."
        raise ScenarioError(context, shape, str(demand.shape), todo)
    return demand[:, :, : len(slots)]
