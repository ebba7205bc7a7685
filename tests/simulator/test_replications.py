"""Weeks made of history days: right kind of day, right time of day, same draw for every policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.simulator.replications import bootstrap_days
from tests.examples import examples

MONDAY = datetime(2026, 2, 2, tzinfo=UTC)
DAY_S = 86_400


@pytest.fixture(scope="module")
def history():
    """Two weeks; day k has k % 4 jobs, so some days are empty. The id tells the day and the second."""
    rows = []
    for day in range(14):
        for number in range(day % 4):
            second = 3_600 * (number + 5) + day
            rows.append((f"d{day}s{second}", MONDAY + timedelta(days=day, seconds=second), 60.0))
    rows.append(("last", MONDAY + timedelta(days=13, hours=23), 60.0))
    return pl.DataFrame(rows, schema=["job_id", "submit_time", "run_s"], orient="row").with_columns(
        pl.col("submit_time").dt.cast_time_unit("us")
    )


def parts(drawn):
    """(simulated day, history day, second in the history day, second in the simulated day) of every job."""
    out = []
    for job_id, submit_s in drawn.select("job_id", "submit_s").iter_rows():
        original, _, day = job_id.partition("#")
        if original != "last":
            then, second = original[1:].split("s")
            out.append((int(day), int(then), int(second), submit_s - int(day) * DAY_S))
    return out


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 50), st.integers(1, 7))
def test_days_are_drawn_from_their_own_kind_and_keep_their_hours(history, seed, replication, start_weekday):
    drawn = bootstrap_days(history, days=10, seed=seed, replication=replication, start_weekday=start_weekday)
    whole_days = {}
    for day, then, second, at in parts(drawn):
        assert at == second
        assert ((start_weekday - 1 + day) % 7 >= 5) == (then % 7 >= 5)
        whole_days.setdefault(day, []).append(then)
    for thens in whole_days.values():
        assert len(set(thens)) == 1
        assert len(thens) == thens[0] % 4
    assert drawn["submit_s"].is_sorted()
    assert drawn["job_id"].is_unique().all()


def test_a_longer_draw_begins_with_the_shorter_one(history):
    shorter, longer = (bootstrap_days(history, days=days, seed=5, replication=2) for days in (7, 9))
    assert longer.filter(pl.col("submit_s") < 7 * DAY_S).equals(shorter)
    assert longer.height > shorter.height


def test_the_draw_depends_on_seed_and_replication_alone(history):
    draws = {
        (seed, replication): bootstrap_days(history, days=7, seed=seed, replication=replication)
        for seed in (1, 2)
        for replication in (0, 1)
    }
    again = bootstrap_days(history.reverse(), days=7, seed=1, replication=0)
    assert again.sort("job_id").equals(draws[1, 0].sort("job_id"))
    ids = [tuple(drawn["job_id"]) for drawn in draws.values()]
    assert len(set(ids)) == len(ids)


def test_every_day_of_a_kind_is_drawn_equally_often(history):
    drawn = bootstrap_days(history, days=7 * 600, seed=3, replication=0)
    chosen = pl.DataFrame(parts(drawn), schema=["day", "then", "a", "b"], orient="row").unique(["day", "then"])
    counts = dict(chosen.group_by("then").len().iter_rows())
    # 3000 working days over 10 choices and 1200 weekend days over 4; five standard deviations around it.
    for day in range(14):
        if day % 4:
            expected, spread = (300, 16.4) if day % 7 < 5 else (300, 15.0)
            assert abs(counts[day] - expected) < 5 * spread


def test_a_history_without_a_weekend_cannot_make_one(history):
    week = history.filter(pl.col("submit_time") < MONDAY + timedelta(days=5))
    assert bootstrap_days(week, days=5, seed=1, replication=0).height > 0
    with pytest.raises(ScenarioError, match="weekend day in the history; got none between 2026-02-03 and 2026-02-05"):
        bootstrap_days(week, days=7, seed=1, replication=0)
    with pytest.raises(ScenarioError, match="expected jobs, days above 0"):
        bootstrap_days(week.clear(), days=7, seed=1, replication=0)
