"""Waits, utilisation and GPU-hours of a simulated run."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware import GpuModel, as_board
from gpuplanner.metrics.accounts import Simulated, Window, covered, held, provided, within
from gpuplanner.units import hours_from_seconds

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


QUEUEING = [
    pl.len().alias("jobs"),
    pl.col("end").is_null().sum().alias("unfinished"),
    pl.col("queueing_delay_s").mean().alias("mean_queueing_delay_s"),
    pl.col("queueing_delay_s").median().alias("median_queueing_delay_s"),
    pl.col("queueing_delay_s").quantile(0.95, "linear").alias("p95_queueing_delay_s"),
    pl.col("jct_s").mean().alias("mean_jct_s"),
    pl.col("jct_s").quantile(0.95, "linear").alias("p95_jct_s"),
    pl.col("slowdown").mean().alias("mean_slowdown"),
    pl.col("bounded_slowdown").mean().alias("mean_bounded_slowdown"),
    (pl.col("end").max() - pl.col("submit").min()).alias("makespan_s"),
]
"""Summary of :func:`~gpuplanner.metrics.job_measures`."""


def measure(
    run: Simulated, board: GpuModel | str, *, window: Window | None = None
) -> dict[str, float | int | None]:
    """Summarise one run.

    Jobs count if they were submitted within the window, whenever they started and ended. GPU time counts as
    far as it lies within the window, whoever used it. GPU time is weighed by compute slices: an instance is
    its compute slices over those of the board, a whole GPU is 1, and both sides of a utilisation count alike.

    Parameters
    ----------
    run : Run
        Anything with the tables ``outcomes``, ``states`` and ``spells`` of :class:`gpuplanner.simulate.Run`.
    board : GpuModel or str
        The board of the fleet.
    window : tuple of float, optional
        Start and end [s from the start of the run]; the whole run and all its jobs if None.

    Returns
    -------
    dict
        jobs, unfinished
            Jobs submitted; those of them that never ended.
        mean_, median_, p95_queueing_delay_s
            First start - submission, of jobs that started.
        mean_jct_s, p95_jct_s
            End - submission, of jobs that ended.
        mean_slowdown
            JCT / run time, of jobs that ended and ran for more than no time.
        mean_bounded_slowdown
            The same with run times below 10 s taken as 10 s, and never below 1; of jobs that ended.
        makespan_s
            Last end - first submission.
        utilisation_provisioned
            Slices held / slices of the instances that existed.
        utilisation_server
            Slices held / slices of all GPUs installed, on or not.
        utilisation_instances
            Share of time that an instance was held, every instance counting alike whatever its size.
        installed_, provisioned_, reconfiguring_, busy_gpu_hours
            All GPUs; those not off; those out of service for a change of layout; those held by jobs.
        useful_gpu_hours
            Goodput: those held by jobs, without what was lost: work done again, restarts, overheads. What was
            lost in a spell counts evenly over it.
        goodput
            Useful / provisioned GPU-hours.
        reconfigurations
            Changes of layout begun, of a whole GPU or of part of it.

        A figure that nothing can be said about is None.

    Raises
    ------
    SchemaError
        If the window is empty or reaches beyond the run.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> outcomes = pl.DataFrame({"submit": [0.0], "first_start": [60.0], "end": [1860.0]})
    >>> spells = pl.DataFrame({"start_s": [60.0], "end_s": [1860.0], "lost_s": 0.0, "gpus": [1],
    ...     "served_on": ["3g.40gb"]})
    >>> states = pl.DataFrame({"node": [0], "gpu": [0], "start_s": [0.0], "end_s": [3600.0],
    ...     "layout": ["3g.40gb:2"], "state": ["on"]})
    >>> found = measure(SimpleNamespace(outcomes=outcomes, states=states, spells=spells), "H100-80GB-SXM5")
    >>> found["utilisation_provisioned"], round(found["busy_gpu_hours"], 4)
    (0.25, 0.2143)
    """
    board = as_board(board)
    span = covered(run, window)
    jobs = job_measures(within(run.outcomes, "submit", window))
    use = held(run.spells, board, span)
    supply = provided(run.states, board, span)
    off = supply.filter(pl.col("state") == "off")
    changes = supply.filter(pl.col("state") == "reconfiguring")
    begun = within(supply.filter(pl.col("state") == "reconfiguring"), "start_s", window)
    installed_s, off_s, changing_s = (float(part["time_s"].sum()) for part in (supply, off, changes))
    busy_slice_s = _integral(use, "held_s", "slices")
    provisioned_h = hours_from_seconds(installed_s - off_s)
    useful_h = hours_from_seconds(_integral(use, "useful_s", "slices") / board.compute_slices)
    return {
        **jobs.select(QUEUEING).row(0, named=True),
        "utilisation_provisioned": _ratio(busy_slice_s, _integral(supply, "time_s", "slices")),
        "utilisation_server": _ratio(busy_slice_s, installed_s * board.compute_slices),
        "utilisation_instances": _ratio(
            _integral(use, "held_s", "instances"), _integral(supply, "time_s", "instances")
        ),
        "installed_gpu_hours": hours_from_seconds(installed_s),
        "provisioned_gpu_hours": provisioned_h,
        "reconfiguring_gpu_hours": hours_from_seconds(changing_s),
        "busy_gpu_hours": hours_from_seconds(busy_slice_s / board.compute_slices),
        "useful_gpu_hours": useful_h,
        "goodput": _ratio(useful_h, provisioned_h),
        "reconfigurations": begun.height,
    }


def _integral(frame: pl.DataFrame, seconds: str, weight: str) -> float:
    return float(frame.select(pl.col(seconds).dot(pl.col(weight).cast(pl.Float64))).item() or 0.0)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
