"""Commitments chosen on public demand, month after month, and paid on the month that came after."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gpuplanner.cost.capacity_portfolio import HOURS_PER_MONTH, Offer, Rent, choose_portfolio
from gpuplanner.decision.purchase_and_refresh_plans import WEEK_HOURS, draw_demand_paths
from gpuplanner.forecast.growth_and_announced_demand import MIN_GROWTH_WEEKS, WEEKS_IN_YEAR, fit_growth

AHEAD = 730
"""Hours of a month held back."""


def held(start_h: np.ndarray, hours: np.ndarray, gpus: np.ndarray, until: int) -> np.ndarray:
    """GPUs held on average in each hour: what each job adds to the integral up to every full hour."""
    edges = np.arange(until + 1.0)
    upto = np.zeros(until + 1)
    for begin, length, count in zip(start_h, hours, gpus, strict=True):
        upto += count * np.clip(edges - begin, 0.0, length)
    return np.diff(upto)


def clusters(folder: Path) -> Iterator[np.ndarray]:
    """Hourly demand of Philly's virtual clusters and of the clusters of ITP."""
    jobs = pl.read_csv(folder / "philly" / "philly.csv.gz", ignore_errors=True).drop_nulls("timestamp")
    jobs = jobs.with_columns(pl.col("timestamp").str.to_datetime(strict=False)).drop_nulls("timestamp")
    since = (pl.col("timestamp") - pl.col("timestamp").min()).dt.total_seconds() / 3600
    jobs = jobs.with_columns(start=since).filter(pl.col("duration") > 600)
    tables = [part.select("start", pl.col("duration") / 3600, "num_gpus") for part in jobs.partition_by("cluster")]
    for path in sorted((folder / "itp").glob("*.csv.gz")):
        start = (pl.col("submission_time") - pl.col("submission_time").min()) / 3600
        tables.append(pl.read_csv(path).select(start, pl.col("duration") / 3600, "num_gpu"))
    for table in tables:
        start, hours, gpus = (table[name].cast(pl.Float64).to_numpy() for name in table.columns)
        found = held(start, hours, gpus, int(start.max()) // WEEK_HOURS * WEEK_HOURS)
        if found.mean() >= 2:
            yield found


@pytest.mark.slow
def test_months_of_public_demand_cost_little_more_than_in_hindsight(public_data: Path):
    """In sum at most a tenth above hindsight, and below the better of renting all and committing the past mean."""
    offer, rent, rows = Offer("month", 0.7 * HOURS_PER_MONTH, 1), Rent(1.0), []
    for hours in clusters(public_data):
        weekly = hours.reshape(-1, WEEK_HOURS).mean(axis=1)
        first = int(np.argmax(weekly > np.median(weekly) / 4)) * WEEK_HOURS  # a record that begins thin is none yet
        for now in range(first + 4 * WEEK_HOURS, len(hours) - AHEAD, WEEK_HOURS):
            behind, came = hours[first:now], hours[now : now + AHEAD][None, :]
            weeks = behind.reshape(-1, WEEK_HOURS).mean(axis=1)
            growth = math.log1p(fit_growth(weeks).growth_per_year) / WEEKS_IN_YEAR
            known_growth = growth if len(weeks) >= MIN_GROWTH_WEEKS else None
            paths = draw_demand_paths(behind, 1, seed=1, log_growth=known_growth)
            chosen = choose_portfolio(paths, [offer], rent).committed[0]
            hindsight = choose_portfolio([came], [offer], rent)

            def paid(gpus: float, came: np.ndarray = came) -> float:
                beyond = float(np.maximum(came - gpus, 0).mean())
                return HOURS_PER_MONTH * (0.7 * gpus + beyond)

            rows.append((paid(chosen), hindsight.cost, hindsight.all_rented, paid(round(behind.mean()))))
    ours, hindsight, rented, at_the_mean = np.array(rows).T
    assert len(rows) >= 20
    assert ours.sum() <= 1.10 * hindsight.sum()
    assert ours.sum() <= 1.02 * min(rented.sum(), at_the_mean.sum())
