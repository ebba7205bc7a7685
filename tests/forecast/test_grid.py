"""Series on one time axis: gaps, faults, seasons."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.forecast.statistical_models import series_grid


def test_gaps_carry_the_last_value_on_and_are_counted(make_demand):
    demand = make_demand({"a/gpu": [1, 2, 3, 4, 5], "b/gpu": [6, 7, 8, 9, 10]})
    hour = pl.col("ds").dt.hour()
    is_a = pl.col("unique_id") == "a/gpu"
    with_gaps = demand.filter(~(is_a & hour.is_in([2, 4])) & ~(~is_a & hour.is_in([0, 1])))
    grid = series_grid(with_gaps.sample(fraction=1, shuffle=True, seed=1))
    assert grid.ids == ("a/gpu", "b/gpu")
    np.testing.assert_array_equal(grid.values, [[1, 2, 2, 4, 4], [np.nan, np.nan, 8, 9, 10]])
    assert grid.filled == (2, 0)
    assert grid.time(5) - grid.start == timedelta(hours=5)


@pytest.mark.parametrize(
    ("slot", "season", "week"),
    [
        (timedelta(minutes=15), 96, 672),
        (timedelta(hours=1), 24, 168),
        (timedelta(days=1), 7, 7),
        (timedelta(days=7), 1, 1),
        (timedelta(days=28), 1, 1),
    ],
)
def test_season_is_a_day_or_for_days_a_week(make_demand, slot, season, week):
    grid = series_grid(make_demand({"a/gpu": [1, 2, 3]}, slot))
    assert (grid.season, grid.week) == (season, week)


def test_a_coarser_series_beside_a_finer_one_is_filled_and_counted(make_demand):
    fine, coarse = (make_demand({"a/gpu": [1, 2, 3, 4, 5]}), make_demand({"b/gpu": [6, 7, 8]}, timedelta(hours=2)))
    grid = series_grid(pl.concat([fine, coarse]))
    np.testing.assert_array_equal(grid.values[1], [6, 6, 7, 7, 8])
    assert (grid.slot, grid.filled) == (timedelta(hours=1), (0, 2))


def test_a_change_to_summer_time_is_no_gap_and_no_double_hour(make_demand):
    night = make_demand({"a/gpu": np.arange(48.0)}).with_columns(pl.col("ds").dt.offset_by("243d"))  # to 2026-10-03
    for days in (-190, 22):  # around the last Sundays of March and October
        utc = night.with_columns(pl.col("ds").dt.offset_by(f"{days}d"))
        local = utc.with_columns(pl.col("ds").dt.convert_time_zone("Europe/Berlin"))
        assert local["ds"].dt.hour().to_list() != utc["ds"].dt.hour().to_list()
        one, other = series_grid(local), series_grid(utc)
        assert one.filled == (0,)
        assert one.start == other.start
        np.testing.assert_array_equal(one.values, other.values)
