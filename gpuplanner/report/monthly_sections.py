"""Sections of the monthly report and of its appendix, which the report notebook calls one by one."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.output_column_headings import read_table_headings, replace_codes_by_text, text_of_code
from gpuplanner.core.units_and_number_formats import (
    count_text,
    day_text,
    gpu_figure_text,
    gpus_text,
    last_day_text,
    percent_text,
)
from gpuplanner.cost.monthly_cost_review import cost_review
from gpuplanner.decision.comparison_record import make_wait_curve_table
from gpuplanner.decision.inference_answers import list_data_warnings
from gpuplanner.decision.quota_and_placement_comparison import RulesComparison
from gpuplanner.decision.study import Study
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.report import html_page as page
from gpuplanner.report.cost_and_forecast_sections import cost_section_parts
from gpuplanner.report.first_screen import BUNDLE_LINK, Links, format_assumptions, peaks_figure, render_first_screen
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.report.inference_sections import render_services_section
from gpuplanner.report.metric_formulas import list_formulas, value_text
from gpuplanner.report.number_formats_and_glossary import escape_html
from gpuplanner.report.policy_and_team_sections import (
    render_placement_section,
    render_policy_section,
    render_team_section,
)
from gpuplanner.report.report_messages_and_pdf import find_browser

MAX_CALENDAR_GPUS = 128
"""Largest number of GPUs for which the calendar of layouts shows each GPU."""
_MODEL_CHOICE_COLUMNS = ("unique_id", "weights", "rule", "windows", "mase", "naive_mase", "coverage_90")
"""Columns of the table on the choice of forecast models."""


def demand(study: Study) -> HtmlSection:
    """Render demand by profile with its forecast and past errors; empty without a plan."""
    if study.plan is None:
        return HtmlSection("")
    history = study.tables["demand"].filter(pl.col("tenant") == "all")
    forecast, scores, choice = (
        study.tables[name].filter(pl.col("unique_id").str.starts_with("all/"))
        for name in ("forecast", "scores", "choice")
    )
    coverage, has_mig = study.headline.forecast_coverage_90, study.headline.board_has_mig
    weeks = "over the last two weeks"
    subject = f"Demand by profile {weeks}, rightsized," if has_mig else f"GPU demand {weeks}"
    alt = f"{subject} and the forecast; the history is too short to measure its error."
    if coverage is not None:
        alt = (
            f"{subject} and the forecast for {_describe_horizon(study)} with its 90 % interval, "
            f"which covered {percent_text(coverage, '.1f')} of the values at past cutoffs. Dashed upright lines: days "
            "on which the level of demand changed. Rings: days unusual for their weekday."
        )
    daily = (
        history.group_by("profile", day=pl.col("ds").dt.truncate("1d"))
        .agg(mean_instances=pl.col("y").mean(), peak_instances=pl.col("y").max())
        .sort("day", "profile")
    )
    covered = "" if coverage is None else f"; the 90 % interval covered {percent_text(coverage)} of past values"
    return page.fold(
        "Demand forecast",
        page.figure(
            plots.plot_demand(history, forecast, by="profile"),
            title="Demand by profile [instances]" if has_mig else "Demand [GPUs]",
            alt=alt,
            numbers=daily.tail(70),
            source="tables/demand.parquet, tables/forecast.parquet",
        ),
        page.figure(
            plots.plot_backtest_scores(scores),
            title="Forecast error by model at past cutoffs (MASE: error divided by the error of the seasonal naive "
            "forecast before the cutoff)",
            alt="Naive, which repeats the last value, is the baseline model. The table has the mix of models that "
            "forecasts each series, and the errors of the mix.",
            numbers=choice.select(_MODEL_CHOICE_COLUMNS).rename({"weights": "mix_of_models", "mase": "mase_of_mix"}),
        ),
        about=f"{_describe_expected_demand(study, ', rightsized' if has_mig else '')}{covered}",
        appendix=True,
    )


def _describe_horizon(study: Study) -> str:
    """Describe the length of the forecast: in whole days if it has no part of a day, else in hours."""
    hours = study.scenario.horizon_intervals * study.scenario.interval_hours
    return f"{hours:g} hours" if hours % 24 else count_text(round(hours / 24), "day")


def _describe_expected_demand(study: Study, kind: str) -> str:
    """Describe the forecast at noon of the day after the data end, with its interval where it has one."""
    figures = study.headline
    if figures.tomorrow_at is None or figures.tomorrow_gpus is None:
        return "the forecast ends before the next noon"
    at = datetime.fromisoformat(figures.tomorrow_at)
    text = f"{at:%a} {day_text(at.date())}, 12:00: {gpus_text(figures.tomorrow_gpus)}{kind}"
    if figures.tomorrow_low is None or figures.tomorrow_high is None:
        return text
    interval = f"{gpu_figure_text(figures.tomorrow_low)} to {gpu_figure_text(figures.tomorrow_high)}"
    return f"{text} (90 % interval {interval})"


def layouts(study: Study) -> HtmlSection:
    """Render the planned calendar of layouts, its lower bound and its changes; empty without a plan."""
    if study.plan is None or study.problem is None:
        return HtmlSection("")
    figures, counts = study.headline, study.tables["layout_counts"]
    has_mig, changes_table = figures.board_has_mig, study.tables["layout_changes"]
    changes = f", {figures.plan_changes} layout changes" if has_mig else ""
    start = datetime.fromisoformat(figures.plan_from)
    alt = (
        f"From {start:%Y-%m-%d %H:%M} UTC: {figures.plan_gpu_hours_on:,.0f} GPU-hours provisioned{changes}; "
        f"with changes and {figures.plan_unmet_gpu_hours:,.1f} GPU-hours of unserved demand at their prices it costs "
        f"{figures.plan_objective_gpu_hours:,.0f} GPU-hours, lower bound {figures.plan_bound_gpu_hours:,.0f} "
        f"(optimality gap {percent_text(figures.plan_gap_fraction or 0.0, '.2f')})."
    )
    hours = counts.group_by("layout", maintain_order=True).agg(
        gpu_hours=pl.col("gpus").sum() * study.scenario.interval_hours,
        least_gpus=pl.col("gpus").min(),
        peak_gpus=pl.col("gpus").max(),
    )
    fragments = [
        page.note("An alternative schedule: it is not recommended, and not in the change bundle."),
        page.figure(
            plots.plot_layout_counts(counts),
            title="GPUs by MIG layout over the plan" if has_mig else "Provisioned GPUs over the plan",
            alt=alt,
            numbers=hours.sort("gpu_hours", "layout", descending=[True, False]),
            source="tables/layout_counts.parquet",
        ),
    ]
    if study.problem.gpus <= MAX_CALENDAR_GPUS:
        off = "idle GPUs show as off and keep their layout" if study.problem.prices else "off: released"
        rows_text = "One row per GPU: provisioned as a full GPU, or off."
        if has_mig:
            rows_text = f"One row per GPU; a mark shows each repartition; {off}."
        calendar, source = study.tables["layout_plan"], "tables/layout_plan.parquet"
        chart = plots.plot_layout_calendar(calendar)
        rows = calendar.drop("parked")
        fragments.append(page.figure(chart, title="Calendar by GPU", alt=rows_text, numbers=rows, source=source))
    if changes_table.height:
        caption = f"Changes of layout, most frequent first: {study.problem.change.describe_time()}"
        formats = dict.fromkeys(("minutes", "minutes_low", "minutes_high"), ".4g")
        fragments.append(page.table(changes_table.head(25), caption=caption, formats=formats))
    title = "Alternative schedule of layouts" if has_mig else "Alternative schedule of GPUs"
    return page.fold(title, *fragments, about="hour by hour; not the recommendation", appendix=True)


PEAK_ALLOCATED_BUCKETS = ("used", "allocated_idle", "no_telemetry")
"""Buckets of the GPU-hour ledger that count as allocated in the daily peaks."""
DOWNLOAD_FILES = (
    ("Excel", "workbook.xlsx"), ("Slack/Teams text", "message.txt"), ("Markdown", "summary.md"),
    ("Notebook", "report.ipynb"), ("Parquet", "tables/README.md"), ("JSON", "study.json"),
    ("Appendix", "appendix.html"),
)  # fmt: skip
"""Link texts and paths of the files beside the report page."""
PDF_FILE = ("PDF", "report.pdf")
"""Link text and path of the report as PDF."""
CARD_FORMULA_NAMES = ("gpus", "wait", "utilization", "exhaustion")
"""Names of the formulas of the four cards, in their order."""
FORMULA_ANCHOR_PREFIX = "how-"
"""Start of the HTML anchors of formulas."""
MAX_FORMULA_ROWS = 25
"""Maximum rows shown of the table behind a formula."""
_ASSUMPTION_FIELDS = ("value", "low", "high", "unit", "source", "date")
"""Fields of an assumed value that the table of assumptions shows."""
_WEEK_HEADINGS = read_table_headings("small jobs by week")
"""Headings of the table of GPUs for small jobs by week, by column."""


def summary(study: Study) -> HtmlSection:
    """Render the recommendation of a study: target layout, cards, charts, teams and next steps."""
    return page.section(
        "Recommendation",
        render_first_screen(
            study.comparison,
            peaks=daily_peaks(study),
            period=describe_period(study),
            links=list_downloads(study),
            formula_anchors=[FORMULA_ANCHOR_PREFIX + name for name in CARD_FORMULA_NAMES],
            doubts=study.provenance.doubts,
            warnings=list_data_warnings(study.scenario),
        ),
    )


def capacity(study: Study) -> HtmlSection:
    """Render requested, allocated, active and installed GPUs, the growth of demand, and inference services."""
    decision, use = study.decision, study.tables["use"]
    is_fleet_known, gpus = not decision.fleet_inferred, study.headline.installed_gpus
    peaks = daily_peaks(study)
    growth, exhaustion = study.comparison.growth_per_week, study.comparison.exhaustion
    if growth.value is None or growth.low is None or growth.high is None:
        growth_text = f"Growth of the submitted work is not known: {growth.reason or 'nothing was simulated'}."
    else:
        until = exhaustion.reason or ""
        if exhaustion.date:
            until = f"capacity is exhausted by {day_text(exhaustion.date)}"
        growth_text = (
            f"The submitted work changes by {percent_text(growth.value, '+.1f')} per week (80 % interval "
            f"{percent_text(growth.low, '+.1f')} to {percent_text(growth.high, '+.1f')}); {until}."
        )
    headroom_text = ""
    if (headroom := study.comparison.headroom) is not None:
        headroom_text = (
            f"{count_text(decision.gpus, 'GPU')} carry {headroom.factor:.2f} times today's load within the wait target "
            f"(80 % interval {headroom.low:.2f} to {headroom.high:.2f})."
        )
    use_by_day = page.figure(
        plots.plot_use(use, gpus=gpus, is_counted=is_fleet_known),
        title="GPUs requested, allocated and active, daily mean",
        alt=plots.use_text(use),
        numbers=use,
    )
    # Without a wait curve, the first screen shows the peaks already.
    has_curve = bool(make_wait_curve_table(study.comparison).height)
    peaks_by_day = peaks_figure(peaks, gpus=gpus, is_counted=is_fleet_known) if has_curve else ""
    demand_section = page.section(
        "Demand and capacity", page.paragraph(f"{growth_text} {headroom_text}"), page.pair(use_by_day, peaks_by_day)
    )
    return HtmlSection(demand_section + render_services_section(study.comparison.inference, study.tables))


def daily_peaks(study: Study) -> pl.DataFrame:
    """Tabulate ``day, gpus``: GPUs allocated in the busiest hour of each day in the zone of the report."""
    allocated = pl.when(pl.col("bucket").cast(pl.String).is_in(PEAK_ALLOCATED_BUCKETS)).then("gpu_hours").otherwise(0.0)
    hours = study.tables["ledger"].group_by("hour", maintain_order=True).agg(gpus=allocated.sum())
    day = pl.col("hour").dt.convert_time_zone(study.scenario.tz).dt.date()
    return hours.group_by(day=day).agg(pl.col("gpus").max()).sort("day")


def describe_period(study: Study) -> str:
    """Describe the period of the report: a calendar month by name, or its first and last day."""
    begin, end = map(datetime.fromisoformat, (study.headline.observed_from, study.headline.observed_to))
    if begin.day == end.day == 1 and (end - begin).days in range(28, 32):
        return f"{begin:%b %Y}"
    return f"{day_text(begin.date())} to {last_day_text(study.headline.observed_to)}"


def list_downloads(study: Study) -> Links:
    """List the files beside the page, with their names."""
    has_bundle = study.comparison.rules is not None and study.decision.has_changes
    pdf = [PDF_FILE] if find_browser() is not None else []
    return (*([BUNDLE_LINK] if has_bundle else []), *DOWNLOAD_FILES, *pdf)


def quality(study: Study) -> HtmlSection:
    """Render the findings of the data-quality report."""
    table, facts = study.tables["quality"], study.provenance.source_facts
    findings = page.paragraph("No findings.")
    if table.height:
        findings = page.table(table, caption="Findings of the quality report")
    return page.fold(
        "Data quality",
        page.paragraph(
            f"Source {facts.source}: {facts.rows_in:,} rows read, {facts.rows_kept:,} kept, "
            f"{facts.rows_rejected:,} rejected with a reason."
        ),
        *(page.note(note) for note in facts.notes),
        findings,
        *(page.note(text) for text in study.provenance.cautions),
        about=f"{facts.rows_kept:,} of {facts.rows_in:,} rows kept, {count_text(table.height, 'finding')}",
    )


def ledger(study: Study) -> HtmlSection:
    """Render installed GPU-hours by bucket and team."""
    buckets = study.tables["ledger_buckets"]
    tenants = study.tables["ledger_tenants"]
    largest = buckets.sort("gpu_hours", descending=True, nulls_last=True).row(0, named=True)
    heaviest = tenants.row(0, named=True) if tenants.height else {"tenant": "-", "allocated_gpu_hours": 0.0}
    return page.section(
        "Utilization",
        page.paragraph(f"{study.findings[0]} {_describe_lost_hours(study)}"),
        page.pair(
            page.figure(
                plots.plot_ledger(study.tables["ledger"], tz=study.scenario.tz),
                title="Installed GPU-hours by bucket",
                alt="Bars end at the installed GPU-hours. The largest bucket, "
                f'"{text_of_code(largest["bucket"])}", has {percent_text(largest["share"], ".1f")}.',
                numbers=replace_codes_by_text(buckets),
                source="tables/ledger.parquet",
            ),
            page.figure(
                plots.plot_ledger_tenants(study.tables["ledger"]),
                title="Allocated GPU-hours by team",
                alt=f"{heaviest['tenant']} has most: {heaviest['allocated_gpu_hours']:,.0f} GPU-hours.",
                numbers=tenants.rename({"idle_share": "idle of measured_share"}),
            ),
        ),
    )


def _describe_lost_hours(study: Study) -> str:
    """Describe GPU-hours of failed and cancelled jobs, and their cost."""
    ended, review = study.tables["ended"], cost_review(study.scenario)
    lost = ended.filter("lost").group_by("state", maintain_order=True).agg(pl.col("gpu_hours").sum())
    hours, allocated = float(lost["gpu_hours"].sum()), float(ended["gpu_hours"].sum())
    if not hours:
        return "No failed job is known."
    # Their share of the cost of the teams, as on the table by end state: a busy GPU-hour takes more electricity.
    cost = review.unit_costs.get("work_that_failed")
    value = "" if cost is None else f", {Decimal(cost):,.0f} {review.currency}{review.price_basis}"
    states = lost.sort("gpu_hours", "state", descending=[True, False]).iter_rows()
    parts = ", ".join(f"{str(state).lower().replace('_', ' ')} {part:,.0f}" for state, part in states)
    return (
        f"Unsuccessful jobs took {hours:,.0f} GPU-hours ({parts}), {percent_text(hours / allocated)} of allocated"
        f"{value}; work saved by checkpoints is not deducted."
    )


def rightsizing(study: Study) -> HtmlSection:
    """Render requested and recommended profiles, in total and by week."""
    figures = study.headline
    title, about = "Rightsizing", "not known: no telemetry of memory or activity"
    if figures.small_jobs_with_evidence:
        about = (
            f"{figures.small_jobs_asking_too_much:,} of {figures.small_jobs:,} jobs of up to one GPU request a larger "
            "profile than they need"
        )
    finding = page.paragraph(study.findings[1])
    if not study.headline.board_has_mig:
        return page.fold(title, finding, about=about)
    text = (
        "The recommended profile is the smallest that holds what the job used, by its telemetry or accounting record; "
        "a job that was not measured gets one that holds all measured runs of the same user, class and request. "
        "Without five of these the request stays. Where such runs need different profiles, the owner chooses by job: "
        "gpuplanner rightsize counts them, states the risk of later runs and prints the request lines."
    )
    request_word, mig_note = "requested", ""
    if not figures.cut_gpus:
        request_word = "stated"
        mig_note = " MIG is disabled today: the jobs ran on full GPUs, and stated the share of a GPU that they need."
    profile_table = page.table(
        study.tables["rightsizing"].head(25),
        caption=f"Jobs by {request_word} and recommended profile, most frequent first; GPU-hours of whole run times, "
        f"also outside the period. gpu: one full GPU, or several, which stay as requested.{mig_note}",
        headings={"profile_requested": f"profile {request_word}", "profile_needed": "recommended profile"},
    )
    return page.fold(title, finding, page.paragraph(text), profile_table, *_render_weeks(study), about=about)


def _render_weeks(study: Study) -> list[str]:
    """Render the GPUs that cover small jobs of each week, on requested and on recommended profiles."""
    if "weeks" not in study.tables:  # without the library that plans layouts
        return []
    weeks, gpu_model = study.tables["weeks"], study.headline.gpu_model
    if weeks.is_empty():
        return [page.paragraph("No job requests at most one GPU.")]
    text = (
        f"Jobs that request at most one GPU, whole record: GPUs that cover 95 % of the hours of each week on full "
        f"{gpu_model}s, on requested profiles and on recommended profiles. Fractions of a GPU in the source are read "
        "as the same fraction of this GPU model: they may have run on full GPUs."
    )
    caption = f"GPUs ({gpu_model}) by week, each week packed for itself; the first screen has the layout to apply"
    return [page.paragraph(text), page.table(weeks, caption=caption, headings=_WEEK_HEADINGS)]


def comparison(study: Study) -> HtmlSection:
    """Render all policies with the causes of waiting."""
    return render_policy_section(study.comparison)


def teams(study: Study) -> HtmlSection:
    """Render fair share by team, and multi-node placement; empty without tables of fairness."""
    fairness = Fairness.of_tables(study.tables)
    if fairness is None:
        return HtmlSection("")
    team_section = render_team_section(fairness, rules_comparison=RulesComparison.of_tables(study.tables))
    parts = (team_section, render_placement_section(study.tables.get("placements")))
    return HtmlSection("\n".join(filter(None, parts)))


def numbers(study: Study) -> HtmlSection:
    """Render how each number of the report is computed: formula, inputs and rows."""
    rows = []
    for formula in list_formulas(study):
        details = page.paragraph(f"= {formula.formula}")
        if formula.inputs:
            inputs = {name: value_text(value) for name, value in formula.inputs.items()}
            details += page.value_table(inputs, caption=f"Inputs: {formula.label}")
        if formula.rows.height:
            caption = f"Rows: {formula.label} (all in {formula.source})"
            details += page.table(formula.rows, caption=caption, max_rows=MAX_FORMULA_ROWS)
        head = f"<summary>{escape_html(formula.labelled_value)}</summary>"
        rows.append(f'<details id="{FORMULA_ANCHOR_PREFIX}{formula.name}">{head}{details}</details>')
    return page.fold("How numbers are computed", *rows, about=f"formula, inputs and rows of {len(rows)} figures")


def costs(study: Study) -> HtmlSection:
    """Render cost by team, energy and carbon of the period."""
    figures, review = study.headline, cost_review(study.scenario)
    totals = [
        f"{Decimal(figures.cost):,.0f} {figures.currency}{review.price_basis}"
        if figures.cost and figures.currency
        else "no price",
        *([] if figures.energy_kwh is None else [f"{figures.energy_kwh:,.0f} kWh"]),
        *([] if figures.carbon_kg is None else [f"{figures.carbon_kg:,.0f} kg CO2e"]),
    ]
    title, about = "Cost and carbon", f"{', '.join(totals)}, {describe_period(study)}"
    return page.fold(title, *cost_section_parts(review), about=about)


def method(study: Study) -> HtmlSection:
    """Render the table of assumed values with range, source and date."""
    assumed, price = study.provenance.assumptions, study.provenance.price
    price_row = [] if price is None else [vars(price) | {"assumption": "price per GPU-hour", "unit": price.currency}]
    values = assumed.values()
    rows = pl.DataFrame(
        [{name: row[name] for name in ("assumption", *_ASSUMPTION_FIELDS)} for row in price_row]
        + [{"assumption": row.meaning} | {name: getattr(row, name) for name in _ASSUMPTION_FIELDS} for row in values]
    )
    table = page.table(rows, caption="Assumed values with range, source and date", headings={"assumption": "value of"})
    settings = page.paragraph(f"Settings: {format_assumptions(study.decision)}.")
    about = f"settings, and {count_text(rows.height, 'value')} of price and power with sources"
    return page.fold("Assumptions", settings, table, about=about)
