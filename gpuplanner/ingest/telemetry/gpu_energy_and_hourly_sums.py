"""Energy of GPUs, and hourly sums of samples by device and job.

The counter adds up inside the GPU, so it also covers the time between samples; the power is known at the instants of
the samples only. Both are of the physical GPU, also where an exporter repeats them on every MIG instance [1]_.

References
----------
.. [1] NVIDIA/dcgm-exporter, issue 317: one counter, reported by each of four instances of an A30.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import polars as pl

from gpuplanner.core.schema_checks import schema_columns
from gpuplanner.core.schemas import Samples
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, MAX_MEAN_POWER_PER_LIMIT, gpu_model_limits
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import add_reading_spans


def select_sample_columns(samples: pl.LazyFrame, names: Sequence[str]) -> pl.LazyFrame:
    """Select columns of samples with the types of ``schemas.Samples``; absent nullable columns become nulls.

    Examples
    --------
    >>> select_sample_columns(pl.LazyFrame({"gpu": [3], "own": ["x"]}), ["gpu", "xid"]).collect().row(0)
    (3, None)
    """
    return samples.select(schema_columns(samples.collect_schema(), Samples, names, source="samples"))


GPU_KEY_COLUMNS = ("node", "gpu")
"""Columns that identify a physical GPU."""
ENERGY_COLUMNS = ("time", "instance", "power_w", "energy_counter_j")
"""Columns of samples that give the energy of a GPU, beside those that identify it."""
J_PER_KWH = 3.6e6
"""Joules in a kilowatt-hour."""
ENERGY_FROM_COUNTER, ENERGY_FROM_POWER, ENERGY_FROM_BOTH = "counter", "power", "counter and power"
"""Values of the energy source of a GPU: its energy counter, its power over time, or both."""

MAX_ENERGY_COUNTER_LAG_S = 1.0
"""Age that a value of the counter may have, since the driver updates it in steps [s]."""


def select_gpu_readings(samples: pl.DataFrame) -> pl.DataFrame:
    """Select power and energy counter of each GPU at each instant, once.

    Examples
    --------
    >>> told = {"time": [0, 0, 1, 2], "node": "n1", "gpu": 0, "instance": [1, 2, 1, 1], "job_id": None}
    >>> told |= {"power_w": None, "energy_counter_j": [5.0, 5.0, None, 9.0]}
    >>> select_gpu_readings(pl.DataFrame(told))["time", "energy_counter_j"].rows()
    [(0, 5.0), (2, 9.0)]
    """
    columns = ("time", *GPU_KEY_COLUMNS, "job_id", "instance", "power_w", "energy_counter_j")
    return _drop_repeated_readings(samples.select(columns).sort("time", maintain_order=True), GPU_KEY_COLUMNS)


def _drop_repeated_readings(readings: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Keep one reading per instant of each GPU, identified by the columns `by`, of readings sorted by time."""
    is_full_gpu = pl.col("instance").is_null()
    if readings["instance"].null_count() < readings.height:
        readings = (
            readings.sort("time", "instance", nulls_last=False, maintain_order=True)
            .group_by("time", *by, maintain_order=True)
            .agg(
                pl.col("^job_id$").filter(is_full_gpu).first(),
                pl.col("power_w", "energy_counter_j").drop_nulls().first(),
            )
        )
    readings = readings.drop("instance", strict=False)
    if readings["energy_counter_j"].null_count() in (0, readings.height):
        return readings
    counted = pl.col("energy_counter_j").is_not_null()
    position = pl.int_range(pl.len()).over(by)
    is_between = position.is_between(position.filter(counted).min().over(by), position.filter(counted).max().over(by))
    return readings.filter(counted | ~is_between.fill_null(False))


