"""State arrays of the event loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Table: TypeAlias = np.recarray[Any, Any]
Row: TypeAlias = Any  # one row of a table

EVENT = {"at": float, "who": int}
"""When something happens, and the number of whoever it happens to."""


def table(columns: Mapping[str, type], rows: int) -> Table:
    """A table of zeros.

    Parameters
    ----------
    columns : mapping of str to type
        Type of each column by its name.
    rows : int
        Number of rows.

    Examples
    --------
    >>> table(EVENT, 2).who.tolist()
    [0, 0]
    """
    return np.zeros(rows, np.dtype(list(columns.items()), align=True)).view(np.recarray)


NONE = -1
IMPOSSIBLE = 1 << 60
GONE, COMING, ON = range(3)
OPEN, CORDONED, PARTITIONING = range(3)
BEST, FULLEST, LOWEST, CONSOLIDATE, SPREAD = range(5)
DEPTH = 500
"""Requests behind the head that a backfill looks at: bf_max_job_test of Slurm (slurm.conf(5), SchedulerParameters)."""
STATUS = {
    "now": float,
    "begun": int,
    "arrived": int,
    "waiting": int,  # requests in the queue
    "first": int,  # rank of the first of them; those before it have started
    "kinds": int,  # kinds of requests in the queue
    "hopeful": int,  # of these, such that may still start in this pass, or that room may still come for
    "running": int,
    "logged": int,
    "stamp": int,  # of the search under way: nodes already used by a request bear it
    "last_add": float,
    "behind": int,  # requests that were looked at behind the head in this pass, and could not start
    "changes": int,  # passes, starts, ends and reservations so far: what was found before one of them no longer holds
    "timer": float,  # next instant at which an idle node may go
    "due": float,  # next instant at which a planned change goes on
    "vacated": int,  # nodes under a cordon that the last request has left in this instant
    "closing": int,  # nodes under a cordon on which requests start that end before the change
}
PLANNED = {
    "row": int,  # as it was given
    "planned": float,
    "cordon": float,
    "deadline": float,
    "takes": float,
    "pool": int,
    "drained": int,  # 1 if the node is drained for it
    "follows": int,  # draining change of the node before it; NONE: there is none
    "began": float,
    "emptied": float,
    "ended": float,  # while the node is partitioned: when that will be done
    "outcome": int,  # NONE until it is over
}
CHANGE = {"node": int, "pool": int, "at": float, "on": int}


class InstanceSets(NamedTuple):
    """Legal sets of placed instances of a board, by number: the empty one first, a GPU that is held whole last."""

    add: Ints  # [set, profile] the set with one more, where that keeps the most possible; NONE: there is no place
    slot: Ints  # [set, profile] slice where that one begins
    take: Ints  # [set, slice] the set without the instance that begins there
    room: Ints  # [set, profile] how many more could be added, one after the other
    lose: Ints  # [set, profile] what one more makes impossible, in compute slices over all profiles


class Cuts(NamedTuple):
    """GPUs that are cut as jobs come and go, numbered node by node."""

    pools: Ints  # [pool] 1 if its nodes have such GPUs
    places: InstanceSets
    make_s: float  # for each instance, before its job begins
    whole_s: float  # before a job begins on whole GPUs of which some were cut last
    first: Ints  # [node + 1] first of its GPUs
    state: Ints  # [gpu] what it holds
    paper: Ints  # [gpu] what it would hold if those who wait had what they claim
    owner: Ints  # [gpu, slice] request that holds the instance which begins there; NONE: none does
    was_cut: Ints  # [gpu] 1 if it held an instance last


class NodeWorld(NamedTuple):
    """Everything that the loop reads and writes; requests are numbered in the order of the queue."""

    strict: bool
    passing: bool  # all that fit start
    ranked: bool  # the lowest rank first
    slurm: bool  # who waits reserves whole nodes, and who wakes nodes has them at once
    placement: int
    switching: bool
    flexible: bool  # some GPUs are cut as jobs come and go
    changing: bool  # changes of nodes are planned
    before_change: bool  # requests start under a cordon if they end before the change
    idle_s: float
    lead_s: float
    look_s: float
    cool_s: float
    most_waiting: int  # with more in the queue the play is given up
    kept: Ints  # [pool]
    ready: Floats  # [request]
    run: Floats
    turn: Floats  # [request] in a ranked queue the lowest is first
    limit: Floats
    profile: Ints
    nodes: Ints
    per: Ints
    rest: Ints
    kind: Ints  # requests of one kind ask for the same
    hold: Ints  # [request + 1] first of its holdings
    larger: Ints  # [profile, rank] profiles that serve it: itself, then larger ones, then NONE
    weight: Floats  # [profile]
    line: Ints  # [profile] line with a head in which requests for it wait; NONE: first come first served by itself
    part: Ints  # [profile] partition in Slurm
    apart: Floats  # [tier] how many times as long it takes on nodes so far apart: one, one domain of each tier, or none
    domain: Ints  # [tier, node] narrow tiers first
    gpus: Ints  # [node]
    capacity: Ints  # [node, pool, profile]
    pool: Ints  # [node]
    state: Ints  # [node]
    come: Floats  # [node]
    since: Floats  # [node] idle since
    used: Floats  # [node] GPUs in use, by their weight
    busy: Ints  # [node] holdings on it
    free: Ints  # [node, profile]
    first_of: Ints  # [node] first of the holdings on it
    on_node: Ints  # [holding]
    amount: Ints
    next_of: Ints
    before: Ints
    owner: Ints
    start: Floats  # [request]
    factor: Floats  # [request] how many times as long it runs as on what it asked for
    served: Ints
    queue: Ints  # [rank]
    ends: Table  # [heap]
    chosen: Ints  # [rank] nodes chosen for a start
    given: Ints  # [rank] how much of each
    taken: Ints  # [node] stamp of the last search that used it
    blocked: Ints  # [profile] 1 if a request for it waits; in Slurm [partition]
    head: Ints  # [line] first request that has to wait in this pass and that others may delay; NONE: none has
    wants: Ints  # [line] profile that it is served with
    shadow: Floats  # [line] when it can start at the latest; in Slurm [partition]
    shut: Ints  # [line] 1 if nobody may pass who waits
    wanted: Ints  # [profile] 1 if it would serve one that waits
    of_kind: Ints  # [kind] how many of them wait
    asks: Ints  # [kind] its profile
    dead: Ints  # [kind] 1 if none of them can start any more in this pass
    tried: Ints  # [kind, rank] after how many changes room for it was looked for with that profile
    tight: Floats  # [kind, rank] until when it may not be there beside what waits; minus infinity: there is no room
    tier: Ints  # [kind, rank] of the nodes that were found
    lost: Ints  # [kind] 1 if nothing can come for them any more in this instant
    at: Floats  # [node] when it has room for the head
    moves: Ints  # [node] how often what is on it changed
    asked: Ints  # [line, node] room that was looked for last, as a number; NONE: none yet
    moved: Ints  # [line, node] after how many changes
    then: Floats  # [line, node] when there will be as much, if nothing changes
    in_shadow: Ints  # [node] 1 if the head that was looked at last will start there
    reserved: Floats  # [node] from when on a request that waits has it for itself; infinite: none does
    extra: Ints  # [node] what others may still hold when the head starts
    full: Ints  # [domain] its nodes with room for a part of the request that is looked at
    last: Ints  # [domain] and for what is on its last node
    spare: Ints  # [domain] what is free there
    virtual: Ints  # [node, profile] what is not claimed by requests that wait
    claimed: Ints  # [node]
    idle: Ints  # [pool] idle nodes
    cuts: Cuts
    plan: Table  # [change] by node and time
    plan_of: Ints  # [node + 1] first of its changes
    stage: Ints  # [node] OPEN, CORDONED or PARTITIONING
    drain: Ints  # [node] its draining change that is under way or the next one
    power: Ints  # [node] its next change that drains nothing
    made_for: Ints  # [node] draining change that it was partitioned for last; NONE: it was not
    log: Table
    status: Table  # one row


UNITS = 5040
"""Parts of a GPU in which quotas are counted: divisible by every share of a board that the catalogue has."""
UNLIMITED = 1 << 60
GROUP = {
    "nominal": int,  # units of its own
    "local": int,  # of these, and of what those below it have: what it keeps for itself
    "subtree": int,  # its own and what those below it lend
    "borrow": int,  # of others, at most
    "parent": int,  # NONE: there is none
    "limited": int,  # 1 if quotas bind it
    "usage": int,  # of a team what it holds, of a cohort what those below it hold beyond what they keep
    "reserved": int,  # of a team, within usage: what is kept for those who wait first in this pass
    "over": int,  # 1 if it had no quota of its own left as this pass began
    "shut": int,  # 1 if none of it may pass one who lacks quota in this pass
    "weight": float,
    "used": float,  # decayed GPU-seconds for its weight
}
"""Teams, then cohorts."""
TENANT_JOB = {
    "team": int,
    "tier": int,
    "row": int,  # by which failures are drawn
    "units": int,
    "hours": int,  # row of the hours in which it may start; NONE: at any time
    "marked": int,  # 1 if it is to be stopped for the one that is looked at
    "starts": int,
    "fails": int,  # 1 if its present run ends in a failure
    "stops": int,
    "failures": int,
    "left": float,  # work still to do
    "charge": float,  # time that the next start takes on top
    "every": float,  # work between checkpoints; 0: saved all the time; infinite: never
    "overhead": float,  # what a stop costs
    "mtbf": float,  # time between failures, in the middle; infinite: none
    "since": float,  # it waits since
    "begun": float,  # when it last got its nodes
    "first": float,  # when it first began, NaN before
    "end": float,
    "queued": float,  # time in the queue so far
    "lost": float,  # time it held its nodes for nothing that lasts
    "slowed": float,  # and longer, or less long below 0, than on what it asked for
    "barred": float,  # instant in which its team had to give back: it stops nobody then
}
STOPPED = {"request": int, "failed": int, "begun": float, "at": float, "lost": float}
TENANCY_STATUS = {
    "fair": int,
    "by_tier": int,
    "reclaim": int,
    "keep": int,  # 1 if who waits first keeps its quota
    "seed": int,
    "decay": float,  # rate at which use is forgotten [1/s]
    "min_run": float,
    "write": float,  # time that writing a checkpoint takes
    "restart": float,  # what a failure costs
    "wake": float,  # when somebody may be stopped who is spared now
    "stuck": int,  # request that was started too often, or NONE
    "stopped": int,  # rows of ``stopped`` in use
    "victims": int,  # just stopped, and not yet in the queue
    "lacking": int,  # last in the queue: those who lack quota
    "heads": int,  # who waits first, and has quota kept
    "full": int,  # nodes with room for a part of the request that is looked at
    "last": int,  # nodes with room for what is on its last node
}


class Tenancy(NamedTuple):
    """Teams and cohorts, what becomes of requests that may be stopped, and rules; rows of requests as in the nodes."""

    groups: Table  # [team or cohort]
    jobs: Table  # [request]
    victims: Ints  # [rank]
    aside: Ints  # [rank] who lacks quota in this pass
    heads: Ints  # [rank] who waits first
    spare: Ints  # [rank] room to sort
    hours: Floats  # [hours, rank] when they begin and end, in turn; infinite in the end
    passed: Ints  # [hours] how many of these are over
    stopped: Table  # [row] runs that were stopped; the loop pauses for it to be emptied
    status: Table  # one row
