"""Every state that a fleet may be in, where it is small enough to list them."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.program.fluid import Fluid


def all_states(fluid: Fluid, max_states: int, needed: Counts | None = None) -> Counts | None:
    """Every state that some slot allows, by number of GPUs, or None if there are too many."""
    most = np.full(len(fluid.owner), fluid.problem.gpus)
    if needed is not None:
        first = fluid.pinned if fluid.initial is None else np.maximum(fluid.pinned, fluid.initial)
        most = np.where(fluid.used, np.maximum(needed.max(axis=0), first), most)
    level = fluid.pinned[None].astype(np.int64)
    found = [level]
    while len(level):
        more = level[:, None] + np.eye(level.shape[1], dtype=np.int64)
        level = np.unique(more.reshape(-1, level.shape[1]), axis=0)
        level = level[(level <= most).all(axis=1)]
        level = level[np.any([fluid.allowed(slot, level) for slot in range(fluid.problem.n_slots)], axis=0)]
        found.append(level)
        if sum(map(len, found)) > max_states:
            return None
    return np.concatenate(found)
