"""Findings on telemetry and on its join to jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from gpuplanner.core.schemas import MIN_USED_SM_ACTIVITY
from gpuplanner.core.units_and_number_formats import percent_text
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import expand_unique_node_lists
from gpuplanner.ingest.quality_report import Finding, check_text, count_reject_reasons, reject_findings, source_finding
from gpuplanner.ingest.telemetry.coverage import SampleGaps, SampleStatistics
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import GPU_KEY_COLUMNS
from gpuplanner.ingest.telemetry.metric_definitions import FROM_ENGINE, FROM_LEGACY, GAP_FACTOR, NO_COUNTER
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import DeviceId, device_sort_key
from gpuplanner.ingest.telemetry.sample_windows import REPEATED_READING_REASON
from gpuplanner.ingest.telemetry.telemetry_join import (
    INSTANCE_JOBS,
    JOB_SEPARATOR,
    NO_JOB,
    SHARED_JOB,
    STATED_JOB,
    TOGETHER_JOB,
    WHOLE_NODE_JOB,
    DeviceAllocations,
    short_node_name,
)

UNLISTED_JOB_OUTCOME = "stated_not_in_jobs"
"""Outcome of the join to jobs: the telemetry names a job that is not in the list of jobs."""
UNLISTED_NODE_OUTCOME = "node_not_in_jobs"
"""Outcome of the join to jobs: no job of the list ran on the node."""
AFTER_JOBS_OUTCOME = "after_the_jobs"
"""Outcome of the join to jobs: the list of jobs ends before the sample."""
UNMATCHED_OUTCOMES = (INSTANCE_JOBS, NO_JOB, UNLISTED_JOB_OUTCOME, UNLISTED_NODE_OUTCOME, AFTER_JOBS_OUTCOME)
"""Outcomes of the join of telemetry to jobs in which a sample gets no job."""
TEXT_BY_OUTCOME = {
    STATED_JOB: "job named by the source",
    SHARED_JOB: "jobs named by the source that share a GPU",
    WHOLE_NODE_JOB: "one job was allocated all devices of the node",
    TOGETHER_JOB: "several jobs of the node, or a part of it: allocated to them together",
    INSTANCE_JOBS: "full GPU sampled while jobs ran on MIG instances of the node",
    NO_JOB: "no job on the node then",
    UNLISTED_JOB_OUTCOME: "job named by the source, and not in the list of jobs",
    UNLISTED_NODE_OUTCOME: "no job names this node",
    AFTER_JOBS_OUTCOME: "the list of jobs ends before",
}
"""Outcome of the join of telemetry to jobs → its text in the summary."""
REPORTED_OUTCOMES = (TOGETHER_JOB, *UNMATCHED_OUTCOMES)
"""Outcomes of the join of telemetry to jobs that get a finding in the quality report."""


def summarise_join(
    samples: pl.LazyFrame,
    jobs: pl.DataFrame,
    allocations: DeviceAllocations,
    coverage_table: pl.DataFrame,
    until: datetime | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Sum the observed GPU-hours by outcome of the join of telemetry to jobs.

    Parameters
    ----------
    samples : polars.LazyFrame
        Samples with ``job_id`` and ``job_evidence``.
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    allocations : DeviceAllocations
        Allocation of devices to jobs.
    coverage_table : polars.DataFrame
        Coverage of the telemetry.
    until : datetime, optional
        End of the list of jobs [UTC].

    Returns
    -------
    tuple of dict and list of Finding
        GPU-hours by outcome [GPU h], and findings for the quality report.
    """
    outcomes = _add_outcomes(samples, jobs, allocations, until)
    counts = (
        outcomes.group_by("node", "day", "outcome")
        .agg(rows=pl.len(), used=(pl.col("sm_activity") >= MIN_USED_SM_ACTIVITY).sum(), job_id=pl.col("job_id").min())
        .collect(engine="streaming")
    )
    hours_per_row = pl.col("observed_gpu_h") / pl.col("rows").sum().over("node", "day")
    hours = (
        counts.join(coverage_table.select("node", "day", "observed_gpu_h"), on=["node", "day"])
        .with_columns(gpu_hours=pl.col("rows") * hours_per_row, used_gpu_hours=pl.col("used") * hours_per_row)
        .sort("node", "day", "outcome")
        .group_by("outcome")
        .agg(
            pl.col("gpu_hours", "used_gpu_hours", "rows").sum(),
            example=pl.coalesce(pl.format("job {}", "job_id"), pl.format("node {}", "node")).min(),
        )
    )
    by_reason = dict.fromkeys(TEXT_BY_OUTCOME, 0.0) | dict(hours.select("outcome", "gpu_hours").iter_rows())
    unmatched = hours.filter(pl.col("outcome").is_in(UNMATCHED_OUTCOMES))
    facts = {
        "matched_gpu_hours": by_reason[STATED_JOB] + by_reason[SHARED_JOB] + by_reason[WHOLE_NODE_JOB],
        "together_gpu_hours": by_reason[TOGETHER_JOB],
        "unmatched_gpu_hours": sum(by_reason[name] for name in UNMATCHED_OUTCOMES),
        "unmatched_used_gpu_hours": float(unmatched["used_gpu_hours"].sum()),
        "by_reason": {TEXT_BY_OUTCOME[name]: value for name, value in by_reason.items() if value},
    }
    rows = {row["outcome"]: row for row in hours.to_dicts()}
    findings = []
    for outcome in REPORTED_OUTCOMES:
        if outcome in rows:
            example = "" if outcome in (TOGETHER_JOB, NO_JOB) else rows[outcome]["example"]
            name, count = f"match: {outcome}", rows[outcome]["rows"]
            findings.append(source_finding(name, count, example, by_reason[outcome]))
    return facts, [*findings, *_find_activity_without_jobs(outcomes), *_find_clock_differences(samples, jobs)]


