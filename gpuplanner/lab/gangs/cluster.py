"""What a policy written in Python sees and acts on: jobs, and the cluster at one instant."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from gpuplanner.errors import ScenarioError, message
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.rules import Preemption


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
    owed_s : float
        The part of it that is overhead.
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
    owed_s: float = 0.0
    since_s: float = 0.0
    end_s: float = math.inf
    nodes: dict[int, int] = field(default_factory=dict)
    attained_gpu_s: float = 0.0
    first_start_s: float = math.nan
    queued_s: float = 0.0
    lost_s: float = 0.0
    starts: int = 0
    slowdown: float = 1.0
    node: int = -1


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
        self._stops: list[tuple[float, float, float, int, int, int]] = []

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

        Raises
        ------
        ScenarioError
            If the job does not wait.
        """
        self._require(job, self.waiting, "a job that waits")
        nodes = self.place(job.gpus) if nodes is None else nodes
        if sum(nodes.values()) != job.gpus or any(self.idle[node] < gpus for node, gpus in nodes.items()):
            return False
        for node, gpus in nodes.items():
            self.idle[node] -= gpus
        self.waiting.remove(job)
        self.running.append(job)
        job.nodes = nodes
        job.node = next(iter(nodes))
        job.slowdown = slowdown
        job.queued_s += self.now - job.since_s
        job.since_s = self.now
        job.end_s = self.now + (self.preemption.start_lag_s + job.left_s * slowdown)
        job.starts += 1
        if job.starts == 1:
            job.first_start_s = self.now
        return True

    def stop(self, job: Gang) -> None:
        """Stop a running job; its work is saved, its next run takes the overhead on top.

        Raises
        ------
        ScenarioError
            If the job does not run.
        """
        self._require(job, self.running, "a job that runs")
        overhead = self.preemption.overhead_of(job.gpus)
        left = max(self.remaining_s(job), 0.0)
        lost = self._account(job, self.now - job.since_s, left)
        self._stops.append((job.since_s, self.now, lost, job.number, job.node, 0))
        job.left_s = left + overhead
        job.owed_s += overhead
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

    def _require(self, job: Gang, among: list[Gang], expected: str) -> None:
        if job not in among:
            got = (
                "one that runs"
                if job in self.running
                else "one that waits"
                if job in self.waiting
                else "neither"
            )
            text = message(f"policy: job {job.job_id!r}", expected, got, "Go over a copy of the list.")
            raise ScenarioError(text)

    def _account(self, job: Gang, held_s: float, left_s: float) -> float:
        """Pay overhead out of what was done in a run that leaves so much to do; return what the run lost."""
        done = job.left_s - left_s
        paid = min(job.owed_s, done)
        lost = max(held_s - (done - paid), 0.0)
        job.owed_s -= paid
        job.lost_s += lost
        return lost

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
            self._account(job, self.preemption.start_lag_s + job.left_s * job.slowdown, 0.0)
            self._release(job)