def split_energy_steps(readings: pl.DataFrame, *, to_the_end: bool = True) -> pl.DataFrame:
    """Compute the energy of each GPU between its readings, and over the gaps between them.

    Parameters
    ----------
    readings : polars.DataFrame
        Readings of :func:`select_gpu_readings` with the columns of
        :func:`~gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans.add_reading_spans`.
    to_the_end : bool
        Include the time for which the last reading of each GPU is valid.

    Returns
    -------
    polars.DataFrame
        A row for each piece of time: its begin ``time``, ``end``, ``step_s``, ``gap``, the instant of its ``reading``,
        and ``counted_j``, ``integrated_j`` (null over gaps) and ``energy_j``, by the counter, the power and either [J].
        Of a gap, the time for which the reading before it is valid is a piece of its own.

    Examples
    --------
    A driver that is loaded again between the second and the third reading, and a gap after the fourth:

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(seconds=s) for s in (0, 10, 20, 30, 930)], "node": "n1", "gpu": 0}
    >>> read |= {"job_id": None, "power_w": 100.0, "energy_counter_j": [7000.0, 8000.0, 500.0, 1500.0, 91500.0]}
    >>> spans = add_reading_spans(pl.DataFrame(read), GPU_KEY_COLUMNS)
    >>> steps = split_energy_steps(spans).sort("time").drop_nulls("energy_j")
    >>> steps.select("counted_j", "energy_j", "gap").rows()[:3]
    [(1000.0, 1000.0, False), (None, 1000.0, False), (1000.0, 1000.0, False)]
    >>> steps.select("counted_j", "energy_j", "gap").rows()[3:]
    [(1000.0, 1000.0, False), (89000.0, 89000.0, True)]
    """
    counter, counter_end = pl.col("energy_counter_j"), pl.col("counter_end")
    next_columns = {"end": "time", "power_end": "power_w", "counter_end": "energy_counter_j", "job_end": "job_id"}
    readings = readings.with_columns(
        pl.when(~pl.col("last")).then(pl.col(name).shift(-1)).alias(next_name)
        for next_name, name in next_columns.items()
        if name in readings.columns
    )
    step_s = seconds_between("time", "end")
    max_step_j = MAX_MEAN_POWER_PER_LIMIT * gpu_model_limits(None)[0] * (step_s + MAX_ENERGY_COUNTER_LAG_S)
    readings = readings.with_columns(
        reading="time",
        counted_j=pl.when((counter_end - counter).is_between(0, max_step_j)).then(counter_end - counter),
        since_reset_j=pl.when((counter_end < counter) & (counter_end <= max_step_j)).then(counter_end),
        restarted=((counter_end < counter) | (counter_end - counter > max_step_j)).fill_null(value=False),
    )
    # From one reading to the next, the power goes along a straight line.
    mean_w = (pl.col("power_w") + pl.col("power_end")) / 2
    between = readings.filter(~pl.col("gap"), ~pl.col("last"))
    pieces = [between.with_columns(integrated_j=mean_w * step_s)]
    if readings["gap"].any():
        span_fraction = (seconds_between("time", "until") / step_s).fill_nan(0.0)
        gap_steps, counted_j = readings.filter("gap"), pl.col("counted_j")
        null_value = pl.lit(None, pl.Float64)
        after_span = gap_steps.with_columns(
            time="until", integrated_j=null_value, counted_j=counted_j * (1 - span_fraction)
        )
        in_span = gap_steps.with_columns(counted_j=counted_j * span_fraction, restarted=pl.lit(value=False))
        pieces += [_extend_last_readings(in_span), after_span]
    if to_the_end:
        pieces.append(_extend_last_readings(readings.filter("last", counter.is_null())))
        pieces.append(readings.filter("last", counter.is_not_null()).with_columns(end="until"))
    return (
        pl.concat(pieces, how="diagonal")
        .with_columns(step_s=seconds_between("time", "end"))
        .filter(pl.col("step_s") > 0)
        .with_columns(energy_j=pl.coalesce("counted_j", "integrated_j", pl.col("since_reset_j")))
    )


def _extend_last_readings(readings: pl.DataFrame) -> pl.DataFrame:
    """Return the spans for which the last reading of each GPU is valid, with the energy at its power."""
    power_j = pl.col("power_w") * seconds_between("time", "until")
    return readings.with_columns(
        end="until",
        power_end="power_w",
        gap=pl.lit(value=False),
        integrated_j=pl.when(pl.col("counted_j").is_null()).then(power_j),
        since_reset_j=pl.lit(None, pl.Float64),
    )


def seconds_between(begin: str, end: str) -> pl.Expr:
    """Seconds from the instants of one column to those of another [s]."""
    return (pl.col(end) - pl.col(begin)).dt.total_microseconds() / 1e6