def matched_gpu_hours(dataset: Dataset) -> float | None:
    """Return the observed GPU-hours with a known job or jobs; None without telemetry and jobs [GPU h].

    Examples
    --------
    >>> join = {"matched_gpu_hours": 3.0, "together_gpu_hours": 2.0}
    >>> matched_gpu_hours(Dataset({}, pl.DataFrame(), pl.DataFrame(), {}, join=join))
    5.0
    """
    if dataset.join is None:
        return None
    return float(dataset.join["matched_gpu_hours"] + dataset.join["together_gpu_hours"])


def format_match_summary(dataset: Dataset) -> str | None:
    """Format the GPU-hours of telemetry that were matched to jobs, and of the rest by reason; None without a join.

    Examples
    --------
    >>> join = {"matched_gpu_hours": 3.0, "by_reason": {"no job names this node": 1.0}}
    >>> format_match_summary(Dataset({}, pl.DataFrame(), pl.DataFrame(), {}, join=join))
    '3 GPU-hours of telemetry matched to jobs; no job names this node: 1'
    """
    if dataset.join is None:
        return None
    by_reason = dataset.join["by_reason"]
    hours_by_outcome = {
        TEXT_BY_OUTCOME[name]: by_reason.get(TEXT_BY_OUTCOME[name], 0.0) for name in (TOGETHER_JOB, *UNMATCHED_OUTCOMES)
    }
    parts = [f"{dataset.join['matched_gpu_hours']:,.0f} GPU-hours of telemetry matched to jobs"]
    if dataset.has_jobs and "sm_activity" in dataset.jobs.columns and dataset.jobs["sm_activity"].count():
        parts.append("where there are no samples, used and idle hours are those of the job records")
    return "; ".join([*parts, *(f"{reason}: {hours:,.0f}" for reason, hours in hours_by_outcome.items() if hours)])


def _add_outcomes(
    samples: pl.LazyFrame, jobs: pl.DataFrame, allocations: DeviceAllocations, until: datetime | None
) -> pl.LazyFrame:
    """Add UTC day and outcome of the join to samples; drop MIG-partitioned GPUs, whose instances count.

    Parameters
    ----------
    samples : polars.LazyFrame
        Samples with ``job_id`` and ``job_evidence``.
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    allocations : DeviceAllocations
        Allocation of devices to jobs.
    until : datetime, optional
        End of the list of jobs [UTC].
    """
    partitioned_gpus = allocations.devices.filter(pl.col("kind").is_null()).select("node", "gpu", "instance")
    job_nodes = expand_unique_node_lists(jobs).explode("node").drop_nulls("node")
    known_nodes = job_nodes.select(short_node_name(pl.col("node"))).to_series().unique()
    jobs_listed = jobs["job_id"].cast(pl.String).unique()
    other_names = pl.concat([allocations.names["name"], allocations.names["job_id"]]).unique()
    is_listed = pl.element().is_in(jobs_listed.implode())
    any_listed = other_names.str.split(JOB_SEPARATOR).list.eval(is_listed).list.any()
    is_in_list = pl.col("job_id").is_in(pl.concat([jobs_listed, other_names.filter(any_listed)]).implode())
    is_stated, has_no_job = pl.col("job_evidence").is_in([STATED_JOB, SHARED_JOB]), pl.col("job_evidence") == NO_JOB
    return samples.join(
        partitioned_gpus.lazy(), on=["node", "gpu", "instance"], how="anti", nulls_equal=True
    ).with_columns(
        day=pl.col("time").dt.date(),
        outcome=pl.when(is_stated & ~is_in_list)
        .then(pl.lit(UNLISTED_JOB_OUTCOME))
        .when(has_no_job & ~short_node_name(pl.col("node")).is_in(known_nodes.implode()))
        .then(pl.lit(UNLISTED_NODE_OUTCOME))
        .when(has_no_job & (pl.lit(False) if until is None else pl.col("time") >= until))
        .then(pl.lit(AFTER_JOBS_OUTCOME))
        .otherwise("job_evidence"),
    )


