"""Short ways to write jobs down and to read what became of them."""

from __future__ import annotations

import polars as pl
import pytest

BOARD = "H100-80GB-SXM5"


def _jobs(*rows, **columns):
    """Rows of (job_id, submit_s, run_s, gpus, profile); limits equal run times unless given."""
    names = ["job_id", "submit_s", "run_s", "gpus", "profile"]
    frame = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
    frame = frame.with_columns(
        pl.col("submit_s", "run_s").cast(pl.Float64),
        tenant=pl.lit("t"),
        limit_s=pl.col("run_s").cast(pl.Float64),
    )
    return frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()})


def _starts(run):
    return dict(run.outcomes.select("job_id", "first_start").iter_rows())


def _history(run, number, per_node=8):
    """States of one GPU as (start, end, layout, state)."""
    mine = run.states.filter(pl.col("node") * per_node + pl.col("gpu") == number)
    return mine.select("start_s", "end_s", "layout", "state").rows()


@pytest.fixture(scope="session")
def jobs_of():
    return _jobs


@pytest.fixture(scope="session")
def starts():
    return _starts


@pytest.fixture(scope="session")
def history():
    return _history
