"""Findings about telemetry and about its join to jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from gpuplanner.core.schemas import USED_FROM
from gpuplanner.core.units import percent_text
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.gpu_model_resolution import on_nodes
from gpuplanner.ingest.quality_report import Finding, check_words, reasons_of, reject_findings, source_finding
from gpuplanner.ingest.telemetry.coverage import Gaps, Seen
from gpuplanner.ingest.telemetry.device_hours import BOARD
from gpuplanner.ingest.telemetry.metric_definitions import ENGINE, GAP_FACTOR, LEGACY, NO_COUNTER
from gpuplanner.ingest.telemetry.sample_buffer import Device, device_order
from gpuplanner.ingest.telemetry.telemetry_join import (
    AGAIN,
    BETWEEN_JOBS,
    NO_JOB,
    SHARED,
    STATED,
    TOGETHER,
    WHOLE_NODE,
    Holders,
    first_part,
)

UNLISTED = "stated_not_in_jobs"
NO_NODE = "node_not_in_jobs"
LATER = "after_the_jobs"
UNMATCHED = (NO_JOB, UNLISTED, NO_NODE, LATER)
OUTCOMES = {
    STATED: "job named by the source",
    SHARED: "jobs named by the source that share a GPU",
    WHOLE_NODE: "one job was allocated all devices of the node",
    TOGETHER: "several jobs of the node, or a part of it: allocated to them together",
    NO_JOB: "no job on the node then",
    UNLISTED: "job named by the source, and not in the list of jobs",
    NO_NODE: "no job names this node",
    LATER: "the list of jobs ends before",
}
"""Outcome → what it means."""
DOUBTS = (TOGETHER, NO_JOB, UNLISTED, NO_NODE, LATER)
"""Outcomes that are worth a finding."""


def join_report(
    samples: pl.LazyFrame,
    jobs: pl.DataFrame,
    holders: Holders,
    seen: pl.DataFrame,
    until: datetime | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Sum the observed GPU-hours by how the job is known."""
    told = _outcomes(samples, jobs, holders, until)
    counts = (
        told.group_by("node", "day", "outcome")
        .agg(rows=pl.len(), used=(pl.col("sm_activity") >= USED_FROM).sum(), job_id=pl.col("job_id").min())
        .collect(engine="streaming")
    )
    hours_a_row = pl.col("observed_gpu_h") / pl.col("rows").sum().over("node", "day")
    hours = (
        counts.join(seen.select("node", "day", "observed_gpu_h"), on=["node", "day"])
        .with_columns(gpu_hours=pl.col("rows") * hours_a_row, used_gpu_hours=pl.col("used") * hours_a_row)
        .sort("node", "day", "outcome")
        .group_by("outcome")
        .agg(
            pl.col("gpu_hours", "used_gpu_hours", "rows").sum(),
            example=pl.coalesce(pl.format("job {}", "job_id"), pl.format("node {}", "node")).min(),
            node=pl.format("node {}", "node").min(),
        )
    )
    by_reason = dict.fromkeys(OUTCOMES, 0.0) | dict(hours.select("outcome", "gpu_hours").iter_rows())
    unmatched = hours.filter(pl.col("outcome").is_in(UNMATCHED))
    facts = {
        "matched_gpu_hours": by_reason[STATED] + by_reason[SHARED] + by_reason[WHOLE_NODE],
        "together_gpu_hours": by_reason[TOGETHER],
        "unmatched_gpu_hours": sum(by_reason[name] for name in UNMATCHED),
        "unmatched_used_gpu_hours": float(unmatched["used_gpu_hours"].sum()),
        "by_reason": {OUTCOMES[name]: value for name, value in by_reason.items() if value},
    }
    rows = {row["outcome"]: row for row in hours.to_dicts()}
    findings = []
    for outcome in DOUBTS:
        if outcome in rows:
            named = {NO_NODE: "node", UNLISTED: "example", LATER: "example"}.get(outcome)
            example = rows[outcome][named] if named else ""
            name, count = f"match: {outcome}", rows[outcome]["rows"]
            findings.append(source_finding(name, count, example, by_reason[outcome]))
    return facts, [*findings, *_at_work(samples), *_out_of_time(samples, jobs)]


