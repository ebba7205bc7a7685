"""Sections of the monthly report about the plan, and how it compares on the same jobs."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page, tables
from gpuplanner.report.section import Section
from gpuplanner.report.ways import ways
from gpuplanner.study import Study


def layouts(study: Study) -> Section:
    """The planned calendar, its bound and what drives it; nothing where none was planned."""
    if study.plan is None or study.problem is None:
        return Section("")
    figures, calendar = study.headline, study.tables["layout_plan"]
    gpus = study.problem.gpus
    off = "parked GPUs stand as off, and keep their layout" if study.problem.prices else "off: released"
    changes = f", {figures['plan_changes']} layout changes" if figures["board_has_mig"] else ""
    alt = (
        f"From {_day(figures['plan_from'])}: {figures['plan_gpu_hours_on']:,.0f} GPU-hours on{changes}; "
        f"cost {figures['plan_objective_gpu_hours']:,.0f} GPU-hours, "
        f"no plan costs less than {figures['plan_bound_gpu_hours']:,.0f} (gap {figures['plan_gap_fraction']:.2%})."
    )
    shown = [
        page.figure(
            plot.plot_layout_counts(study.tables["layout_counts"]),
            title="GPUs by layout over the horizon"
            if figures["board_has_mig"]
            else "GPUs on over the horizon",
            alt=alt,
            table=_layout_hours(study),
        )
    ]
    if gpus <= 128:
        shown.append(
            page.figure(
                plot.plot_layout_calendar(calendar),
                title="Calendar by numbered GPU",
                alt=f"One row per GPU; a mark shows where it is cut anew; {off}. This is what the exports apply."
                if figures["board_has_mig"]
                else "One row per GPU: on as a whole GPU, or off.",
            )
        )
    changed = study.tables["layout_changes"]
    if changed.height:
        shown.append(
            tables.table(
                changed.head(25),
                caption=f"Changes of layout, most frequent first: {study.problem.change.words()}",
                formats=dict.fromkeys(("minutes", "minutes_low", "minutes_high"), ".4g"),
            )
        )
    title = "The planned layouts" if figures["board_has_mig"] else "GPUs on, as planned"
    return Section(page.fold(title, _bound(study), *shown, about="hour by hour, with what no plan undercuts"))


def _bound(study: Study) -> str:
    """What the planner answers for, row by row."""
    figures, problem = study.headline, study.problem
    rows = [
        ("proof", f"no plan costs less than {figures['plan_bound_gpu_hours']:,.0f} GPU-hours, "
                  f"{figures['plan_gap_fraction']:.2%} below this one ({figures['plan_status']})"),
        ("asked of it", f"the {study.scenario.quantile:.0%} quantile of forecast demand; "
                        f"{figures['plan_unmet_gpu_hours']:,.1f} GPU-hours of it are not met"),
        ("GPUs not needed", f"are {problem.idle_words if problem else 'not known'}"),
        ("not asked", "waits: what ways to run the fleet are worth at the same service stands above, among the ways"),
    ]  # fmt: skip
    return tables.table(
        pl.DataFrame(rows, schema=["what", "answer"], orient="row"), caption="The planned calendar"
    )


def _day(text: str) -> str:
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC")


def _layout_hours(study: Study) -> pl.DataFrame:
    return (
        study.tables["layout_counts"]
        .group_by("layout")
        .agg(
            gpu_hours=pl.col("gpus").sum() * study.scenario.slot_hours,
            least_gpus=pl.col("gpus").min(),
            most_gpus=pl.col("gpus").max(),
        )
        .sort("gpu_hours", "layout", descending=[True, False])
    )


def comparison(study: Study) -> Section:
    """Every way to run the fleet, in full."""
    return ways(study.comparison)
