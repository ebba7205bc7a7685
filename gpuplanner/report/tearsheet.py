"""The sections of the monthly report. They choose and arrange; every number comes from the study."""

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
from gpuplanner.study.future.saving import HEADLINED, SIMULATED_ONLY

WEEK_HEADINGS = {
    "mean_gpus_whole": "whole GPUs held, mean",
    "gpus_whole": "GPUs if whole",
    "gpus_requested": "GPUs if cut as requested",
    "gpus_rightsized": "GPUs if cut as needed",
    "layouts_rightsized": "layouts, as needed",
    "saved_gpu_hours": "GPU-hours saved",
}
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


def summary(study: Study) -> Section:
    """Headline figures and the three findings."""
    figures = study.headline
    shown = [
        page.Card(
            "Installed GPU-hours",
            f"{figures['installed_gpu_hours']:,.0f}",
            f"{_fleet(figures)}, {figures['fleet_note']}",
        ),
        page.Card(
            "Allocated",
            f"{figures['allocated_gpu_hours'] / max(figures['installed_gpu_hours'], 1e-9):.1%}",
            f"{figures['allocated_gpu_hours']:,.0f} GPU-hours",
        ),
        *_cost_card(figures),
        *([] if study.plan is None else _plan_cards(study)),
    ]
    cautions = [page.note(text) for text in study.provenance["cautions"]]
    return Section(page.section("Summary", page.cards(shown), page.findings(study.findings), *cautions))


def quality(study: Study) -> Section:
    """What is wrong with the data, before any figure that rests on them."""
    table = study.tables["quality"]
    trace = study.provenance["trace"]
    text = (
        f"Source {trace['source']}: {trace['rows_in']:,} rows read, {trace['rows_kept']:,} kept, "
        f"{trace['rows_rejected']:,} rejected with a reason."
    )
    notes = [page.note(str(note)) for note in trace.get("notes", [])]
    found = (
        tables.table(table, caption="Findings of the quality report")
        if table.height
        else page.paragraph("Nothing was found to be wrong.")
    )
    return Section(page.section("Data quality", page.paragraph(text), *notes, found))


def ledger(study: Study) -> Section:
    """Where the installed GPU-time went."""
    buckets, tenants = study.tables["ledger_buckets"], study.tables["ledger_tenants"]
    largest = buckets.sort("gpu_hours", descending=True).row(0, named=True)
    alt = (
        f"Every installed GPU-hour is in one bucket; the largest is {largest['bucket'].replace('_', ' ')} with "
        f"{largest['share']:.0%}."
    )
    heaviest = tenants.row(0, named=True) if tenants.height else {"tenant": "-", "held_gpu_hours": 0.0}
    return Section(
        page.section(
            "Where the GPU-time went",
            page.figure(
                plot.plot_ledger(study.tables["ledger"], tz=study.scenario.tz),
                title="Installed GPU-hours by bucket",
                alt=alt,
                table=buckets,
            ),
            page.figure(
                plot.plot_ledger_tenants(study.tables["ledger"]),
                title="Allocated GPU-hours by tenant",
                alt=f"{heaviest['tenant']} held most: {heaviest['held_gpu_hours']:,.0f} GPU-hours.",
                table=tenants,
            ),
        )
    )


