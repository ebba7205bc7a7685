"""Fragmentation: idle GPU shares that the workload cannot use where they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.jit import entry, part
from gpuplanner.lab.placement.pods import MILLI, Integers, Nodes, accepts
from gpuplanner.lab.placement.workload import TargetWorkload


class TargetKinds(NamedTuple):
    """A target workload, as compiled functions take it."""

    cpu: Any
    gpus: Any
    milli: Any
    count: Any
    """Shape (n_kinds,), int64 each."""
    allowed: Any
    """Shape (n_kinds, n_models), bool: whether the kind takes GPUs of the model."""


class Free(NamedTuple):
    """What is free on one node, as compiled functions take it."""

    cpu: Any
    memory: Any
    left: Any
    """Shape (n_gpus,), int64: free share of each GPU [thousandths]."""
    gpus: Any
    model: Any


def as_target(target: TargetWorkload, models: list[str]) -> TargetKinds:
    """A target workload for nodes with these models."""
    allowed = np.array([[accepts(wanted, model) for model in models] for wanted in target.models])
    return TargetKinds(target.cpu_milli, target.gpus, target.gpu_milli, target.counts, allowed)


def fragmentation(
    nodes: Nodes, target: TargetWorkload, *, free_cpu_milli: ArrayLike, free_gpu_milli: ArrayLike
) -> NDArray[np.float64]:
    r"""Expected GPUs of each node that lie idle and are of no use to a pod drawn from the workload.

    For a kind of pod that the node cannot take (CPU, GPUs, model), all idle shares of the node are of no
    use; for one that it can, those of GPUs with less free than the kind asks of one GPU:

    .. math:: F(n) = \sum_m p_m \sum_{g \in n} R_g \,[\,m \text{ does not fit on } n
              \text{ or } R_g < m_{gpu}\,]

    A kind without GPUs can use no GPU share, so that all idle ones count for it, as in the source.

    Parameters
    ----------
    nodes : Nodes
        The nodes.
    target : TargetWorkload
        Kinds m of pods with their probabilities :math:`p_m`.
    free_cpu_milli : array of int, shape (n_nodes,)
        Free CPU [thousandths of a core].
    free_gpu_milli : array of int, shape (n_nodes, n_gpus)
        Free share R of each GPU [thousandths]; columns beyond the GPUs of a node are not looked at.

    Returns
    -------
    ndarray of float, shape (n_nodes,)
        F(n) in GPUs; sum it for the cluster.

    Raises
    ------
    ScenarioError
        If shapes do not fit the nodes, or a share is not from 0 to 1000.

    References
    ----------
    Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 3.2.

    Examples
    --------
    Half of the pods want 0.5 GPU, half of them two. On a node with 0.4 and 1 GPU free, the first cannot use
    the 0.4, the second nothing:

    >>> from gpuplanner.lab.placement import Pods, fragmentation, target_workload
    >>> target = target_workload(Pods(["a", "b"], [4000, 4000], [0, 0], [1, 2], [500, 1000]))
    >>> nodes = Nodes(["n1"], [64000], [0], [2], ["T4"])
    >>> fragmentation(nodes, target, free_cpu_milli=[64000], free_gpu_milli=[[400, 1000]]).tolist()
    [0.9]
    """
    cpu = np.array(free_cpu_milli, dtype=np.int64)
    left = np.array(free_gpu_milli, dtype=np.int64)
    most = int(nodes.gpus.max())
    faults = cpu.shape != nodes.gpus.shape or left.ndim != 2 or left.shape[0] != len(nodes.names)
    if faults or left.shape[1] < most or left.min(initial=0) < 0 or left.max(initial=0) > MILLI:
        text = message(
            "free_cpu_milli and free_gpu_milli",
            f"shapes ({len(nodes.names)},) and ({len(nodes.names)}, {most}), shares from 0 to {MILLI}",
            f"{cpu.shape} and {left.shape}, up to {left.max(initial=0)}",
            "Give one row per node.",
        )
        raise ScenarioError(text)
    models = sorted(set(nodes.models))
    model = np.array([models.index(name) for name in nodes.models])
    weighted = _fragments(cpu, left, nodes.gpus, model, as_target(target, models))
    return np.asarray(weighted / (MILLI * target.counts.sum()), dtype=np.float64)


@entry
def _fragments(
    cpu: Integers, left: Integers, gpus: Integers, model: Integers, target: TargetKinds
) -> Integers:
    found = np.empty(len(cpu), dtype=np.int64)
    for node in range(len(cpu)):
        found[node] = node_fragment(Free(cpu[node], 0, left[node], gpus[node], model[node]), target)
    return found


@part
def node_fragment(free: Free, target: TargetKinds) -> int:
    """Idle thousandths of a node that are of no use, summed over the pods of the workload: whole and exact."""
    idle = 0
    for gpu in range(free.gpus):
        idle += free.left[gpu]
    if idle == 0:
        return 0
    found = 0
    for kind in range(len(target.count)):
        useless = idle
        if target.gpus[kind] > 0 and free.cpu >= target.cpu[kind] and target.allowed[kind, free.model]:
            holding = 0
            short = 0
            for gpu in range(free.gpus):
                if free.left[gpu] >= target.milli[kind]:
                    holding += 1
                else:
                    short += free.left[gpu]
            if holding >= target.gpus[kind]:
                useless = short
        found += target.count[kind] * useless
    return found
