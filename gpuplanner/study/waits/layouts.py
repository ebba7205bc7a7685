"""The layout of today's GPUs on which jobs wait least, each GPU partitioned into instances of one profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuplanner.simulate.nodes.machine import NodeFleet
from gpuplanner.simulate.tables import Floats, Ints
from gpuplanner.study.waits.draws import simulate_waits
from gpuplanner.study.waits.readings import WaitModel

TINY_H = 0.01
"""Waiting below so many hours is none: more GPUs of that profile are not looked at [h]."""


def uniform_fleet(fleet: NodeFleet, profile: int, gpus: int, instances: int, per_node: int) -> NodeFleet:
    """So many GPUs, all partitioned into instances of one profile, on nodes of the usual size.

    Examples
    --------
    >>> uniform_fleet(NodeFleet.whole([8]), 0, 12, 1, 8).capacity[:, 0, 0].tolist()
    [8, 4]
    """
    nodes, rest = divmod(gpus, per_node)
    sizes = np.array([per_node] * nodes + [rest] * (rest > 0), np.int64)
    capacity = np.zeros((len(sizes), 1, len(fleet.profiles)), np.int64)
    capacity[:, 0, profile] = sizes * instances
    return replace(fleet, gpus=sizes, capacity=capacity, first=np.zeros(len(sizes), np.int64))


def best_layout(model: WaitModel) -> dict[str, int] | None:
    """Share out today's GPUs among profiles, so that jobs wait least; None for one profile, or if a job never fits.

    Profile → GPUs partitioned into it.

    Requests for different profiles do not wait for each other, so each profile is simulated by itself on every
    number of GPUs, and the shares are found by dynamic programming.
    """
    asked, waits = model.asked, model.waits
    board, fleet, per_node = asked.board, asked.fleet, asked.usual_node
    total = int(asked.nodes.total)
    used = np.unique(asked.granted.profile[waits.judged]).tolist()
    if len(set(used) | set(np.flatnonzero(fleet.capacity.any(axis=(0, 1))).tolist())) < 2:
        return None
    costs: list[Floats] = []
    for profile in used:
        name = fleet.profiles[profile]
        instances = 1 if profile == 0 else board.profile(name).max_instances
        costs.append(hours_by_gpus(model, profile, total, instances, per_node))
    shares, _ = share_out(costs, total)
    names = (fleet.profiles[profile] for profile in used)
    return dict(zip(names, shares, strict=True)) if shares else None


def hours_by_gpus(model: WaitModel, profile: int, most: int, instances: int, per_node: int) -> Floats:
    """Hours that jobs of one profile wait on 0 to ``most`` GPUs of it; once nobody waits, more end nothing."""
    asked, waits = model.asked, model.waits
    rows: Ints = np.flatnonzero(asked.granted.profile == profile)
    judged = waits.judged[rows]
    found = np.full(most + 1, np.inf)
    for gpus in range(1, most + 1):
        fleet = uniform_fleet(asked.fleet, profile, gpus, instances, per_node)
        waited = simulate_waits(asked, waits, fleet, rows, waits.arrival_s[rows])
        if np.isinf(waited[judged]).any():
            continue  # somebody never starts
        found[gpus] = waited[judged].sum() / 3600
        if found[gpus] < TINY_H:
            found[gpus:] = found[gpus]
            break
    return found


def share_out(costs: list[Floats], total: int) -> tuple[list[int], float]:
    """Share a number of GPUs among kinds at least cost, and of equal costs with fewest GPUs.

    Examples
    --------
    >>> share_out([np.array([9.0, 3, 0, 0]), np.array([9.0, 1, 1, 1])], 3)
    ([2, 1], 1.0)
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for cost in costs:
        longer: dict[int, tuple[float, list[int]]] = {}
        for used, (value, how) in best.items():
            for gpus in range(total - used + 1):
                if np.isfinite(cost[gpus]) and value + cost[gpus] < longer.get(used + gpus, (np.inf, []))[0]:
                    longer[used + gpus] = (value + float(cost[gpus]), [*how, gpus])
        best = longer
    value, how = min(best.values(), key=lambda one: (round(one[0], 2), sum(one[1])), default=(np.inf, []))
    return how, value
