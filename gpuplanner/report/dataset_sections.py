"""Page sections on a dataset: quality, GPU-hours, demand, phases of jobs and provenance."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl

from gpuplanner import report as plots
from gpuplanner._version import __version__
from gpuplanner.core.output_column_headings import text_of_code
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import percent_text
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.usage.dataset_description_and_data_quality import DataQuality, findings_by_figure
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset
from gpuplanner.usage.requested_demand import pool_demand

DEMAND_CHART_DAYS = 14
"""Days of past demand that charts show; tables have the whole record."""
_NO_TELEMETRY_TEXT = "No telemetry of jobs: ingest it, or choose another dataset."
"""Note in place of a section that needs telemetry of jobs."""
_NO_MIG_TEXT = "The data do not name a GPU model with MIG: open them with one (gpu_model=)."
"""Note in place of a section that needs a GPU model with MIG."""


def render_quality_section(data_quality: DataQuality) -> HtmlSection:
    """Render data-quality findings, rows read and telemetry coverage of a dataset."""
    facts = data_quality.read
    rejected_text = f"{facts.rows_rejected:,} rejected with a reason" if facts.rows_rejected else "none rejected"
    read_text = (
        f"Source {facts.source}: {facts.rows_in:,} rows read, {facts.rows_kept:,} kept, {rejected_text}. "
        "Check this first: all figures rest on these rows."
    )
    coverage_text = plots.coverage_text(data_quality.coverage)
    return page.section(
        "Data quality",
        page.paragraph(read_text),
        page.figure(
            page.add_side_padding(plots.plot_quality(findings_by_figure(data_quality.findings))),
            title="Findings, by the figures that they affect",
            alt=plots.quality_text(data_quality.findings),
            numbers=data_quality.findings,
        ),
        page.figure(
            page.add_side_padding(plots.plot_intake(data_quality.intake)),
            title="Jobs submitted and rows rejected, by day",
            alt=f"{plots.intake_text(data_quality.intake)} Days without jobs: an outage or missing rows.",
            numbers=data_quality.intake,
        ),
        page.note(coverage_text)
        if data_quality.coverage is None
        else page.figure(
            page.add_side_padding(plots.plot_coverage(data_quality.coverage)),
            title="Telemetry coverage by node",
            alt=f"{coverage_text} The ledger also counts the mean activity of jobs as telemetry. "
            "Full bar: full coverage; cross: no sample; blank: before the first or after the last sample.",
            numbers=data_quality.coverage,
        ),
    )


def render_quality_page(data_quality: DataQuality, *, title: str) -> str:
    """Render a whole page about the data quality of a dataset, see :func:`gpuplanner.report.html_page.render_page`."""
    source_facts = data_quality.read
    span = [datetime.fromisoformat(item) for item in (source_facts.span_start, source_facts.span_end) if item]
    times = [f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}" for instant in span]
    subtitle = " to ".join(times) + " UTC" if len(times) == 2 else "without times"
    origin = {"source": source_facts.source, "gpuplanner": __version__}
    origin |= {item.name: item.sha256 for item in source_facts.files}
    return page.render_page(render_quality_section(data_quality), title=title, subtitle=subtitle, provenance=origin)


def render_quality_svg(data_quality: DataQuality) -> str:
    """Draw the charts of data quality as one SVG.

    Examples
    --------
    >>> from gpuplanner.usage.dataset_description_and_data_quality import data_quality
    >>> render_quality_svg(data_quality("sample"))[:4]
    '<svg'
    """
    charts = [plots.plot_quality(findings_by_figure(data_quality.findings)), plots.plot_intake(data_quality.intake)]
    if data_quality.coverage is not None:
        charts.append(plots.plot_coverage(data_quality.coverage))
    words = [plots.quality_text(data_quality.findings), plots.intake_text(data_quality.intake)]
    return page.charts_to_titled_svg(charts, [*words, plots.coverage_text(data_quality.coverage)])


def render_ledger_section(dataset: ExploredDataset, tenant: str = ALL_TENANTS_LABEL) -> HtmlSection:
    """Render GPU-hours by bucket and month, with activity and end states of allocated GPU-hours."""
    ledger_rows, activity, ended = (
        dataset.rows_of(table, tenant)
        for table in (dataset.gpu_hour_ledger, dataset.activity, dataset.allocated_by_end_state)
    )
    by_month = dataset.months(tenant).with_columns(pl.col("period").dt.to_string("%Y-%m"))
    months = page.table(
        by_month,
        caption=f"GPU-hours by month ({dataset.tz}), {tenant}",
        formats=dict.fromkeys(by_month.columns[1:], ",.1f"),
        headings={"period": "month", "gpu_hours": "all"},
    )
    idle, lost = _describe_idle_hours(activity), _describe_lost_hours(ended)
    states = ended.group_by("state", "lost", maintain_order=True).agg(pl.col("attempts", "gpu_hours").sum())
    allocated_figures = [
        page.figure(
            page.add_side_padding(plots.plot_allocated_activity(activity)),
            title="Allocated GPU-hours by observed activity",
            alt=f"{idle} Activity is from samples, else the mean activity of the job in the source; neither: without "
            "telemetry. An allocated GPU without a process can be released at once.",
            numbers=activity,
        ),
        page.figure(
            page.add_side_padding(plots.plot_allocated_end_states(ended)),
            title="Allocated GPU-hours by end state",
            alt=f"{lost} Work saved by checkpoints is not known.",
            numbers=states.sort("gpu_hours", "state", descending=[True, False]),
        ),
    ]
    if tenant != ALL_TENANTS_LABEL:
        return page.section(f"GPU-hours of {tenant}", *allocated_figures, months)
    buckets = dataset.buckets()
    largest = buckets.sort("gpu_hours", descending=True, nulls_last=True).row(0, named=True)
    bucket_figure = page.figure(
        plots.plot_ledger(ledger_rows, tz=dataset.tz),
        title="Installed GPU-hours by bucket",
        alt=f'Every installed GPU-hour is in one bucket; the largest, "{text_of_code(largest["bucket"])}", has '
        f"{percent_text(largest['share'])}.",
        numbers=buckets,
    )
    return page.section("GPU-hours by bucket", bucket_figure, *allocated_figures, months)


def render_demand_section(dataset: ExploredDataset, tenant: str = ALL_TENANTS_LABEL) -> HtmlSection:
    """Render demand by profile and by team."""
    demand_rows = dataset.rows_of(dataset.demand_series, tenant)
    sums = demand_rows.group_by("tenant", "profile", maintain_order=True).agg(
        mean_instances=pl.col("y").mean(), p95_instances=pl.col("y").quantile(0.95), most_instances=pl.col("y").max()
    )
    table = sums.sort("mean_instances", "tenant", "profile", descending=[True, False, False])
    first = table.row(0, named=True) if table.height else None
    largest_text = "No demand." if first is None else (
        f"Largest: {'full GPUs' if first['profile'] == FULL_GPU else 'instances of ' + first['profile']} of "
        f"{first['tenant']}, mean {first['mean_instances']:.1f}, "
        f"peak {first['most_instances']:.0f} over the whole record. "
    )  # fmt: skip
    panel_note = f"The last {DEMAND_CHART_DAYS} days, each panel on its own scale"
    model_text = f" ({dataset.fleet.name})" if dataset.fleet.name else ""
    panel_note += " (dashed upright lines: the level changed; rings: unusual days)"
    parts = [
        page.figure(
            plots.plot_demand(
                pool_demand(demand_rows) if demand_rows.height else demand_rows, history_days=DEMAND_CHART_DAYS
            ),
            title=f"Demand by profile{model_text}, {tenant} [instances]",
            alt=f"{largest_text}{panel_note}; unconstrained demand, without queue waits.",
            numbers=table,
        )
    ]
    if tenant == ALL_TENANTS_LABEL:
        chart = plots.plot_demand(dataset.demand_gpus, by="tenant", history_days=DEMAND_CHART_DAYS, unit="GPUs")
        text = "a slice counts as its share of a GPU. Teams with different peak hours can share GPUs."
        hourly = dataset.demand_gpus.group_by("tenant", "ds", maintain_order=True).agg(pl.col("y").sum())
        gpus = pl.col("y")
        team_gpus = hourly.group_by("tenant", maintain_order=True).agg(
            mean_gpus=gpus.mean(), p95_gpus=gpus.quantile(0.95), peak_gpus=gpus.max()
        )
        team_gpus = team_gpus.sort("mean_gpus", "tenant", descending=[True, False])
        figure = page.figure(chart, title="Demand by team [GPUs]", alt=f"{panel_note}; {text}", numbers=team_gpus)
        parts.append(figure)
    return page.section("Demand", *parts)


def render_phase_section(dataset: ExploredDataset, job: str = "") -> HtmlSection:
    """Render phases, utilization dips, bottleneck and MIG slice of a job; default: that with most samples."""
    title = "Phases of one job"
    jobs = dataset.jobs_of()
    if not jobs:
        return page.section(title, page.note(_NO_TELEMETRY_TEXT))
    if not dataset.fleet.can_be_cut:
        return page.section(title, page.note(_NO_MIG_TEXT))
    name = job or jobs[0]
    view = dataset.job(name)
    facts = dataset.jobs_with_telemetry.filter(job_id=name).row(0, named=True)
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
    run_h = pl.col("run_s") / 3600
    shown = table.select(*columns, "gpu_hours", "cost", "profile_phase", "evidence").with_columns(run_h=run_h)
    cost_columns = shown.select("phase", "label", "run_h", "gpu_hours", "cost", "bound", "profile_phase", "evidence")
    money = "" if view.price is None else f", {view.price.currency}"
    headings = {
        "bound": "bound by", "profile_phase": "smallest slice", "evidence": "evidence", "gpu_hours": "GPU-hours",
        "cost": f"cost{money}",
    }  # fmt: skip
    formats = {"run_h": ".2f", "gpu_hours": ".2f", "cost": ",.2f"}
    dip_table = page.table(spikes.select("start", "label", "depth", "lost_s", "evidence"), caption="Dips")
    dip_table = f"<details><summary>Dips as a table</summary>\n{dip_table}\n</details>"
    gpus_text = "GPUs not known" if facts["gpus"] is None else f"{facts['gpus']:g} GPU{'s' * (facts['gpus'] != 1)}"
    return page.section(
        title,
        page.paragraph(f"{name}: {facts['job_class'] or 'no class'}, {gpus_text}, {facts['tenant']}."),
        page.figure(
            plots.plot_phases(view.samples, table.drop_nulls("label"), spikes.rename({"start": "time"})),
            title=f"Activity of the GPUs of {name}",
            alt=f"Phases: {steps}. {dips}.",
            numbers=shown.drop("evidence", "run_s"),
        ),
        page.paragraph(f"Bound by: {view.bound} ({view.evidence}). {fit} {_describe_phase_cost(table, view.price)}"),
        page.table(cost_columns, caption="Cost, signature and slice of each phase", headings=headings, formats=formats),
        dip_table if spikes.height else "",
    )


def _describe_phase_cost(table: pl.DataFrame, price: GpuHourPrice | None) -> str:
    """Describe in a sentence the cost of a job and of its phases without GPU activity; empty without a price."""
    if price is None or table["cost"].null_count():
        return ""
    quiet = table.filter(pl.col("label").is_in(["setup", "input-stall", "cool-down", "idle"]))["cost"].sum()
    unit = f"{price.currency} at {price.value:g} a GPU-hour ({price.source.partition(':')[0]})"
    return f"Cost: {table['cost'].sum():,.2f} {unit}, {quiet:,.2f} of it in phases without activity."


def render_claim_section(dataset: ExploredDataset) -> HtmlSection:
    """Render evidence on the claim that later phases of jobs need fewer GPUs, and the bottleneck of each job class."""
    title = "Do later phases of jobs need fewer GPUs?"
    if dataset.claim is None or dataset.signatures is None:
        return page.section(title, page.note(_NO_TELEMETRY_TEXT if dataset.job_phases is None else _NO_MIG_TEXT))
    first = dataset.claim.row(0, named=True)
    verdict = f"Verdict: {first['verdict']}, from {first['jobs']} jobs; {first['reason']}."
    verdicts = dataset.claim["verdict"].n_unique()
    depends = " Other definitions of phase or need give another verdict: see the table." if verdicts > 1 else ""
    largest_class = dataset.signatures.sort("gpu_hours", descending=True).row(0, named=True)
    return page.section(
        title,
        page.note(verdict + depends),
        page.table(
            dataset.claim,
            caption=f"Demand of later phases over earlier ones. {_CLAIM_TABLE_NOTE}",
            formats=_RATIO_FORMATS,
            headings=_CLAIM_HEADINGS,
        ),
        page.figure(
            page.add_side_padding(plots.plot_signatures(dataset.signatures)),
            title="Bottleneck of each job class",
            alt=f"Most sampled GPU-hours: {largest_class['job_class']}, bound by {largest_class['bound']}. Classes not "
            "bound by compute may fit a smaller slice: see the table.",
            numbers=dataset.signatures,
        ),
    )


def render_provenance_section(dataset: ExploredDataset) -> HtmlSection:
    """Render source, files and versions of a dataset."""
    source_facts = dataset.trace.source_facts
    facts = {
        "source": source_facts.source,
        "span": f"{source_facts.span_start} to {source_facts.span_end} (UTC)",
        "rows": f"{source_facts.rows_kept:,} of {source_facts.rows_in:,} kept, {source_facts.rows_rejected:,} rejected",
        "files": ", ".join(f"{file.name} (sha256 {file.sha256})" for file in source_facts.files) or "none",
        "notes": "; ".join(source_facts.notes) or "none",
        "GPU model": dataset.fleet.name or "not named",
        "zone": dataset.tz,
        "read with": f"gpuplanner {source_facts.gpuplanner}",
        "shown with": f"gpuplanner {__version__}",
    }
    return page.section("Provenance", page.value_table(facts, caption="Source of these figures"))


_RATIO_FORMATS = {"ratio": ".2f", "low": ".2f", "high": ".2f"}
"""Formats of the ratios of later to earlier demand, by column."""
_CLAIM_HEADINGS = {"part": "phases by", "need": "need by", "ratio": "later / earlier"}
"""Headings of the table on the demand of later phases of jobs, by column."""
_CLAIM_TABLE_NOTE = (
    "By thirds: the last of the run against the first. By phases: after the longest phase of the highest level."
)
"""Note under the table of demand of later phases: how phases of a job are divided."""


def _describe_idle_hours(activity: pl.DataFrame) -> str:
    """Describe in a sentence the shares of allocated GPU-hours that were used, idle and without telemetry."""
    sums = activity.sum()
    allocated = sum(float(sums[part].item() or 0) for part in sums.columns if part != "tenant")
    if not allocated:
        return "No GPU was allocated."
    share = {part: float(sums[part].item()) / allocated for part in sums.columns if part != "tenant"}
    if share["no_telemetry"] == 1:
        return "No telemetry: activity of allocated GPUs is not known."
    return (
        f"Of the allocated GPU-hours {percent_text(share['used'])} were used, "
        f"{percent_text(share['idle_with_process'])} idle with a process, "
        f"{percent_text(share['idle_without_process'])} idle without one, "
        f"{percent_text(share['no_telemetry'])} without telemetry."
    )


def _describe_lost_hours(ended: pl.DataFrame) -> str:
    """Describe in a sentence the share of unsuccessful jobs in the allocated GPU-hours."""
    allocated = float(ended["gpu_hours"].sum())
    if not allocated:
        return "No GPU was allocated."
    lost = ended.filter("lost")
    share = float(lost["gpu_hours"].sum()) / allocated
    if lost.is_empty():
        return "No unsuccessful job is known."
    worst = lost.group_by("state").agg(pl.col("gpu_hours").sum()).sort("gpu_hours", "state").row(-1)
    return f"Unsuccessful jobs: {percent_text(share, '.1f')} of the allocated GPU-hours, mostly {worst[0]}."