def _find_activity_without_jobs(outcomes: pl.LazyFrame) -> list[Finding]:
    """Return findings on devices that were active while no job of the list was allocated them."""
    busy = outcomes.filter(pl.col("sm_activity") >= MIN_USED_SM_ACTIVITY, pl.col("outcome") == NO_JOB)
    busy = busy.select(pl.len(), pl.col("node", "gpu", "time").first())
    rows, node, gpu, time = busy.collect(engine="streaming").row(0)
    if not rows:
        return []
    example = f"{node} GPU {gpu} at {time:%Y-%m-%d %H:%M:%S} UTC"
    return [source_finding("match: activity without a job", rows, example)]


def _find_clock_differences(samples: pl.LazyFrame, jobs: pl.DataFrame) -> list[Finding]:
    """Return findings on jobs with telemetry before their start or after their end: clocks differ."""
    stated = (
        samples.filter(pl.col("job_evidence") == STATED_JOB)
        .group_by("job_id", "node")
        .agg(first=pl.col("time").min(), last=pl.col("time").max(), instants=pl.col("time").n_unique())
        .collect(engine="streaming")
    )
    usual_step = (pl.col("last") - pl.col("first")) / (pl.col("instants") - 1).clip(lower_bound=1)
    job_times = jobs.group_by("job_id").agg(
        pl.col("start_time").min(),
        pl.when(pl.col("end_time").is_null().any()).then(None).otherwise(pl.col("end_time").max()).alias("end_time"),
    )
    early, late = pl.col("start_time") - pl.col("first"), pl.col("last") - pl.col("end_time")
    late_jobs = (
        stated.join(job_times, on="job_id")
        .with_columns(off=pl.max_horizontal(early, late))
        .filter(pl.col("off") > GAP_FACTOR * usual_step)
        .sort("off", "job_id", descending=[True, False])
    )
    if late_jobs.is_empty():
        return []
    worst_job = late_jobs.row(0, named=True)
    example = f"job {worst_job['job_id']} on {worst_job['node']}: by {worst_job['off'].total_seconds():.0f} s"
    return [source_finding("match: outside their time", late_jobs.height, example)]


MIN_DAY_COVERAGE = 0.9
"""Share of the day covered by samples below which the means of a node get a warning. [0-1]"""

ACTIVITY_SOURCES_WITH_FINDING = (FROM_LEGACY, FROM_ENGINE, NO_COUNTER)
"""Activity sources of samples that get a finding, as their activity is less exact or missing."""

MAX_POWER_ERROR_FRACTION = 0.05
"""Relative error of the power that the driver allows [0-1] [1]_: energies that differ by more get a warning.

References
----------
.. [1] NVIDIA, NVML API reference, nvmlDeviceGetPowerUsage: accurate to within +/- 5 % of the current power draw.
"""

ENERGY_MISMATCH_CHECK = "energy by the counter and by the power"
"""Quality check on GPUs whose energy counter and integral of the power differ."""

SAMPLE_CHECK_TEXTS = {
    ENERGY_MISMATCH_CHECK,
    *(check_text(f"samples: {name}") for name in ("gaps", "sparse days", "counted twice", "counter restarts", "XID")),
    *(check_text(f"activity: {rung}") for rung in ACTIVITY_SOURCES_WITH_FINDING),
}
"""Texts of all quality checks whose findings follow from samples alone."""
FINDING_SAMPLE_COLUMNS = ("time", "node", "gpu", "instance", "power_w", "energy_counter_j", "xid", "activity_source")
"""Columns of samples that the findings on samples are computed from."""


def sample_findings(statistics: SampleStatistics, coverage_table: pl.DataFrame) -> list[Finding]:
    """Return the findings that follow from samples alone: gaps, sparse days, activity sources, XID errors, energy."""
    findings = [
        source_finding(
            f"activity: {source}", statistics.activity_sources[source][0], str(statistics.activity_sources[source][1])
        )
        for source in ACTIVITY_SOURCES_WITH_FINDING
        if source in statistics.activity_sources
    ]
    findings += _gap_findings(statistics.gaps)
    sparse_days = coverage_table.filter(pl.col("covered") < MIN_DAY_COVERAGE).sort("covered", "node", "day")
    if sparse_days.height:
        worst_day = sparse_days.row(0, named=True)
        example = f"{worst_day['node']} on {worst_day['day']}: {percent_text(worst_day['covered'])}"
        findings.append(source_finding("samples: sparse days", sparse_days.height, example))
    if duplicated := statistics.count_duplicated_samples():
        findings.append(source_finding("samples: counted twice", duplicated[0], str(duplicated[1])))
    findings += _energy_findings(statistics.energies)
    if statistics.first_error is not None:
        # An XID stays until the driver is loaded anew, so that samples tell of boards and not of errors.
        xid, position = statistics.first_error
        findings.append(source_finding("samples: XID", len(statistics.errors), f"XID {xid}: {position}"))
    return findings


