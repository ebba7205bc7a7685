"""The sections of the appendix: how the forecast and the plan were made, and how far they can be trusted."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page
from gpuplanner.report.section import Section
from gpuplanner.study.study import Study
from gpuplanner.study.future.calm import choice_sentence, choice_table

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
    wanted = (
        "Instances wanted by profile over the last two weeks, right-sized,"
        if cut
        else "GPUs wanted over the last two weeks"
    )
    alt = (
        f"{wanted} and the forecast for {study.scenario.horizon_slots} slots. The band holds 90 % of the cases if the "
        f"past is a guide; on past origins it held {coverage:.1%}."
        if coverage is not None
        else f"{wanted} and the forecast; too little history to measure its error."
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
            plot.plot_demand(history, forecast, by="profile"),
            title="Instances wanted, by profile" if cut else "GPUs wanted",
            alt=alt,
            numbers=daily.tail(70),
        ),
        page.figure(
            plot.plot_backtest_scores(scores),
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
            plot.plot_layout_counts(counts),
            title="GPUs by layout over the horizon" if cut else "GPUs on over the horizon",
            alt=alt,
            numbers=hours.sort("gpu_hours", "layout", descending=[True, False]),
        ),
    ]
    if study.problem.gpus <= MOST_GPUS:
        off = "parked GPUs stand as off, and keep their layout" if study.problem.prices else "off: released"
        shown.append(
            page.figure(
                plot.plot_layout_calendar(study.tables["layout_plan"]),
                title="Calendar by numbered GPU",
                alt=f"One row per GPU; a mark shows where it is cut anew; {off}. This is what the exports apply."
                if cut
                else "One row per GPU: on as a whole GPU, or off.",
            )
        )
    if changed.height:
        shown.append(
            page.table(
                changed.head(25),
                caption=f"Changes of layout, most frequent first: {study.problem.change.words()}",
                formats=dict.fromkeys(("minutes", "minutes_low", "minutes_high"), ".4g"),
            )
        )
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
