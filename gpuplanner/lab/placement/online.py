"""One pod after another: what a policy makes of an order of arrival. The loop is compiled.

A node's score for a kind of pod changes only when the node takes a pod. So scores are kept in a table of kinds
by nodes, and after a placement only one column of it is out of date.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.jit import entry, part
from gpuplanner.lab.placement.arrivals import Arrivals, as_listed
from gpuplanner.lab.placement.fragments import Free, TargetKinds, as_target, node_fragment
from gpuplanner.lab.placement.pods import MILLI, Integers, Nodes, Pods, accepts
from gpuplanner.lab.placement.policies import NODE_RULES, PlacementPolicy, as_policy
from gpuplanner.lab.placement.result import REASONS, Allocation
from gpuplanner.lab.placement.scores import PodRequest, ScoreRules, as_rules, choose, holds, score, take
from gpuplanner.lab.placement.workload import TargetWorkload, target_workload

MAX_CELLS = 100_000_000
"""Kinds of pods times nodes; more are refused for want of memory."""

_RANDOM = NODE_RULES.index("random")
_STALE = -2.0
_FULL = -1.0
_PLACED, _MODEL, _TOO_LARGE, _GPU, _FRAGMENTED, _CPU, _MEMORY = range(len(REASONS))


class ClusterState(NamedTuple):
    """Nodes in the order in which ties are broken, with what is free, as compiled functions take them."""

    cpu: Any
    memory: Any
    gpus: Any
    model: Any
    """Shape (n_nodes,), int64 each."""
    left: Any
    """Shape (n_nodes, n_gpus), int64: free share of each GPU [thousandths]; 0 beyond the GPUs of a node."""


class PodKinds(NamedTuple):
    """Distinct requests, as compiled functions take them."""

    cpu: Any
    memory: Any
    gpus: Any
    milli: Any
    """Shape (n_kinds,), int64 each."""
    allowed: Any
    """Shape (n_kinds, n_models), bool."""
    possible: Any
    """Shape (n_kinds,), bool: some empty node holds it."""


def allocate(
    pods: Pods,
    nodes: Nodes,
    policy: PlacementPolicy | str = "fgd",
    *,
    arrivals: Arrivals | None = None,
    target: TargetWorkload | None = None,
    seed: int = 0,
) -> Allocation:
    """Place pods on nodes as they arrive; none ever leaves, and one that finds no room is gone.

    Parameters
    ----------
    pods, nodes : Pods, Nodes
        Requests, and empty nodes.
    policy : PlacementPolicy or str
        The policy, or its name in :data:`gpuplanner.lab.placement.POLICIES`.
    arrivals : Arrivals, optional
        Order of the pods and of the nodes; both as listed if None.
    target : TargetWorkload, optional
        What fragmentation is measured against, by every policy; the frequent kinds of `pods` if None.
    seed : int
        Seed of the random policy.

    Returns
    -------
    Allocation
        Node, GPUs, reason and fragmentation at every arrival.

    Raises
    ------
    ScenarioError
        If the policy is unknown, or there are more kinds of pods times nodes than :data:`MAX_CELLS`.

    References
    ----------
    Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 6.

    Examples
    --------
    >>> pods = Pods(["a", "b", "c"], [4000] * 3, [0] * 3, [1, 1, 1], [500, 1000, 500])
    >>> nodes = Nodes(["n1", "n2"], [64000] * 2, [0] * 2, [1, 1])
    >>> found = allocate(pods, nodes, "worst-fit")
    >>> found.node.tolist(), found.unplaced()["reason", "pods"].rows()
    ([0, 1, 0], [])
    """
    policy = as_policy(policy)
    arrivals = as_listed(pods, nodes) if arrivals is None else arrivals
    if not np.array_equal(np.sort(arrivals.nodes), np.arange(len(nodes.names))):
        got = f"{len(arrivals.nodes)} positions for {len(nodes.names)} nodes"
        raise ScenarioError(message("arrivals.nodes", "every node once", got, "Give a permutation."))
    workload = target_workload(pods) if target is None else target
    models = sorted(set(nodes.models))
    cluster = _cluster(nodes, arrivals.nodes, models)
    kinds, kind_of = _kinds(pods, nodes, models)
    if len(kinds.cpu) * len(nodes.names) > MAX_CELLS:
        got = f"{len(kinds.cpu)} kinds of pods on {len(nodes.names)} nodes"
        raise ScenarioError(
            message("placement", f"at most {MAX_CELLS:,} kinds times nodes", got, "Round the requests.")
        )
    weight = MILLI * int(workload.counts.sum())
    scales = {"cpu_scale": int(nodes.cpu_milli.max()), "gpu_scale": int(nodes.gpus.max()) * MILLI}
    draws = np.random.default_rng(seed).random((len(arrivals.pods), 2))
    node, devices, reason, fragments = _run(
        cluster,
        kinds,
        kind_of[arrivals.pods],
        as_rules(policy, **scales, weight=weight),
        as_target(workload, models),
        draws,
    )
    return Allocation(
        policy=policy,
        pods=pods,
        nodes=nodes,
        arrivals=arrivals,
        node=np.where(node < 0, -1, arrivals.nodes[node]),
        devices=devices,
        reason=reason,
        fragmented_gpus=fragments / weight,
    )


def _cluster(nodes: Nodes, order: Integers, models: list[str]) -> ClusterState:
    model = np.array([models.index(name) for name in nodes.models])
    cpu, memory, gpus, model = (
        column[order] for column in (nodes.cpu_milli, nodes.memory_mib, nodes.gpus, model)
    )
    left = MILLI * (np.arange(max(gpus.max(), 1)) < gpus[:, None])
    return ClusterState(cpu, memory, gpus, model, left)


def _kinds(pods: Pods, nodes: Nodes, models: list[str]) -> tuple[PodKinds, Integers]:
    """Distinct requests, and the kind of each pod."""
    texts, text_of = np.unique(np.array(pods.models), return_inverse=True)
    table = np.stack([pods.cpu_milli, pods.memory_mib, pods.gpus, pods.gpu_milli, text_of.ravel()], axis=1)
    rows, kind_of = np.unique(table, axis=0, return_inverse=True)
    cpu, memory, gpus, milli, text = (np.ascontiguousarray(column) for column in rows.T)
    allowed = np.array([[accepts(str(texts[t]), model) for model in models] for t in text])
    sizes = np.stack([nodes.cpu_milli, nodes.memory_mib, nodes.gpus])
    model = np.array([models.index(name) for name in nodes.models])
    fits = [
        bool(np.any(allowed[kind, model] & (sizes >= rows[kind, :3, None]).all(axis=0)))
        for kind in range(len(rows))
    ]
    return PodKinds(cpu, memory, gpus, milli, allowed, np.array(fits)), kind_of.ravel()


@entry
def _run(
    cluster: ClusterState,
    kinds: PodKinds,
    order: Integers,
    rules: ScoreRules,
    target: TargetKinds,
    draws: NDArray[np.float64],
) -> tuple[Integers, Integers, Integers, Integers]:
    n_nodes = len(cluster.cpu)
    scores = np.full((len(kinds.cpu), n_nodes), _STALE)
    node_of = np.full(len(order), -1, dtype=np.int64)
    devices_of = np.zeros(len(order), dtype=np.int64)
    reason_of = np.zeros(len(order), dtype=np.int64)
    fragments_after = np.zeros(len(order), dtype=np.int64)
    fragments = np.int64(0)
    for node in range(n_nodes):
        fragments += node_fragment(_free(cluster, node), target)
    for number in range(len(order)):
        kind = order[number]
        request = PodRequest(kinds.cpu[kind], kinds.memory[kind], kinds.gpus[kind], kinds.milli[kind])
        fitting = 0
        found = -1
        for node in range(n_nodes):
            value = scores[kind, node]
            if value == _STALE:
                value = _score(_free(cluster, node), kinds.allowed[kind], request, rules, target)
                scores[kind, node] = value
            if value != _FULL:
                fitting += 1
                if found < 0 or value > scores[kind, found]:
                    found = node
        if found < 0:
            reason_of[number] = _why(cluster, kinds, kind, request)
        else:
            if rules.node == _RANDOM:
                found = _nth(scores[kind], int(draws[number, 0] * fitting))
            fragments -= node_fragment(_free(cluster, found), target)
            devices_of[number] = _place(cluster, found, request, rules, target, draws[number, 1])
            fragments += node_fragment(_free(cluster, found), target)
            node_of[number] = found
            scores[:, found] = _STALE
        fragments_after[number] = fragments
    return node_of, devices_of, reason_of, fragments_after


@part
def _free(cluster: ClusterState, node: int) -> Free:
    return Free(
        cluster.cpu[node], cluster.memory[node], cluster.left[node], cluster.gpus[node], cluster.model[node]
    )


@part
def _score(
    free: Free, allowed: NDArray[np.bool_], request: PodRequest, rules: ScoreRules, target: TargetKinds
) -> float:
    if free.cpu < request.cpu or free.memory < request.memory or not allowed[free.model]:
        return _FULL
    return score(rules, request, free, target) if holds(free, request) else _FULL


@part
def _nth(scores: NDArray[np.float64], skip: int) -> int:
    for node in range(len(scores)):
        if scores[node] != _FULL:
            if skip == 0:
                return node
            skip -= 1
    return -1


@part
def _place(
    cluster: ClusterState, node: int, request: PodRequest, rules: ScoreRules, target: TargetKinds, draw: float
) -> int:
    free = _free(cluster, node)
    devices = choose(rules, request, draw, free, target)
    take(free, devices, request.milli)
    cluster.cpu[node] -= request.cpu
    cluster.memory[node] -= request.memory
    return devices


@part
def _why(cluster: ClusterState, kinds: PodKinds, kind: int, request: PodRequest) -> int:
    """The first of the reasons, in the order of ``REASONS``, that rules out every node."""
    idle = 0
    accepting, holding, with_cpu = False, False, False
    for node in range(len(cluster.cpu)):
        free = _free(cluster, node)
        if not kinds.allowed[kind, free.model]:
            continue
        accepting = True
        for gpu in range(free.gpus):
            idle += free.left[gpu]
        if holds(free, request):
            holding = True
            if free.cpu >= request.cpu:
                with_cpu = True
    if not accepting:
        return _MODEL
    if not kinds.possible[kind]:
        return _TOO_LARGE
    if idle < request.gpus * request.milli:
        return _GPU
    if not holding:
        return _FRAGMENTED
    return _MEMORY if with_cpu else _CPU
