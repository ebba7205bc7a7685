"""Slowdowns, percentiles and tails of jobs, by hand and by theory."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import SchemaError
from gpuplanner.lab.gangs import GangRules, run_gangs, schedule
from gpuplanner.metrics import always_on, job_measures, measure
from gpuplanner.simulate import Checkpoints, Failures, Fleet, Preemption

POOL = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=1)


def test_measures_by_hand():
    outcomes = pl.DataFrame(
        {
            "submit": [0.0, 0.0, 5.0, 0.0, 1.0],
            "first_start": [0.0, 60.0, 5.0, 3.0, None],
            "end": [100.0, 61.0, 5.0, None, None],
        }
    )
    found = job_measures(outcomes)
    assert found["queueing_delay_s"].to_list() == [0.0, 60.0, 0.0, 3.0, None]
    assert found["jct_s"].to_list() == [100.0, 61.0, 0.0, None, None]
    assert found["slowdown"].to_list() == [1.0, 61.0, None, None, None]
    assert found["bounded_slowdown"].to_list() == [1.0, 6.1, 1.0, None, None]
    assert job_measures(outcomes, bound_s=1.0)["bounded_slowdown"][1] == 61.0


def test_time_back_in_the_queue_is_not_run_time():
    # Starts at 10, stopped from 30 to 50, ends at 100: held for 70 s, queued for 30 s.
    outcomes = pl.DataFrame({"submit": [0.0], "first_start": [10.0], "end": [100.0], "queued_s": [30.0]})
    found = job_measures(outcomes).row(0, named=True)
    assert (found["run_time_s"], found["slowdown"]) == (70.0, 100 / 70)


def test_a_threshold_of_no_time_is_refused():
    with pytest.raises(SchemaError, match="bounded slowdown"):
        job_measures(pl.DataFrame({"submit": [0.0], "first_start": 0.0, "end": 1.0}), bound_s=0.0)


def test_slowdown_of_short_jobs_in_mm1_is_that_of_theory():
    """M/M/1, FIFO: wait and run time are independent, so jobs near a run time t have slowdown 1 + E[W] / t."""
    load, jobs, means = 0.6, 20_000, []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        frame = pl.DataFrame(
            {
                "job_id": np.arange(jobs).astype(str),
                "tenant": "t",
                "submit_s": np.cumsum(rng.exponential(100.0 / load, jobs)),
                "run_s": rng.exponential(100.0, jobs),
                "gpus": 1,
                "profile": "gpu",
            }
        )
        outcomes = schedule(frame, POOL, GangRules(queue="strict"), policy="p").tail(jobs - 2000)
        found = job_measures(outcomes).filter(pl.col("run_time_s").is_between(90, 110))
        inverse = (1 / found["run_time_s"]).mean()
        means.append((found["slowdown"].mean() - 1) / inverse)
    # E[W] = rho / (mu - lambda) = 0.6 / 0.4 * 100 s.
    half = 3.25 * np.std(means, ddof=1) / np.sqrt(len(means))  # t quantile of 99 %, 9 degrees of freedom
    assert abs(np.mean(means) - 150.0) < half


def test_goodput_is_the_work_of_the_jobs_whatever_was_lost():
    rng = np.random.default_rng(3)
    jobs = pl.DataFrame(
        {
            "job_id": np.arange(60).astype(str),
            "tenant": "t",
            "submit_s": np.cumsum(rng.exponential(900.0, 60)).round(),
            "run_s": rng.integers(600, 20_000, 60).astype(float),
            "gpus": rng.integers(1, 5, 60),
            "profile": "gpu",
        }
    )
    rules = GangRules(
        queue="pass", failures=Failures(mtbf_gpu_h=8.0, seed=1), checkpoints=Checkpoints(interval_s=1800.0)
    )
    run = always_on(run_gangs(jobs, Fleet("H100-80GB-SXM5", 2, 4), rules, policy="p"), 8)
    outcomes = run.outcomes
    assert outcomes["preemptions"].sum() > 10
    found = measure(run, "H100-80GB-SXM5")
    work_h = (jobs["run_s"] * jobs["gpus"]).sum() / 3600
    assert found["useful_gpu_hours"] == pytest.approx(work_h)
    lost_h = outcomes["lost_gpu_s"].sum() / 3600
    assert lost_h > 1
    assert found["busy_gpu_hours"] == pytest.approx(work_h + lost_h)
    assert found["goodput"] == pytest.approx(work_h / (8 * outcomes["end"].max() / 3600))
    same = pytest.approx(found["utilisation_server"])
    assert (found["utilisation_provisioned"], found["utilisation_instances"]) == (same, same)


def test_time_back_in_the_queue_is_neither_held_nor_useful():
    jobs = pl.DataFrame(
        {
            "job_id": ["low", "high"],
            "tenant": "t",
            "submit_s": [0.0, 100.0],
            "run_s": [300.0, 500.0],
            "gpus": 1,
            "profile": "gpu",
            "tier": [1, 0],
        }
    )
    rules = GangRules(
        queue="pass",
        tiers_preempt=True,
        preemption=Preemption(overhead_s=((1, 0.0),)),
        checkpoints=Checkpoints(interval_s=0.0),
    )
    run = run_gangs(jobs, POOL, rules, policy="p")
    assert run.outcomes.select("end", "preemptions", "lost_gpu_s").rows() == [
        (800.0, 1, 0.0),
        (600.0, 0, 0.0),
    ]
    found = measure(always_on(run, 1), "H100-80GB-SXM5")
    assert found["useful_gpu_hours"] == found["busy_gpu_hours"] == pytest.approx(800 / 3600)
    assert found["utilisation_server"] == found["goodput"] == pytest.approx(1.0)
