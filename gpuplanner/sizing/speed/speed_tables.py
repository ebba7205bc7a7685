"""Tables of the speed model: what was measured, what a user knows of a job, and how fast it runs on each profile."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from gpuplanner.schemas.kinds import count, meaning, number, text

KINDS = ("training", "inference")
"""What a job does."""

FACTS = ("memory_utilisation", "power_share", "gpu_utilisation")
"""Telemetry of a job on the whole GPU from which its boundness can be told, best first."""


MAX_SPEED = 1.5
"""A slice cannot outrun its board; what is measured above 1 is noise, and above this a mistake."""


class SpeedJobs(dy.Schema):
    """What is known of a class of jobs; everything but its name may be missing."""

    job_class = dy.String(nullable=False, primary_key=True, metadata=meaning("name of the class"))
    kind = dy.Enum(KINDS, nullable=True, metadata=meaning("what its jobs do"))
    memory_gib = number("memory that an instance must have", "GiB", nullable=True)
    gpu_utilisation = number(
        "share of time with a kernel running, on the whole GPU", "0-1", nullable=True, high=1.0
    )
    memory_utilisation = number(
        "share of time with memory busy, on the whole GPU", "0-1", nullable=True, high=1.0
    )
    power_share = number("mean power over the power limit, on the whole GPU", "0-1", nullable=True, high=1.0)
    batch = count("items a step", nullable=True, low=1)
    step_s = dy.Float64(nullable=True, min_exclusive=0, metadata=meaning("a step on the whole GPU", "s"))
    other_batch = count("another batch size, best the largest that fits", nullable=True, low=1)
    other_step_s = dy.Float64(
        nullable=True, min_exclusive=0, metadata=meaning("its step on the whole GPU", "s")
    )
    measured_profile = text("profile on which the speed was measured", nullable=True)
    measured_speed = dy.Float64(
        nullable=True,
        min_exclusive=0,
        max=MAX_SPEED,
        metadata=meaning("speed there over that on the whole GPU"),
    )

    @dy.rule()
    def measured_profile_and_measured_speed_go_together(cls) -> pl.Expr:
        """Both or neither is given."""
        return pl.col("measured_profile").is_null() == pl.col("measured_speed").is_null()

    @dy.rule()
    def two_batch_sizes_need_both_step_times(cls) -> pl.Expr:
        """With another batch size come both batch sizes, which differ, and both step times."""
        rest = (pl.col(name).is_not_null() for name in ("batch", "step_s", "other_step_s"))
        no_other = pl.col("other_batch").is_null() & pl.col("other_step_s").is_null()
        return no_other | (
            pl.all_horizontal(*rest) & (pl.col("batch") != pl.col("other_batch")).fill_null(False)
        )
