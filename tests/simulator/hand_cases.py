"""Short ways to write requests down and to read what became of them."""

from __future__ import annotations

import math

import numpy as np

from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests

PROFILES = ("gpu", "1g.10gb", "2g.20gb", "3g.40gb")
SHARES = (1.0, 1 / 7, 2 / 7, 3 / 7)
WHOLE, SEVENTHS, HALVES, OFF = {"gpu": 1}, {"1g.10gb": 7}, {"3g.40gb": 2}, {}
LARGER = ((), (2, 3), (3,), ())


def requests_of(*rows, per_node=8, limit_s=None):
    """Rows of (name, ready, run, amount, profile); limits equal run times unless given.

    Of GPUs that are more than a node has, each node but the last gives all that it has.
    """
    _, ready, run, amount, profile = zip(*rows, strict=True)
    total = np.array(amount)
    return NodeRequests(
        ready, ready, run, run if limit_s is None else limit_s, [PROFILES.index(name) for name in profile],
        total, -(-total // per_node), np.minimum(total, per_node),
    )  # fmt: skip


def fleet_of(*pools, nodes=1, first=0):
    """Nodes of which each GPU has one of these layouts, in each pool; a layout is a mapping of profiles to counts."""
    offered = [[sum(gpu.get(name, 0) for gpu in pool) for name in PROFILES] for pool in pools]
    return NodeFleet(
        PROFILES, [len(pools[0])] * nodes, [offered] * nodes, [first] * nodes, np.array(SHARES)
    )  # fmt: skip


def starts_of(rows, outcome):
    """When each request starts, by its name; None: never."""
    found = [None if math.isnan(start) else start for start in outcome.start_s.tolist()]
    return dict(zip((row[0] for row in rows), found, strict=True))


def pools_of(outcome, node):
    """Pool of a node over time, as (from, until, pool)."""
    return outcome.power_intervals.filter(node=node).sort("from_s").select("from_s", "until_s", "pool").rows()