def sum_gpu_energy(samples: pl.DataFrame, key_columns: Sequence[str] = GPU_KEY_COLUMNS) -> pl.DataFrame:
    """Sum the energy of each GPU from its first to its last reading, by the counter and by the power.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    key_columns : sequence of str
        Columns that identify a GPU.

    Returns
    -------
    polars.DataFrame
        `key_columns` with ``energy_kwh`` (all), ``gap_kwh`` (over gaps), ``counted_kwh`` and ``integrated_kwh`` (by the
        counter and by the power, over the times that have both) [kWh], and the number of counter ``restarts``.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(hours=h) for h in range(3)], "node": "n1", "gpu": 0, "instance": None}
    >>> read |= {"power_w": 500.0, "energy_counter_j": [1.0, 1800001.0, 3600001.0]}
    >>> sum_gpu_energy(pl.DataFrame(read)).select("energy_kwh", "counted_kwh", "integrated_kwh").row(0)
    (1.0, 1.0, 1.0)
    """
    readings = samples.select(key_columns).hstack(select_sample_columns(samples.lazy(), ENERGY_COLUMNS).collect())
    if len(key_columns) > 1 or not readings[key_columns[0]].flags["SORTED_ASC"]:
        readings = readings.sort("time", maintain_order=True)
    has_both = pl.col("counted_j").is_not_null() & pl.col("integrated_j").is_not_null()
    kwh = pl.col("energy_j", "gap_j", "counted_j", "integrated_j") / J_PER_KWH
    return (
        split_energy_steps(add_reading_spans(_drop_repeated_readings(readings, key_columns), key_columns))
        .group_by(key_columns)
        .agg(
            pl.when(pl.col("energy_j").count() > 0).then(pl.col("energy_j").sum()),
            gap_j=pl.col("energy_j").filter("gap").sum(),
            counted_j=pl.col("counted_j").filter(has_both).sum(),
            integrated_j=pl.col("integrated_j").filter(has_both).sum(),
            restarts=pl.col("restarted").sum().cast(pl.Int64),
        )
        .sort(key_columns)
        .select(*key_columns, kwh.name.map(lambda name: name.replace("_j", "_kwh")), "restarts")
    )


HOUR = timedelta(hours=1)
"""One hour, the length of the rows of the hourly table."""

DAY = timedelta(days=1)
"""One UTC day, the samples of which are read at a time."""

HOURLY_MEAN_COLUMNS = ("sm_activity", "tensor_activity", "dram_activity")
"""Columns of samples that are averaged over each hour. [0-1]"""

SAMPLE_SPAN_COLUMNS = ("time", *DEVICE_KEY, "job_id")
"""Columns of samples that covered time is computed from: time, device and job."""

HOURLY_INPUT_COLUMNS = (*SAMPLE_SPAN_COLUMNS, *HOURLY_MEAN_COLUMNS, "memory_used_gib", "power_w", "energy_counter_j")
"""Columns of samples that :func:`aggregate_hourly` reads."""

HOURLY_SCHEMA = pl.Schema(
    {"hour": pl.Datetime("us", "UTC"), "node": pl.String(), "gpu": pl.Int32(), "instance": pl.Int32()}
    | {"job_id": pl.String(), "samples": pl.Int64()}
    | dict.fromkeys((*HOURLY_MEAN_COLUMNS, "memory_peak_gib", "energy_kwh"), pl.Float64())
    | {"energy_source": pl.String(), "gap_kwh": pl.Float64(), "covered": pl.Float64()}
)
"""Schema of the table of :func:`aggregate_hourly`: one row per hour, device and job."""


