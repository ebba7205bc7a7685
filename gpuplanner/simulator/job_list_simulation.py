"""Simulation of a job list on nodes of equal size: reading, waits by fleet size, and summaries."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, TraceFormatError, examples, first_error_line, resolve_name
from gpuplanner.core.schema_checks import add_absent_columns
from gpuplanner.simulator.scheduling_rules import QuotaGroup, Sharing
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_shared_requests, simulate_starts
from gpuplanner.simulator.simulation_state import Floats

MAX_JOB_LIST_TIME_S = 1e12
"""Largest time or duration in a job list: sums of such times still resolve milliseconds. [s]"""
MAX_JOB_LIST_GPUS = 10_000_000
"""GPUs of the largest fleet, and of the largest job. [GPU]"""
REQUIRED_JOB_LIST_COLUMNS = ("job_id", "submit_time", "duration", "num_gpus")
"""Columns that a CSV file of jobs must have; times are in seconds."""
OPTIONAL_JOB_COLUMNS = ("tenant", "limit_s")
"""Columns that a CSV file of jobs may have: team, and time limit [s]."""
VALID_VALUES_BY_JOB_LIST_COLUMN = {
    "submit_time": ("a number from 0 to 1e12", pl.col("submit_time").is_between(0, MAX_JOB_LIST_TIME_S)),
    "duration": ("a number from 0 to 1e12", pl.col("duration").is_between(0, MAX_JOB_LIST_TIME_S)),
    "num_gpus": (
        f"a whole number from 1 to {MAX_JOB_LIST_GPUS}",
        pl.col("num_gpus").is_between(1, MAX_JOB_LIST_GPUS) & (pl.col("num_gpus") % 1 == 0),
    ),
    "limit_s": (
        "a number above 0 and up to 1e12, or nothing",
        pl.col("limit_s").is_between(0, MAX_JOB_LIST_TIME_S, closed="right"),
    ),
}
"""Valid values of each number of a job list, as text and as an expression."""
JOB_LIST_QUEUES = ("fifo", "pass", "backfill", "sjf", "fair")
"""Queue rules: first come, first served; every job that fits; EASY backfill; shortest job first; fair share by team."""
QUANTILE_BY_WAIT_COLUMN = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
"""Quantile [0-1] of each percentile column of :func:`tabulate_waits`."""


def read_job_list(path: str | Path) -> tuple[pl.DataFrame, list[str]]:
    r"""Read a list of jobs from a CSV file, plain or gzip.

    Parameters
    ----------
    path : str or Path
        File with the columns ``job_id``, ``submit_time`` [s], ``duration`` [s] and ``num_gpus``; optional are
        ``tenant`` and ``limit_s`` (time limit, which is the duration where it is missing) [s].

    Returns
    -------
    jobs : polars.DataFrame
        ``job_id, tenant, submit_s, run_s, limit_s, gpus``, in order of submission, ties in the order of the file.
    remarks : list of str
        Remarks about unread columns, rows out of order, tied submissions and durations of zero.

    Raises
    ------
    TraceFormatError
        If the file is no job list or is empty, or if numbers are missing or out of range.

    Examples
    --------
    >>> import tempfile
    >>> text = "job_id,submit_time,duration,num_gpus\nb,9,60,8\na,5,0,1\n"
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write(text), file.flush()
    ...     jobs, remarks = read_job_list(file.name)
    >>> jobs.select("job_id", "submit_s", "run_s", "gpus").rows()
    [('a', 5.0, 0.0, 1), ('b', 9.0, 60.0, 8)]
    >>> remarks
    ['rows out of order of submission: 1; sorted', "durations of zero: 1: 'a'"]
    """
    cells = _read_cells(path)
    rows = add_absent_columns(cells, dict.fromkeys(OPTIONAL_JOB_COLUMNS, pl.String())).with_columns(
        pl.col(name).str.strip_chars().cast(pl.Float64, strict=False) for name in VALID_VALUES_BY_JOB_LIST_COLUMN
    )
    _check_rows(rows, cells, path)
    jobs = rows.select(
        "job_id",
        pl.col("tenant").fill_null("-"),
        submit_s="submit_time",
        run_s="duration",
        limit_s=pl.coalesce("limit_s", "duration"),
        gpus=pl.col("num_gpus").cast(pl.Int64),
    )
    return jobs.sort("submit_s", maintain_order=True), _collect_remarks(jobs, cells.columns)


def simulate_job_list(jobs: pl.DataFrame, *, gpus: int, gpus_per_node: int, queue: str = "fifo") -> pl.DataFrame:
    """Simulate jobs on nodes of equal size.

    A job larger than a node takes whole nodes and a part of one more; smaller jobs go to the node with the fewest
    unallocated GPUs that are enough (best fit).

    Parameters
    ----------
    jobs : polars.DataFrame
        As :func:`read_job_list` returns them.
    gpus : int
        GPUs of the fleet.
    gpus_per_node : int
        GPUs of each node; `gpus` for one pool without nodes.
    queue : {"fifo", "pass", "backfill", "sjf", "fair"}
        Queue rule; ``"fair"`` goes by recent use of the team, with backfill.

    Returns
    -------
    polars.DataFrame
        The jobs with ``start_s`` and ``end_s``. [s]

    Raises
    ------
    ScenarioError
        If the GPUs are no multiple of those of a node, too many, or too few for a job.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 1.0], "run_s": [60.0, 9.0],
    ...                      "limit_s": [60.0, 9.0], "gpus": [8, 4]})
    >>> simulate_job_list(jobs, gpus=8, gpus_per_node=8)["start_s"].to_list()
    [0.0, 60.0]
    """
    queue = resolve_name(queue, JOB_LIST_QUEUES, subject="queue", error=ScenarioError)
    _check_fleet(jobs, gpus, gpus_per_node)
    start_s = _find_starts(jobs, gpus // gpus_per_node, gpus_per_node, queue)
    started = jobs.with_columns(start_s=pl.Series(start_s))
    return started.with_columns(end_s=pl.col("start_s") + pl.col("run_s"))


def tabulate_wait_curve(
    jobs: pl.DataFrame, *, gpus: int, gpus_per_node: int | None = None, queue: str = "fifo"
) -> pl.DataFrame:
    """Simulate a job list on 50 to 200 % of a number of GPUs, and tabulate the queue waits.

    Parameters
    ----------
    jobs, gpus, queue
        As of :func:`simulate_job_list`.
    gpus_per_node : int, optional
        GPUs of each node; None: each fleet is one pool without nodes.

    Returns
    -------
    polars.DataFrame
        ``gpus, mean_wait_s, p95_wait_s``, a row for each of up to 13 fleets of whole nodes. The smallest is at least
        as large as the largest job. [GPU, s]

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "submit_s": [0.0, 0.0], "run_s": [10.0, 10.0], "gpus": [4, 4],
    ...     "tenant": ["t", "t"], "limit_s": [10.0, 10.0]})
    >>> tabulate_wait_curve(jobs, gpus=4, gpus_per_node=4).rows()
    [(4, 5.0, 10.0), (8, 0.0, 0.0)]
    """
    step = gpus_per_node or 1
    largest = jobs["gpus"].to_numpy().max(initial=1)
    nodes = np.round(np.linspace(0.5, 2.0, 13) * gpus / step).astype(int)
    rows = []
    for size in (np.unique(np.maximum(nodes, -(-largest // step))) * step).tolist():
        outcomes = simulate_job_list(jobs, gpus=size, gpus_per_node=gpus_per_node or size, queue=queue)
        waits = outcomes["start_s"] - outcomes["submit_s"]
        rows.append((size, waits.mean(), waits.quantile(0.95, "equiprobable")))
    return pl.DataFrame(rows, schema=["gpus", "mean_wait_s", "p95_wait_s"], orient="row")


def summarize_run(outcomes: pl.DataFrame, *, gpus: int) -> dict[str, float]:
    """Summarize a simulated job list: mean wait and completion time, makespan, utilization.

    Parameters
    ----------
    outcomes : polars.DataFrame
        As :func:`simulate_job_list` returns them.
    gpus : int
        GPUs of the fleet.

    Returns
    -------
    dict
        ``mean_completion_s`` (submission to end), ``mean_wait_s``, ``last_end_s`` on the clock of the list,
        ``makespan_s`` (first submission to last end) and ``utilization`` (allocated over available GPU-time).

    Examples
    --------
    >>> outcomes = pl.DataFrame({"submit_s": [0.0], "start_s": [5.0], "end_s": [15.0], "run_s": [10.0], "gpus": [4]})
    >>> summarize_run(outcomes, gpus=8)["mean_wait_s"]
    5.0
    """
    names = ("submit_s", "start_s", "end_s", "run_s")
    submit_s, start_s, end_s, run_s = (outcomes[name].to_numpy() for name in names)
    makespan_s = float(end_s.max() - submit_s.min())
    allocated_gpu_s = float((run_s * outcomes["gpus"].to_numpy()).sum())
    return {
        "mean_completion_s": float((end_s - submit_s).mean()),
        "mean_wait_s": float((start_s - submit_s).mean()),
        "last_end_s": float(end_s.max()),
        "makespan_s": makespan_s,
        "utilization": allocated_gpu_s / (makespan_s * gpus) if makespan_s else 0.0,
    }


RESAMPLING_INTERVAL = (0.1, 0.9)
"""Quantiles that bound the 80 % interval over resampled job lists [0-1]."""


def resample_jobs(jobs: pl.DataFrame, *, seed: int, replication: int) -> pl.DataFrame:
    """Resample a job list: the times of submission stay, the jobs are drawn in runs of consecutive ones.

    This is the circular block bootstrap [1]_ with runs of the cube root of the number of jobs, which keeps bursts of
    similar jobs together.

    Parameters
    ----------
    jobs : polars.DataFrame
        As :func:`read_job_list` returns them.
    seed, replication : int
        Seed and number of the replication, not below 0.

    References
    ----------
    .. [1] D. N. Politis, J. P. Romano, "A circular block-resampling procedure for stationary data", 1992.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "submit_s": [0.0, 9.0], "run_s": [60.0, 60.0]})
    >>> resample_jobs(jobs, seed=1, replication=0)["submit_s"].to_list()
    [0.0, 9.0]
    """
    count = jobs.height
    length = math.ceil(count ** (1 / 3))
    first = np.random.default_rng([seed, replication]).integers(0, count, -(-count // length))
    rows = ((first[:, None] + np.arange(length)) % count).ravel()[:count]
    return jobs.select(pl.all().gather(rows)).with_columns(jobs["submit_s"])


def resample_run(
    jobs: pl.DataFrame, *, gpus: int, gpus_per_node: int, queue: str, replications: int, seed: int
) -> dict[str, list[float]]:
    """Simulate resampled job lists, and bound the figures of :func:`summarize_run` by an 80 % interval.

    Parameters
    ----------
    jobs, gpus, gpus_per_node, queue
        As of :func:`simulate_job_list`.
    replications, seed : int
        Number of resampled lists, and seed of the draws.

    Returns
    -------
    dict of str to list of float
        Low and high end by name of the figure.
    """
    runs = [
        summarize_run(simulate_job_list(drawn, gpus=gpus, gpus_per_node=gpus_per_node, queue=queue), gpus=gpus)
        for drawn in (resample_jobs(jobs, seed=seed, replication=number) for number in range(replications))
    ]
    return {name: np.quantile([run[name] for run in runs], RESAMPLING_INTERVAL).tolist() for name in runs[0]}


def tabulate_waits(outcomes: pl.DataFrame) -> pl.DataFrame:
    """Tabulate queue wait and completion time over the jobs.

    Returns
    -------
    polars.DataFrame
        ``measure, mean, p50, p95, p99, max`` (percentiles interpolated) for ``wait_s`` and ``completion_s``. [s]

    Examples
    --------
    >>> outcomes = pl.DataFrame({"submit_s": 0.0, "start_s": [0.0, 60.0, 120.0], "end_s": 600.0})
    >>> tabulate_waits(outcomes).row(0)[:3]
    ('wait_s', 60.0, 60.0)
    """
    measures = {"wait_s": pl.col("start_s") - pl.col("submit_s"), "completion_s": pl.col("end_s") - pl.col("submit_s")}
    return pl.concat(
        outcomes.select(
            measure=pl.lit(name),
            mean=values.mean(),
            **{label: values.quantile(level, "linear") for label, level in QUANTILE_BY_WAIT_COLUMN.items()},
            max=values.max(),
        )
        for name, values in measures.items()
    )


def _find_starts(jobs: pl.DataFrame, nodes: int, gpus_per_node: int, queue: str) -> Floats:
    """Find the start [s] of each job."""
    submit_s, run_s, limit_s, gpus = (jobs[name].to_numpy() for name in ("submit_s", "run_s", "limit_s", "gpus"))
    full_gpu, job_nodes = np.zeros(len(gpus), np.int64), -(-gpus // gpus_per_node)
    per_node = np.minimum(gpus, gpus_per_node)
    requests = NodeRequests(submit_s, submit_s, run_s, limit_s, full_gpu, gpus, job_nodes, per=per_node)
    fleet = NodeFleet.of_full_gpus([gpus_per_node] * nodes)
    if queue != "fair":
        rule = {"fifo": "strict", "sjf": "strict", "pass": "pass", "backfill": "easy"}[queue]
        return simulate_starts(requests, fleet, queue=rule, order=run_s if queue == "sjf" else None)
    team = jobs["tenant"].rank("dense").to_numpy().astype(np.int64) - 1
    groups = tuple(QuotaGroup() for _ in range(int(team.max()) + 1))
    sharing = Sharing(team, np.zeros(len(team), np.int64), groups, order="fair")
    return simulate_shared_requests(requests, fleet, sharing, queue="easy").start_s


def _check_fleet(jobs: pl.DataFrame, gpus: int, gpus_per_node: int) -> None:
    """Raise if the GPUs are no multiple of those of a node, too many, or too few for a job."""
    if gpus > MAX_JOB_LIST_GPUS or gpus % gpus_per_node:
        expected = f"full nodes of {gpus_per_node} GPUs, at most {MAX_JOB_LIST_GPUS} GPUs"
        raise ScenarioError("fleet", expected, f"{gpus} GPUs", "Change --gpus or --gpus-per-node.")
    too_large = jobs.filter(pl.col("gpus") > gpus)["job_id"].to_list()
    if too_large:
        got = f"{len(too_large)} larger jobs: {examples(too_large)}"
        todo = "Leave them out, or give more --gpus."
        raise ScenarioError("column 'num_gpus'", f"at most the {gpus} GPUs of the fleet", got, todo)


def _read_cells(path: str | Path) -> pl.DataFrame:
    """Read the cells of a job list as text; raise if a required column is missing or repeated."""
    try:
        cells = pl.read_csv(path, infer_schema=False)
    except pl.exceptions.NoDataError:
        cells = pl.DataFrame()
    except (OSError, pl.exceptions.PolarsError) as error:
        expected = f"a CSV file, plain or gzip, with the columns {', '.join(REQUIRED_JOB_LIST_COLUMNS)}"
        got = first_error_line(error) if isinstance(error, OSError) else "rows that do not fit the first line"
        todo = "Give a list of jobs; for the output of sacct or another scheduler use gpuplanner start."
        raise TraceFormatError(str(path), expected, got, todo) from None

    missing = [name for name in REQUIRED_JOB_LIST_COLUMNS if name not in cells.columns]
    repeated = [
        name for name in (*REQUIRED_JOB_LIST_COLUMNS, *OPTIONAL_JOB_COLUMNS) if f"{name}_duplicated_0" in cells.columns
    ]
    faults = (
        (not cells.columns, "nothing"),
        (missing, f"no {', '.join(map(repr, missing))} among {examples(cells.columns)}"),
        (repeated, f"{', '.join(map(repr, repeated))} more than once"),
        (not cells.height, "no rows"),
    )
    if got := next((text for occurs, text in faults if occurs), ""):
        expected = (
            f"columns {', '.join(map(repr, REQUIRED_JOB_LIST_COLUMNS))}, separated by commas, and at least one job"
        )
        raise TraceFormatError(str(path), expected, got, "Fix the file.")
    return cells


def _check_rows(rows: pl.DataFrame, cells: pl.DataFrame, path: str | Path) -> None:
    """Raise if a job has no id, an id occurs twice, or a number breaks its rule; name the column and the rows.

    `cells` has the rows as text, as the file has them.
    """
    _require_valid(cells, pl.col("job_id").is_not_null(), path, "job_id", "an id")
    _require_valid(cells, ~pl.col("job_id").is_duplicated(), path, "job_id", "ids that stand once")
    for name, (expected, rule) in VALID_VALUES_BY_JOB_LIST_COLUMN.items():
        if name in cells.columns:
            is_empty = cells[name].fill_null("").str.strip_chars() == ""
            may_be_empty = pl.lit(value=name not in REQUIRED_JOB_LIST_COLUMNS) & is_empty
            valid = rows.select(rule.fill_null(value=False) | may_be_empty).to_series()
            _require_valid(cells, valid, path, name, expected)


def _require_valid(cells: pl.DataFrame, valid: pl.Expr | pl.Series, path: str | Path, name: str, expected: str) -> None:
    """Raise if rows are not valid, with their cells and row numbers (from 1 below the header)."""
    invalid = cells.with_row_index("row", offset=1).filter(~valid).select("row", name).rows()
    if invalid:
        listed = examples([f"row {row}: {'nothing' if cell is None else cell[:80]}" for row, cell in invalid])
        got = f"{len(invalid)} of {cells.height} others: {listed}"
        raise TraceFormatError(f"{path}: column {name!r}", expected, got, "Fix or drop these rows.")


def _collect_remarks(jobs: pl.DataFrame, columns: list[str]) -> list[str]:
    """Describe columns that are not read, and rows that are unusual but harmless, with counts."""
    unused = [name for name in columns if name not in (*REQUIRED_JOB_LIST_COLUMNS, *OPTIONAL_JOB_COLUMNS)]
    unsorted = int((jobs["submit_s"] < jobs["submit_s"].cum_max()).sum())
    tied = jobs.height - jobs["submit_s"].n_unique()
    zero = jobs.filter(pl.col("run_s") == 0)["job_id"].to_list()
    remarks = (
        (unused, f"columns that are not read: {examples(unused)}"),
        (unsorted, f"rows out of order of submission: {unsorted}; sorted"),
        (tied, f"submissions at the instant of another: {tied}; in the order of the file"),
        (zero, f"durations of zero: {len(zero)}: {examples(zero)}"),
    )
    return [text for occurs, text in remarks if occurs]
