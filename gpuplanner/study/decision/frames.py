"""A comparison as tables: ways to run the fleet, their hours, and how late every size of job starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import polars as pl

from gpuplanner.study.decision.record import ClassRow, Comparison, FrontierPoint, PolicyRow
from gpuplanner.study.decision.types import TODAY

_TYPES = {"str": pl.String, "int": pl.Int64, "bool": pl.Boolean, "float": pl.Float64}
_OF_CLASSES = {field.name: _TYPES[str(field.type)] for field in fields(ClassRow)}
_OF_POLICIES = {
    field.name: _TYPES[str(field.type).removesuffix(" | None")]
    for field in fields(PolicyRow)
    if field.name not in ("busy_gpu_hours", "knobs", "by_class")
}


def policy_table(found: Comparison) -> pl.DataFrame:
    """A row for today's fleet and each way that was compared: what it means, costs and makes jobs late."""
    rows = [tuple(getattr(row, name) for name in _OF_POLICIES) for row in found.rows]
    return _frame(rows, list(_OF_POLICIES))


def class_table(found: Comparison) -> pl.DataFrame:
    """A row for each way and size class: how late its jobs start, and may."""
    rows = [
        (row.policy, *(getattr(part, name) for name in _OF_CLASSES))
        for row in found.rows
        for part in row.by_class
    ]
    return _frame(rows, ("policy", *_OF_CLASSES))


def hours_table(found: Comparison) -> pl.DataFrame:
    """Where the hours of a week that GPUs are on went: ``busy_gpu_hours`` with jobs, ``idle_gpu_hours`` the rest."""
    rows = []
    for row in found.rows:
        if row.gpu_hours is not None:
            busy = min(row.busy_gpu_hours or 0.0, row.gpu_hours)
            rows.append((row.policy, row.gpu_hours, busy, row.gpu_hours - busy))
    return _frame(rows, ("policy", "gpu_hours", "busy_gpu_hours", "idle_gpu_hours"))


def frontier_frame(found: Comparison, pinned: Comparison | None = None) -> pl.DataFrame:
    """Points of a comparison: ``policy, gpu_hours, added_minutes, kind``, today's fleet first."""
    points: list[tuple[PolicyRow | FrontierPoint, str]] = []
    points += [(row, "today" if row.policy == TODAY else "tuned") for row in found.rows]
    points += [(point, "setting") for point in found.frontier if point.policy != TODAY]
    points += [(row, "pinned") for row in (() if pinned is None else pinned.rows)]
    rows = [(one.policy, one.gpu_hours, one.added_minutes, kind) for one, kind in points]
    return _frame(rows, ("policy", "gpu_hours", "added_minutes", "kind")).drop_nulls("gpu_hours")


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


def _frame(rows: Sequence[tuple[object, ...]], names: Sequence[str]) -> pl.DataFrame:
    """The columns have their types with no rows as well, and where none of them has a value."""
    kinds = dict.fromkeys(names, pl.Float64) | {"kind": pl.String} | _OF_CLASSES | _OF_POLICIES
    return pl.DataFrame(rows, schema={name: kinds[name] for name in names}, orient="row")
