"""Plans of several pools, and what a limit costs.

A request that names a profile of one pool, as a Slurm ``gres`` type or a node selector does, is served there, and
quotas are counted by tenant and pool, as Kueue counts them by flavor. So a fleet is the sum of its pools: the sum of
their bounds is a bound, and the sum of best plans is a best plan.
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
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.serialization import load_json, read_text, to_json
from gpuplanner.planner.layout_plan import FORMAT as PLAN_FORMAT
from gpuplanner.planner.layout_plan import LARGEST_FILE, Plan, plan_from_plain
from gpuplanner.planner.linear_model import WORK_LIMIT, Effort, relative_gap
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import GAP_TARGET, SearchArguments, plan, planned_within
from gpuplanner.planner.plan_verification import verify

FORMAT = "gpuplanner.fleet-plan/3"

_EXPECTED = "a JSON object: a problem, a plan file, or 'pools' with a problem for each name"


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """Plans of all pools, and their sums.

    Parameters
    ----------
    plans : mapping of str to Plan
        By pool.
    seconds : float
        Time that the search took [s].
    """

    plans: Mapping[str, Plan]
    seconds: float

    @property
    def found(self) -> bool:
        """Whether there are counts to act on in every pool."""
        return all(plan.found for plan in self.plans.values())

    @property
    def objective(self) -> float | None:
        """Cost of all pools; None unless every pool has a plan."""
        return sum(plan.objective or 0.0 for plan in self.plans.values()) if self.found else None

    @property
    def bound(self) -> float | None:
        """What no fleet plan undercuts; None unless every pool has a plan."""
        return sum(plan.bound or 0.0 for plan in self.plans.values()) if self.found else None

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective; None unless every pool has a plan."""
        if self.objective is None or self.bound is None:
            return None
        return relative_gap(self.objective, self.bound)

    @property
    def status(self) -> str:
        """The weakest status of a pool; see ``Plan.status``."""
        order = ("infeasible", "unknown", "feasible", "optimal")
        return min((plan.status for plan in self.plans.values()), key=order.index)

    @property
    def explanation(self) -> str:
        """Every pool in words."""
        return "\n".join(f"{name}: {plan.explanation}" for name, plan in self.plans.items())


def plan_fleet(pools: Mapping[str, PlanProblem], **how: Unpack[SearchArguments]) -> FleetPlan:
    """Plan every pool of a fleet, one after the other, each with an equal part of the work, or time, that is left.

    Parameters
    ----------
    pools : mapping of str to PlanProblem
        By name, over the same slots.
    **how
        Arguments of :func:`~gpuplanner.planner.plan_search.plan`; its limits are those of all pools together, and
        without any,
        each pool adds the work of one.

    Returns
    -------
    FleetPlan

    Raises
    ------
    ScenarioError
        If there is no pool, pools have other slots, or an argument makes no sense.

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
    _check(pools)
    began = time.perf_counter()
    limits: dict[str, Any] = {"gap_target": GAP_TARGET, **how}
    method, calendars = limits.pop("method", "auto"), limits.pop("calendars", 2)
    if limits.get("time_limit_s") is None and limits.get("work_limit") is None:
        limits["work_limit"] = WORK_LIMIT * len(pools)
    effort = Effort.begin(**limits)

    plans = {}
    for place, (name, problem) in enumerate(pools.items()):
        part = effort.share(1 / (len(pools) - place))
        plans[name] = planned_within(problem, method, calendars, part)
    return FleetPlan(plans, time.perf_counter() - began)


def verify_fleet(fleet: FleetPlan, pools: Mapping[str, PlanProblem]) -> list[str]:
    """Say everything that is wrong with the plans of a fleet, pool by pool.

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
    """Print the plans with their problems; the same input gives the same bytes."""
    parts = {}
    for name, found in fleet.plans.items():
        parts[name] = {"plan": found.to_dict(), "problem": pools[name].to_dict()}
    return to_json({"format": FORMAT, "pools": parts})


