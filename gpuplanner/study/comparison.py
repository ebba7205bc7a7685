"""The comparison of policies in the words and units that people read."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from gpuplanner.study.future.proof import policies_where
from gpuplanner.study.study import Study

SHOWN = {
    "mean_queueing_delay_s": ("mean wait", "min", 60.0),
    "p95_queueing_delay_s": ("95 % of jobs wait less than", "min", 60.0),
    "mean_jct_s": ("mean completion time", "h", 3600.0),
    "makespan_s": ("makespan", "h", 3600.0),
    "provisioned_gpu_hours": ("GPU-hours switched on", "GPU h", 1.0),
    "activity_provisioned": ("SM activity of GPUs that are on", "%", 0.01),
    "utilisation_provisioned": ("slices held, of those provided", "%", 0.01),
    "utilisation_server": ("slices held, of the whole fleet", "%", 0.01),
    "reconfigurations": ("layout changes", "count", 1.0),
}
"""Measures that are shown: what they are called, their unit, and what they are divided by."""


HELD = {"utilisation_provisioned", "utilisation_server"}
"""Measures of slices; without slices they are measures of GPUs."""
OF_LAYOUTS = {"reconfigurations"}
"""Measures that say nothing where no board is cut."""


def policy_names(study: Study) -> dict[str, str]:
    """Policies of a study and what they are called, in the order in which they are shown."""
    policies = policies_where(
        can_be_cut=study.headline["board_has_mig"], is_cut=study.headline["cut_gpus"] > 0
    )
    there = study.provenance["policies"]
    return {policy.name: policy.called for policy in policies if policy.name in there}


def policy_frame(study: Study, measures: Iterable[str] = tuple(SHOWN)) -> pl.DataFrame:
    """Measures of every policy with their intervals.

    Parameters
    ----------
    study : Study
        Any study.
    measures : iterable of str
        Keys of :data:`SHOWN`.

    Returns
    -------
    polars.DataFrame
        ``policy, metric, unit, mean, low, high``, as :func:`gpuplanner.plot.plot_policies` reads it. Measures that
        no policy has, such as the activity of GPUs that nobody measured, are left out.
    """
    rows = []
    cut = study.headline["board_has_mig"]
    table = study.tables["policies"]
    known = set(table.drop_nulls("mean")["measure"])
    for policy, name in policy_names(study).items():
        mine = table.filter(pl.col("policy") == policy)
        for measure in measures:
            if measure not in known or (measure in OF_LAYOUTS and not cut):
                continue
            metric, unit, divisor = SHOWN[measure]
            if measure in HELD and not cut:
                metric = metric.replace("slices", "GPUs")
            for row in mine.filter(pl.col("measure") == measure).iter_rows(named=True):
                sides = [row[side] for side in ("mean", "low", "high")]
                rows.append([name, metric, unit, *(None if x is None else x / divisor for x in sides)])
    schema = {"policy": pl.String, "metric": pl.String, "unit": pl.String}
    return pl.DataFrame(
        rows, schema=schema | dict.fromkeys(("mean", "low", "high"), pl.Float64), orient="row"
    )


def savings_steps(study: Study) -> pl.DataFrame:
    """GPU-hours a week after each step from the baseline to the plan.

    Returns
    -------
    polars.DataFrame
        ``step, gpu_hours, low, high``, as :func:`gpuplanner.plot.plot_savings` reads it.
    """
    table = study.tables["savings"]
    base = float(table["gpu_hours"][0])
    return table.select(
        step=pl.col("lever").replace({"baseline": "today's fleet"}),
        gpu_hours="gpu_hours",
        low=base - pl.col("saved_total_gpu_hours_high"),
        high=base - pl.col("saved_total_gpu_hours_low"),
    )
