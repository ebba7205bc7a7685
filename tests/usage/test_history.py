"""What is known when a plan is made: the window of the ledger, to the instant."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.requested_jobs import read_replay_inputs
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage import planning_history as history_room
from gpuplanner.usage.dataset_description_and_data_quality import describe
from gpuplanner.usage.dataset_explorer import explore_dataset
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import (
    history,
    load_dataset,
    load_study_dataset,
    merge_small_tenants,
    observation_begins_at,
    observation_ends_at,
)

SACCT = """\
JobID|User|Account|State|Submit|Start|End|ElapsedRaw|Timelimit|NodeList|ReqTRES|AllocTRES|JobName
11|ann|bio|COMPLETED|2025-09-01T08:10:00|2025-09-01T08:10:00|2025-09-01T09:40:00|5400|04:00:00|n1||gres/gpu=2|train
12|bob|law|RUNNING|2025-09-01T09:00:00|2025-09-01T09:10:00|Unknown|3900|1-00:00:00|n1||gres/gpu=1|serve
13|ann|bio|COMPLETED|2025-09-01T09:30:00|2025-09-01T10:10:00|2025-09-01T10:15:00|300|04:00:00|n1||gres/gpu=2|train
"""
HELD = 2 * 90 / 60 + 1 * 65 / 60 + 2 * 5 / 60
"""From 08:10 to 10:15, the last event: job 12 is not seen to run any longer."""
INSTALLED = 3 * 125 / 60
"""The most ever held at once are three GPUs."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sacct.txt").write_text(SACCT)
    write_dataset(read("slurm", tmp_path / "sacct.txt", tz="UTC"), tmp_path / "trace")
    return str(tmp_path / "trace")


def test_report_description_and_inbox_hold_the_same_gpu_hours(folder):
    scenario = Scenario(data=folder, gpu_model="A100-80GB")
    for rows in (scenario_ledger(scenario), describe(folder).hours, explore_dataset(folder).gpu_hour_ledger):
        held = rows.filter(rows["tenant"] != "-")["gpu_hours"].sum()
        assert (held, rows["gpu_hours"].sum()) == (pytest.approx(HELD), pytest.approx(INSTALLED))
    assert describe(folder).all_facts["gpu_hours"] == pytest.approx(HELD)


def test_a_month_ends_where_the_observation_does_and_the_plan_begins_at_the_full_hour(folder):
    known = history(Scenario(data=folder, gpu_model="A100-80GB", month="2025-09"))
    assert known.begin == datetime(2025, 9, 1, 8, 10, tzinfo=UTC)
    assert known.end == datetime(2025, 9, 1, 10, 15, tzinfo=UTC)
    assert known.plan_start == datetime(2025, 9, 1, 11, tzinfo=UTC)
    running = known.jobs.filter(job_id="12")
    assert running["run_s"].item() >= 110 * 60


def test_a_long_list_is_looked_at_as_if_no_earlier_jobs_were_there(monkeypatch):
    asked = Scenario(history_days=7)
    whole = load_dataset("sample")
    assert load_study_dataset(asked).jobs.equals(whole.jobs)
    assert load_study_dataset(asked.but(smallest_group=5)).jobs.equals(merge_small_tenants(whole, 5).jobs)
    monkeypatch.setattr(history_room, "MAX_JOBS_PER_STUDY", 2000)
    found = load_study_dataset(asked)
    since = observation_begins_at(found)
    assert since == observation_ends_at(whole) - timedelta(days=7)
    assert found.jobs.height < whole.jobs.height
    assert found.jobs.equals(whole.jobs.filter(pl.col("end_time").is_null() | (pl.col("end_time") > since)))
    assert found.source_facts.shortened.startswith(f"Of {whole.jobs.height:,} jobs, the {found.jobs.height:,} that")
    month = load_study_dataset(asked.but(month="2026-02"))
    assert observation_begins_at(month) == observation_begins_at(whole), "a month is looked at from its beginning"


def test_of_very_many_jobs_ways_are_played_on_the_last_days_and_said_so(monkeypatch):
    asked = Scenario(history_days=28)
    whole = history(asked)
    assert whole.simulated_since == whole.recent
    assert whole.describe_simulated_period() == []
    came = whole.jobs.filter(pl.col("submit_time") >= whole.plan_start - timedelta(days=12)).height
    monkeypatch.setattr(history_room, "MAX_JOBS_PER_SIMULATION", came + 1)
    known = replace(whole)  # what is kept of it is not looked up again
    assert known.plan_start - known.simulated_since == timedelta(days=12)
    assert f"on its last 12 days, of {came:,} jobs." in known.describe_simulated_period()[0]
    played = read_replay_inputs(known)
    assert played.replay_start == known.simulated_since
    assert known.recent == whole.recent, "forecasts look at all of the recent past"
    monkeypatch.setattr(history_room, "MAX_JOBS_PER_SIMULATION", 10)
    assert replace(whole).simulated_since == known.plan_start - timedelta(days=7)
