"""Daily peaks: counting against draws, the shipped excess against the traces, and what is left unsaid."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.demand.peaks import (
    RISING,
    _rising,
    chance_of_more,
    daily_peaks,
    exceed_chance,
    level_for,
    peak_excess,
    unknown_because,
)
from gpuplanner.inbox.public.job_tables import PHILLY, PHILLY_ZONE
from tests.examples import examples

PEAKS = st.lists(st.integers(1, 200), min_size=2, max_size=30)


@pytest.mark.parametrize("law", ["normal", "pareto"])
@pytest.mark.parametrize(("n", "m"), [(2, 1), (5, 28), (10, 7)])
def test_the_chance_of_more_is_that_of_any_law(law, n, m):
    draws = getattr(np.random.default_rng(1), law)
    days = draws(size=(40_000, n + m)) if law == "normal" else draws(1.5, size=(40_000, n + m))
    share = (days[:, n:].max(axis=1) > days[:, :n].max(axis=1)).mean()
    assert chance_of_more(n, m) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("above", [0, 1, 3, 5])
def test_levels_below_the_largest_follow_from_order_too(above):
    rng = np.random.default_rng(2)
    days = rng.random((60_000, 13))
    level = np.sort(days[:, :6], axis=1)[:, 5 - above]  # so many of six days are above it
    share = (days[:, 6:].max(axis=1) > level).mean()
    week = [10.0, 60.0, 30.0, 20.0, 50.0, 40.0]
    assert exceed_chance(week, sorted(week)[5 - above], 7) == pytest.approx(share, abs=0.01)


def test_the_size_of_the_excess_is_that_of_like_traces():
    """28 days stay below twice the largest of 5 in a good half, and of 20 in about five of six."""
    five, twenty = (1 - exceed_chance([10] * days, 20, 28) for days in (5, 20))
    assert five == pytest.approx(0.55, abs=0.06)
    assert twenty == pytest.approx(0.83, abs=0.06)


def test_the_shipped_table_is_one_of_distributions():
    rows = peak_excess()
    assert rows["source"].str.len_chars().min() > 10
    assert rows["date"].str.to_date().is_not_null().all()
    assert (rows["ratio"] > 1).all()
    for _, each in rows.group_by("n", "m"):
        assert each.sort("quantile")["ratio"].is_sorted()
        assert each["exceeded"].n_unique() == 1
    # Days of public traces are as exchangeable as counting needs: within ten points in every cell.
    cells = rows.unique(["n", "m"]).select(
        (pl.col("exceeded") - pl.col("m") / (pl.col("n") + pl.col("m"))).abs()
    )
    assert cells.max().item() < 0.1


@given(PEAKS, st.integers(1, 60), st.floats(1.0, 4.0), st.floats(1.0, 2.0))
@settings(max_examples=examples(60), deadline=None)
def test_chances_are_probabilities_and_fall_with_the_level(peaks, ahead, times, more):
    level = times * max(peaks)
    chance = exceed_chance(peaks, level, ahead)
    if unknown_because(peaks) is not None:
        assert chance is None
        return
    assert (
        0 <= exceed_chance(peaks, more * level, ahead) <= chance <= chance_of_more(len(peaks), ahead) + 1e-12
    )
    assert chance <= exceed_chance(peaks, level, ahead + 7) + 0.05
    assert exceed_chance(peaks, 0.9 * max(peaks), ahead) >= chance
    assert exceed_chance([3 * peak for peak in peaks], 3 * level, ahead) == pytest.approx(chance)


@given(PEAKS, st.integers(1, 90), st.floats(0.02, 0.6))
@settings(max_examples=examples(60), deadline=None)
def test_the_level_holds_its_chance_and_none_below_it_does(peaks, ahead, chance):
    level = level_for(peaks, ahead, chance)
    if level is None:
        return
    assert level >= max(peaks)
    assert exceed_chance(peaks, level, ahead) <= chance + 1e-9
    if level > max(peaks):
        assert exceed_chance(peaks, max(0.98 * level, max(peaks)), ahead) > chance - 1e-9


def test_growth_shows_as_often_as_is_said():
    for days in (2, 3, 5, 6):
        odds = [_rising(np.array(order)) for order in permutations(range(days))]
        assert np.mean(np.array(odds) <= RISING) <= RISING
        # The exact law: as likely as there are orders with as few falls.
        assert min(odds) == pytest.approx(1 / len(odds))
    assert unknown_because([7.0] * 30) is None
    assert unknown_because(list(range(30, 0, -1))) is None


def test_peaks_of_days_by_trying_every_instant():
    rng = np.random.default_rng(4)
    begin = np.round(rng.uniform(-2, 6, 60), 1)  # many begin and end together, and at midnight
    end = begin + np.round(rng.uniform(0, 3, 60), 1)
    end[:3] = np.inf
    size = rng.integers(1, 9, 60).astype(float)
    found = daily_peaks(begin, end, size, 5)
    for day in range(5):
        instants = np.concatenate([[day], begin[(begin >= day) & (begin < day + 1)]])
        held = [size[(begin <= at) & (at < end)].sum() for at in instants]
        assert found[day] == pytest.approx(max(held))
    assert daily_peaks(np.empty(0), np.empty(0), np.empty(0), 2).tolist() == [0.0, 0.0]


@pytest.mark.data
def test_levels_hold_on_a_virtual_cluster_of_philly(public_data):
    """The level for one chance in ten, from ten days each: passed in 28 days about so often, on what it was made of."""
    jobs = PHILLY([public_data / "philly" / "philly.csv.gz"]).jobs.filter(pl.col("gpus") > 0)
    passed = []
    for (_,), rows in jobs.group_by("tenant", maintain_order=True):
        times = rows.select(
            pl.col("start_time", "end_time").dt.convert_time_zone(PHILLY_ZONE).dt.replace_time_zone(None)
        )
        begin, end = (times[name].dt.timestamp("us").to_numpy() / 86_400e6 for name in times.columns)
        first, days = np.ceil(begin.min()) + 7, int(begin.max() - np.ceil(begin.min())) - 7
        if rows.height < 400:
            continue
        peaks = daily_peaks(begin - first, end - first, rows["gpus"].to_numpy(), days)
        for at in range(days - 38 + 1):
            level = level_for(peaks[at : at + 10], 28)
            if level is not None:
                passed.append(peaks[at + 10 : at + 38].max() > level)
    assert len(passed) > 150
    assert np.mean(passed) < 0.2
