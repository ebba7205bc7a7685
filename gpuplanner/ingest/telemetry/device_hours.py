"""Energy of GPUs, and hourly sums by device and job.

The counter adds up inside the board, so it also tells what was drawn while nobody looked; the power is known at the
instants of the samples alone. Both are the board's, also where an exporter repeats them on every MIG instance [1]_.

References
----------
.. [1] NVIDIA/dcgm-exporter, issue 317: one counter, told by each of four instances of an A30.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import polars as pl

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schemas import Samples
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, POWER_MARGIN, board_limits
from gpuplanner.ingest.telemetry.sample_buffer import held_readings


def columns_of(samples: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """Select columns of samples, in the types of the table; those that may be null may be absent.

    Examples
    --------
    >>> columns_of(pl.LazyFrame({"gpu": [3], "own": ["x"]}), ["gpu", "xid"]).collect().row(0)
    (3, None)
    """
    present = samples.collect_schema()
    declared = {name: Samples.columns()[name] for name in names}
    missing = [name for name, column in declared.items() if name not in present and not column.nullable]
    if missing:
        expected, got = f"columns {examples(missing)}", f"columns {examples(present.names())}"
        raise SchemaError("samples", expected, got, "Add the columns.")
    return samples.select(
        pl.lit(None, column.dtype).alias(name)
        if name not in present
        # A cast, even to the same type, keeps filters from the file.
        else pl.col(name)
        if present[name] == column.dtype
        else pl.col(name).cast(column.dtype)
        for name, column in declared.items()
    )


BOARD = ("node", "gpu")
TOLD = ("time", "instance", "power_w", "energy_counter_j")
"""Columns of samples that tell the energy of a board, beside those that name it."""
J_PER_KWH = 3.6e6
COUNTER, POWER, BOTH = "counter", "power", "counter and power"
LAG_S = 1.0
"""The driver renews the counter in steps: what it tells may be up to this old."""


def board_readings(samples: pl.DataFrame) -> pl.DataFrame:
    """Power and energy counter of each board at each instant, once.

    Examples
    --------
    >>> told = {"time": [0, 0, 1, 2], "node": "n1", "gpu": 0, "instance": [1, 2, 1, 1], "job_id": None}
    >>> told |= {"power_w": None, "energy_counter_j": [5.0, 5.0, None, 9.0]}
    >>> board_readings(pl.DataFrame(told))["time", "energy_counter_j"].rows()
    [(0, 5.0), (2, 9.0)]
    """
    columns = ("time", *BOARD, "job_id", "instance", "power_w", "energy_counter_j")
    return _read_once(samples.select(columns).sort("time", maintain_order=True), BOARD)


def _read_once(readings: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Readings of each board at each instant, once, of readings in the order of time."""
    whole = pl.col("instance").is_null()
    if readings["instance"].null_count() < readings.height:
        readings = (
            readings.sort("time", "instance", nulls_last=False, maintain_order=True)
            .group_by("time", *by, maintain_order=True)
            .agg(
                pl.col("^job_id$").filter(whole).first(),
                pl.col("power_w", "energy_counter_j").drop_nulls().first(),
            )
        )
    readings = readings.drop("instance", strict=False)
    if readings["energy_counter_j"].null_count() in (0, readings.height):
        return readings
    counted = pl.col("energy_counter_j").is_not_null()
    place = pl.int_range(pl.len()).over(by)
    between = place.is_between(place.filter(counted).min().over(by), place.filter(counted).max().over(by))
    return readings.filter(counted | ~between.fill_null(False))


