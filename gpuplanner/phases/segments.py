"""Phases: stretches of a job in which activity, memory and power keep their levels."""

from __future__ import annotations

import itertools
from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner._optional import import_optional
from gpuplanner.phases.signals import IDLE_BELOW, LEAST_NOISE, Signals, rows_of, signals_of

LABELS = ("setup", "ramp", "steady", "long-context", "reduced", "input-stall", "decay", "cool-down", "idle")
"""What a phase looks like.

setup
    Without activity, before there was any.
ramp
    Below 85 % of the highest level of the job, before that was reached.
steady
    At least that.
long-context
    At least that, with a tenth more memory than the first steady phase.
reduced
    Below 85 % of the highest level, between steady phases.
input-stall
    Without activity between active phases, while the memory stays held as in the phase before: it waits for input, for
    its host or for somebody.
decay
    Below 85 % of the highest level, after it was left for good.
cool-down
    Without activity after the last of it: GPUs are still held, for saving, copying or because nobody ended the job.
idle
    Without activity between active phases, with other memory.
"""
STEADY_FROM = 0.85
MORE_MEMORY = 1.10
SAME_MEMORY = 0.05
"""Share by which the memory of a stall may differ from that of the phase before."""
SAME_LEVEL = 2.0
"""Neighbouring phases whose medians differ by less, in standard deviations of the noise, are one."""
SAME_SHARE = 0.12
"""So are those whose medians differ by a smaller share of the highest level of the job: meters wander."""
LEAST_SETUP = 2
"""Fewest rows without activity that are a set-up."""
EXACT_ROWS = 100_000
"""Above so many rows, binary segmentation stands in for PELT."""


def find_phases(samples: pl.DataFrame, *, step: timedelta | None = None) -> pl.DataFrame:
    """Part the telemetry of one job into phases.

    Change points are sought jointly in SM activity, memory and power, each in units of its noise (from the
    median absolute deviation of first differences), by PELT with squared error and the penalty
    2 sigma^2 ln n, where sigma^2 is the noise of all signals together. What is shorter than a phase, such
    as the stall of a checkpoint, is bridged first; neighbours with equal medians are joined after, and so are
    two phases of one level with only a dip between them. The set-up ends where activity begins, and may be shorter
    than a phase. Stretches without readings say nothing.

    The shortest phase lasts ten minutes and no fewer than ten steps, of a job shorter than an hour ten steps, and four
    of a run of minutes cut into seconds.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job.
    step : timedelta, optional
        Distance at which samples are averaged; by default a minute, less for a short job that was sampled more
        often, more where the readings are farther apart.

    Returns
    -------
    polars.DataFrame
        ``phase`` (from 1), ``start``, ``end``, the means ``sm_activity``, ``memory_used_gib`` [GiB] and
        ``power_w`` [W] over all its samples (null where never seen), ``label`` (one of :data:`LABELS`; null
        without activity).

    Raises
    ------
    SchemaError
        If the samples are of several jobs.
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
    signals = signals_of(samples, step)
    ends = _change_points(signals, rows_of(signals))
    phase = np.searchsorted(ends, np.arange(signals.table.height), side="right") + 1
    return (
        signals.table.with_columns(phase=pl.Series(phase, dtype=pl.Int32))
        .group_by("phase", maintain_order=True)
        .agg(
            pl.col("time").first().alias("start"),
            (pl.col("time").last() + signals.step).alias("end"),
            *(pl.col(name).mean() for name in LEAST_NOISE),
        )
        .with_columns(label=_label())
    )


def _label() -> pl.Expr:
    activity, memory = pl.col("sm_activity"), pl.col("memory_used_gib")
    idle, steady = activity < IDLE_BELOW, activity >= STEADY_FROM * activity.max()
    held = (memory / memory.shift() - 1).abs() <= SAME_MEMORY
    first_memory = memory.filter(steady & ~idle).first()
    return (
        pl.when(activity.is_null())
        .then(None)
        .when(idle & (idle.not_().cum_sum() == 0))
        .then(pl.lit("setup"))
        .when(idle & (idle.not_().cum_sum(reverse=True) == 0))
        .then(pl.lit("cool-down"))
        .when(idle & held.fill_null(False))
        .then(pl.lit("input-stall"))
        .when(idle)
        .then(pl.lit("idle"))
        .when(steady & (memory >= MORE_MEMORY * first_memory).fill_null(False))
        .then(pl.lit("long-context"))
        .when(steady)
        .then(pl.lit("steady"))
        .when((steady & ~idle).cum_sum() == 0)
        .then(pl.lit("ramp"))
        .when((steady & ~idle).reverse().cum_sum().reverse() == 0)
        .then(pl.lit("decay"))
        .otherwise(pl.lit("reduced"))
    )


def _change_points(signals: Signals, shortest: int) -> np.ndarray:
    """Rows at which a phase ends, the last row's end included."""
    rows = signals.table.height
    seen = np.flatnonzero(signals.table["seen"].to_numpy())
    if len(seen) < 2 * shortest:
        return np.array([rows])
    noise = {name: signals.noise(name) for name in signals.names}
    bridged = np.column_stack(
        [signals.without_spikes(name, shortest).to_numpy()[seen] / noise[name] for name in signals.names]
    )
    penalty = 2 * len(signals.names) * float(np.log(len(seen)))
    if len(seen) > EXACT_ROWS:
        ends = binary_segmentation(bridged, shortest, penalty)
    else:
        ruptures = import_optional("ruptures", extra="phases")
        # With a linear kernel this is PELT on squared error, compiled: same answer in a thousandth of the time.
        search = ruptures.KernelCPD(kernel="linear", min_size=shortest)
        ends = search.fit(bridged).predict(pen=penalty)
    least = np.maximum(SAME_LEVEL, SAME_SHARE * np.abs(bridged).max(axis=0))
    kept = _merged(bridged, _without_dips(bridged, ends, shortest, least), least)
    if "sm_activity" in signals.names:
        kept = _with_setup(kept, bridged[:, 0] * noise["sm_activity"], shortest)
    return np.array([*(seen[end] for end in kept[:-1]), rows])


