"""The quality report: findings with their row counts."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from importlib import resources
from typing import TypedDict

import polars as pl

from gpuplanner.core.errors import examples
from gpuplanner.core.units import SECONDS_PER_HOUR, counted

COLUMNS = {
    "check": pl.String,
    "severity": pl.String,
    "rows": pl.Int64,
    "effect": pl.String,
    "example": pl.String,
    "gpu_hours": pl.Float64,
}
"""Columns of the quality report: what was found, how grave (info, warning, error), in how many rows, which
figures it moves, one example, and the GPU-hours concerned (null where they are not known) [GPU h]."""

GRAVE_SHARE = 0.01
"""Share of faulty rows above which rejects are an error and no longer a warning."""

LONG_RUN_DAYS = 30.0
GAP_HOURS = 24.0
EDGE_SHARE = 0.01
"""Of the jobs of an export, those that were there before its time begins are fewer."""

RUN_S = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 1e6


@dataclass(frozen=True)
class Finding:
    """One line of the quality report; ``gpu_hours`` are those of the rows, None where they are not known [GPU h]."""

    check: str
    severity: str
    rows: int
    effect: str
    example: str
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Check:
    """A condition on rows that is worth a line of the report.

    - ``check``: What the rows have in common, in words.
    - ``severity``: ``"info"``, ``"warning"`` or ``"error"``.
    - ``effect``: Which figures it moves, and which way.
    - ``condition``: True where it holds; null counts as false.
    """

    check: str
    severity: str
    effect: str
    condition: pl.Expr


UNKNOWN_GPUS = Check(
    "number of GPUs not known",
    "warning",
    "demand and GPU-hours leave them out and are too low",
    pl.col("gpus").is_null(),
)

JOB_CHECKS = (
    Check(
        "ended without an end time",
        "warning",
        "their GPU-hours are not counted",
        pl.col("end_time").is_null() & ~pl.col("state").is_in(["RUNNING", "PENDING"]),
    ),
    Check(
        "running when the observation ended",
        "info",
        "their GPU-hours are counted up to the end of the observation; their run times are unknown",
        pl.col("end_time").is_null() & (pl.col("state") == "RUNNING"),
    ),
    Check(
        "waiting when the observation ended",
        "info",
        "they hold no GPUs; their queueing delays are lower bounds",
        (pl.col("state") == "PENDING") & pl.col("end_time").is_null(),
    ),
    Check(
        "ended without ever starting",
        "info",
        "they have no queueing delay, run time or GPU-hours",
        pl.col("start_time").is_null() & pl.col("end_time").is_not_null(),
    ),
    Check(
        "running without a start time",
        "warning",
        "their GPU-hours are not counted",
        pl.col("start_time").is_null() & (pl.col("state") == "RUNNING"),
    ),
    UNKNOWN_GPUS,
    Check("no GPU", "info", "they count as jobs but add nothing to demand or GPU-hours", pl.col("gpus") == 0),
    Check(
        "state not known",
        "info",
        "failures, time-outs and cancellations are not distinguishable",
        pl.col("state") == "UNKNOWN",
    ),
    Check(
        f"ran for more than {LONG_RUN_DAYS:g} days",
        "info",
        "a few such jobs can dominate means and GPU-hours",
        RUN_S > LONG_RUN_DAYS * 86400,
    ),
)

UNSORTED = Check(
    "out of order by submission in the file",
    "info",
    "none: the rows were sorted",
    pl.col("submit_time") < pl.col("submit_time").cum_max(),
)

AMBIGUOUS_TIME = Check(
    "local time that the clock showed twice",
    "warning",
    "the earliest reading that fits the row was taken; these times may be an hour too early",
    pl.col("ambiguous"),
)

NO_QUEUE = Check(
    "start not in the source",
    "info",
    "the start was set to the submission: queueing delays are unknown, and demand is placed too early",
    pl.col("start_time").is_not_null(),
)


def run_checks(frame: pl.DataFrame, checks: Sequence[Check], *, of: str = "job_id") -> list[Finding]:
    """Evaluate checks on rows; only those that hold somewhere are returned.

    Examples
    --------
    >>> frame = pl.DataFrame({"job_id": ["a", "b"], "gpus": [0.0, 8.0]})
    >>> run_checks(frame, [Check("no GPU", "info", "none", pl.col("gpus") == 0)])
    [Finding(check='no GPU', severity='info', rows=1, effect='none', example='job a', gpu_hours=None)]
    """
    marks = frame.select(check.condition.fill_null(False).alias(check.check) for check in checks)
    word = of.removesuffix("_id")
    found = []
    for check, mark in zip(checks, marks.iter_columns(), strict=True):
        if mark.any():
            example = f"{word} {frame[of].filter(mark)[0]}"
            hours = None if check.severity == "info" else _gpu_hours(frame, mark)
            found.append(Finding(check.check, check.severity, int(mark.sum()), check.effect, example, hours))
    return found


def _gpu_hours(frame: pl.DataFrame, mark: pl.Series) -> float | None:
    """GPU-hours of the marked jobs that ended; None where none of them states any."""
    if not {"gpus", "start_time", "end_time"} <= set(frame.columns):
        return None
    hours = frame.filter(mark).select(pl.col("gpus") * RUN_S / SECONDS_PER_HOUR).to_series().drop_nulls()
    return float(hours.sum()) if len(hours) else None


class QualityWarning(TypedDict):
    """A warning as the first screen and ``--json`` show it.

    ``what`` in words, ``count`` of rows, pods or nodes, and their ``gpu_hours``, None where they are not known [GPU h].
    """

    what: str
    count: int
    gpu_hours: float | None


def warning_text(warning: QualityWarning) -> str:
    """Show a warning in one line, with the number of its rows and their GPU-hours.

    Examples
    --------
    >>> warning_text({"what": "habana.ai/gaudi is not read", "count": 20, "gpu_hours": None})
    'habana.ai/gaudi is not read [20 rows]'
    """
    hours = "" if warning["gpu_hours"] is None else f", {warning['gpu_hours']:,.1f} GPU-hours"
    return f"{warning['what']} [{counted(warning['count'], 'row')}{hours}]"


def warnings_of(quality: pl.DataFrame) -> list[QualityWarning]:
    """Warnings and errors of a quality report, gravest first.

    Examples
    --------
    >>> warnings_of(report([Finding("a", "info", 9, "", ""), Finding("b", "warning", 2, "correct it", "node n1")]))
    [{'what': 'b (node n1): correct it', 'count': 2, 'gpu_hours': None}]
    """
    grave = quality.filter(pl.col("severity") != "info")
    found = []
    for row in grave.iter_rows(named=True):
        example = f" ({row['example']})" if row["example"] else ""
        what = f"{row['check']}{example}: {row['effect']}"
        found.append(QualityWarning(what=what, count=row["rows"], gpu_hours=row["gpu_hours"]))
    return found


def reasons_of(rejects: pl.DataFrame) -> pl.DataFrame:
    """Rejected rows by reason, how many and where the first stands: ``reason, rows, file, row``.

    Examples
    --------
    >>> reasons_of(pl.DataFrame({"file": "a", "row": [3, 7], "reason": "no job", "raw": ""})).rows()
    [('no job', 2, 'a', 3)]
    """
    return rejects.group_by("reason", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("rows"), pl.col("file").first(), pl.col("row").first()
    )


def reject_findings(reasons: pl.DataFrame, rows_in: int, harmless: Sequence[str]) -> list[Finding]:
    """Say what :func:`reasons_of` counted."""
    faulty = reasons.filter(~pl.col("reason").is_in(list(harmless)))["rows"].sum()
    grave = "error" if faulty > GRAVE_SHARE * rows_in else "warning"
    found = []
    for reason, rows, file, line in reasons.sort("rows", "reason", descending=[True, False]).iter_rows():
        severity, effect = grave, "left out of every figure"
        if reason in harmless:
            severity, effect = "info", "none: no job of its own"
        found.append(Finding(f"rejected: {reason}", severity, rows, effect, f"{file}, line {line}"))
    return found


def of_files(names: Sequence[str], ends_open: Sequence[bool], blank: int) -> list[Finding]:
    """Files that end within a line, and blank lines."""
    found = []
    cut = [name for name, ends in zip(names, ends_open, strict=True) if ends]
    if cut:
        effect = "the last row may be incomplete: compare with the source"
        found.append(Finding("last line without a line end", "info", len(cut), effect, examples(cut)))
    if blank:
        found.append(Finding("blank lines", "info", blank, "none: not counted as rows", ""))
    return found


def gap_findings(submit_time: pl.Series) -> list[Finding]:
    """Find stretches without any submission, in a sorted column of instants.

    An export of a time lists the few earlier jobs that were still there when it begins; before these are
    :data:`EDGE_SHARE` of the jobs, no gap is one.

    Examples
    --------
    >>> from datetime import datetime
    >>> days = pl.Series([datetime(2025, 1, day) for day in (1, 2, 5)])
    >>> gap_findings(days)[0].example
    '72.0 hours before 2025-01-05 00:00 UTC'
    """
    gaps = submit_time.diff().dt.total_microseconds() / (1e6 * SECONDS_PER_HOUR)
    edge = int(EDGE_SHARE * len(gaps))
    gaps = pl.concat([pl.Series(gaps.name, [None] * edge, dtype=gaps.dtype), gaps[edge:]])
    count = int((gaps > GAP_HOURS).sum())
    if not count:
        return []
    longest = gaps.arg_max() or 0
    where = f"{gaps[longest]:.1f} hours before {submit_time[longest]:%Y-%m-%d %H:%M} UTC"
    effect = "an outage, a holiday or missing data: forecasts learn it as low demand"
    return [Finding(f"no submission for more than {GAP_HOURS:g} hours", "warning", count, effect, where)]


def report(findings: Iterable[Finding]) -> pl.DataFrame:
    """Quality report as a table, gravest and most frequent first.

    Examples
    --------
    >>> report([Finding("a", "info", 9, "", ""), Finding("b", "error", 1, "", "")])["check"].to_list()
    ['b', 'a']
    """
    rank = {"error": 0, "warning": 1, "info": 2}
    ordered = sorted(findings, key=lambda finding: (rank[finding.severity], -finding.rows, finding.check))
    table = pl.DataFrame([astuple(finding) for finding in ordered], schema=COLUMNS, orient="row")
    return table.with_columns(pl.col("gpu_hours").round(6))  # sums of parts differ in their last digits


def combined(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of several files, those of one kind as one: rows and hours summed, the graver severity, one example.

    Examples
    --------
    >>> combined([Finding("a", "info", 1, "", "x"), Finding("a", "error", 2, "", "y")])
    [Finding(check='a', severity='error', rows=3, effect='', example='x', gpu_hours=None)]
    """
    found: dict[str, Finding] = {}
    for each in findings:
        before = found.get(each.check)
        if before is not None:
            graver = min(before.severity, each.severity, key=("error", "warning", "info").index)
            stated = [hours for hours in (before.gpu_hours, each.gpu_hours) if hours is not None]
            total = sum(stated) if stated else None
            each = replace(before, severity=graver, rows=before.rows + each.rows, gpu_hours=total)
        found[each.check] = each
    return list(found.values())


def source_check(name: str, condition: pl.Expr) -> Check:
    """Check of rows of a source.

    Parameters
    ----------
    name : str
        Name of the check in ``source_checks.csv``, which has its words, severity and effect.
    condition : polars.Expr
        True for the rows concerned.

    Examples
    --------
    >>> source_check("bill: no list cost", pl.col("ListCost").is_null()).severity
    'info'
    """
    row = _checks()[name]
    return Check(row["check"], row["severity"], row["effect"], condition)


def source_finding(name: str, rows: int, example: str = "", gpu_hours: float | None = None) -> Finding:
    """Finding in so many rows, by its name in ``source_checks.csv``.

    Examples
    --------
    >>> source_finding("samples: clock went back", 2).severity
    'warning'
    """
    row = _checks()[name]
    return Finding(row["check"], row["severity"], rows, row["effect"], example, gpu_hours)


def check_words(name: str) -> str:
    """What a check says of its rows."""
    return _checks()[name]["check"]


@functools.cache
def _checks() -> dict[str, dict[str, str]]:
    text = (resources.files(__package__) / "source_checks.csv").read_text(encoding="utf-8")
    return {row["name"]: row for row in csv.DictReader(text.splitlines())}