def is_sample_finding(check: str) -> bool:
    """Whether a finding follows from samples or rejected rows alone, so that it is renewed after a merge.

    Examples
    --------
    >>> is_sample_finding("gaps between samples"), is_sample_finding("blank lines")
    (True, False)
    """
    return check in SAMPLE_CHECK_TEXTS or check.startswith(("rejected: ", "duplicates: "))


def rejected_row_findings(rejects: pl.DataFrame, rows_in: int) -> list[Finding]:
    """Return a finding on the rejected rows of each reason; repeated readings are no fault."""
    repeated = rejects.filter(pl.col("reason") == REPEATED_READING_REASON)
    other_rejects = rejects.filter(pl.col("reason") != REPEATED_READING_REASON)
    findings = reject_findings(count_reject_reasons(other_rejects), rows_in, ())
    if repeated.height:
        first_place = f"{repeated['file'][0]}, line {repeated['row'][0]}"
        effect = "none: each reading counts once"
        findings.append(Finding("duplicates: " + REPEATED_READING_REASON, "info", repeated.height, effect, first_place))
    return findings


def _gap_findings(gaps: SampleGaps) -> list[Finding]:
    """Return a finding on gaps between samples, if there are any."""
    if gaps.longest is None:
        return []
    node, gpu, begin, step_s, usual_s = gaps.longest
    example = f"{node} GPU {gpu}: {step_s:.1f} s from {begin:%Y-%m-%d %H:%M:%S} UTC, usually {usual_s:.1f} s"
    hours = gaps.total_us / 3.6e9
    return [source_finding("samples: gaps", gaps.count, example, hours, hours=hours)]


def find_file_overlaps(
    device_spans: Mapping[tuple[int, int], tuple[int, int]], devices: Sequence[DeviceId], names: Sequence[str]
) -> list[Finding]:
    """Return findings on devices that two files cover at the same time.

    Parameters
    ----------
    device_spans : mapping of tuple to tuple
        File and device number → first and last time [us].
    devices : sequence of DeviceId
        Devices by number.
    names : sequence of str
        Names of the files.
    """
    if len(names) < 2:
        return []
    rows = [
        (*device_sort_key(devices[device]), first, file, last) for (file, device), (first, last) in device_spans.items()
    ]
    columns = ["node", "gpu", "instance", "first", "file", "last"]
    spans = pl.DataFrame(rows, schema=columns, orient="row").sort(columns)
    covered_until = pl.col("last").cum_max().shift().over("node", "gpu", "instance")
    overlapping = spans.filter(pl.col("first") < covered_until)
    if overlapping.is_empty():
        return []
    file, node, gpu = overlapping.select("file", "node", "gpu").row(0)
    return [source_finding("samples: files overlap", overlapping.height, f"{names[file]} on {node} GPU {gpu}")]


def _energy_findings(energies: pl.DataFrame | None) -> list[Finding]:
    """Return findings on differences of energy counter and integrated power, and on counter restarts."""
    if energies is None:
        return []
    findings = []
    both_known = energies.filter(pl.col("integrated_kwh") > 0)
    difference = pl.col("counted_kwh") / pl.col("integrated_kwh") - 1
    if both_known.height:
        total = both_known.select(pl.col("counted_kwh", "integrated_kwh").sum()).select(difference).item()
        worst = both_known.with_columns(apart=difference).sort(
            pl.col("apart").abs(), *GPU_KEY_COLUMNS, descending=[True, False, False]
        )
        node, gpu, off = worst["node", "gpu", "apart"].row(0)
        severity = "warning" if abs(off) > MAX_POWER_ERROR_FRACTION else "info"
        effect = f"energy is that of the counter: {percent_text(total, '+.2f')} against the power between the samples"
        example = f"{node} GPU {gpu}: {percent_text(off, '+.2f')}"
        findings.append(Finding(ENERGY_MISMATCH_CHECK, severity, both_known.height, effect, example))
    restarted = energies.filter(pl.col("restarts") > 0)
    if restarted.height:
        example = f"{restarted['node'][0]} GPU {restarted['gpu'][0]}"
        findings.append(source_finding("samples: counter restarts", int(restarted["restarts"].sum()), example))
    return findings
