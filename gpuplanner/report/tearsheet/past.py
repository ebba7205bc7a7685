"""Sections of the monthly report about what happened: data, ledger, demand, what people asked for and needed."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page, tables
from gpuplanner.report.section import Section
from gpuplanner.study import Study

WEEK_HEADINGS = {
    "mean_gpus_whole": "whole GPUs held, mean",
    "gpus_whole": "GPUs if whole",
    "gpus_requested": "GPUs if cut as requested",
    "gpus_rightsized": "GPUs if cut as needed",
    "layouts_rightsized": "layouts, as needed",
}


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
    cautions = [page.note(text) for text in study.provenance["cautions"]]
    return Section(
        page.fold(
            "Data",
            page.paragraph(text),
            *notes,
            found,
            *cautions,
            about="what was read, and what is wrong with it",
        )
    )


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
        page.fold(
            "Where the hours went",
            page.paragraph(f"{study.findings[0]} {_held(study)}"),
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
            about="every installed GPU-hour, by what was done with it and by team",
        )
    )


def _held(study: Study) -> str:
    held, installed = (study.headline[f"{name}_gpu_hours"] for name in ("allocated", "installed"))
    return f"In all, jobs held {held:,.0f} of {installed:,.0f} GPU-hours."


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
    gpus, running = (study.headline[name] for name in ("tomorrow_gpus", "tomorrow_running_gpus"))
    return Section(
        page.fold(
            "Demand and forecast",
            page.note(f"Of the {gpus:,.0f} GPUs expected tomorrow at noon, {running:,.0f} run today."),
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
            about="what was wanted, what is to come, and how wrong that was before",
        )
    )


def _daily(history: pl.DataFrame) -> pl.DataFrame:
    return (
        history.group_by("profile", day=pl.col("ds").dt.truncate("1d"))
        .agg(mean_instances=pl.col("y").mean(), peak_instances=pl.col("y").max())
        .sort("day", "profile")
        .tail(70)
    )


def rightsizing(study: Study) -> Section:
    """Jobs that could be smaller: what people ask for and what they need, in all and week by week."""
    title, about = "Jobs that could be smaller", "what jobs ask for, and what they need"
    said = page.paragraph(study.findings[1])
    if not study.headline["board_has_mig"]:
        return Section(page.fold(title, said, about=about))
    text = (
        "Needs are judged by telemetry, else by the job's accounting record, else by measured jobs of its class; "
        "without any of these the request stands. Jobs on several GPUs keep them."
    )
    frequent = tables.table(
        study.tables["rightsizing"].head(25),
        caption="Jobs by profile requested and needed, most frequent first",
    )
    return Section(page.fold(title, said, page.paragraph(text), frequent, *_by_week(study), about=about))


def _by_week(study: Study) -> Iterator[str]:
    table, board = study.tables["weeks"], study.headline["board"]
    if table.is_empty():
        yield page.paragraph("There are no small jobs.")
        return
    yield page.paragraph(
        f"Jobs that ask for at most one GPU, over the whole observation: GPUs needed to cover 95 % of the hours "
        f"of each week if every such job holds a whole {board}, if it gets the slice it asks for, and if it gets "
        "the slice that it needs. Fractions of the source's GPUs are read as the same fraction of this board."
    )
    yield tables.table(table, caption=f"GPUs ({board}) by week", headings=WEEK_HEADINGS)
