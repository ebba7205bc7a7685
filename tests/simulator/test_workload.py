"""The jobs of a replication: carried over, drawn, scaled; the same for every policy."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.simulator.replications import draw_replication, past_jobs, to_simulator_jobs
from gpuplanner.usage.planning_history import history

SCENARIO = Scenario(month="2026-02")


@pytest.fixture(scope="module")
def past():
    return past_jobs(history(SCENARIO))


def jobs_of(past, replication=0, **changes):
    scenario = replace(SCENARIO, **changes)
    return draw_replication(scenario, history(scenario), past, replication)


def test_running_jobs_come_first_with_the_rest_of_their_run(past):
    known = history(SCENARIO)
    running = known.jobs.filter(pl.col("state") == "RUNNING").with_columns(key=pl.format("{}/{}", "job_id", "attempt"))
    carried = jobs_of(past).filter(pl.col("submit_s") < 0)
    assert set(carried["job_id"]) == set(running["key"])
    total = dict(running.select("key", "run_s").iter_rows())
    assert all(rest < total[key] for key, rest in carried.select("job_id", "run_s").iter_rows())


def test_replications_differ_and_repeat(past):
    assert jobs_of(past, 1).equals(jobs_of(past, 1))
    assert not jobs_of(past, 1).equals(jobs_of(past, 2))


@pytest.mark.parametrize("factor", [0.5, 1.7])
def test_scaled_arrivals_keep_the_mix(past, factor):
    plain = jobs_of(past).filter(pl.col("submit_s") >= 0)
    scaled = jobs_of(past, arrival_scale=factor).filter(pl.col("submit_s") >= 0)
    assert scaled.height / plain.height == pytest.approx(factor, rel=0.05)
    assert scaled["job_id"].is_unique().all()


def test_request_for_several_slices_runs_as_single_ones():
    jobs = pl.DataFrame(
        {
            "job_id": ["a", "b"], "tenant": "t", "submit_s": 0.0, "run_s": 60.0, "limit_s": 90.0,
            "profile_whole": "gpu", "instances_whole": [3, 4], "sms_whole": None,
            "profile_requested": ["2g.20gb", "gpu"], "instances_requested": [3, 4], "sms_requested": None,
        }
    )  # fmt: skip
    asked = to_simulator_jobs(jobs, "requested")
    assert asked["job_id"].to_list() == ["a.1", "a.2", "a.3", "b"]
    assert asked["gpus"].to_list() == [1, 1, 1, 4]
