"""What is free when all have arrived, and how much of it is of no use: by model of the GPUs, and by MIG layout."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from gpuplanner.hardware import free_slices
from gpuplanner.lab.placement.fragments import fragmentation
from gpuplanner.lab.placement.mig import InstanceAllocation, mig_fragmentation
from gpuplanner.lab.placement.pods import MILLI
from gpuplanner.lab.placement.result import Allocation
from gpuplanner.lab.placement.workload import TargetWorkload, target_workload


def left_by_model(found: Allocation, target: TargetWorkload | None = None) -> pl.DataFrame:
    """Idle GPUs of each model in the end, and how many of them the workload cannot use where they are.

    Parameters
    ----------
    found : Allocation
        Pods on nodes.
    target : TargetWorkload, optional
        What fragmentation is measured against; the frequent kinds of the pods if None.

    Returns
    -------
    polars.DataFrame
        ``model, nodes, gpus, idle_gpus, fragmented_gpus``, sorted by model; nodes without GPUs have none.

    Examples
    --------
    Half a GPU is idle, which three of four pods cannot use:

    >>> from gpuplanner.lab.placement import Nodes, Pods, allocate
    >>> pods = Pods(["a", "b", "c", "d"], [1] * 4, [1] * 4, [1, 1, 1, 1], [500, 1000, 1000, 1000])
    >>> left_by_model(allocate(pods, Nodes(["n1"], [9], [9], [2], ["T4"]), "first-fit")).rows()
    [('T4', 1, 2, 0.5, 0.375)]
    """
    nodes, placed = found.nodes, np.flatnonzero(found.node >= 0)
    pods, on = found.arrivals.pods[placed], found.node[placed]
    cpu = nodes.cpu_milli.copy()
    np.subtract.at(cpu, on, found.pods.cpu_milli[pods])
    numbers = np.arange(int(nodes.gpus.max()))
    left = np.where(numbers < nodes.gpus[:, None], MILLI, 0)
    taken = found.devices[placed, None] >> numbers & 1
    np.subtract.at(left, on, taken * found.pods.gpu_milli[pods, None])
    workload = target_workload(found.pods) if target is None else target
    table = pl.DataFrame(
        {
            "model": nodes.models,
            "gpus": nodes.gpus,
            "idle_gpus": left.sum(axis=1) / MILLI,
            "fragmented_gpus": fragmentation(nodes, workload, free_cpu_milli=cpu, free_gpu_milli=left),
        }
    )
    return table.group_by("model").agg(pl.len().alias("nodes"), pl.all().sum()).sort("model")


def left_by_layout(found: InstanceAllocation) -> pl.DataFrame:
    """What the GPUs hold in the end, most frequent layout first, and what is free on each of them.

    Parameters
    ----------
    found : InstanceAllocation
        Instances on GPUs.

    Returns
    -------
    polars.DataFrame
        ``layout, gpus`` and, of one such GPU, ``free_slices`` and ``fragmented_slices`` [memory slices]: of no use
        to an instance drawn from those that came.

    Examples
    --------
    >>> from gpuplanner.lab.placement import place_instances
    >>> left_by_layout(place_instances("A100-40GB", ["4g.20gb", "3g.20gb", "4g.20gb"], 2)).rows()
    [('4g.20gb@0 3g.20gb@4', 1, 0, 0.0), ('4g.20gb@0', 1, 4, 2.666...)]
    """
    demand = Counter(found.profiles)
    rows = [
        {
            "layout": str(layout),
            "gpus": gpus,
            "free_slices": len(free_slices(found.board, layout)),
            "fragmented_slices": mig_fragmentation(found.board, layout, demand),
        }
        for layout, gpus in Counter(found.layouts()).most_common()
    ]
    return pl.DataFrame(rows)
