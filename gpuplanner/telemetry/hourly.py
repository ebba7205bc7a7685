"""Samples to hours per device and job: activity, memory, energy and coverage, a day in memory at a time."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from gpuplanner.telemetry.coverage import GAP_FACTOR

DEVICE = ("node", "gpu", "instance")
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
J_PER_KWH = 3.6e6
MEANS = ("sm_activity", "tensor_activity", "dram_activity")
READ = ("time", *DEVICE, "job_id", *MEANS, "memory_used_gib", "power_w")

HOURS = pl.Schema(
    {
        "hour": pl.Datetime("us", "UTC"),
        "node": pl.String(),
        "gpu": pl.Int32(),
        "instance": pl.Int32(),
        "job_id": pl.String(),
        "samples": pl.Int64(),
        "sm_activity": pl.Float64(),
        "tensor_activity": pl.Float64(),
        "dram_activity": pl.Float64(),
        "memory_peak_gib": pl.Float64(),
        "energy_kwh": pl.Float64(),
        "covered": pl.Float64(),
    }
)
"""Columns of :func:`hourly`."""


def hourly(samples: pl.LazyFrame | pl.DataFrame, *, gap_s: float | None = None) -> pl.DataFrame:
    """Aggregate samples to hours of each device and job.

    The samples are read one UTC day at a time, so that the memory needed is that of a day and of the answer,
    however long the record is. Energy is the integral of the power along straight lines between successive
    samples of a device (trapezoids, cut where an hour ends); over a gap nothing is integrated, so energy is that
    of the covered time alone. The time between two samples belongs to the job of the first.

    Parameters
    ----------
    samples : polars.LazyFrame or polars.DataFrame
        Table ``schemas.Samples`` in any order, such as :func:`gpuplanner.telemetry.store.scan_samples`; one
        sample per device and time.
    gap_s : float, optional
        Longest time between two samples that is no gap [s]. Default: 2.5 times the usual (median) step of the
        device on that day, as in the coverage report; at most an hour.

    Returns
    -------
    polars.DataFrame, shape (n_hours, 12)
        Columns :data:`HOURS`, sorted by hour, device and job: ``samples``, means of the activities over the
        samples that have them [0-1], ``memory_peak_gib``, ``energy_kwh`` (null where no power was read), and
        ``covered``, the share of the hour between samples without a gap [0-1].

    Examples
    --------
    A GPU that rises from 100 to 500 W within an hour, and goes on at 500 W for half of the next:

    >>> from datetime import UTC, datetime
    >>> from gpuplanner.schemas import Samples, conform
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> times = [noon + timedelta(minutes=minutes) for minutes in (0, 30, 60, 90)]
    >>> read = {"time": times, "node": "n1", "gpu": 0, "power_w": [100.0, 300.0, 500.0, 500.0]}
    >>> samples = conform(pl.DataFrame(read | {"activity_source": "none"}), Samples, where="example")
    >>> hourly(samples).select("samples", pl.col("energy_kwh").round(6), "covered").rows()
    [(2, 0.3, 1.0), (2, 0.25, 0.5)]
    """
    frame = samples.lazy().select(READ)
    span = frame.select(first=pl.col("time").min(), last=pl.col("time").max()).collect(engine="streaming")
    first, last = span.row(0)
    if first is None:
        return pl.DataFrame(schema=HOURS)
    day = first.replace(hour=0, minute=0, second=0, microsecond=0)
    sums, border = [], pl.DataFrame(schema=frame.collect_schema())
    while day <= last:
        inside = (pl.col("time") >= day) & (pl.col("time") < day + DAY)
        today = frame.filter(inside).collect(engine="streaming")
        seen = pl.concat([border, today]).sort("time", maintain_order=True)
        sums.append(_counts(today))
        sums.append(_integrals(seen, gap_s))
        border = seen.group_by(DEVICE).last().select(READ)
        day += DAY
    return _hours(pl.concat(sums, how="diagonal"))


def _counts(today: pl.DataFrame) -> pl.DataFrame:
    """Samples, sums of the activities and largest memory, by hour, device and job."""
    return today.group_by(pl.col("time").dt.truncate("1h").alias("hour"), *DEVICE, "job_id").agg(
        pl.len().cast(pl.Int64).alias("samples"),
        pl.col(MEANS).sum().name.suffix("_sum"),
        pl.col(MEANS).count().cast(pl.Int64).name.suffix("_count"),
        pl.col("memory_used_gib").max().alias("memory_peak_gib"),
    )


def _integrals(seen: pl.DataFrame, gap_s: float | None) -> pl.DataFrame:
    """Covered time and energy between successive samples, by hour, device and job."""
    begin, end, cut = pl.col("time"), pl.col("end"), pl.col("cut")
    power, power_end = pl.col("power_w"), pl.col("power_end")
    limit = pl.lit(gap_s) if gap_s is not None else GAP_FACTOR * pl.col("step_s").median().over(DEVICE)
    steps = (
        seen.lazy()
        .select(
            "time",
            *DEVICE,
            "job_id",
            "power_w",
            end=begin.shift(-1).over(DEVICE),
            power_end=power.shift(-1).over(DEVICE),
            cut=begin.dt.truncate("1h") + HOUR,
        )
        .drop_nulls("end")
        .with_columns(step_s=_seconds(begin, end))
        .filter(pl.col("step_s") <= pl.min_horizontal(limit, HOUR.total_seconds()))
        .with_columns(power_cut=power + (power_end - power) * _seconds(begin, cut) / pl.col("step_s"))
        .collect()
    )
    crossing = steps.filter(end > cut)
    return pl.concat(
        [
            _summed(steps.filter(end <= cut), begin, end, power, power_end),
            _summed(crossing, begin, cut, power, pl.col("power_cut")),
            _summed(crossing, cut, end, pl.col("power_cut"), power_end),
        ]
    )


def _summed(
    steps: pl.DataFrame, begin: pl.Expr, end: pl.Expr, power: pl.Expr, power_end: pl.Expr
) -> pl.DataFrame:
    """Sums over steps that lie within an hour."""
    energy = (power + power_end) / 2 * _seconds(begin, end)
    return steps.group_by(begin.dt.truncate("1h").alias("hour"), *DEVICE, "job_id").agg(
        _seconds(begin, end).sum().alias("covered_s"),
        energy.sum().alias("energy_j"),
        energy.count().cast(pl.Int64).alias("energy_count"),
    )


def _seconds(begin: pl.Expr, end: pl.Expr) -> pl.Expr:
    return (end - begin).dt.total_microseconds() / 1e6


def _hours(sums: pl.DataFrame) -> pl.DataFrame:
    """Add what was summed apart, and divide."""
    keys = ("hour", *DEVICE, "job_id")
    means = [
        pl.when(pl.col(f"{n}_count") > 0).then(pl.col(f"{n}_sum") / pl.col(f"{n}_count")).alias(n)
        for n in MEANS
    ]
    return (
        sums.group_by(keys)
        .agg(pl.exclude("memory_peak_gib").sum(), pl.col("memory_peak_gib").max())
        .with_columns(
            *means,
            energy_kwh=pl.when(pl.col("energy_count") > 0).then(pl.col("energy_j") / J_PER_KWH),
            covered=pl.col("covered_s") / HOUR.total_seconds(),
        )
        .sort(keys)
        .select(HOURS.names())
        .match_to_schema(HOURS)
    )
