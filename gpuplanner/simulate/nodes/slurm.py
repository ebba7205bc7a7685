"""What Slurm does otherwise: who waits reserves whole nodes, and who wakes nodes has them from then on.

Backfill of Slurm keeps one reservation a partition (``bf_job_part_count_reserve=1``): of the nodes that the first job
which has to wait will start on, all of each, so that on a cut node it holds up jobs of other profiles as well. Whole
GPUs and slices are a partition each. Jobs are given nodes that sleep as they are given others, after those that are on
and those that come; these wake, and the job stays with them.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called
from gpuplanner.simulate.nodes.coming import bring, pool_with
from gpuplanner.simulate.nodes.node_world import FULLEST, GONE, LOWEST, NONE, NodeWorld
from gpuplanner.simulate.nodes.shadow import cast_shadow


@called
def choose_nodes(w: NodeWorld, request: int, profile: int, until: float) -> bool:
    """Choose nodes for a request that may be there until an instant by its limit; infinite: nobody waits."""
    s, count = w.status[0], w.nodes[request]
    s.stamp += 1
    for rank in range(count):
        need = w.per[request] if rank < count - 1 else w.rest[request]
        best, awake, least = NONE, GONE, np.inf
        for node in range(len(w.gpus)):
            if w.taken[node] == s.stamp or w.state[node] < awake:
                continue
            if w.state[node] == GONE:
                if not w.switching or pool_with(w, node, profile, need) == NONE:
                    continue
            elif w.free[node, profile] < need:
                continue
            if until < np.inf and until > w.reserved[node]:
                continue
            key = 0.0
            if w.state[node] != GONE and w.placement != LOWEST:
                key = -w.used[node] if w.placement == FULLEST else float(w.free[node, profile])
            if best == NONE or w.state[node] > awake or key < least:
                best, awake, least = node, w.state[node], key
        if best == NONE:
            return False
        w.taken[best] = s.stamp
        w.chosen[rank], w.given[rank] = best, need
    return True


@called
def wake(w: NodeWorld, request: int, profile: int) -> None:
    """Wake those of the chosen nodes that sleep."""
    for rank in range(w.nodes[request]):
        node = w.chosen[rank]
        if w.state[node] == GONE:
            bring(w, node, pool_with(w, node, profile, w.given[rank]))


@called
def reserve(w: NodeWorld, request: int) -> bool:
    """Reserve the nodes on which a request can start first, all of each; False if no nodes will do."""
    s = w.status[0]
    cast_shadow(w, request)
    for node in range(len(w.gpus)):
        if w.in_shadow[node]:
            w.reserved[node] = min(w.reserved[node], s.shadow)
    return bool(s.shadow < np.inf)
