"""One-minute telemetry for jobs of the made-up fleet: phases, checkpoints, evaluations, day rhythm.

The time course of each job class follows the published descriptions: set-up at no load, ramp, steady state,
decay for training; loading, inference and metric computation for evaluation (29.5, 51.5 and 19 % of the time,
the GPU idle in the first and the last; Hu et al., NSDI 2024); requests that follow the day for inference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.catalog import board_spec, parameter
from gpuplanner.inbox.made_up.jobs import BOARD
from gpuplanner.schemas import Samples, check

MINUTE_S = 60
MEMORY_GIB = 79.25


@dataclass(frozen=True)
class Course:
    """Activity and memory of one job minute by minute, as shares of their level in steady state."""

    activity: np.ndarray
    memory: np.ndarray


def make_samples(jobs: pl.DataFrame, *, seed: int) -> pl.DataFrame:
    """Draw one sample a minute for one GPU of each job.

    Examples
    --------
    >>> make_samples(pl.DataFrame(schema={"job_id": pl.String}), seed=1).height
    0
    """
    streams = np.random.default_rng(seed).spawn(jobs.height)
    drawn = [_draw_job(row, rng) for row, rng in zip(jobs.iter_rows(named=True), streams, strict=True)]
    if not drawn:
        return pl.DataFrame(schema={name: column.dtype for name, column in Samples.columns().items()})
    samples = pl.concat(drawn).sort("node", "gpu", "time")
    return check(samples, Samples, where="synthetic telemetry")


def _draw_job(row: dict[str, Any], rng: np.random.Generator) -> pl.DataFrame:
    begin, end = row["start_time"], row["end_time"]
    times = pl.datetime_range(begin, end, interval="1m", closed="left", eager=True, time_unit="us")
    n = len(times)
    first_hour = begin.hour + begin.minute / 60
    course = COURSES[row["job_class"]](n, first_hour, rng)
    level = row["sm_activity"] / max(float(course.activity.mean()), 0.05)
    activity = np.clip(course.activity * level * rng.normal(1, 0.03, n), 0, 1)
    memory = np.minimum(course.memory * row["memory_peak_gib"], MEMORY_GIB)
    return pl.DataFrame(
        {
            "time": times,
            "node": [row["node"]] * n,
            "gpu": np.full(n, row["gpu"], dtype=np.int32),
            "job_id": [row["job_id"]] * n,
            "sm_activity": np.round(activity, 3),
            "tensor_activity": np.round(activity * 0.55, 3),
            "dram_activity": np.round(np.clip(activity * 0.6 + 0.02, 0, 0.8), 3),
            "pcie_gb_s": np.round(0.2 + 2.0 * activity, 2),
            "nvlink_gb_s": np.round((120.0 if row["gpus"] > 1 else 0.0) * activity, 1),
            "memory_used_gib": np.round(memory, 2),
            "power_w": np.round(_power(activity, rng), 0),
            "activity_source": ["profiling"] * n,
        },
        schema_overrides={"time": pl.Datetime("us", "UTC")},
    )


def _power(activity: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two-state law: idle power without work, a base and a slope with it."""
    spec = board_spec(BOARD)
    tdp_w = float(spec["tdp_w"])
    base, slope = parameter("active_base_fraction").value, parameter("active_slope_fraction").value
    busy_w = tdp_w * (base + slope * activity)
    idle_w = tdp_w * parameter("idle_fraction").value
    return np.clip(np.where(activity < 0.02, idle_w, busy_w) + rng.normal(0, 6, len(activity)), 40, tdp_w)


def _training(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    setup = min(int(rng.integers(4, 16)), n // 4)
    ramp = n // 8
    anneal = n // 12
    activity = np.ones(n)
    activity[:setup] = 0.0
    activity[setup : setup + ramp] = 0.62
    activity[n - anneal :] = 0.85
    memory = np.ones(n)
    memory[:setup] = np.linspace(0.05, 0.7, setup) if setup else 0.0
    memory[setup : setup + ramp] = 0.8
    every = int(rng.integers(45, 90))
    for number, minute in enumerate(range(setup + every, n - 8, every), start=1):
        activity[minute : minute + 2] = 0.05  # checkpoint: the GPUs wait for the write
        if number % 3 == 0:
            activity[minute + 2 : minute + 6] *= 0.55  # evaluation after every third checkpoint
            memory[minute + 2 : minute + 6] *= 0.75
    return Course(activity, memory)


def _evaluation(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    load, metric = round(0.295 * n), round(0.19 * n)
    activity = np.ones(n)
    activity[:load] = 0.0
    activity[n - metric :] = 0.0
    memory = np.ones(n)
    memory[:load] = np.linspace(0.1, 1.0, load) if load else 1.0
    return Course(activity, memory)


def _inference(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    hour = first_hour + np.arange(n) / 60
    activity = 0.65 + 0.35 * np.cos((hour - 15) * 2 * np.pi / 24) + rng.normal(0, 0.05, n)
    return Course(np.clip(activity, 0.05, None), np.full(n, 0.97) + rng.uniform(-0.03, 0.03, n))


def _interactive(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    activity = np.zeros(n)
    minute = int(rng.integers(2, 15))
    while minute < n:
        burst = int(rng.integers(2, 12))
        activity[minute : minute + burst] = 1.0
        minute += burst + int(rng.integers(5, 40))
    return Course(activity, np.linspace(0.3, 1.0, n))


COURSES: dict[str, Callable[[int, float, np.random.Generator], Course]] = {
    "pretraining": _training,
    "fine-tuning": _training,
    "evaluation": _evaluation,
    "inference": _inference,
    "interactive": _interactive,
}
