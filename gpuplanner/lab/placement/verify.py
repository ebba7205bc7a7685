"""Replays an allocation from the lists alone, pod by pod and instance by instance; shares no code with the methods."""

from __future__ import annotations

import numpy as np

from gpuplanner.hardware import Layout, Placement, is_valid
from gpuplanner.lab.placement.mig import InstanceAllocation
from gpuplanner.lab.placement.result import Allocation


def verify_allocation(found: Allocation) -> list[str]:
    """List everything that is wrong with an allocation.

    Parameters
    ----------
    found : Allocation
        The allocation.

    Returns
    -------
    list of str
        Faults in words: a GPU beyond 1000 thousandths, a node beyond its CPU or memory, GPUs of a model that
        was not wanted, too few or too many GPUs, a pod left out although a node had room. Empty if it holds.

    Examples
    --------
    >>> import dataclasses
    >>> import numpy as np
    >>> from gpuplanner.lab.placement import Nodes, Pods, allocate
    >>> pods = Pods(["a", "b"], [1, 1], [1, 1], [1, 1], [600, 600])
    >>> found = allocate(pods, Nodes(["n1"], [9], [9], [2]), "first-fit")
    >>> verify_allocation(found)
    []
    >>> verify_allocation(dataclasses.replace(found, devices=np.array([1, 1])))
    ['arrival 1, pod b: GPU 0 of node n1 holds 1200 of 1000 thousandths']
    """
    pods, nodes = found.pods, found.nodes
    count = len(found.arrivals.pods)
    if not count == len(found.node) == len(found.devices) == len(found.reason) == len(found.fragmented_gpus):
        return [f"{count} arrivals, but other numbers of nodes, GPUs, reasons or fragments"]
    cpu, memory = nodes.cpu_milli.copy(), nodes.memory_mib.copy()
    used = np.zeros((len(nodes.names), int(nodes.gpus.max())), dtype=np.int64)
    there = np.arange(used.shape[1]) < nodes.gpus[:, None]
    models = np.array(nodes.models)
    faults = []
    for number, pod in enumerate(found.arrivals.pods.tolist()):
        where = f"arrival {number}, pod {pods.names[pod]}"
        wanted = [model for model in pods.models[pod].split("|") if model]
        node, share = int(found.node[number]), int(pods.gpu_milli[pod])
        if (node < 0) != (found.reason[number] > 0):
            faults.append(f"{where}: node {node} with reason {int(found.reason[number])}")
        if node < 0:
            room = (cpu >= pods.cpu_milli[pod]) & (memory >= pods.memory_mib[pod])
            room &= (there & (used + share <= 1000)).sum(axis=1) >= pods.gpus[pod]
            if wanted:
                room &= np.isin(models, wanted)
            if room.any():
                faults.append(f"{where}: left out, but node {nodes.names[int(np.argmax(room))]} has room")
            continue
        mask = int(found.devices[number])
        devices = [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]
        if len(devices) != pods.gpus[pod] or any(gpu >= nodes.gpus[node] for gpu in devices):
            faults.append(f"{where}: GPUs {devices} of the {nodes.gpus[node]} of node {nodes.names[node]}")
            continue
        if wanted and nodes.models[node] not in wanted:
            faults.append(
                f"{where}: node {nodes.names[node]} has {nodes.models[node]}, not {pods.models[pod]}"
            )
        cpu[node] -= pods.cpu_milli[pod]
        memory[node] -= pods.memory_mib[pod]
        used[node, devices] += share
        for what, free in (("CPU", cpu[node]), ("memory", memory[node])):
            if free < 0:
                faults.append(f"{where}: node {nodes.names[node]} is {-free} short of {what}")
        faults += [
            f"{where}: GPU {gpu} of node {nodes.names[node]} holds {used[node, gpu]} of 1000 thousandths"
            for gpu in devices
            if used[node, gpu] > 1000
        ]
    return faults


def verify_instances(found: InstanceAllocation) -> list[str]:
    """List everything that is wrong with an allocation, from the layouts alone; empty if it holds.

    Examples
    --------
    >>> from gpuplanner.lab.placement import place_instances
    >>> verify_instances(place_instances("A30", ["2g.12gb"] * 3, 1))
    []
    """
    held = [Layout() for _ in range(found.gpus)]
    faults = []
    for number, name in enumerate(found.profiles):
        profile, gpu = found.board.profile(name), int(found.gpu[number])
        if gpu >= 0:
            held[gpu] = Layout((*held[gpu].placements, Placement.of(profile, int(found.start[number]))))
            if not is_valid(found.board, held[gpu]):
                faults.append(f"arrival {number}: GPU {gpu} cannot hold {held[gpu]}")
            continue
        grown = (
            Layout((*layout.placements, Placement.of(profile, start)))
            for layout in dict.fromkeys(held)
            for start in profile.starts
        )
        if any(is_valid(found.board, layout) for layout in grown):
            faults.append(f"arrival {number}: {name} was left out although a GPU has room")
    return faults
