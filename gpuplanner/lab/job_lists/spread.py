"""How measures of single jobs spread over the jobs."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.metrics.measure import BOUND_S, job_measures

MEASURES = ("queueing_delay_s", "jct_s", "run_time_s", "slowdown", "bounded_slowdown")

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def distribution(
    outcomes: pl.DataFrame, *, by: str | None = None, bound_s: float = BOUND_S, tail: float = 0.05
) -> pl.DataFrame:
    """Mean, percentiles and tail of every measure of the jobs.

    Parameters
    ----------
    outcomes : polars.DataFrame
        Table ``schemas.Outcomes``.
    by : str, optional
        Column that parts the jobs, such as ``"tenant"``.
    bound_s : float
        Threshold of the bounded slowdown [s].
    tail : float
        Share of the jobs that is the tail.

    Returns
    -------
    polars.DataFrame
        ``by`` (if given), ``measure``, ``jobs`` that have it, ``mean``, ``p50``, ``p95``, ``p99``
        (interpolated), ``tail_mean`` (mean of the worst ``ceil(tail * jobs)`` jobs) and ``max``, sorted by
        group, in the order of :data:`MEASURES`.

    Raises
    ------
    SchemaError
        If the threshold or the tail is out of range, or the column is missing.

    Examples
    --------
    >>> outcomes = pl.DataFrame({"submit": 0.0, "first_start": [0.0, 60.0, 120.0], "end": 600.0})
    >>> waits = distribution(outcomes).row(0, named=True)
    >>> waits["measure"], waits["mean"], waits["p50"], waits["tail_mean"]
    ('queueing_delay_s', 60.0, 60.0, 120.0)
    """
    if not 0 < tail <= 1 or (by is not None and by not in outcomes.columns):
        text = message(
            "distribution of jobs",
            f"a tail above 0 and up to 1, and one of {examples(outcomes.columns)}",
            f"tail={tail!r}, by={by!r}",
            "Change them.",
        )
        raise SchemaError(text)
    keys = [] if by is None else [by]
    long = (
        job_measures(outcomes, bound_s=bound_s)
        .select(*keys, *MEASURES)
        .unpivot(MEASURES, index=keys, variable_name="measure")
        .drop_nulls("value")
    )
    value = pl.col("value")
    worst = (tail * pl.len()).ceil().cast(pl.Int64)
    rank = pl.col("measure").replace_strict({name: rank for rank, name in enumerate(MEASURES)})
    return (
        long.group_by(*keys, "measure")
        .agg(
            jobs=pl.len(),
            mean=value.mean(),
            **{name: value.quantile(level, "linear") for name, level in QUANTILES.items()},
            tail_mean=value.sort(descending=True).head(worst).mean(),
            max=value.max(),
        )
        .sort(*keys, rank)
    )
