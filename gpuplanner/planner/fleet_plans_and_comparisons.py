"""Plans of fleets with several pools, comparison of methods, and the price of limits.

A request that names a profile of one pool, as a Slurm ``gres`` type or a node selector does, is served there, and
quotas are counted by team and pool, as Kueue counts them by flavor. So a fleet is the sum of its pools: the sum of
their lower bounds is a lower bound, and the sum of optimal plans is an optimal plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, examples
from gpuplanner.core.serialization import load_json, read_text, to_json
from gpuplanner.planner.layout_plan import MAX_PLAN_FILE_BYTES, PLAN_FILE_FORMAT, Plan, plan_from_plain
from gpuplanner.planner.linear_programs_and_search_limits import DEFAULT_WORK_LIMIT_UNITS, SearchEffort, relative_gap
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import DEFAULT_OPTIMALITY_GAP_TARGET, SearchArguments, plan, plan_within_effort
from gpuplanner.planner.plan_verification import verify

FLEET_FILE_FORMAT = "gpuplanner.fleet-plan/3"
"""Name and version of the file format of fleet plans."""

_EXPECTED_FLEET_FILE_TEXT = "a JSON object: a problem, a plan file, or 'pools' with a problem for each name"
"""What error messages name as the expected content of a fleet file."""


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """Plans of all GPU pools of a fleet, and their sums.

    Parameters
    ----------
    plans : mapping of str to Plan
        By pool.
    seconds : float
        Run time of the search. [s]
    """

    plans: Mapping[str, Plan]
    seconds: float

    @property
    def is_feasible(self) -> bool:
        """Whether a plan was found for every GPU pool."""
        return all(plan.is_feasible for plan in self.plans.values())

    @property
    def objective(self) -> float | None:
        """Cost of all GPU pools; None unless every pool has a plan [GPU h]."""
        return sum(plan.objective or 0.0 for plan in self.plans.values()) if self.is_feasible else None

    @property
    def bound(self) -> float | None:
        """Lower bound on the cost of all plans of the fleet; None unless every GPU pool has a plan [GPU h]."""
        return sum(plan.bound or 0.0 for plan in self.plans.values()) if self.is_feasible else None

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective; None unless every GPU pool has a plan [0-1]."""
        if self.objective is None or self.bound is None:
            return None
        return relative_gap(self.objective, self.bound)

    @property
    def status(self) -> str:
        """Weakest status of a GPU pool; see ``Plan.status``."""
        order = ("infeasible", "unknown", "feasible", "optimal")
        return min((plan.status for plan in self.plans.values()), key=order.index)

    @property
    def explanation(self) -> str:
        """Explanation of every GPU pool, one line each."""
        return "\n".join(f"{name}: {plan.explanation}" for name, plan in self.plans.items())


def plan_fleet(pools: Mapping[str, PlanProblem], **how: Unpack[SearchArguments]) -> FleetPlan:
    """Plan every GPU pool of a fleet in turn, each with an equal part of the remaining work or time.

    Parameters
    ----------
    pools : mapping of str to PlanProblem
        Problems by pool name, over the same intervals.
    **how
        Arguments of :func:`~gpuplanner.planner.plan_search.plan`; limits are those of all pools together, and without
        any, each pool adds the work of one.

    Returns
    -------
    FleetPlan

    Raises
    ------
    ScenarioError
        If there is no pool, pools have other intervals, or an argument is invalid.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> hours = {"slot_start": datetime(2026, 11, 2, tzinfo=UTC), "interval_hours": 1, "tenants": ["ads"]}
    >>> hours["change_gpu_hours"] = 0.05
    >>> pools = {
    ...     "old": PlanProblem("A100-40GB", 4, 4, profiles=["3g.20gb"], demand=[[[1, 2, 4]]], **hours),
    ...     "new": PlanProblem("H100-80GB-SXM5", 4, 4, profiles=["gpu"], demand=[[[1, 1, 2]]], **hours),
    ... }
    >>> found = plan_fleet(pools, gap_target=0)
    >>> found.status, found.objective, verify_fleet(found, pools)
    ('optimal', 8.05, [])
    """
    _check_same_slots(pools)
    started = time.perf_counter()
    limits: dict[str, Any] = {"gap_target": DEFAULT_OPTIMALITY_GAP_TARGET, **how}
    method, calendars = limits.pop("method", "auto"), limits.pop("calendars", 2)
    if limits.get("time_limit_s") is None and limits.get("work_limit") is None:
        limits["work_limit"] = DEFAULT_WORK_LIMIT_UNITS * len(pools)
    effort = SearchEffort.begin(**limits)

    plans = {}
    for position, (name, problem) in enumerate(pools.items()):
        pool_effort = effort.with_fraction(1 / (len(pools) - position))
        plans[name] = plan_within_effort(problem, method, calendars, pool_effort)
    return FleetPlan(plans, time.perf_counter() - started)