def aggregate_hourly(samples: pl.LazyFrame | pl.DataFrame, *, gap_s: float | None = None) -> pl.DataFrame:
    """Aggregate samples to hours of each device and job.

    Samples are read one UTC day at a time, so that memory for a day and for the result is enough. Energy is what the
    GPU's counter adds up between successive readings, where there is one; else the integral of the power along straight
    lines (trapezoids, split at hours). A sample is valid until the next one, before a gap and at the end for one usual
    step, see :func:`~gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans.compute_reading_spans`. Over
    the rest of a gap no power is integrated, and the energy of the counter is spread evenly and kept apart, so that
    energy matches the covered time; both together are the consumption of the GPU, see
    :func:`gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums.sum_gpu_energy`. The time for which a sample is
    valid belongs to its job, a gap only where the job after it is the same.

    Power and energy are those of the physical GPU: they are in the rows of full GPUs, and where only instances were
    sampled, in a row of the GPU that has no samples.

    Parameters
    ----------
    samples : polars.LazyFrame or polars.DataFrame
        Table ``schemas.Samples`` in any order, such as ``scan_samples`` of a dataset gives; one sample per device and
        time. Nullable columns may be absent: not measured.
    gap_s : float, optional
        Longest time between two samples that is no gap [s]. Default: 2.5 times the usual (median) step of the device on
        that day; at most an hour.

    Returns
    -------
    polars.DataFrame, shape (n_hours, 14)
        Columns :data:`HOURLY_SCHEMA`, sorted by hour, device and job: ``samples``, means of the activities over the
        samples that have them [0-1], ``memory_peak_gib`` [GiB], ``energy_kwh`` (null where neither was read) [kWh],
        ``energy_source`` (``counter``, ``power``, ``counter and power``), ``gap_kwh`` (over gaps; null without a gap or
        counter) [kWh] and ``covered``, the share of the hour for which samples are valid [0-1].

    Raises
    ------
    SchemaError
        If the samples lack times, nodes or GPUs.

    Examples
    --------
    A GPU that rises from 100 to 500 W within an hour, and goes on at 500 W for half of the next:

    >>> from datetime import UTC, datetime
    >>> from gpuplanner.core.schemas import Samples
    >>> from gpuplanner.core.schema_checks import conform
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> times = [noon + timedelta(minutes=minutes) for minutes in (0, 30, 60, 90)]
    >>> read = {"time": times, "node": "n1", "gpu": 0, "power_w": [100.0, 300.0, 500.0, 500.0]}
    >>> samples = conform(pl.DataFrame(read | {"activity_source": "none"}), Samples, source="example")
    >>> aggregate_hourly(samples).select("samples", pl.col("energy_kwh").round(6), "covered").rows()
    [(2, 0.3, 1.0), (2, 0.5, 1.0)]
    """
    frame = select_sample_columns(samples.lazy(), HOURLY_INPUT_COLUMNS)
    span = frame.select(first=pl.col("time").min(), last=pl.col("time").max()).collect(engine="streaming")
    first, last = span.row(0)
    if first is None:
        return pl.DataFrame(schema=HOURLY_SCHEMA)
    day = first.replace(hour=0, minute=0, second=0, microsecond=0)
    no_samples = pl.DataFrame(schema=frame.collect_schema())
    sums: list[pl.DataFrame] = []
    open_samples, open_readings = no_samples.select(SAMPLE_SPAN_COLUMNS), select_gpu_readings(no_samples)
    while day <= last:
        is_on_day = (pl.col("time") >= day) & (pl.col("time") < day + DAY)
        today = frame.filter(is_on_day).collect(engine="streaming")
        sums.append(_count_samples(today))
        readings = pl.concat([open_readings, select_gpu_readings(today)], how="diagonal")
        day_samples = pl.concat([open_samples, today.select(SAMPLE_SPAN_COLUMNS)], how="diagonal")
        gpu_readings = add_reading_spans(readings, GPU_KEY_COLUMNS, max_step_s=gap_s)
        is_one_per_gpu = day_samples["instance"].null_count() == readings.height == day_samples.height
        devices = gpu_readings if is_one_per_gpu else add_reading_spans(day_samples, DEVICE_KEY, max_step_s=gap_s)
        sums += _sum_day(gpu_readings, devices)
        open_readings = _last_readings(gpu_readings, readings.columns)
        open_samples = _last_readings(
            devices.with_columns(instance=pl.lit(None, pl.Int32)) if is_one_per_gpu else devices, SAMPLE_SPAN_COLUMNS
        )
        day += DAY
    gpu_readings = add_reading_spans(open_readings, GPU_KEY_COLUMNS, max_step_s=gap_s)
    sums += _sum_day(gpu_readings, add_reading_spans(open_samples, DEVICE_KEY, max_step_s=gap_s), to_the_end=True)
    return _combine_hour_sums(pl.concat(sums, how="diagonal"))


