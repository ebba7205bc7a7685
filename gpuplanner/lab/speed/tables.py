"""Table of what was measured: one setting of one model on one profile a row."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from gpuplanner.schemas.kinds import meaning, number
from gpuplanner.sizing.speed.tables import KINDS

OUTCOMES = ("measured", "does not fit", "not measured")
"""What became of a setting. A job that does not fit a slice is not slow on it: it has no speed there."""

JOB = ("source", "kind", "board", "model", "batch", "processes")
"""Columns of :class:`Measurements` that name a job: what was run, without where."""


class Measurements(dy.Schema):
    """One setting of one model on one profile a row."""

    source = dy.String(nullable=False, primary_key=True, metadata=meaning("data set"))
    kind = dy.Enum(KINDS, nullable=False, primary_key=True)
    board = dy.String(nullable=False, primary_key=True, metadata=meaning("board of the catalogue"))
    model = dy.String(nullable=False, primary_key=True, metadata=meaning("network that was run"))
    batch = dy.Int64(nullable=False, min=1, primary_key=True, metadata=meaning("items a step"))
    processes = dy.Int64(nullable=False, min=1, primary_key=True, metadata=meaning("sharing the instance"))
    profile = dy.String(nullable=False, primary_key=True, metadata=meaning("MIG profile of the board"))
    outcome = dy.Enum(OUTCOMES, nullable=False, metadata=meaning("what became of it"))
    step_s = dy.Float64(nullable=True, min_exclusive=0, metadata=meaning("median time of a step", "s"))
    step_spread = number("median deviation of the epochs' medians, over the median", nullable=True)
    gpu_utilisation = number("share of time with a kernel running", "0-1", nullable=True, high=1.0)
    memory_utilisation = number(
        "share of time with memory being read or written", "0-1", nullable=True, high=1.0
    )
    power_share = number("mean power over the power limit", "0-1", nullable=True, high=1.0)

    @dy.rule()
    def step_s_is_there_if_and_only_if_measured(cls) -> pl.Expr:
        """A step time stands in every row that was measured, and in no other."""
        return pl.col("step_s").is_not_null() == (pl.col("outcome") == "measured")
