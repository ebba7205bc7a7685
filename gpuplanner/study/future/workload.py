"""The jobs of one replication, carried over from the past and drawn from past days, and whether these are enough."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner.scenario import Scenario
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.simulate.replications import bootstrap_days
from gpuplanner.simulate.replications import SATURDAY
from gpuplanner.study.past.history import VIEWS, History, history

LIMIT_FACTOR = 2.0
"""Run-time limit over run time where the source has no limits: people ask for twice what they need."""
SPARE_SLOTS = 2
"""Slots that a forecast needs beside as many as it tells."""


def past_jobs(known: History) -> pl.DataFrame:
    """Jobs of the recent past, once, with what each view asks for."""
    base = known.views["whole"].select(
        "key",
        "tenant",
        "submit_time",
        "start_time",
        "end_time",
        pl.col("state").cast(pl.String),
        "run_s",
        limit_s=pl.max_horizontal(pl.col("time_limit_s"), "run_s").fill_null(LIMIT_FACTOR * pl.col("run_s")),
    )
    asks = [
        known.views[view].select(
            pl.col("profile").alias(f"profile_{view}"),
            pl.col("instances").alias(f"instances_{view}"),
            pl.col("sms_needed").alias(f"sms_{view}"),
        )
        for view in VIEWS
    ]
    return pl.concat([base, *asks], how="horizontal").filter(pl.col("run_s").is_not_null())


def replicate(scenario: Scenario, known: History, past: pl.DataFrame, replication: int) -> pl.DataFrame:
    """Jobs of one replication, the same for every policy.

    Jobs that run or wait when the plan begins come first, with the rest of their run time; the days of the
    horizon are drawn from past days of the same kind.
    """
    days = int(np.ceil(scenario.horizon_slots * scenario.slot_hours / 24))
    open_jobs = past.filter(pl.col("end_time").is_null() & pl.col("state").is_in(["RUNNING", "PENDING"]))
    age_s = (pl.lit(known.plan_start) - pl.col("start_time")).dt.total_microseconds() / 1e6
    carried = open_jobs.with_columns(
        job_id="key",
        submit_s=pl.when(pl.col("state") == "RUNNING").then(-2.0).otherwise(-1.0),
        run_s=(pl.col("run_s") - age_s.fill_null(0.0)).clip(lower_bound=1.0),
        limit_s=(pl.col("limit_s") - age_s.fill_null(0.0)).clip(lower_bound=1.0),
    ).sort("submit_s", "start_time", "submit_time", "key")
    drawn = bootstrap_days(
        days_to_draw(known, past).rename({"key": "job_id"}).drop("start_time", "end_time", "state"),
        days=days,
        seed=scenario.seed,
        replication=replication,
        start_weekday=known.plan_start.isoweekday(),
    )
    horizon_s = scenario.horizon_slots * scenario.slot_s
    arrivals = scaled_arrivals(drawn.filter(pl.col("submit_s") < horizon_s), scenario, replication)
    columns = [name for name in arrivals.columns if name in carried.columns]
    return pl.concat([carried.select(columns), arrivals.select(columns)])


def days_to_draw(known: History, past: pl.DataFrame) -> pl.DataFrame:
    """Jobs of the whole days of the recent past, from which days of the horizon are drawn."""
    # Days that either end of the recent past cuts are left out.
    first_midnight = pl.lit(known.recent).dt.offset_by("-1us").dt.truncate("1d").dt.offset_by("1d")
    last_midnight = pl.lit(known.plan_start).dt.truncate("1d")
    submit_time = pl.col("submit_time")
    whole_days = past.filter(submit_time >= first_midnight, submit_time < last_midnight)
    return whole_days if whole_days.height else past.filter(pl.col("submit_time") >= known.recent)


def workload(jobs: pl.DataFrame, view: str) -> pl.DataFrame:
    """The jobs as one view asks for them, in the form that the simulator reads.

    A request for several slices runs as that many single slices: the simulator's jobs hold one instance.
    """
    asked = jobs.with_columns(
        profile=f"profile_{view}", instances=f"instances_{view}", sms_needed=f"sms_{view}"
    ).filter(pl.col("profile").is_not_null() & (pl.col("instances") > 0))
    whole = pl.col("profile") == WHOLE_GPU
    several = pl.col("instances") > 1
    exploded = (
        asked.with_columns(copy=pl.when(whole).then(1).otherwise("instances"))
        .with_columns(copy=pl.int_ranges(1, pl.col("copy") + 1))
        .explode("copy")
        .with_columns(
            gpus=pl.when(whole).then("instances").otherwise(1).cast(pl.Int32),
            job_id=pl.when(whole | ~several).then("job_id").otherwise(pl.format("{}.{}", "job_id", "copy")),
        )
    )
    return exploded.select(
        "job_id", "tenant", "submit_s", "run_s", "gpus", "profile", "sms_needed", "limit_s"
    )  # fmt: skip


def scaled_arrivals(jobs: pl.DataFrame, scenario: Scenario, replication: int) -> pl.DataFrame:
    """Thin or multiply arrivals by the scenario's factor; copies come a little later than the original."""
    if scenario.arrival_scale == 1:
        return jobs
    rng = np.random.default_rng([scenario.seed, replication, 7])
    copies = np.floor(scenario.arrival_scale + rng.random(jobs.height)).astype(np.int64)
    counted = jobs.with_columns(copy=pl.int_ranges(0, pl.Series(copies)))
    repeated = counted.explode("copy", empty_as_null=False)
    first = pl.col("copy") == 0
    return (
        repeated.with_columns(
            submit_s=pl.when(first).then("submit_s").otherwise(pl.col("submit_s") + 60.0 * pl.col("copy")),
            job_id=pl.when(first).then("job_id").otherwise(pl.format("{}+{}", "job_id", "copy")),
        )
        .sort("submit_s", maintain_order=True)
        .drop("copy")
    )


def too_short(scenario: Scenario) -> str | None:
    """Why no plan can be made of so short a past, in words; None where it is long enough.

    Examples
    --------
    >>> too_short(Scenario(month="2026-02"))
    >>> too_short(Scenario(month="2026-02", history_days=3))
    'the history has 72 hours, and a forecast of 168 hours needs at least 170'
    """
    known = history(scenario)
    seen = (known.plan_start - known.recent) / timedelta(hours=1)
    ahead = scenario.horizon_slots * scenario.slot_hours
    needed = ahead + SPARE_SLOTS * scenario.slot_hours
    if seen < needed:
        return f"the history has {seen:g} hours, and a forecast of {ahead:g} hours needs at least {needed:g}"
    return _missing_days(known, ahead)


def _missing_days(known: History, ahead_h: float) -> str | None:
    """Working days are drawn from working days, days of weekends from such."""
    past = days_to_draw(known, past_jobs(known))
    if past.is_empty():
        return "no job was submitted in the history"
    submit_day = pl.col("submit_time").dt.date()
    seen = past.select(pl.date_range(submit_day.min(), submit_day.max()))
    kinds = set((seen.to_series().dt.weekday() >= SATURDAY).to_list())
    days = -(-int(ahead_h) // 24)
    coming = {(known.plan_start + timedelta(days=day)).isoweekday() >= SATURDAY for day in range(days)}
    for weekend, name in ((False, "working day"), (True, "day of a weekend")):
        if weekend in coming - kinds:
            return f"the history has no {name}, and the horizon has"
    return None
