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
Row: TypeAlias = Any  # one row of a table

WHOLE = 0
"""Number of the profile, and of the layout, of a GPU that is not cut."""
NONE = -1
"""No job, no node, no layout, no slot yet."""
ON, DRAINING, RECONFIGURING, OFF, CHANGING = range(5)
STATES = ("on", "draining", "reconfiguring", "off", "changing")
PROFILE_BITS = 4
"""Placements in the log are one number: for each slice the profile of the instance that begins there."""

JOB = {
    "submit": float,  # not below 0
    "run": float,  # on a whole GPU, or on an instance that is large enough
    "limit": float,
    "sms_needed": float,  # 0 where speed does not depend on the instance
    "kind": int,  # class of jobs whose speeds are known; NONE: speed goes by SMs
    "start": float,  # NaN until it starts
    "since": float,  # its latest start, where jobs may be evicted
    "end": float,
    "lost": float,  # time of its stay that restarts took, and work that was done again
    "evicted": int,  # how often it was
    "gpus": int,
    "profile": int,
    "gpu": int,  # (first) GPU that it holds
    "slice": int,  # where on the GPU its instance begins; NONE under a calendar
    "served": int,  # profile of the instance that it holds
    "behind": int,  # next job in its queue
    "before": int,  # phase before this one; NONE if it is the first
    "then": int,  # next phase; NONE if it is the last
    "reserved": int,  # 1 + the lowest GPU that is reserved for it; 0 if none is
    "pending": int,  # GPUs reserved for it that are not whole and idle yet
    "drains": int,  # 1 if jobs have to end on some of them before
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
    "coming": int,  # instances that are being made on demand
    "hopeless": int,  # 1 if no GPU can be cut for it, but for those that changed since; of WHOLE 1 + such a job
    "draining": int,  # 1 while a GPU is drained for it
    "tried": int,  # 1 if its queue was looked at in this instant
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
EVENT = {"at": float, "who": int}  # job, GPU, or GPU and slice
CHANGE = {"gpu": int, "at": float, "layout": int, "state": int}
STATUS = {
    "now": float,
    "slot": int,
    "arrived": int,
    "running": int,
    "holding": int,
    "coming": int,
    "logged": int,
    "touched": int,
    "claim": int,
    "unreserved": int,  # no job on whole GPUs before this one is without a reservation
    "drains": int,  # jobs that GPUs in use are reserved for
    "retry": float,  # when one for which nothing could be reserved may wait for longer drains
    "ready": int,  # jobs whose reserved GPUs are all whole and idle
    "idle": int,  # GPUs on and wholly idle, reserved for nobody
    "operation": int,  # first operation that has not begun
    "settled": int,  # all operations before this one are over
    "spent": float,
    "day": float,
}
PLACED = {
    "cut": int,  # slices of all instances, as bits
    "held": int,  # slices of instances that jobs hold
    "kept": int,  # slices of instances that are being made
    "drain": int,  # slices that are drained: nothing starts on them
    "drained_for": int,  # profile of what is made there then
    "drained_at": int,  # slice where it will begin
    "making": int,  # instances that are being made; 1 if the GPU is being made whole
    "ready": float,  # when its last change is done
    "switched": float,  # when the last change began
    "switches": int,  # changes begun on that day
    "rebooting": int,  # 1 while its node is
    "effort": int,  # how far it is from being whole and idle
    "owner": int,  # job on whole GPUs that it is reserved for; NONE if it is for all
    "idle": int,  # 1 if it counts as idle
    "until": float,  # when by its limit the last job on it is over
    "touched": int,  # 1 if it changed in this instant
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


class Slicing(NamedTuple):
    """Placed instances and the rules of cutting on demand; without rows under a calendar."""

    patience_s: float
    drain_after_s: float  # infinite: nothing is drained
    switches_per_day: int  # NONE: no limit
    keep_whole: int  # GPUs, from the lowest number up
    one_by_one: bool  # instances are made beside what is there; else all of a GPU anew
    change_s: float
    instance_s: float  # for each instance removed or made
    reboot_s: float  # instead of both where MIG mode changes; 0 where it needs no reboot
    starts: Ints  # [profile, rank] slices where an instance may begin, then NONE
    spans: Ints  # [profile] its slices as bits, from slice 0
    open: Ints  # [profile, slices taken as bits] 1 if there is a start left
    loss: Floats  # [slices taken as bits] what they cost by fragmentation
    takes: Ints  # [profile, resource]
    budget: Ints  # [resource] what a GPU has
    room: Ints  # [resource] room to count
    cuts: (
        Ints  # [gpu, slice] profile of the instance that begins there, made or being made; NONE if none does
    )
    gpus: Table  # [gpu] PLACED
    touched: Ints  # [rank] GPUs that changed in this instant


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
    slowdown: Floats  # [kind, profile] run time on an instance over that on a whole GPU
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
    coming: Table  # [heap] GPUs being reconfigured, or instances being made
    order: Table  # [gpu] room to sort GPUs
    log: Table  # [row] changes of state
    status: Table  # one row
    slicing: Slicing
    operations: Table  # [operation] by cordon
    numbered: Ints  # [slot, gpu] planned layout; without rows where GPUs change one by one
    cut: Ints  # [slot, gpu] how it is to be cut then, on or off
    evict: bool  # what a time limit does
    before_change: bool  # whether jobs that end before a change start on cordoned GPUs
    checkpoint_s: float  # work of an evicted job that is kept is a multiple of it


def table(columns: Mapping[str, type], rows: int) -> Table:
    """A table of zeros.

    Examples
    --------
    >>> table(EVENT, 2).who.tolist()
    [0, 0]
    """
    return np.zeros(rows, np.dtype(list(columns.items()), align=True)).view(np.recarray)
