"""A comparison at equal service as tables: policies, and the waits of every size of job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from gpuplanner.study.equal_service.contenders import MEANINGS

_OF_POLICIES = (
    "gpu_hours", "gpu_hours_low", "gpu_hours_high", "gpu_kwh", "wait_mean_min", "wait_quantile_min", "wait_longest_min",
    "completion_mean_min", "changes", "changes_given_up", "never_started", "meets_target",
)  # fmt: skip
_OF_HOURS = ("gpu_hours", "busy_gpu_hours", "idle_gpu_hours", "reconfiguring_gpu_hours")
_OF_CLASSES = (
    "size_class", "jobs", "wait_mean_min", "wait_p50_min", "wait_quantile_min", "wait_p99_min", "target_min",
)  # fmt: skip

_DRAWN = (
    ("gpu_hours", "GPU-hours on, a week", "GPU h"),
    ("wait_mean_min", "mean wait", "min"),
    ("wait_quantile_min", "wait at the target's quantile", "min"),
    ("completion_mean_min", "mean completion time", "min"),
)


def policy_table(found: Mapping[str, Any]) -> pl.DataFrame:
    """A row for today's fleet and each policy: what it means, costs and makes jobs wait.

    Parameters
    ----------
    found : mapping
        :meth:`gpuplanner.study.equal_service.comparison.EqualService.to_dict`.
    """
    rows = [
        {"policy": row["policy"], "meaning": MEANINGS[row["policy"]]}
        | {name: row[name] for name in _OF_POLICIES}
        for row in rows_of(found)
    ]
    # Two equal weeks, or one, have no interval: the columns stay.
    return pl.DataFrame(rows, schema_overrides={"gpu_hours_low": pl.Float64, "gpu_hours_high": pl.Float64})


def hours_table(found: Mapping[str, Any]) -> pl.DataFrame:
    """Where the paid hours of a week went: a row for today's fleet and each policy.

    ``busy_gpu_hours`` are those of the slices held, ``free_beside_jobs_gpu_hours`` those of free slices of GPUs with a
    job, ``idle_gpu_hours`` those of GPUs without one; with ``reconfiguring_gpu_hours`` they sum to ``gpu_hours``.
    ``stranded_gpu_hours`` are, of what was free, instances of profiles that no waiting job asked for.
    """
    rows = []
    for row in rows_of(found):
        known = {name: row[name] for name in _OF_HOURS}
        beside = known["gpu_hours"] - sum(known[name] for name in _OF_HOURS[1:])
        stranded = {"stranded_gpu_hours": row["stranded_gpu_hours"]}
        rows.append(
            {"policy": row["policy"], **known, "free_beside_jobs_gpu_hours": max(beside, 0.0), **stranded}
        )
    return pl.DataFrame(rows)


def class_table(found: Mapping[str, Any]) -> pl.DataFrame:
    """A row for each policy and size class."""
    return pl.DataFrame(
        [
            {"policy": row["policy"]} | {name: part[name] for name in _OF_CLASSES}
            for row in rows_of(found)
            for part in row["by_class"]
        ]
    )


def policy_frame(found: Mapping[str, Any]) -> pl.DataFrame:
    """``policy, metric, unit, mean, low, high`` of today's fleet and every policy; no interval: its mean."""
    rows = [
        (
            row["policy"],
            metric,
            unit,
            *(row.get(f"{name}{side}") or row[name] for side in ("", "_low", "_high")),
        )
        for row in rows_of(found)
        for name, metric, unit in _DRAWN
    ]
    schema = dict.fromkeys(("policy", "metric", "unit"), pl.String)
    return pl.DataFrame(
        rows, schema=schema | dict.fromkeys(("mean", "low", "high"), pl.Float64), orient="row"
    )


def rows_of(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Today's fleet and the policies, in this order; nothing where nothing could be compared."""
    return [found["today"], *found["policies"]] if found["today"] else []
