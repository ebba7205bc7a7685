"""Demand as a source tells it: of jobs, of readings of pools, or of telemetry alone; no catalogued board is needed.

Series are named ``tenant/profile``, or ``tenant/board/profile`` where every job says its board. A tenant whose name
is a path (``a/b/c``) is part of the sums ``a/b`` and ``a``; everything is part of ``all``.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.demand.series import POOL
from gpuplanner.demand.record import complete_until
from gpuplanner.demand.runoff import run_off
from gpuplanner.demand.runoff import NEEDED
from gpuplanner.errors import ScenarioError, message
from gpuplanner.inbox.store import scan_samples
from gpuplanner.inbox.telemetry.holders import (devices_of)
from gpuplanner.inbox.telemetry.readers.device_key import DEVICE_KEY
from gpuplanner.inbox.telemetry.hourly import hourly
from gpuplanner.intervals import untimed
from gpuplanner.ledger.activity import PROCESS_FROM_GIB
from gpuplanner.scenario import Scenario
from gpuplanner.schemas.vocabulary import USED_FROM, WHOLE_GPU
from gpuplanner.study.bundled import data_folder
from gpuplanner.study.future.announced import hours_of
from gpuplanner.study.future.gpus_wanted import Wanted
from gpuplanner.study.past.history import end_of, history, study_trace
from gpuplanner.units import counted

LAID_OUT = (*NEEDED, "gpu_model")
"""Columns of jobs that a forecast looks at."""
SILENCE = timedelta(days=56)
"""Nothing that came before so long a silence says what comes next."""
UNSAID = "(board unknown)"
OWN = "(own)"
"""Jobs of a tenant whose name is the beginning of others'."""
HOUR = timedelta(hours=1)
LONG = timedelta(days=28)
"""History from which on the errors of a series itself begin to count."""


def wanted(
    scenario: Scenario,
    *,
    at: datetime | None = None,
    by: str = "tenant",
    calendar: pl.DataFrame | None = None,
) -> Wanted:
    """Lay out the demand of a scenario's data up to an origin."""
    span = scenario.month_span()
    at = at if at is not None or span is None else span[1]
    if by == "profile":
        past = history(scenario)
        jobs = past.views["rightsized"].with_columns(profile=pl.format(POOL + "/{}", "profile"))
        return laid_out(
            jobs, trace_end=past.plan_start, at=at or past.plan_start, slot_hours=scenario.slot_hours,
            series="profile", size="instances", suffix="", total=False, calendar=calendar,
        )  # fmt: skip
    trace = study_trace(scenario, columns=LAID_OUT, at=at, days=SILENCE.days)
    if "jobs" in trace.tables:
        jobs, remarks = by_board(trace.jobs, forced=by == "board")
        return laid_out(
            jobs, trace_end=end_of(trace), at=at, slot_hours=scenario.slot_hours, series="series",
            calendar=calendar, remarks=remarks,
        )  # fmt: skip
    if "occupancy" in trace.tables:
        return occupied(trace.tables["occupancy"], scenario.slot_hours, at)
    if trace.samples is None:
        tables = ", ".join(sorted(trace.tables)) or "nothing"
        expected = "jobs, readings of pools, or telemetry of devices"
        todo = "Ingest a list of jobs or samples into the folder."
        raise ScenarioError(message(f"forecast of {scenario.data!r}", expected, tables, todo))
    return sampled(scan_samples(data_folder(scenario.data)), scenario.slot_hours, at)


