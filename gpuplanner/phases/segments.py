"""Phases: stretches of a job in which activity, memory and power keep their levels."""

from __future__ import annotations

import itertools
from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner._optional import import_optional
from gpuplanner.errors import SchemaError, message
from gpuplanner.phases.signals import LEAST_NOISE, Signals, signals_of

LABELS = ("setup", "idle", "reduced", "steady")
"""What a phase looks like.

setup
    Without activity, before there was any.
idle
    Without activity, later.
reduced
    Active, but below 85 % of the highest level of the job.
steady
    At least that.
"""
IDLE_BELOW = 0.05
STEADY_FROM = 0.85
SAME_LEVEL = 2.0
"""Neighbouring phases whose medians differ by less, in standard deviations of the noise, are one."""


def find_phases(
    samples: pl.DataFrame,
    *,
    step: timedelta = timedelta(minutes=1),
    shortest: timedelta = timedelta(minutes=10),
) -> pl.DataFrame:
    """Part the telemetry of one job into phases.

    Change points are sought jointly in SM activity, memory and power, each in units of its noise (from the
    median absolute deviation of first differences), by PELT with squared error and the penalty
    2 sigma^2 ln n, where sigma^2 is the noise of all signals together. What is shorter than `shortest`, such
    as the stall of a checkpoint, is bridged first, and neighbours with equal medians are joined after.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job.
    step : timedelta
        Distance at which samples are averaged.
    shortest : timedelta
        Shortest phase, at least two steps.

    Returns
    -------
    polars.DataFrame
        ``phase`` (from 1), ``start``, ``end``, the means ``sm_activity``, ``memory_used_gib`` [GiB] and
        ``power_w`` [W] over all its samples (null where never seen), ``label`` (one of :data:`LABELS`; null
        without activity).

    Raises
    ------
    SchemaError
        If the samples are of several jobs, or `shortest` is too short.
    MissingDependencyError
        If ruptures is not installed.

    References
    ----------
    Killick, Fearnhead, Eckley, "Optimal detection of changepoints with a linear computational cost", JASA
    107(500), 2012, doi 10.1080/01621459.2012.737745.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> times = [datetime(2026, 2, 2, 9, tzinfo=UTC) + timedelta(minutes=minute) for minute in range(60)]
    >>> samples = pl.DataFrame({"time": times, "sm_activity": [0.0] * 20 + [0.9] * 40})
    >>> samples = samples.with_columns(node=pl.lit("n1"), gpu=0, activity_source=pl.lit("profiling"))
    >>> find_phases(samples).select("phase", pl.col("end") - pl.col("start"), "label").rows()
    [(1, datetime.timedelta(seconds=1200), 'setup'), (2, datetime.timedelta(seconds=2400), 'steady')]
    """
    if shortest < 2 * step:
        text = message(
            "phases: shortest", f"at least two steps of {step}", str(shortest), "Lengthen shortest."
        )
        raise SchemaError(text)
    signals = signals_of(samples, step)
    ends = _change_points(signals, shortest // step)
    phase = np.searchsorted(ends, np.arange(signals.table.height), side="right") + 1
    idle, top = pl.col("sm_activity") < IDLE_BELOW, pl.col("sm_activity").max()
    return (
        signals.table.with_columns(phase=pl.Series(phase, dtype=pl.Int32))
        .group_by("phase", maintain_order=True)
        .agg(
            pl.col("time").first().alias("start"),
            (pl.col("time").last() + step).alias("end"),
            *(pl.col(name).mean() for name in LEAST_NOISE),
        )
        .with_columns(
            label=pl.when(pl.col("sm_activity").is_null())
            .then(None)
            .when(idle & (idle.not_().cum_sum() == 0))
            .then(pl.lit("setup"))
            .when(idle)
            .then(pl.lit("idle"))
            .when(pl.col("sm_activity") < STEADY_FROM * top)
            .then(pl.lit("reduced"))
            .otherwise(pl.lit("steady"))
        )
    )


def _change_points(signals: Signals, shortest: int) -> np.ndarray:
    """Rows at which a phase ends, the last row's end included."""
    rows = signals.table.height
    if rows < 2 * shortest:
        return np.array([rows])
    ruptures = import_optional("ruptures", extra="phases")
    scaled = np.column_stack(
        [signals.without_spikes(name, shortest).to_numpy() / signals.noise(name) for name in signals.names]
    )
    penalty = 2 * len(signals.names) * np.log(rows)
    # With a linear kernel this is PELT on squared error, compiled: same answer in a thousandth of the time.
    search = ruptures.KernelCPD(kernel="linear", min_size=shortest)
    return _merged(scaled, search.fit(scaled).predict(pen=penalty))


def _merged(scaled: np.ndarray, ends: list[int]) -> np.ndarray:
    """Join neighbours with the same medians: what set them apart were single rows, not a level."""
    kept: list[int] = []
    begin = 0
    for end, following in itertools.pairwise(ends):
        step = np.median(scaled[begin:end], axis=0) - np.median(scaled[end:following], axis=0)
        if np.abs(step).max() >= SAME_LEVEL:
            kept.append(end)
            begin = end
    return np.array([*kept, len(scaled)])
