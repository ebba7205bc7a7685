"""What cannot be is said before a page is written; what can be is not doubted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study import Study
from gpuplanner.decision.study_pipeline import list_doubts
from gpuplanner.usage.gpu_hour_ledger import hours_by_bucket
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import history, observation_ends_at

FEBRUARY = Scenario(month="2026-02")


@pytest.fixture(scope="module")
def known():
    return history(FEBRUARY)


@pytest.fixture(scope="module")
def booked():
    return hours_by_bucket(scenario_ledger(FEBRUARY))


def told(known, booked, study: Study) -> str:
    return " ".join(list_doubts(known, booked, study.comparison))


def test_the_sample_is_not_doubted(known, booked, study):
    assert told(known, booked, study) == ""


def test_more_held_than_installed_and_gangs_larger_than_the_fleet(known, booked, study):
    small = booked.with_columns(pl.col("gpu_hours") / 3)
    assert f"GPUs give {small['gpu_hours'].sum():,.0f}" in told(known, small, study)
    few = replace(known, fleet=replace(known.fleet, gpus=4))
    largest = known.jobs["gpus"].max()
    assert f"requests {largest:,.0f} GPUs of a fleet of 4" in told(few, booked, study)


def test_jobs_that_never_began_held_nothing(known, booked, study):
    jobs = known.trace.jobs
    given_up = jobs.head(200).with_columns(
        start_time=pl.lit(None, jobs.schema["start_time"]), gpus=pl.lit(64.0, jobs.schema["gpus"])
    )
    more = replace(known, trace=known.trace.with_tables(jobs=pl.concat([jobs, given_up])))
    assert told(more, booked, study) == ""


def test_a_record_of_ended_jobs_alone_thins_out(known, booked, study):
    """Jobs of four days each: in the last days of the record those that had not ended are missing."""
    end = observation_ends_at(known.trace)
    starts = [end - timedelta(hours=6 * n) for n in range(1, 120)]
    jobs = pl.DataFrame({"start_time": starts, "submit_time": starts, "gpus": 1.0}).with_columns(
        end_time=pl.col("start_time") + pl.duration(hours=96)
    )
    ended = jobs.filter(pl.col("end_time") <= end)
    shape = known.trace.jobs.clear()
    ended = pl.concat([shape, ended.cast({name: shape.schema[name] for name in ended.columns})], how="diagonal")
    thin = replace(known, trace=known.trace.with_tables(jobs=ended))
    assert "more than a tenth of the demand is missing" in told(thin, booked, study)
