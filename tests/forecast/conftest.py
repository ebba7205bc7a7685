"""Demand tables from rows of numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

MONDAY = datetime(2026, 2, 2, tzinfo=UTC)


@pytest.fixture(scope="session")
def make_demand():
    """Build a demand table from a mapping of tenant/profile to values, one value a slot from Monday on."""

    def build(series, slot=timedelta(hours=1)):
        return pl.concat(
            pl.DataFrame(
                {
                    "unique_id": uid,
                    "ds": [MONDAY + slot * number for number in range(len(values))],
                    "y": np.asarray(values, dtype=np.float64),
                    "tenant": uid.split("/")[0],
                    "profile": uid.split("/")[1],
                }
            )
            for uid, values in series.items()
        )

    return build


@pytest.fixture(scope="session")
def daily_wave():
    """Build seeded hourly demand that follows the day, with noise."""

    def build(seed, slots=672, level=10.0):
        hour = np.arange(slots)
        noise = np.random.default_rng(seed).normal(0, 0.1 * level, slots)
        return np.maximum(level * (1 + 0.6 * np.sin(hour * 2 * np.pi / 24)) + noise, 0)

    return build