def laid_out(
    jobs: pl.DataFrame,
    *,
    trace_end: datetime,
    at: datetime | None = None,
    slot_hours: float = 1.0,
    series: str = "tenant",
    size: str = "gpus",
    suffix: str = f"/{WHOLE_GPU}",
    total: bool = True,
    calendar: pl.DataFrame | None = None,
    remarks: tuple[str, ...] = (),
) -> Wanted:
    """Lay jobs out up to an origin, or as far as their record is complete; see :func:`wanted`."""
    end = at or trace_end
    if at is None:
        end = complete_until(jobs.filter(~untimed()), trace_end)
        if end < trace_end:
            remarks += (
                f"the record holds only jobs that ended: after {end:%Y-%m-%d %H:%M} more than a tenth of the "
                "demand is missing from it, and is cut off",
            )
    jobs = jobs.filter(pl.col("submit_time") < end, pl.col(size) > 0)
    slot = timedelta(hours=slot_hours)
    start, before = _begin(jobs, end)
    start = _floor(start, slot)
    if before:
        remarks += (
            f"{before:,} submission(s) lie more than {SILENCE.days} days before the next: series begin behind them, "
            f"at {start:%Y-%m-%d %H:%M}; what still runs of them counts",
        )
    slots = (end - start) // slot
    if slots < 2:
        expected = f"two slots with jobs before {end:%Y-%m-%d %H:%M}"
        raise ScenarioError(message("forecast", expected, f"{slots}", "Choose a later origin."))
    events = () if calendar is None else hours_of(calendar, start)
    sums: dict[str, tuple[str, ...]] = {}
    if total:
        jobs, parts = _levels(jobs, series)
        sums = {
            f"{name}{suffix}": tuple(f"{one}{suffix}" for one in leaves) for name, leaves in parts.items()
        }
    known = run_off(
        jobs, start=start, slot_hours=slot_hours, series=series, size=size, suffix=suffix, events=events
    )
    number = {name: at for at, name in enumerate(known.names)}
    totals = {name: tuple(number[one] for one in leaves) for name, leaves in sums.items()}
    known = replace(known, totals=totals)
    ids = (*known.names, *totals)
    remarks += _short(slots * slot)
    return Wanted(start, slots, slot_hours, ids, known, known.seen(ids, slots), {}, remarks, sums=sums)


