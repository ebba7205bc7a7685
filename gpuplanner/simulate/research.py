"""Schedule gangs by a Python function: slower than the compiled loops, but free."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.gangs import MOST_STARTS
from gpuplanner.simulate.outcomes import gang_outcomes
from gpuplanner.simulate.rules import Preemption
from gpuplanner.simulate.schedule import checked_gangs


@dataclass(eq=False)
class Gang:
    """One job, as a policy sees it. Times in s.

    Parameters
    ----------
    number : int
        In order of arrival.
    job_id, tenant, tier, submit_s, gpus, limit_s, predicted_gpu_s
        As submitted.
    left_s : float
        Work left at its last start or stop, with the overhead of stops.
    since_s : float
        When it last joined the queue, or started.
    end_s : float
        When it will end, or ended; infinite while it waits. A policy that looks knows more than real ones can.
    nodes : dict of int to int
        GPUs that it holds on each node; empty unless it runs.
    attained_gpu_s : float
        GPU-seconds that it held before it last joined the queue or started.
    slowdown : float
        Factor on the time of its present run.
    """

    number: int
    job_id: str
    tenant: str
    tier: int
    submit_s: float
    gpus: int
    limit_s: float | None
    predicted_gpu_s: float | None
    left_s: float
    since_s: float = 0.0
    end_s: float = math.inf
    nodes: dict[int, int] = field(default_factory=dict)
    attained_gpu_s: float = 0.0
    first_start_s: float = math.nan
    queued_s: float = 0.0
    lost_s: float = 0.0
    starts: int = 0
    slowdown: float = 1.0


class Cluster:
    """What a policy sees and acts on at one instant, after ends and arrivals.

    Attributes
    ----------
    now : float
        The instant [s].
    waiting, running : list of Gang
        Who waits, in the order of joining the queue, and who runs, in the order of starting. Go over copies
        when starting or stopping jobs.
    idle : list of int
        Idle GPUs of each node.
    """

    def __init__(self, fleet: Fleet, preemption: Preemption) -> None:
        self.now = 0.0
        self.waiting: list[Gang] = []
        self.running: list[Gang] = []
        self.idle = [fleet.gpus_per_node] * fleet.nodes
        self.preemption = preemption
        self._per_node = fleet.gpus_per_node
        self._wake = math.inf

    def place(self, gpus: int) -> dict[int, int]:
        """GPUs on each node that a job would get now; empty if it does not fit.

        Up to one node: the node with the fewest idle GPUs that holds it. More: wholly idle nodes. Lowest
        numbers first.
        """
        part, count = min(gpus, self._per_node), -(-gpus // self._per_node)
        able = [(idle, node) for node, idle in enumerate(self.idle) if idle >= part]
        if len(able) < count:
            return {}
        chosen = heapq.nsmallest(count, able)
        return {
            node: min(gpus - rank * self._per_node, self._per_node) for rank, (_, node) in enumerate(chosen)
        }

    def start(self, job: Gang, nodes: dict[int, int] | None = None, slowdown: float = 1.0) -> bool:
        """Start a waiting job if it fits; tell whether it did.

        Parameters
        ----------
        job : Gang
            Who.
        nodes : dict of int to int, optional
            GPUs on each node; those of :meth:`place` unless given.
        slowdown : float
            Factor on the time that its work takes there.
        """
        nodes = self.place(job.gpus) if nodes is None else nodes
        if sum(nodes.values()) != job.gpus or any(self.idle[node] < gpus for node, gpus in nodes.items()):
            return False
        for node, gpus in nodes.items():
            self.idle[node] -= gpus
        self.waiting.remove(job)
        self.running.append(job)
        job.nodes = nodes
        job.slowdown = slowdown
        job.queued_s += self.now - job.since_s
        job.since_s = self.now
        job.end_s = self.now + (self.preemption.start_lag_s + job.left_s * slowdown)
        job.lost_s += job.left_s * slowdown - job.left_s
        job.starts += 1
        if job.starts == 1:
            job.first_start_s = self.now
        return True

    def stop(self, job: Gang) -> None:
        """Stop a running job; its work is saved, its next run takes the overhead on top."""
        overhead = self.preemption.overhead_of(job.gpus)
        left = max(self.remaining_s(job), 0.0)
        job.left_s = left + overhead
        job.lost_s += overhead - (left * job.slowdown - left)
        self._release(job)
        job.since_s, job.end_s = self.now, math.inf
        self.waiting.append(job)

    def remaining_s(self, job: Gang) -> float:
        """Work that a job still has to do, with the overhead of stops."""
        if job in self.running:
            return (job.end_s - self.preemption.start_lag_s - self.now) / job.slowdown
        return job.left_s

    def wake_at(self, instant: float) -> None:
        """Ask to be called at a later instant, even if no job ends or arrives by then."""
        if instant > self.now:
            self._wake = min(self._wake, instant)

    def _release(self, job: Gang) -> None:
        for node, gpus in job.nodes.items():
            self.idle[node] += gpus
        job.nodes = {}
        job.attained_gpu_s += job.gpus * (self.now - job.since_s)
        self.running.remove(job)

    def _next_instant(self, arrival: float) -> float:
        instant = min([arrival, self._wake, *(job.end_s for job in self.running)])
        if instant == self._wake:
            self._wake = math.inf
        return instant

    def _end_jobs(self) -> None:
        for job in [job for job in self.running if job.end_s <= self.now]:
            self._release(job)
            job.lost_s += self.preemption.start_lag_s


Policy = Callable[[Cluster], object]
"""Looks at a cluster, and starts and stops jobs."""


def in_order(key: Callable[[Gang], object], *, passing: bool = False) -> Policy:
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
    choose: Policy,
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
        As for :func:`~gpuplanner.simulate.schedule`.
    preemption : Preemption
        What starts and stops cost; ``min_run_s`` is left to the function.

    Returns
    -------
    polars.DataFrame
        As :func:`~gpuplanner.simulate.schedule` gives it.

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
        "end": [job.end_s for job in gangs],
        "queued": [job.queued_s for job in gangs],
        "lost": [job.lost_s for job in gangs],
        "starts": [job.starts for job in gangs],
    }
    return gang_outcomes(
        table, {name: np.array(values) for name, values in found.items()}, policy, replication
    )


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
