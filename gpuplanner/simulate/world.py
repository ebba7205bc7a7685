"""Everything the compiled loop reads and writes, as a few flat tables.

Jobs are numbered in order of arrival, GPUs node by node. Profile 0 and layout 0 are the whole GPU. Instants
and durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Table: TypeAlias = np.recarray[Any, Any]

WHOLE = 0
"""Number of the profile, and of the layout, of a GPU that is not cut."""
NONE = -1
"""No job, no node, no layout, no slot yet."""
ON, DRAINING, RECONFIGURING, OFF = range(4)
STATES = ("on", "draining", "reconfiguring", "off")

JOB = {
    "submit": float,  # not below 0
    "run": float,  # on a whole GPU, or on an instance that is large enough
    "limit": float,
    "sms_needed": float,  # 0 where speed does not depend on the instance
    "start": float,  # NaN until it starts
    "end": float,
    "gpus": int,
    "profile": int,
    "gpu": int,  # (first) GPU that it holds
    "served": int,  # profile of the instance that it holds
    "behind": int,  # next job in its queue
}
GPU = {
    "layout": int,  # present one; while reconfiguring, the coming one; NONE if off
    "state": int,  # ON, RECONFIGURING or OFF; one that drains is ON and leaving
    "leaving": int,  # 1 if marked for another layout
    "busy": int,  # compute slices in use
    "next": int,  # next GPU of the job that holds it whole
}
NODE = {
    "idle": int,  # whole GPUs on offer
    "lowest": int,  # no GPU below this one is idle, whole and on offer
    "cut": int,  # 1 if it has cut GPUs, as the slot begins
    "ceiling": int,  # whole GPUs that jobs passing the head may take
    "future": int,  # whole GPUs on offer once the jobs looked at have ended
}
PROFILE = {
    "slices": int,  # compute slices
    "sms": int,
    "available": int,  # idle instances on offer
    "lowest": int,  # no GPU below this one offers an instance
    "head": int,  # first job waiting
    "tail": int,  # last job waiting
}
LAYOUT = {
    "present": int,  # GPUs that have or get it and are not leaving
    "surplus": int,  # GPUs above the target, as the slot begins
}
IDLE = {
    "nodes": int,  # nodes with that many idle whole GPUs
    "lowest": int,  # no node below this one has that many
}
EVENT = {"at": float, "who": int}  # job or GPU
CHANGE = {"gpu": int, "at": float, "layout": int, "state": int}
STATUS = {
    "now": float,
    "slot": int,
    "arrived": int,
    "running": int,
    "holding": int,
    "first_coming": int,
    "coming": int,
    "logged": int,
}


class World(NamedTuple):
    """Rules, jobs, machine, and what comes next."""

    per_node: int
    reconfigure_s: float
    easy: bool
    until_s: float
    slot_starts: Floats  # [slot]
    targets: Ints  # [slot, layout] GPUs
    instances: Ints  # [layout, profile] instances on one GPU
    substitutes: Ints  # [profile, rank] larger profiles, smallest first, then NONE
    jobs: Table  # [job]
    gpus: Table  # [gpu]
    free: Ints  # [gpu, profile] idle instances, on offer or not
    nodes: Table  # [node]
    idle: Table  # [number of idle whole GPUs]
    profiles: Table  # [profile]
    layouts: Table  # [layout]
    chosen: Ints  # [rank] nodes chosen for a start
    ends: Table  # [heap] running jobs by end
    due: Table  # [rank] jobs on whole GPUs by start + limit, ascending; for EASY
    coming: Table  # [ring] GPUs being reconfigured: first come, first done
    order: Table  # [gpu] room to sort GPUs
    log: Table  # [row] changes of state
    status: Table  # one row


def table(columns: Mapping[str, type], rows: int) -> Table:
    """A table of zeros.

    Examples
    --------
    >>> table(EVENT, 2).who.tolist()
    [0, 0]
    """
    return np.zeros(rows, np.dtype(list(columns.items()), align=True)).view(np.recarray)
