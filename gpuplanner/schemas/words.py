"""Words with one meaning each, used in tables, reports and files alike."""

from __future__ import annotations

WHOLE_GPU = "gpu"
"""Name of the "profile" of a GPU that is not cut (MIG off), as in the resource ``nvidia.com/gpu``."""

JOB_STATES = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "PREEMPTED",
    "RUNNING",
    "PENDING",
    "UNKNOWN",
)
"""States of a job attempt. ``UNKNOWN``: the source has no state column."""

UNSTARTED_STATES = ("PENDING",)
"""States in which a job holds no GPU yet."""

USED_FROM = 0.05
"""SM activity from which a GPU counts as used; below it, as idle."""

BUCKETS = (
    "used",
    "unobserved",
    "held_idle",
    "free",
    "fragmented",
    "reserved",
    "reconfiguring",
    "down",
)
"""Where installed GPU-time goes; every installed GPU-hour is in exactly one bucket.

used
    Allocated, and the device was seen to work.
unobserved
    Allocated, and no activity was measured: neither used nor idle may be claimed.
held_idle
    Allocated, and the device was seen not to work.
free
    Not allocated, while no job waited or one that waited could have used it.
fragmented
    Not allocated although jobs waited, and of no use to any of them. Where the nodes of jobs are not known, all
    that is left while a job waits.
reserved
    Kept out of the pool for somebody, and not held by them.
reconfiguring
    Out of service because its MIG layout was being changed.
down
    Out of service for any other reason.
"""
