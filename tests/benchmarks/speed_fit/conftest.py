"""Measurements made by a known law, and public ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from speed_fit import Measurements, measurements

from gpuplanner.core.schema_checks import conform
from gpuplanner.sizing.mig_speed_law import SpeedLaw

LAW = SpeedLaw(fractions=(1 / 7, 2 / 7, 3 / 7, 4 / 7, 1.0), limits=(0.16, 0.31, 0.5, 0.6, 1.0), sharpness=3.0)
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


@pytest.fixture(scope="session")
def law() -> SpeedLaw:
    return LAW


@pytest.fixture(scope="session")
def made() -> pl.DataFrame:
    """Sixteen models whose steps obey the law exactly, in two sources; all are bound by the GPU at batch 1024."""
    rng = np.random.default_rng(7)
    rows = []
    for number in range(16):
        host_s, per_item_s = 10 ** rng.uniform(-2.5, -1.5), 10 ** rng.uniform(-3.2, -2.7)
        for batch in (1, 4, 16, 64, 256, 1024):
            shares = (host_s, batch * per_item_s)
            log_u = float(np.log(shares[1] / shares[0]))
            whole_s = (shares[0] ** LAW.sharpness + shares[1] ** LAW.sharpness) ** (1 / LAW.sharpness)
            power = 1 / (1 + np.exp(-0.8 * log_u - 0.2))
            for profile, limit in zip(PROFILES, LAW.limits, strict=True):
                step_s = whole_s / float(LAW.speed(log_u, limit))
                rows.append((f"s{number % 2}", f"m{number:02}", batch, profile, step_s, power))
    frame = pl.DataFrame(
        rows, schema=["source", "model", "batch", "profile", "step_s", "power_share"], orient="row"
    ).with_columns(kind=pl.lit("inference"), gpu_model=pl.lit("A100-80GB"), processes=1, outcome=pl.lit("measured"))
    return conform(frame, Measurements, source="made")


@pytest.fixture(scope="session")
def published(public_data: Path) -> pl.DataFrame:
    return measurements(public_data)
