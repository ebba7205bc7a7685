"""Phases of jobs, such as set-up, steady training or idle time, found in telemetry."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Samples
from gpuplanner.usage.rightsizing import first_text

MIN_NOISE_BY_SIGNAL = {"sm_activity": 0.02, "memory_used_gib": 0.5, "power_w": 10.0}
"""Signals in which phases are sought, and the smallest standard deviation of noise assumed for each: meters round."""
MAX_IDLE_SM_ACTIVITY = 0.05
"""SM activity below which a GPU counts as idle [0-1]."""
MIN_SPIKE_NOISE_SDS = 5.0
"""Distance of a reading from the level around it, in standard deviations of the noise, from which it is a spike."""
MAD_TO_SIGMA = 1.4826
"""Ratio of standard deviation to median absolute deviation of normal noise."""
GRID_STEPS_S = (1, 5, 10, 15, 30, 60)
"""Steps of the time grid to choose from [s]; above the last one, the interval of the readings."""
GRID_ROWS_OF_SHORT_JOB = 600
"""Rows of the time grid of a short job, if its readings are frequent enough."""
MIN_LONG_JOB_PHASE, MIN_LONG_JOB_RUN_TIME = timedelta(minutes=10), timedelta(hours=1)
"""Shortest phase of a long job, and run time from which a job is long; dips by checkpoints are shorter and no phase."""
MIN_PHASE_ROWS = 10
"""Fewest grid rows of a phase: fewer do not distinguish a level from noise."""
MIN_PHASE_ROWS_AT_ONE_SECOND = 4
"""Fewest grid rows of a phase where a row is a second: such a job runs for minutes, too short for a checkpoint."""


@dataclass(frozen=True)
class Signals:
    """Telemetry signals of one job (SM activity, memory, power) on an even time grid.

    - ``table``, shape (n, 5): ``time``, one column for each signal, means over the job's devices, and ``seen``: whether
      the row has readings. Gaps are interpolated; a signal without any reading is null.
    - ``names``: Signals with readings.
    - ``step``: Time from row to row.
    """

    table: pl.DataFrame
    names: tuple[str, ...]
    step: timedelta

    def noise(self, name: str) -> float:
        """Return the standard deviation of the noise of a signal, from differences of neighbouring rows.

        Differences of independent noise spread by the square root of two more than the noise itself. Level shifts
        hardly change it. Idle rows are left out where there are others, as they have less noise.
        """
        active = (self.table["sm_activity"] >= MAX_IDLE_SM_ACTIVITY).fill_null(False) & self.table["seen"]
        rows = active if active.sum() >= MIN_PHASE_ROWS else self.table["seen"]
        change = self.table[name].filter(rows).diff().drop_nulls().to_numpy()
        if not len(change):
            return MIN_NOISE_BY_SIGNAL[name]
        mad = float(np.median(np.abs(change - np.median(change))))
        return max(MAD_TO_SIGMA * mad / math.sqrt(2), MIN_NOISE_BY_SIGNAL[name])

    def around(self, name: str, shortest: int) -> pl.DataFrame:
        """Return the lower and the higher of the levels before and after each row, columns ``low`` and ``high``.

        Levels are running medians, which ignore changes shorter than `shortest` rows. A row below ``low`` or above
        ``high`` is part of a spike; at a step between two levels it equals one of them.
        """
        signal, rows = self.table[name], 2 * shortest - 1
        before = signal.rolling_median(rows, min_samples=1)
        after = signal.reverse().rolling_median(rows, min_samples=1).reverse()
        levels = pl.DataFrame({"before": before, "after": after})
        return levels.select(low=pl.min_horizontal(pl.all()), high=pl.max_horizontal(pl.all()))

    def without_spikes(self, name: str, shortest: int) -> pl.Series:
        """Return a signal with its spikes replaced by linear interpolation."""
        signal, level = self.table[name], self.around(name, shortest)
        margin = MIN_SPIKE_NOISE_SDS * self.noise(name)
        usual = signal.is_between(level["low"] - margin, level["high"] + margin)
        bridged = pl.select(pl.when(usual).then(signal)).to_series().interpolate()
        return bridged.backward_fill().forward_fill()


def average_signals(samples: pl.DataFrame, step: timedelta | None = None) -> Signals:
    """Average the telemetry samples of one job over its devices and over each step of a time grid.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> samples = pl.DataFrame({"time": [nine, nine + timedelta(minutes=2)], "sm_activity": [0.2, 0.4]})
    >>> samples = samples.with_columns(node=pl.lit("n1"), gpu=0, activity_source=pl.lit("profiling"))
    >>> average_signals(samples, timedelta(minutes=1)).table["sm_activity"].round(6).to_list()
    [0.2, 0.3, 0.4]
    """
    table = conform(samples, Samples, source="phases: samples")
    jobs = table["job_id"].unique().sort()
    names = tuple(name for name in MIN_NOISE_BY_SIGNAL if table[name].count())
    if len(jobs) > 1 or not names:
        signal_names = examples(names) if names else "no signal"
        expected, todo = "samples of one job, with activity, memory or power", "Filter the samples by job_id."
        got = f"{table.height} samples of jobs {examples(jobs.to_list())}, with {signal_names}"
        raise SchemaError("phases: samples", expected, got, todo)
    every = step or choose_grid_step(table)
    even = (
        table.sort("time")
        .group_by_dynamic("time", every=every)
        .agg(*(pl.col(name).mean() for name in MIN_NOISE_BY_SIGNAL), seen=pl.lit(True))
        .upsample("time", every=every)
        .with_columns(pl.col("seen").fill_null(False))
        .with_columns(pl.col(name).interpolate().backward_fill().forward_fill() for name in MIN_NOISE_BY_SIGNAL)
    )
    return Signals(even, names, every)


def rows_of(signals: Signals) -> int:
    """Compute how many grid rows the shortest phase has that is sought, from the grid step and the job's run time."""
    if signals.table.height * signals.step >= MIN_LONG_JOB_RUN_TIME:
        return max(MIN_PHASE_ROWS, math.ceil(MIN_LONG_JOB_PHASE / signals.step))
    return MIN_PHASE_ROWS if signals.step > timedelta(seconds=GRID_STEPS_S[0]) else MIN_PHASE_ROWS_AT_ONE_SECOND