def _last_readings(readings: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """Return `columns` and usual step of the last reading of each series, to be continued on the next day."""
    return readings.filter("last").select(*dict.fromkeys([*columns, "usual_us"]))


def _sum_day(
    gpu_readings: pl.DataFrame, device_readings: pl.DataFrame, *, to_the_end: bool = False
) -> list[pl.DataFrame]:
    """Sum energy and covered time of a UTC day by hour, device and job.

    The time after the last reading of each series is left for the next day, unless `to_the_end`.
    """
    energy_sums = _sum_energy(gpu_readings, to_the_end=to_the_end)
    if device_readings is gpu_readings:
        return [energy_sums]  # each sample is a reading of its board
    has_energy = (pl.col("energy_count") > 0) | (pl.col("gap_count") > 0)
    return [energy_sums.filter(has_energy).drop("covered_s"), _sum_covered_time(device_readings, to_the_end=to_the_end)]


def _count_samples(today: pl.DataFrame) -> pl.DataFrame:
    """Count samples and sum activities, with the peak memory, by hour, device and job."""
    return today.group_by(pl.col("time").dt.truncate("1h").alias("hour"), *DEVICE_KEY, "job_id").agg(
        pl.len().cast(pl.Int64).alias("samples"),
        pl.col(HOURLY_MEAN_COLUMNS).sum().name.suffix("_sum"),
        pl.col(HOURLY_MEAN_COLUMNS).count().cast(pl.Int64).name.suffix("_count"),
        pl.col("memory_used_gib").max().alias("memory_peak_gib"),
    )


def _sum_covered_time(readings: pl.DataFrame, *, to_the_end: bool) -> pl.DataFrame:
    """Sum the time for which samples are valid, by hour, device and job; with `to_the_end` of the last ones too."""
    readings = readings.rename({"until": "end"})
    steps = (readings if to_the_end else readings.filter(~pl.col("last"))).filter(pl.col("end") > pl.col("time"))
    by_hour = _split_at_hours(steps).group_by("hour", *DEVICE_KEY, "job_id")
    return by_hour.agg(covered_s=seconds_between("begin", "until").sum())


def _sum_energy(readings: pl.DataFrame, *, to_the_end: bool) -> pl.DataFrame:
    """Sum energy, and time for which readings are valid, by hour, GPU and job; of the last ones with `to_the_end`."""
    has_energy, is_gap = pl.col("energy_j").is_not_null(), pl.col("gap")
    steps = split_energy_steps(readings, to_the_end=to_the_end)
    pieces = _split_at_hours(steps.filter(has_energy | ~is_gap).drop("until"))
    by_power = pl.col("counted_j").is_null() & pl.col("integrated_j").is_not_null()
    rise = (pl.col("power_end") - pl.col("power_w")) / pl.col("step_s")
    middle_s = (seconds_between("time", "begin") + seconds_between("time", "until")) / 2
    watts = pl.when(by_power).then(pl.col("power_w") + rise * middle_s).otherwise(pl.col("energy_j") / pl.col("step_s"))
    is_same_job = pl.col("job_id").eq_missing(pl.col("job_end"))
    piece_s = seconds_between("begin", "until")
    return (
        pieces.with_columns(
            held_s=piece_s,
            joules=watts * piece_s,
            instance=pl.lit(None, pl.Int32),
            job_id=pl.when(~is_gap | is_same_job).then("job_id"),
        )
        .group_by("hour", *DEVICE_KEY, "job_id")
        .agg(
            covered_s=pl.col("held_s").filter(~is_gap).sum(),
            energy_j=pl.col("joules").filter(~is_gap).sum(),
            energy_count=(~is_gap & has_energy).sum().cast(pl.Int64),
            power_count=(~is_gap & by_power).sum().cast(pl.Int64),
            gap_j=pl.col("joules").filter(is_gap).sum(),
            gap_count=is_gap.sum().cast(pl.Int64),
        )
    )


def _split_at_hours(steps: pl.DataFrame) -> pl.DataFrame:
    """Split time steps at full hours into rows with ``hour``, ``begin`` and ``until``."""
    hour = pl.col("time").dt.truncate("1h")
    crosses_hour = pl.col("end") > hour + HOUR
    last = pl.col("end").dt.offset_by("-1us").dt.truncate("1h")
    within_hour = steps.filter(~crosses_hour).with_columns(hour=hour, begin="time", until="end")
    by_hour = steps.filter(crosses_hour).with_columns(hour=pl.datetime_ranges(hour, last, "1h")).explode("hour")
    begin, until = pl.max_horizontal("time", "hour"), pl.min_horizontal("end", pl.col("hour") + HOUR)
    return pl.concat([within_hour, by_hour.with_columns(begin=begin, until=until)])


def _combine_hour_sums(sums: pl.DataFrame) -> pl.DataFrame:
    """Add up partial sums of the same hour, device and job, and compute the means of the activities."""
    keys = ("hour", *DEVICE_KEY, "job_id")
    means = [
        pl.when(pl.col(f"{name}_count") > 0).then(pl.col(f"{name}_sum") / pl.col(f"{name}_count")).alias(name)
        for name in HOURLY_MEAN_COLUMNS
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
            .then(pl.lit(ENERGY_FROM_COUNTER))
            .when(pl.col("power_count") == pl.col("energy_count"))
            .then(pl.lit(ENERGY_FROM_POWER))
            .otherwise(pl.lit(ENERGY_FROM_BOTH)),
            gap_kwh=pl.when(pl.col("gap_count") > 0).then(pl.col("gap_j") / J_PER_KWH),
            covered=pl.col("covered_s") / HOUR.total_seconds(),
        )
        .sort(keys)
        .select(HOURLY_SCHEMA.names())
        .match_to_schema(HOURLY_SCHEMA)
    )
