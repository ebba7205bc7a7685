"""No measured job is slower than the slow end that a decision promises by."""

from __future__ import annotations

import numpy as np
import pytest
from speed_fit.measurements import measurements, relative_speeds

from gpuplanner.decision.requested_jobs import longest_slowdown


@pytest.mark.data
def test_no_measured_job_is_slower_than_the_slow_end(public_data):
    table = relative_speeds(measurements(public_data).filter(processes=1))
    table = table.drop_nulls("gpu_utilisation")
    parts = np.maximum(1 / table["fraction"].to_numpy(), 8 / table["memory_slices"].to_numpy())
    bound = longest_slowdown(table["gpu_utilisation"].to_numpy(), parts)
    measured = 1 / table["speed"].to_numpy()
    assert table.height > 50
    assert (measured <= 1.02 * bound).all(), "a share of two per cent is noise"
    assert np.median(bound / measured) < 1.5, "and it is no wild guess"
