"""What is wrong with data as read: which figures each finding moves, and on which days rows are missing."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.dataset import (Stated)
from gpuplanner.inbox.telemetry.coverage import coverage
from gpuplanner.study.past.history import load_trace

FIGURES = {
    "GPU-hours": ("gpu-hour", "every figure", "capacity", "hold no gpu", "same job twice", "number of gpus"),
    "demand": ("demand", "every figure", "ask for no gpu", "tenant", "same job twice", "number of gpus"),
    "queueing delays": ("queue", "every figure"),
    "run times": ("run time", "every figure"),
    "failures": ("failure", "how they ended", "state is", "every figure"),
    "activity": ("activity", "reading", "sample", "means of the worker", "these days", "observed"),
    "forecasts": ("forecast", "days of the week", "calendar"),
    "cost": ("cost", "charge", "price", "bill"),
}
"""Figures that findings speak of, and the words by which the effect of a finding names them."""
OTHER, NONE = "other", "none"
INTAKE = pl.Schema({"what": pl.String, "day": pl.Date, "rows": pl.Int64})
"""Columns of :func:`intake`."""
SUBMITTED = "jobs submitted"
_DATE = r"(?:19|20)\d\d-[01]\d-[0-3]\d"


@dataclass(frozen=True, eq=False)
class DataQuality:
    """The quality report of a folder, with what is needed to draw it.

    - ``read``: Source, row counts, span, files.
    - ``findings``: As in the quality report: ``check, severity, rows, effect, example``, gravest first.
    - ``coverage``: Observed share of each node and day, see :func:`gpuplanner.inbox.telemetry.coverage.coverage`;
      None without telemetry.
    - ``intake``: Jobs and rejected rows by day, see :func:`intake`.
    """

    read: Stated
    findings: pl.DataFrame
    coverage: pl.DataFrame | None
    intake: pl.DataFrame


def data_quality(data: str | Dataset) -> DataQuality:
    """Gather the quality report of jobs or telemetry.

    Examples
    --------
    >>> found = data_quality("sample")
    >>> found.findings["check"].to_list(), found.coverage["node"].n_unique()
    (['running when the observation ended'], 8)
    """
    read = load_trace(data, columns=["submit_time"]) if isinstance(data, str) else data
    seen = read.coverage
    if seen is None and read.samples is not None:  # of an earlier version
        seen = coverage(read.samples)
    jobs = read.tables.get("jobs", pl.DataFrame(schema={"submit_time": pl.Datetime("us", "UTC")}))
    return DataQuality(read.stated, read.quality, seen, intake(jobs, read.rejects))


def figures_moved(effect: str) -> tuple[str, ...]:
    """Figures that the effect of a finding names.

    Examples
    --------
    >>> figures_moved("demand and GPU-hours leave them out and are too low")
    ('GPU-hours', 'demand')
    >>> figures_moved("none: the rows were sorted"), figures_moved("kept")
    (('none',), ('other',))
    """
    text = effect.lower()
    if text.startswith("none"):
        return (NONE,)
    named = tuple(figure for figure, words in FIGURES.items() if any(word in text for word in words))
    return named or (OTHER,)


def by_figure(findings: pl.DataFrame) -> pl.DataFrame:
    """Part findings by the figures that they move.

    Examples
    --------
    >>> by_figure(data_quality("sample").findings).select("severity", "figure").rows()
    [('info', 'GPU-hours'), ('info', 'run times')]
    """
    figures = pl.Series("figure", map(figures_moved, findings["effect"]), dtype=pl.List(pl.String))
    return findings.with_columns(figures).explode("figure")


def intake(jobs: pl.DataFrame, rejects: pl.DataFrame) -> pl.DataFrame:
    """Count jobs by the UTC day of submission, and rejected rows by reason and the first date in the row.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"submit_time": [datetime(2026, 1, day, 9, tzinfo=UTC) for day in (1, 1, 3)]})
    >>> rejects = pl.DataFrame({"reason": ["end before start"], "raw": ["7,2026-01-02T10:00:00,-"]})
    >>> [(what[:8], day.day, rows) for what, day, rows in intake(jobs, rejects).rows()]
    [('jobs sub', 1, 2), ('jobs sub', 2, 0), ('jobs sub', 3, 1), ('rejected', 2, 1)]
    """
    counted = jobs.drop_nulls("submit_time").group_by(day=pl.col("submit_time").dt.date()).agg(rows=pl.len())
    if counted.height:
        days = counted.select(pl.date_range(pl.col("day").min(), pl.col("day").max()).alias("day"))
        counted = days.join(counted, on="day", how="left").with_columns(pl.col("rows").fill_null(0))
    refused = (
        rejects.group_by("reason", day=pl.col("raw").str.extract(f"({_DATE})").str.to_date(strict=False))
        .agg(rows=pl.len())
        .with_columns(all=pl.col("rows").sum().over("reason"))
        .sort("all", "reason", "day", descending=[True, False, False], nulls_last=True)
        .select(pl.format("rejected: {}", "reason").alias("what"), "day", "rows")
    )
    submitted = counted.sort("day").select(pl.lit(SUBMITTED).alias("what"), "day", "rows")
    return pl.concat([submitted.cast(INTAKE), refused.cast(INTAKE)])
