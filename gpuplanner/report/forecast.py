"""What is ahead and how far it can be trusted: forecasts and their record."""

from __future__ import annotations

import polars as pl

from gpuplanner import plot
from gpuplanner.demand.series import POOL
from gpuplanner.forecast.record import CHOSEN, fold_scores, mean_scores
from gpuplanner.forecast.judge import Judged
from gpuplanner.report import page
from gpuplanner.report.section import Section
from gpuplanner.study.forecast_ledger import record_of
from gpuplanner.study.future.gpus_wanted import Wanted
from gpuplanner.units import counted, day_text

HEADINGS = {
    "cutoff": "forecast from",
    "slots": "slots that have come",
    "mae": "error, instances",
    "naive_mae": "error of the last value",
    "coverage_90": "in the 90 % interval",
    "cost": "cost as planned",
    "naive_cost": "cost for the last value",
}


def expected(source: Wanted, horizon: int, *, seed: int = 1) -> Section:
    """The fan, split into what runs already and what is to come, and what runs by series."""
    fan = source.fan(horizon, seed=seed)
    last = fan.row(-1, named=True)
    total = last["still_running"] + last["to_come"]
    return page.section(
        "What runs now, and what will come",
        page.figure(
            plot.plot_fan(fan),
            title=f"GPUs expected, {_named(source)}",
            alt=f"Of the {total:,.0f} GPUs expected at the end, {last['still_running']:,.0f} run today. The dotted "
            "lines hold 90 % of the sample paths, before they are corrected by past errors.",
            numbers=fan,
        ),
        page.figure(
            plot.plot_costs(
                source.running().select(tenant="unique_id", cost="gpu_hours_left"),
                unit="GPU-hours left",
                title="Work left in running jobs",
            ),
            title="What is left of what runs",
            alt="Expected GPU-hours, with jobs that still run counted as such and not left out.",
            numbers=source.running(),
        ),
    )


def past_errors(judged: Judged) -> Section:
    """How wrong every candidate was from many origins, and how often its interval held."""
    scores = fold_scores(judged)
    mean = mean_scores(scores)
    told = {row["model"]: row for row in mean.iter_rows(named=True)}
    chosen, naive = told[CHOSEN], told["Naive"]
    compared = (
        "no error can be measured"
        if chosen["mase"] is None or naive["mase"] is None
        else f"its error was {chosen['mase']:.2f}, that of the last value {naive['mase']:.2f}"
    )
    return page.section(
        "How often it was wrong",
        page.figure(
            plot.plot_backtest_scores(scores.filter(pl.col("mase").is_not_null())),
            title="Error and coverage from past origins",
            alt=f"{CHOSEN!r} is what earlier origins had one choose: {compared} (MASE), and its 90 % interval "
            f"held {chosen['coverage_90'] or 0:.0%} of the slots.",
            numbers=mean,
        ),
    )


def decision(source: Wanted, horizon: int, gap: int, price: float, *, seed: int = 1) -> Section:
    """The quantile to plan at."""
    curve = source.cost_curve(horizon, gap, price, seed=seed)
    best = curve.filter("best").row(0, named=True)
    return page.section(
        "What to do about it",
        page.figure(
            plot.plot_cost_curve(curve),
            title="Cost of planning at each quantile",
            alt=f"A GPU-hour short costs {price:g} planned ones: plan at {best['quantile']:.0%}, "
            f"{best['planned']:,.0f} GPUs on average.",
            numbers=curve,
        ),
    )


def calendar(source: Wanted, horizon: int, gap: int, price: float, capacity: float) -> Section:
    """GPUs to plan day by day, as a picture and its table."""
    table = source.calendar(horizon, gap, price)
    most = table.sort("planned", "day", descending=[True, False]).row(0, named=True)
    over = table.filter(pl.col("planned") > capacity).height
    return page.section(
        "Calendar",
        page.figure(
            plot.plot_peaks(table.select("day", gpus="planned"), gpus=round(capacity)),
            title=f"GPUs to plan on each day, {_named(source)}",
            alt=f"Most on {day_text(most['day'])}: {most['planned']:,.0f} GPUs; {counted(over, 'day')} need more than "
            f"the {capacity:,.0f} that there are.",
            numbers=table,
        ),
        page.table(
            table,
            caption="The busiest slot of each day; low and high hold 90 % of the sample paths",
            formats=dict.fromkeys(("planned", "expected", "low", "high"), ",.0f"),
            headings={"planned": "GPUs to plan"},
        ),
    )


def forecast_record(ledger: pl.DataFrame) -> Section:
    """How wrong the forecasts of earlier reports were, and what planning by them cost against the last value."""
    record = record_of(ledger)
    if record.is_empty():
        waits = (
            f"{ledger['cutoff'].n_unique()} forecast is written down"
            if ledger.height
            else "None is written down"
        )
        text = f"{waits}; a later report says what came of it."
        return page.fold("Past forecasts", page.paragraph(text), about=text, appendix=True)
    mean = record.select(pl.col("mae", "naive_mae", "cost", "naive_cost", "coverage_90").mean()).row(
        0, named=True
    )
    told = "Of the one earlier forecast" if record.height == 1 else f"Over {record.height} earlier forecasts"
    text = (
        f"{told} the error was {mean['mae']:.2f} instances, that of the last value "
        f"{mean['naive_mae']:.2f}; the 90 % interval held {mean['coverage_90']:.0%} of the slots. What was planned "
        f"cost {mean['cost']:.2f} per instance needed, planning for the last value {mean['naive_cost']:.2f}."
    )
    shown = record.with_columns(pl.col("cutoff").dt.strftime("%Y-%m-%d"))
    formats = dict.fromkeys(("mae", "naive_mae", "cost", "naive_cost"), ".2f") | {"coverage_90": ".0%"}
    table = page.table(shown, caption="Forecasts of earlier reports", formats=formats, headings=HEADINGS)
    return page.fold("Past forecasts", page.paragraph(text), table, about=told, appendix=True)


def _named(source: Wanted) -> str:
    """Name of what is summed up, for people."""
    return "whole fleet" if source.whole.startswith(f"{POOL}/") else source.whole