def matched_gpu_hours(data: Dataset) -> float | None:
    """Observed GPU-hours whose job is known, or given to the jobs of a node together; None without telemetry and jobs.

    Examples
    --------
    >>> join = {"matched_gpu_hours": 3.0, "together_gpu_hours": 2.0}
    >>> matched_gpu_hours(Dataset({}, pl.DataFrame(), pl.DataFrame(), {}, join=join))
    5.0
    """
    if data.join is None:
        return None
    return float(data.join["matched_gpu_hours"] + data.join["together_gpu_hours"])


def match_words(data: Dataset) -> str | None:
    """How much of the telemetry was matched to jobs, and why the rest was not; None without telemetry and jobs.

    Examples
    --------
    >>> join = {"matched_gpu_hours": 3.0, "by_reason": {"no job names this node": 1.0}}
    >>> match_words(Dataset({}, pl.DataFrame(), pl.DataFrame(), {}, join=join))
    '3 GPU-hours of telemetry matched to jobs; no job names this node: 1'
    """
    if data.join is None:
        return None
    by_reason = data.join["by_reason"]
    rest = {OUTCOMES[name]: by_reason.get(OUTCOMES[name], 0.0) for name in (TOGETHER, *UNMATCHED)}
    parts = [f"{data.join['matched_gpu_hours']:,.0f} GPU-hours of telemetry matched to jobs"]
    if data.has_jobs and "sm_activity" in data.jobs.columns and data.jobs["sm_activity"].count():
        parts.append("where there are no samples, used and idle hours are those of the job records")
    return "; ".join([*parts, *(f"{reason}: {hours:,.0f}" for reason, hours in rest.items() if hours)])


def _outcomes(samples: pl.LazyFrame, jobs: pl.DataFrame, holders: Holders, until: datetime | None) -> pl.LazyFrame:
    """Samples with the outcome of the match; a GPU beside its instances is seen through these alone."""
    beside = holders.devices.filter(pl.col("kind").is_null()).select("node", "gpu", "instance")
    on_jobs = on_nodes(jobs.select("node_list", "gpus").unique("node_list"))["node"].drop_nulls().unique()
    known = on_jobs.to_frame("node").select(first_part(pl.col("node"))).to_series().unique()
    jobs_listed = jobs["job_id"].cast(pl.String).unique()
    together = pl.concat([holders.names["name"], holders.names["job_id"]]).unique()
    is_listed = pl.element().is_in(jobs_listed.implode())
    any_listed = together.str.split(BETWEEN_JOBS).list.eval(is_listed).list.any()
    listed = pl.col("job_id").is_in(pl.concat([jobs_listed, together.filter(any_listed)]).implode())
    stated, none = pl.col("job_evidence").is_in([STATED, SHARED]), pl.col("job_evidence") == NO_JOB
    return samples.join(beside.lazy(), on=["node", "gpu", "instance"], how="anti", nulls_equal=True).with_columns(
        day=pl.col("time").dt.date(),
        outcome=pl.when(stated & ~listed)
        .then(pl.lit(UNLISTED))
        .when(none & ~first_part(pl.col("node")).is_in(known.implode()))
        .then(pl.lit(NO_NODE))
        .when(none & (pl.lit(False) if until is None else pl.col("time") >= until))
        .then(pl.lit(LATER))
        .otherwise("job_evidence"),
    )


