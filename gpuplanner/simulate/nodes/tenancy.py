"""Everything that the loop of tenants reads and writes beside the nodes: few tables, so that it compiles quickly."""

from __future__ import annotations

from typing import NamedTuple

from gpuplanner.simulate.tables import Floats, Ints, Table

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
