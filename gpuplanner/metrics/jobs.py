"""Measures of single jobs, each defined once."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, message

BOUND_S = 10.0
"""Shorter run times count as this in the bounded slowdown [s]."""


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
