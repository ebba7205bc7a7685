"""Starts of jobs on nodes of equal size, from arrays."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.simulator.job_list_simulation import simulate_job_list


def start_jobs(submit_s, run_s, gpus, *, nodes: int, gpus_per_node: int, queue: str = "fifo") -> np.ndarray:
    """Start of each job, in the order given [s]."""
    columns = {"submit_s": submit_s, "run_s": run_s, "limit_s": run_s, "gpus": gpus}
    jobs = pl.DataFrame(columns).with_columns(job_id=pl.int_range(pl.len()).cast(pl.String), tenant=pl.lit("-"))
    outcomes = simulate_job_list(jobs, gpus=nodes * gpus_per_node, gpus_per_node=gpus_per_node, queue=queue)
    return outcomes["start_s"].to_numpy()
