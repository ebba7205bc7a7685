"""Jobs and samples from a few words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Jobs, Samples

NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)


@pytest.fixture(scope="session")
def make_jobs():
    """Build a jobs table from rows of named values; a job runs from nine to ten unless it says otherwise."""

    def build(*rows):
        usual = {
            "attempt": 1,
            "tenant": "a",
            "state": "COMPLETED",
            "submit_time": NINE,
            "start_time": NINE,
            "end_time": NINE + timedelta(hours=1),
            "gpus": 1.0,
        }
        table = [{"job_id": str(number)} | usual | row for number, row in enumerate(rows)]
        types = {name: column.dtype for name, column in Jobs.columns().items()}
        return conform(pl.DataFrame(table, schema=types), Jobs, source="jobs")

    return build


@pytest.fixture(scope="session")
def make_samples():
    """Build one sample a minute from nine on: activities of a job, with peak memory in the last minute."""

    def build(job_id, activities, memory_gib=1.0, **columns):
        rows = [
            {
                "time": NINE + timedelta(minutes=number),
                "node": "n1",
                "gpu": 0,
                "job_id": job_id,
                "sm_activity": activity,
                "memory_used_gib": memory_gib if number == len(activities) - 1 else 0.5,
                "activity_source": "profiling",
            }
            | columns
            for number, activity in enumerate(activities)
        ]
        types = {name: column.dtype for name, column in Samples.columns().items()}
        return conform(pl.DataFrame(rows, schema=types), Samples, source="samples")

    return build
