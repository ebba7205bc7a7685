"""What happened: where GPU-time went, who asked for too much, what small jobs would have needed by week."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.demand import demand_series, weekly
from gpuplanner.errors import GpuPlannerError, require_sound
from gpuplanner.inbox import Dataset
from gpuplanner.ledger import (
    by_bucket,
    by_node,
    by_tenant,
    dark_share,
    gpu_time_ledger,
    held_by_activity,
    held_by_state,
    installed_gpu_hours,
    reconcile,
    requested_allocated_active,
    slice_hours,
)
from gpuplanner.ledger.held import LOST_STATES
from gpuplanner.ledger.pools import gpu_jobs
from gpuplanner.ledger.window import Window
from gpuplanner.planner import PlanProblem, plan
from gpuplanner.scenario import Scenario
from gpuplanner.study.past.closed_nodes import out_of_service
from gpuplanner.study.past.fleet import installed
from gpuplanner.study.past.history import VIEWS, History, begin_of, end_of, history
from gpuplanner.study.stages import stage
from gpuplanner.units import HOURS_PER_WEEK

WEEKLY_QUANTILE = 0.95
LEAST_OBSERVED = 0.5
"""Share of the held hours of a day that must have been observed for its activity to be said."""
CLOSES = 1e-6
"""A ledger that differs from what is installed by a larger share is refused."""
DESCRIBED = (
    "tenant", "partition", "job_class", "submit_time", "start_time", "end_time", "state", "gpus", "gpu_model",
    "profile_requested", "instances", "nodes", "node_list", "time_limit_s", "sm_activity", "memory_peak_gib",
    "quarantined", "gpus_by_memory",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that :func:`describe_jobs` looks at."""


@stage
def ledger(scenario: Scenario) -> pl.DataFrame:
    """GPU-time of the window, all jobs of the trace, whatever the workload of the plan."""
    known = history(scenario)
    return trace_ledger(known.trace, known.begin, known.end)


