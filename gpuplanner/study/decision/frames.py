"""A comparison as tables: ways to run the fleet, their hours, and how late every size of job starts."""

from __future__ import annotations

from dataclasses import fields

import polars as pl

from gpuplanner.study.decision.compare import BY_WAITS
from gpuplanner.study.decision.record import Comparison, PolicyRow
from gpuplanner.study.decision.types import TODAY, CurvePoint, SizeService

_TYPES = {"str": pl.String, "int": pl.Int64, "bool": pl.Boolean, "float": pl.Float64}
_OF_POLICIES = {
    field.name: _TYPES[str(field.type).removesuffix(" | None")]
    for field in fields(PolicyRow)
    if field.name not in ("busy_gpu_hours", "knobs")
}


def policy_table(found: Comparison) -> pl.DataFrame:
    """A row for today's fleet and each way that was compared: what it means, costs and makes jobs late."""
    rows = [tuple(getattr(row, name) for name in _OF_POLICIES) for row in found.rows]
    return pl.DataFrame(rows, schema=_OF_POLICIES, orient="row")


def policies_met(found: Comparison) -> str:
    """How many of the policies that the actuator can perform meet the limit, today's aside."""
    rows = [row for row in found.policies if row.performable]
    return f"{sum(row.meets_target for row in rows)} of {len(rows)} policies meet the limit"


def service_table(found: Comparison) -> pl.DataFrame:
    """A row for each job size: its queue waits, observed, simulated today and as recommended."""
    return pl.DataFrame(found.decision.service, schema=[field.name for field in fields(SizeService)])


def curve_table(found: Comparison) -> pl.DataFrame:
    """The wait curve: a row for each layout, number of GPUs and job size."""
    return pl.DataFrame(found.wait_curve, schema=[field.name for field in fields(CurvePoint)])


def frontier_frame(found: Comparison, pinned: Comparison | None = None) -> pl.DataFrame:
    """Points of a comparison: ``policy, gpu_hours, added_minutes, kind``, today's fleet first."""
    tuned = [(row, "today" if row.policy == TODAY else "tuned") for row in found.rows]
    rows = [(row.policy, row.gpu_hours_promised, row.added_minutes, kind) for row, kind in tuned]
    settings = [point for point in found.frontier if point.policy != TODAY]
    rows += [(point.policy, point.gpu_hours, point.added_minutes, "setting") for point in settings]
    pinned_rows = () if pinned is None else pinned.rows
    rows += [(row.policy, row.gpu_hours_promised, row.added_minutes, "pinned") for row in pinned_rows]
    schema = {"policy": pl.String, "gpu_hours": pl.Float64, "added_minutes": pl.Float64, "kind": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").drop_nulls("gpu_hours")


def target_in_words(found: Comparison) -> str:
    """The service that ways are compared at.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.decision.sentences import no_decision
    >>> target_in_words(Comparison(no_decision(Scenario(), "no job states when it ran"), 0.95, 10.0))
    "95% of the jobs of each size start at most 10 min later than on today's fleet."
    """
    share, minutes = f"{found.quantile:.0%}", f"{found.minutes:g} min"
    return f"{share} of the jobs of each size start at most {minutes} later than on today's fleet."


def limit_in_words(found: Comparison) -> str:
    """The rule by which policies meet the limit.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.decision.sentences import no_decision
    >>> limit_in_words(Comparison(no_decision(Scenario(), "no job states when it ran"), 0.95, 10.0))
    'A policy meets the limit if it adds at most 10 min in the evaluation window and every job starts.'
    """
    most = f"{found.minutes:g} min"
    fitted = (
        f"A policy meets the limit if it adds at most {most} in the evaluation window and every job starts."
    )
    by_size = any(row.policy in BY_WAITS and row.gpu_hours is not None for row in found.policies)
    sized = (
        " Policies that are not fitted meet it if each job size is within its own limit (Why jobs waited)."
    )
    return f"{fitted}{sized}" if by_size else fitted
