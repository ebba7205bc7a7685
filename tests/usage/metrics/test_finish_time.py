"""Finish-time fairness by hand, and where it must be 1."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.decision.team_fairness import finish_time_fairness, isolated_outcomes, slowdown_by_tenant
from gpuplanner.usage.fair_share import entitled_by_shares, jain_index
from tests.simulator.equal_nodes import start_jobs


def alone(jobs: pl.DataFrame, gpus: int) -> pl.DataFrame:
    """Completion times on one pool, where jobs that fit pass."""
    submit_s, run_s = jobs["submit_s"].to_numpy(), jobs["run_s"].to_numpy()
    needed = jobs["gpus"].cast(pl.Int64).to_numpy()
    start_s = start_jobs(submit_s, run_s, needed, nodes=1, gpus_per_node=gpus, queue="pass")
    return jobs.with_columns(jct_s=pl.Series(start_s + run_s - submit_s))


def job_table(rows):
    names = ["job_id", "tenant", "submit_s", "run_s", "gpus"]
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(pl.col("submit_s", "run_s").cast(pl.Float64))


def test_by_hand():
    jobs = job_table([("a", "x", 0, 100, 4), ("b", "y", 0, 100, 2), ("c", "y", 0, 50, 2)])
    found = finish_time_fairness(alone(jobs, 4), isolated_outcomes(jobs, entitled_by_shares(4, "xy"), alone))
    # Alone on 2 GPUs, a takes twice as long, b 100 s, and c comes after b: 150 s. Shared, a runs first.
    assert found["isolated_jct_s"].to_list() == [200.0, 100.0, 150.0]
    assert found["rho"].to_list() == [0.5, 2.0, 1.0]
    assert slowdown_by_tenant(found).select("tenant", "mean_slowdown", "max_slowdown", "slower_share").rows() == [
        ("x", 0.5, 0.5, 0.0),
        ("y", 1.5, 2.0, 0.5),
    ]


def test_a_tenant_that_has_the_cluster_to_itself_has_rho_one():
    rng = np.random.default_rng(0)
    rows = [(str(n), "x", n * 10, int(rng.integers(1, 500)), int(rng.integers(1, 9))) for n in range(200)]
    jobs = job_table(rows)
    found = finish_time_fairness(alone(jobs, 8), isolated_outcomes(jobs, {"x": 8.0}, alone))
    assert found["rho"].unique().to_list() == [1.0]
    assert jain_index(slowdown_by_tenant(found)["mean_slowdown"].to_numpy()) == 1.0


def test_shares_are_whole_gpus_and_never_none():
    jobs = job_table([("a", "x", 0, 60, 1), ("b", "y", 0, 60, 3)])
    seen = {}

    def run(mine: pl.DataFrame, gpus: int) -> pl.DataFrame:
        seen[mine["tenant"][0]] = gpus
        return alone(mine, gpus)

    found = isolated_outcomes(jobs.with_columns(limit_s=100.0), {"x": 0.4, "y": 2.9}, run)
    assert seen == {"x": 1, "y": 2}
    assert found["jct_s"].to_list() == [60.0, 90.0]
