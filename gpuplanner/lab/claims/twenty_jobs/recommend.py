"""Right-sized requests from the telemetry of a short profiling run. The truth is seen only through noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.lab.claims.twenty_jobs.design import Design, Range
from gpuplanner.lab.claims.twenty_jobs.draw import TELEMETRY, generator, within
from gpuplanner.lab.claims.twenty_jobs.speed import capacities, demand
from gpuplanner.sizing import rightsize
from gpuplanner.sizing.profile_sizes import plain_profiles

_MORNING = datetime(2026, 1, 5, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Profiling:
    """What a profiling run sees, and how requests are read from it.

    Parameters
    ----------
    minutes : int
        Length of the run on the profile that was asked for, one sample a minute.
    level_seen : tuple of float
        Activity during the run as a share of that of the whole job; below 1 where it is still warming up.
    peak_seen : tuple of float
        Highest memory during the run as a share of the later peak.
    activity_error : float
        Standard deviation of the whole run's activity against the job's, relative: not averaged out.
    minute_noise : float
        Standard deviation from minute to minute, relative.
    accepted_slowdown : float
        A profile counts as large enough if it is short of SMs by no more than this share.
    memory_headroom : float
        Share added to the highest memory seen.
    """

    minutes: int = 10
    level_seen: Range = (1.0, 1.0)
    peak_seen: Range = (0.9, 1.0)
    activity_error: float = 0.02
    minute_noise: float = 0.05
    accepted_slowdown: float = 0.05
    memory_headroom: float = 0.10


def observe(jobs: pl.DataFrame, design: Design, seed: int, profiling: Profiling) -> pl.DataFrame:
    """Run each job for some minutes on what it asks for, and sample it: the one place where truth is seen.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Samples``, one row per job and minute, on an instance of the profile asked for.

    Examples
    --------
    >>> from gpuplanner.lab.claims.twenty_jobs.draw import draw
    >>> samples = observe(draw(Design(), 0), Design(), 0, Profiling())
    >>> samples.height, samples["sm_activity"].max() <= 1
    (200, True)
    """
    rng = generator(seed, TELEMETRY)
    n, minutes = jobs.height, profiling.minutes
    sms = {profile.name: profile.sms for profile in design.model.profiles}
    memory = {profile.name: profile.memory_gib for profile in design.model.profiles}
    busy = jobs["fill"].to_numpy() * jobs["need"].replace_strict(sms, return_dtype=pl.Float64).to_numpy()
    held = jobs["asks_for"].replace_strict(sms, return_dtype=pl.Float64).to_numpy()
    limit = jobs["asks_for"].replace_strict(memory, return_dtype=pl.Float64).to_numpy()
    level = within(profiling.level_seen, rng.random(n)) * (
        1 + profiling.activity_error * rng.standard_normal(n)
    )
    wobble = 1 + profiling.minute_noise * rng.standard_normal((n, minutes))
    activity = ((busy / held * level)[:, None] * wobble).clip(0.0, 1.0)
    peak = np.minimum(jobs["memory_gib"].to_numpy() * within(profiling.peak_seen, rng.random(n)), limit)
    climb = 0.8 + 0.2 * rng.random((n, minutes))  # allocators hold most of it from the first minute on
    climb[np.arange(n), rng.integers(minutes, size=n)] = 1.0
    return pl.DataFrame(
        {
            "time": [_MORNING + timedelta(minutes=minute) for minute in range(minutes)] * n,
            "node": "profiling",
            "gpu": np.repeat(np.arange(n), minutes),
            "instance": 0,
            "profile": np.repeat(jobs["asks_for"].to_numpy(), minutes),
            "job_id": np.repeat(jobs["job_id"].to_numpy(), minutes),
            "sm_activity": activity.ravel(),
            "memory_used_gib": (peak[:, None] * climb).ravel(),
            "activity_source": "profiling",
        },
        schema_overrides={"gpu": pl.Int32, "instance": pl.Int32},
    )


def recommend(asked: pl.DataFrame, samples: pl.DataFrame, design: Design, profiling: Profiling) -> list[str]:
    """Smallest profile that covers the activity and memory seen; never more than was asked for.

    Parameters
    ----------
    asked : polars.DataFrame
        ``job_id`` and ``asks_for``: all that a policy may know of a job besides its samples.
    samples : polars.DataFrame
        From :func:`observe`.
    design : Design
        For the board.
    profiling : Profiling
        For the slow-down accepted and the headroom.

    Returns
    -------
    list of str
        Profiles in the order of `asked`.

    Examples
    --------
    >>> from gpuplanner.lab.claims.twenty_jobs.draw import draw
    >>> jobs = draw(Design(), 0)
    >>> found = recommend(
    ...     jobs.select("job_id", "asks_for"), observe(jobs, Design(), 0, Profiling()), Design(), Profiling()
    ... )
    >>> sum(one == need for one, need in zip(found, jobs["need"], strict=True))
    20
    """
    by_size = plain_profiles(design.model)
    sms = {profile.name: float(profile.sms or 0) for profile in by_size}
    seen = samples.group_by("job_id").agg(pl.col("sm_activity").mean(), pl.col("memory_used_gib").max())
    wanted = (
        asked.select("job_id", "asks_for")
        .join(seen, on="job_id", maintain_order="left")
        .with_columns(
            sms=pl.col("sm_activity") * pl.col("asks_for").replace_strict(sms),
            memory_gib=pl.col("memory_used_gib") * (1 + profiling.memory_headroom),
        )
    )
    found = []
    for asks_for, used_sms, memory_gib in wanted.select("asks_for", "sms", "memory_gib").iter_rows():
        enough = (
            profile.name
            for profile in by_size
            if used_sms <= (profile.sms or 0) * (1 + profiling.accepted_slowdown)
            and memory_gib <= (profile.memory_gib or 0)
        )
        smallest = next(enough, asks_for)
        larger = design.model.profile(smallest).compute_order > design.model.profile(asks_for).compute_order
        found.append(asks_for if larger else smallest)
    return found


def shipped_rule(asked: pl.DataFrame, samples: pl.DataFrame, design: Design) -> list[str]:
    """The same decision by :func:`gpuplanner.sizing.right_profiles`, which sizes for the 95 % quantile of minutes."""
    known = asked.select(
        "job_id",
        attempt=pl.lit(1, pl.Int32),
        tenant=pl.lit("case"),
        state=pl.lit("COMPLETED"),
        submit_time=pl.lit(_MORNING),
        start_time=pl.lit(_MORNING),
        end_time=pl.lit(_MORNING + timedelta(days=1)),
        profile_requested="asks_for",
    )
    return rightsize(known, design.board, samples=samples)["profile_needed"].to_list()


def verdicts(
    jobs: pl.DataFrame, requested: Iterable[str], design: Design, speed: str = "slices"
) -> pl.Series:
    """What became of each request, by the hidden truth: for judging a recommender, never for deciding.

    Examples
    --------
    >>> job = pl.DataFrame({"need": ["2g.20gb"], "fill": [0.95], "memory_gib": [9.0]})
    >>> [verdicts(job, [one], Design()).item() for one in ("1g.10gb", "2g.20gb", "3g.40gb")]
    ['slower', 'right', 'larger']
    """
    capacity, board = capacities(design.board, speed), design.model
    found = []
    for need, wanted, memory_gib, given in zip(
        jobs["need"], demand(jobs, capacity).tolist(), jobs["memory_gib"], requested, strict=True
    ):
        if memory_gib > (board.profile(given).memory_gib or 0):
            found.append("out of memory")
        elif wanted > capacity[given]:
            found.append("slower")
        else:
            larger = board.profile(given).compute_order > board.profile(need).compute_order
            found.append("larger" if larger else "right")
    return pl.Series("verdict", found, dtype=pl.String)
