"""What is missing, doubled or odd in telemetry, how many rows it touches and which figures it moves."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import examples
from gpuplanner.telemetry.coverage import steps
from gpuplanner.telemetry.joining import AGAIN, DEVICE_KEY
from gpuplanner.telemetry.ladder import ENGINE, LEGACY, NONE
from gpuplanner.traces.quality import Finding, reject_findings
from gpuplanner.traces.reader import Rows

LOW_COVERAGE = 0.9
"""Share of a node's day below which its means are worth a warning."""

RUNG_WORDS = {
    LEGACY: (
        "warning",
        "activity from the legacy counter",
        "it says that some kernel ran, not that the GPU was busy: activity is too high",
    ),
    ENGINE: (
        "info",
        "activity from the engine counter",
        "it is high as soon as one kernel runs: activity is an upper bound of SM activity",
    ),
    NONE: ("warning", "no activity", "these samples are unknown, not idle: activity leaves them out"),
}


def findings(rows: Rows, samples: pl.DataFrame, days: pl.DataFrame) -> list[Finding]:
    """Everything that is checked in every source.

    Parameters
    ----------
    rows : Rows
        Rows as read, kept and rejected; ``file``, ``time`` and device of those kept.
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    days : polars.DataFrame
        Table of :func:`gpuplanner.telemetry.coverage.coverage`.

    Returns
    -------
    list of Finding
        Only what holds somewhere.
    """
    return [
        *_rejected(rows),
        *_rungs(samples),
        *_gaps(samples),
        *_low_coverage(days),
        *_overlaps(rows),
        *_clock_went_back(rows),
        *_counted_twice(samples),
        *_file_ends(rows),
    ]


def _rejected(rows: Rows) -> list[Finding]:
    repeated = rows.rejects.filter(pl.col("reason") == AGAIN)
    found = reject_findings(rows.rejects.filter(pl.col("reason") != AGAIN), rows.count, ())
    if repeated.height:
        where = f"{repeated['file'][0]}, line {repeated['row'][0]}"
        effect = "none: each reading counts once"
        found.append(Finding("duplicates: " + AGAIN, "info", repeated.height, effect, where))
    return found


def _rungs(samples: pl.DataFrame) -> list[Finding]:
    counts = dict(samples.group_by("activity_source").len().iter_rows())
    return [
        Finding(check, severity, counts[rung], effect, _place(samples.filter(activity_source=rung)))
        for rung, (severity, check, effect) in RUNG_WORDS.items()
        if rung in counts
    ]


def _gaps(samples: pl.DataFrame) -> list[Finding]:
    gaps = steps(samples).filter("gap").sort("step_s", descending=True)
    if gaps.is_empty():
        return []
    node, gpu, begin, _, step_s, usual_s, _ = gaps.row(0)
    return [
        Finding(
            "gaps between samples",
            "warning",
            gaps.height,
            f"{gaps['step_s'].sum() / 3600:.2f} GPU-hours were not observed; nothing is filled in",
            f"{node} GPU {gpu}: {step_s:.1f} s from {begin:%Y-%m-%d %H:%M:%S} UTC, usually {usual_s:.1f} s",
        )
    ]


def _low_coverage(days: pl.DataFrame) -> list[Finding]:
    low = days.filter(pl.col("covered") < LOW_COVERAGE).sort("covered", "node", "day")
    if low.is_empty():
        return []
    worst = low.row(0, named=True)
    return [
        Finding(
            f"node-days observed for less than {LOW_COVERAGE:.0%}",
            "warning",
            low.height,
            "means and sums of these days stand for a part of them only",
            f"{worst['node']} on {worst['day']}: {worst['covered']:.0%}",
        )
    ]


def _overlaps(rows: Rows) -> list[Finding]:
    """Devices that two files speak of at the same time."""
    if len(rows.files) < 2:
        return []
    spans = (
        rows.good.group_by("file", *DEVICE_KEY)
        .agg(first=pl.col("time").min(), last=pl.col("time").max())
        .sort(*DEVICE_KEY, "first", "file")
        .with_columns(before=pl.col("last").cum_max().shift(1).over(DEVICE_KEY))
    )
    over = spans.filter(pl.col("first") < pl.col("before"))
    if over.is_empty():
        return []
    names = rows.file_names()
    return [
        Finding(
            "files that overlap in time",
            "warning",
            over.height,
            "readings that agree were counted once; others stand side by side in the samples",
            f"{names[over['file'][0]]} on {over['node'][0]} GPU {over['gpu'][0]}",
        )
    ]


def _clock_went_back(rows: Rows) -> list[Finding]:
    """Times that fall from one row of a device to the next in the file."""
    stream = ["file", *DEVICE_KEY, *(["metric"] if "metric" in rows.good.columns else [])]
    back = rows.good.filter((pl.col("time").diff().over(stream) < pl.duration()).fill_null(False))
    if back.is_empty():
        return []
    where = f"{rows.file_names()[back['file'][0]]}, line {back['line'][0]}"
    effect = "rows were sorted by time; those between the two clocks may be out of place"
    return [Finding("clock skew: the clock went back", "warning", back.height, effect, where)]


def _counted_twice(samples: pl.DataFrame) -> list[Finding]:
    whole, parts = (samples.filter(pl.col("instance").is_null() == flag) for flag in (True, False))
    both = whole.join(parts.select("node", "gpu").unique(), on=["node", "gpu"])
    if both.is_empty():
        return []
    effect = "observed GPU-hours count each GPU once; sum either the GPUs or their instances, not both"
    return [Finding("whole GPU beside its MIG instances", "info", both.height, effect, _place(both))]


def _file_ends(rows: Rows) -> list[Finding]:
    found = []
    names = [name for name, file in zip(rows.file_names(), rows.files, strict=True) if file.ends_open]
    if names:
        effect = "the last row may be cut short: compare with the source"
        found.append(Finding("last line without a line end", "info", len(names), effect, examples(names)))
    if rows.blank:
        found.append(Finding("blank lines", "info", rows.blank, "none: not counted as rows", ""))
    return found


def _place(samples: pl.DataFrame) -> str:
    node, gpu, time = samples.row(0, named=True)["node"], samples["gpu"][0], samples["time"][0]
    return f"{node} GPU {gpu} at {time:%Y-%m-%d %H:%M:%S} UTC"
