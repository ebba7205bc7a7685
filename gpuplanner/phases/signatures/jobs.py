"""Signatures of jobs, of their phases, and of classes of jobs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from gpuplanner.catalog.loader import board_spec
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.phases.signatures.bounds import COUNTERS, FIELDS, Counters, signature
from gpuplanner.phases.signatures.facts import advice, load_thresholds
from gpuplanner.schemas.domain import Samples
from gpuplanner.schemas.check import conform

DEVICE = ("node", "gpu", "instance")


def signatures_of(
    samples: pl.DataFrame,
    board: GpuModel | str,
    *,
    jobs: pl.DataFrame | None = None,
    by: Sequence[str] = ("job_id",),
) -> pl.DataFrame:
    """Name what each job, or each phase of one, waits for.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``, and beside it the columns of `by`.
    board : GpuModel or str
        The board that was sampled: its power limit and NVLink bandwidth.
    jobs : polars.DataFrame, optional
        ``job_id`` and ``gpus``: GPUs of jobs of which only some were sampled; the share of those with ``instances``.
        Otherwise the sampled devices count.
    by : sequence of str
        Columns that make a group; ``("job_id", "phase")`` gives phases.

    Returns
    -------
    polars.DataFrame
        The columns of `by`, ``bound``, ``evidence``, ``hours`` that were sampled (readings of a device times
        their usual distance), ``gpus``, and the means of the counters; sorted by `by`.

    Raises
    ------
    SchemaError
        If the samples lack columns.
    GeometryError
        If the board is unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> row = {"time": datetime(2026, 2, 2, tzinfo=UTC), "node": "n1", "gpu": 0, "job_id": "7"}
    >>> row |= {"sm_activity": 0.9, "tensor_activity": 0.6, "dram_activity": 0.2, "activity_source": "profiling"}
    >>> signatures_of(pl.DataFrame([row]), "H100-80GB-SXM5").select("job_id", "bound").row(0)
    ('7', 'compute')
    """
    spec = board_spec(as_board(board).name)
    means = _means(samples, by, load_thresholds()["idle_sm"].value, spec.tdp_w)
    gpus, share = means["devices"], means["devices"].cast(pl.Float64)
    if jobs is not None and "job_id" in by:
        # A job on instances holds its share of GPUs, however many devices were sampled.
        cut = pl.col("instances").is_not_null() if "instances" in jobs.columns else pl.lit(value=False)
        asked = jobs.select("job_id", asked="gpus", share=pl.when(cut).then("gpus")).unique("job_id")
        held = means.select("job_id", "devices").join(asked, on="job_id", how="left", maintain_order="left")
        whole = pl.when(pl.col("share").is_null()).then(pl.col("asked").ceil().cast(pl.Int64))
        gpus = held.select(pl.max_horizontal("devices", whole)).to_series()
        share = held.select(pl.coalesce("share", gpus.cast(pl.Float64))).to_series()
    named = [
        signature(
            Counters(*row),
            gpus=count,
            nvlink_peak_gb_s=spec.nvlink_or_fabric_total_gb_s,
        )
        for row, count in zip(means.select(COUNTERS).iter_rows(), gpus, strict=True)
    ]
    return means.select(
        *by,
        pl.Series("bound", [each.bound for each in named], dtype=pl.String),
        pl.Series("evidence", [each.evidence for each in named], dtype=pl.String),
        "hours",
        share.alias("gpus"),
        *FIELDS,
        "idle_share",
        "power_share",
    ).sort(by)


def signatures_by_class(signatures: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Share of each signature among the jobs of a class, with what it means.

    Parameters
    ----------
    signatures : polars.DataFrame
        From :func:`signatures_of`, by job.
    jobs : polars.DataFrame
        ``job_id`` and ``job_class``.

    Returns
    -------
    polars.DataFrame
        ``job_class, bound, jobs, gpu_hours`` (sampled hours of a job times its GPUs), ``share`` of the class's
        GPU-hours, and ``slice`` and ``board``, the advice. Most GPU-hours of a class first.

    Examples
    --------
    >>> signatures = pl.DataFrame({"job_id": ["1", "2"], "bound": ["idle", "compute"], "hours": 1.0, "gpus": [1, 3]})
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "job_class": "tuning"})
    >>> signatures_by_class(signatures, jobs).select("bound", "jobs", "share").rows()
    [('compute', 1, 0.75), ('idle', 1, 0.25)]
    """
    classes = jobs.select("job_id", "job_class").unique("job_id")
    return (
        signatures.join(classes, on="job_id", how="left")
        .with_columns(pl.col("job_class").fill_null("not known"))
        .group_by("job_class", "bound")
        .agg(jobs=pl.len(), gpu_hours=(pl.col("hours") * pl.col("gpus")).sum())
        .with_columns(share=pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("job_class"))
        .join(advice().select("bound", "slice", "board"), on="bound", how="left")
        .sort("job_class", "gpu_hours", "bound", descending=[False, True, False])
    )


def _means(samples: pl.DataFrame, by: Sequence[str], idle: float, limit_w: float | None) -> pl.DataFrame:
    """Means of the counters of each group over the readings in which they were read."""
    table = conform(samples, Samples, where="signatures: samples")
    beside = [name for name in by if name not in table.columns]
    table = table.with_columns(samples.select(beside)) if beside else table
    apart_h = pl.col("time").sort().diff().over(*by, *DEVICE).dt.total_microseconds() / 3.6e9
    best_rung = pl.col("activity_source").mode().sort().last()
    return (
        table.sort("time")
        .with_columns(apart_h=apart_h)
        .group_by(by, maintain_order=True)
        .agg(
            *(pl.col(name).mean() for name in FIELDS),
            pl.col("sm_occupancy").mean(),
            idle_share=(pl.col("sm_activity") < idle).mean(),
            power_share=pl.col("power_w").mean() / limit_w if limit_w else pl.lit(None, pl.Float64),
            activity_source=best_rung,
            devices=pl.struct(DEVICE).n_unique().cast(pl.Int64),
            hours=pl.len() * pl.col("apart_h").median().fill_null(0.0) / pl.struct(DEVICE).n_unique(),
        )
    )
