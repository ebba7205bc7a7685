"""What not changing costs, and what a limit costs: plans of one problem, and of the problem with other limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.planner.contract.plain_values import refuse
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.methods.search import plan
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.solving.effort import relative_gap

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
    "slot_hours",
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
    return (
        found.objective, bound, gap, found.changes, found.gpu_hours_on, found.unmet_gpu_hours, distinct,
    )  # fmt: skip


def _difference(found: Plan, base: Plan) -> tuple[float | None, float | None, float | None]:
    """What a plan costs more than another one: at least, as planned, at most."""
    if found.objective is None or found.bound is None or base.objective is None or base.bound is None:
        return (None, None, None)
    if found is base:
        return (0.0, 0.0, 0.0)
    ends = (
        found.bound - base.objective, found.objective - base.objective, found.objective - base.bound,
    )  # fmt: skip
    low, extra, high = (round(end, 9) for end in ends)
    return low, extra, high


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
        refuse(
            f"price of limits, {name!r}",
            "the slots, prices and demand within quotas of the problem as it stands",
            f"another {', '.join(other)}",
            "Change other limits only: costs could not be compared.",
        )
