"""Idle GPUs of a fleet of several types, and how a policy finds some."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from gpuplanner.lab.orders.mixed.mixed import GpuType, MixedJob, PlanOption

Held = tuple[str, str, int, int, float, float]
PLACES = {
    "job_id": pl.String,
    "gpu_type": pl.String,
    "node": pl.Int32,
    "gpus": pl.Int32,
    "start_s": pl.Float64,
    "end_s": pl.Float64,
}
"""Who held how many GPUs of which node of a type, from when to when."""


class Machines:
    """Idle GPUs of the nodes of one type.

    Nodes stand in heaps by how many GPUs they have idle; an entry that is no longer true is dropped when it
    comes to the top. So every search costs O(GPUs of a node + log nodes) for each node found.

    Examples
    --------
    >>> machines = Machines(GpuType("A100-40GB", nodes=3, gpus_per_node=8, memory_gib=40.0))
    >>> machines.take({0: 2, 1: 5})
    >>> machines.best_fit(3), machines.best_fit(4), machines.fewest_nodes(9), machines.first_fit(9)
    ({1: 3}, {0: 4}, {2: 8, 0: 1}, {0: 6, 1: 3})
    """

    def __init__(self, kind: GpuType) -> None:
        self.idle = [kind.gpus_per_node] * kind.nodes
        self.free = kind.gpus
        self._heaps: list[list[int]] = [[] for _ in range(kind.gpus_per_node + 1)]
        self._heaps[-1] = list(range(kind.nodes))

    def take(self, nodes: dict[int, int], sign: int = 1) -> None:
        """Take GPUs of nodes, or give them back (-1)."""
        for node, gpus in nodes.items():
            self.idle[node] -= sign * gpus
            self.free -= sign * gpus
            heapq.heappush(self._heaps[self.idle[node]], node)

    def best_fit(self, gpus: int) -> dict[int, int]:
        """The node with the fewest idle GPUs that holds them, lowest number first; empty if none does."""
        for idle in range(gpus, len(self._heaps)):
            node = self._lowest(idle)
            if node is not None:
                return {node: gpus}
        return {}

    def fewest_nodes(self, gpus: int) -> dict[int, int]:
        """Nodes in descending number of idle GPUs until they hold them; empty if all do not."""
        if gpus > self.free:
            return {}
        chosen: dict[int, int] = {}
        for idle in range(len(self._heaps) - 1, 0, -1):
            while gpus and (node := self._lowest(idle)) is not None:
                heapq.heappop(self._heaps[idle])
                if node not in chosen:
                    chosen[node] = min(idle, gpus)
                    gpus -= chosen[node]
        for node in chosen:
            heapq.heappush(self._heaps[self.idle[node]], node)
        return chosen

    def first_fit(self, gpus: int) -> dict[int, int]:
        """The first node that holds them, else idle GPUs in the order of the nodes; empty if all do not."""
        if gpus > self.free:
            return {}
        for node, idle in enumerate(self.idle):
            if idle >= gpus:
                return {node: gpus}
        chosen: dict[int, int] = {}
        for node, idle in enumerate(self.idle):
            if idle and gpus:
                chosen[node] = min(idle, gpus)
                gpus -= chosen[node]
        return chosen

    def _lowest(self, idle: int) -> int | None:
        """Node of the lowest number with just as many idle GPUs."""
        heap = self._heaps[idle]
        while heap and self.idle[heap[0]] != idle:
            heapq.heappop(heap)
        return heap[0] if heap else None


@dataclass(frozen=True)
class Choice:
    """How a job is to run: by an option, with GPUs of nodes of its type."""

    option: PlanOption
    nodes: dict[int, int]


Decide = Callable[[list[Machines], MixedJob], Choice | None]
"""Looks at the idle GPUs of every type and at a job; None leaves it in the queue."""


def heterogeneity_aware(fleet: list[Machines], job: MixedJob) -> Choice | None:
    """Heterogeneity-aware scheduling (HAS), as it can be reconstructed from what is published.

    Plans by fewest GPUs, then least tensor parallelism. For each plan the types with enough memory, the one with
    least of it first, then the fastest. On each of them the node with the fewest idle GPUs that holds the job,
    else nodes in descending number of idle GPUs until they do.

    References
    ----------
    Frenzy, arXiv 2412.14479, whose abstract and reviews name the parts; no code of it is public, so that this is
    a reconstruction.
    """
    for option in job.options:
        machines = fleet[option.kind]
        nodes = machines.best_fit(option.gpus) or machines.fewest_nodes(option.gpus)
        if nodes:
            return Choice(option, nodes)
    return None


def opportunistic(fleet: list[Machines], job: MixedJob) -> Choice | None:
    """The user picks type and number of GPUs; first fit."""
    if job.asked is None:
        return None
    nodes = fleet[job.asked.kind].first_fit(job.asked.gpus)
    return Choice(job.asked, nodes) if nodes else None
