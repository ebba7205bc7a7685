"""Accounts of a period: used, idle, over-requested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import GpuPlannerError, require_sound
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache import stage
from gpuplanner.core.step_functions import waiting_since
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.large_tables import LongJobs
from gpuplanner.usage.allocated_hours import (
    ACTIVE,
    LOST_STATES,
    allocated_by_state,
    by_node,
    gpu_hours_by_node,
    held_and_active,
    requested_allocated_active,
)
from gpuplanner.usage.fragmentation import slice_hours
from gpuplanner.usage.gpu_hour_ledger import by_bucket, by_tenant, gpu_time_ledger, reconcile, unused_share
from gpuplanner.usage.installed_capacity import out_of_service
from gpuplanner.usage.job_history import begin_of, end_of, history
from gpuplanner.usage.occupancy import Window, gpu_jobs, installed_gpu_hours, with_boards
from gpuplanner.usage.planned_fleet import installed

WEEKLY_QUANTILE = 0.95
LEAST_OBSERVED = 0.5
"""Share of the held hours of a day that must have been observed for its activity to be said."""
CLOSES = 1e-6
"""A ledger that differs from what is installed by a larger share is refused."""
DESCRIBED = (
    "job_id", "tenant", "partition", "job_class", "submit_time", "eligible_time", "start_time", "end_time", "state",
    "gpus", "gpu_model", "profile_requested", "instances", "nodes", "node_list", "time_limit_s", "sm_activity",
    "memory_peak_gib", "quarantined", "gpus_by_memory",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that ledgers look at."""
_NO_BOARD = pl.lit(None, pl.String).alias("gpu_model")


@stage
def ledger(scenario: Scenario) -> pl.DataFrame:
    """GPU-time of the window, all jobs of the trace, whatever the workload of the plan."""
    known = history(scenario)
    return trace_ledger(known.trace, known.begin, known.end)


def trace_ledger(trace: Dataset, begin: datetime, end: datetime, nodes: pl.DataFrame | None = None) -> pl.DataFrame:
    """Ledger of a trace between two instants, over :func:`~gpuplanner.usage.planned_fleet.installed` GPUs."""
    nodes = installed(trace, begin, end).inventory if nodes is None else nodes
    return pl.concat(one.ledger for one in _spans(trace, nodes, begin, end))


@dataclass(frozen=True, eq=False)
class _Span:
    """A part of the time: its jobs, its samples, and its ledger."""

    begin: datetime
    end: datetime
    jobs: pl.DataFrame
    samples: pl.DataFrame | None
    ledger: pl.DataFrame


def _spans(trace: Dataset, nodes: pl.DataFrame, begin: datetime, end: datetime) -> Iterator[_Span]:
    """The time between two instants, as much of it at once as there is room for."""
    known, out = trace.long, trace.tables.get("out_of_service")
    spans = known.spans(begin, end)
    tenants = None if out is None else known.rows(["tenant"])["tenant"].unique()
    if len(spans) > 1:  # boards are told apart in every span, or in none
        started = pl.when(pl.col("start_time").is_not_null()).then(pl.lit(begin))
        words = known.believed().select(pl.col("gpu_model").cast(pl.String), start_time=started).unique()
        if with_boards(words.collect(engine="streaming"), nodes)[1]["board"].has_nulls():
            known = replace(known, table=known.table.with_columns(_NO_BOARD))
            nodes = nodes.with_columns(_NO_BOARD)
    for first, last in spans:
        jobs, samples = known.there(first, last, DESCRIBED), trace.samples_between(first, last)
        gone = None if out is None else out_of_service(out, jobs, nodes, first, last, tenants=tenants)
        yield _Span(first, last, jobs, samples, _ledger(jobs, nodes, first, last, samples, gone))


def _ledger(
    jobs: pl.DataFrame, nodes: pl.DataFrame, begin: datetime, end: datetime,
    samples: pl.DataFrame | None, out: pl.DataFrame | None,
) -> pl.DataFrame:  # fmt: skip
    booked = gpu_time_ledger(jobs, nodes, start=begin, end=end, samples=samples, out_of_service=out)
    closed = reconcile(booked, installed_gpu_hours(nodes, begin, end), tolerance=CLOSES)
    if not closed["balanced"]:
        text = "{ledger_gpu_hours:,.2f} GPU-hours booked, {installed_gpu_hours:,.2f} installed"
        require_sound("ledger", [text.format(**closed)])
    return booked


