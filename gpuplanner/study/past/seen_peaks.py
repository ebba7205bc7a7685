"""What was seen beside what is predicted: peaks of jobs, the slices that follow, and which of the two was right."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.sizing.past_use import asked_and_used
from gpuplanner.sizing.predict.observed import smallest_that_fits
from gpuplanner.sizing.predict.table import predict_table
from gpuplanner.study.past.history import load_trace


def peaks_of_folder(folder: str, board: str) -> pl.DataFrame:
    """Peaks of the jobs of a dataset, with the profile that its telemetry says is enough."""
    trace = load_trace(folder)
    jobs = asked_and_used(trace.jobs, {None: board}, samples=trace.samples).drop_nulls("memory_peak_gib")
    program = pl.col("job_class").fill_null("-")
    found = jobs.select("profile_needed", job="job_id", program=program, peak_gib="memory_peak_gib")
    return found.unique("job", maintain_order=True)


def seen_and_predicted(table: pl.DataFrame, board: str) -> pl.DataFrame:
    """Slices by what was seen, with what is predicted of the same rows where they describe a model."""
    lacking = [name for name in ("job", "peak_gib") if name not in table.columns]
    if lacking:
        raise TraceFormatError(
            message("peaks seen", "columns job and peak_gib", f"no {', '.join(lacking)}", "Add them.")
        )
    if "program" not in table.columns:
        table = table.with_columns(program=pl.lit("-"))
    ran = (
        [pl.col("ran").cast(pl.String).str.to_lowercase().is_in(["true", "yes", "1"])]
        if "ran" in table.columns
        else []
    )
    seen = table.with_columns(pl.col("peak_gib").cast(pl.Float64, strict=False), *ran)
    needed = [
        name
        for name in ("program", "job", "peak_gib", "ran_profile", "ran", "profile_needed")
        if name in seen.columns
    ]
    found = smallest_that_fits(seen.select(needed), board)
    if "model" not in table.columns:
        return found
    predicted = predict_table(table).select("job", "predicted_gib", "upper_gib", "level", "missing")
    both = found.join(predicted, on="job", how="left")
    close = pl.col("peak_gib").is_between(
        pl.col("predicted_gib") ** 2 / pl.col("upper_gib"), pl.col("upper_gib")
    )
    below = (pl.col("peak_is") == "upper bound") & (pl.col("predicted_gib") <= pl.col("peak_gib"))
    right = (
        pl.when(close).then(pl.lit("both")).when(below).then(pl.lit("prediction")).otherwise(pl.lit("seen"))
    )
    return both.with_columns(right=pl.when(pl.col("predicted_gib").is_null()).then(None).otherwise(right))