def choose_grid_step(samples: pl.DataFrame) -> timedelta:
    """Choose the step of the time grid of a job: about :data:`GRID_ROWS_OF_SHORT_JOB` rows, no finer than its samples.

    It is at most a minute, unless the readings are farther apart.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> begin = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> device = {"node": "n1", "gpu": 0, "instance": None}
    >>> rows = [{"time": begin + timedelta(seconds=second), **device} for second in range(300)]
    >>> choose_grid_step(pl.DataFrame(rows))
    datetime.timedelta(seconds=1)
    """
    device = ("node", "gpu", "instance")
    gap = pl.col("time").diff().over(device)
    gaps_us = samples.sort("time").select(gap.drop_nulls().dt.total_microseconds()).to_series()
    if not len(gaps_us):
        return timedelta(seconds=GRID_STEPS_S[-1])
    typical_s = float(gaps_us.median()) / 1e6  # type: ignore[arg-type]
    if typical_s > GRID_STEPS_S[-1] * 1.5:
        return timedelta(seconds=round(typical_s))
    length = samples["time"].max() - samples["time"].min()  # type: ignore[operator]
    least_s = max(0.8 * typical_s, length.total_seconds() / GRID_ROWS_OF_SHORT_JOB)  # type: ignore[union-attr]
    return timedelta(seconds=next((step for step in GRID_STEPS_S if step >= least_s), GRID_STEPS_S[-1]))


