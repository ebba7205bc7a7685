"""The quality report: checks on rows, and findings with their row counts."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TypedDict

import polars as pl

from gpuplanner.core.errors import examples
from gpuplanner.core.serialization import read_packaged_rows
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, count_text

DTYPE_BY_QUALITY_COLUMN = {
    "check": pl.String,
    "severity": pl.String,
    "rows": pl.Int64,
    "effect": pl.String,
    "example": pl.String,
    "gpu_hours": pl.Float64,
}
"""Column of the quality report → polars type: check, severity (info, warning, error), number of rows, effect on the
results, one example, and the GPU-hours concerned (null where unknown) [GPU h]."""

MAX_REJECTED_ROW_FRACTION = 0.01
"""Share of rejected rows above which their finding is an error instead of a warning [0-1]."""

MIN_LONG_RUN_DAYS = 30.0
"""Run time above which a job is reported [days]."""
MIN_GAP_HOURS = 24.0
"""Shortest time without submissions that the quality report lists as a gap [h]."""
MAX_EARLY_JOB_FRACTION = 0.01
"""Largest share of the jobs of an export that may have been submitted before its period begins; gaps among them are
ignored [0-1]."""

RUN_S_EXPR = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 1e6
"""Run time of a job [s]."""


@dataclass(frozen=True)
class Finding:
    """One line of the quality report: something that several rows have in common, and its effect on the results.

    - ``check``: What the rows have in common.
    - ``severity``: ``"info"``, ``"warning"`` or ``"error"``.
    - ``rows``: Number of rows.
    - ``effect``: Which results the rows distort, such as GPU-hours, and how.
    - ``example``: One of the rows.
    - ``gpu_hours``: GPU-hours of the rows; None where unknown [GPU h].
    """

    check: str
    severity: str
    rows: int
    effect: str
    example: str
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Check:
    """A condition on rows, with the text and severity that the quality report has if a row meets it.

    - ``check``: What the rows have in common.
    - ``severity``: ``"info"``, ``"warning"`` or ``"error"``.
    - ``effect``: Which results the rows distort, such as GPU-hours, and how.
    - ``condition``: True for the rows concerned; null counts as false.
    """

    check: str
    severity: str
    effect: str
    condition: pl.Expr


def source_check(name: str, condition: pl.Expr, **parts: object) -> Check:
    """Create a check of a source from its row in ``source_checks.csv``.

    Parameters
    ----------
    name : str
        Name of the check in ``source_checks.csv``, which has its text, severity and effect.
    condition : polars.Expr
        True for the rows concerned.
    **parts
        Values of the places in the text of its effect.

    Examples
    --------
    >>> source_check("bill: no list cost", pl.col("ListCost").is_null()).severity
    'info'
    """
    finding = source_finding(name, 0, "", None, **parts)
    return Check(finding.check, finding.severity, finding.effect, condition)


def source_finding(name: str, rows: int, example: str = "", gpu_hours: float | None = None, **parts: object) -> Finding:
    """Create a finding from its row in ``source_checks.csv``.

    Parameters
    ----------
    name : str
        Name of the check in ``source_checks.csv``.
    rows : int
        Number of rows.
    example : str
        One of the rows.
    gpu_hours : float, optional
        GPU-hours of the rows [GPU h].
    **parts
        Values of the places in the text of its effect, such as ``{hours:.2f}``.

    Examples
    --------
    >>> source_finding("samples: clock went back", 2).severity
    'warning'
    >>> source_finding("samples: gaps", 3, hours=1.5).effect
    '1.50 GPU-hours were not observed; nothing is filled in'
    """
    row = _source_checks()[name]
    effect = row["effect"].format(**parts) if parts else row["effect"]
    return Finding(row["check"], row["severity"], rows, effect, example, gpu_hours)


def check_text(name: str) -> str:
    """Return the text of a check in ``source_checks.csv``."""
    return _source_checks()[name]["check"]


@functools.cache
def _source_checks() -> dict[str, dict[str, str]]:
    """Read ``source_checks.csv``: name → row."""
    return {row["name"]: row for row in read_packaged_rows("gpuplanner.ingest", "source_checks.csv")}


UNKNOWN_GPUS_CHECK = source_check("jobs: unknown GPUs", pl.col("gpus").is_null())
"""Check that finds jobs whose number of GPUs is unknown."""

JOB_LIST_CHECKS = (
    source_check("jobs: no end", pl.col("end_time").is_null() & ~pl.col("state").is_in(["RUNNING", "PENDING"])),
    source_check("jobs: running", pl.col("end_time").is_null() & (pl.col("state") == "RUNNING")),
    source_check("jobs: waiting", (pl.col("state") == "PENDING") & pl.col("end_time").is_null()),
    source_check("jobs: never started", pl.col("start_time").is_null() & pl.col("end_time").is_not_null()),
    source_check("jobs: running without a start", pl.col("start_time").is_null() & (pl.col("state") == "RUNNING")),
    UNKNOWN_GPUS_CHECK,
    source_check("jobs: no GPU", pl.col("gpus") == 0),
    source_check("jobs: unknown state", pl.col("state") == "UNKNOWN"),
    source_check("jobs: long run", RUN_S_EXPR > MIN_LONG_RUN_DAYS * 86400),
)
"""Checks of the quality report for every list of jobs."""

UNSORTED_JOBS_CHECK = source_check("jobs: out of order", pl.col("submit_time") < pl.col("submit_time").cum_max())
"""Check that finds jobs that are not in order of submission in their file."""

AMBIGUOUS_TIME_CHECK = source_check("jobs: ambiguous time", pl.col("ambiguous"))
"""Check that finds rows with a local time that occurs twice because clocks went back."""

NO_START_CHECK = source_check("jobs: no start", pl.col("start_time").is_not_null())
"""Check that finds jobs of sources without start times."""


def run_checks(frame: pl.DataFrame, checks: Sequence[Check], *, id_column: str = "job_id") -> list[Finding]:
    """Evaluate checks on rows and return a finding for each whose condition is true for a row.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows with the columns of the checks.
    checks : sequence of Check
        Checks to evaluate.
    id_column : str
        Column that names the example row.

    Examples
    --------
    >>> frame = pl.DataFrame({"job_id": ["a", "b"], "gpus": [0.0, 8.0]})
    >>> run_checks(frame, [Check("no GPU", "info", "none", pl.col("gpus") == 0)])
    [Finding(check='no GPU', severity='info', rows=1, effect='none', example='job a', gpu_hours=None)]
    """
    condition_columns = frame.select(check.condition.fill_null(False).alias(check.check) for check in checks)
    word = id_column.removesuffix("_id")
    findings = []
    for check, is_marked in zip(checks, condition_columns.iter_columns(), strict=True):
        if is_marked.any():
            example = f"{word} {frame[id_column].filter(is_marked)[0]}"
            hours = None if check.severity == "info" else _gpu_hours(frame, is_marked)
            findings.append(Finding(check.check, check.severity, int(is_marked.sum()), check.effect, example, hours))
    return findings


def add_unresolved_hours(quality: pl.DataFrame, gpu_hours: float | None) -> pl.DataFrame:
    """State the estimated GPU-hours [GPU h] of jobs whose number of GPUs is unknown in a quality report.

    Examples
    --------
    >>> quality = build_quality_report([source_finding("jobs: unknown GPUs", 2)])
    >>> add_unresolved_hours(quality, 5.0)["gpu_hours"].to_list()
    [5.0]
    """
    is_unknown = pl.col("check") == UNKNOWN_GPUS_CHECK.check
    return quality.with_columns(gpu_hours=pl.when(is_unknown).then(gpu_hours).otherwise("gpu_hours"))


def _gpu_hours(frame: pl.DataFrame, is_marked: pl.Series) -> float | None:
    """Sum the GPU-hours of marked jobs that ended; None where none of them states any [GPU h]."""
    if not {"gpus", "start_time", "end_time"} <= set(frame.columns):
        return None
    hours = frame.filter(is_marked).select(pl.col("gpus") * RUN_S_EXPR / SECONDS_PER_HOUR).to_series().drop_nulls()
    return float(hours.sum()) if len(hours) else None


class QualityWarning(TypedDict):
    """A warning of the quality report as the output of commands and ``--json`` show it.

    - ``what``: Text of the warning.
    - ``count``: Number of rows, pods or nodes.
    - ``gpu_hours``: Their GPU-hours; None where unknown [GPU h].
    """

    what: str
    count: int
    gpu_hours: float | None


def format_warning(warning: QualityWarning) -> str:
    """Format a warning in one line, with the number of its rows and their GPU-hours.

    Examples
    --------
    >>> format_warning({"what": "habana.ai/gaudi is not read", "count": 20, "gpu_hours": None})
    'habana.ai/gaudi is not read [20 rows]'
    """
    hours = "" if warning["gpu_hours"] is None else f", {warning['gpu_hours']:,.1f} GPU-hours"
    return f"{warning['what']} [{count_text(warning['count'], 'row')}{hours}]"


def list_warnings(quality: pl.DataFrame) -> list[QualityWarning]:
    """List the warnings and errors of a quality report, most severe first.

    Examples
    --------
    >>> findings = [Finding("a", "info", 9, "", ""), Finding("b", "warning", 2, "correct it", "node n1")]
    >>> list_warnings(build_quality_report(findings))
    [{'what': 'b (node n1): correct it', 'count': 2, 'gpu_hours': None}]
    """
    grave, is_unknown = quality.filter(pl.col("severity") != "info"), pl.col("check") == UNKNOWN_GPUS_CHECK.check
    # Jobs whose GPUs are not known for a reason of its own are named once, with that reason.
    explained = grave.filter(~is_unknown, pl.col("effect").str.contains("GPU-hours leave them out"))["rows"].sum()
    grave = grave.filter(~(is_unknown & (pl.col("rows") <= explained)))
    warnings = []
    for row in grave.iter_rows(named=True):
        example = f" ({row['example']})" if row["example"] else ""
        text = f"{row['check']}{example}: {row['effect']}"
        warnings.append(QualityWarning(what=text, count=row["rows"], gpu_hours=row["gpu_hours"]))
    return warnings


def count_reject_reasons(rejects: pl.DataFrame) -> pl.DataFrame:
    """Count rejected rows by reason, with the position of the first: ``reason, rows, file, row``.

    Examples
    --------
    >>> count_reject_reasons(pl.DataFrame({"file": "a", "row": [3, 7], "reason": "no job", "raw": ""})).rows()
    [('no job', 2, 'a', 3)]
    """
    return rejects.group_by("reason", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("rows"), pl.col("file").first(), pl.col("row").first()
    )


def reject_findings(reasons: pl.DataFrame, rows_in: int, harmless_reasons: Sequence[str]) -> list[Finding]:
    """Report rejected rows by reason as findings.

    Parameters
    ----------
    reasons : polars.DataFrame
        Result of :func:`count_reject_reasons`.
    rows_in : int
        Number of rows read.
    harmless_reasons : sequence of str
        Reasons that are no faults.
    """
    faulty = reasons.filter(~pl.col("reason").is_in(list(harmless_reasons)))["rows"].sum()
    fault_severity = "error" if faulty > MAX_REJECTED_ROW_FRACTION * rows_in else "warning"
    findings = []
    for reason, rows, file, line in reasons.sort("rows", "reason", descending=[True, False]).iter_rows():
        severity, effect = fault_severity, "left out of every figure"
        if reason in harmless_reasons:
            severity, effect = "info", "none: no job of its own"
        findings.append(Finding(f"rejected: {reason}", severity, rows, effect, f"{file}, line {line}"))
    return findings


def open_end_and_blank_line_findings(names: Sequence[str], ends_open: Sequence[bool], blank: int) -> list[Finding]:
    """Report files whose last line has no line end, and blank lines.

    `ends_open` says of each file in `names` whether its last line has no line end, `blank` is the number of blank
    lines.
    """
    findings = []
    open_names = [name for name, is_open in zip(names, ends_open, strict=True) if is_open]
    if open_names:
        findings.append(source_finding("files: no line end", len(open_names), examples(open_names)))
    if blank:
        findings.append(source_finding("files: blank lines", blank))
    return findings


def find_submission_gaps(submit_time: pl.Series) -> list[Finding]:
    """Find gaps without any submission in a sorted column of instants.

    An export of a period also lists the few earlier jobs that had not ended when it begins; gaps among the first
    :data:`MAX_EARLY_JOB_FRACTION` of the jobs are ignored.

    Examples
    --------
    >>> from datetime import datetime
    >>> days = pl.Series([datetime(2025, 1, day) for day in (1, 2, 5)])
    >>> find_submission_gaps(days)[0].example
    '72.0 hours before 2025-01-05 00:00 UTC'
    """
    gaps = submit_time.diff().dt.total_microseconds() / (1e6 * SECONDS_PER_HOUR)
    n_early_jobs = int(MAX_EARLY_JOB_FRACTION * len(gaps))
    gaps = pl.concat([pl.Series(gaps.name, [None] * n_early_jobs, dtype=gaps.dtype), gaps[n_early_jobs:]])
    count = int((gaps > MIN_GAP_HOURS).sum())
    if not count:
        return []
    longest = gaps.arg_max() or 0
    gap_text = f"{gaps[longest]:.1f} hours before {submit_time[longest]:%Y-%m-%d %H:%M} UTC"
    return [source_finding("jobs: submission gap", count, gap_text)]


def build_quality_report(findings: Iterable[Finding]) -> pl.DataFrame:
    """Build the quality report as a table, most severe and most frequent findings first.

    Examples
    --------
    >>> build_quality_report([Finding("a", "info", 9, "", ""), Finding("b", "error", 1, "", "")])["check"].to_list()
    ['b', 'a']
    """
    rank = {"error": 0, "warning": 1, "info": 2}
    ordered = sorted(findings, key=lambda finding: (rank[finding.severity], -finding.rows, finding.check))
    table = pl.DataFrame([astuple(finding) for finding in ordered], schema=DTYPE_BY_QUALITY_COLUMN, orient="row")
    return table.with_columns(pl.col("gpu_hours").round(6))  # sums of parts differ in their last digits


def combine_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Combine findings of several files by check: rows and hours summed, the higher severity, one example.

    Examples
    --------
    >>> combine_findings([Finding("a", "info", 1, "", "x"), Finding("a", "error", 2, "", "y")])
    [Finding(check='a', severity='error', rows=3, effect='', example='x', gpu_hours=None)]
    """
    findings_by_check: dict[str, Finding] = {}
    for finding in findings:
        previous = findings_by_check.get(finding.check)
        if previous is not None:
            graver = min(previous.severity, finding.severity, key=("error", "warning", "info").index)
            stated = [hours for hours in (previous.gpu_hours, finding.gpu_hours) if hours is not None]
            total = sum(stated) if stated else None
            finding = replace(previous, severity=graver, rows=previous.rows + finding.rows, gpu_hours=total)
        findings_by_check[finding.check] = finding
    return list(findings_by_check.values())
