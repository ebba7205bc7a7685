"""The quality report: each check finds what it is named for, and counts it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Jobs
from gpuplanner.ingest.dataset import gpu_hours
from gpuplanner.ingest.quality_report import JOB_LIST_CHECKS, find_submission_gaps, run_checks

ZERO = datetime(2025, 1, 1, tzinfo=UTC)


Row = dict[str, object]


def job(state: str, start_h: float | None, end_h: float | None, gpus: float | None = 1.0) -> Row:
    """One job submitted at hour 0."""
    start, end = (None if hours is None else ZERO + timedelta(hours=hours) for hours in (start_h, end_h))
    return {"submit_time": ZERO, "start_time": start, "end_time": end, "state": state, "gpus": gpus}


def jobs(*rows: Row) -> pl.DataFrame:
    fixed = {"attempt": 1, "tenant": "a"}
    named = [{"job_id": str(number), **fixed, **row} for number, row in enumerate(rows)]
    return conform(pl.DataFrame(named, infer_schema_length=None), Jobs, source="jobs")


@pytest.mark.parametrize(
    ("row", "check"),
    [
        (job("COMPLETED", 1, None), "ended without an end time"),
        (job("RUNNING", 1, None), "running when the observation ended"),
        (job("PENDING", None, None), "waiting when the observation ended"),
        (job("CANCELLED", None, 2), "ended without ever starting"),
        (job("COMPLETED", 1, 2, gpus=None), "number of GPUs not known"),
        (job("COMPLETED", 1, 2, gpus=0.0), "no GPU"),
        (job("UNKNOWN", 1, 2), "state not known"),
        (job("COMPLETED", 1, 31 * 24), "ran for more than 30 days"),
    ],
)
def test_each_check_finds_its_case_among_sound_jobs(row: Row, check: str):
    sound = job("COMPLETED", 1, 2)
    findings = run_checks(jobs(sound, row, sound), JOB_LIST_CHECKS)
    assert (check, 1, "job 1") in [(finding.check, finding.rows, finding.example) for finding in findings]
    assert run_checks(jobs(sound, sound), JOB_LIST_CHECKS) == []


def test_gaps_between_submissions():
    hours = pl.Series([0, 1, 24, 49, 80])
    times = ZERO + hours.cast(pl.Duration("us")) * 3_600_000_000
    (finding,) = find_submission_gaps(times)
    assert finding.rows == 2  # 24 → 49 and 49 → 80
    assert finding.example == "31.0 hours before 2025-01-04 08:00 UTC"
    assert find_submission_gaps(times.head(3)) == []


def test_gpu_hours_by_hand():
    table = jobs(
        job("COMPLETED", 1, 3, gpus=4),  # 8
        job("RUNNING", 2, None, gpus=0.5),  # 4, up to hour 10
        job("FAILED", 2, None),  # end not known: nothing
        job("PENDING", None, None),  # nothing
        job("COMPLETED", 0, 5, gpus=None),  # GPUs not known: nothing
    )
    assert gpu_hours(table, ZERO + timedelta(hours=10)) == 12.0
