"""Classes by size, duration and hour: as sure as they say, on jobs whose class is known and was hidden."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.usage.job_classes import class_by_shape
from gpuplanner.usage.planning_history import history, load_dataset


@pytest.fixture(scope="module")
def jobs() -> pl.DataFrame:
    run = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
    return load_dataset("sample").jobs.with_columns(run_s=run).drop_nulls("run_s")


@pytest.mark.parametrize("seed", range(3))
def test_hidden_classes_are_found_as_often_as_is_said(jobs, seed):
    hidden = pl.Series(np.random.default_rng(seed).random(jobs.height) < 0.3)
    known = jobs.select(pl.when(~hidden).then("job_class")).to_series()
    found = class_by_shape(jobs, known).with_columns(truth=jobs["job_class"]).filter(hidden).drop_nulls("job_class")
    right = (found["job_class"] == found["truth"]).mean()
    assert found.height > 1000
    assert right == pytest.approx(found["confidence"].mean(), abs=0.03)


def test_what_is_known_stays_and_nothing_follows_from_nothing(jobs):
    kept = class_by_shape(jobs, jobs["job_class"])
    assert kept["job_class"].to_list() == jobs["job_class"].to_list()
    assert kept["confidence"].null_count() == jobs.height
    nothing = class_by_shape(jobs, pl.Series([None] * jobs.height, dtype=pl.String))
    assert nothing["job_class"].null_count() == jobs.height


def test_jobs_without_names_are_sized_by_those_like_them(tmp_path):
    trace = load_dataset("sample")
    bare = trace.jobs.with_columns(
        pl.lit(None, pl.String).alias(name) for name in ("job_class", "job_name", "partition")
    )
    write_dataset(trace.with_tables(jobs=bare), tmp_path / "bare")
    known = history(Scenario(data=str(tmp_path / "bare")))
    by_class = known.rightsizing.filter(evidence="class")
    assert by_class.height > 100, "jobs that nobody measured, and none of which has a name"
    assert 0.5 < known.like_others <= 1
    assert 0 < known.undecided < 0.2
    named = history(Scenario())
    assert (named.undecided, named.like_others) == (0.0, None)