def trace_ledger(
    trace: Dataset, begin: datetime, end: datetime, nodes: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Ledger of a trace between two instants, over :func:`~gpuplanner.study.past.fleet.installed` GPUs."""
    if nodes is None:
        nodes = installed(trace, begin, end).inventory
    out = trace.tables.get("out_of_service")
    if out is not None:
        out = out_of_service(out, trace.jobs, nodes, begin, end)
    booked = gpu_time_ledger(
        trace.jobs, nodes, start=begin, end=end, samples=trace.samples, out_of_service=out
    )
    closed = reconcile(booked, installed_gpu_hours(nodes, begin, end), tolerance=CLOSES)
    if not closed["balanced"]:
        text = "{ledger_gpu_hours:,.2f} GPU-hours booked, {installed_gpu_hours:,.2f} installed".format(
            **closed
        )
        require_sound("ledger", [text])
    return booked


def rightsizing_table(known_jobs: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Jobs by what they asked for and what they need, with GPU-hours and evidence."""
    both = pl.concat(
        [
            known_jobs.select("job_class", "gpus", "run_s"),
            sizes.select("profile_requested", "profile_needed", "evidence"),
        ],
        how="horizontal",
    )
    return (
        both.group_by("profile_requested", "profile_needed")
        .agg(
            jobs=pl.len(),
            gpu_hours=(pl.col("gpus") * pl.col("run_s")).sum() / 3600.0,
            with_evidence=(pl.col("evidence") != "request").sum(),
        )
        .sort("jobs", "profile_requested", "profile_needed", descending=[True, False, False])
    )


@stage
def weeks(scenario: Scenario) -> pl.DataFrame:
    """Week by week: what each view of the small jobs wants, and the fewest GPUs that serve it.

    Small jobs are those that ask for at most one GPU. The figures cover the 95 % quantile of the hours of each
    week, by the integer optimum of a single slot; ``whole`` gives every such job a GPU of its own.
    """
    known = history(scenario)
    small = {view: known.views[view].filter(pl.col("gpus") <= 1) for view in VIEWS}
    start, end = begin_of(known.trace), known.plan_start
    demand = {
        view: demand_series(
            jobs, start=start.replace(minute=0, second=0, microsecond=0), end=end, clock="wanted"
        )
        for view, jobs in small.items()
    }
    if demand["whole"].is_empty():
        return pl.DataFrame()
    summed = {view: weekly(series, quantile=WEEKLY_QUANTILE) for view, series in demand.items()}
    rows = []
    for week, slots in summed["whole"].select("week", "slots").unique(maintain_order=True).iter_rows():
        fewest = {
            view: _fewest_gpus(scenario, known, table.filter(week=week)) for view, table in summed.items()
        }
        whole = summed["whole"].filter(week=week)
        rows.append(
            {
                "week": week.date(),
                "hours": slots,
                "mean_gpus_whole": float(whole["mean"].sum()),
                "gpus_whole": fewest["whole"][0],
                "gpus_requested": fewest["requested"][0],
                "gpus_rightsized": fewest["rightsized"][0],
                "layouts_rightsized": fewest["rightsized"][1],
            }
        )
    return pl.DataFrame(rows)


def _fewest_gpus(scenario: Scenario, known: History, wanted: pl.DataFrame) -> tuple[int, str]:
    """Fewest GPUs for one demand vector, and their layouts in words."""
    wanted = wanted.filter(pl.col("quantile") > 0)
    if wanted.is_empty():
        return 0, "-"
    ceiling = int(wanted["quantile"].ceil().sum())
    problem = PlanProblem(
        known.fleet.board, ceiling, known.fleet.node_size, wanted["week"][0], HOURS_PER_WEEK, ["all"],
        wanted["profile"].to_list(), wanted["quantile"].to_numpy().reshape(1, -1, 1), unmet_price=1e4,
    )  # fmt: skip
    found = plan(problem, **scenario.but(gap_target=0.0).effort).require()
    layouts = [
        f"{count} x {text}" for text, count in zip(found.layouts, found.counts[0], strict=True) if count
    ]
    return int(found.counts[0].sum()), "; ".join(layouts)


@stage
def use(scenario: Scenario) -> pl.DataFrame:
    """GPUs on average by local day of the window: asked for, held and active; see :func:`use_by_day`."""
    known = history(scenario)
    return use_by_day(known.trace, Window(known.begin, known.end), tz=scenario.tz)


def use_by_day(trace: Dataset, window: Window, *, tz: str) -> pl.DataFrame:
    """``day, requested_gpus, allocated_gpus, active_gpus``: GPUs on average by local day.

    Requested is what jobs wanted from their submission to their end, allocated what they held. Active is what was held
    times the mean SM activity of the job, as its source states it or as telemetry joined to it says; what was not seen
    counts as what was, and a day of which less than half was seen has none.
    """
    jobs = gpu_jobs(trace.jobs.lazy(), window).collect()
    if trace.samples is not None:
        seen = trace.samples.drop_nulls("job_id").group_by("job_id").agg(seen=pl.col("sm_activity").mean())
        jobs = jobs.join(seen, on="job_id", how="left", maintain_order="left")
        jobs = jobs.with_columns(pl.col("sm_activity").fill_null(pl.col("seen")))
    held = jobs.filter(pl.col("start_time").is_not_null())
    known = held.filter(pl.col("sm_activity").is_not_null())
    working = known.with_columns(working=pl.col("gpus") * pl.col("sm_activity"))
    parts = {
        "requested_gpus": window.spans(jobs, "submit_time", "end_time", "gpus"),
        "allocated_gpus": window.spans(held, "start_time", "end_time", "gpus"),
        "seen": window.spans(known, "start_time", "end_time", "gpus"),
        "working": window.spans(working, "start_time", "end_time", "working"),
    }
    alone = {name: np.zeros(len(one.gpus), np.int64) for name, one in parts.items()}
    hours = pl.DataFrame({name: one.by_hour(window.hours, alone[name], 1)[0] for name, one in parts.items()})
    start = pl.lit(window.origin).dt.convert_time_zone(tz)
    day = (start + pl.duration(hours=pl.int_range(pl.len()))).dt.date()
    days = hours.group_by(day=day, maintain_order=True).agg(pl.all().mean())
    told = (pl.col("seen") > 0) & (pl.col("seen") >= LEAST_OBSERVED * pl.col("allocated_gpus"))
    active = pl.when(told).then(pl.col("allocated_gpus") * pl.col("working") / pl.col("seen"))
    return days.select("day", "requested_gpus", "allocated_gpus", active_gpus=active)


@dataclass(frozen=True)
class Quarantined:
    """Jobs that are left out of every figure, and the GPU-hours that they state [GPU h]."""

    jobs: int
    gpu_hours: float


@dataclass(frozen=True)
class JobFacts:
    """How many jobs of how many tenants; and, where they have a span, the fleet and how much of it stood dark.

    ``lost_gpu_hours`` were held by attempts that did not complete [GPU h].
    """

    jobs: int
    quarantined: Quarantined | None
    tenants: int
    installed_gpu_hours: float | None = None
    dark_share: float | None = None
    installed_gpus: float | None = None
    fleet: str | None = None
    boards: str | None = None
    lost_gpu_hours: float | None = None


@dataclass(frozen=True, eq=False)
class JobsDescribed:
    """What jobs did: facts, tables by title, and the ledger in full, which only jobs with a span have."""

    facts: JobFacts
    tables: Mapping[str, pl.DataFrame]
    hours: pl.DataFrame | None = None


def describe_jobs(trace: Dataset, *, nodes: bool = False) -> JobsDescribed:
    """Say what the jobs of a dataset did, without planning anything."""
    begin, end = begin_of(trace), end_of(trace)
    jobs, stated = trace.jobs, trace.stated
    left_out = Quarantined(stated.rows_quarantined, stated.quarantined_gpu_hours)
    facts = JobFacts(jobs.height, left_out if left_out.jobs else None, jobs["tenant"].n_unique())
    classes = _classes(jobs)
    if end <= begin:
        return JobsDescribed(facts, classes)
    there = installed(trace, begin, end)
    booked = trace_ledger(trace, begin, end, there.inventory)
    by_each = {"GPU-hours by node": by_node(jobs, there.inventory, start=begin, end=end)} if nodes else {}
    known = replace(
        facts,
        installed_gpu_hours=float(booked["gpu_hours"].sum()),
        dark_share=dark_share(booked)["dark"],
        installed_gpus=there.gpus,
        fleet=there.origin,
        boards=there.listed,
        lost_gpu_hours=float(held_by_state(jobs, start=begin, end=end).filter("lost")["gpu_hours"].sum()),
    )
    window = Window(begin, end)
    tables = {
        "ledger": by_bucket(booked),
        **_slices(jobs, there.inventory, begin, end),
        **classes,
        **{f"held and waited by {word}": table for word, table in by_each_group(jobs, window).items()},
        "tenants": by_tenant(booked),
        **by_each,
        "GPU-hours asked for, given and active": requested_allocated_active(jobs, start=begin, end=end),
        "GPU-hours by how attempts ended": held_by_state(jobs, start=begin, end=end)
        .group_by("state", "lost")
        .agg(pl.col("attempts", "gpu_hours").sum())
        .sort("gpu_hours", "state", descending=[True, False]),
        "held GPU-hours by what was seen": held_by_activity(jobs, trace.samples, start=begin, end=end),
    }
    return JobsDescribed(known, tables, booked)


GROUPS = {"tenant": "tenant", "partition": "partition", "board": "gpu_model", "profile": "profile_requested"}
"""What jobs are told apart by, and the column that says it."""
UNNAMED = "not named"
_WAITS = (0.5, 0.95, 0.99)


def by_each_group(jobs: pl.DataFrame, window: Window) -> dict[str, pl.DataFrame]:
    """GPU-hours held, lost and waited for, by tenant, partition, board and profile; what no job names is left out.

    Each table has a row a group, most GPU-hours first: ``jobs``, ``gpu_hours``, ``lost_gpu_hours`` of attempts that did
    not complete, and the 50 %, 95 % and 99 % quantiles of the wait that was observed [min], null where the source
    records no waits. The GPU-hours of every table sum to what jobs held.
    """
    held = window.overlap_h("start_time", "end_time") * pl.col("gpus")
    waited = (pl.col("start_time") - pl.col("submit_time")).dt.total_seconds() / 60.0
    known = gpu_jobs(jobs.lazy(), window).collect()
    if (
        known.select((waited > 0).any()).item() is not True
    ):  # the submission stands for a start that is not recorded
        waited = pl.lit(None, pl.Float64)
    began = pl.col("start_time").is_not_null()
    rows = known.with_columns(
        held=pl.when(began).then(held).otherwise(0.0), waited=pl.when(began).then(waited),
        lost=pl.col("state").cast(pl.String).is_in(LOST_STATES),
    )  # fmt: skip
    found = {}
    for word, column in GROUPS.items():
        if column not in rows.columns or rows[column].null_count() == rows.height:
            continue
        rest = "whole GPU" if column == "profile_requested" else UNNAMED
        found[word] = (
            rows.group_by(pl.col(column).cast(pl.String).fill_null(rest).alias(word))
            .agg(
                jobs=pl.len(),
                gpu_hours=pl.col("held").sum(),
                lost_gpu_hours=pl.col("held").filter("lost").sum(),
                **{
                    f"wait_minutes_p{100 * one:.0f}": pl.col("waited").quantile(one, "higher")
                    for one in _WAITS
                },
            )
            .sort("gpu_hours", word, descending=[True, False])
        )
    return found


def _slices(
    jobs: pl.DataFrame, nodes: pl.DataFrame, begin: datetime, end: datetime
) -> dict[str, pl.DataFrame]:
    """Slices installed and what became of them, where nodes are cut as they state it."""
    if "layouts" not in nodes.columns or nodes["layouts"].null_count() == nodes.height:
        return {}
    numbered = jobs.with_columns(job_id=pl.int_range(pl.len()).cast(pl.String), attempt=1)
    try:
        return {"slices by what held them": slice_hours(numbered, nodes, start=begin, end=end)}
    except GpuPlannerError as error:  # the layouts, as they are stated, do not hold what jobs held
        return {"slices, not reconciled": pl.DataFrame({"why": [str(error)]})}


def _classes(jobs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Jobs by class, or by tenant where the source names no classes."""
    wait_h = (pl.col("start_time") - pl.col("submit_time")).dt.total_seconds() / 3600
    # Sources without a start take the submission for it: no wait at all is one not recorded, not one of zero.
    if jobs.select((wait_h > 0).any()).item() is not True:
        wait_h = pl.lit(None, pl.Float64)
    run_h = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / 3600
    by = "job_class" if jobs["job_class"].null_count() < jobs.height else "tenant"
    classes = jobs.group_by(by).agg(
        jobs=pl.len(),
        median_gpus=pl.col("gpus").median(),
        median_run_h=run_h.median(),
        p95_run_h=run_h.quantile(0.95),
        mean_wait_h=wait_h.mean(),
        failed_fraction=(pl.col("state") == "FAILED").mean(),
    )
    return {f"jobs by {by}": classes.cast({by: pl.String}).sort("jobs", by, descending=[True, False])}
