"""Jobs, nodes and samples from a few numbers; times are minutes from nine o'clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Inventory, Jobs, Samples

NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)
HOURS = {"start": NINE, "end": NINE + timedelta(hours=3)}


def at(minute):
    return None if minute is None else NINE + timedelta(minutes=minute)


def build(schema, rows):
    types = {name: column.dtype for name, column in schema.columns().items()}
    return conform(pl.DataFrame(rows, schema=types), schema, source="test")


def _state(start, end):
    if end is not None:
        return "UNKNOWN"
    return "PENDING" if start is None else "RUNNING"


@pytest.fixture(scope="session")
def make_jobs():
    """Rows of tenant, gpus, submission, start, end and further columns."""

    def make(*rows):
        return build(
            Jobs,
            [
                {
                    "job_id": str(number),
                    "attempt": 1,
                    "tenant": tenant,
                    "state": _state(start, end),
                    "gpus": gpus,
                    "submit_time": at(submit),
                    "start_time": at(start),
                    "end_time": at(end),
                }
                | (further[0] if further else {})
                for number, (tenant, gpus, submit, start, end, *further) in enumerate(rows)
            ],
        )

    return make


@pytest.fixture(scope="session")
def make_nodes():
    """Rows of gpus, board, and minutes of installation and retirement."""

    def make(*rows):
        return build(
            Inventory,
            [
                {
                    "node": f"n{number}",
                    "gpus": gpus,
                    "gpu_model": gpu_model,
                    "installed": at(installed),
                    "retired": at(retired),
                }
                for number, (gpus, gpu_model, installed, retired) in enumerate(rows)
            ],
        )

    return make


@pytest.fixture(scope="session")
def make_samples():
    """Rows of job, minute, gpu and activity."""

    def make(*rows):
        return build(
            Samples,
            [
                {
                    "time": at(minute),
                    "node": "n0",
                    "gpu": gpu,
                    "job_id": job_id,
                    "sm_activity": activity,
                    "activity_source": "profiling",
                }
                for job_id, minute, gpu, activity in rows
            ],
        )

    return make


@pytest.fixture(scope="session")
def window():
    """Three hours from nine."""
    return HOURS
