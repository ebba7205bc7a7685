"""Agreement of waits, and GPU-hours and energy by condition."""

from __future__ import annotations

import math

import polars as pl
import pytest

from gpuplanner.metrics import agreement

WAITS = pl.DataFrame(
    {
        "tenant": ["x", "x", "y", "y"],
        "observed_s": [0.0, 540.0, 1200.0, 7200.0],
        "simulated_s": [0.0, 0.0, 1740.0, 3600.0],
    }
)


def test_agreement_by_hand():
    row = agreement(WAITS).row(0, named=True)
    assert (row["jobs"], row["waited"]) == (4, 2)
    assert row["observed_mean_s"] == 2235.0
    assert row["simulated_p50_s"] == 870.0
    assert row["median_error_s"] == -270.0  # of -3600, -540, 0, 540
    assert row["mean_absolute_error_s"] == 1170.0
    assert row["skill"] == pytest.approx(1 - 4680 / 8940)
    factors = [1, 10, 1800 / 1260, 7260 / 3660]
    assert row["typical_factor"] == pytest.approx(math.prod(factors) ** 0.25)
    assert (row["within_10min"], row["within_1h"], row["waited_within_1h"]) == (0.75, 1.0, 1.0)
    assert agreement(WAITS, by="tenant")["jobs"].to_list() == [2, 2]


def test_saying_that_nobody_waits_has_no_skill():
    row = agreement(WAITS.with_columns(simulated_s=0.0)).row(0, named=True)
    assert row["skill"] == 0.0
    nobody = agreement(WAITS.with_columns(observed_s=0.0, simulated_s=0.0)).row(0, named=True)
    assert nobody["skill"] is None
    assert nobody["waited_within_1h"] is None
