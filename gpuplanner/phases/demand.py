"""Phases of many jobs, and what each class of jobs demands in each of its phases."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.inbox.telemetry.holders import (SHARED)
from gpuplanner.phases.segments import find_phases
from gpuplanner.schemas.domain import Samples
from gpuplanner.schemas.check import conform

DEVICE = ("node", "gpu", "instance")
NEED_QUANTILE = 0.95
"""Quantile of the minute means of SM activity that a phase is sized for, as whole jobs are."""
SPREAD = ("share", "sm_activity", "memory_peak_gib", "power_w", "gpus")
"""Columns of :func:`phases_of_jobs` whose median and quartiles :func:`demand_by_class` gives."""


def phases_of_jobs(samples: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Find the phases of every job that was sampled, and what it used in each.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``; rows without a job, or with several that share the device, are left out.
    jobs : polars.DataFrame
        ``job_id``, ``job_class`` and ``gpus`` (held), one attempt a job; ``instances`` where jobs hold some.

    Returns
    -------
    polars.DataFrame
        ``job_id``, ``job_class`` (null if the job is not in `jobs`), ``phase`` (from 1), ``label``, ``start``,
        ``end``, ``run_s`` [s], ``share`` of the job's time, ``gpus`` (held by the job, of whole GPUs at least
        those that were sampled), ``devices`` (sampled), ``profile`` of the instance held (null for whole GPUs), means
        ``sm_activity`` [0-1], ``memory_used_gib`` [GiB] and ``power_w`` [W], ``sm_need`` (95 % quantile of the
        minute means of a device) and ``memory_peak_gib`` (of the fullest device). Sorted by job and phase.

    Raises
    ------
    SchemaError
        If no sample belongs to a job.
    MissingDependencyError
        If ruptures is not installed.

    Examples
    --------
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> phases_of_jobs(samples, jobs)["label"].to_list()
    ['setup', 'steady', 'decay']
    """
    # The activity of a device that jobs share is of no one of them.
    shared = (pl.col("job_evidence") == SHARED).fill_null(value=False)
    table = conform(samples, Samples, where="phases: samples").filter(pl.col("job_id").is_not_null(), ~shared)
    if table.is_empty():
        text = message(
            "phases: samples",
            "samples with a job_id",
            "none",
            "Match samples to jobs first, with gpuplanner.inbox.telemetry.match_jobs.",
        )
        raise SchemaError(text)
    found = [
        _used(mine, find_phases(mine)).with_columns(job_id=pl.lit(job))
        for (job,), mine in table.sort("job_id", "time").group_by("job_id", maintain_order=True)
        if any(mine[name].count() for name in ("sm_activity", "memory_used_gib", "power_w"))
    ]
    cut = pl.col("instances").is_not_null() if "instances" in jobs.columns else pl.lit(value=False)
    known = jobs.select("job_id", "job_class", held=pl.col("gpus").cast(pl.Float64), cut=cut).unique("job_id")
    sampled = pl.max_horizontal("held", pl.col("devices").cast(pl.Float64))
    return (
        pl.concat(found)
        .join(known, on="job_id", how="left")
        .with_columns(
            gpus=pl.when("cut").then("held").otherwise(sampled),
            share=pl.col("run_s") / pl.col("run_s").sum().over("job_id"),
        )
        .select(
            "job_id",
            "job_class",
            "phase",
            "label",
            "start",
            "end",
            "run_s",
            "share",
            "gpus",
            "devices",
            "profile",
            "sm_activity",
            "memory_used_gib",
            "power_w",
            "sm_need",
            "memory_peak_gib",
        )
        .sort("job_id", "phase")
    )


def demand_by_class(phases: pl.DataFrame) -> pl.DataFrame:
    """Demand of each class of jobs in each of its phases, with spread and count.

    Phases of one label in one job count once: shares are added, the rest is weighted by time.

    Parameters
    ----------
    phases : polars.DataFrame
        From :func:`phases_of_jobs`.

    Returns
    -------
    polars.DataFrame
        ``job_class``, ``label``, ``jobs`` (that have such a phase), ``jobs_of_class``, and of each of
        :data:`SPREAD` the median over these jobs and the quartiles, ``_q25`` and ``_q75``. Classes by name,
        labels in the order in which they usually come.

    Examples
    --------
    >>> rows = {"job_id": ["1", "1", "2"], "job_class": "tuning", "label": ["setup", "steady", "steady"]}
    >>> rows |= {"run_s": [60.0, 180.0, 300.0], "share": [0.25, 0.75, 1.0], "gpus": 1.0}
    >>> rows |= {"sm_activity": [0.0, 0.8, 0.6], "memory_peak_gib": 40.0, "power_w": 500.0, "phase": [1, 2, 1]}
    >>> demand_by_class(pl.DataFrame(rows)).select("label", "jobs", "jobs_of_class", "share").rows()
    [('setup', 1, 2, 0.25), ('steady', 2, 2, 0.875)]
    """
    weight = pl.col("run_s") / pl.col("run_s").sum()
    begins = pl.col("share").cum_sum().over("job_id", order_by="phase") - pl.col("share")
    per_job = (
        phases.with_columns(begins=begins)
        .group_by("job_class", "label", "job_id")
        .agg(
            pl.col("share").sum(),
            *((pl.col(name) * weight).sum().alias(name) for name in ("sm_activity", "power_w")),
            *(pl.col(name).max() for name in ("memory_peak_gib", "gpus")),
            pl.col("begins").min(),
        )
    )
    of_class = phases.group_by("job_class").agg(jobs_of_class=pl.col("job_id").n_unique())
    figures = [
        pl.col(name).quantile(level, interpolation="linear").alias(f"{name}{suffix}")
        for name in SPREAD
        for level, suffix in ((0.5, ""), (0.25, "_q25"), (0.75, "_q75"))
    ]
    return (
        per_job.group_by("job_class", "label")
        .agg(*figures, jobs=pl.len(), begins=pl.col("begins").median())
        .join(of_class, on="job_class", nulls_equal=True)
        .sort("job_class", "begins", "label")
        .select("job_class", "label", "jobs", "jobs_of_class", *(expr.meta.output_name() for expr in figures))
    )


def _used(samples: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """What the devices of one job used in each phase."""
    minutes = (
        samples.with_columns(at=pl.col("time"))
        .sort("at")
        .join_asof(phases.select("phase", "start"), left_on="at", right_on="start")
        .with_columns(pl.col("phase").fill_null(1))
        .group_by("phase", *DEVICE, pl.col("time").dt.truncate("1m"))
        .agg(pl.col("sm_activity").mean(), pl.col("memory_used_gib").max(), pl.col("profile").first())
    )
    needs = minutes.group_by("phase").agg(
        sm_need=pl.col("sm_activity").quantile(NEED_QUANTILE, interpolation="equiprobable"),
        memory_peak_gib=pl.col("memory_used_gib").max(),
        profile=pl.col("profile").drop_nulls().first(),
        devices=pl.struct(DEVICE).n_unique().cast(pl.Int64),
    )
    run_s = (pl.col("end") - pl.col("start")).dt.total_microseconds() / 1e6
    return phases.with_columns(run_s=run_s).join(needs, on="phase", how="left", maintain_order="left")
