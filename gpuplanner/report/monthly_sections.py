"""Sections of the monthly report and of its appendix."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.column_headings import cells_in_words, code_in_words
from gpuplanner.core.units import MISSING_VALUE_TEXT, count_text, day_text, percent_text
from gpuplanner.cost.cost_review import cost_review
from gpuplanner.decision.comparison_record import make_wait_curve_table
from gpuplanner.decision.policy_simulation import list_data_warnings
from gpuplanner.decision.quota_comparison import RulesComparison
from gpuplanner.decision.study import Study
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.report import html_page as page
from gpuplanner.report.cost_and_forecast_sections import month_parts
from gpuplanner.report.figure_formats import safe
from gpuplanner.report.first_screen import BUNDLE, Links, first_screen, peaks_figure
from gpuplanner.report.formulas import formulas, value_text
from gpuplanner.report.html_page import Section
from gpuplanner.report.policy_and_team_sections import placements, ways
from gpuplanner.report.policy_and_team_sections import teams as shared_by
from gpuplanner.report.report_messages import browser

MOST_GPUS = 128
"""Most GPUs whose calendar is drawn GPU by GPU."""
_CHOICE = ("unique_id", "model", "rule", "windows", "mase", "naive_mase", "coverage_90")


def demand(study: Study) -> Section:
    """Demand of the pool by profile, with the forecast and its past error; nothing without a forecast."""
    if study.plan is None:
        return Section("")
    history = study.tables["demand"].filter(pl.col("tenant") == "all")
    forecast, scores, choice = (
        study.tables[name].filter(pl.col("unique_id").str.starts_with("all/"))
        for name in ("forecast", "scores", "choice")
    )
    coverage, cut = study.headline.forecast_coverage_90, study.headline.board_has_mig
    weeks = "over the last two weeks"
    wanted = f"Demand by profile {weeks}, rightsized," if cut else f"GPU demand {weeks}"
    alt = f"{wanted} and the forecast; the history is too short to measure its error."
    if coverage is not None:
        alt = (
            f"{wanted} and the forecast for {study.scenario.horizon_intervals} intervals with its 90 % interval, which "
            f"covered {percent_text(coverage, '.1f')} of the values at past cutoffs. Dashed upright lines: days on "
            "which the level of demand changed."
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
            title="Demand by profile [instances]" if cut else "Demand [GPUs]",
            alt=alt,
            numbers=daily.tail(70),
        ),
        page.figure(
            plots.plot_backtest_scores(scores),
            title="Forecast error by model at past cutoffs (MASE: below 1 beats the seasonal naive in sample)",
            alt="Naive is the baseline model; the table has the model chosen for each series.",
            numbers=choice.select(_CHOICE),
        ),
        about=f"{_expected(study, ', rightsized' if cut else '')}{covered}",
        appendix=True,
    )


def _expected(study: Study, kind: str) -> str:
    """The forecast at noon of the day after the data end, as drawn, with its interval where it has one."""
    figures = study.headline
    if figures.tomorrow_at is None or figures.tomorrow_gpus is None:
        return "the forecast ends before the next noon"
    at = datetime.fromisoformat(figures.tomorrow_at)
    text = f"{at:%a} {day_text(at.date())}, 12:00: {figures.tomorrow_gpus:,.0f} GPUs{kind}"
    if figures.tomorrow_low is None or figures.tomorrow_high is None:
        return text
    return f"{text} (90 % interval {figures.tomorrow_low:,.0f} to {figures.tomorrow_high:,.0f})"


def layouts(study: Study) -> Section:
    """The planned calendar, its bound and what drives it; nothing where none was planned."""
    if study.plan is None or study.problem is None:
        return Section("")
    figures, counts = study.headline, study.tables["layout_counts"]
    cut, changed = figures.board_has_mig, study.tables["layout_changes"]
    changes = f", {figures.plan_changes} layout changes" if cut else ""
    start = datetime.fromisoformat(figures.plan_from)
    alt = (
        f"From {start:%Y-%m-%d %H:%M} UTC: {figures.plan_gpu_hours_on:,.0f} GPU-hours provisioned{changes}; "
        f"cost {figures.plan_objective_gpu_hours:,.0f} GPU-hours, lower bound {figures.plan_bound_gpu_hours:,.0f} "
        f"(optimality gap {percent_text(figures.plan_gap_fraction or 0.0, '.2f')})."
    )
    hours = counts.group_by("layout").agg(
        gpu_hours=pl.col("gpus").sum() * study.scenario.interval_hours,
        least_gpus=pl.col("gpus").min(),
        peak_gpus=pl.col("gpus").max(),
    )
    shown = [
        page.note("An alternative schedule: it is not recommended, and not in the change bundle."),
        page.figure(
            plots.plot_layout_counts(counts),
            title="GPUs by MIG layout over the plan" if cut else "Provisioned GPUs over the plan",
            alt=alt,
            numbers=hours.sort("gpu_hours", "layout", descending=[True, False]),
        ),
    ]
    if study.problem.gpus <= MOST_GPUS:
        off = "idle GPUs show as off and keep their layout" if study.problem.prices else "off: released"
        rows = "One row per GPU: provisioned as a full GPU, or off."
        if cut:
            rows = f"One row per GPU; a mark shows each repartition; {off}."
        calendar = plots.plot_layout_calendar(study.tables["layout_plan"])
        shown.append(page.figure(calendar, title="Calendar by GPU", alt=rows))
    if changed.height:
        caption = f"Changes of layout, most frequent first: {study.problem.change.describe_time()}"
        formats = dict.fromkeys(("minutes", "minutes_low", "minutes_high"), ".4g")
        shown.append(page.table(changed.head(25), caption=caption, formats=formats))
    title = "Alternative schedule of layouts" if cut else "Alternative schedule of GPUs"
    return page.fold(title, *shown, about="hour by hour; not the recommendation", appendix=True)


HELD = ("used", "allocated_idle", "no_telemetry")
"""Buckets of allocated GPU-hours."""
FILES = (
    ("Excel", "workbook.xlsx"), ("Slack/Teams text", "message.txt"), ("Markdown", "summary.md"),
    ("Notebook", "report.ipynb"), ("Parquet", "tables/README.md"), ("JSON", "study.json"),
    ("Appendix", "appendix.html"),
)  # fmt: skip
PDF = ("PDF", "report.pdf")
"""What always stands beside the page."""
CARDS = ("gpus", "wait", "utilization", "exhaustion")
"""Figures of the cards, by the names of their formulas."""
HOW, MOST_BEHIND = "how-", 25
_ASSUMED = ("value", "low", "high", "unit", "source", "date")
_WEEKS = {
    "mean_gpus_whole": "GPUs with MIG disabled, mean", "gpus_whole": "GPUs with MIG disabled, 95 % of hours",
    "gpus_requested": "on requested profiles", "gpus_rightsized": "on recommended profiles",
    "layouts_rightsized": "their layouts",
}  # fmt: skip


def summary(study: Study) -> Section:
    """The first screen of the study's decision."""
    return page.section(
        "Recommendation",
        first_screen(
            study.comparison,
            peaks=daily_peaks(study),
            period=period(study),
            links=links(study),
            how=[HOW + name for name in CARDS],
            doubts=study.provenance.doubts,
            warnings=list_data_warnings(study.scenario.data),
        ),
    )


