"""Changes of level: found where they are, none in noise, as a search over all partitions finds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise

import numpy as np
import polars as pl
import pytest

from gpuplanner.forecast.growth_and_announced_demand import (
    EXTRA_LEVEL_PENALTY,
    MIN_DEMAND_LEVEL_DAYS,
    _pelt,
    change_points,
    find_anomalies,
)


def days_of(values):
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    ds = [begin + timedelta(hours=hour) for hour in range(len(values))]
    return pl.DataFrame({"ds": ds, "y": values})


def partition_cost(values, cuts, noise):
    edges = [0, *cuts, len(values)]
    parts = [values[low:high] / noise for low, high in pairwise(edges)]
    return sum(((part - part.mean()) ** 2).sum() for part in parts) + EXTRA_LEVEL_PENALTY * np.log(len(values)) * len(
        cuts
    )


@pytest.mark.parametrize("seed", range(6))
def test_no_other_partition_costs_less(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, 18) + np.repeat(rng.normal(0, 4, 3), 6)
    noise = np.median(np.abs(np.diff(values))) / (0.6745 * np.sqrt(2))
    brute = min(
        partition_cost(values, cuts, noise)
        for count in range(5)
        for cuts in combinations(range(MIN_DEMAND_LEVEL_DAYS, 18 - MIN_DEMAND_LEVEL_DAYS + 1), count)
        if all(high - low >= MIN_DEMAND_LEVEL_DAYS for low, high in pairwise(cuts))
    )
    assert partition_cost(values, _pelt(values), noise) == pytest.approx(brute)


def test_a_new_level_is_dated_and_weekends_are_none():
    rng = np.random.default_rng(1)
    hour = np.arange(56 * 24)
    weekend = np.where(hour // 24 % 7 >= 5, 0.5, 1.0)
    wave = 20 * weekend * (1 + 0.5 * np.sin(hour * 2 * np.pi / 24)) + rng.normal(0, 1, len(hour))
    assert change_points(days_of(wave)).is_empty()
    moved = wave + np.where(hour >= 30 * 24, 25.0, 0.0)
    found = change_points(days_of(moved))
    assert found["ds"].to_list() == [datetime(2026, 1, 5, tzinfo=UTC) + timedelta(days=30)]
    assert (found["after"] - found["before"]).item() == pytest.approx(25, abs=2)


def test_noise_has_hardly_any_levels_and_little_or_nothing_none():
    rng = np.random.default_rng(2)
    found = [change_points(days_of(rng.normal(50, 5, 60 * 24))).height for _ in range(20)]
    assert sum(found) <= 1
    for values in (np.zeros(500), np.full(500, 3.0), np.ones(30)):
        assert change_points(days_of(values)).is_empty()


def test_a_day_unlike_its_neighbours_is_an_anomaly_and_a_lasting_change_is_not():
    """Thirty days of 10 or 11 GPUs with an outage on day 12 and a rise to 20 from day 21 on."""
    begin = datetime(2026, 3, 2, tzinfo=UTC)
    level = [10.0 + number % 2 for number in range(20)] + [20.0 + number % 2 for number in range(10)]
    level[11] = 0.0
    hours = pl.DataFrame({"ds": [begin + timedelta(hours=hour) for hour in range(30 * 24)], "y": np.repeat(level, 24)})
    found = find_anomalies(hours)
    assert found["ds"].to_list() == [begin + timedelta(days=11)]
    assert found["y"].to_list() == [0.0]
    assert 9 <= found["usual"].item() <= 12
    assert begin + timedelta(days=20) in change_points(hours)["ds"].to_list()
    assert find_anomalies(hours.with_columns(y=pl.lit(7.0))).is_empty()
    assert find_anomalies(hours.head(24 * 20)).is_empty()


@pytest.mark.parametrize("weekend_falls", ["by a share", "by GPUs"])
def test_weekends_after_a_change_of_level_are_usual(weekend_falls):
    """Nine weeks with half of the load at weekends; the level rises after five, and a day in week three is triple."""
    rng, day = np.random.default_rng(4), np.arange(63)
    weekend, raised = day % 7 >= 5, day >= 35
    level = np.where(weekend, 2.5, 5.0)
    level = level * np.where(raised, 1.8, 1.0) if weekend_falls == "by a share" else level + np.where(raised, 4.0, 0.0)
    level *= rng.normal(1.0, 0.05, 63)
    level[17] *= 3
    demand = days_of(np.repeat(level, 24))
    assert find_anomalies(demand)["ds"].to_list() == [demand["ds"][17 * 24]]
