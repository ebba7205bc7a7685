"""When jobs that were given GPUs anew held them."""

from __future__ import annotations

import polars as pl

from gpuplanner.lab.gangs.spells import in_turn
from gpuplanner.schemas import WHOLE_GPU


def placed_spells(jobs: pl.DataFrame, places: pl.DataFrame, restart_s: float = 0.0) -> pl.DataFrame:
    """Make the table of spells of jobs that were given GPUs anew, of who held what."""
    held = places.group_by("job_id", "start_s", "end_s", maintain_order=True).agg(
        pl.col("node", "gpu_type").first(), pl.col("gpus").sum()
    )
    start, end = pl.col("start_s"), pl.col("end_s")
    before, then = end.shift(1).over("row"), start.shift(-1).over("row")
    spells = (
        jobs.select("row", "job_id", "tenant", "submit_s", profile=pl.lit(WHOLE_GPU))
        .join(held, on="job_id")
        .sort("row", "start_s", "end_s")
        .with_columns(
            lost_s=pl.when(before.is_null()).then(0.0).otherwise((end - start).clip(upper_bound=restart_s)),
            ended=pl.when(then.is_null())
            .then(pl.lit("finished"))
            .when(then == end)
            .then(pl.lit("resized"))
            .otherwise(pl.lit("preempted")),
        )
    )
    return in_turn(spells).with_columns(spells["gpu_type"])