PHASE_LABELS = ("setup", "ramp", "steady", "long-context", "reduced", "input-stall", "decay", "cool-down", "idle")
"""Labels of phases, by their levels of SM activity and memory.

setup
    Without activity, before there was any.
ramp
    Below 85 % of the highest level of the job, before that was reached.
steady
    At least 85 % of the highest level.
long-context
    At least 85 % of the highest level, with a tenth more memory than the first steady phase.
reduced
    Below 85 % of the highest level, between steady phases.
input-stall
    Without activity between active phases, with the memory of the phase before: it waits for input, its host or a user.
decay
    Below 85 % of the highest level, after it was left for good.
cool-down
    Without activity after the last of it: GPUs are still allocated, for saving, copying or because the job was not
    ended.
idle
    Without activity between active phases, with other memory.
"""
MIN_STEADY_LEVEL_FRACTION = 0.85
"""Share of the highest SM activity of a job's phases from which a phase is steady [0-1]."""
MIN_LONG_CONTEXT_MEMORY_RATIO = 1.10
"""Memory over that of the first steady phase from which a steady phase counts as training with long context."""
MAX_STALL_MEMORY_CHANGE_FRACTION = 0.05
"""Largest change of memory from the phase before with which an idle phase counts as an input stall [0-1]."""
MAX_SAME_LEVEL_NOISE_SDS = 2.0
"""Largest difference of the medians of neighbouring phases, in standard deviations of the noise, at which they are
merged.
"""
MAX_SAME_LEVEL_FRACTION = 0.12
"""Largest difference of the medians of neighbouring phases, as a share of the highest level of the job [0-1], at which
they are merged: readings drift.
"""
MIN_SETUP_ROWS = 2
"""Fewest idle grid rows at the begin of a job that count as set-up."""
MAX_PELT_ROWS = 100_000
"""Most grid rows for the PELT change-point search; longer signals use binary segmentation."""