def fleet_from_json(text: str) -> dict[str, tuple[Plan, PlanProblem]]:
    """Read what :func:`fleet_to_json` printed, or the one pool of ``plan_to_json``.

    Raises
    ------
    ScenarioError
        If the text is neither.
    GeometryError
        If it names a board, profile or layout that does not exist.
    """
    values = load_json(text, where="plan file", error=ScenarioError)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found, problem = plan_from_plain(values)
        return {problem.gpu_model.name: (found, problem)}
    pools = values.get("pools")
    if set(values) != {"format", "pools"} or not isinstance(pools, dict):
        got = examples(sorted(values))
        raise ScenarioError("fleet plan file", "'format' and 'pools'", got, "Plan again.")
    plans = {}
    for name, pool in pools.items():
        plans[name] = plan_from_plain({"format": PLAN_FORMAT, **pool} if isinstance(pool, dict) else pool)
    _check({name: problem for name, (_, problem) in plans.items()})
    return plans


def _check(pools: Mapping[str, PlanProblem]) -> None:
    slots = {(p.slot_start, p.interval_hours, p.n_slots) for p in pools.values()}
    if len(slots) != 1:
        got = "no pool" if not pools else f"{len(slots)} different ones"
        raise ScenarioError("fleet", "pools over the same intervals", got, "Give all the same.")


def read_problems(path: str | Path) -> dict[str, PlanProblem]:
    """Read the problem of a file, or of each pool of a fleet.

    Parameters
    ----------
    path : str or Path
        JSON: the values of ``PlanProblem.to_dict`` (what has a default may be left out, and a board may be
        named instead of described), a file that ``plan_to_json`` or ``fleet_to_json`` wrote, or an object
        with ``pools``: a problem for each name.

    Returns
    -------
    dict of str to PlanProblem
        By pool; a single pool bears the name of its board.

    Raises
    ------
    ScenarioError
        If the file is none of these, or a value makes no sense.
    GeometryError
        If it names a board, profile or layout that does not exist.
    """
    text = read_text(path, error=ScenarioError, what="problem", limit_bytes=LARGEST_FILE)
    values = load_json(text, where=str(path), error=ScenarioError)
    if not isinstance(values, dict):
        raise ScenarioError(str(path), _EXPECTED, type(values).__name__, "Check the file.")
    pools = values.get("pools")
    if pools is None:
        found = PlanProblem.from_dict(_problem(values))
        return {found.gpu_model.name: found}
    if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
        raise ScenarioError(str(path), _EXPECTED, "'pools' of another kind", "Fix 'pools'.")
    return {str(name): PlanProblem.from_dict(_problem(pool)) for name, pool in pools.items()}


def _problem(values: dict[str, Any]) -> dict[str, Any]:
    inner = values.get("problem")
    return inner if isinstance(inner, dict) else values


AS_IT_STANDS = "as it stands"
"""Name of the first row of :func:`price_of_limits`."""

_COMPARED = {
    "method": pl.String,
    **dict.fromkeys(("objective", "bound", "gap"), pl.Float64),
    "changes": pl.Int64,
    **dict.fromkeys(("gpu_hours_on", "unmet_gpu_hours"), pl.Float64),
    "distinct": pl.Int64,
}
_PRICED = {
    "variant": pl.String,
    **dict.fromkeys(("objective", "bound", "extra_low", "extra", "extra_high"), pl.Float64),
    "explanation": pl.String,
}
# Costs can be set side by side where these are the same.
_ALIKE = (
    "slot_start",
    "interval_hours",
    "tenants",
    "profiles",
    "on_price",
    "unmet_price",
    "change_gpu_hours",
    "prices",
)


