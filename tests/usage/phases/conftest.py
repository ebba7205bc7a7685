"""A training job as its meters show it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Samples

PHASES = ((0.04, 0.0, 12.0), (0.15, 0.48, 51.0), (0.66, 0.8, 60.0), (0.15, 0.55, 60.0))
"""Share of the time, activity and memory [GiB] of set-up, ramp, steady and decay."""


def samples_of_training(seed: int) -> pl.DataFrame:
    """One sample a minute of some hours of training, with noise, and a stall for a checkpoint now and then."""
    rng = np.random.default_rng(seed)
    minutes = int(rng.uniform(600, 1200))
    ends = np.cumsum([share for share, _, _ in PHASES]) * minutes
    phase = np.searchsorted(ends, np.arange(minutes), side="right").clip(max=len(PHASES) - 1)
    activity, memory = (np.array([each[part] for each in PHASES])[phase] for part in (1, 2))
    stalls = np.arange(int(ends[1]) + 60, int(ends[2]) - 30, minutes // 12)
    activity[stalls] = activity[stalls + 1] = 0.03
    frame = pl.DataFrame(
        {
            "time": [datetime(2026, 2, 2, 9, tzinfo=UTC) + timedelta(minutes=at) for at in range(minutes)],
            "node": "n1",
            "gpu": 0,
            "job_id": "1",
            "sm_activity": np.clip(activity + rng.normal(0, 0.02, minutes) * (activity > 0.01), 0, 1),
            "memory_used_gib": np.clip(memory + rng.normal(0, 0.3, minutes), 0, None),
            "power_w": 75 + 420 * activity + rng.normal(0, 8, minutes),
            "activity_source": "profiling",
        }
    )
    return conform(frame, Samples, source="training")


@pytest.fixture(scope="session")
def training():
    """Make the samples of a training job from a seed."""
    return samples_of_training