def capacity(study: Study) -> Section:
    """Requested, allocated and active GPUs beside installed ones, and the growth of demand."""
    one, use = study.decision, study.tables["use"]
    known, gpus = not one.fleet_inferred, study.headline.installed_gpus
    peaks = daily_peaks(study)
    growth, ends = study.comparison.growth_per_week, study.comparison.exhaustion
    if growth.value is None or growth.low is None or growth.high is None:
        said = f"Growth of the submitted work: {MISSING_VALUE_TEXT}, {growth.reason or 'nothing was simulated'}."
    else:
        until = f"capacity is exhausted by {day_text(ends.date)}" if ends.date else (ends.reason or "")
        said = (
            f"The submitted work changes by {percent_text(growth.value, '+.1f')} per week (80 % interval "
            f"{percent_text(growth.low, '+.1f')} to {percent_text(growth.high, '+.1f')}); {until}."
        )
    use_by_day = page.figure(
        plots.plot_use(use, gpus=gpus, known=known),
        title="GPUs requested, allocated and active, daily mean",
        alt=plots.use_text(use),
        numbers=use,
    )
    # Without a wait curve, the first screen shows the peaks already.
    peaks_by_day = peaks_figure(peaks, gpus=gpus, known=known) if make_wait_curve_table(study.comparison).height else ""
    return page.section("Demand and capacity", page.paragraph(said), page.pair(use_by_day, peaks_by_day))


