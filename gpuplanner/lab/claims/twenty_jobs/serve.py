"""Run requests through the event simulator, with what a wrong profile leads to: slower runs and restarts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.hardware import format_layout, prove
from gpuplanner.lab.claims.twenty_jobs.arrange import Arrangement
from gpuplanner.lab.claims.twenty_jobs.design import Design
from gpuplanner.lab.claims.twenty_jobs.speed import capacities, demand, rate
from gpuplanner.simulate import Calendar, Fleet, Rules, Run, simulate

LEAD_S = 1.0
"""The jobs are queued at this instant, with the static layout in place and nothing running; so a change of
layout, which happens in the same instant and before jobs start, is seen and charged by the simulator."""

MINUTE_S = 60.0


@dataclass(frozen=True)
class ServedBatch:
    """What became of a batch.

    Parameters
    ----------
    attempts : polars.DataFrame
        One row per attempt: ``job_id`` (that of the job), ``attempt``, the columns of the job, ``profile``
        (what it ran on), ``dies`` (it runs out of memory), ``start_min`` and ``end_min`` after the queueing
        (null if it never ran), and ``rate`` (capacity used while it ran).
    run : Run
        The simulator's own account, on its own clock.
    """

    attempts: pl.DataFrame
    run: Run


def serve(
    jobs: pl.DataFrame, arrangement: Arrangement, design: Design, *, speed: str = "slices"
) -> ServedBatch:
    """Serve a batch first come, first served, each job only on exactly the profile it was given.

    A job whose peak memory is more than its instance holds dies when it gets there, and starts again from
    nothing with the profile its owner asked for. The first such restart has a GPU that is off, if there is
    one, cut into instances of that profile, which takes the time of a reconfiguration.

    Parameters
    ----------
    jobs : polars.DataFrame
        From :func:`gpuplanner.lab.claims.twenty_jobs.draw.draw`, all queued at once.
    arrangement : Arrangement
        Layouts, and the profile of each job.
    design : Design
        The fleet.
    speed : str
        One of :data:`gpuplanner.lab.claims.twenty_jobs.speed.SPEEDS`.

    Returns
    -------
    ServedBatch

    Examples
    --------
    >>> from gpuplanner.lab.claims.twenty_jobs.arrange import arrange
    >>> from gpuplanner.lab.claims.twenty_jobs.draw import draw
    >>> jobs = draw(Design(), seed=0)
    >>> served = serve(jobs, arrange(jobs["need"].to_list(), Design(), "exact"), Design())
    >>> served.attempts.height, sorted(set(served.attempts["start_min"]))  # those on GPUs cut anew start later
    (20, [0.0, 1.0])
    """
    attempts = _attempts(
        jobs.with_columns(profile=pl.Series(arrangement.given, dtype=pl.String)), design, speed, 1
    )
    served = _simulated(attempts, _calendar(arrangement, design, None), design)
    switched_at, done = None, 0
    while (
        dead := served.attempts.filter("dies", pl.col("end_min").is_not_null()).sort("end_min")
    ).height > done:
        # In order of death: one restart cannot change what happened before it, but can delay later deaths.
        first = (
            dead[done].select(jobs.columns).with_columns(profile="asks_for", submit_min=dead[done, "end_min"])
        )
        if switched_at is None and arrangement.gpus < design.gpus:
            switched_at = (float(dead[done, "end_min"]), str(dead[done, "asks_for"]))
        attempts = pl.concat([attempts, _attempts(first, design, speed, 2)])
        served = _simulated(attempts, _calendar(arrangement, design, switched_at), design)
        done += 1
    return served


def _attempts(jobs: pl.DataFrame, design: Design, speed: str, attempt: int) -> pl.DataFrame:
    """Attempts with the time that each takes on its profile, and whether it dies."""
    capacity = capacities(design.board, speed)
    memory = {profile.name: profile.memory_gib for profile in design.model.profiles}
    ran = jobs.filter(pl.col("profile").is_not_null())
    used = np.full(jobs.height, np.nan)
    used[jobs["profile"].is_not_null().to_numpy()] = rate(ran, ran["profile"], capacity)
    limit = pl.col("profile").replace_strict(memory, return_dtype=pl.Float64)
    return jobs.with_columns(
        rate=used,
        attempt=pl.lit(attempt),
        dies=(pl.col("memory_gib") > limit).fill_null(False),
        hold_min=pl.col("run_min") * demand(jobs, capacity) / used,
    ).with_columns(
        hold_min=pl.when("dies").then(pl.col("hold_min") * pl.col("peak_at_share")).otherwise("hold_min")
    )


def _simulated(attempts: pl.DataFrame, calendar: Calendar, design: Design) -> ServedBatch:
    """One run of the simulator; every time of its clock is the case's time and the lead."""
    placed = attempts.filter(pl.col("profile").is_not_null())
    workload = placed.select(
        job_id=pl.format("{}/{}", "job_id", "attempt"),
        tenant="kind",
        submit_s=LEAD_S + MINUTE_S * pl.col("submit_min"),
        run_s=MINUTE_S * pl.col("hold_min"),
        gpus=pl.lit(1, pl.Int32),
        profile="profile",
    )
    rules = Rules(queue="strict", substitute=False, change=design.change)
    run = simulate(workload, _fleet(design), calendar, rules, policy="case", leave_unservable=True)
    times = run.outcomes.select(
        job_id=pl.col("job_id").str.split("/").list.first(),
        attempt=pl.col("job_id").str.split("/").list.last().cast(pl.Int32),
        start_min=(pl.col("first_start") - LEAD_S) / MINUTE_S,
        end_min=(pl.col("end") - LEAD_S) / MINUTE_S,
    )
    return ServedBatch(attempts.join(times, on=["job_id", "attempt"], how="left", maintain_order="left"), run)


@functools.lru_cache(maxsize=64)
def _fleet(design: Design) -> Fleet:
    return Fleet(design.board, nodes=1, gpus_per_node=design.gpus)


def _calendar(arrangement: Arrangement, design: Design, spare: tuple[float, str] | None) -> Calendar:
    """The static layout, then the arrangement, then one GPU more for restarts."""
    rows = [{design.static_layout: design.gpus}]
    starts = [0.0]
    if dict(arrangement.layouts) != rows[0]:
        rows.append(dict(arrangement.layouts))
        starts.append(LEAD_S)
    if spare is not None:
        at_min, profile = spare
        most = max(n for n in range(1, design.model.compute_slices + 1) if prove(design.model, {profile: n}))
        layout = format_layout({profile: most})
        rows.append(rows[-1] | {layout: rows[-1].get(layout, 0) + 1})
        starts.append(LEAD_S + MINUTE_S * at_min)
    layouts = tuple(dict.fromkeys(layout for row in rows for layout in row))
    counts = np.array([[row.get(layout, 0) for layout in layouts] for row in rows])
    return Calendar(np.array(starts), layouts, counts)
