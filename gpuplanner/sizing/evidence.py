"""What jobs were seen to need: from their samples, their accounting records, and others of their class."""

from __future__ import annotations

import polars as pl

from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import Samples
from gpuplanner.schemas.check import conform, empty
from gpuplanner.sizing.requests import canonical_names

ACTIVITY_QUANTILE = 0.95
"""Quantile of the minute means of SM activity that a job is sized for."""
CLASS_QUANTILE = 0.95
"""Quantile of the needs of a class that stands for a job of which nothing was observed."""


def first_text(*cases: tuple[pl.Expr, pl.Expr | str]) -> pl.Expr:
    """The text that stands beside the first condition that holds; null where none does."""
    texts = ((holds, pl.lit(text) if isinstance(text, str) else text) for holds, text in cases)
    return pl.coalesce(pl.when(holds).then(text) for holds, text in texts)


def samples_of_runs(jobs: pl.DataFrame, samples: pl.DataFrame | None, *, where: str) -> pl.DataFrame:
    """Samples of jobs while they held their GPUs, each with the ``row`` of its job.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``row``, ``job_id``, ``start_time`` and ``end_time``, which is null while a job runs.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    where : str
        What errors name the table.
    """
    table = conform(samples, Samples, where=where) if samples is not None else empty(Samples)
    held = (pl.col("time") >= pl.col("start_time")) & (pl.col("time") < pl.col("end_time")).fill_null(True)
    return table.join(jobs.select("row", "job_id", "start_time", "end_time"), on="job_id").filter(held)


def add_own_needs(
    jobs: pl.DataFrame,
    samples: pl.DataFrame | None,
    board: GpuModel,
    *,
    headroom: float,
    minimum_minutes: int,
) -> pl.DataFrame:
    """Add what the jobs were observed to use, and that with headroom."""
    seen = pl.col("minutes") >= minimum_minutes
    whole = float(board.sms_of(WHOLE_GPU))
    # A job that names a slice may yet hold a whole GPU, if it is not known to have held instances.
    held = (
        pl.when("cut")
        .then("asked_sms")
        .when(pl.col("gpus") >= 1)
        .then(whole)
        .when(pl.col("profile_requested").is_null() & pl.col("gpus").is_not_null())
        .then(pl.col("gpus") * whole)
        .otherwise("asked_sms")
    )
    sampled = pl.when(seen).then(pl.coalesce("sampled_sms", held) * pl.col("activity"))
    recorded = held * pl.col("sm_activity")
    with_headroom = held * (pl.col("sm_activity") * (1 + headroom)).clip(upper_bound=1.0)
    peak = pl.max_horizontal("memory_peak_gib", pl.when(seen).then("sampled_memory_gib"))
    return (
        jobs.join(_telemetry(jobs, samples, board), on="row", how="left", maintain_order="left")
        .with_columns(
            pl.when("sizable").then(value).alias(name)
            for name, value in {
                "minutes": pl.when(seen).then("minutes"),
                "used_sms": pl.coalesce(sampled, recorded),
                "own_sms": pl.coalesce(sampled, with_headroom),
                "used_memory_gib": peak,
                "own_memory_gib": peak * (1 + headroom),
            }.items()
        )
        .drop("sampled_sms", "activity", "sampled_memory_gib")
    )


def add_class_needs(jobs: pl.DataFrame, *, minimum_jobs: int) -> pl.DataFrame:
    """Add what jobs of the same tenant and class need, else of the same class, to jobs not observed."""
    needs = ("sms", "memory_gib")
    observed = jobs.filter(pl.all_horizontal(pl.col(f"own_{need}").is_not_null() for need in needs))
    blind = pl.col("sizable") & pl.all_horizontal(pl.col(f"own_{need}").is_null() for need in needs)
    levels = {"near": ["tenant", "job_class"], "far": ["job_class"]}
    for level, keys in levels.items():
        upper = [
            pl.col(f"own_{need}")
            .quantile(CLASS_QUANTILE, interpolation="equiprobable")
            .alias(f"{level}_{need}")
            for need in needs
        ]
        group = observed.group_by(keys).agg(*upper, pl.len().alias(f"{level}_jobs"))
        enough = group.filter(pl.col(f"{level}_jobs") >= minimum_jobs)
        jobs = jobs.join(enough, on=keys, how="left", maintain_order="left")
    found = [f"{level}_{name}" for level in levels for name in (*needs, "jobs")]
    return jobs.with_columns(
        pl.when(blind).then(pl.coalesce(f"near_{name}", f"far_{name}")).alias(f"class_{name}")
        for name in (*needs, "jobs")
    ).drop(found)


def _telemetry(jobs: pl.DataFrame, samples: pl.DataFrame | None, board: GpuModel) -> pl.DataFrame:
    """By job: minutes with activity, their 95 % quantile, peak memory, SMs of the sampled instance."""
    held = samples_of_runs(jobs, samples, where="samples")
    names = canonical_names(held["profile"], board)
    sms = {name: float(board.sms_of(known)) for name, known in names.items()}
    minutes = held.group_by("row", "node", "gpu", "instance", pl.col("time").dt.truncate("1m")).agg(
        pl.col("sm_activity").mean(),
        pl.col("memory_used_gib").max(),
        sms=pl.col("profile").replace_strict(sms, default=None, return_dtype=pl.Float64).max(),
    )
    return minutes.group_by("row").agg(
        minutes=pl.col("sm_activity").count(),
        activity=pl.col("sm_activity").quantile(ACTIVITY_QUANTILE, interpolation="equiprobable"),
        sampled_memory_gib=pl.col("memory_used_gib").max(),
        sampled_sms=pl.col("sms").max(),
    )
