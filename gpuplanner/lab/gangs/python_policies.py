"""Schedule gangs by a Python function: slower than the compiled loops, but free."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.gangs.arrays import MOST_STARTS, STOP
from gpuplanner.lab.gangs.cluster import Cluster, Gang
from gpuplanner.lab.gangs.outcomes import gang_outcomes
from gpuplanner.lab.gangs.schedule import checked_gangs
from gpuplanner.lab.gangs.spells import GangRun, gang_spells
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.rules import Preemption

GangPolicy = Callable[[Cluster], object]
"""Looks at a cluster, and starts and stops jobs."""


def in_order(key: Callable[[Gang], object], *, passing: bool = False) -> GangPolicy:
    """Make a policy of an order.

    Parameters
    ----------
    key : callable
        What to sort the waiting jobs by; ties go by the time of joining the queue.
    passing : bool
        Whether jobs that fit may pass one that does not.

    Examples
    --------
    >>> smallest_first = in_order(lambda job: job.gpus, passing=True)
    """

    def policy(cluster: Cluster) -> None:
        for job in sorted(cluster.waiting, key=key):  # type: ignore[arg-type]
            if not cluster.start(job) and not passing:
                return

    return policy


def schedule_by(
    choose: GangPolicy,
    jobs: pl.DataFrame,
    fleet: Fleet,
    *,
    policy: str,
    preemption: Preemption = Preemption(start_lag_s=0.0),  # noqa: B008 - frozen
    replication: int = 0,
) -> pl.DataFrame:
    """Serve jobs on whole GPUs by a function of one's own.

    The function is called whenever jobs ended or arrived, after that, with the cluster as it is then.

    Parameters
    ----------
    choose : callable
        Takes a :class:`Cluster`; calls its ``start`` and ``stop``.
    jobs, fleet, policy, replication
        As for :func:`~gpuplanner.lab.gangs.schedule`.
    preemption : Preemption
        What starts and stops cost; ``min_run_s`` is left to the function.

    Returns
    -------
    polars.DataFrame
        As :func:`~gpuplanner.lab.gangs.schedule` gives it.

    Raises
    ------
    SchemaError
        If the jobs are not as described.
    ScenarioError
        If a job is larger than the fleet, is started without end, or is never started.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b", "c"], "tenant": "t", "submit_s": [0.0, 1.0, 2.0],
    ...     "run_s": [100.0, 50.0, 10.0], "gpus": [8, 8, 2], "profile": "gpu"})
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=8)
    >>> fewest_gpus_first = in_order(lambda job: job.gpus)
    >>> schedule_by(fewest_gpus_first, jobs, fleet, policy="mine")["end"].to_list()
    [100.0, 160.0, 110.0]
    """
    run = run_gangs_by(choose, jobs, fleet, policy=policy, preemption=preemption, replication=replication)
    return run.outcomes


def run_gangs_by(
    choose: GangPolicy,
    jobs: pl.DataFrame,
    fleet: Fleet,
    *,
    policy: str,
    preemption: Preemption = Preemption(start_lag_s=0.0),  # noqa: B008 - frozen
    replication: int = 0,
) -> GangRun:
    """Serve jobs as :func:`schedule_by` does, and say besides when each of them held its GPUs.

    Parameters
    ----------
    choose, jobs, fleet, policy, preemption, replication
        As for :func:`schedule_by`.

    Returns
    -------
    GangRun
        As :func:`~gpuplanner.simulate.run_gangs` gives it.

    Raises
    ------
    SchemaError, ScenarioError
        As :func:`schedule_by`.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 10.0],
    ...     "run_s": [100.0, 50.0], "gpus": [8, 8], "profile": "gpu"})
    >>> def last_come_first_served(cluster):
    ...     for job in sorted(cluster.running, key=lambda job: job.number):
    ...         if cluster.waiting and cluster.waiting[-1].number > job.number:
    ...             cluster.stop(job)
    ...     for job in sorted(cluster.waiting, key=lambda job: -job.number):
    ...         cluster.start(job)
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=8)
    >>> run = run_gangs_by(last_come_first_served, jobs, fleet, policy="lifo")
    >>> run.spells.select("job_id", "start_s", "end_s", "ended").rows()
    [('a', 0.0, 10.0, 'preempted'), ('a', 60.0, 180.0, 'finished'), ('b', 10.0, 60.0, 'finished')]
    """
    table = checked_gangs(jobs, fleet)
    gangs = list(_gangs(table))
    cluster = Cluster(fleet, preemption)
    arrived = 0
    while True:
        arrival = gangs[arrived].submit_s if arrived < len(gangs) else math.inf
        instant = cluster._next_instant(max(arrival, 0.0))
        if instant == math.inf:
            break
        cluster.now = instant
        cluster._end_jobs()
        while arrived < len(gangs) and max(gangs[arrived].submit_s, 0.0) <= instant:
            gangs[arrived].since_s = instant
            cluster.waiting.append(gangs[arrived])
            arrived += 1
        choose(cluster)
        _refuse_thrashing(cluster)
    if cluster.waiting:
        text = message(
            f"policy {policy!r}",
            "every job to be started at last",
            f"{len(cluster.waiting)} that wait in an empty fleet, {cluster.waiting[0].job_id!r} first",
            "Let the function start them, or ask for a later call with wake_at.",
        )
        raise ScenarioError(text)
    found = {
        "start": [job.first_start_s for job in gangs],
        "begun": [job.since_s for job in gangs],
        "end": [job.end_s for job in gangs],
        "queued": [job.queued_s for job in gangs],
        "lost": [job.lost_s for job in gangs],
        "starts": [job.starts for job in gangs],
        "node": [job.node for job in gangs],
    }
    stopped = np.array(cluster._stops, dtype=list(STOP.items()))
    arrays = {name: np.array(values) for name, values in found.items()}
    stops = {name: stopped[name] for name in STOP}
    return GangRun(gang_outcomes(table, arrays, policy, replication), gang_spells(table, arrays, stops))


def _gangs(table: pl.DataFrame) -> Iterator[Gang]:
    for number, row in enumerate(table.iter_rows(named=True)):
        yield Gang(
            number=number,
            job_id=row["job_id"],
            tenant=row["tenant"],
            tier=row["tier"] or 0,
            submit_s=row["submit_s"],
            gpus=row["gpus"],
            limit_s=row["limit_s"],
            predicted_gpu_s=row["predicted_gpu_s"],
            left_s=row["run_s"],
        )


def _refuse_thrashing(cluster: Cluster) -> None:
    for job in cluster.running:
        if job.starts > MOST_STARTS:
            text = message(
                f"job {job.job_id!r}",
                f"at most {MOST_STARTS} starts",
                "more",
                "Let the policy stop it less often.",
            )
            raise ScenarioError(text)
