"""Fleets over paths of demand: straight lines between what was simulated, and nothing said beyond it."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.forecast import peak_walks
from gpuplanner.study.future.weeks_ahead import WEEKS, over_paths

SIZES = [{"factor": factor, "gpus": int(80 * factor)} for factor in (0.8, 1.0, 1.25, 1.5, 2.0)]


def test_gpus_follow_the_arrivals_of_each_path_and_beyond_the_last_none_is_named():
    peaks = 100 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.03, 80)))
    factors = peak_walks(peaks, growth=0.2, paths=5000) / peaks[-1]
    row = {"policy": "today", "todays_fleet_until": 1.25, "gpus": SIZES}
    found = over_paths([row, row | {"policy": "other", "todays_fleet_until": None}], factors)
    assert [one["week"] for one in found] == 2 * list(WEEKS)
    for one in found[: len(WEEKS)]:
        at = factors[:, one["week"] - 1]
        assert one["gpus_q50"] == pytest.approx(80 * np.quantile(np.clip(at, 0.8, None), 0.5), rel=0.01)
        assert one["run_out_by"] == pytest.approx((factors[:, : one["week"]].max(axis=1) > 1.25).mean())
    assert found[4]["gpus_q05"] <= found[4]["gpus_q50"] <= found[4]["gpus_q95"]
    assert {one["run_out_by"] for one in found[len(WEEKS) :]} == {None}
    doubled = over_paths([row], 1.6 * factors)[-1]
    assert doubled["gpus_q95"] is None  # more than twice today's arrivals was not simulated