def compare_plans(
    problem: PlanProblem,
    methods: Sequence[str] = ("static", "calendar", "auto"),
    *,
    calendars: Sequence[int] = (2,),
    known: Mapping[str, Plan] | None = None,
    **how: Any,  # noqa: ANN401 - arguments of plan
) -> pl.DataFrame:
    """Plan one problem by several methods, and measure every plan by the same bound.

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
    plans = dict(known or {})
    for name, choice in _named(methods, calendars):
        plans[name] = plans.get(name) or plan(problem, **choice, **how)
    order = [name for name, _ in _named(methods, calendars)]
    bounds = [found.bound for found in plans.values() if found.bound is not None and found.method != "static"]
    costs = [found.objective for found in plans.values() if found.objective is not None]
    # A proof may exceed the cost of the best plan by the solver's tolerance.
    bound = min(max(bounds), *costs) if bounds else None
    rows = [(name, *_measured(plans[name], bound)) for name in order]
    return pl.DataFrame(rows, schema=_COMPARED, orient="row")


def with_limit(
    problem: PlanProblem,
    *,
    gpus: int | None = None,
    whole_nodes_kept: int | None = None,
    switches_per_day: int | None = None,
) -> PlanProblem:
    """Set limits of a problem otherwise; what is None stays as it is.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A100-40GB", 4, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 2, 4]]],
    ...     initial={"gpu": 3, "3g.20gb:2": 1},
    ... )
    >>> smaller = with_limit(problem, gpus=3, switches_per_day=1)
    >>> smaller.gpus, smaller.initial, smaller.limits.switches_per_day
    (3, {'3g.20gb:2': 1, 'gpu': 2}, 1)
    """
    given = {"whole_nodes_kept": whole_nodes_kept, "switches_per_day": switches_per_day}
    changed = {name: value for name, value in given.items() if value is not None}
    limits = replace(problem.limits, **changed)  # type: ignore[arg-type]
    return replace(problem, limits=limits, **({} if gpus is None else _resized(problem, gpus)))


def price_of_limits(
    problem: PlanProblem,
    variants: Mapping[str, PlanProblem],
    *,
    base: Plan | None = None,
    **how: Any,  # noqa: ANN401 - arguments of plan
) -> pl.DataFrame:
    """Plan a problem as it stands and with other limits, and say what each of them costs.

    Neither plan need be the best one, so that the price is known within a range: a variant costs at least
    its bound and at most its plan, and so does the problem as it stands.

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
    for name, variant in variants.items():
        _check_alike(name, variant, problem)
    base = base or plan(problem, **how)
    rows = [(AS_IT_STANDS, base.objective, base.bound, *_difference(base, base), base.explanation)]
    for name, variant in variants.items():
        found = plan(variant, **how)
        rows.append((name, found.objective, found.bound, *_difference(found, base), found.explanation))
    return pl.DataFrame(rows, schema=_PRICED, orient="row")


def _named(methods: Sequence[str], calendars: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    for method in methods:
        if method == "calendar":
            yield from ((f"calendar ({n})", {"method": method, "calendars": n}) for n in calendars)
        else:
            yield method, {"method": method}


def _measured(found: Plan, bound: float | None) -> tuple[float | int | None, ...]:
    if found.objective is None:
        return (None, bound, *(None,) * 5)
    gap = None if bound is None else relative_gap(found.objective, bound)
    distinct = len(np.unique(found.counts, axis=0))
    hours = (found.gpu_hours_on, found.unmet_gpu_hours)
    return (found.objective, bound, gap, found.changes, *hours, distinct)


def _difference(found: Plan, base: Plan) -> tuple[float | None, float | None, float | None]:
    """What a plan costs more than another one: at least, as planned, at most."""
    if found.objective is None or found.bound is None or base.objective is None or base.bound is None:
        return (None, None, None)
    if found is base:
        return (0.0, 0.0, 0.0)
    extra, high = found.objective - base.objective, found.objective - base.bound
    return round(found.bound - base.objective, 9), round(extra, 9), round(high, 9)


def _resized(problem: PlanProblem, gpus: int) -> dict[str, Any]:
    """Fields of a problem with another number of GPUs."""
    needed = -(-gpus // problem.gpus_per_node)
    nodes = None if problem.nodes is None or needed > len(problem.nodes) else problem.nodes[:needed]
    more = gpus - problem.gpus
    available = problem.available and [min(max(have + more, 0), gpus) for have in problem.available]
    initial = _kept(problem.initial, gpus)
    parked = _kept(problem.parked, gpus - sum((initial or {}).values()))
    return {"gpus": gpus, "nodes": nodes, "available": available, "initial": initial, "parked": parked}


def _kept(initial: Mapping[str, int] | None, gpus: int) -> dict[str, int] | None:
    """What is on at the start in a fleet that may be smaller: cut GPUs are kept before whole ones."""
    if initial is None:
        return None
    left, kept = gpus, {}
    for layout in sorted(initial, key=lambda layout: layout == WHOLE_GPU):
        kept[layout] = max(0, min(initial[layout], left))
        left -= kept[layout]
    return kept


def _check_alike(name: str, variant: PlanProblem, problem: PlanProblem) -> None:
    other = [field for field in _ALIKE if getattr(variant, field) != getattr(problem, field)]
    if not other and not np.array_equal(variant.admitted, problem.admitted):
        other = ["demand within quotas"]
    if other:
        expected = "the intervals, prices and demand within quotas of the problem"
        todo = "Change other limits only: else costs are not comparable."
        raise ScenarioError(f"price of limits, {name!r}", expected, f"another {', '.join(other)}", todo)