def verify_fleet(fleet: FleetPlan, pools: Mapping[str, PlanProblem]) -> list[str]:
    """List everything that is wrong with the plans of a fleet, GPU pool by pool.

    Parameters
    ----------
    fleet : FleetPlan
        The plans.
    pools : mapping of str to PlanProblem
        The problems.

    Returns
    -------
    list of str
        Faults; empty if all is right.
    """
    if set(fleet.plans) != set(pools):
        return [f"pools: the plan has {sorted(fleet.plans)}, the fleet {sorted(pools)}"]
    return [f"{name}: {fault}" for name, plan in fleet.plans.items() for fault in verify(plan, pools[name])]


def fleet_to_json(fleet: FleetPlan, pools: Mapping[str, PlanProblem]) -> str:
    """Write the plans of a fleet with their problems as JSON; the same input gives the same bytes.

    Parameters
    ----------
    fleet : FleetPlan
        The plans.
    pools : mapping of str to PlanProblem
        The problems.
    """
    parts = {name: {"plan": plan.to_dict(), "problem": pools[name].to_dict()} for name, plan in fleet.plans.items()}
    return to_json({"format": FLEET_FILE_FORMAT, "pools": parts})


def fleet_from_json(text: str) -> dict[str, tuple[Plan, PlanProblem]]:
    """Read plans and problems by GPU pool from JSON of :func:`fleet_to_json`, or of ``plan_to_json`` (one pool).

    Raises
    ------
    ScenarioError
        If the text is neither.
    GeometryError
        If a GPU model, profile or layout does not exist.
    """
    values = load_json(text, source="plan file", error=ScenarioError)
    if not isinstance(values, dict) or values.get("format") != FLEET_FILE_FORMAT:
        pool_plan, problem = plan_from_plain(values)
        return {problem.gpu_model.name: (pool_plan, problem)}
    pools = values.get("pools")
    if set(values) != {"format", "pools"} or not isinstance(pools, dict):
        got = examples(sorted(values))
        raise ScenarioError("fleet plan file", "'format' and 'pools'", got, "Plan again.")
    files = {
        name: {"format": PLAN_FILE_FORMAT, **pool} if isinstance(pool, dict) else pool for name, pool in pools.items()
    }
    plans = {name: plan_from_plain(file) for name, file in files.items()}
    _check_same_slots({name: problem for name, (_, problem) in plans.items()})
    return plans


def _check_same_slots(pools: Mapping[str, PlanProblem]) -> None:
    """Raise a ScenarioError unless all GPU pools have the same intervals."""
    slots = {(p.slot_start, p.interval_hours, p.n_slots) for p in pools.values()}
    if len(slots) != 1:
        got = "no pool" if not pools else f"{len(slots)} different ones"
        raise ScenarioError("fleet", "pools over the same intervals", got, "Give all the same.")


def read_problems(path: str | Path) -> dict[str, PlanProblem]:
    """Read the planning problem of a file, or of each GPU pool of a fleet.

    Parameters
    ----------
    path : str or Path
        JSON: the values of ``PlanProblem.to_dict`` (fields with a default may be missing, and a GPU model may be a
        name), a file of ``plan_to_json`` or ``fleet_to_json``, or an object with ``pools``: a problem for each name.

    Returns
    -------
    dict of str to PlanProblem
        By pool; a single pool has the name of its GPU model.

    Raises
    ------
    ScenarioError
        If the file is none of these, or a value is invalid.
    GeometryError
        If a GPU model, profile or layout does not exist.
    """
    text = read_text(path, error=ScenarioError, kind="problem", limit_bytes=MAX_PLAN_FILE_BYTES)
    values = load_json(text, source=str(path), error=ScenarioError)
    if not isinstance(values, dict):
        raise ScenarioError(str(path), _EXPECTED_FLEET_FILE_TEXT, type(values).__name__, "Check the file.")
    pools = values.get("pools")
    if pools is None:
        problem = PlanProblem.from_dict(_unwrap_problem(values))
        return {problem.gpu_model.name: problem}
    if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
        raise ScenarioError(str(path), _EXPECTED_FLEET_FILE_TEXT, "'pools' of another kind", "Fix 'pools'.")
    return {str(name): PlanProblem.from_dict(_unwrap_problem(pool)) for name, pool in pools.items()}


def _unwrap_problem(values: dict[str, Any]) -> dict[str, Any]:
    """Return the problem inside the values of a plan file, or the values themselves."""
    inner = values.get("problem")
    return inner if isinstance(inner, dict) else values


