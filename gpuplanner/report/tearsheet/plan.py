"""Sections of the monthly report about the plan, and how it compares on the same jobs."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page, tables
from gpuplanner.report.equal_service import sureness
from gpuplanner.report.section import Section
from gpuplanner.study import Study
from gpuplanner.study.equal_service.tables import policy_frame
from gpuplanner.study.equal_service.words import target_in_words, what_to_set

WAITS = (
    "wait_mean_min", "wait_p50_min", "wait_quantile_min", "wait_p99_min", "wait_longest_min", "target_min",
    "completion_mean_min",
)  # fmt: skip
QUEUES = {"easy": "first come first served with EASY backfill", "strict": "first come first served"}


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
    return Section(page.section(title, _bound(study), *shown))


def _bound(study: Study) -> str:
    """What the planner answers for, row by row."""
    figures, problem = study.headline, study.problem
    rows = [
        ("proof", f"no plan costs less than {figures['plan_bound_gpu_hours']:,.0f} GPU-hours, "
                  f"{figures['plan_gap_fraction']:.2%} below this one ({figures['plan_status']})"),
        ("asked of it", f"the {study.scenario.quantile:.0%} quantile of forecast demand; "
                        f"{figures['plan_unmet_gpu_hours']:,.1f} GPU-hours of it are not met"),
        ("GPUs not needed", f"are {problem.idle_words if problem else 'not known'}"),
        ("not asked", "waits: what a calendar is worth at equal service stands above, among the policies"),
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
    """Every policy at equal service, in full; nothing where none could be compared."""
    found = study.promise
    if not found["today"]:
        return Section("")
    scenario = study.scenario
    judged = f"{found['judged_from'][:10]} to {found['judged_to'][:10]}"
    change = f"{study.problem.change.words()}; " if study.problem and study.headline["board_has_mig"] else ""
    text = (
        f"Each policy is tuned on weeks drawn from {found['tuned_from'][:10]} to {found['judged_from'][:10]} until it "
        f"holds the target, and judged on {scenario.replications} weeks drawn from {judged} (seed {scenario.seed}). "
        f"{target_in_words(found)} Queue of whole GPUs: {QUEUES[scenario.queue]}; {change}"
        "nothing that runs is ever stopped."
    )
    frame = policy_frame(found)
    shown = [
        page.figure(
            plot.plot_policies(frame),
            title="Policies on the same jobs",
            alt=f"{plot.policies_text(frame)} Lower is better.",
            table=frame,
        )
    ]
    settings = [page.note(line) for line in what_to_set(found, scenario.path)]
    return Section(
        page.section(
            "Policies at equal service",
            page.paragraph(text),
            *shown,
            tables.table(
                study.tables["policies"],
                caption="Policies on weeks that none was tuned on",
                formats=dict.fromkeys(("gpu_hours", "gpu_hours_low", "gpu_hours_high"), ",.0f")
                | dict.fromkeys(WAITS, ",.1f"),
            ),
            tables.table(
                study.tables["waits"],
                caption="Waits by how much a job asks for",
                formats=dict.fromkeys(WAITS, ",.1f"),
            ),
            *settings,
            page.paragraph(found["note"]),
        )
        + sureness(found)
    )
