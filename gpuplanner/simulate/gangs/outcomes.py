"""From what loops over gangs found to the table of outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.schemas import Outcomes, conform


def gang_outcomes(
    jobs: pl.DataFrame, found: Mapping[str, NDArray[Any]], policy: str, replication: int
) -> pl.DataFrame:
    """Make the table of outcomes.

    Parameters
    ----------
    jobs : polars.DataFrame
        Checked jobs in order of arrival, with ``row``, their place in the input.
    found : mapping of str to array, shape (n_jobs,)
        In order of arrival: ``start``, ``end``, ``queued`` [s], ``lost``, time for which GPUs were held for
        nothing [s], the number of ``starts``, and ``node``, the first node of the last run.
    policy : str
        Name of the policy.
    replication : int
        Number of the replication.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Outcomes`` in the order of the input, and ``queued_s``.
    """
    table = (
        jobs.with_columns(
            submit=pl.col("submit_s"),
            policy=pl.lit(policy),
            replication=pl.lit(replication),
            first_start=pl.Series(found["start"]),
            end=pl.Series(found["end"]),
            served_on=pl.col("profile"),
            node=pl.Series(found["node"]),
            gpu=pl.lit(None),
            preemptions=pl.Series(np.asarray(found["starts"]) - 1),
            lost_gpu_s=pl.Series(found["lost"]) * pl.col("gpus"),
            queued_s=pl.Series(found["queued"]),
        )
        .with_columns(wait_s=pl.col("first_start") - pl.col("submit"), jct_s=pl.col("end") - pl.col("submit"))
        .sort("row")
    )
    return conform(table, Outcomes, where="outcomes").with_columns(table["queued_s"])
