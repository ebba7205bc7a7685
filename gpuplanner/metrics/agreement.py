"""How well simulated waits agree with observed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, message

NEAR_S = 600.0
"""A wait is explained if it is simulated within so many seconds."""
FAR_S = 3600.0
SOON_S = 60.0
"""Differences between waits below it do not count in the typical factor [s]."""
LEVELS = np.append(np.arange(99) / 100, np.arange(990, 1001) / 1000)
"""Quantiles shown: hundredths, and thousandths in the tail, where most jobs wait for nothing."""


def agreement(waits: pl.DataFrame, *, by: str | None = None) -> pl.DataFrame:
    """Compare simulated with observed waits, job by job.

    Parameters
    ----------
    waits : polars.DataFrame
        ``observed_s`` and ``simulated_s`` of each job, none missing.
    by : str, optional
        Column that parts the jobs.

    Returns
    -------
    polars.DataFrame
        `by` (if given, sorted) and

        jobs, waited
            Jobs; those of them observed to wait for more than 10 minutes.
        observed_, simulated_ mean_s, p50_s, p95_s
            Of the waits.
        median_error_s
            Median of simulated - observed.
        mean_absolute_error_s
            Mean of its size.
        skill
            1 - mean absolute error / mean observed wait: 1 is perfect, 0 is what saying that nobody ever waits
            would reach; null if nobody did.
        typical_factor
            ``exp(mean |ln((simulated + 60 s) / (observed + 60 s))|)``: 1 is perfect; 2 says that waits are
            typically twice or half of what was observed.
        within_10min, within_1h
            Share of the jobs whose wait is simulated so closely.
        waited_within_1h
            The same, of those that waited; null if none did. Where most jobs wait for nothing, the share of
            all jobs is high even if nothing is explained.

    Raises
    ------
    SchemaError
        If a wait is missing.

    Examples
    --------
    >>> waits = pl.DataFrame({"observed_s": [0.0, 1200.0], "simulated_s": [0.0, 5000.0]})
    >>> agreement(waits).select("waited", "within_10min", "waited_within_1h", "median_error_s").row(0)
    (1, 0.5, 0.0, 1900.0)
    """
    missing = waits.select(pl.col("observed_s", "simulated_s").null_count()).row(0)
    if any(missing):
        text = message(
            "waits to compare", "an observed and a simulated wait of every job", f"{sum(missing)} missing",
            "Leave out jobs that never started.",
        )  # fmt: skip
        raise SchemaError(text)
    observed, simulated = pl.col("observed_s"), pl.col("simulated_s")
    error = simulated - observed
    factor = ((simulated + SOON_S) / (observed + SOON_S)).log().abs()
    waited = observed > NEAR_S
    measures: dict[str, Any] = {"jobs": pl.len(), "waited": waited.sum()}
    for name, wait in (("observed", observed), ("simulated", simulated)):
        measures[f"{name}_mean_s"] = wait.mean()
        measures[f"{name}_p50_s"] = wait.median()
        measures[f"{name}_p95_s"] = wait.quantile(0.95, "linear")
    measures |= {
        "median_error_s": error.median(),
        "mean_absolute_error_s": error.abs().mean(),
        "skill": 1 - pl.when(observed.sum() > 0).then(error.abs().sum() / observed.sum()),
        "typical_factor": factor.mean().exp(),
        "within_10min": (error.abs() <= NEAR_S).mean(),
        "within_1h": (error.abs() <= FAR_S).mean(),
        "waited_within_1h": (error.abs() <= FAR_S).filter(waited).mean(),
    }
    if by is None:
        return waits.select(**measures)
    return waits.group_by(by).agg(**measures).sort(by)


def wait_quantiles(waits: pl.DataFrame) -> pl.DataFrame:
    """Quantiles of observed beside those of simulated waits.

    Parameters
    ----------
    waits : polars.DataFrame
        As for :func:`agreement`.

    Returns
    -------
    polars.DataFrame
        ``level`` of :data:`LEVELS`, ``observed_s`` and ``simulated_s``. On the diagonal the
        distributions are equal, which does not say that each job's wait is.

    Examples
    --------
    >>> waits = pl.DataFrame({"observed_s": [0.0, 100.0], "simulated_s": [50.0, 0.0]})
    >>> wait_quantiles(waits).row(50)
    (0.5, 50.0, 25.0)
    """
    sides = {name: np.quantile(waits[name].to_numpy(), LEVELS) for name in ("observed_s", "simulated_s")}
    return pl.DataFrame({"level": LEVELS, **sides})