def rightsizing_table(known_jobs: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Jobs by what they asked for and what they need, with GPU-hours and evidence."""
    hours = (pl.col("gpus") * pl.col("run_s")).sum() / 3600.0
    return (
        sizes.with_columns(known_jobs["gpus"], known_jobs["run_s"])
        .group_by("profile_requested", "profile_needed")
        .agg(jobs=pl.len(), gpu_hours=hours, with_evidence=(pl.col("evidence") != "request").sum())
        .sort("jobs", "profile_requested", "profile_needed", descending=[True, False, False])
    )


@stage
def use(scenario: Scenario) -> pl.DataFrame:
    """GPUs on average by local day of the window: asked for, held and active; see :func:`use_by_day`."""
    known = history(scenario)
    return use_by_day(known.trace, Window(known.begin, known.end), tz=scenario.tz)


def use_by_day(trace: Dataset, window: Window, *, tz: str) -> pl.DataFrame:
    """``day, requested_gpus, allocated_gpus, active_gpus``: GPUs on average by local day.

    Requested is what jobs wanted from when they were eligible to their end, allocated what they held. Active is what
    was held times the mean SM activity of the job, as its source states it or as telemetry joined to it says; what was
    not seen counts as what was, and a day of which less than half was seen has none.
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
        "requested_gpus": window.spans(jobs.with_columns(since=waiting_since()), "since", "end_time", "gpus"),
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
    unused_share: float | None = None
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
    jobs, stated = trace.long, trace.stated
    left_out = Quarantined(stated.rows_quarantined, stated.quarantined_gpu_hours)
    height, tenants = jobs.believed(["tenant"]).select(pl.len(), pl.col("tenant").n_unique()).collect().row(0)
    facts = JobFacts(height, left_out if left_out.jobs else None, tenants)
    classes = _classes(jobs)
    if end <= begin:
        return JobsDescribed(facts, classes)
    there = installed(trace, begin, end)
    booked, seen, on_nodes = [], [], []
    for one in _spans(trace, there.inventory, begin, end):
        span = {"start": one.begin, "end": one.end}
        booked.append(one.ledger)
        seen.append(held_and_active(one.jobs, one.samples, **span))
        if nodes:
            on_nodes.append(gpu_hours_by_node(one.jobs, there.inventory, **span))
    hours = pl.concat(booked)
    by_state = pl.concat(seen).group_by("tenant").agg(pl.all().sum()).sort("tenant")
    asked = requested_allocated_active(jobs, start=begin, end=end)
    ended = allocated_by_state(jobs, start=begin, end=end)
    groups = by_each_group(jobs, Window(begin, end))
    known = replace(
        facts,
        installed_gpu_hours=float(hours["gpu_hours"].sum()),
        unused_share=unused_share(hours)["unused"],
        installed_gpus=there.gpus,
        fleet=there.origin,
        boards=there.listed,
        lost_gpu_hours=float(ended.filter("lost")["gpu_hours"].sum()),
    )
    tables = {
        "ledger": by_bucket(hours),
        **_slices(jobs, there.inventory, begin, end),
        **classes,
        **{f"allocated GPU-hours and queue waits by {word}": table for word, table in groups.items()},
        "tenants": by_tenant(hours),
        **({"GPU-hours by node": by_node(pl.concat(on_nodes))} if nodes else {}),
        "GPU-hours requested, allocated and active": _as_observed(asked, by_state),
        "GPU-hours by how attempts ended": ended.group_by("state", "lost")
        .agg(pl.col("attempts", "gpu_hours").sum())
        .sort("gpu_hours", "state", descending=[True, False]),
        "allocated GPU-hours by observed activity": by_state.drop(ACTIVE),
    }
    return JobsDescribed(known, tables, hours)


def _as_observed(asked: pl.DataFrame, by_state: pl.DataFrame) -> pl.DataFrame:
    """Active hours of records and of telemetry joined to jobs, in place of those of the records alone."""
    observed = pl.sum_horizontal(pl.exclude("tenant", ACTIVE, "no_telemetry"))
    known = by_state.select("tenant", ACTIVE, observed=observed)
    active = pl.when(pl.col("observed") > 0).then(ACTIVE)
    share = (pl.col("observed") / pl.col("allocated_gpu_hours")).clip(upper_bound=1.0)
    return (
        asked.join(known, on="tenant", how="left", maintain_order="left")
        .with_columns(sm_active_gpu_hours=active, observed_share=share.fill_null(0.0))
        .drop(ACTIVE, "observed")
    )


GROUPS = {"tenant": "tenant", "partition": "partition", "board": "gpu_model", "profile": "profile_requested"}
"""What jobs are told apart by, and the column that says it."""
UNNAMED = "not named"
_WAITS = (0.5, 0.95, 0.99)
_WAIT_S = (pl.col("start_time") - waiting_since()).dt.total_seconds()


def by_each_group(jobs: LongJobs, window: Window) -> dict[str, pl.DataFrame]:
    """GPU-hours held, lost and waited for, by tenant, partition, board and profile; what no job names is left out.

    Each table has a row a group, most GPU-hours first: ``jobs``, ``gpu_hours``, ``lost_gpu_hours`` of attempts that did
    not complete, and the 50 %, 95 % and 99 % quantiles of the wait that was observed [min], null where the source
    records no waits. The GPU-hours of every table sum to what jobs held.
    """
    began, held = pl.col("start_time").is_not_null(), window.overlap_h("start_time", "end_time")
    lost = pl.col("state").cast(pl.String).is_in(LOST_STATES)
    held = pl.when(began).then(held * pl.col("gpus")).otherwise(0.0)
    sums = {"jobs": pl.len(), "gpu_hours": held.sum(), "lost_gpu_hours": held.filter(lost).sum()}
    words = {
        word: pl.col(column).cast(pl.String).fill_null("full GPU" if word == "profile" else UNNAMED)
        for word, column in GROUPS.items()
        if column in jobs.table.collect_schema()
    }
    parts = (gpu_jobs(part, window) for part in jobs.parts(DESCRIBED))
    told = _gathered(parts, words, sums, {"wait_s": _WAIT_S})
    found = {}
    for word, (table, values) in told.items():
        if table[word].to_list() == ["full GPU" if word == "profile" else UNNAMED]:
            continue
        groups = _if_any_above_0(values["wait_s"]).group_by(word)
        waits = groups.agg((_at(one, "ceil") / 60.0).alias(f"wait_minutes_p{100 * one:.0f}") for one in _WAITS)
        found[word] = table.join(waits, on=word, how="left").sort("gpu_hours", word, descending=[True, False])
    return found


Gathered = dict[str, tuple[pl.DataFrame, dict[str, pl.DataFrame]]]


def _gathered(
    parts: Iterable[pl.DataFrame],
    words: Mapping[str, pl.Expr],
    sums: Mapping[str, pl.Expr],
    values: Mapping[str, pl.Expr],
) -> Gathered:
    """By each word: sums of its groups; and of each value how often a group has it, in order, none where it is null."""
    summed: dict[str, list[pl.DataFrame]] = {word: [] for word in words}
    counted: dict[tuple[str, str], pl.DataFrame] = {}
    for part in parts:
        for word, group in words.items():
            groups = part.group_by(group.alias(word), maintain_order=True)
            summed[word].append(groups.agg(**sums))
            for name, value in values.items():
                both = part.select(group.alias(word), value=value).drop_nulls("value")
                more = both.group_by(word, "value").agg(n=pl.len())
                before = counted.get((word, name), more.clear())
                counted[word, name] = pl.concat([before, more]).group_by(word, "value").agg(pl.col("n").sum())
    return {
        word: (
            pl.concat(each).group_by(word, maintain_order=True).agg(pl.all().sum()),
            {name: counted[word, name].sort("value") for name in values},
        )
        for word, each in summed.items()
    }


def _at(share: float, rounding: str = "round") -> pl.Expr:
    """The value of that share of all, by how often each is there."""
    place = share * (pl.col("n").sum() - 1)
    place = (place + 0.5).floor() if rounding == "round" else getattr(place, rounding)()
    return pl.col("value").filter(pl.col("n").cum_sum() > place).first()


def _if_any_above_0(waits: pl.DataFrame) -> pl.DataFrame:
    """Sources without a start take the submission for it: no wait at all is one not recorded, not one of zero."""
    return waits.filter((pl.col("value") > 0).any())


def _slices(jobs: LongJobs, nodes: pl.DataFrame, begin: datetime, end: datetime) -> dict[str, pl.DataFrame]:
    """Slices installed and what became of them, where nodes are cut as they state it."""
    if "layouts" not in nodes.columns or nodes["layouts"].null_count() == nodes.height:
        return {}
    try:
        return {"slices by state": slice_hours(jobs, nodes, start=begin, end=end)}
    except GpuPlannerError as error:  # the layouts, as they are stated, do not hold what jobs held
        return {"slices, not reconciled": pl.DataFrame({"why": [str(error)]})}


def _classes(jobs: LongJobs) -> dict[str, pl.DataFrame]:
    """Jobs by class, or by tenant where the source names no classes."""
    run_s = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
    sums = {"jobs": pl.len(), "failed": (pl.col("state") == "FAILED").sum()}
    values = {"gpus": pl.col("gpus"), "run_s": run_s, "wait_s": _WAIT_S}
    classed = jobs.believed(["job_class"]).select(pl.col("job_class").is_not_null().any()).collect().item()
    by = "job_class" if classed else "tenant"
    table, told = _gathered(jobs.parts(DESCRIBED), {by: pl.col(by).cast(pl.String)}, sums, values)[by]
    middle = (_at(0.5, "floor") + _at(0.5, "ceil")) / 2
    mean = (pl.col("value") * pl.col("n")).sum() / pl.col("n").sum() / 3600
    each = (
        told["gpus"].group_by(by).agg(median_gpus=middle),
        told["run_s"].group_by(by).agg(median_run_h=middle / 3600, p95_run_h=_at(0.95) / 3600),
        _if_any_above_0(told["wait_s"]).group_by(by).agg(mean_wait_h=mean),
    )
    for one in each:
        table = table.join(one, on=by, how="left", nulls_equal=True)
    failed = pl.col("failed") / pl.col("jobs")
    classes = table.drop("failed").with_columns(table.select(failed_fraction=failed))
    return {f"jobs by {by}": classes.sort("jobs", by, descending=[True, False])}
