"""Telemetry of one job as evenly spaced signals in units of their noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.schemas.domain import Samples
from gpuplanner.schemas.check import conform

LEAST_NOISE = {"sm_activity": 0.02, "memory_used_gib": 0.5, "power_w": 10.0}
"""Signals, and the least noise each is taken to have; below it, meters round or hardly move."""
IDLE_BELOW = 0.05
"""SM activity below which a GPU does no work worth the name."""
SPIKE = 5.0
"""Distance from the level around it, in standard deviations of the noise, from which a row is a spike."""
MAD_TO_SIGMA = 1.4826
"""Ratio of standard deviation to median absolute deviation of normal noise."""
STEPS_S = (1, 5, 10, 15, 30, 60)
"""Distances of rows that are chosen from, in seconds; above the last, the distance of the readings."""
ROWS_WANTED = 600
"""Rows that a short job is cut into if it is sampled that often."""
SHORTEST, LONG = timedelta(minutes=10), timedelta(hours=1)
"""Shortest phase of a job of an hour or more, however often it was read: a checkpoint is no phase."""
ROWS_OF_A_PHASE = 10
"""Fewest rows of a phase; of fewer, a level is not known from the noise about it."""
ROWS_OF_A_SHORT_PHASE = 4
"""Rows of the shortest phase where a row is a second: a run of minutes, too short for a checkpoint."""


@dataclass(frozen=True)
class Signals:
    """Signals of one job on an even grid.

    - ``table``, shape (n, 5): ``time``, one column for each signal, means over the job's devices, and ``seen``; gaps
      are bridged by straight lines and not seen, a signal that was never seen is null.
    - ``names``: Signals that were seen.
    - ``step``: Distance of the rows.
    """

    table: pl.DataFrame
    names: tuple[str, ...]
    step: timedelta

    def noise(self, name: str) -> float:
        """Standard deviation of the noise, from differences of neighbours: level shifts hardly touch it.

        Differences of independent noise spread by the square root of two more than the noise itself. Rows without
        activity are left out, where there are others: a meter at rest hardly makes noise.
        """
        active = (self.table["sm_activity"] >= IDLE_BELOW).fill_null(False) & self.table["seen"]
        rows = active if active.sum() >= ROWS_OF_A_PHASE else self.table["seen"]
        change = self.table[name].filter(rows).diff().drop_nulls().to_numpy()
        if not len(change):
            return LEAST_NOISE[name]
        mad = float(np.median(np.abs(change - np.median(change))))
        return max(MAD_TO_SIGMA * mad / math.sqrt(2), LEAST_NOISE[name])

    def around(self, name: str, shortest: int) -> pl.DataFrame:
        """Levels before and after each row: running medians blind to what is shorter than `shortest` rows.

        A row that lies below both, or above both, is part of a spike; at a step it is like one of them.
        """
        before, after = (
            signal.rolling_median(2 * shortest - 1, min_samples=1)
            for signal in (self.table[name], self.table[name].reverse())
        )
        return pl.DataFrame({"before": before, "after": after.reverse()}).select(
            low=pl.min_horizontal("before", "after"), high=pl.max_horizontal("before", "after")
        )

    def without_spikes(self, name: str, shortest: int) -> pl.Series:
        """The signal with its spikes bridged by straight lines."""
        signal, level = self.table[name], self.around(name, shortest)
        margin = SPIKE * self.noise(name)
        usual = signal.is_between(level["low"] - margin, level["high"] + margin)
        bridged = pl.select(pl.when(usual).then(signal)).to_series().interpolate()
        return bridged.backward_fill().forward_fill()


def signals_of(samples: pl.DataFrame, step: timedelta | None = None) -> Signals:
    """Average the samples of one job over its devices and over each step.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> samples = pl.DataFrame({"time": [nine, nine + timedelta(minutes=2)], "sm_activity": [0.2, 0.4]})
    >>> samples = samples.with_columns(node=pl.lit("n1"), gpu=0, activity_source=pl.lit("profiling"))
    >>> signals_of(samples, timedelta(minutes=1)).table["sm_activity"].round(6).to_list()
    [0.2, 0.3, 0.4]
    """
    table = conform(samples, Samples, where="phases: samples")
    jobs = table["job_id"].unique().sort()
    names = tuple(name for name in LEAST_NOISE if table[name].count())
    if len(jobs) > 1 or not names:
        seen = examples(names) if names else "no signal"
        text = message(
            "phases: samples",
            "samples of one job, with activity, memory or power",
            f"{table.height} samples of jobs {examples(jobs.to_list())}, with {seen}",
            "Filter the samples by job_id.",
        )
        raise SchemaError(text)
    every = step or step_for(table)
    even = (
        table.sort("time")
        .group_by_dynamic("time", every=every)
        .agg(*(pl.col(name).mean() for name in LEAST_NOISE), seen=pl.lit(True))
        .upsample("time", every=every)
        .with_columns(pl.col("seen").fill_null(False))
        .with_columns(pl.col(name).interpolate().backward_fill().forward_fill() for name in LEAST_NOISE)
    )
    return Signals(even, names, every)


def rows_of(signals: Signals) -> int:
    """Rows of the shortest phase, as it suits the distance of the rows and the length of the job."""
    if signals.table.height * signals.step >= LONG:
        return max(ROWS_OF_A_PHASE, math.ceil(SHORTEST / signals.step))
    return ROWS_OF_A_PHASE if signals.step > timedelta(seconds=STEPS_S[0]) else ROWS_OF_A_SHORT_PHASE


def step_for(samples: pl.DataFrame) -> timedelta:
    """Distance of rows that suits a job: about :data:`ROWS_WANTED` rows, never finer than it was sampled.

    A minute is the most, unless the readings themselves are farther apart.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> begin = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> device = {"node": "n1", "gpu": 0, "instance": None}
    >>> rows = [{"time": begin + timedelta(seconds=second), **device} for second in range(300)]
    >>> step_for(pl.DataFrame(rows))
    datetime.timedelta(seconds=1)
    """
    device = ("node", "gpu", "instance")
    apart = (
        samples.sort("time").select(pl.col("time").diff().over(device).drop_nulls().dt.total_microseconds())
    ).to_series()
    if not len(apart):
        return timedelta(seconds=STEPS_S[-1])
    typical_s = float(apart.median()) / 1e6  # type: ignore[arg-type]
    if typical_s > STEPS_S[-1] * 1.5:
        return timedelta(seconds=round(typical_s))
    length = samples["time"].max() - samples["time"].min()  # type: ignore[operator]
    least_s = max(0.8 * typical_s, length.total_seconds() / ROWS_WANTED)  # type: ignore[union-attr]
    return timedelta(seconds=next((step for step in STEPS_S if step >= least_s), STEPS_S[-1]))