def _at_work(samples: pl.LazyFrame) -> list[Finding]:
    """Devices that nobody held and that were at work."""
    busy = samples.filter(pl.col("sm_activity") >= USED_FROM, pl.col("job_evidence") == NO_JOB)
    busy = busy.select(pl.len(), pl.col("node", "gpu", "time").first())
    rows, node, gpu, time = busy.collect(engine="streaming").row(0)
    if not rows:
        return []
    example = f"{node} GPU {gpu} at {time:%Y-%m-%d %H:%M:%S} UTC"
    return [source_finding("match: activity without a job", rows, example)]


def _out_of_time(samples: pl.LazyFrame, jobs: pl.DataFrame) -> list[Finding]:
    """Jobs that the telemetry saw before they began or after they ended: the clocks differ."""
    stated = (
        samples.filter(pl.col("job_evidence") == STATED)
        .group_by("job_id", "node")
        .agg(first=pl.col("time").min(), last=pl.col("time").max(), instants=pl.col("time").n_unique())
        .collect(engine="streaming")
    )
    usual = (pl.col("last") - pl.col("first")) / (pl.col("instants") - 1).clip(lower_bound=1)
    ran = jobs.group_by("job_id").agg(
        pl.col("start_time").min(),
        pl.when(pl.col("end_time").is_null().any()).then(None).otherwise(pl.col("end_time").max()).alias("end_time"),
    )
    early, late = pl.col("start_time") - pl.col("first"), pl.col("last") - pl.col("end_time")
    off = (
        stated.join(ran, on="job_id")
        .with_columns(off=pl.max_horizontal(early, late))
        .filter(pl.col("off") > GAP_FACTOR * usual)
        .sort("off", "job_id", descending=[True, False])
    )
    if off.is_empty():
        return []
    worst = off.row(0, named=True)
    example = f"job {worst['job_id']} on {worst['node']}: by {worst['off'].total_seconds():.0f} s"
    return [source_finding("match: outside their time", off.height, example)]


LOW_COVERAGE = 0.9
"""Share of a node's day below which its means are worth a warning; ``source_checks.csv`` says so in words."""

RUNGS_BELOW = (LEGACY, ENGINE, NO_COUNTER)
"""Rungs of the ladder that are worth a finding."""

POWER_ERROR = 0.05
"""Error that the driver allows itself for the power [1]_: energies further apart are worth a warning.

References
----------
.. [1] NVIDIA, NVML API reference, nvmlDeviceGetPowerUsage: accurate to within +/- 5 % of the current power draw.
"""

GAPS = "gaps between samples"
TWO_ENERGIES = "energy by the counter and by the power"
SAMPLE_CHECKS = ("sparse days", "counted twice", "counter restarts", "XID")
OF_SAMPLES = {
    *(GAPS, TWO_ENERGIES),
    *(check_words(f"samples: {name}") for name in SAMPLE_CHECKS),
    *(check_words(f"activity: {rung}") for rung in RUNGS_BELOW),
}
JUDGED_BY = ("time", "node", "gpu", "instance", "power_w", "energy_counter_j", "xid", "activity_source")
"""Columns of samples that findings are made from."""


def of_seen(seen: Seen, days: pl.DataFrame) -> list[Finding]:
    """Everything that samples tell by themselves, whatever files they came from."""
    found = [
        source_finding(f"activity: {rung}", seen.rungs[rung][0], str(seen.rungs[rung][1]))
        for rung in RUNGS_BELOW
        if rung in seen.rungs
    ]
    found += _gaps(seen.gaps)
    low = days.filter(pl.col("covered") < LOW_COVERAGE).sort("covered", "node", "day")
    if low.height:
        worst = low.row(0, named=True)
        example = f"{worst['node']} on {worst['day']}: {percent_text(worst['covered'])}"
        found.append(source_finding("samples: sparse days", low.height, example))
    if both := seen.counted_twice():
        found.append(source_finding("samples: counted twice", both[0], str(both[1])))
    found += _energies(seen.energies)
    if seen.first_error is not None:
        # An XID stays until the driver is loaded anew, so that samples tell of boards and not of errors.
        xid, place = seen.first_error
        found.append(source_finding("samples: XID", len(seen.errors), f"XID {xid}: {place}"))
    return found