def by_board(jobs: pl.DataFrame, *, forced: bool) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Jobs with column ``series``: the tenant, and the board where every job says it or it is asked for."""
    asked = jobs.select(pl.col("gpu_model").filter(pl.col("gpus") > 0).unique()).to_series()
    boards = asked.drop_nulls().len()
    apart = boards > 1 and (forced or not asked.null_count())
    board = pl.col("gpu_model").cast(pl.String).fill_null(UNSAID)
    named = pl.format("{}/{}", "tenant", board) if apart else pl.col("tenant")
    together = boards > 1 and not apart
    remark = (
        f"GPUs of {boards} boards stand in one series, as not every job says its own: --by board parts them"
    )
    return jobs.with_columns(series=named), (remark,) if together else ()


def _levels(jobs: pl.DataFrame, series: str) -> tuple[pl.DataFrame, dict[str, tuple[str, ...]]]:
    """Sums by the path of the series' names, with the leaves of each; jobs of a leaf that is a sum as well get a leaf.

    The last part of a name is a board where there are boards: sums are then of one board each, but for ``all``.
    """
    names = jobs[series].unique().cast(pl.String).sort().to_list()
    boards = (
        set(jobs["gpu_model"].unique().cast(pl.String).fill_null(UNSAID)) if series == "series" else set()
    )
    ends = {name.rpartition("/")[2] for name in names}
    with_board = bool(boards) and ends <= boards and all("/" in name for name in names)

    def above(name: str) -> list[str]:
        path, _, board = name.rpartition("/") if with_board else (name, "", "")
        steps = path.split("/")
        ups = ["/".join(steps[:depth]) for depth in range(1, len(steps))] + [POOL]
        return [f"{up}/{board}" for up in ups] + [POOL] if with_board else ups

    every = {up for name in names for up in above(name)}
    own = {name: f"{name}/{OWN}" for name in names if name in every}
    parts: dict[str, list[str]] = {}
    for name in names:
        for up in above(name) + ([name] if name in own else []):
            parts.setdefault(up, []).append(own.get(name, name))
    renamed = jobs.with_columns(pl.col(series).cast(pl.String).replace(own)) if own else jobs
    last = parts.pop(POOL, [])  # the whole stands last
    return renamed, {name: tuple(members) for name, members in sorted(parts.items())} | {POOL: tuple(last)}


def _short(history: timedelta) -> tuple[str, ...]:
    if history >= LONG:
        return ()
    days = counted(round(history / timedelta(days=1)), "day")
    remark = f"{days} of history: intervals rest on the errors of all series and days together, their ends drawn out"
    return (remark,)


def _begin(jobs: pl.DataFrame, end: datetime) -> tuple[datetime, int]:
    """First submission behind the last long silence, and how many lie before it, by a wrong clock or in another age."""
    times = jobs["submit_time"].sort()
    if times.is_empty():
        return end, 0
    silent = (times.diff() > SILENCE).arg_true()
    before = int(silent[-1]) if len(silent) else 0
    return times[before], before


def occupied(table: pl.DataFrame, slot_hours: float, at: datetime | None) -> Wanted:
    """GPUs held by pool: the mean of the readings of each slot, and the quota as cap."""
    slot = timedelta(hours=slot_hours)
    readings = table if at is None else table.filter(pl.col("time") < at)
    if readings.is_empty():
        raise _nothing_before(at)
    times = readings.select(
        first=pl.col("time").min(),
        last=pl.col("time").max(),
        every=pl.col("time").unique().sort().diff().median(),
    ).row(0, named=True)
    start = _floor(times["first"], slot)
    # The last slot counts if it was read to its end.
    slots = (times["last"] + (times["every"] or slot) - start) // slot
    named = pl.format("{}/{}", "pool", pl.col("resource").cast(pl.String))
    rows = readings.with_columns(unique_id=named, y=pl.col("allocated"))
    remark = "readings of what was held: no jobs are known, and the quota is the most that can be held"
    return _of_readings(rows, start, slots, slot_hours, remark)


def sampled(samples: pl.LazyFrame, slot_hours: float, at: datetime | None) -> Wanted:
    """Devices held, by profile, from telemetry alone: one that a job is known on, that works or has a process on it."""
    before = samples if at is None else samples.filter(pl.col("time") < at)
    seen = hourly(before).filter(pl.col("samples") > 0)
    if seen.is_empty():
        raise _nothing_before(at)
    held = (
        pl.col("job_id").is_not_null()
        | (pl.col("sm_activity") >= USED_FROM).fill_null(False)
        | (pl.col("memory_peak_gib") >= PROCESS_FROM_GIB).fill_null(False)
    )
    kinds = devices_of(samples).drop_nulls("kind")  # of a cut GPU its instances alone
    profile = pl.when(pl.col("kind") == "").then(pl.lit(WHOLE_GPU)).otherwise(pl.col("kind"))
    rows = (
        seen.group_by("hour", *DEVICE_KEY)
        .agg(share=(pl.col("samples") * held).sum() / pl.col("samples").sum())
        .join(
            kinds.select(*DEVICE_KEY, unique_id=pl.format(POOL + "/{}", profile)),
            on=DEVICE_KEY,
            nulls_equal=True,
        )
        .group_by("unique_id", time="hour")
        .agg(y=pl.col("share").sum(), total=pl.len())
    )
    first, last = (rows.select(one).item() for one in (pl.col("time").min(), pl.col("time").max()))
    slot = timedelta(hours=slot_hours)
    start = _floor(first, slot)
    remark = (
        "telemetry alone: forecast are devices held (with a job, at work, or with a process on them), not what people "
        "wait for; at most those that were seen"
    )
    return _of_readings(rows, start, (last + HOUR - start) // slot, slot_hours, remark)


def _of_readings(rows: pl.DataFrame, start: datetime, slots: int, slot_hours: float, remark: str) -> Wanted:
    """Lay out readings ``time, unique_id, y, total``: means by slot, and the largest total as cap."""
    if slots < 2:
        text = message("forecast: readings", "two whole slots", f"{max(slots, 0)}", "Read for longer.")
        raise ScenarioError(text)
    place = (pl.col("time") - start).dt.total_microseconds() // round(slot_hours * 3.6e9)
    by_slot = (
        rows.with_columns(place=place)
        .filter(pl.col("place") < slots)
        .group_by("unique_id", "place")
        .agg(pl.col("y").mean(), pl.col("total").max())
    )
    ids = tuple(by_slot["unique_id"].unique().sort())
    values = np.full((len(ids), slots), np.nan)
    at = by_slot["unique_id"].cast(pl.Enum(ids)).to_physical().to_numpy()
    values[at, by_slot["place"].to_numpy()] = by_slot["y"].to_numpy()
    caps = dict(by_slot.group_by("unique_id").agg(pl.col("total").max()).sort("unique_id").iter_rows())
    sums = {}
    kinds = {uid.rpartition("/")[2] for uid in ids}
    if len(ids) > 1 and len(kinds) == 1:
        whole = f"{POOL}/{kinds.pop()}"
        values = np.concatenate([values, values.sum(axis=0, keepdims=True)])
        caps[whole] = sum(caps.values())
        sums[whole] = ids
        ids = (*ids, whole)
    gaps = int(np.isnan(values).sum())
    gap_remarks = (f"{gaps:,} slots without a reading carry the last value on",) if gaps else ()
    remarks = (remark, *gap_remarks, *_short(timedelta(hours=slots * slot_hours)))
    return Wanted(start, slots, slot_hours, ids, None, values, caps, remarks, sums=sums)


def _nothing_before(at: datetime | None) -> ScenarioError:
    text = message("forecast: readings", f"some before {at}", "none", "Choose a later origin.")
    return ScenarioError(text)


def _floor(instant: datetime, slot: timedelta) -> datetime:
    day = instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day + (instant - day) // slot * slot