BASE_VARIANT_NAME = "as it stands"
"""Name of the first row of :func:`price_of_limits`: the problem without changes."""

_COMPARISON_SCHEMA = {
    "method": pl.String,
    **dict.fromkeys(("objective", "bound", "gap"), pl.Float64),
    "changes": pl.Int64,
    **dict.fromkeys(("gpu_hours_on", "unmet_gpu_hours"), pl.Float64),
    "distinct": pl.Int64,
}
"""Columns and dtypes of the table of :func:`compare_plans`."""
_LIMIT_PRICE_SCHEMA = {
    "variant": pl.String,
    **dict.fromkeys(("objective", "bound", "extra_low", "extra", "extra_high"), pl.Float64),
    "explanation": pl.String,
}
"""Columns and dtypes of the table of :func:`price_of_limits`."""
_COMPARABLE_PROBLEM_FIELDS = (
    "slot_start",
    "interval_hours",
    "tenants",
    "profiles",
    "on_price",
    "unmet_price",
    "change_gpu_hours",
    "prices",
)
"""Fields of a problem that must be equal for the costs of two plans to be comparable."""


def compare_plans(
    problem: PlanProblem,
    methods: Sequence[str] = ("static", "calendar", "auto"),
    *,
    calendars: Sequence[int] = (2,),
    reused_plans: Mapping[str, Plan] | None = None,
    **how: Any,  # noqa: ANN401 - arguments of plan
) -> pl.DataFrame:
    """Plan one problem by several methods, and measure every plan against the same lower bound.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    methods : sequence of str
        Methods, see :data:`gpuplanner.planner.plan_search.PLAN_METHODS`.
    calendars : sequence of int
        Most different rows of counts (GPUs with each layout) for the method ``"calendar"``, one plan for each number.
    reused_plans : mapping of str to Plan, optional
        Plans that were made before, by their name in the column ``method``; they are not searched again.
    **how
        Arguments of :func:`~gpuplanner.planner.plan_search.plan`.

    Returns
    -------
    polars.DataFrame
        A row for each method: cost, bound, gap, changes, GPU-hours and different rows of counts.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A100-40GB", 4, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 2, 4, 4]]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> compare_plans(problem, gap_target=0).select("method", "objective", "bound", "changes").rows()
    [('static', 8.0, 6.05, 0), ('calendar (2)', 6.05, 6.05, 1), ('auto', 6.05, 6.05, 1)]
    """
    plans = dict(reused_plans or {})
    for name, choice in _list_method_choices(methods, calendars):
        plans[name] = plans.get(name) or plan(problem, **choice, **how)
    order = [name for name, _ in _list_method_choices(methods, calendars)]
    bounds = [
        method_plan.bound
        for method_plan in plans.values()
        if method_plan.bound is not None and method_plan.method != "static"
    ]
    costs = [method_plan.objective for method_plan in plans.values() if method_plan.objective is not None]
    # A bound may exceed the cost of the best plan by the solver's tolerance.
    bound = min(max(bounds), *costs) if bounds else None
    rows = [(name, *_measure_plan(plans[name], bound)) for name in order]
    return pl.DataFrame(rows, schema=_COMPARISON_SCHEMA, orient="row")


def with_limit(
    problem: PlanProblem,
    *,
    gpus: int | None = None,
    whole_nodes_kept: int | None = None,
    switches_per_day: int | None = None,
) -> PlanProblem:
    """Return the problem with other limits; None keeps a limit.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    gpus : int, optional
        Size of the fleet. Fewer GPUs: the others are out of service in all intervals, so that whatever was on them is
        drained. [GPUs]
    whole_nodes_kept : int, optional
        Nodes that stay full.
    switches_per_day : int, optional
        Most layout changes of one GPU a day.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A100-40GB", 4, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 2, 4]]],
    ...     initial={"gpu": 3, "3g.20gb:2": 1},
    ... )
    >>> smaller = with_limit(problem, gpus=3, switches_per_day=1)
    >>> smaller.gpus, smaller.available, smaller.limits.switches_per_day
    (4, (3, 3, 3), 1)
    """
    new_limits = {"whole_nodes_kept": whole_nodes_kept, "switches_per_day": switches_per_day}
    changed = {name: value for name, value in new_limits.items() if value is not None}
    limits = replace(problem.limits, **changed)  # type: ignore[arg-type]
    return replace(problem, limits=limits, **({} if gpus is None else _resize_fleet(problem, gpus)))