def board_steps(held: pl.DataFrame, *, to_the_end: bool = True) -> pl.DataFrame:
    """Energy of each board while its readings hold, and over the gaps between.

    Parameters
    ----------
    held : polars.DataFrame
        Readings of :func:`board_readings`, as :func:`~gpuplanner.ingest.telemetry.sample_buffer.held_readings` gives
        them.
    to_the_end : bool
        Also give the time for which the last reading of each board holds.

    Returns
    -------
    polars.DataFrame
        A row a piece of time: its begin ``time``, ``end``, ``step_s``, ``gap``, the instant of its ``reading``, and
        ``counted_j``, ``integrated_j`` (null over gaps) and ``energy_j``, by the counter, the power and either [J]. Of
        a gap, the time for which the reading before it holds is a piece of its own.

    Examples
    --------
    A driver that is loaded again between the second and the third reading, and a gap after the fourth:

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(seconds=s) for s in (0, 10, 20, 30, 930)], "node": "n1", "gpu": 0}
    >>> read |= {"job_id": None, "power_w": 100.0, "energy_counter_j": [7000.0, 8000.0, 500.0, 1500.0, 91500.0]}
    >>> steps = board_steps(held_readings(pl.DataFrame(read), BOARD)).sort("time").drop_nulls("energy_j")
    >>> steps.select("counted_j", "energy_j", "gap").rows()[:3]
    [(1000.0, 1000.0, False), (None, 1000.0, False), (1000.0, 1000.0, False)]
    >>> steps.select("counted_j", "energy_j", "gap").rows()[3:]
    [(1000.0, 1000.0, False), (89000.0, 89000.0, True)]
    """
    counter, later = pl.col("energy_counter_j"), pl.col("counter_end")
    ahead = {"end": "time", "power_end": "power_w", "counter_end": "energy_counter_j", "job_end": "job_id"}
    held = held.with_columns(
        pl.when(~pl.col("last")).then(pl.col(name).shift(-1)).alias(end)
        for end, name in ahead.items()
        if name in held.columns
    )
    whole_s = seconds_between("time", "end")
    most = POWER_MARGIN * board_limits(None)[0] * (whole_s + LAG_S)
    held = held.with_columns(
        reading="time",
        counted_j=pl.when((later - counter).is_between(0, most)).then(later - counter),
        since_reset_j=pl.when((later < counter) & (later <= most)).then(later),
        restarted=((later < counter) | (later - counter > most)).fill_null(value=False),
    )
    # From one reading to the next, the power goes along a straight line.
    mean_w = (pl.col("power_w") + pl.col("power_end")) / 2
    between = held.filter(~pl.col("gap"), ~pl.col("last"))
    pieces = [between.with_columns(integrated_j=mean_w * whole_s)]
    if held["gap"].any():
        part = (seconds_between("time", "until") / whole_s).fill_nan(0.0)
        gaps, counted_j = held.filter("gap"), pl.col("counted_j")
        nothing = pl.lit(None, pl.Float64)
        rest = gaps.with_columns(time="until", integrated_j=nothing, counted_j=counted_j * (1 - part))
        before = gaps.with_columns(counted_j=counted_j * part, restarted=pl.lit(value=False))
        pieces += [_held_on(before), rest]
    if to_the_end:
        pieces.append(_held_on(held.filter("last", counter.is_null())))
        pieces.append(held.filter("last", counter.is_not_null()).with_columns(end="until"))
    return (
        pl.concat(pieces, how="diagonal")
        .with_columns(step_s=seconds_between("time", "end"))
        .filter(pl.col("step_s") > 0)
        .with_columns(energy_j=pl.coalesce("counted_j", "integrated_j", pl.col("since_reset_j")))
    )


def _held_on(held: pl.DataFrame) -> pl.DataFrame:
    """Pieces for which readings without a next one hold, at their power."""
    power_j = pl.col("power_w") * seconds_between("time", "until")
    return held.with_columns(
        end="until",
        power_end="power_w",
        gap=pl.lit(value=False),
        integrated_j=pl.when(pl.col("counted_j").is_null()).then(power_j),
        since_reset_j=pl.lit(None, pl.Float64),
    )


def seconds_between(begin: str, end: str) -> pl.Expr:
    """Seconds from the instants of one column to those of another."""
    return (pl.col(end) - pl.col(begin)).dt.total_microseconds() / 1e6


def board_energy(samples: pl.DataFrame, by: Sequence[str] = BOARD) -> pl.DataFrame:
    """Energy of each board from its first to its last reading, by the counter and by the power.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(hours=h) for h in range(3)], "node": "n1", "gpu": 0, "instance": None}
    >>> read |= {"power_w": 500.0, "energy_counter_j": [1.0, 1800001.0, 3600001.0]}
    >>> board_energy(pl.DataFrame(read)).select("energy_kwh", "counted_kwh", "integrated_kwh").row(0)
    (1.0, 1.0, 1.0)
    """
    told = samples.select(by).hstack(columns_of(samples.lazy(), TOLD).collect())
    if len(by) > 1 or not told[by[0]].flags["SORTED_ASC"]:
        told = told.sort("time", maintain_order=True)
    both = pl.col("counted_j").is_not_null() & pl.col("integrated_j").is_not_null()
    kwh = pl.col("energy_j", "gap_j", "counted_j", "integrated_j") / J_PER_KWH
    return (
        board_steps(held_readings(_read_once(told, by), by))
        .group_by(by)
        .agg(
            pl.when(pl.col("energy_j").count() > 0).then(pl.col("energy_j").sum()),
            gap_j=pl.col("energy_j").filter("gap").sum(),
            counted_j=pl.col("counted_j").filter(both).sum(),
            integrated_j=pl.col("integrated_j").filter(both).sum(),
            restarts=pl.col("restarted").sum().cast(pl.Int64),
        )
        .sort(by)
        .select(*by, kwh.name.map(lambda name: name.replace("_j", "_kwh")), "restarts")
    )


HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MEANS = ("sm_activity", "tensor_activity", "dram_activity")
HELD = ("time", *DEVICE_KEY, "job_id")
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
    :func:`~gpuplanner.ingest.telemetry.sample_buffer.hold_times`. Over the rest of a gap no power is integrated, and
    the
    energy of the counter is spread evenly and kept apart, so that energy goes with the covered time; both together
    are what the board drew, see :func:`gpuplanner.ingest.telemetry.device_hours.board_energy`. The time for which a
    sample
    holds belongs to its job, a gap only where the job after it is the same.

    Power and energy are the board's: they stand in the rows of whole GPUs, and where only instances were sampled, in
    a row of the GPU beside them that has no samples.

    Parameters
    ----------
    samples : polars.LazyFrame or polars.DataFrame
        Table ``schemas.Samples`` in any order, such as ``scan_samples`` of a dataset gives; one
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
    >>> from gpuplanner.core.schemas import Samples
    >>> from gpuplanner.core.schema_checks import conform
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
        devices = boards if one_each else held_readings(seen, DEVICE_KEY, max_step_s=gap_s)
        sums += _day_sums(boards, devices)
        board_border = _latest(boards, readings.columns)
        border = _latest(devices.with_columns(instance=pl.lit(None, pl.Int32)) if one_each else devices, HELD)
        day += DAY
    boards = held_readings(board_border, BOARD, max_step_s=gap_s)
    sums += _day_sums(boards, held_readings(border, DEVICE_KEY, max_step_s=gap_s), to_the_end=True)
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
    return today.group_by(pl.col("time").dt.truncate("1h").alias("hour"), *DEVICE_KEY, "job_id").agg(
        pl.len().cast(pl.Int64).alias("samples"),
        pl.col(MEANS).sum().name.suffix("_sum"),
        pl.col(MEANS).count().cast(pl.Int64).name.suffix("_count"),
        pl.col("memory_used_gib").max().alias("memory_peak_gib"),
    )


def _covered(held: pl.DataFrame, *, to_the_end: bool) -> pl.DataFrame:
    """Time for which samples hold, by hour, device and job."""
    held = held.rename({"until": "end"})
    steps = (held if to_the_end else held.filter(~pl.col("last"))).filter(pl.col("end") > pl.col("time"))
    by_hour = _cut(steps).group_by("hour", *DEVICE_KEY, "job_id")
    return by_hour.agg(covered_s=seconds_between("begin", "until").sum())


def _between(held: pl.DataFrame, *, to_the_end: bool) -> pl.DataFrame:
    """Energy, and time for which readings hold, by hour, board and job."""
    told, gap = pl.col("energy_j").is_not_null(), pl.col("gap")
    steps = board_steps(held, to_the_end=to_the_end)
    pieces = _cut(steps.filter(told | ~gap).drop("until"))
    by_power = pl.col("counted_j").is_null() & pl.col("integrated_j").is_not_null()
    rise = (pl.col("power_end") - pl.col("power_w")) / pl.col("step_s")
    middle_s = (seconds_between("time", "begin") + seconds_between("time", "until")) / 2
    watts = pl.when(by_power).then(pl.col("power_w") + rise * middle_s).otherwise(pl.col("energy_j") / pl.col("step_s"))
    same_job = pl.col("job_id").eq_missing(pl.col("job_end"))
    held_s = seconds_between("begin", "until")
    return (
        pieces.with_columns(
            held_s=held_s,
            joules=watts * held_s,
            instance=pl.lit(None, pl.Int32),
            job_id=pl.when(~gap | same_job).then("job_id"),
        )
        .group_by("hour", *DEVICE_KEY, "job_id")
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
    by_hour = steps.filter(crosses).with_columns(hour=pl.datetime_ranges(hour, last, "1h")).explode("hour")
    begin, until = pl.max_horizontal("time", "hour"), pl.min_horizontal("end", pl.col("hour") + HOUR)
    return pl.concat([inside, by_hour.with_columns(begin=begin, until=until)])


def _hours(sums: pl.DataFrame) -> pl.DataFrame:
    """Add what was summed apart, and divide."""
    keys = ("hour", *DEVICE_KEY, "job_id")
    means = [pl.when(pl.col(f"{n}_count") > 0).then(pl.col(f"{n}_sum") / pl.col(f"{n}_count")).alias(n) for n in MEANS]
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
