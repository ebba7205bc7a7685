"""Everything the compiled loop reads and writes, as a few flat tables.

Jobs are numbered in order of arrival, GPUs node by node. Profile 0 and layout 0 are the whole GPU. Instants
and durations are in seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuplanner.simulate.tables import EVENT as EVENT
from gpuplanner.simulate.tables import Floats as Floats
from gpuplanner.simulate.tables import Ints as Ints
from gpuplanner.simulate.tables import Row as Row
from gpuplanner.simulate.tables import Table as Table
from gpuplanner.simulate.tables import table as table

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
    "since": float,  # its latest start, where jobs may be evicted
    "end": float,
    "lost": float,  # time of its stay that restarts took, and work that was done again
    "evicted": int,  # how often it was
    "gpus": int,
    "profile": int,
    "gpu": int,  # (first) GPU that it holds
    "served": int,  # profile of the instance that it holds
    "behind": int,  # next job in its queue
    "before": int,  # phase before this one; NONE if it is the first
    "then": int,  # next phase; NONE if it is the last
}
GPU = {
    "layout": int,  # present one; while reconfiguring, the coming one; NONE if off
    "held": int,  # how it is cut while it is off
    "state": int,  # ON, RECONFIGURING or OFF; one that drains is ON and leaving
    "leaving": int,  # 1 if marked for another layout
    "busy": int,  # compute slices in use
    "next": int,  # next GPU of the job that holds it whole
    "operation": int,  # under way on it; NONE if none is
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
    "kept": int,  # GPUs that are off and cut like this, as the slot begins, where they are parked
}
IDLE = {
    "nodes": int,  # nodes with that many idle whole GPUs
    "lowest": int,  # no node below this one has that many
}
CHANGE = {"gpu": int, "at": float, "layout": int, "state": int}
STATUS = {
    "now": float,
    "slot": int,
    "arrived": int,
    "running": int,
    "holding": int,
    "coming": int,
    "logged": int,
    "operation": int,  # first operation that has not begun
    "settled": int,  # all operations before this one are over
}
OPERATION = {
    "first": int,  # lowest GPU
    "gpus": int,
    "slot": int,  # whose layouts it makes
    "planned": float,
    "cordon": float,  # when it is to begin
    "deadline": float,
    "began": float,
    "drained": float,
    "ended": float,
    "stage": int,
    "then": int,  # the next one on the same GPUs, if it is due; NONE if there is none
    "outcome": int,  # NONE until it is over
}
DONE, GIVEN_UP, EVICTED = range(3)
OUTCOMES = ("done", "given up", "evicted")
"""How an operation may end."""


class World(NamedTuple):
    """Rules, jobs, machine, and what comes next.

    A job with several phases has a row for each, linked in their order. The first rows are the first phases, in
    order of arrival; of the others ``submit`` is when the phase before ended.
    """

    per_node: int
    arrivals: int
    restart_s: float
    easy: bool
    until_s: float
    slot_starts: Floats  # [slot]
    targets: Ints  # [slot, layout] GPUs
    parked: Ints  # [slot, layout] GPUs that are off and keep the layout; without rows where they are released
    instances: Ints  # [layout, profile] instances on one GPU
    substitutes: Ints  # [profile, rank] larger profiles, smallest first, then NONE
    change_s: Floats  # [layout before, layout after] time that an idle GPU takes
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
    coming: Table  # [heap] GPUs being reconfigured
    order: Table  # [gpu] room to sort GPUs
    log: Table  # [row] changes of state
    status: Table  # one row
    operations: Table  # [operation] by cordon
    numbered: Ints  # [slot, gpu] planned layout; without rows where GPUs change one by one
    cut: Ints  # [slot, gpu] how it is to be cut then, on or off
    evict: bool  # what a time limit does
    before_change: bool  # whether jobs that end before a change start on cordoned GPUs
    checkpoint_s: float  # work of an evicted job that is kept is a multiple of it