def daily_peaks(study: Study) -> pl.DataFrame:
    """``day, gpus``: GPUs allocated in the busiest hour of each day of the report's zone."""
    held = pl.when(pl.col("bucket").cast(pl.String).is_in(HELD)).then("gpu_hours").otherwise(0.0)
    gpu_model, pool = pl.col("gpu_model").cast(pl.String).str.to_lowercase(), study.scenario.pool
    ours = pl.lit(value=True) if pool is None else gpu_model == pool.lower()
    hours = study.tables["ledger"].filter(ours).group_by("hour").agg(gpus=held.sum())
    day = pl.col("hour").dt.convert_time_zone(study.scenario.tz).dt.date()
    return hours.group_by(day=day).agg(pl.col("gpus").max()).sort("day")


def period(study: Study) -> str:
    """The period of the report: a calendar month by its name, else its first and last day."""
    begin, end = map(datetime.fromisoformat, (study.headline.observed_from, study.headline.observed_to))
    if begin.day == end.day == 1 and (end - begin).days in range(28, 32):
        return f"{begin:%b %Y}"
    return " to ".join(f"{day.day} {day:%b %Y}" for day in (begin, end))


def links(study: Study) -> Links:
    """Files that stand beside the page."""
    pack = study.plan is not None and study.headline.board_has_mig
    printed = [PDF] if browser() is not None else []
    return (*([BUNDLE] if pack else []), *FILES, *printed)


def quality(study: Study) -> Section:
    """Findings of the quality report."""
    table, trace = study.tables["quality"], study.provenance.source_facts
    found = page.paragraph("No findings.")
    if table.height:
        found = page.table(table, caption="Findings of the quality report")
    return page.fold(
        "Data quality",
        page.paragraph(
            f"Source {trace.source}: {trace.rows_in:,} rows read, {trace.rows_kept:,} kept, "
            f"{trace.rows_rejected:,} rejected with a reason."
        ),
        *(page.note(note) for note in trace.notes),
        found,
        *(page.note(text) for text in study.provenance.cautions),
        about=f"{trace.rows_kept:,} of {trace.rows_in:,} rows kept, {count_text(table.height, 'finding')}",
    )


def ledger(study: Study) -> Section:
    """Installed GPU-hours by bucket and team."""
    buckets = study.tables["ledger_buckets"]
    tenants = study.tables["ledger_tenants"]
    largest = buckets.sort("gpu_hours", descending=True, nulls_last=True).row(0, named=True)
    heaviest = tenants.row(0, named=True) if tenants.height else {"tenant": "-", "allocated_gpu_hours": 0.0}
    return page.section(
        "Utilization",
        page.paragraph(f"{study.findings[0]} {_lost(study)}"),
        page.pair(
            page.figure(
                plots.plot_ledger(study.tables["ledger"], tz=study.scenario.tz),
                title="Installed GPU-hours by bucket",
                alt="Each installed GPU-hour is in one bucket; the largest is "
                f"{code_in_words(largest['bucket'])} with {percent_text(largest['share'])}.",
                numbers=cells_in_words(buckets),
            ),
            page.figure(
                plots.plot_ledger_tenants(study.tables["ledger"]),
                title="Allocated GPU-hours by team",
                alt=f"{heaviest['tenant']} has most: {heaviest['allocated_gpu_hours']:,.0f} GPU-hours.",
                numbers=tenants.rename({"idle_share": "idle_of_used_and_idle_share"}),
            ),
        ),
    )


def _lost(study: Study) -> str:
    """GPU-hours of failed and cancelled jobs, and their cost."""
    ended, figures = study.tables["ended"], study.headline
    lost = ended.filter("lost").group_by("state").agg(pl.col("gpu_hours").sum())
    hours, held = float(lost["gpu_hours"].sum()), float(ended["gpu_hours"].sum())
    if not hours:
        return "No failed job is known."
    price, basis, value = figures.price_per_gpu_hour, cost_review(study.scenario).price_basis, ""
    if price is not None:
        value = f", {hours * price:,.0f} {figures.currency}{basis} ({price:,.2f} per GPU-hour)"
    states = lost.sort("gpu_hours", "state", descending=[True, False]).iter_rows()
    parts = ", ".join(f"{str(state).lower().replace('_', ' ')} {part:,.0f}" for state, part in states)
    return (
        f"Unsuccessful jobs took {hours:,.0f} GPU-hours ({parts}), {percent_text(hours / held)} of allocated"
        f"{value}; work saved by checkpoints is not deducted."
    )


