"""Page sections on a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import polars as pl

from gpuplanner import report as plots
from gpuplanner._version import __version__
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units import percent_text
from gpuplanner.hardware.power_and_carbon import GpuHourPrice
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import Section, Text, still
from gpuplanner.usage.dataset_description import DataQuality, by_figure
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset
from gpuplanner.usage.requested_demand import pool_demand

HISTORY_DAYS = 14
"""Days of demand that are drawn; the tables cover all."""
_TELEMETRY = "No telemetry of jobs: ingest it, or choose another dataset."
_GPU_MODEL = "The data do not name a GPU model with MIG: open them with one (gpu_model=)."


def quality(found: DataQuality) -> Section:
    """Findings on the data, and coverage of telemetry."""
    stated = found.read
    refused = f"{stated.rows_rejected:,} rejected with a reason" if stated.rows_rejected else "none rejected"
    read = (
        f"Source {stated.source}: {stated.rows_in:,} rows read, {stated.rows_kept:,} kept, {refused}. "
        "Check this first: all figures rest on these rows."
    )
    seen = plots.coverage_text(found.coverage)
    return page.section(
        "Data quality",
        page.paragraph(read),
        page.figure(
            page.roomy(plots.plot_quality(by_figure(found.findings))),
            title="Findings, by the figures that they affect",
            alt=plots.quality_text(found.findings),
            numbers=found.findings,
        ),
        page.figure(
            page.roomy(plots.plot_intake(found.intake)),
            title="Jobs submitted and rows rejected, by day",
            alt=f"{plots.intake_text(found.intake)} Days without jobs: an outage or missing rows.",
            numbers=found.intake,
        ),
        page.note(seen)
        if found.coverage is None
        else page.figure(
            page.roomy(plots.plot_coverage(found.coverage)),
            title="Telemetry coverage by node",
            alt=f"{seen} Full bar: full coverage; cross: no sample; blank: before the first or after the last sample.",
            numbers=found.coverage,
        ),
    )


def quality_page(found: DataQuality, *, title: str) -> str:
    """A page of its own about the quality of the data, as :func:`gpuplanner.report.html_page.render_page` makes it."""
    stated = found.read
    span = [stated.span_start, stated.span_end]
    subtitle = " to ".join(_minute(each) for each in span if each) + " UTC" if all(span) else "without times"
    origin = {"source": stated.source, "gpuplanner": __version__}
    origin |= {each.name: each.sha256 for each in stated.files}
    return page.render_page(quality(found), title=title, subtitle=subtitle, provenance=origin)


def _minute(instant: str) -> str:
    """An instant as people read it, in UTC."""
    return f"{datetime.fromisoformat(instant).astimezone(UTC):%Y-%m-%d %H:%M}"


def quality_svg(found: DataQuality) -> str:
    """The charts of data quality as one SVG.

    Examples
    --------
    >>> from gpuplanner.usage.dataset_description import data_quality
    >>> quality_svg(data_quality("sample"))[:4]
    '<svg'
    """
    charts = [plots.plot_quality(by_figure(found.findings)), plots.plot_intake(found.intake)]
    if found.coverage is not None:
        charts.append(plots.plot_coverage(found.coverage))
    words = [plots.quality_text(found.findings), plots.intake_text(found.intake)]
    return page.told_svg(charts, [*words, plots.coverage_text(found.coverage)])


def ledger(box: ExploredDataset, tenant: str = ALL_TENANTS_LABEL) -> Section:
    """GPU-hours by bucket, team and month, and activity and end state of allocated GPU-hours."""
    mine, activity, ended = (
        box.rows_of(table, tenant) for table in (box.gpu_hour_ledger, box.activity, box.allocated_by_end_state)
    )
    by_month = box.months(tenant).with_columns(pl.col("period").dt.to_string("%Y-%m"))
    months = page.table(
        by_month,
        caption=f"GPU-hours by month ({box.tz}), {tenant}",
        formats=dict.fromkeys(by_month.columns[1:], ",.1f"),
        headings={"period": "month", "gpu_hours": "all"},
    )
    idle, lost = _idle_text(activity), _lost_text(ended)
    states = ended.group_by("state", "lost").agg(pl.col("attempts", "gpu_hours").sum())
    held = [
        page.figure(
            page.roomy(plots.plot_held_activity(activity)),
            title="Allocated GPU-hours by observed activity",
            alt=f"{idle} Activity is from telemetry, else the mean activity of the job in the source. An allocated GPU "
            "without a process can be released at once.",
            numbers=activity,
        ),
        page.figure(
            page.roomy(plots.plot_held_states(ended)),
            title="Allocated GPU-hours by end state",
            alt=f"{lost} Work saved by checkpoints is not known.",
            numbers=states.sort("gpu_hours", "state", descending=[True, False]),
        ),
    ]
    if tenant != ALL_TENANTS_LABEL:
        return page.section(f"GPU-hours of {tenant}", *held, months)
    buckets = box.buckets()
    largest = buckets.sort("gpu_hours", descending=True).row(0, named=True)
    whole = page.figure(
        plots.plot_ledger(mine, tz=box.tz),
        title="Installed GPU-hours by bucket",
        alt=f"Every installed GPU-hour is in one bucket; the largest is {largest['bucket'].replace('_', ' ')} with "
        f"{percent_text(largest['share'])}.",
        numbers=buckets,
    )
    return page.section("GPU-hours by bucket", whole, *held, months)


def demand(box: ExploredDataset, tenant: str = ALL_TENANTS_LABEL) -> Section:
    """Demand by profile and by team."""
    wanted = box.rows_of(box.demand_series, tenant)
    sums = wanted.group_by("tenant", "profile").agg(
        mean_instances=pl.col("y").mean(), p95_instances=pl.col("y").quantile(0.95), most_instances=pl.col("y").max()
    )
    table = sums.sort("mean_instances", "tenant", "profile", descending=[True, False, False])
    first = table.row(0, named=True) if table.height else None
    most = "No demand." if first is None else (
        f"Largest: {_instances(first['profile'])} of {first['tenant']}, mean {first['mean_instances']:.1f}, "
        f"peak {first['most_instances']:.0f} over the whole record. "
    )  # fmt: skip
    shown = f"The last {HISTORY_DAYS} days, each panel on its own scale"
    parts = [
        page.figure(
            plots.plot_demand(pool_demand(wanted) if wanted.height else wanted, history_days=HISTORY_DAYS),
            title=f"Demand by profile{_on(box)}, {tenant} [instances]",
            alt=f"{most}{shown}; unconstrained demand, without queue waits.",
            numbers=table,
        )
    ]
    if tenant == ALL_TENANTS_LABEL:
        parts.append(
            page.figure(
                plots.plot_demand(box.demand_gpus, by="tenant", history_days=HISTORY_DAYS, unit="GPUs"),
                title="Demand by team [GPUs]",
                alt=f"{shown}; a slice counts as its share of a GPU. Teams with different peak hours can share GPUs.",
            )
        )
    return page.section("Demand", *parts)


def phases(box: ExploredDataset, job: str = "") -> Section:
    """Phases, spikes, signature and slice of one job; by default of the one with most telemetry."""
    title = "Phases of one job"
    known = box.jobs_of()
    if not known:
        return page.section(title, page.note(_TELEMETRY))
    if not box.fleet.can_be_cut:
        return page.section(title, page.note(_GPU_MODEL))
    name = job or known[0]
    view = box.job(name)
    facts = box.jobs_with_telemetry.filter(job_id=name).row(0, named=True)
    table, spikes = view.phases, view.spikes.table
    steps = " → ".join(label or "no sample" for label in table["label"])
    gaps = {label: gap.total_seconds() / 60 for label, gap in view.spikes.periods.items()}
    pace = "; ".join(f"{label} every {minutes:.3g} min" for label, minutes in gaps.items())
    dips = f"{spikes.height or 'No'} short dip{'' if spikes.height == 1 else 's'}{pace and ': ' + pace}"
    saved = float(table["saved_gpu_hours"].sum())
    fit = "It runs on several GPUs, which stay full GPUs."
    if facts["gpus"] is not None and facts["gpus"] <= 1:
        fit = f"One slice for the whole job is {table['profile_job'][0]}; a slice for each phase would save at most "
        fit += f"{saved:,.1f} GPU-hours."
    columns = ["phase", "label", "start", "run_s", "sm_activity", "memory_peak_gib", "power_w", "bound"]
    shown = table.select(*columns, "gpu_hours", "cost", "profile_phase", "evidence").with_columns(
        run_h=pl.col("run_s") / 3600
    )
    costly = shown.select("phase", "label", "run_h", "gpu_hours", "cost", "bound", "profile_phase", "evidence")
    money = "" if view.price is None else f", {view.price.currency}"
    heads = {
        "bound": "bound by", "profile_phase": "smallest slice", "evidence": "evidence", "gpu_hours": "GPU-hours",
        "cost": f"cost{money}",
    }  # fmt: skip
    formats = {"run_h": ".2f", "gpu_hours": ".2f", "cost": ",.2f"}
    listed = page.table(spikes.select("start", "label", "depth", "lost_s", "evidence"), caption="Dips")
    dip_table = f"<details><summary>Dips as a table</summary>\n{listed}\n</details>"
    return page.section(
        title,
        page.paragraph(f"{name}: {facts['job_class'] or 'no class'}, {_gpus(facts['gpus'])}, {facts['tenant']}."),
        page.figure(
            plots.plot_phases(view.samples, table.drop_nulls("label"), spikes.rename({"start": "time"})),
            title=f"Activity of the GPUs of {name}",
            alt=f"Phases: {steps}. {dips}.",
            numbers=shown.drop("evidence", "run_s"),
        ),
        page.paragraph(f"Bound by: {view.bound} ({view.evidence}). {fit} {_phase_money(table, view.price)}"),
        page.table(costly, caption="Cost, signature and slice of each phase", headings=heads, formats=formats),
        dip_table if spikes.height else "",
    )


def _phase_money(table: pl.DataFrame, price: GpuHourPrice | None) -> str:
    """Cost of the job, and of its phases without activity."""
    if price is None or table["cost"].null_count():
        return ""
    quiet = table.filter(pl.col("label").is_in(["setup", "input-stall", "cool-down", "idle"]))["cost"].sum()
    unit = f"{price.currency} at {price.value:g} a GPU-hour ({price.source.partition(':')[0]})"
    return f"Cost: {table['cost'].sum():,.2f} {unit}, {quiet:,.2f} of it in phases without activity."


def claim(box: ExploredDataset) -> Section:
    """Whether later phases of jobs need fewer GPUs, and the bottleneck of each job class."""
    title = "Do later phases of jobs need fewer GPUs?"
    if box.claim is None or box.signatures is None:
        return page.section(title, page.note(_TELEMETRY if box.job_phases is None else _GPU_MODEL))
    first = box.claim.row(0, named=True)
    verdict = f"Verdict: {first['verdict']}, from {first['jobs']} jobs; {first['reason']}."
    others = box.claim["verdict"].n_unique()
    depends = " Other definitions of phase or need give another verdict: see the table." if others > 1 else ""
    worst = box.signatures.sort("gpu_hours", descending=True).row(0, named=True)
    return page.section(
        title,
        page.note(verdict + depends),
        page.table(
            box.claim, caption=f"Demand of later phases over earlier ones. {_LATER}", formats=_RATIOS, headings=_CLAIM
        ),
        page.figure(
            page.roomy(plots.plot_signatures(box.signatures)),
            title="Bottleneck of each job class",
            alt=f"Most sampled GPU-hours: {worst['job_class']}, bound by {worst['bound']}. Classes not bound by "
            "compute may fit a smaller slice: see the table.",
            numbers=box.signatures,
        ),
    )


def provenance(box: ExploredDataset) -> Section:
    """Source, files and versions."""
    kept = box.trace.source_facts
    facts = {
        "source": kept.source,
        "span": f"{kept.span_start} to {kept.span_end} (UTC)",
        "rows": f"{kept.rows_kept:,} of {kept.rows_in:,} kept, {kept.rows_rejected:,} rejected",
        "files": ", ".join(f"{each.name} (sha256 {each.sha256})" for each in kept.files) or "none",
        "notes": "; ".join(kept.notes) or "none",
        "GPU model": box.fleet.name or "not named",
        "zone": box.tz,
        "read with": f"gpuplanner {kept.gpuplanner}",
        "shown with": f"gpuplanner {__version__}",
    }
    return page.section("Provenance", page.answers(facts, caption="Source of these figures"))


View = Callable[[ExploredDataset, str, str], Text]
VIEWS: Mapping[str, View] = {
    "quality": lambda box, _tenant, _job: still(quality(box.quality_report)),
    "ledger": lambda box, tenant, _job: still(ledger(box, tenant)),
    "demand": lambda box, tenant, _job: still(demand(box, tenant)),
    "phases": lambda box, _tenant, job: still(phases(box, job)),
    "claim": lambda box, _tenant, _job: still(claim(box)),
}
"""Sections by name, as the explore panel shows them: from an inbox, a tenant and a job."""
_RATIOS = {"ratio": ".2f", "low": ".2f", "high": ".2f"}
_CLAIM = {"part": "phases by", "need": "need by", "ratio": "later / earlier"}
_LATER = "By thirds: the last of the run against the first. By phases: after the longest phase of the highest level."


def _on(box: ExploredDataset) -> str:
    return f" ({box.fleet.name})" if box.fleet.name else ""


def _idle_text(activity: pl.DataFrame) -> str:
    sums = activity.sum()
    held = sum(float(sums[part].item() or 0) for part in sums.columns if part != "tenant")
    if not held:
        return "No GPU was allocated."
    share = {part: float(sums[part].item()) / held for part in sums.columns if part != "tenant"}
    if share["no_telemetry"] == 1:
        return "No telemetry: activity of allocated GPUs is not known."
    return (
        f"Of the allocated GPU-hours {percent_text(share['used'])} were used, "
        f"{percent_text(share['idle_with_process'])} idle with a process, "
        f"{percent_text(share['idle_without_process'])} idle without one, "
        f"{percent_text(share['no_telemetry'])} without telemetry."
    )


def _lost_text(ended: pl.DataFrame) -> str:
    held = float(ended["gpu_hours"].sum())
    if not held:
        return "No GPU was allocated."
    lost = ended.filter("lost")
    share = float(lost["gpu_hours"].sum()) / held
    if lost.is_empty():
        return "No failed job is known."
    worst = lost.group_by("state").agg(pl.col("gpu_hours").sum()).sort("gpu_hours", "state").row(-1)
    return f"Failed jobs: {percent_text(share, '.1f')} of the allocated GPU-hours, mostly {worst[0]}."


def _instances(profile: str) -> str:
    return "full GPUs" if profile == FULL_GPU else f"instances of {profile}"


def _gpus(count: float | None) -> str:
    return "GPUs not known" if count is None else f"{count:g} GPU{'' if count == 1 else 's'}"
