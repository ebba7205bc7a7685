"""Sections of the monthly report about the plan, and how it compares on the same jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page, tables
from gpuplanner.report.section import Section
from gpuplanner.study import Study
from gpuplanner.study.comparison import policy_frame, policy_names, savings_steps
from gpuplanner.study.future.saving import HEADLINED

TOLD_STEPS = (
    "right-sizing requests",
    "changing layouts over time",
    "sizing the fleet",
    "switching GPUs on and off",
)
"""Steps that the words beside the chart name."""
WEIGHED = ("mean_queueing_delay_s", "provisioned_gpu_hours")
"""Measures that a plan weighs against each other."""
QUEUES = {"easy": "first come first served with EASY backfill", "strict": "first come first served"}


def layouts(study: Study) -> Section:
    """The planned calendar, its bound and what drives it; nothing where none was planned."""
    if study.plan is None or study.problem is None:
        return Section("")
    figures, calendar = study.headline, study.tables["layout_plan"]
    gpus = study.problem.gpus
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
                alt="One row per GPU; a mark shows where it is cut anew. This is what the exports apply."
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
    return Section(page.section(title, *shown, page.paragraph(study.plan.explanation)))


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
    """Static against dynamic on the same jobs; nothing where none was planned."""
    if study.plan is None:
        return Section("")
    scenario = study.scenario
    frame = policy_frame(study)
    unservable = study.tables["policies"].filter((pl.col("measure") == "unservable") & (pl.col("mean") > 0))
    change = f"{study.problem.change.words()}; " if study.problem and study.headline["board_has_mig"] else ""
    meaning = (
        "Right-sized jobs hold fewer slices for the same work, so slices held fall while the SM activity of the "
        "GPUs that are on rises."
        if study.headline["board_has_mig"]
        else "Every job holds whole GPUs under every policy; they differ in how many GPUs are on, and when."
    )
    names = policy_names(study)
    text = (
        f"The same jobs under every policy: {scenario.replications} times {scenario.horizon_slots} slots drawn from "
        f"past days (seed {scenario.seed}), jobs that run or wait at the start included. Bars are 95 % intervals of "
        f"the mean. Queue of whole GPUs: {QUEUES[scenario.queue]}; {change}nothing that runs is ever stopped."
    )
    left = [
        page.note(f"{names[row['policy']]}: on average {row['mean']:.1f} jobs never find room.")
        for row in unservable.iter_rows(named=True)
    ]
    return Section(
        page.section(
            "Static against dynamic",
            page.paragraph(text),
            page.paragraph(meaning),
            *left,
            page.figure(
                plot.plot_policies(frame),
                title="Policies on the same jobs",
                alt=f"{plot.policies_text(policy_frame(study, WEIGHED))} Lower is better for both.",
                table=frame,
            ),
        )
    )


def savings(study: Study) -> Section:
    """What each step saves against the named baseline; nothing where none was planned."""
    if study.plan is None:
        return Section("")
    table = study.tables["savings"]
    base = float(table["gpu_hours"][0])
    last = table.row(-1, named=True)
    cut = "as they are cut" if study.headline["cut_gpus"] else "as whole GPUs"
    text = f"Baseline, frozen: today's {study.headline['fleet_gpus']:,} GPUs {cut}, all switched on. "
    text += _worth(study, last)
    steps = [
        f"{row['lever']} saves {row['saved_gpu_hours']:,.0f}"
        for row in table.iter_rows(named=True)
        if row["lever"] in TOLD_STEPS
    ]
    return Section(
        page.section(
            "What it saves",
            page.paragraph(text),
            page.figure(
                plot.plot_savings(savings_steps(study)),
                title="GPU-hours a week, step by step",
                alt=(
                    f"From {base:,.0f} to {last['gpu_hours']:,.0f} GPU-hours a week. Of this, {', '.join(steps)}."
                ),
                table=table.select(col for col in table.columns if table[col].null_count() < table.height),
            ),
        )
    )


def _worth(study: Study, last: Mapping[str, Any]) -> str:
    """What the GPU-hours set free are worth, if they may be claimed and a price is known."""
    if study.headline["saving_status"] not in HEADLINED:
        return (
            "No saving is claimed, and none is priced: what follows is the simulation alone "
            f"({study.headline['saving_note'].rstrip('.')})."
        )
    price, currency = study.provenance["price"], study.headline["currency"]
    if price is None:
        return "What the GPU-hours set free are worth is not stated: no price is known."
    return (
        f"At {price['value']:.2f} {currency} a GPU-hour ({price['source']}; {price['date']}) the plan sets free "
        f"{Decimal(study.headline['saved_cost_per_week']):,.2f} {currency} a week; at the lowest and highest price "
        f"seen, {last['saved_total_gpu_hours_low'] * price['low']:,.0f} to "
        f"{last['saved_total_gpu_hours_high'] * price['high']:,.0f}. It becomes money only where the GPU-hours are "
        "lent, sold or not rented."
    )
