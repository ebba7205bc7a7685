"""Schedule gangs, jobs that hold whole GPUs of a fleet that stays as it is, by any rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import GpuPlannerError, ScenarioError, SchemaError, examples, message
from gpuplanner.lab.gangs.arrays import MOST_STARTS, STOP, Gangs, to_gangs
from gpuplanner.lab.gangs.outcomes import gang_outcomes
from gpuplanner.lab.gangs.rules import GangRules
from gpuplanner.lab.gangs.spells import GangRun, gang_spells
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.jobs import checked
from gpuplanner.simulate.slices.world import NONE, Ints, Table

STRICT = GangRules(queue="strict")


def schedule(
    jobs: pl.DataFrame,
    fleet: Fleet,
    rules: GangRules,
    *,
    policy: str,
    replication: int = 0,
) -> pl.DataFrame:
    """Serve jobs on whole GPUs by any order and queue.

    Within one instant: jobs end or fail, jobs arrive, jobs start. Ties of submission go by the order of the
    jobs. A job gets the node with the fewest idle GPUs that holds it, lowest number first; one larger than a
    node needs wholly idle nodes and leaves the rest of the last one to others.

    Parameters
    ----------
    jobs : polars.DataFrame
        As for :func:`~gpuplanner.simulate.simulate`, with profile ``"gpu"`` alone; ``tier`` (0 is the most
        urgent; may be null or absent); ``predicted_gpu_s`` for the order ``"qssf"``.
    fleet : Fleet
        What is installed, all of it as whole GPUs. One node with all GPUs is a pool.
    rules : GangRules
        How jobs are served.
    policy : str
        Name written into the outcomes.
    replication : int
        Number written into the outcomes.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Outcomes``, in the order of the jobs, without numbers of GPUs, and ``queued_s``: all
        time in the queue [s], before the first start and after stops. ``lost_gpu_s`` is all time for which
        GPUs were held above ``run_s``: overhead, checkpoints and work done again.

    Raises
    ------
    SchemaError
        If the jobs are not as described, or have not what the rules ask for.
    ScenarioError
        If a job is larger than the fleet, or fails so often that it never ends.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b", "c"], "tenant": "t", "submit_s": [0.0, 1.0, 2.0],
    ...     "run_s": [100.0, 50.0, 10.0], "gpus": [8, 8, 8], "profile": "gpu"})
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=8)
    >>> run = schedule(jobs, fleet, GangRules(queue="strict", order="sjf"), policy="sjf")
    >>> run.select("job_id", "first_start", "end", "queued_s").rows()
    [('a', 0.0, 100.0, 0.0), ('b', 110.0, 160.0, 109.0), ('c', 100.0, 110.0, 98.0)]
    """
    served = _serve(jobs, fleet, rules)
    return gang_outcomes(served.jobs, served.of_jobs(), policy, replication)


def run_gangs(
    jobs: pl.DataFrame,
    fleet: Fleet,
    rules: GangRules,
    *,
    policy: str,
    replication: int = 0,
) -> GangRun:
    """Serve jobs as :func:`schedule` does, and say besides when each of them held its GPUs.

    Parameters
    ----------
    jobs, fleet, rules, policy, replication
        As for :func:`schedule`.

    Returns
    -------
    GangRun
        Outcomes and spells.

    Raises
    ------
    SchemaError, ScenarioError
        As :func:`schedule`.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 10.0],
    ...     "run_s": [100.0, 50.0], "gpus": [8, 8], "profile": "gpu"})
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=8)
    >>> rules = GangRules(queue="strict", tiers_preempt=True)
    >>> run = run_gangs(jobs.with_columns(tier=pl.Series([1, 0])), fleet, rules, policy="urgent first")
    >>> run.spells.select("job_id", "since_s", "start_s", "end_s", "lost_s", "ended").rows()
    [('a', 0.0, 0.0, 10.0, 10.0, 'preempted'), ('a', 10.0, 60.0, 190.0, 30.0, 'finished'), ...]
    """
    served = _serve(jobs, fleet, rules)
    found = served.of_jobs("begun")
    return GangRun(
        gang_outcomes(served.jobs, found, policy, replication),
        gang_spells(served.jobs, found, served.of_stops()),
    )


@dataclass(frozen=True)
class _Served:
    """A loop that has run to its end: checked jobs in order of arrival, first nodes, and runs that were stopped."""

    jobs: pl.DataFrame
    gangs: Gangs
    node: Ints
    stops: Table

    def of_jobs(self, *more: str) -> dict[str, NDArray[Any]]:
        """What became of the jobs, in order of arrival."""
        names = ("start", "end", "queued", "lost", "starts", *more)
        found = {name: np.asarray(self.gangs.jobs[name])[self.gangs.arrivals] for name in names}
        return found | {"node": self.node[self.gangs.arrivals]}

    def of_stops(self) -> dict[str, NDArray[Any]]:
        """The runs that were stopped, in order of time, with the numbers of jobs in order of arrival."""
        found = {name: np.asarray(self.stops[name]) for name in STOP}
        return found | {"job": np.asarray(self.gangs.jobs.row)[found["job"]]}


def _serve(jobs: pl.DataFrame, fleet: Fleet, rules: GangRules) -> _Served:
    """Check the jobs, and run the loop."""
    table = checked_gangs(jobs, fleet, rules)
    gangs = to_gangs(table, fleet, rules)
    stops = rules.run(gangs)
    _refuse_stuck(table, gangs)
    return _Served(table, gangs, gangs.spots[gangs.jobs.spot], stops)


def outcomes_of(table: pl.DataFrame, gangs: Gangs, policy: str) -> pl.DataFrame:
    """Outcomes of a loop that has run to its end."""
    _refuse_stuck(table, gangs)
    served = _Served(table, gangs, gangs.spots[gangs.jobs.spot], gangs.stops)
    return gang_outcomes(table, served.of_jobs(), policy, 0)


def _refuse_stuck(table: pl.DataFrame, gangs: Gangs) -> None:
    """Raise if a job fails so often that it never ends."""
    if gangs.status[0].stuck != NONE:
        stuck = table["job_id"][int(gangs.jobs[gangs.status[0].stuck].row)]
        text = message(
            f"job {stuck!r}",
            f"an end after at most {MOST_STARTS} starts",
            "a job that is stopped before it gets on",
            "Lower the rate of failures, or save work more often.",
        )
        raise ScenarioError(text)


def prepare(rules: GangRules) -> None:
    """Compile the loop that the rules ask for, or load it from disk: seconds the first time, once for all.

    Examples
    --------
    >>> prepare(GangRules(queue="strict"))
    """
    job = pl.DataFrame(
        {"job_id": ["-"], "tenant": "-", "submit_s": 0.0, "run_s": 1.0, "gpus": 1, "profile": WHOLE_GPU}
    ).with_columns(limit_s="run_s", predicted_gpu_s="run_s")
    schedule(job, Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=1), rules, policy="-")


def in_pages(advance: Callable[[Gangs], bool], gangs: Gangs) -> Table:
    """Run a loop that pauses when its list of stopped runs is full; all of them in the end."""
    pages, finished = [], False
    while not finished:
        finished = advance(gangs)
        pages.append(gangs.stops[: gangs.status[0].stopped].copy())
        gangs.status[0].stopped = 0
    return np.concatenate(pages).view(np.recarray)


def checked_gangs(jobs: pl.DataFrame, fleet: Fleet, rules: GangRules = STRICT) -> pl.DataFrame:
    """Jobs in order of arrival, with ``row``, their place in the input."""
    table = checked(jobs, rules)
    per_node, gpus = fleet.gpus_per_node, pl.col("gpus")
    needed = pl.when(gpus > per_node).then((gpus / per_node).ceil() * per_node).otherwise(gpus)
    _refuse(
        table.filter(pl.col("profile") != WHOLE_GPU),
        "column 'profile'",
        "jobs on whole GPUs alone, 'gpu'",
        "Use simulate, which knows instances.",
    )
    for jobs_without, column, expected, todo in rules.lacking(table):
        _refuse(jobs_without, f"column {column!r}", expected, todo)
    _refuse(
        table.filter(needed > fleet.gpus),
        "column 'gpus'",
        f"jobs that fit on nodes={fleet.nodes}, gpus_per_node={per_node}",
        "Drop them, or add nodes.",
        ScenarioError,
    )
    return table.with_row_index("row").sort("submit_s", "row")


def _refuse(
    jobs: pl.DataFrame, column: str, expected: str, todo: str, error: type[GpuPlannerError] = SchemaError
) -> None:
    """Raise if there are such jobs."""
    if jobs.height:
        named = examples(jobs["job_id"].to_list())
        text = message(f"jobs to schedule: {column}", expected, f"{jobs.height} others: {named}", todo)
        raise error(text)
