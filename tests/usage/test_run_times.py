"""Run times of jobs that have not ended come from jobs of their class that ran at least as long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.usage.run_time_hazards import impute_run_times

MONDAY = datetime(2026, 2, 2, tzinfo=UTC)
HOUR_S = 3600.0
OVER = ("COMPLETED", "FAILED", "CANCELLED")
JOBS = st.lists(
    st.tuples(
        st.sampled_from(["train", "notebook", None]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([*OVER, "RUNNING", "PENDING"]),
        st.integers(0, 20),  # hour of the start
        st.integers(1, 40),  # hours until the end
        st.booleans(),  # whether start or end is written down, for those that are over
    ),
    min_size=1,
    max_size=12,
)


def table(rows):
    """Jobs; one that waits has not begun, and of one that runs, or is over, times may be missing."""
    jobs = []
    for number, (kind, tenant, state, start, hours, known) in enumerate(rows):
        begun = state != "PENDING" and (known or state not in ("CANCELLED", "RUNNING"))
        ended = state in OVER and (known or state == "CANCELLED")
        jobs.append(
            {
                "job_id": str(number),
                "tenant": tenant,
                "job_class": kind,
                "state": state,
                "start_time": MONDAY + timedelta(hours=start) if begun else None,
                "end_time": MONDAY + timedelta(hours=start + hours) if ended else None,
            }
        )
    times = dict.fromkeys(("start_time", "end_time"), pl.Datetime("us", "UTC"))
    return pl.DataFrame(jobs, schema_overrides={"job_class": pl.String, **times})


@given(rows=JOBS, seed=st.integers(0, 3))
def test_every_open_job_runs_as_one_that_ended_and_no_other_is_made_up(rows, seed):
    now = MONDAY + timedelta(hours=24)
    jobs = table(rows)
    found = impute_run_times(jobs, now, seed=seed).to_dicts()
    ended = [(row["job_class"] or row["tenant"], (row["end_time"] - row["start_time"]).total_seconds())
             for row in jobs.to_dicts() if row["start_time"] and row["end_time"]]  # fmt: skip
    for job in found:
        kind = job["job_class"] or job["tenant"]
        if job["start_time"] and job["end_time"]:
            assert (job["run_known"], job["run_s"]) == (True, (job["end_time"] - job["start_time"]).total_seconds())
            continue
        assert job["run_known"] is False
        if job["state"] in OVER:
            assert job["run_s"] is None
            continue
        runs = job["state"] == "RUNNING" and job["start_time"] is not None
        age_s = (now - job["start_time"]).total_seconds() if runs else 0.0
        same = [seconds for other, seconds in ended if other == kind]
        longer = [seconds for seconds in same or [seconds for _, seconds in ended] if seconds >= age_s]
        assert job["run_s"] in (longer or [2 * age_s])
    assert set(found[0]) == {*jobs.columns, "run_s", "run_known"}


def test_draws_are_those_of_the_seed_and_all_that_ran_as_long_are_drawn():
    rows = [("train", "a", "COMPLETED", 0, hours, True) for hours in (1, 5, 6, 7)]
    rows += [("train", "a", "RUNNING", 20, 1, True)] * 200
    now = MONDAY + timedelta(hours=24)
    drawn = impute_run_times(table(rows), now, seed=1)["run_s"][4:]
    assert drawn.equals(impute_run_times(table(rows), now, seed=1)["run_s"][4:])
    assert not drawn.equals(impute_run_times(table(rows), now, seed=2)["run_s"][4:])
    counts = drawn.value_counts().sort("run_s").rows()
    assert [seconds / HOUR_S for seconds, _ in counts] == [5, 6, 7]
    # 200 draws among three: the least likely count within four standard deviations of a third.
    assert all(number == pytest.approx(200 / 3, abs=4 * (200 * 2 / 9) ** 0.5) for _, number in counts)
