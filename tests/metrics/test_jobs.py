"""Waits and slowdowns of jobs, by hand and by theory."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.metrics import job_measures
from gpuplanner.simulate.equal_nodes import start_jobs_on_equal_nodes


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


def test_slowdown_of_short_jobs_in_mm1_is_that_of_theory():
    """M/M/1, FIFO: wait and run time are independent, so jobs near a run time t have slowdown 1 + E[W] / t."""
    load, jobs, means = 0.6, 20_000, []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        submit_s = np.cumsum(rng.exponential(100.0 / load, jobs))
        run_s = rng.exponential(100.0, jobs)
        one = np.ones(jobs, np.int64)
        start_s = start_jobs_on_equal_nodes(submit_s, run_s, one, nodes=1, gpus_per_node=1)
        outcomes = pl.DataFrame({"submit": submit_s, "first_start": start_s, "end": start_s + run_s})[2000:]
        found = job_measures(outcomes).filter(pl.col("run_time_s").is_between(90, 110))
        inverse = (1 / found["run_time_s"]).mean()
        means.append((found["slowdown"].mean() - 1) / inverse)
    # E[W] = rho / (mu - lambda) = 0.6 / 0.4 * 100 s.
    half = 3.25 * np.std(means, ddof=1) / np.sqrt(len(means))  # t quantile of 99 %, 9 degrees of freedom
    assert abs(np.mean(means) - 150.0) < half