def price_of_limits(
    problem: PlanProblem,
    variants: Mapping[str, PlanProblem],
    *,
    base_plan: Plan | None = None,
    **how: Any,  # noqa: ANN401 - arguments of plan
) -> pl.DataFrame:
    """Plan a problem with its own and with other limits, and compute the extra cost of each.

    Plans need not be optimal, so that the price has a range: a variant costs at least its bound and at most its plan,
    and so does the problem itself. A variant's plan that meets all limits of the problem is a plan of the problem too:
    the problem costs no more.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    variants : mapping of str to PlanProblem
        The problem with other limits, by name.
    base_plan : Plan, optional
        Plan of the problem, if it was made before.
    **how
        Arguments of :func:`~gpuplanner.planner.plan_search.plan`.

    Returns
    -------
    polars.DataFrame
        A row for the problem and for each variant; extra cost as low, planned and high value. [GPU h]

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 4]]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> prices = price_of_limits(problem, {"one GPU": with_limit(problem, gpus=1)}, gap_target=0)
    >>> prices.select("variant", pl.col("objective", "extra_low", "extra_high").round(3)).rows()
    [('as it stands', 3.05, 0.0, 0.0), ('one GPU', 10.571, 7.521, 7.521)]
    """
    for name, variant_problem in variants.items():
        _check_comparable(name, variant_problem, problem)
    base_plan = base_plan or plan(problem, **how)
    plans = {BASE_VARIANT_NAME: base_plan} | {name: plan(variant, **how) for name, variant in variants.items()}
    costs = [p.objective for p in plans.values() if p.objective is not None and not verify(p, problem)]
    plans[BASE_VARIANT_NAME] = base_plan = replace(base_plan, objective=min(costs, default=None))
    rows = [(n, p.objective, p.bound, *_cost_difference(p, base_plan), p.explanation) for n, p in plans.items()]
    return pl.DataFrame(rows, schema=_LIMIT_PRICE_SCHEMA, orient="row")


def _list_method_choices(methods: Sequence[str], calendars: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield row name and arguments of :func:`plan` for each method, ``calendar`` once for each of `calendars`."""
    for method in methods:
        if method == "calendar":
            yield from ((f"calendar ({n})", {"method": method, "calendars": n}) for n in calendars)
        else:
            yield method, {"method": method}


def _measure_plan(measured_plan: Plan, bound: float | None) -> tuple[float | int | None, ...]:
    """Return objective, bound, gap, changes, GPU-hours on and unmet, and distinct rows of counts of a plan."""
    if measured_plan.objective is None:
        return (None, bound, *(None,) * 5)
    gap = None if bound is None else relative_gap(measured_plan.objective, bound)
    distinct = len(np.unique(measured_plan.counts, axis=0))
    hours = (measured_plan.gpu_hours_on, measured_plan.unmet_gpu_hours)
    return (measured_plan.objective, bound, gap, measured_plan.changes, *hours, distinct)


def _cost_difference(variant_plan: Plan, base_plan: Plan) -> tuple[float | None, float | None, float | None]:
    """Return the extra cost of a plan over the base plan: at least, as planned, at most [GPU h]."""
    if (
        variant_plan.objective is None
        or variant_plan.bound is None
        or base_plan.objective is None
        or base_plan.bound is None
    ):
        return (None, None, None)
    if variant_plan is base_plan:
        return (0.0, 0.0, 0.0)
    extra, high = variant_plan.objective - base_plan.objective, variant_plan.objective - base_plan.bound
    return round(variant_plan.bound - base_plan.objective, 9), round(extra, 9), round(high, 9)


def _resize_fleet(problem: PlanProblem, gpus: int) -> dict[str, Any]:
    """Return the fields of a problem that differ with another number of GPUs, by name."""
    n_added = gpus - problem.gpus
    if n_added < 0 and gpus > 0:
        # GPUs that leave are out of service, and not forgotten: draining them costs what it costs in any other plan.
        return {"available": [max(int(have) + n_added, 0) for have in problem.gpus_in_service]}
    n_nodes = -(-gpus // problem.gpus_per_node)
    nodes = None if problem.nodes is None or n_nodes > len(problem.nodes) else problem.nodes[:n_nodes]
    return {"gpus": gpus, "nodes": nodes, "available": problem.available and [n + n_added for n in problem.available]}


def _check_comparable(name: str, variant_problem: PlanProblem, problem: PlanProblem) -> None:
    """Raise a ScenarioError if a variant differs from the problem in more than limits."""
    differences = [
        field for field in _COMPARABLE_PROBLEM_FIELDS if getattr(variant_problem, field) != getattr(problem, field)
    ]
    if not differences and not np.array_equal(variant_problem.admitted_demand, problem.admitted_demand):
        differences = ["demand within quotas"]
    if differences:
        expected = "the intervals, prices and demand within quotas of the problem"
        todo = "Change other limits only: else costs are not comparable."
        raise ScenarioError(f"price of limits, {name!r}", expected, f"another {', '.join(differences)}", todo)
