"""Page sections on cost, purchases, savings and forecasts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.output_column_headings import read_table_headings, replace_codes_by_text, text_of_code
from gpuplanner.core.units_and_number_formats import (
    count_text,
    day_text,
    figure_text,
    gpu_figure_text,
    gpus_text,
    money_text,
    percent_text,
)
from gpuplanner.cost.cost_over_time import ROUNDING_TEXT, compare_periods, mark_partial_weeks
from gpuplanner.cost.energy_and_carbon import FOOTPRINT_AMOUNTS
from gpuplanner.cost.monthly_cost_review import (
    BASIS_PHRASES,
    COST_TABLE_TITLES,
    PAGE_COST_TABLES,
    CostReview,
    price_rows,
    price_text,
)
from gpuplanner.cost.showback import LIST_PRICE
from gpuplanner.decision.burst_plan import BurstPlan
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.headroom_and_growth import MIN_FITTED_WEEKS
from gpuplanner.decision.purchase_and_refresh_plans import PurchasePlan
from gpuplanner.decision.savings_track_record import (
    SavingsMonth,
    baseline_table,
    evaluate_promises,
    savings_table,
    score_forecasts,
)
from gpuplanner.forecast.gpu_demand import DemandHistory
from gpuplanner.forecast.model_selection import CHOSEN_MODEL_NAME, EvaluatedBacktest, fold_scores, mean_scores
from gpuplanner.forecast.statistical_models import QUANTILE_LEVELS
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.usage.grouped_usage import describe_partial_periods
from gpuplanner.usage.requested_demand import ALL_TENANTS_POOL_NAME

_TWO_DECIMALS = ",.2f"
"""Format specification of amounts, such as ``1,234.50``."""
SHOWN_HISTORY_DAYS = 14
"""Days before the cutoff that charts of forecasts show. [days]"""
MAX_BURST_JOB_ROWS = 20
"""Maximum rows of the table of jobs to send to rented GPUs; ``cost --json`` lists all."""


def cost_section_parts(review: CostReview) -> Iterator[str]:
    """Yield HTML on the cost of a period: tables, unit costs, energy, carbon, and notes on unknown prices."""
    if review.total is not None:
        yield page.paragraph(_total_text(review, review.total))
    yield from (page.note(text) for text in review.missing)
    if review.total is not None:
        names = {"cost": f"cost{review.price_basis} [{review.currency}]", "share": "% of total"}
        by_tenant = replace_codes_by_text(review.by_tenant)
        yield page.figure(
            plots.plot_costs(by_tenant.select("tenant", pl.col("cost").cast(pl.Float64)), unit=review.currency),
            title=f"Cost by team{review.price_basis}",
            alt="Unallocated GPU-hours are a line of their own, not spread over teams.",
        )
        for by in PAGE_COST_TABLES:
            yield page.table(review.breakdown(by), caption=COST_TABLE_TITLES[by], headings=names)
            yield page.paragraph(review.unallocated_text) if by == "bucket" and review.unallocated_text else ""
        units = {name: value for name, value in review.unit_cost_texts.items() if name not in review.work_costs}
        yield page.value_table(units, caption="Cost of all installed GPU-hours per unit of work", answer="cost")
        sums = (f"{name[:1].upper()}{name[1:]}: {review.unit_cost_texts[name]}." for name in review.work_costs)
        yield page.paragraph(" ".join(sums))
    if review.energy is not None and (location := review.carbon_kg["location"]) is not None:
        market = "Market-based = location-based: no supply contract is stated in the price book."
        if (supplied := review.carbon_kg["market"]) is not None and round(supplied.value) != round(location.value):
            market = f"Market-based, by supply contract: {supplied.value:,.0f} kg CO2e."
        carbon = review.carbon
        yearly_text = ", ".join(filter(None, (f"{location.value:,.0f} kg CO2e", review.yearly_mean_carbon_text)))
        yield page.paragraph(
            f"Facility energy {review.energy.value:,.0f} kWh (PUE {review.pue:g}); location-based carbon "
            f"{yearly_text} ({carbon.gco2e_per_kwh:g} g/kWh, {carbon.region}, "
            f"{carbon.method}, {carbon.year}). {market}"
        )
        yield page.table(
            review.states.select(
                "state", "gpu_hours", *(_range_texts(review.states, name) for name in FOOTPRINT_AMOUNTS), "^counted_.*$"
            ),
            caption="Energy and carbon by state of the GPUs, with the ranges of power and PUE. Busy: used or without "
            "telemetry; idle: all others. Measured: energy read at the GPUs, without servers and cooling. Embodied "
            "carbon is separate",
            headings={f"{basis}_kg": f"{text} carbon [kg CO2e]" for basis, text in _CARBON_BASES.items()},
        )


_CARBON_BASES = {"location": "location-based", "market": "market-based", "embodied": "embodied"}
"""Words of the bases of carbon, by the start of their column."""


def _range_texts(table: pl.DataFrame, name: str) -> pl.Series:
    """Write each value of a column with its range in one cell, such as ``4,209 (1,942 to 8,640)``."""
    ranges = table.select(name, f"{name}_low", f"{name}_high").rows()
    texts = ["{} ({} to {})".format(*(figure_text(end, ",.0f") for end in row)) for row in ranges]
    return pl.Series(name, texts)


def _total_text(review: CostReview, total: Decimal) -> str:
    """Describe in a sentence which tables sum to the total cost, and the range of list prices."""
    sums = (
        f"The charge lines, and the tables by team and by bucket, sum to {money_text(total, review.currency)} "
        f"{review.currency}{review.price_basis} ({review.rate_text}). The table by end state covers allocated "
        f"GPU-hours only. {ROUNDING_TEXT}"
    )
    if review.price is None or review.price_basis != BASIS_PHRASES[LIST_PRICE]:
        return sums
    low, high = (float(total) * side / review.price.value for side in (review.price.low, review.price.high))
    return (
        f"{sums} The list price is the {review.price.source.split(':')[0]} of public clouds, host included: "
        f"{price_text(review.price)}, or {low:,.0f} to {high:,.0f} {review.currency} in total. This is the spread of "
        "offers, not the uncertainty of your cost; commitments and specialist clouds cost less."
    )


def render_cost_over_time(by_team: pl.DataFrame, every: str, review: CostReview) -> HtmlSection:
    """Render the cost by team over weeks or months, and the change from one to the next.

    Parameters
    ----------
    by_team : polars.DataFrame
        Table of :func:`gpuplanner.cost.cost_over_time.spread_cost`.
    every : {"week", "month"}
        Length of a period.
    review : CostReview
        Cost of all periods.
    """
    title = f"Cost by {every}"
    if review.total is None:
        return page.section(title, page.note("No GPU has a price."), *map(page.note, review.missing))
    totals = compare_periods(by_team, every)
    last = totals.row(-1, named=True)
    compared = f"There is one {every} only."
    if last["change_fraction"] is not None:
        change, daily = percent_text(last["change_fraction"], "+z.1f"), f"{last['cost_per_day']:,.0f} {review.currency}"
        compared = f"Cost a day in the last {every}: {daily}, {change} against the {every} before."
    label, zone = f"cost [{review.currency}]", ZoneInfo(review.scenario.tz)
    span = (time.astimezone(zone) for time in (review.job_history.begin, review.job_history.end))
    named = replace_codes_by_text(by_team.rename({"team": "tenant"})).rename({"tenant": "team"})
    headings = {"cost": label, "cost_per_day": f"cost a day [{review.currency}]", "change_fraction": "change a day [%]"}
    formats = {"gpu_hours": ",.0f", "cost": ",.0f", "cost_per_day": ",.0f", "change_fraction": "+.1%", "month": "%b %Y"}
    return page.section(
        title,
        page.figure(
            plots.plot_groups(mark_partial_weeks(named), ["team", every], "cost", label=label),
            title=f"{title} and team [{review.currency}]",
            alt=f"{compared} By calendar {every}. {describe_partial_periods(named, [every], *span)}",
            numbers=named,
            formats=formats,
        ),
        page.table(totals, caption=title, headings=headings, formats=formats),
    )


def render_price_section(review: CostReview) -> HtmlSection:
    """Render dated prices of the GPU model: own prices first, then list prices."""
    table = price_rows(review).with_columns(pl.col("kind").str.replace_all("_", " "))
    about = "Your rates come before list prices; each has its unit, date and source."
    return page.section(
        "Prices", page.paragraph(about), page.table(table, caption="Price book", formats={"price": ",.3f"})
    )


def render_commitment_section(purchase: PurchasePlan) -> HtmlSection:
    """Render purchases, reservations and rentals of the next months."""
    costs, start_dates = purchase.costs, purchase.begin
    options = costs.filter(~pl.col("option").str.starts_with(" ")).rename({"option": "tenant"})
    return page.section(
        "Buy, reserve or rent",
        page.paragraph(purchase.advice_sentence),
        *(page.note(note) for note in purchase.notes),
        ""
        if costs.is_empty()
        else page.figure(
            plots.plot_costs(options, unit=purchase.currency, title="Cost by purchase option"),
            title=purchase.scope,
            alt="Mean cost over demand scenarios; for the chosen mix also CVaR (10 %).",
            numbers=costs,
        ),
        page.table(start_dates, caption="Start dates") if start_dates.height else "",
    )


def render_payment_section(table: pl.DataFrame, notes: Sequence[str], title: str) -> HtmlSection:
    """Render the ways to pay for more GPUs: cost, and break-even against rented GPUs."""
    table = table.with_columns(pl.col("option").map_elements(text_of_code, return_dtype=pl.String))
    best = table.row(0, named=True)
    return page.section(
        "Buy, reserve or rent",
        page.figure(
            plots.plot_groups(table, ["option"], "cost", label="Cost"),
            title=title,
            alt=f"Cheapest: {best['option']}, {best['cost']:,.0f}.",
            numbers=table,
        ),
        *map(page.note, notes),
    )  # fmt: skip


def render_burst_section(burst: BurstPlan | None) -> HtmlSection:
    """Render the jobs to send to rented GPUs, the most expensive first."""
    title = "Jobs for rented GPUs"
    if burst is None:
        return page.section(title, page.paragraph("No rules: name a file of jobs that may run on rented GPUs."))
    notes = (page.note(text) for text in burst.notes)
    costliest = burst.jobs.sort(burst.jobs.columns[-1], descending=True, maintain_order=True).head(MAX_BURST_JOB_ROWS)
    table = page.table(costliest, caption="Jobs to send to rented GPUs, the most expensive")
    return page.section(title, page.paragraph(burst.advice_sentence), *notes, table)


def render_savings_section(comparison: Comparison) -> HtmlSection:
    """Render the capacity freed by the recommendation and its financial impact."""
    decision = comparison.decision
    if decision.saving.value is None:
        return page.section("Savings", page.paragraph(f"No capacity is freed: {decision.saving.reason or 'unknown'}."))
    return page.section(
        "Savings",
        page.paragraph(decision.sentence),
        *(page.paragraph(text) for text in decision.financial_impact.basis.split("\n")),
    )


def render_savings_record(months: tuple[SavingsMonth, ...]) -> HtmlSection:
    """Render the savings promised and realised of earlier monthly reports, and the causes of their differences."""
    results, standing = list(evaluate_promises(months)), baseline_table(months)
    title = "Savings promised and realised"
    if not results:
        last = months[-1]
        explanation = "savings cannot be measured without a node list (installed GPUs)"
        if last.seen.measured:
            explanation = "the report of a later month shows the realised savings"
        summary = f"{last.month} promises {last.promise.gpu_hours:,.0f} GPU-hours per week; {explanation}."
        return page.section(title, page.paragraph(summary))
    result = results[-1]
    if not any(result.promised or result.realised for result in results):
        explanation = (
            f"No month before {result.next_month} promised savings, and none had fewer GPU-hours than "
            f"{standing['month'][0]}, the frozen baseline. Submitted work was {result.demand_ratio:.2f} times "
            f"that of {result.month}."
        )
        return page.section(title, page.paragraph(explanation))
    causes = ((step, getattr(result, name), None, None) for name, step in _SAVING_VARIANCE_LABELS.items())
    steps = [("promised", result.promised, result.low, result.high), *causes, ("realised", result.realised, None, None)]
    schema = {"step": pl.String} | dict.fromkeys(("amount", "low", "high"), pl.Float64)
    frame = pl.DataFrame(steps, schema=schema, orient="row")
    parts = ", ".join(f"{part.gpu_hours:,.0f} by {part.lever}" for part in result.levers)
    is_priced = standing["saved_usd"].null_count() < standing.height
    impact = f", {money_text(standing['total_usd'][-1], 'USD')} USD" if is_priced else ""
    summary = (
        f"{result.month} promised {result.promised:,.0f} GPU-hours per week; the data of {result.next_month} show "
        f"{result.realised:,.0f}: {parts}. Submitted work was {result.demand_ratio:.2f} times that of {result.month}. "
        f"Against {standing['month'][0]}, the frozen baseline, savings realised so far are "
        f"{standing['saved_gpu_hours'].sum():,.0f} GPU-hours{impact}."
    )
    return page.section(
        title,
        page.paragraph(summary),
        page.figure(
            plots.plot_waterfall(frame, unit="GPU-hours per week"),
            title=f"Promised in {result.month}, realised in {result.next_month}",
            alt="Steps from promised to realised: demand, longer waits, measures not carried out.",
            numbers=frame,
            formats=dict.fromkeys(("amount", "low", "high"), _TWO_DECIMALS),
        ),
        page.table(savings_table(months), caption="Savings per week, promised and realised: GPU-hours and money"),
        page.table(standing, caption="Each month against the first, the frozen baseline"),
    )


_SAVING_VARIANCE_LABELS = {"demand": "demand", "service": "jobs waited longer", "not_carried_out": "not carried out"}
"""Labels of the causes why realised savings differ from promised ones, by field of the result."""


PAST_FORECAST_HEADINGS = read_table_headings("past forecasts")
"""Headings of the table of past forecasts, by column."""


def render_expected_section(demand_history: DemandHistory, horizon: int) -> HtmlSection:
    """Render the expected GPUs of running and new jobs, and the work left in running jobs.

    Parameters
    ----------
    demand_history : DemandHistory
        Forecast of GPU demand.
    horizon : int
        Intervals ahead.
    """
    fan = demand_history.fan(horizon)
    last = fan.row(-1, named=True)
    total = last["still_running"] + last["to_come"]
    past = demand_history.demand_table.filter(
        pl.col("unique_id") == demand_history.whole, pl.col("ds") >= fan["ds"][0] - timedelta(days=SHOWN_HISTORY_DAYS)
    )
    work_left = demand_history.running().select(tenant="unique_id", cost="gpu_hours_left")
    return page.section(
        "Running and new jobs",
        page.figure(
            plots.plot_fan(fan, past),
            title=f"GPUs expected, {_series_label(demand_history.whole)}",
            alt=f"Of the {gpus_text(total)} expected at the end, jobs that run today have "
            f"{gpu_figure_text(last['still_running'])}. Before the dashed line: the {SHOWN_HISTORY_DAYS} days "
            "observed. Dotted lines: 90 % interval of the sample paths, before calibration.",
            numbers=fan,
        ),
        page.figure(
            plots.plot_costs(work_left, unit="GPU-hours left", title="Work left in running jobs"),
            title="Work left in running jobs",
            alt="Expected GPU-hours left in jobs that are running.",
            numbers=demand_history.running(),
        ),
    )


def render_error_section(backtest: EvaluatedBacktest) -> HtmlSection:
    """Render the error of each forecasting model and the coverage of its interval at past cutoffs."""
    scores = fold_scores(backtest)
    mean = mean_scores(scores)
    score_by_model = {row["model"]: row for row in mean.iter_rows(named=True)}
    chosen, naive = score_by_model[CHOSEN_MODEL_NAME], score_by_model["Naive"]
    error_text = "no error can be measured"
    if chosen["mase"] is not None and naive["mase"] is not None:
        error_text = f"its error was {chosen['mase']:.2f}, that of the naive baseline {naive['mase']:.2f}"
    past = _last_forecasts(backtest)
    series_names = past["unique_id"].unique(maintain_order=True).to_list()
    covered = past.filter(pl.col("y").is_between(pl.col("q05"), pl.col("q95"))).height / max(past.height, 1)
    return page.section(
        "Forecast errors",
        page.figure(
            plots.plot_past_forecasts(past),
            title=f"Past forecasts over what came, {_series_label(next(iter(series_names), None))}",
            alt=f"{count_text(past['cutoff'].n_unique(), 'forecast')} that do not overlap; the 90 % interval covered "
            f"{percent_text(covered)} of these values.",
        ),
        page.figure(
            plots.plot_backtest_scores(scores.filter(pl.col("mase").is_not_null())),
            title="Error and coverage at past cutoffs",
            alt=f"{CHOSEN_MODEL_NAME!r} is the model chosen by earlier cutoffs: {error_text} (MASE); its 90 % interval "
            f"covered {percent_text(chosen['coverage_90'] or 0)} of the values.",
            numbers=mean,
        ),
    )


def _last_forecasts(backtest: EvaluatedBacktest) -> pl.DataFrame:
    """Tabulate forecasts of the largest series from evaluated cutoffs without overlap, newest last.

    They cover at most :data:`SHOWN_HISTORY_DAYS`, unless one alone is longer.

    Parameters
    ----------
    backtest : EvaluatedBacktest
        Forecasts at past cutoffs.

    Returns
    -------
    polars.DataFrame
        ``unique_id, cutoff, ds, y, q05, q50, q95``. [GPUs]
    """
    test, grid = backtest.test, backtest.test.grid
    row = int(np.nanargmax(np.nanmean(grid.values, axis=1)))
    quantiles = {f"q{100 * level:02.0f}": number for number, level in enumerate(QUANTILE_LEVELS)}
    tables = list[pl.DataFrame]()
    next_origin = math.inf
    for index in range(len(test.origins) - 1, backtest.first - 1, -1):
        origin = test.origins[index]
        if origin + test.horizon > next_origin:
            continue
        if tables and (test.origins[-1] - origin) * grid.slot > timedelta(days=SHOWN_HISTORY_DAYS):
            break
        next_origin = origin
        times = [grid.start + (origin + test.gap + number) * grid.slot for number in range(test.horizon)]
        columns = {name: backtest.mixture[row, index, :, quantiles[name]] for name in ("q05", "q50", "q95")}
        names = {"unique_id": grid.ids[row], "cutoff": grid.start + origin * grid.slot}
        tables.append(pl.DataFrame({**names, "ds": times, "y": test.actual[row, index], **columns}))
    return pl.concat(tables[::-1]).filter(pl.col("y").is_not_nan())


def render_quantile_section(demand_history: DemandHistory, horizon: int, gap: int, price: float) -> HtmlSection:
    """Render the cost of planning at each quantile of demand.

    Parameters
    ----------
    demand_history : DemandHistory
        Forecast of GPU demand.
    horizon : int
        Intervals ahead.
    gap : int
        Intervals between the end of the data and the first one planned.
    price : float
        Cost of a missing GPU-hour, relative to a planned one.
    """
    curve = demand_history.cost_curve(horizon, gap, price)
    best = curve.filter("best").row(0, named=True)
    return page.section(
        "Capacity to plan",
        page.figure(
            plots.plot_cost_curve(curve),
            title="Cost of planning at each quantile",
            alt=f"A GPU-hour short costs {price:g} planned ones: plan at {percent_text(best['quantile'])}, "
            f"{gpus_text(best['planned'])} on average.",
            numbers=curve,
        ),
    )


def render_calendar_section(
    demand_history: DemandHistory, horizon: int, gap: int, price: float, capacity: float
) -> HtmlSection:
    """Render the GPUs to plan on each day of the forecast horizon.

    Parameters
    ----------
    demand_history : DemandHistory
        Forecast of GPU demand.
    horizon : int
        Intervals ahead.
    gap : int
        Intervals between the end of the data and the first one planned.
    price : float
        Cost of a missing GPU-hour, relative to a planned one.
    capacity : float
        Installed GPUs.
    """
    table = demand_history.plan_calendar(horizon, gap, price)
    peak = table.sort("planned", "day", descending=[True, False]).row(0, named=True)
    days_over = table.filter(pl.col("planned") > capacity).height
    return page.section(
        "Calendar",
        page.figure(
            plots.plot_peaks(table.select("day", gpus="planned"), gpus=round(capacity)),
            title=f"GPUs to plan on each day, {_series_label(demand_history.whole)}",
            alt=f"Peak on {day_text(peak['day'])}: {gpus_text(peak['planned'])}; {count_text(days_over, 'day')} above "
            f"the {gpu_figure_text(capacity)} installed.",
            numbers=table,
        ),
        page.table(
            table,
            caption="Busiest interval of each day; low and high: 90 % interval of the sample paths",
            formats=dict.fromkeys(("planned", "expected", "low", "high"), ",.0f"),
            headings={"planned": "GPUs to plan"},
        ),
    )


def render_exceedance_section(
    estimates: pl.DataFrame, outlook: pl.DataFrame, limit: float, observed_weeks: float
) -> HtmlSection:
    """Render the weeks in which demand first exceeds a limit [GPU], and the demand of the weeks ahead.

    Parameters
    ----------
    estimates, outlook : polars.DataFrame
        Tables of :class:`gpuplanner.forecast.gpu_demand.DemandHistory`.
    limit : float
        Demand that is not to be exceeded. [GPU]
    observed_weeks : float
        Length of the record, in which a trend is found. [weeks]
    """
    caution = (
        f"Caution: {observed_weeks:.1f} weeks were observed, and a trend needs {MIN_FITTED_WEEKS}: the weeks show a"
    )
    weeks = (
        f"{name} {'not within these weeks' if week is None else day_text(week)}"
        for name, week in estimates.select("estimate", "week").iter_rows()
    )
    return page.section(
        "Demand above the limit",
        page.note(f"{caution} direction, not a date to order by.") if observed_weeks < MIN_FITTED_WEEKS else "",
        page.note(f"Demand first exceeds {gpus_text(limit)} in the week from: {'; '.join(weeks)}."),
        page.figure(
            plots.plot_groups(outlook, ["estimate", "week"], "gpus", label="Demand [GPU]"),
            title="Demand of the weeks ahead",
            alt=f"Quantiles of the sample paths of demand, and the limit of {gpus_text(limit)}.",
            numbers=outlook,
        ),
        page.table(estimates, caption="Week in which demand first exceeds the limit"),
    )


def render_forecast_record(ledger: pl.DataFrame) -> HtmlSection:
    """Render the errors of the forecasts in earlier monthly reports, and the cost of planning by these forecasts."""
    record = score_forecasts(ledger)
    if record.is_empty():
        text = f"{count_text(ledger['cutoff'].n_unique(), 'forecast')} recorded; a later report shows the error."
        return page.fold("Past forecasts", page.paragraph(text), about=text, appendix=True)
    mean = record.select(pl.col("mae", "naive_mae", "cost", "naive_cost", "coverage_90").mean()).row(0, named=True)
    forecasts = count_text(record.height, "earlier forecast")
    text = (
        f"{forecasts}: MAE {mean['mae']:.2f} instances, naive baseline {mean['naive_mae']:.2f}; the 90 % interval "
        f"covered {percent_text(mean['coverage_90'])} of the values. Planning by them cost {mean['cost']:.2f} per "
        f"instance needed, by the naive baseline {mean['naive_cost']:.2f}."
    )
    dated = record.with_columns(pl.col("cutoff").dt.strftime("%Y-%m-%d"))
    formats = dict.fromkeys(("mae", "naive_mae", "cost", "naive_cost"), ".2f") | {"coverage_90": ".0%"}
    table = page.table(dated, caption="Forecasts of earlier reports", formats=formats, headings=PAST_FORECAST_HEADINGS)
    return page.fold("Past forecasts", page.paragraph(text), table, about=forecasts, appendix=True)


def _series_label(name: str | None) -> str:
    """Return ``all GPUs`` for the sum of all series, else the name of the series."""
    return "all GPUs" if not name or name.startswith(f"{ALL_TENANTS_POOL_NAME}/") else name
