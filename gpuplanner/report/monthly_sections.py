"""Sections of the monthly report and of its appendix."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.units import counted, day_text
from gpuplanner.cost.cost_review import cost_review
from gpuplanner.decision.comparison_record import curve_table
from gpuplanner.decision.layout_planning import choice_sentence, choice_table
from gpuplanner.decision.policy_simulation import warnings_about
from gpuplanner.decision.quota_comparison import SharingTried
from gpuplanner.decision.study import Study
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.report import html_page as page
from gpuplanner.report.cost_and_forecast_sections import month_parts
from gpuplanner.report.figure_formats import safe
from gpuplanner.report.first_screen import Links, first_screen, peaks_figure
from gpuplanner.report.formulas import formulas, shown_buckets, shown_tenants, value_text
from gpuplanner.report.html_page import Section
from gpuplanner.report.policy_and_team_sections import placements, waits_section, ways
from gpuplanner.report.policy_and_team_sections import teams as shared_by
from gpuplanner.report.report_messages import browser

MOST_GPUS = 128
"""Most GPUs whose calendar is drawn GPU by GPU."""
_CHOICE = ("unique_id", "model", "rule", "windows", "mase", "naive_mase", "coverage_90")
_CHOICES = {
    "objective": "cost as planned, GPU h",
    "bound": "no plan costs less than",
    "gap": "gap, as a share",
    "unmet_gpu_hours": "not met, GPU h",
    "changes": "GPUs cut anew",
    "departures": "layouts left",
    "change_times": "times of change",
    "files": "files to apply",
    "played_cost": "cost as played, GPU h",
    "played_gpu_hours": "on as played, GPU h",
    "played_waited_gpu_hours": "waited for as played, GPU h",
    "played_weeks": "weeks played",
}


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
    wanted = f"Instances wanted by profile {weeks}, right-sized," if cut else f"GPUs wanted {weeks}"
    alt = f"{wanted} and the forecast; too little history to measure its error."
    if coverage is not None:
        alt = (
            f"{wanted} and the forecast for {study.scenario.horizon_slots} slots. The band holds 90 % of the cases if "
            f"the past is a guide; on past origins it held {coverage:.1%}."
        )
    daily = (
        history.group_by("profile", day=pl.col("ds").dt.truncate("1d"))
        .agg(mean_instances=pl.col("y").mean(), peak_instances=pl.col("y").max())
        .sort("day", "profile")
    )
    gpus, running = study.headline.tomorrow_gpus, study.headline.tomorrow_running_gpus
    held = "" if coverage is None else f", {coverage:.0%} of past slots were inside the 90 % range"
    return page.fold(
        "Demand and forecast",
        page.note(f"Of the {gpus:,.0f} GPUs expected tomorrow at noon, {running:,.0f} run today."),
        page.figure(
            plots.plot_demand(history, forecast, by="profile"),
            title="Instances wanted, by profile" if cut else "GPUs wanted",
            alt=alt,
            numbers=daily.tail(70),
        ),
        page.figure(
            plots.plot_backtest_scores(scores),
            title="Error of every model on past origins (MASE: below 1 beats the seasonal naive in sample)",
            alt="Naive stands in every comparison; the model used for each series is in the table.",
            numbers=choice.select(_CHOICE),
        ),
        about=f"{gpus or 0:,.0f} GPUs are expected tomorrow at noon{held}",
        appendix=True,
    )


def layouts(study: Study) -> Section:
    """The planned calendar, its bound and what drives it; nothing where none was planned."""
    if study.plan is None or study.problem is None:
        return Section("")
    figures, counts = study.headline, study.tables["layout_counts"]
    cut, changed = figures.board_has_mig, study.tables["layout_changes"]
    changes = f", {figures.plan_changes} layout changes" if cut else ""
    start = datetime.fromisoformat(figures.plan_from)
    alt = (
        f"From {start:%Y-%m-%d %H:%M} UTC: {figures.plan_gpu_hours_on:,.0f} GPU-hours on{changes}; "
        f"cost {figures.plan_objective_gpu_hours:,.0f} GPU-hours, "
        f"no plan costs less than {figures.plan_bound_gpu_hours:,.0f} (gap {figures.plan_gap_fraction:.2%})."
    )
    hours = counts.group_by("layout").agg(
        gpu_hours=pl.col("gpus").sum() * study.scenario.slot_hours,
        least_gpus=pl.col("gpus").min(),
        most_gpus=pl.col("gpus").max(),
    )
    shown = [
        _bound(study),
        *_choices(study),
        page.figure(
            plots.plot_layout_counts(counts),
            title="GPUs by layout over the horizon" if cut else "GPUs on over the horizon",
            alt=alt,
            numbers=hours.sort("gpu_hours", "layout", descending=[True, False]),
        ),
    ]
    if study.problem.gpus <= MOST_GPUS:
        off = "parked GPUs stand as off, and keep their layout" if study.problem.prices else "off: released"
        rows = "One row per GPU: on as a whole GPU, or off."
        if cut:
            rows = (
                f"One row per GPU; a mark shows where it is cut anew; {off}. This is what the exports apply."
            )
        calendar = plots.plot_layout_calendar(study.tables["layout_plan"])
        shown.append(page.figure(calendar, title="Calendar by numbered GPU", alt=rows))
    if changed.height:
        caption = f"Changes of layout, most frequent first: {study.problem.change.words()}"
        formats = dict.fromkeys(("minutes", "minutes_low", "minutes_high"), ".4g")
        shown.append(page.table(changed.head(25), caption=caption, formats=formats))
    title = "The planned layouts" if cut else "GPUs on, as planned"
    return page.fold(title, *shown, about="hour by hour, with what no plan undercuts", appendix=True)


def _choices(study: Study) -> list[str]:
    """The plan with few sets of layouts, the one that is free to change beside it, and the best fixed layout."""
    found, over = study.plan_choices, study.over_fixed
    fixed = [page.paragraph(over.sentence)] if over is not None else []
    if not found:
        return fixed
    table = page.table(choice_table(found), caption="Few sets of layouts, or any number", headings=_CHOICES)
    return [table, page.paragraph(choice_sentence(found)), *fixed]


def _bound(study: Study) -> str:
    """What the planner answers for, row by row."""
    figures, problem = study.headline, study.problem
    rows = {
        "proof": f"no plan costs less than {figures.plan_bound_gpu_hours:,.0f} GPU-hours, "
        f"{figures.plan_gap_fraction:.2%} below this one ({figures.plan_status})",
        "asked of it": f"the {study.scenario.quantile:.0%} quantile of forecast demand; "
        f"{figures.plan_unmet_gpu_hours:,.1f} GPU-hours of it are not met",
        "GPUs not needed": f"are {problem.idle_words if problem else 'not known'}",
        "not asked": "waits: what ways to run the fleet are worth at the same service stands above, among the ways",
    }
    return page.answers(rows, caption="The planned calendar", answer="answer")


HELD = ("used", "held_idle", "unobserved")
"""Parts of the installed hours that somebody held."""
FILES = (
    ("Workbook", "workbook.xlsx"), ("Appendix", "appendix.html"), ("Tables", "tables/README.md"),
    ("Message", "message.txt"), ("Markdown", "summary.md"), ("Notebook", "report.ipynb"), ("JSON file", "study.json"),
)  # fmt: skip
PDF = ("PDF", "report.pdf")
"""What always stands beside the page."""
CARDS = ("gpus", "wait", "saving", "exhaustion")
"""Figures of the cards, by the names of their formulas."""
HOW, MOST_BEHIND = "how-", 25
_ASSUMED = ("value", "low", "high", "unit", "source", "date")
_WEEKS = {
    "mean_gpus_whole": "whole GPUs held, mean",
    "gpus_whole": "GPUs if whole",
    "gpus_requested": "GPUs if cut as requested",
    "gpus_rightsized": "GPUs if cut as needed",
    "layouts_rightsized": "layouts, as needed",
}


def summary(study: Study) -> Section:
    """The decision, read from the study's one object."""
    return page.section(
        "The decision",
        first_screen(
            study.comparison,
            peaks=daily_peaks(study),
            period=period(study),
            links=links(study),
            how=[HOW + name for name in CARDS],
            doubts=study.provenance.doubts,
            warnings=warnings_about(study.scenario.data),
        ),
    )