def demand(study: Study) -> Section:
    """Demand of the pool by profile, with the forecast and its past error; nothing without a forecast."""
    if study.plan is None:
        return Section("")
    history = study.tables["demand"].filter(pl.col("tenant") == "all")
    forecast = study.tables["forecast"].filter(pl.col("unique_id").str.starts_with("all/"))
    scores = study.tables["scores"].filter(pl.col("unique_id").str.starts_with("all/"))
    choice = study.tables["choice"].filter(pl.col("unique_id").str.starts_with("all/"))
    coverage = study.headline["forecast_coverage_90"]
    wanted = (
        "Instances wanted by profile over the last two weeks, right-sized,"
        if study.headline["board_has_mig"]
        else "GPUs wanted over the last two weeks"
    )
    alt = (
        f"{wanted} and the forecast for "
        f"{study.scenario.horizon_slots} slots. The band holds 90 % of the cases if the past is a guide; on past "
        f"origins it held {coverage:.1%}."
        if coverage is not None
        else f"{wanted} and the forecast; too little history to measure its error."
    )
    return Section(
        page.section(
            "Demand and forecast",
            page.figure(
                plot.plot_demand(history, forecast, by="profile"),
                title="Instances wanted, by profile" if study.headline["board_has_mig"] else "GPUs wanted",
                alt=alt,
                table=_daily(history),
            ),
            page.figure(
                plot.plot_backtest_scores(scores),
                title="Error of every model on past origins (MASE: below 1 beats the seasonal naive in sample)",
                alt="Naive stands in every comparison; the model used for each series is in the table.",
                table=choice.select(
                    "unique_id", "model", "rule", "windows", "mase", "naive_mase", "coverage_90"
                ),
            ),
        )
    )


def weeks(study: Study) -> Section:
    """What jobs of at most one GPU would have needed, week by week."""
    table, board = study.tables["weeks"], study.headline["board"]
    if not study.headline["board_has_mig"]:
        return Section("")
    if table.is_empty():
        return Section(page.section("Small jobs, week by week", page.paragraph("There are no small jobs.")))
    text = (
        f"Jobs that ask for at most one GPU, over the whole observation: GPUs needed to cover 95 % of the hours "
        f"of each week if every such job holds a whole {board}, if it gets the slice it asks for, and if it gets "
        "the slice that it needs. Fractions of the source's GPUs are read as the same fraction of this board."
    )
    return Section(
        page.section(
            "Small jobs, week by week",
            page.paragraph(text),
            tables.table(table, caption=f"GPUs ({board}) by week", headings=WEEK_HEADINGS),
        )
    )


def rightsizing(study: Study) -> Section:
    """What people ask for and what they need; nothing where the board cannot be cut."""
    table = study.tables["rightsizing"]
    if not study.headline["board_has_mig"]:
        return Section("")
    text = (
        "Needs are judged by telemetry, else by the job's accounting record, else by measured jobs of its class; "
        "without any of these the request stands. Jobs on several GPUs keep them."
    )
    return Section(
        page.section(
            "Requested and needed",
            page.paragraph(text),
            tables.table(table.head(25), caption="Jobs by profile requested and needed, most frequent first"),
        )
    )


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


def costs(study: Study) -> Section:
    """Who pays for the period, energy and carbon; what is not known is said in its place."""
    table, figures = study.tables["costs"], study.headline
    missing = [page.paragraph(sentence) for sentence in study.provenance["not_stated"]]
    if figures["cost"] is None:
        energy = [page.paragraph(_energy(study))] if figures["energy_kwh"] is not None else []
        return Section(page.section("Cost, energy, carbon", *missing, *energy))
    bars = table.select(tenant="SubAccountName", cost=pl.col("EffectiveCost").cast(pl.Float64))
    text = (
        f"The lines sum to {Decimal(figures['cost']):,.2f} {figures['currency']}, the price of every installed "
        f"GPU-hour{_of_pool(figures)}."
    )
    if figures["energy_kwh"] is not None:
        text += f" {_energy(study)}"
    chosen = [
        "SubAccountName",
        "PricingQuantity",
        "EffectiveCost",
        "BillingCurrency",
        "x_EnergyKwh",
        "x_CarbonKg",
    ]
    return Section(
        page.section(
            "Cost, energy, carbon",
            page.paragraph(text),
            *missing,
            page.figure(
                plot.plot_costs(bars, unit=figures["currency"]),
                title="Cost by tenant",
                alt="What nobody held is a line of its own, not spread over tenants.",
                table=table.select(name for name in chosen if table[name].null_count() < table.height),
            ),
        )
    )


def method(study: Study) -> Section:
    """What the figures rest on."""
    assumptions = pl.DataFrame(
        [{"assumption": name, **values} for name, values in study.provenance["assumptions"].items()]
    )
    policies = pl.DataFrame(
        [
            {"policy": policy_names(study)[name], "meaning": text}
            for name, text in study.provenance["policies"].items()
        ]
    )
    return Section(
        page.section(
            "What this rests on",
            *([] if study.plan is None else [tables.table(policies, caption="Policies compared")]),
            tables.table(assumptions, caption="Assumed figures with range, source and date"),
        )
    )


