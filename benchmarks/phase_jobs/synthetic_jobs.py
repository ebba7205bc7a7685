"""Jobs with known phases and dips, to measure how well they are found; the meters are as bad as real ones.

A job is a chain of levels of activity and memory with short dips between. What a meter reports of it is the
mean since the last reading, with noise, at even or uneven distances, with single readings and whole stretches
missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Samples

BEGIN = datetime(2026, 2, 2, 9, tzinfo=UTC)
FINE_S = 5
"""Resolution of the truth, in seconds."""
LEAST_DIPS = 4
"""Dips of one kind from which they have a pace to be found."""
SHAPES = ("training", "long-context", "evaluation", "stages", "steady")
"""Set-up, ramp, steady and decay; set-up, steady and a stage of more memory; load, inference and metric
(29.5, 51.5 and 19 % of the time [1]_); set-up and stages of any level; one level throughout.

References
----------
.. [1] Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024.
"""


@dataclass(frozen=True)
class SyntheticJob:
    """One job, what its meters said, and the truth.

    - ``shape``: One of :data:`SHAPES`.
    - ``samples``: Table ``schemas.Samples``.
    - ``changes``: Where a phase ends and the next begins.
    - ``spikes``: ``start``, ``end`` and ``label`` (checkpoint, evaluation, data-epoch edge), in order of time.
    - ``period``: Pace of the checkpoints, or of the epochs where there are fewer than four checkpoints; None if there
      are fewer than four of either.
    """

    shape: str
    samples: pl.DataFrame
    changes: tuple[datetime, ...]
    spikes: pl.DataFrame
    period: timedelta | None


@dataclass
class _Course:
    """The truth at :data:`FINE_S` seconds: activity [0-1], memory [GiB]."""

    activity: np.ndarray
    memory: np.ndarray
    ends: np.ndarray


def make_job(seed: int) -> SyntheticJob:
    """Draw one job.

    Examples
    --------
    >>> job = make_job(0)
    >>> job.shape, len(job.changes), job.spikes["label"].unique().sort().to_list()
    ('training', 3, ['checkpoint', 'data-epoch edge'])
    """
    rng = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    course = _course(shape, rng)
    spikes, period = _put_dips(course, shape, rng)
    changes = tuple(BEGIN + timedelta(seconds=int(end) * FINE_S) for end in course.ends[:-1])
    return SyntheticJob(shape, _read_meters(course, rng), changes, spikes, period)


def _course(shape: str, rng: np.random.Generator) -> _Course:
    minutes = rng.uniform(180, 1800)
    top, full = rng.uniform(0.4, 0.95), rng.uniform(30, 70)
    if shape == "evaluation":
        shares, activity, memory = [0.295, 0.515, 0.19], [0.0, top, 0.0], [0.5 * full, full, full]
    elif shape == "training":
        shares, activity = [0.04, 0.15, 0.66, 0.15], [0.0, 0.6 * top, top, rng.uniform(0.6, 0.8) * top]
        memory = [0.2 * full, 0.85 * full, full, full]
    elif shape == "long-context":
        shares, activity, memory = [0.04, 0.66, 0.3], [0.0, top, 0.95 * top], [0.2 * full, 0.75 * full, full]
    elif shape == "stages":
        shares = [0.05, *rng.dirichlet(np.full(rng.integers(2, 6), 3.0)) * 0.95]
        activity, memory = [0.0], [0.2 * full]
        while len(activity) < len(shares):
            level = rng.uniform(0.1, 0.95)
            if abs(level - activity[-1]) > 0.12:
                activity.append(level)
                memory.append(full * rng.choice([0.6, 0.8, 1.0]))
    else:
        shares, activity, memory = [1.0], [top], [full]
    lengths = np.maximum(np.array(shares) * minutes, 15.0)
    ends = np.round(np.cumsum(lengths) * 60 / FINE_S).astype(int)
    steps = np.diff(ends, prepend=0)
    return _Course(np.repeat(activity, steps), np.repeat(memory, steps), ends)


def _put_dips(course: _Course, shape: str, rng: np.random.Generator) -> tuple[pl.DataFrame, timedelta | None]:
    """Checkpoints at a pace, evaluations after every few of them, edges of data epochs at a pace of their own."""
    rows: list[tuple[float, float, str]] = []
    length_s = len(course.activity) * FINE_S
    every_s = period_s = float(rng.uniform(length_s / 14, length_s / 6))
    kinds = rng.integers(0, 4)  # checkpoints; with evaluations; with epochs; epochs alone
    if shape != "evaluation":
        if kinds < 3:
            stall_s = rng.uniform(75, 180)
            for number, at in enumerate(np.arange(every_s, length_s - 900, every_s), start=1):
                start = at + rng.normal(0, 0.01 * every_s)
                evaluates = kinds == 1 and number % 3 == 0
                rows.append((start, start + stall_s, "evaluation" if evaluates else "checkpoint"))
        if kinds >= 2:
            every_s = period_s if kinds == 3 else period_s * float(rng.choice([0.73, 1.37, 1.63]))
            starts = np.arange(0.6 * every_s, length_s - 900, every_s)
            rows += [(at, at + rng.uniform(40, 60), "data-epoch edge") for at in starts]
    kept: list[tuple[int, int, str]] = []
    for start, end, label in sorted(rows):
        begin, stop = int(start // FINE_S), int(end // FINE_S)
        near_change = np.abs(course.ends - begin).min() * FINE_S < 900
        crowded = kept and start - kept[-1][1] < 900
        if near_change or crowded or course.activity[begin] == 0:
            continue
        course.activity[begin:stop] *= rng.uniform(0, 0.1)
        if label == "evaluation":
            after = stop + int(rng.uniform(180, 360) // FINE_S)
            course.activity[stop:after] *= rng.uniform(0.3, 0.7)
            course.memory[begin:after] *= rng.uniform(0.7, 0.85)
            stop = after
        kept.append((begin * FINE_S, stop * FINE_S, label))
    table = pl.DataFrame(
        [(BEGIN + timedelta(seconds=a), BEGIN + timedelta(seconds=b), label) for a, b, label in kept],
        schema={"start": Samples.time.dtype, "end": Samples.time.dtype, "label": pl.String},
        orient="row",
    )
    checkpoints = sum(label != "data-epoch edge" for *_, label in kept)
    if checkpoints >= LEAST_DIPS:
        return table, timedelta(seconds=period_s)
    return table, timedelta(seconds=every_s) if len(kept) - checkpoints >= LEAST_DIPS else None


def _read_meters(course: _Course, rng: np.random.Generator) -> pl.DataFrame:
    """Means since the last reading, with noise and holes."""
    length_s = len(course.activity) * FINE_S
    uneven = rng.random() < 0.4
    steps = rng.uniform(30, 90, length_s) if uneven else np.full(length_s, 60.0)
    times = np.cumsum(steps)
    times = times[times <= length_s]
    kept = rng.random(len(times)) >= rng.uniform(0, 0.1)
    if rng.random() < 0.3:
        hole = rng.integers(0, max(1, len(times) - 20))
        kept[hole : hole + rng.integers(4, 9)] = False

    def mean(signal: np.ndarray) -> np.ndarray:
        integral = np.concatenate([[0.0], np.cumsum(signal) * FINE_S])
        at = np.interp(np.concatenate([[0.0], times]), np.arange(len(integral)) * FINE_S, integral)
        means: np.ndarray = np.diff(at) / np.diff(times, prepend=0.0)
        return means

    activity, memory = mean(course.activity), mean(course.memory)
    n = len(times)
    noisy = activity + rng.normal(0, rng.uniform(0.01, 0.05), n) * (activity > 0.01)
    power = 75 + 420 * activity + rng.normal(0, rng.uniform(4, 15), n)
    read = memory + rng.normal(0, rng.uniform(0.05, 0.8), n)
    # A reading is dated where its interval begins, as the grid of the detector is.
    began = np.concatenate([[0.0], times[:-1]])
    samples = pl.DataFrame(
        {
            "time": [BEGIN + timedelta(seconds=float(second)) for second in began],
            "node": "n1",
            "gpu": 0,
            "job_id": "1",
            "sm_activity": np.clip(noisy, 0, 1),
            "memory_used_gib": np.clip(read, 0, None),
            "power_w": np.clip(power, 40, None),
            "activity_source": "profiling",
        },
        schema_overrides={"time": pl.Datetime("us", "UTC")},
    ).filter(pl.Series(kept))
    return check_table(samples, Samples, source="synthetic job")
