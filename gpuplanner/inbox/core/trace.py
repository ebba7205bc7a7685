"""A trace: jobs in the common form, with everything needed to trust or doubt them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from gpuplanner.units import SECONDS_PER_HOUR

SUMMARY = ("source", "rows_in", "rows_kept", "rows_rejected", "span_start", "span_end", "gpu_hours")

REJECTS = pl.Schema({"file": pl.String(), "row": pl.Int64(), "reason": pl.String(), "raw": pl.String()})
"""Columns of the reject table: file name, 1-based line number, why, and the line as it stood."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs read from a source.

    Attributes
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``, sorted by submission.
    rejects : polars.DataFrame
        Rows that are not jobs or cannot be read: ``file``, ``row`` (line number), ``reason``, ``raw``.
    quality : polars.DataFrame
        ``check``, ``severity``, ``rows``, ``effect``, ``example``; gravest first.
    provenance : mapping
        Where the rows came from and what was counted; ready for JSON.
    inventory : polars.DataFrame, optional
        Table ``schemas.Inventory``.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    quotas : polars.DataFrame, optional
        Table ``traces.quotas.Quotas``.
    """

    jobs: pl.DataFrame
    rejects: pl.DataFrame
    quality: pl.DataFrame
    provenance: Mapping[str, Any]
    inventory: pl.DataFrame | None = None
    samples: pl.DataFrame | None = None
    quotas: pl.DataFrame | None = None

    def summary(self) -> dict[str, Any]:
        """The seven facts to show first: source, row counts, span in UTC and GPU-hours."""
        return {key: self.provenance[key] for key in SUMMARY}

    def __repr__(self) -> str:
        facts = ", ".join(f"{key}={value!r}" for key, value in self.summary().items())
        return f"Trace({facts})"


def gpu_hours(jobs: pl.DataFrame, until: datetime) -> float:
    """GPU-hours held: GPUs times time between start and end.

    A job that still runs counts up to `until`. Jobs without a start, an end or a number of GPUs add
    nothing; the quality report counts them.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    until : datetime
        End of the observation.

    Returns
    -------
    float
        GPU-hours [GPU h].

    Examples
    --------
    >>> from datetime import UTC
    >>> noon, two = datetime(2025, 1, 1, 12, tzinfo=UTC), datetime(2025, 1, 1, 14, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"start_time": [noon], "end_time": [None], "state": ["RUNNING"], "gpus": [4.0]})
    >>> gpu_hours(jobs, two)
    8.0
    """
    still = pl.when(pl.col("state") == "RUNNING").then(pl.lit(until))
    held = pl.coalesce(pl.col("end_time").cast(pl.Datetime("us", "UTC")), still) - pl.col("start_time")
    total = jobs.select((pl.col("gpus") * held.dt.total_microseconds()).sum() / 1e6).item()
    return float(total) / SECONDS_PER_HOUR
