"""Short dips of activity, such as checkpoints and evaluations, and whether they come at a regular pace."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner.phases.signals import SPIKE, signals_of

REGULAR_BELOW = 0.15
"""Coefficient of variation of the gaps up to which dips count as periodic."""
MEMORY_CHANGE = 0.05
"""Share by which memory must change for a dip to look like an evaluation."""


@dataclass(frozen=True)
class Spikes:
    """Dips of one job.

    Parameters
    ----------
    table : polars.DataFrame
        ``start``, ``end``, ``depth`` (mean drop of SM activity), ``memory_change`` (mean change of memory, as
        a share; null if not seen) and ``label``: "evaluation" if memory changes as well, else "checkpoint".
    period : timedelta or None
        Distance of the starts if they are regular, else None.
    """

    table: pl.DataFrame
    period: timedelta | None


def find_spikes(
    samples: pl.DataFrame,
    *,
    step: timedelta = timedelta(minutes=1),
    shortest_phase: timedelta = timedelta(minutes=10),
) -> Spikes:
    """Find dips of SM activity that are shorter than a phase, and their period.

    A dip is a stretch in which activity lies 5 standard deviations of the noise below its level both before
    and after.
    The period is that of most dips: gaps between the starts that vary by less than 15 % once every multiple
    of the median gap is divided down, so that a dip missed or hidden does not hide the pace.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job.
    step : timedelta
        Distance at which samples are averaged.
    shortest_phase : timedelta
        What lasts as long is a phase, not a dip (see :func:`gpuplanner.phases.find_phases`).

    Returns
    -------
    Spikes
        Dips in order of time, and the period if there are at least three and they are regular.

    Raises
    ------
    SchemaError
        If the samples are of several jobs.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> times = [datetime(2026, 2, 2, 9, tzinfo=UTC) + timedelta(minutes=minute) for minute in range(200)]
    >>> samples = pl.DataFrame({"time": times, "sm_activity": ([0.8] * 48 + [0.1] * 2) * 4})
    >>> samples = samples.with_columns(node=pl.lit("n1"), gpu=0, activity_source=pl.lit("profiling"))
    >>> spikes = find_spikes(samples)
    >>> spikes.table.height, spikes.period
    (3, datetime.timedelta(seconds=3000))
    """
    signals = signals_of(samples, step)
    rows = shortest_phase // step
    drop = signals.around("sm_activity", rows)["low"] - signals.table["sm_activity"]
    usual_memory = signals.around("memory_used_gib", rows)["low"]
    dips = (
        signals.table.with_columns(
            drop=drop,
            dip=(drop > SPIKE * signals.noise("sm_activity")).fill_null(False),
            memory=signals.table["memory_used_gib"] / usual_memory - 1,
        )
        .with_columns(stretch=pl.col("dip").rle_id())
        .filter("dip")
        .group_by("stretch", maintain_order=True)
        .agg(
            start=pl.col("time").first(),
            end=pl.col("time").last() + step,
            depth=pl.col("drop").mean(),
            memory_change=pl.col("memory").mean(),
        )
    )
    evaluation = (pl.col("memory_change").abs() >= MEMORY_CHANGE).fill_null(False)
    table = dips.drop("stretch").with_columns(
        label=pl.when(evaluation).then(pl.lit("evaluation")).otherwise(pl.lit("checkpoint"))
    )
    return Spikes(table, _period(table["start"]))


def _period(starts: pl.Series) -> timedelta | None:
    gaps = starts.diff().drop_nulls().dt.total_seconds().to_numpy().astype(np.float64)
    if len(gaps) < 2:
        return None
    times = np.maximum(np.round(gaps / np.median(gaps)), 1)
    single = gaps / times
    regular = single.std() < REGULAR_BELOW * single.mean()
    return timedelta(seconds=round(float(np.median(single)))) if regular else None
