"""Samples to hours per device and job: activity, memory, energy and coverage, a day in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import polars as pl

from gpuplanner.inbox.telemetry.energy import (
    BOARD,
    BOTH,
    COUNTER,
    J_PER_KWH,
    POWER,
    board_readings,
    board_steps,
    columns_of,
    seconds_between,
)
from gpuplanner.inbox.telemetry.hold_times import held_readings

DEVICE = ("node", "gpu", "instance")
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MEANS = ("sm_activity", "tensor_activity", "dram_activity")
HELD = ("time", *DEVICE, "job_id")
READ = (*HELD, *MEANS, "memory_used_gib", "power_w", "energy_counter_j")

HOURS = pl.Schema(
    {"hour": pl.Datetime("us", "UTC"), "node": pl.String(), "gpu": pl.Int32(), "instance": pl.Int32()}
    | {"job_id": pl.String(), "samples": pl.Int64()}
    | dict.fromkeys((*MEANS, "memory_peak_gib", "energy_kwh"), pl.Float64())
    | {"energy_source": pl.String(), "gap_kwh": pl.Float64(), "covered": pl.Float64()}
)
"""Columns of :func:`hourly`."""


def hourly(samples: pl.LazyFrame | pl.DataFrame, *, gap_s: float | None = None) -> pl.DataFrame:
    """Aggregate samples to hours of each device and job.

    The samples are read one UTC day at a time, so that the memory needed is that of a day and of the answer,
    however long the record is. Energy is what the board's counter adds up between successive readings, where there
    is one; else the integral of the power along straight lines (trapezoids, cut where an hour ends). A sample holds
    until the next one, before a gap and at the end for one usual step, see
    :func:`~gpuplanner.inbox.telemetry.hold_times.hold_times`. Over the rest of a gap no power is integrated, and the
    energy of the counter is spread evenly and kept apart, so that energy goes with the covered time; both together
    are what the board drew, see :func:`gpuplanner.inbox.telemetry.energy.board_energy`. The time for which a sample
    holds belongs to its job, a gap only where the job after it is the same.

    Power and energy are the board's: they stand in the rows of whole GPUs, and where only instances were sampled, in
    a row of the GPU beside them that has no samples.

    Parameters
    ----------
    samples : polars.LazyFrame or polars.DataFrame
        Table ``schemas.Samples`` in any order, such as :func:`gpuplanner.inbox.telemetry.store.scan_samples`; one
        sample per device and time. Columns that may be null may be absent: not measured.
    gap_s : float, optional
        Longest time between two samples that is no gap [s]. Default: 2.5 times the usual (median) step of the
        device on that day; at most an hour.

    Returns
    -------
    polars.DataFrame, shape (n_hours, 14)
        Columns :data:`HOURS`, sorted by hour, device and job: ``samples``, means of the activities over the
        samples that have them [0-1], ``memory_peak_gib``, ``energy_kwh`` (null where neither was read),
        ``energy_source`` (``counter``, ``power``, ``counter and power``), ``gap_kwh`` (over gaps; null where there is
        none or no counter) and ``covered``, the share of the hour for which samples hold [0-1].

    Raises
    ------
    SchemaError
        If the samples lack times, nodes or GPUs.

    Examples
    --------
    A GPU that rises from 100 to 500 W within an hour, and goes on at 500 W for half of the next:

    >>> from datetime import UTC, datetime
    >>> from gpuplanner.schemas.domain import Samples
    >>> from gpuplanner.schemas.check import conform
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> times = [noon + timedelta(minutes=minutes) for minutes in (0, 30, 60, 90)]
    >>> read = {"time": times, "node": "n1", "gpu": 0, "power_w": [100.0, 300.0, 500.0, 500.0]}
    >>> samples = conform(pl.DataFrame(read | {"activity_source": "none"}), Samples, where="example")
    >>> hourly(samples).select("samples", pl.col("energy_kwh").round(6), "covered").rows()
    [(2, 0.3, 1.0), (2, 0.5, 1.0)]
    """
    frame = columns_of(samples.lazy(), READ)
    span = frame.select(first=pl.col("time").min(), last=pl.col("time").max()).collect(engine="streaming")
    first, last = span.row(0)
    if first is None:
        return pl.DataFrame(schema=HOURS)
    day = first.replace(hour=0, minute=0, second=0, microsecond=0)
    nothing = pl.DataFrame(schema=frame.collect_schema())
    sums: list[pl.DataFrame] = []
    border, board_border = nothing.select(HELD), board_readings(nothing)
    while day <= last:
        inside = (pl.col("time") >= day) & (pl.col("time") < day + DAY)
        today = frame.filter(inside).collect(engine="streaming")
        sums.append(_counts(today))
        readings = pl.concat([board_border, board_readings(today)], how="diagonal")
        seen = pl.concat([border, today.select(HELD)], how="diagonal")
        boards = held_readings(readings, BOARD, max_step_s=gap_s)
        one_each = seen["instance"].null_count() == readings.height == seen.height
        devices = boards if one_each else held_readings(seen, DEVICE, max_step_s=gap_s)
        sums += _day_sums(boards, devices)
        board_border = _latest(boards, readings.columns)
        border = _latest(devices.with_columns(instance=pl.lit(None, pl.Int32)) if one_each else devices, HELD)
        day += DAY
    boards = held_readings(board_border, BOARD, max_step_s=gap_s)
    sums += _day_sums(boards, held_readings(border, DEVICE, max_step_s=gap_s), to_the_end=True)
    return _hours(pl.concat(sums, how="diagonal"))


def _latest(held: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """Last reading of each series, with the usual step as known by then, to be continued on the next day."""
    return held.filter("last").select(*dict.fromkeys([*columns, "usual_us"]))


def _day_sums(boards: pl.DataFrame, devices: pl.DataFrame, *, to_the_end: bool = False) -> list[pl.DataFrame]:
    """Energy and covered time of a day, whose last readings are left for the next one."""
    between = _between(boards, to_the_end=to_the_end)
    if devices is boards:
        return [between]  # each sample is a reading of its board
    counted = (pl.col("energy_count") > 0) | (pl.col("gap_count") > 0)
    return [between.filter(counted).drop("covered_s"), _covered(devices, to_the_end=to_the_end)]


def _counts(today: pl.DataFrame) -> pl.DataFrame:
    """Samples, sums of the activities and largest memory, by hour, device and job."""
    return today.group_by(pl.col("time").dt.truncate("1h").alias("hour"), *DEVICE, "job_id").agg(
        pl.len().cast(pl.Int64).alias("samples"),
        pl.col(MEANS).sum().name.suffix("_sum"),
        pl.col(MEANS).count().cast(pl.Int64).name.suffix("_count"),
        pl.col("memory_used_gib").max().alias("memory_peak_gib"),
    )


def _covered(held: pl.DataFrame, *, to_the_end: bool) -> pl.DataFrame:
    """Time for which samples hold, by hour, device and job."""
    held = held.rename({"until": "end"})
    steps = (held if to_the_end else held.filter(~pl.col("last"))).filter(pl.col("end") > pl.col("time"))
    return (
        _cut(steps).group_by("hour", *DEVICE, "job_id").agg(covered_s=seconds_between("begin", "until").sum())
    )


def _between(held: pl.DataFrame, *, to_the_end: bool) -> pl.DataFrame:
    """Energy, and time for which readings hold, by hour, board and job."""
    told, gap = pl.col("energy_j").is_not_null(), pl.col("gap")
    steps = board_steps(held, to_the_end=to_the_end)
    pieces = _cut(steps.filter(told | ~gap).drop("until"))
    by_power = pl.col("counted_j").is_null() & pl.col("integrated_j").is_not_null()
    rise = (pl.col("power_end") - pl.col("power_w")) / pl.col("step_s")
    middle_s = (seconds_between("time", "begin") + seconds_between("time", "until")) / 2
    watts = (
        pl.when(by_power)
        .then(pl.col("power_w") + rise * middle_s)
        .otherwise(pl.col("energy_j") / pl.col("step_s"))
    )
    same_job = pl.col("job_id").eq_missing(pl.col("job_end"))
    held_s = seconds_between("begin", "until")
    return (
        pieces.with_columns(
            held_s=held_s,
            joules=watts * held_s,
            instance=pl.lit(None, pl.Int32),
            job_id=pl.when(~gap | same_job).then("job_id"),
        )
        .group_by("hour", *DEVICE, "job_id")
        .agg(
            covered_s=pl.col("held_s").filter(~gap).sum(),
            energy_j=pl.col("joules").filter(~gap).sum(),
            energy_count=(~gap & told).sum().cast(pl.Int64),
            power_count=(~gap & by_power).sum().cast(pl.Int64),
            gap_j=pl.col("joules").filter(gap).sum(),
            gap_count=gap.sum().cast(pl.Int64),
        )
    )


def _cut(steps: pl.DataFrame) -> pl.DataFrame:
    """Parts of steps that lie within an ``hour``, from ``begin`` until ``until``."""
    hour = pl.col("time").dt.truncate("1h")
    crosses = pl.col("end") > hour + HOUR
    last = pl.col("end").dt.offset_by("-1us").dt.truncate("1h")
    inside = steps.filter(~crosses).with_columns(hour=hour, begin="time", until="end")
    parts = (
        steps.filter(crosses)
        .with_columns(hour=pl.datetime_ranges(hour, last, "1h"))
        .explode("hour")
        .with_columns(
            begin=pl.max_horizontal("time", "hour"), until=pl.min_horizontal("end", pl.col("hour") + HOUR)
        )
    )
    return pl.concat([inside, parts])


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
            energy_source=pl.when(pl.col("energy_count") == 0)
            .then(None)
            .when(pl.col("power_count") == 0)
            .then(pl.lit(COUNTER))
            .when(pl.col("power_count") == pl.col("energy_count"))
            .then(pl.lit(POWER))
            .otherwise(pl.lit(BOTH)),
            gap_kwh=pl.when(pl.col("gap_count") > 0).then(pl.col("gap_j") / J_PER_KWH),
            covered=pl.col("covered_s") / HOUR.total_seconds(),
        )
        .sort(keys)
        .select(HOURS.names())
        .match_to_schema(HOURS)
    )
