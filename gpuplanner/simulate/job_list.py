"""A list of jobs on a fleet of equal nodes: read the list, simulate it under a queue rule, summarize waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, TraceFormatError, examples, first_line, message
from gpuplanner.names import resolve
from gpuplanner.errors import refuse
from gpuplanner.simulate.tables import Floats

LATEST_S = 1e12
"""No time in a list may be later or longer, so that sums of such times still resolve milliseconds. [s]"""
MAX_GPUS = 10_000_000
COLUMNS = ("job_id", "submit_time", "duration", "num_gpus")
OPTIONAL_COLUMNS = ("tenant", "limit_s")
COLUMN_RULES = {
    "submit_time": ("a number from 0 to 1e12", pl.col("submit_time").is_between(0, LATEST_S)),
    "duration": ("a number from 0 to 1e12", pl.col("duration").is_between(0, LATEST_S)),
    "num_gpus": (
        f"a whole number from 1 to {MAX_GPUS}",
        pl.col("num_gpus").is_between(1, MAX_GPUS) & (pl.col("num_gpus") % 1 == 0),
    ),
    "limit_s": (
        "a number above 0 and up to 1e12, or nothing",
        pl.col("limit_s").is_between(0, LATEST_S, closed="right"),
    ),
}
"""What each number of a list has to be, as text and as an expression."""
QUEUES = ("fifo", "pass", "backfill", "sjf", "fair")
"""Queue rules: first come, first served; whoever fits passes; EASY backfill; shortest job first; fair share by team."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


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
        Columns that are not read; rows out of order, tied submissions, durations of zero.

    Raises
    ------
    TraceFormatError
        If the file is no such list or is empty, or if numbers are missing or out of range.

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
    optional = [name for name in OPTIONAL_COLUMNS if name not in cells.columns]
    rows = cells.with_columns(pl.lit(None, pl.String).alias(name) for name in optional).with_columns(
        pl.col(name).str.strip_chars().cast(pl.Float64, strict=False) for name in COLUMN_RULES
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
    return jobs.sort("submit_s", maintain_order=True), _remarks(jobs, cells.columns)


def simulate_job_list(
    jobs: pl.DataFrame, *, gpus: int, gpus_per_node: int, queue: str = "fifo"
) -> pl.DataFrame:
    """Simulate jobs on nodes of equal size.

    A job larger than a node takes full nodes and a part of one more; smaller ones go to the node with the fewest free
    GPUs that are enough.

    Parameters
    ----------
    jobs : polars.DataFrame
        As :func:`read_job_list` returns them.
    gpus : int
        GPUs of the fleet.
    gpus_per_node : int
        GPUs of each node; `gpus` for one pool without nodes.
    queue : {"fifo", "pass", "backfill", "sjf", "fair"}
        Which job starts next; ``"fair"`` is by recent use of the team, with backfill.

    Returns
    -------
    polars.DataFrame
        The jobs with ``start_s`` and ``end_s``. [s]

    Raises
    ------
    ScenarioError
        If the fleet is not made of full nodes, is too large, or is too small for a job.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 1.0], "run_s": [60.0, 9.0],
    ...                      "limit_s": [60.0, 9.0], "gpus": [8, 4]})
    >>> simulate_job_list(jobs, gpus=8, gpus_per_node=8)["start_s"].to_list()
    [0.0, 60.0]
    """
    queue = resolve(queue, QUEUES, what="queue", error=ScenarioError)
    _check_fleet(jobs, gpus, gpus_per_node)
    start_s = _find_starts(jobs, gpus // gpus_per_node, gpus_per_node, queue)
    started = jobs.with_columns(start_s=pl.Series(start_s))
    return started.with_columns(end_s=pl.col("start_s") + pl.col("run_s"))


def draw_curve(jobs: pl.DataFrame, *, gpus: int, gpus_per_node: int, queue: str = "fifo") -> pl.DataFrame:
    """Queue waits on 50 to 200 % of some GPUs, in whole nodes that hold the largest job.

    Arguments as of :func:`simulate_job_list`.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "submit_s": [0.0, 0.0], "run_s": [10.0, 10.0], "gpus": [4, 4],
    ...     "tenant": ["t", "t"], "limit_s": [10.0, 10.0]})
    >>> draw_curve(jobs, gpus=4, gpus_per_node=4).rows()
    [(4, 5.0, 10.0), (8, 0.0, 0.0)]
    """
    nodes = np.round(np.linspace(0.5, 2.0, 12) * gpus / gpus_per_node).astype(int)
    rows = []
    largest = jobs["gpus"].to_numpy().max(initial=1)
    for count in np.unique(nodes[nodes * gpus_per_node >= largest]).tolist():
        found = simulate_job_list(jobs, gpus=count * gpus_per_node, gpus_per_node=gpus_per_node, queue=queue)
        waits = found["start_s"] - found["submit_s"]
        rows.append((count * gpus_per_node, waits.mean(), waits.quantile(0.95, "higher")))
    return pl.DataFrame(rows, schema=["gpus", "mean_wait_s", "p95_wait_s"], orient="row")


def summarize_run(outcomes: pl.DataFrame, *, gpus: int) -> dict[str, float]:
    """Summarize a simulated list in the figures by which simulators are compared.

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
    submit_s, start_s, end_s, run_s = (
        outcomes[name].to_numpy() for name in ("submit_s", "start_s", "end_s", "run_s")
    )
    makespan_s = float(end_s.max() - submit_s.min())
    allocated_gpu_s = float((run_s * outcomes["gpus"].to_numpy()).sum())
    return {
        "mean_completion_s": float((end_s - submit_s).mean()),
        "mean_wait_s": float((start_s - submit_s).mean()),
        "last_end_s": float(end_s.max()),
        "makespan_s": makespan_s,
        "utilization": allocated_gpu_s / (makespan_s * gpus) if makespan_s else 0.0,
    }


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
    measures = {
        "wait_s": pl.col("start_s") - pl.col("submit_s"),
        "completion_s": pl.col("end_s") - pl.col("submit_s"),
    }
    return pl.concat(
        outcomes.select(
            measure=pl.lit(name),
            mean=values.mean(),
            **{label: values.quantile(level, "linear") for label, level in QUANTILES.items()},
            max=values.max(),
        )
        for name, values in measures.items()
    )


def _find_starts(jobs: pl.DataFrame, nodes: int, gpus_per_node: int, queue: str) -> Floats:
    """Start times in the order of the jobs: by the fast path, or by the loop over nodes for backfill and fair share."""
    submit_s, run_s, limit_s = (jobs[name].to_numpy() for name in ("submit_s", "run_s", "limit_s"))
    gpus = jobs["gpus"].to_numpy()
    if queue in ("fifo", "pass", "sjf"):
        from gpuplanner.simulate.equal_nodes import start_jobs_on_equal_nodes

        return start_jobs_on_equal_nodes(
            submit_s,
            run_s,
            gpus,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            passing=queue == "pass",
            shortest_first=queue == "sjf",
        )

    from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests
    from gpuplanner.simulate.nodes.sharing import QuotaGroup, Sharing
    from gpuplanner.simulate.nodes.play import play
    from gpuplanner.simulate.nodes.shared_play import play_shared

    requests = NodeRequests(
        submit_s,
        submit_s,
        run_s,
        limit_s,
        np.zeros(len(gpus), np.int64),
        gpus,
        -(-gpus // gpus_per_node),
        per=np.minimum(gpus, gpus_per_node),
    )
    fleet = NodeFleet.whole([gpus_per_node] * nodes)
    if queue == "backfill":
        return play(requests, fleet, queue="easy").start_s
    team = jobs["tenant"].rank("dense").to_numpy().astype(np.int64) - 1
    groups = tuple(QuotaGroup() for _ in range(int(team.max()) + 1))
    sharing = Sharing(team, np.zeros(len(team), np.int64), groups, order="fair")
    return play_shared(requests, fleet, sharing, queue="easy").start_s


def _check_fleet(jobs: pl.DataFrame, gpus: int, gpus_per_node: int) -> None:
    """Raise if the fleet is not made of full nodes, is too large, or cannot hold a job."""
    if gpus > MAX_GPUS or gpus % gpus_per_node:
        expected = f"full nodes of {gpus_per_node} GPUs, at most {MAX_GPUS} GPUs"
        refuse("fleet", expected, f"{gpus} GPUs", "Change --gpus or --gpus-per-node.")
    too_large = jobs.filter(pl.col("gpus") > gpus)["job_id"].to_list()
    if too_large:
        refuse(
            "column 'num_gpus'",
            f"at most the {gpus} GPUs of the fleet",
            f"{len(too_large)} larger jobs: {examples(too_large)}",
            "Leave them out, or give more --gpus.",
        )


def _read_cells(path: str | Path) -> pl.DataFrame:
    """Read the cells as text; every required column is there, and each once."""
    try:
        cells = pl.read_csv(path, infer_schema=False)
    except pl.exceptions.NoDataError:
        cells = pl.DataFrame()
    except (OSError, pl.exceptions.PolarsError) as error:
        text = message(
            str(path), "a CSV file, plain or gzip", first_line(error), "Give the path of a list of jobs."
        )
        raise TraceFormatError(text) from None

    missing = [name for name in COLUMNS if name not in cells.columns]
    repeated = [name for name in (*COLUMNS, *OPTIONAL_COLUMNS) if f"{name}_duplicated_0" in cells.columns]
    got = ""
    if not cells.columns:
        got = "nothing"
    elif missing:
        got = f"no {', '.join(map(repr, missing))} among {examples(cells.columns)}"
    elif repeated:
        got = f"{', '.join(map(repr, repeated))} more than once"
    elif not cells.height:
        got = "no rows"
    if got:
        expected = f"columns {', '.join(map(repr, COLUMNS))}, separated by commas, and at least one job"
        raise TraceFormatError(message(str(path), expected, got, "Fix the file."))
    return cells


def _check_rows(rows: pl.DataFrame, cells: pl.DataFrame, path: str | Path) -> None:
    """Raise if a job has no id, an id stands twice, or a number breaks its rule; name the column and the rows."""
    _require(cells, pl.col("job_id").is_not_null(), path, "job_id", "an id")
    _require(cells, ~pl.col("job_id").is_duplicated(), path, "job_id", "ids that stand once")
    for name, (expected, rule) in COLUMN_RULES.items():
        if name in cells.columns:
            may_be_empty = pl.lit(value=name not in COLUMNS) & (
                cells[name].fill_null("").str.strip_chars() == ""
            )
            valid = rows.select(rule.fill_null(value=False) | may_be_empty).to_series()
            _require(cells, valid, path, name, expected)


def _require(
    cells: pl.DataFrame, valid: pl.Expr | pl.Series, path: str | Path, name: str, expected: str
) -> None:
    """Raise with the cells of the rows that are not valid, counted from 1 below the header."""
    wrong = cells.with_row_index("row", offset=1).filter(~valid).select("row", name).rows()
    if wrong:
        listed = examples([f"row {row}: {'nothing' if cell is None else cell[:80]}" for row, cell in wrong])
        got = f"{len(wrong)} of {cells.height} others: {listed}"
        raise TraceFormatError(message(f"{path}: column {name!r}", expected, got, "Fix or drop these rows."))


def _remarks(jobs: pl.DataFrame, columns: list[str]) -> list[str]:
    """Describe columns that are not read, and rows that are unusual but harmless, with counts."""
    unused = [name for name in columns if name not in (*COLUMNS, *OPTIONAL_COLUMNS)]
    unsorted = int((jobs["submit_s"] < jobs["submit_s"].cum_max()).sum())
    tied = jobs.height - jobs["submit_s"].n_unique()
    zero = jobs.filter(pl.col("run_s") == 0)["job_id"].to_list()
    remarks = []
    if unused:
        remarks.append(f"columns that are not read: {examples(unused)}")
    if unsorted:
        remarks.append(f"rows out of order of submission: {unsorted}; sorted")
    if tied:
        remarks.append(f"submissions at the instant of another: {tied}; in the order of the file")
    if zero:
        remarks.append(f"durations of zero: {len(zero)}: {examples(zero)}")
    return remarks