def is_of_samples(check: str) -> bool:
    """True for findings of :func:`of_seen` and :func:`rejected`, which can be made anew from the tables alone.

    Examples
    --------
    >>> is_of_samples("gaps between samples"), is_of_samples("blank lines")
    (True, False)
    """
    return check in OF_SAMPLES or check.startswith(("rejected: ", "duplicates: "))


def rejected(rejects: pl.DataFrame, rows_in: int) -> list[Finding]:
    """Count the rejected rows by reason; readings that came twice are no fault."""
    repeated = rejects.filter(pl.col("reason") == AGAIN)
    found = reject_findings(reasons_of(rejects.filter(pl.col("reason") != AGAIN)), rows_in, ())
    if repeated.height:
        where = f"{repeated['file'][0]}, line {repeated['row'][0]}"
        effect = "none: each reading counts once"
        found.append(Finding("duplicates: " + AGAIN, "info", repeated.height, effect, where))
    return found


def _gaps(gaps: Gaps) -> list[Finding]:
    if gaps.longest is None:
        return []
    node, gpu, begin, step_s, usual_s = gaps.longest
    return [
        Finding(
            GAPS,
            "warning",
            gaps.count,
            f"{gaps.total_us / 3.6e9:.2f} GPU-hours were not observed; nothing is filled in",
            f"{node} GPU {gpu}: {step_s:.1f} s from {begin:%Y-%m-%d %H:%M:%S} UTC, usually {usual_s:.1f} s",
            gaps.total_us / 3.6e9,
        )
    ]


def overlaps(
    spans: Mapping[tuple[int, int], tuple[int, int]], devices: Sequence[Device], names: Sequence[str]
) -> list[Finding]:
    """Devices that two files speak of at the same time."""
    if len(names) < 2:
        return []
    ordered = sorted(
        (*device_order(devices[device]), first, file, last) for (file, device), (first, last) in spans.items()
    )
    over, known, until = [], None, 0
    for node, gpu, instance, first, file, last in ordered:
        if (node, gpu, instance) == known:
            if first < until:
                over.append((file, node, gpu))
            until = max(until, last)
        else:
            known, until = (node, gpu, instance), last
    if not over:
        return []
    file, node, gpu = over[0]
    return [source_finding("samples: files overlap", len(over), f"{names[file]} on {node} GPU {gpu}")]


def clock_went_back(falls: int, where: str) -> list[Finding]:
    """Times that fall from one row of a device to the next in the file: how many, and where the first is."""
    return [source_finding("samples: clock went back", falls, where)] if falls else []


def _energies(boards: pl.DataFrame | None) -> list[Finding]:
    """How far the energy that the counter tells is from the integral of the power."""
    if boards is None:
        return []
    found = []
    both = boards.filter(pl.col("integrated_kwh") > 0)
    apart = pl.col("counted_kwh") / pl.col("integrated_kwh") - 1
    if both.height:
        total = both.select(pl.col("counted_kwh", "integrated_kwh").sum()).select(apart).item()
        worst = both.with_columns(apart=apart).sort(pl.col("apart").abs(), *BOARD, descending=[True, False, False])
        node, gpu, off = worst["node", "gpu", "apart"].row(0)
        severity = "warning" if abs(off) > POWER_ERROR else "info"
        effect = f"energy is that of the counter: {percent_text(total, '+.2f')} against the power between the samples"
        found.append(
            Finding(TWO_ENERGIES, severity, both.height, effect, f"{node} GPU {gpu}: {percent_text(off, '+.2f')}")
        )
    anew = boards.filter(pl.col("restarts") > 0)
    if anew.height:
        example = f"{anew['node'][0]} GPU {anew['gpu'][0]}"
        found.append(source_finding("samples: counter restarts", int(anew["restarts"].sum()), example))
    return found