def rightsizing(study: Study) -> Section:
    """Requested and recommended profiles, in total and by week."""
    figures = study.headline
    title, about = "Rightsizing", f"{MISSING_VALUE_TEXT}: no telemetry of memory or activity"
    if figures.small_jobs_with_evidence:
        about = (
            f"{figures.small_jobs_asking_too_much:,} of {figures.small_jobs:,} jobs of up to one GPU request a larger "
            "profile than they need"
        )
    said = page.paragraph(study.findings[1])
    if not study.headline.board_has_mig:
        return page.fold(title, said, about=about)
    text = (
        "The recommended profile is from telemetry, else the job's accounting record, else measured jobs of its class; "
        "without any of these it is the request. Jobs on several GPUs stay on full GPUs. Later runs may need more "
        "memory than the observed ones: gpuplanner rightsize states this risk by group of jobs."
    )
    frequent = page.table(
        study.tables["rightsizing"].head(25),
        caption="Jobs by requested and recommended profile, most frequent first; GPU-hours of whole run times, also "
        "outside the period. gpu: one full GPU, or several, which stay as requested",
    )
    return page.fold(title, said, page.paragraph(text), frequent, *_by_week(study), about=about)


def _by_week(study: Study) -> list[str]:
    weeks, gpu_model = study.tables["weeks"], study.headline.gpu_model
    if weeks.is_empty():
        return [page.paragraph("No job requests at most one GPU.")]
    text = (
        f"Jobs that request at most one GPU, whole record: GPUs that cover 95 % of the hours of each week on full "
        f"{gpu_model}s, on requested profiles and on recommended profiles. Fractions of a GPU in the source are read "
        "as the same fraction of this GPU model: they may have run on full GPUs."
    )
    caption = f"GPUs ({gpu_model}) by week, each week packed for itself; the first screen has the layout to apply"
    return [page.paragraph(text), page.table(weeks, caption=caption, headings=_WEEKS)]


def comparison(study: Study) -> Section:
    """All policies, with the causes of waiting."""
    return ways(study.comparison)


def teams(study: Study) -> Section:
    """Fair share by team, and multi-node placement; nothing without the tables of fairness."""
    found = Fairness.of_tables(study.tables)
    if found is None:
        return Section("")
    parts = [
        shared_by(found, tried=RulesComparison.of_tables(study.tables)),
        placements(study.tables.get("placements")),
    ]
    return Section("\n".join(filter(None, parts)))


def numbers(study: Study) -> Section:
    """Formula, inputs and rows of each figure."""
    rows = []
    for one in formulas(study):
        shown = page.paragraph(f"= {one.formula}")
        if one.inputs:
            inputs = {what: value_text(value) for what, value in one.inputs.items()}
            shown += page.answers(inputs, caption=f"Inputs: {one.label}")
        if one.rows.height:
            caption = f"Rows: {one.label} (all in {one.source})"
            shown += page.table(one.rows, caption=caption, max_rows=MOST_BEHIND)
        rows.append(f'<details id="{HOW}{one.name}"><summary>{safe(one.sentence)}</summary>{shown}</details>')
    return page.fold("How numbers are computed", *rows, about=f"formula, inputs and rows of {len(rows)} figures")


def costs(study: Study) -> Section:
    """Cost by team, energy and carbon of the period."""
    figures, found = study.headline, cost_review(study.scenario)
    told = [
        f"{Decimal(figures.cost):,.0f} {figures.currency}{found.price_basis}"
        if figures.cost and figures.currency
        else "no price",
        *([] if figures.energy_kwh is None else [f"{figures.energy_kwh:,.0f} kWh"]),
        *([] if figures.carbon_kg is None else [f"{figures.carbon_kg:,.0f} kg CO2e"]),
    ]
    title, about = "Cost and carbon", f"{', '.join(told)}, {period(study)}"
    return page.fold(title, *month_parts(found), about=about)


def method(study: Study) -> Section:
    """Assumed values with range and source."""
    assumed, price = study.provenance.assumptions, study.provenance.price
    stated = [] if price is None else [vars(price) | {"assumption": "price per GPU-hour", "unit": price.currency}]
    rows = pl.DataFrame(
        [{name: row[name] for name in ("assumption", *_ASSUMED)} for row in stated]
        + [{"assumption": one.name} | {name: getattr(one, name) for name in _ASSUMED} for one in assumed.values()]
    )
    table = page.table(rows, caption="Assumed values with range, source and date")
    return page.fold("Assumptions", table, about=f"{count_text(len(assumed), 'assumed value')}, with sources")
