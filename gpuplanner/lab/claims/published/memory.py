"""Peak memory of a training job, said beforehand."""

from __future__ import annotations

import polars as pl

from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.verdict import NOT_YET

MEASUREMENTS = "memory/memory_measurements.csv"
NOTHING = "Nothing in this package predicts memory from a model yet."


def measure(conditions: Conditions) -> Measured:
    """Count the published measurements that a prediction will be held against; nothing predicts memory yet."""
    path = None if conditions.public is None else conditions.public / MEASUREMENTS
    if path is None or not path.is_file():
        return Measured(NOT_YET, NOTHING)
    waiting = pl.read_csv(path, infer_schema_length=None)
    by_source = waiting.group_by("source").agg(
        measurements=pl.len(),
        models=pl.col("model").n_unique(),
        with_a_peak=pl.col("measured_peak_gib").is_not_null().sum(),
        out_of_memory=(pl.col("status") != "ok").sum(),
    )
    peaks = int(by_source["with_a_peak"].sum())
    why = f"{NOTHING} {peaks} published peaks of {by_source.height} sources wait for what will."
    return Measured(NOT_YET, why, tables={"measurements that are waiting": by_source.sort("source")})


CLAIM = PublishedClaim(
    name="memory",
    title="Peak memory",
    words="The peak memory of a training job is predicted from its model and settings with an accuracy above 92 %.",
    source="Frenzy, arXiv 2412.14479, abstract; accuracy is 1 less the relative error",
    on="published measurements of peak memory",
    takes="a second",
    measure=measure,
)
