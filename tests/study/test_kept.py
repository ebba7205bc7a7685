"""Forecasts kept by the demand they were made from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from gpuplanner.forecast import forecast_demand
from gpuplanner.study import disk_cache as kept

BEGIN = datetime(2026, 2, 2, tzinfo=UTC)


def demand(level: float = 2.0) -> pl.DataFrame:
    """Four days of one series."""
    wave = level + np.sin(np.arange(96) / 24 * 2 * np.pi)
    ds = [BEGIN + timedelta(hours=hour) for hour in range(96)]
    return pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": ds, "y": wave})


@pytest.fixture
def made(monkeypatch, tmp_path) -> list[int]:
    """Horizons of the forecasts that were really made, with an empty folder to keep them in."""
    calls: list[int] = []

    def counted(demand, *, horizon):
        calls.append(horizon)
        return forecast_demand(demand, horizon=horizon, windows=2)

    monkeypatch.setattr(kept, "forecast_demand", counted)
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path / "cache"))
    return calls


def test_what_is_kept_is_what_was_made(made):
    first, again = (kept.kept_forecast(demand(), horizon=3) for _ in range(2))
    assert made == [3]
    for frame in kept.FRAMES:
        assert_frame_equal(getattr(first, frame), getattr(again, frame), check_exact=True)


def test_other_demand_horizon_or_code_is_made_anew(made, monkeypatch):
    kept.kept_forecast(demand(), horizon=3)
    kept.kept_forecast(demand(level=2.0 + 1e-12), horizon=3)
    kept.kept_forecast(demand(), horizon=4)
    monkeypatch.setattr(kept, "_code", lambda: "another")
    kept.kept_forecast(demand(), horizon=3)
    assert made == [3, 3, 4, 3]


def test_spoilt_files_and_a_folder_that_cannot_be_written_cost_time_alone(made, monkeypatch, tmp_path):
    whole = kept.kept_forecast(demand(), horizon=3)
    for path in (tmp_path / "cache" / "forecasts").iterdir():
        path.write_bytes(b"PAR1 torn")
    assert_frame_equal(kept.kept_forecast(demand(), horizon=3).forecast, whole.forecast)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path / "file"))
    assert_frame_equal(kept.kept_forecast(demand(), horizon=3).forecast, whole.forecast)
    assert made == [3, 3, 3]
