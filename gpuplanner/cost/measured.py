"""Power as it was measured: energy of boards by tenant and state, parted over the MIG instances of each board."""

from __future__ import annotations

import polars as pl

from gpuplanner.inbox.telemetry.energy import BOARD, J_PER_KWH, board_readings, board_steps
from gpuplanner.inbox.telemetry.hold_times import held_readings
from gpuplanner.inbox.telemetry.holders import (each_holder)
from gpuplanner.schemas.vocabulary import USED_FROM
from gpuplanner.units import SECONDS_PER_HOUR, WATTS_PER_KILOWATT

NOBODY = "-"


def measured_energy(samples: pl.DataFrame, jobs: pl.DataFrame, *, idle_w: float) -> pl.DataFrame:
    """Energy of the boards that telemetry saw, by who held them and whether they worked; it sums to their counters.

    What a board draws idle is parted by the slices of its instances, what it draws beyond that by their activity.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    jobs : polars.DataFrame
        ``job_id`` and ``tenant``.
    idle_w : float
        Power of the board without work [W].

    Returns
    -------
    polars.DataFrame
        ``tenant`` (``-``: nobody), ``state`` (busy, idle), ``energy_kwh``, ``gpu_hours`` and their ratio ``watts`` [W],
        sorted; steps of which no energy is known are left out.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(minutes=30 * n) for n in range(3)], "node": "n1", "gpu": 0, "instance": None}
    >>> read |= {"profile": None, "job_id": ["1", "1", None], "sm_activity": [0.9, 0.0, None], "power_w": 500.0}
    >>> read = pl.DataFrame(read | {"energy_counter_j": [0.0, 900000.0, 1080000.0]})
    >>> jobs = pl.DataFrame({"job_id": ["1"], "tenant": ["a"]})
    >>> seen = measured_energy(read, jobs, idle_w=70.0)
    >>> seen.select("tenant", "state", pl.col("energy_kwh", "watts").round(6)).rows()
    [('a', 'busy', 0.25, 500.0), ('a', 'idle', 0.05, 100.0)]
    """
    steps = (
        board_steps(held_readings(board_readings(samples), BOARD))
        .drop_nulls("energy_j")
        .select(pl.col("reading").alias("time"), *BOARD, "energy_j", "step_s")
    )
    slices = pl.col("profile").cast(pl.String).str.extract(r"^(\d+)g").cast(pl.Float64).fill_null(1.0)
    each = ["time", *BOARD]
    rows = (
        each_holder(samples)
        .select(*each, "instance", "job_id", "sm_activity", slices=slices * pl.col("part"))
        .join(steps.with_row_index("piece"), on=each)
    )
    each = ["piece"]
    work = pl.col("sm_activity").fill_null(0.0) * pl.col("slices")
    by_slices = pl.col("slices") / pl.col("slices").sum().over(each)
    all_work = work.sum().over(each)
    rest = pl.min_horizontal("energy_j", pl.col("step_s") * idle_w)
    beyond = pl.when(all_work > 0).then(work / all_work).otherwise(by_slices)
    # A minute is used or idle as a whole, as in the ledger: a job that works in bursts does not rest between them.
    minute = [pl.col("time").dt.truncate("1m"), *BOARD, "instance", "job_id"]
    activity = pl.col("sm_activity").mean().over(minute).fill_null(1.0)
    works = pl.col("job_id").is_not_null() & (activity >= USED_FROM)
    known = jobs.select("job_id", pl.col("tenant").cast(pl.String)).unique("job_id", keep="last")
    parts = rows.with_columns(
        part_j=rest * by_slices + (pl.col("energy_j") - rest) * beyond,
        gpu_hours=by_slices * pl.col("step_s") / SECONDS_PER_HOUR,
        state=pl.when(works).then(pl.lit("busy")).otherwise(pl.lit("idle")),
    ).join(known, on="job_id", how="left")
    sums = parts.group_by(pl.col("tenant").fill_null(NOBODY), "state").agg(
        energy_kwh=pl.col("part_j").sum() / J_PER_KWH, gpu_hours=pl.col("gpu_hours").sum()
    )
    watts = pl.col("energy_kwh") * WATTS_PER_KILOWATT / pl.col("gpu_hours")
    return sums.filter(pl.col("gpu_hours") > 0).with_columns(watts=watts).sort("tenant", "state")