def capacity(study: Study) -> Section:
    """What was asked for, held and at work beside what there is, and how fast the need grows."""
    one, use = study.decision, study.tables["use"]
    known, gpus = not one.fleet_inferred, study.headline.installed_gpus
    peaks = daily_peaks(study)
    growth, ends = study.comparison.growth_per_week, study.comparison.exhaustion
    if growth.value is None or growth.low is None or growth.high is None:
        said = f"How fast the submitted work grows is not known: {growth.reason or 'nothing was simulated'}."
    else:
        until = f"capacity is exhausted by {day_text(ends.date)}" if ends.date else (ends.reason or "")
        said = (
            f"The submitted work changes by {growth.value:+.1%} a week (80 % interval {growth.low:+.1%} to "
            f"{growth.high:+.1%}); {until}."
        )
    use_by_day = page.figure(
        plots.plot_use(use, gpus=gpus, known=known),
        title="GPUs asked for, held and at work, mean of each day",
        alt=plots.use_text(use),
        numbers=use,
    )
    # Where no wait curve is drawn, the first screen shows the peaks already.
    peaks_by_day = peaks_figure(peaks, gpus=gpus, known=known) if curve_table(study.comparison).height else ""
    return page.section("Demand and capacity", page.paragraph(said), page.pair(use_by_day, peaks_by_day))