def _fleet(figures: Mapping[str, Any]) -> str:
    """The one fleet, and the part of it that is planned."""
    board = f" × {figures['board']}" if figures["board"] else ""
    if figures["fleet_gpus"] == figures["installed_gpus"]:
        return f"{figures['fleet_gpus']:,}{board or ' GPUs'}"
    return f"{figures['installed_gpus']:,} GPUs; planned: {figures['fleet_gpus']:,}{board}"


def _on(study: Study) -> str:
    """How many GPUs of the fleet the plan has on, and how often it cuts one."""
    figures = study.headline
    mean = figures["plan_gpu_hours_on"] / (study.scenario.horizon_slots * study.scenario.slot_hours)
    changes = f", {figures['plan_changes']} layout changes" if figures["board_has_mig"] else ""
    return f"{mean:,.1f} of {figures['fleet_gpus']:,} GPUs on, on average{changes}"


def _of_pool(figures: Mapping[str, Any]) -> str:
    return "" if figures["fleet_gpus"] == figures["installed_gpus"] else f" of {figures['board']}"


def _plan_cards(study: Study) -> list[page.Card]:
    figures = study.headline
    wait = figures["wait_minutes"]
    return [
        _saving_card(figures, study.tables["savings"].row(-1, named=True)),
        page.Card(
            "Mean wait",
            _minutes(wait["dynamic_rightsized"]["mean"]),
            f"planned; {_minutes(wait['installed']['mean'])} today",
        ),
        page.Card(
            "Plan is proven within",
            f"{figures['plan_gap_fraction']:.2%}",
            f"status {figures['plan_status']}; {_on(study)}",
        ),
    ]


def _saving_card(figures: Mapping[str, Any], last: Mapping[str, Any]) -> page.Card:
    """The saving where it may be a headline; else what it is instead, with the figures that say why."""
    title, status = "Could be set free", figures["saving_status"]
    if status not in HEADLINED:
        wait = figures["wait_minutes"]
        return page.Card(
            title,
            status,
            f"{last['saved_total_gpu_hours']:,.0f} GPU h a week less in simulation, with mean waits of "
            f"{_minutes(wait['dynamic_rightsized']['mean'])} instead of {_minutes(wait['installed']['mean'])}; see "
            "finding 3",
        )
    only = "simulated only; " if status == SIMULATED_ONLY else ""
    return page.Card(
        title,
        f"{last['saved_total_gpu_hours']:,.0f} GPU h",
        f"a week; {only}{last['saved_total_gpu_hours_low']:,.0f} to {last['saved_total_gpu_hours_high']:,.0f} (95 %), "
        "against today's fleet, all on",
    )


def _cost_card(figures: Mapping[str, Any]) -> list[page.Card]:
    if figures["cost"] is None:
        return []
    cost = f"{Decimal(figures['cost']):,.2f} {figures['currency']}"
    return [page.Card("Cost of the period", cost, f"at {figures['price_per_gpu_hour']:.2f} a GPU-hour")]


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


def _energy(study: Study) -> str:
    figures, carbon = study.headline, study.provenance["carbon"]
    return (
        f"Energy {figures['energy_kwh']:,.0f} kWh at the building's meter (PUE {study.provenance['pue']:g}), "
        f"{figures['carbon_kg']:,.0f} kg CO2e operational at {carbon['gco2e_per_kwh']:g} g/kWh ({carbon['region']}, "
        f"{carbon['method']}, {carbon['year']})."
    )


def _daily(history: pl.DataFrame) -> pl.DataFrame:
    return (
        history.group_by("profile", day=pl.col("ds").dt.truncate("1d"))
        .agg(mean_instances=pl.col("y").mean(), peak_instances=pl.col("y").max())
        .sort("day", "profile")
        .tail(70)
    )


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


def _minutes(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} min"


def _day(text: str) -> str:
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC")
