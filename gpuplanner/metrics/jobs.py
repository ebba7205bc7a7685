"""Measures of single jobs, each defined once, and how they spread over jobs."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, examples, message

BOUND_S = 10.0
"""Shorter run times count as this in the bounded slowdown [s]."""

MEASURES = ("queueing_delay_s", "jct_s", "run_time_s", "slowdown", "bounded_slowdown")

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def job_measures(outcomes: pl.DataFrame, *, bound_s: float = BOUND_S) -> pl.DataFrame:
    """Measures of every job.

    Parameters
    ----------
    outcomes : polars.DataFrame
        Table ``schemas.Outcomes``. With ``queued_s``, all time in the queue, that time counts as waiting and
        not as running, also after a stop.
    bound_s : float
        Threshold of the bounded slowdown [s].

    Returns
    -------
    polars.DataFrame
        The rows of `outcomes` with

        queueing_delay_s
            First start - submission.
        jct_s
            End - submission.
        run_time_s
            Time holding GPUs: end - first start, without time back in the queue.
        slowdown
            JCT / run time.
        bounded_slowdown
            ``max(1, JCT / max(run time, bound_s))``: what a job of a second makes of a minute in the queue
            would else decide the mean.

        A measure of what did not happen, or a quotient by 0, is null.

    Raises
    ------
    SchemaError
        If the threshold is not above 0.

    References
    ----------
    D. Feitelson, L. Rudolph, U. Schwiegelshohn, K. Sevcik, P. Wong, Theory and practice in parallel job
    scheduling, JSSPP 1997, section 2.2; threshold of 10 s as there.

    Examples
    --------
    >>> outcomes = pl.DataFrame({"submit": [0.0, 0.0], "first_start": [60.0, 60.0], "end": [62.0, 180.0]})
    >>> job_measures(outcomes).select("slowdown", "bounded_slowdown").rows()
    [(31.0, 6.2), (1.5, 1.5)]
    """
    if not bound_s > 0:
        text = message("bounded slowdown", "a threshold above 0 s", f"{bound_s!r}", "Use for example 10.")
        raise SchemaError(text)
    jct, run = pl.col("end") - pl.col("submit"), run_time(outcomes)
    return outcomes.with_columns(
        queueing_delay_s=pl.col("first_start") - pl.col("submit"),
        jct_s=jct,
        run_time_s=run,
        slowdown=pl.when(run > 0).then(jct / run),
        bounded_slowdown=(jct / run.clip(lower_bound=bound_s)).clip(lower_bound=1.0),
    )


def run_time(outcomes: pl.DataFrame) -> pl.Expr:
    """Time for which a job held its GPUs [s]."""
    span = pl.col("end") - pl.col("first_start")
    if "queued_s" not in outcomes.columns:
        return span
    return span - (pl.col("queued_s") - (pl.col("first_start") - pl.col("submit")))


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