def _with_setup(ends: list[int], activity: np.ndarray, shortest: int) -> list[int]:
    """End the set-up where activity begins, even if it was shorter than a phase."""
    begins = int((activity >= IDLE_BELOW).argmax())
    if not LEAST_SETUP <= begins < len(activity) - shortest:
        return ends
    return sorted({begins} | {end for end in ends if abs(end - begins) >= shortest})


def _without_dips(scaled: np.ndarray, ends: list[int], shortest: int, least: np.ndarray) -> list[int]:
    """Join what lies on one level before and after a dip: fewer rows than a phase off that level."""
    kept = [0, *ends]
    at = 1
    while at + 2 < len(kept):
        begin, start, end, stop = kept[at - 1 : at + 3]
        before, after = (np.median(scaled[a:b], axis=0) for a, b in ((begin, start), (end, stop)))
        off = (np.abs(scaled[start:end] - before) >= least).any(axis=1)
        if (np.abs(before - after) < least).all() and off.sum() < shortest:
            del kept[at : at + 2]
            at = max(1, at - 1)
        else:
            at += 1
    return kept[1:]


def _merged(scaled: np.ndarray, ends: list[int], least: np.ndarray) -> list[int]:
    """Join neighbours with the same medians: what set them apart were single rows, not a level."""
    kept: list[int] = []
    begin = 0
    for end, following in itertools.pairwise(ends):
        step = np.median(scaled[begin:end], axis=0) - np.median(scaled[end:following], axis=0)
        if (np.abs(step) >= least).any():
            kept.append(end)
            begin = end
    return [*kept, len(scaled)]


def binary_segmentation(signal: np.ndarray, shortest: int, penalty: float) -> list[int]:
    """Split a signal where that lowers its squared error most, and its parts again, while it pays.

    References
    ----------
    Scott, Knott, "A cluster analysis method for grouping means in the analysis of variance", Biometrics 30(3),
    1974.

    Examples
    --------
    >>> binary_segmentation(np.repeat([[0.0], [9.0], [4.0]], 50, axis=0), shortest=5, penalty=20.0)
    [50, 100, 150]
    """
    sums = np.vstack([np.zeros(signal.shape[1]), np.cumsum(signal, axis=0)])
    found: list[int] = []
    open_parts = [(0, len(signal))]
    while open_parts:
        begin, end = open_parts.pop()
        splits = np.arange(begin + shortest, end - shortest + 1)
        if not len(splits):
            continue
        left, right = (splits - begin)[:, None], (end - splits)[:, None]
        apart = (sums[splits] - sums[begin]) / left - (sums[end] - sums[splits]) / right
        gains = (apart**2).sum(axis=1) * (left * right).ravel() / (end - begin)
        best = int(gains.argmax())
        if gains[best] > penalty:
            split = int(splits[best])
            found.append(split)
            open_parts += [(begin, split), (split, end)]
    return [*sorted(found), len(signal)]