def daily_peaks(study: Study) -> pl.DataFrame:
    """``day, gpus``: GPUs that were held in the busiest hour of each day of the report's zone."""
    held = pl.when(pl.col("bucket").cast(pl.String).is_in(HELD)).then("gpu_hours").otherwise(0.0)
    board, pool = pl.col("gpu_model").cast(pl.String).str.to_lowercase(), study.scenario.pool
    ours = pl.lit(value=True) if pool is None else board == pool.lower()
    hours = study.tables["ledger"].filter(ours).group_by("hour").agg(gpus=held.sum())
    day = pl.col("hour").dt.convert_time_zone(study.scenario.tz).dt.date()
    return hours.group_by(day=day).agg(pl.col("gpus").max()).sort("day")


def period(study: Study) -> str:
    """What the report covers, in words."""
    ends = map(datetime.fromisoformat, (study.headline.observed_from, study.headline.observed_to))
    return " to ".join(f"{end.day} {end:%b %Y}" for end in ends)


def links(study: Study) -> Links:
    """Files that stand beside the page."""
    pack = study.plan is not None and study.headline.board_has_mig
    printed = [PDF] if browser() is not None else []
    return (*FILES, *printed, *([("Change pack", "export/")] if pack else []))


def quality(study: Study) -> Section:
    """What is wrong with the data, before any figure that rests on them."""
    table, trace = study.tables["quality"], study.provenance.read
    found = page.paragraph("Nothing was found to be wrong.")
    if table.height:
        found = page.table(table, caption="Findings of the quality report")
    return page.fold(
        "Data",
        page.paragraph(
            f"Source {trace.source}: {trace.rows_in:,} rows read, {trace.rows_kept:,} kept, "
            f"{trace.rows_rejected:,} rejected with a reason."
        ),
        *(page.note(note) for note in trace.notes),
        found,
        *(page.note(text) for text in study.provenance.cautions),
        about=f"{trace.rows_kept:,} of {trace.rows_in:,} rows kept, {counted(table.height, 'finding')}",
    )


def ledger(study: Study) -> Section:
    """Where the installed GPU-time went."""
    buckets = shown_buckets(study.tables["ledger_buckets"])
    tenants = shown_tenants(study.tables["ledger_tenants"])
    largest = buckets.sort("gpu_hours", descending=True, nulls_last=True).row(0, named=True)
    heaviest = tenants.row(0, named=True) if tenants.height else {"tenant": "-", "held_gpu_hours": 0.0}
    held, installed = study.headline.allocated_gpu_hours, study.headline.installed_gpu_hours
    return page.section(
        "Where the hours went",
        page.paragraph(
            f"{study.findings[0]} In all, jobs held {held:,.0f} of {installed:,.0f} GPU-hours. {_lost(study)}"
        ),
        page.pair(
            page.figure(
                plots.plot_ledger(study.tables["ledger"], tz=study.scenario.tz),
                title="Every installed GPU-hour, by what was done with it",
                alt="Every installed GPU-hour is in one bucket; the largest is "
                f"{largest['bucket'].replace('_', ' ')} with {largest['share']:.0%}.",
                numbers=buckets,
            ),
            page.figure(
                plots.plot_ledger_tenants(study.tables["ledger"]),
                title="Held GPU-hours by team",
                alt=f"{heaviest['tenant']} held most: {heaviest['held_gpu_hours']:,.0f} GPU-hours.",
                numbers=tenants,
            ),
        ),
    )


def _lost(study: Study) -> str:
    """What went to attempts that did not complete, and what that time cost."""
    ended, figures = study.tables["ended"], study.headline
    lost = ended.filter("lost")
    hours, held = float(lost["gpu_hours"].sum()), float(ended["gpu_hours"].sum())
    if not hours:
        return "No attempt is known to have ended badly."
    price, basis = figures.price_per_gpu_hour, cost_review(study.scenario).price_basis
    worth = ""
    if price is not None:
        worth = f", {hours * price:,.0f} {figures.currency} at {price:,.2f} a GPU-hour{basis}"
    worst = lost.group_by("state").agg(pl.col("gpu_hours").sum()).sort("gpu_hours", "state")["state"][-1]
    return (
        f"{hours:,.0f} of them ({hours / held:.0%}) went to attempts that did not complete{worth}, most of it "
        f"{worst.lower().replace('_', ' ')}; how much checkpoints had saved is not known."
    )


