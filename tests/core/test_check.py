"""Checks say everything that is wrong at once; conforming never invents values."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import check_table, conform, filter_rows, make_empty_table
from gpuplanner.core.schemas import TABLES, Forecast, Jobs

NOW = datetime(2026, 2, 1, tzinfo=UTC)


def jobs(**columns: object) -> pl.DataFrame:
    base = {"job_id": "a", "attempt": 1, "tenant": "t", "submit_time": NOW, "state": "COMPLETED"}
    return pl.DataFrame([base | columns])


def test_absent_columns_become_null_not_zero():
    row = check_table(jobs(), Jobs, source="jobs").row(0, named=True)
    assert row["gpus"] is None
    assert row["end_time"] is None


def test_every_reason_of_a_bad_row_is_given():
    bad = jobs(gpus=-1.0, sm_activity=3.0, start_time=NOW.replace(year=2020))
    _, rejected = filter_rows(conform(bad, Jobs, source="jobs"), Jobs)
    reason = rejected["reason"][0]
    for part in ("gpus below 0", "sm_activity above 1", "start not before submit"):
        assert part in reason
    with pytest.raises(SchemaError, match="1 of 1 rows"):
        check_table(bad, Jobs, source="jobs")


def test_quantiles_may_not_cross():
    row = {"unique_id": "a", "ds": NOW, "model": "m", "mean": 1.0, "cutoff": NOW}
    levels = {f"q{q:02d}": float(q) for q in (5, 10, 25, 50, 75, 90, 95)}
    assert check_table(pl.DataFrame([row | levels]), Forecast, source="f").height == 1
    with pytest.raises(SchemaError, match="quantiles ordered"):
        check_table(pl.DataFrame([row | levels | {"q10": 80.0}]), Forecast, source="f")


@pytest.mark.parametrize("name", TABLES)
def test_every_column_says_what_it_means(name):
    schema = TABLES[name]
    assert all((column.metadata or {}).get("meaning") for column in schema.columns().values())
    assert check_table(make_empty_table(schema), schema, source=name).is_empty()
