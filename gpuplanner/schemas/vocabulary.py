"""Words with one meaning each, used in tables, reports and files alike."""

from __future__ import annotations

WHOLE_GPU = "gpu"
"""Name of the "profile" of a GPU that is not cut (MIG off), as in the resource ``nvidia.com/gpu``."""

SERVICE = "service"
"""Class of jobs that run until somebody ends them: a controller starts them again wherever they end."""

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

USED_FROM = 0.05
"""SM activity from which a GPU counts as used; below it, as idle."""

BUCKETS = (
    "used",
    "unobserved",
    "held_idle",
    "free",
    "fragmented",
    "idle_pending",
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
    Not allocated, and no job waited for it: none waited at all, or those that did asked for more than was left.
fragmented
    Not allocated although a job waited that asked for no more than was left, and in pieces: on no node, or on too
    few, as much was free as it needed there. Claimed only while it is known which node holds what.
idle_pending
    Idle with eligible jobs pending that request no more: as many GPUs as such jobs requested. The causes of waiting
    say why: MIG layouts, the queue, limits, or nothing in the record.
reserved
    Kept out of the pool for somebody, and not held by them.
reconfiguring
    Out of service because its MIG layout was being changed.
down
    Out of service for any other reason.
"""
