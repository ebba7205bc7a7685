"""Demand series: hand-worked cases, a count of every minute, conservation, the public Philly trace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Demand
from gpuplanner.usage.requested_demand import count_excluded_jobs, demand_series

MONDAY = datetime(2026, 2, 2, tzinfo=UTC)


def minute(number):
    return None if number is None else MONDAY + timedelta(minutes=number)


def state(start, end):
    if end is not None:
        return "UNKNOWN"
    return "PENDING" if start is None else "RUNNING"


def make_jobs(rows):
    """Rows of tenant, profile, instances, and minutes of submission, start and end."""
    return pl.DataFrame(
        [
            (str(number), 1, tenant, minute(submit), minute(start), minute(end), state(start, end), profile, count)
            for number, (tenant, profile, count, submit, start, end) in enumerate(rows)
        ],
        schema={
            "job_id": pl.String,
            "attempt": pl.Int32,
            "tenant": pl.String,
            "submit_time": pl.Datetime("us", "UTC"),
            "start_time": pl.Datetime("us", "UTC"),
            "end_time": pl.Datetime("us", "UTC"),
            "state": pl.String,
            "profile": pl.String,
            "instances": pl.Int32,
        },
        orient="row",
    )


def values(demand):
    return {key[0]: part["y"].to_list() for key, part in demand.group_by("unique_id", maintain_order=True)}


def test_three_jobs_by_hand():
    jobs = make_jobs(
        [
            ("a", "gpu", 2, 0, 30, 90),  # half an hour of two GPUs in each of the first two hours
            ("a", "gpu", 1, 0, 60, 180),  # one GPU over the second and third hour
            ("b", "1g.10gb", 1, 170, 179, 181),  # one minute on either side of the third edge
        ]
    )
    demand = check_table(demand_series(jobs), Demand, source="demand")
    assert values(demand) == {"a/gpu": [1.0, 2.0, 1.0, 0.0], "b/1g.10gb": [0.0, 0.0, 1 / 60, 1 / 60]}
    assert demand["ds"].unique().sort().to_list() == [MONDAY + timedelta(hours=h) for h in range(4)]


def test_wanted_demand_is_what_no_queue_would_show():
    jobs = make_jobs(
        [
            ("a", "gpu", 1, 0, 120, 180),  # waited two hours, ran one
            ("b", "gpu", 1, 60, None, 120),  # withdrawn after an hour in the queue
            ("c", "gpu", 1, 60, None, None),  # waits still
            ("d", "gpu", 1, 0, 180, None),  # runs still, one hour at the end of the grid
        ]
    )
    end = minute(240)
    assert values(demand_series(jobs, start=MONDAY, end=end, clock="wanted")) == {
        "a/gpu": [1, 0, 0, 0],
        "b/gpu": [0, 1, 0, 0],
        "c/gpu": [0, 1, 1, 1],
        "d/gpu": [1, 0, 0, 0],
    }
    assert values(demand_series(jobs, start=MONDAY, end=end)) == {"a/gpu": [0, 0, 1, 0], "d/gpu": [0, 0, 0, 1]}


def test_grid_cuts_and_default_grid_holds_all():
    jobs = make_jobs([("a", "gpu", 1, 0, 61, 300)])
    cut = demand_series(jobs, start=minute(120), end=minute(240))
    assert values(cut) == {"a/gpu": [1, 1]}
    days = demand_series(jobs, interval_hours=24)
    assert days["ds"].to_list() == [MONDAY]
    assert days["y"].to_list() == [239 / 1440]


def test_job_that_still_runs_counts_to_the_last_event():
    jobs = make_jobs([("a", "gpu", 1, 0, 0, None), ("b", "gpu", 1, 90, None, None)])
    assert values(demand_series(jobs)) == {"a/gpu": [1, 1]}


def test_of_jobs_that_ended_nobody_knows_when_nothing_is_counted():
    jobs = make_jobs([("a", "gpu", 1, 0, 60, None), ("a", "gpu", 8, 0, 60, None), ("a", "gpu", 8, 0, None, None)])
    jobs = jobs.with_columns(state=pl.Series(["RUNNING", "FAILED", "CANCELLED"]))
    for clock in ("held", "wanted"):
        assert demand_series(jobs, end=MONDAY + timedelta(hours=3), clock=clock)["y"].max() == 1.0


def test_unknown_requests_are_left_out_and_counted():
    jobs = make_jobs([("a", "gpu", 1, 0, 0, 60), ("a", None, None, 0, 0, 60), ("a", None, 0, 0, 0, 60)])
    assert values(demand_series(jobs)) == {"a/gpu": [1]}
    assert count_excluded_jobs(jobs) == {"request unknown": 1, "no GPU": 1}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_every_job_is_in_the_series_or_excluded(count):
    """A lone instance without a profile is a request that is not known; none at all is no request."""
    jobs = make_jobs([("a", "gpu", count, 0, 0, 60), ("a", None, count, 0, 0, 60), ("a", None, None, 0, 0, 60)])
    left_out = count_excluded_jobs(jobs)
    assert left_out == {"request unknown": 2 if count else 1, "no GPU": 0 if count else 2}
    counted = sum(demand_series(jobs)["y"]) if count else 0
    assert counted == (jobs.height - sum(left_out.values())) * count


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["gpu", "1g.10gb"]),
        st.integers(1, 8),
        st.integers(0, 600),
        st.integers(0, 300),
        st.integers(0, 900),
    ).map(lambda job: (*job[:3], job[3], job[3] + job[4], job[3] + job[4] + job[5])),
    min_size=1,
    max_size=15,
)


@settings(deadline=None)
@given(rows=JOBS, clock=st.sampled_from(["held", "wanted"]), interval_hours=st.sampled_from([0.5, 1, 3, 24]))
def test_instance_hours_are_conserved(rows, clock, interval_hours):
    demand = demand_series(make_jobs(rows), interval_hours=interval_hours, clock=clock)
    hours = sum(count * (end - start) / 60 for _, _, count, _, start, end in rows)
    assert demand["y"].sum() * interval_hours == pytest.approx(hours, rel=1e-9, abs=1e-12)
    slots = demand.group_by("unique_id").agg(pl.col("ds").sort())
    assert slots["ds"].n_unique() <= 1
    assert demand.equals(demand.sort("unique_id", "ds"))


@settings(deadline=None)
@given(rows=JOBS, first=st.integers(0, 8), length=st.integers(1, 12))
def test_every_slot_equals_a_count_of_its_minutes(rows, first, length):
    start = MONDAY + timedelta(hours=first)
    demand = demand_series(make_jobs(rows), start=start, end=start + timedelta(hours=length))
    for uid, series in values(demand).items():
        tenant, profile = uid.split("/")
        minutes = np.zeros(length * 60)
        for who, what, count, _, begin, end in rows:
            if (who, what) == (tenant, profile):
                low, high = (np.clip(edge - first * 60, 0, length * 60) for edge in (begin, end))
                minutes[low:high] += count
        np.testing.assert_allclose(series, minutes.reshape(length, 60).mean(axis=1), rtol=1e-12)


@pytest.mark.data
def test_philly_gpu_hours_are_conserved(public_data, philly_jobs):
    trace = pl.read_csv(public_data / "philly" / "philly.csv.gz").drop_nulls()
    demand = demand_series(philly_jobs)
    published = trace["gpu_time"].sum() / 3600
    assert demand["y"].sum() == pytest.approx(published, rel=1e-9)
    assert demand["tenant"].n_unique() == 10