def find_phases(samples: pl.DataFrame, *, step: timedelta | None = None) -> pl.DataFrame:
    """Split the telemetry of one job into phases.

    Change points are found jointly in SM activity, memory and power, each in units of its noise (from the median
    absolute deviation of first differences), by PELT with squared error and the penalty 2 sigma^2 ln n, where sigma^2
    is the noise of all signals together. Changes shorter than a phase, such as the stall of a checkpoint, are
    interpolated first. Then neighbours with equal medians are merged, and so are two phases of one level with only a
    dip between them. The set-up ends where activity begins, and may be shorter than a phase. Times without readings are
    ignored.

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
        ``power_w`` [W] over all its samples (null where never seen), ``label`` (one of :data:`PHASE_LABELS`; null
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
    signals = average_signals(samples, step)
    ends = _find_change_points(signals, rows_of(signals))
    start = pl.col("time").first().alias("start")
    end = (pl.col("time").last() + signals.step).alias("end")
    phase = np.searchsorted(ends, np.arange(signals.table.height), side="right") + 1
    return (
        signals.table.with_columns(phase=pl.Series(phase, dtype=pl.Int32))
        .group_by("phase", maintain_order=True)
        .agg(start, end, pl.col(*MIN_NOISE_BY_SIGNAL).mean())
        .with_columns(label=_phase_label_expr())
    )


def _phase_label_expr() -> pl.Expr:
    """Build the expression of the label of each phase of a job, one of :data:`PHASE_LABELS`; null without activity."""
    activity, memory = pl.col("sm_activity"), pl.col("memory_used_gib")
    idle, steady = activity < MAX_IDLE_SM_ACTIVITY, activity >= MIN_STEADY_LEVEL_FRACTION * activity.max()
    keeps_memory = (memory / memory.shift() - 1).abs() <= MAX_STALL_MEMORY_CHANGE_FRACTION
    first_memory = memory.filter(steady & ~idle).first()
    label = first_text(
        (idle & (idle.not_().cum_sum() == 0), "setup"),
        (idle & (idle.not_().cum_sum(reverse=True) == 0), "cool-down"),
        (idle & keeps_memory.fill_null(False), "input-stall"),
        (idle, "idle"),
        (steady & (memory >= MIN_LONG_CONTEXT_MEMORY_RATIO * first_memory).fill_null(False), "long-context"),
        (steady, "steady"),
        ((steady & ~idle).cum_sum() == 0, "ramp"),
        ((steady & ~idle).reverse().cum_sum().reverse() == 0, "decay"),
        (pl.lit(True), "reduced"),
    )
    return pl.when(activity.is_not_null()).then(label)


def _find_change_points(signals: Signals, shortest: int) -> np.ndarray:
    """Find the grid rows at which phases of at least `shortest` rows end; the last is the number of rows."""
    rows = signals.table.height
    observed_rows = np.flatnonzero(signals.table["seen"].to_numpy())
    if len(observed_rows) < 2 * shortest:
        return np.array([rows])
    noise = {name: signals.noise(name) for name in signals.names}
    flat = {name: signals.without_spikes(name, shortest).to_numpy()[observed_rows] for name in signals.names}
    bridged = np.column_stack([flat[name] / noise[name] for name in signals.names])
    penalty = 2 * len(signals.names) * float(np.log(len(observed_rows)))
    if len(observed_rows) > MAX_PELT_ROWS:
        ends = binary_segmentation(bridged, shortest, penalty)
    else:
        ruptures = import_optional("ruptures", extra="phases")
        # With a linear kernel this is PELT on squared error, compiled: same answer in a thousandth of the time.
        search = ruptures.KernelCPD(kernel="linear", min_size=shortest)
        ends = search.fit(bridged).predict(pen=penalty)
    least = np.maximum(MAX_SAME_LEVEL_NOISE_SDS, MAX_SAME_LEVEL_FRACTION * np.abs(bridged).max(axis=0))
    kept = _merge_equal_levels(bridged, _merge_phases_across_dips(bridged, ends, shortest, least), least)
    if "sm_activity" in signals.names:
        kept = _insert_setup_end(kept, bridged[:, 0] * noise["sm_activity"], shortest)
    return np.array([*(observed_rows[end] for end in kept[:-1]), rows])


def _insert_setup_end(ends: list[int], activity: np.ndarray, shortest: int) -> list[int]:
    """Insert the end of the set-up phase where activity begins, even if it is shorter than a phase."""
    begins = int((activity >= MAX_IDLE_SM_ACTIVITY).argmax())
    if not MIN_SETUP_ROWS <= begins < len(activity) - shortest:
        return ends
    return sorted({begins} | {end for end in ends if abs(end - begins) >= shortest})


def _merge_phases_across_dips(scaled: np.ndarray, ends: list[int], shortest: int, least: np.ndarray) -> list[int]:
    """Merge phases on one level before and after a dip that is shorter than a phase.

    Parameters
    ----------
    scaled : numpy.ndarray, shape (n_rows, n_signals)
        Signals in units of their noise.
    ends : list of int
        Last rows of the phases.
    shortest : int
        Rows of the shortest phase.
    least : numpy.ndarray, shape (n_signals,)
        Smallest difference between two levels, in units of the noise; smaller ones are one level.
    """
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


def _merge_equal_levels(scaled: np.ndarray, ends: list[int], least: np.ndarray) -> list[int]:
    """Merge neighbouring phases whose medians differ by less than `least`, in units of the noise of each signal."""
    kept: list[int] = []
    begin = 0
    for end, following in itertools.pairwise(ends):
        step = np.median(scaled[begin:end], axis=0) - np.median(scaled[end:following], axis=0)
        if (np.abs(step) >= least).any():
            kept.append(end)
            begin = end
    return [*kept, len(scaled)]


def binary_segmentation(signal: np.ndarray, shortest: int, penalty: float) -> list[int]:
    """Split a signal recursively where that lowers its squared error most, by more than `penalty`; return part ends.

    `signal` has the shape (n_rows, n_signals); parts have at least `shortest` rows.

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
    split_rows: list[int] = []
    open_parts = [(0, len(signal))]
    while open_parts:
        begin, end = open_parts.pop()
        splits = np.arange(begin + shortest, end - shortest + 1)
        if not len(splits):
            continue
        left, right = (splits - begin)[:, None], (end - splits)[:, None]
        difference = (sums[splits] - sums[begin]) / left - (sums[end] - sums[splits]) / right
        gains = (difference**2).sum(axis=1) * (left * right).ravel() / (end - begin)
        best = int(gains.argmax())
        if gains[best] > penalty:
            split = int(splits[best])
            split_rows.append(split)
            open_parts += [(begin, split), (split, end)]
    return [*sorted(split_rows), len(signal)]
