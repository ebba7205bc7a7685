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
    """Make the table of outcomes."""
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