def rightsizing(study: Study) -> Section:
    """Jobs that could be smaller: what people ask for and what they need, in all and week by week."""
    figures = study.headline
    title, about = "Jobs that could be smaller", "not known: no job's memory or activity was measured"
    if figures.small_jobs_with_evidence:
        about = (
            f"{figures.small_jobs_asking_too_much:,} of {figures.small_jobs:,} jobs of a GPU or less ask for more "
            "than they need"
        )
    said = page.paragraph(study.findings[1])
    if not study.headline.board_has_mig:
        return page.fold(title, said, about=about)
    text = (
        "Needs are judged by telemetry, else by the job's accounting record, else by measured jobs of its class; "
        "without any of these the request stands. Jobs on several GPUs keep them."
    )
    frequent = page.table(
        study.tables["rightsizing"].head(25),
        caption="Jobs by profile requested and needed, most frequent first",
    )
    return page.fold(
        title, said, page.paragraph(text), frequent, *_sharing(study), *_by_week(study), about=about
    )


def _sharing(study: Study) -> list[str]:
    """A row a class: how its jobs may share a GPU, and what they have to know of each other."""
    table = study.tables.get("sharing")
    if table is None or table.is_empty():
        return []
    sharing = ("mode", "profile", "together", "why", "isolation", "memory_guard", "with_whom")
    caption = (
        "How jobs of each class may share a GPU; together: jobs on one. gpuplanner hints --sharing says more"
    )
    return [page.table(table.select("job_class", "gpus", "jobs", *sharing), caption=caption)]


def _by_week(study: Study) -> list[str]:
    weeks, board = study.tables["weeks"], study.headline.board
    if weeks.is_empty():
        return [page.paragraph("There are no small jobs.")]
    text = (
        f"Jobs that ask for at most one GPU, over the whole observation: GPUs needed to cover 95 % of the hours "
        f"of each week if every such job holds a whole {board}, if it gets the slice it asks for, and if it gets "
        "the slice that it needs. Fractions of the source's GPUs are read as the same fraction of this board."
    )
    return [page.paragraph(text), page.table(weeks, caption=f"GPUs ({board}) by week", headings=_WEEKS)]


def comparison(study: Study) -> Section:
    """Every way to run the fleet, in full."""
    return Section(waits_section(study.comparison) + ways(study.comparison))


def teams(study: Study) -> Section:
    """What every team was due and got, and what distance costs; nothing in a study kept before that was accounted."""
    found = Fairness.of_tables(study.tables)
    if found is None:
        return Section("")
    parts = [
        shared_by(found, tried=SharingTried.of_tables(study.tables)),
        placements(study.tables.get("placements")),
    ]
    return Section("\n".join(filter(None, parts)))


def numbers(study: Study) -> Section:
    """How each figure comes about: its formula, what stands in it, and the rows behind it."""
    rows = []
    for one in formulas(study):
        shown = page.paragraph(f"= {one.formula}")
        if one.inputs:
            inputs = {what: value_text(value) for what, value in one.inputs.items()}
            shown += page.answers(inputs, caption=f"What stands in {one.label}")
        if one.rows.height:
            caption = f"Rows behind {one.label}, in full in {one.source}"
            shown += page.table(one.rows, caption=caption, max_rows=MOST_BEHIND)
        rows.append(f'<details id="{HOW}{one.name}"><summary>{safe(one.sentence)}</summary>{shown}</details>')
    return page.fold("Formulas", *rows, about=f"formula, inputs and rows of {len(rows)} figures of this page")


def costs(study: Study) -> Section:
    """Who pays for the period, energy and carbon; what is not known is said in its place."""
    figures, found = study.headline, cost_review(study.scenario)
    told = [
        f"{Decimal(figures.cost):,.0f} {figures.currency}{found.price_basis}"
        if figures.cost and figures.currency
        else "no price",
        *([] if figures.energy_kwh is None else [f"{figures.energy_kwh:,.0f} kWh"]),
        *([] if figures.carbon_kg is None else [f"{figures.carbon_kg:,.0f} kg CO2e"]),
    ]
    title, about = "Cost, energy and carbon", f"{', '.join(told)} in the whole period"
    return page.fold(title, *month_parts(found), about=about)


def method(study: Study) -> Section:
    """What the figures rest on."""
    assumed = study.provenance.assumptions
    rows = pl.DataFrame(
        [
            {"assumption": one.name} | {name: getattr(one, name) for name in _ASSUMED}
            for one in assumed.values()
        ]
    )
    table = page.table(rows, caption="Assumed figures with range, source and date")
    return page.fold("Assumptions", table, about=f"{counted(len(assumed), 'assumed figure')}, with sources")
