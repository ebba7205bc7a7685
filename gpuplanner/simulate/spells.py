"""When jobs held GPUs: one row for every time that a job waited for some and then held them."""

from __future__ import annotations

import dataframely as dy

ENDINGS = ("finished", "preempted", "failed", "resized", "next phase")


class Spells(dy.Schema):
    """One spell: a job waits, and then holds the same GPUs without a break. Every job has at least one."""

    job_id = dy.String(nullable=False)
    tenant = dy.String(nullable=False)
    since_s = dy.Float64(nullable=False)
    """It waited from then on: its submission, or the end of its spell before."""
    start_s = dy.Float64(nullable=True)
    """It held GPUs from then on; null if it never got any more."""
    end_s = dy.Float64(nullable=True)
    profile = dy.String(nullable=False)
    """What it asked for."""
    served_on = dy.String(nullable=True)
    gpus = dy.Int32(nullable=False)
    """What it held; what it asked for if it never got any more."""
    node = dy.Int32(nullable=True)
    """The first one."""
    gpu = dy.Int32(nullable=True)
    lost_s = dy.Float64(nullable=False)
    """Time of the spell which was for nothing that lasts: overhead, checkpoints, work done again, slow-downs."""
    ended = dy.Enum(ENDINGS, nullable=True)
    """Why it ended; ``"resized"``: with other GPUs in the same instant."""
