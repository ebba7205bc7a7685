"""Page sections on cost and forecasts."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.column_headings import cells_in_words
from gpuplanner.core.units import count_text, day_text, money_text, percent_text
from gpuplanner.cost.cost_review import BASES, CostReview, price_rows, price_text
from gpuplanner.cost.energy_and_carbon import AMOUNTS
from gpuplanner.cost.showback import LIST_PRICE
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.purchase_plan import BurstPlan, HardwareRefresh, PurchasePlan
from gpuplanner.decision.track_record import (
    SavingsMonth,
    baseline_table,
    evaluate_promises,
    savings_table,
    score_forecasts,
)
from gpuplanner.forecast.gpu_demand import DemandHistory
from gpuplanner.forecast.model_selection import CHOSEN_MODEL_NAME, EvaluatedBacktest, fold_scores, mean_scores
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import Section
from gpuplanner.usage.requested_demand import ALL_TENANTS_POOL_NAME

_TWO = ",.2f"
MOST_JOBS = 20
"""Most jobs of a table; all are in ``cost --json``."""


def month(found: CostReview) -> Section:
    """What the month cost, for whom and why, with energy and carbon."""
    return page.section("The month", *month_parts(found))


def month_parts(found: CostReview) -> Iterator[str]:
    """What a section on the cost of a period shows; what is not known is said in its place."""
    if found.total is not None:
        yield page.paragraph(_total_text(found, found.total))
    yield from (page.note(text) for text in found.missing)
    if found.total is not None:
        names = {"cost": f"cost{found.price_basis} [{found.currency}]", "share": "% of total"}
        by_tenant = cells_in_words(found.by_tenant)
        yield page.figure(
            plots.plot_costs(by_tenant.select("tenant", pl.col("cost").cast(pl.Float64)), unit=found.currency),
            title=f"Cost by team{found.price_basis}",
            alt="Unallocated GPU-hours are a line of their own, not spread over teams.",
        )
        for by, caption in COST_TABLES.items():
            yield page.table(found.breakdown(by), caption=caption, headings=names)
            yield page.paragraph(found.bridge) if by == "bucket" and found.bridge else ""
        units = {name: value for name, value in found.units_in_words.items() if name.startswith("cost per")}
        yield page.answers(units, caption="Cost of all installed GPU-hours per unit of work", answer="cost")
        sums = (f"{name[:1].upper()}{name[1:]}: {value}." for name, value in found.units_in_words.items())
        yield page.paragraph(" ".join(text for text in sums if not text.startswith("Cost per")))
    if found.energy is not None and (location := found.carbon_kg["location"]) is not None:
        market = "Market-based = location-based: no supply contract is stated in the price book."
        if (supplied := found.carbon_kg["market"]) is not None and round(supplied.value) != round(location.value):
            market = f"Market-based, by supply contract: {supplied.value:,.0f} kg CO2e."
        one, yearly = found.carbon, found.carbon_at_yearly_mean_kg or 0.0
        other = "" if round(yearly) == round(location.value) else f", {yearly:,.0f} kg at the yearly mean"
        yield page.paragraph(
            f"Facility energy {found.energy.value:,.0f} kWh (PUE {found.pue:g}); location-based carbon "
            f"{location.value:,.0f} kg CO2e{other} ({one.gco2e_per_kwh:g} g/kWh, {one.region}, {one.method}, "
            f"{one.year}). {market}"
        )
        yield page.table(
            found.states.select("state", "gpu_hours", f"^({'|'.join(('counted', *AMOUNTS))}).*$"),
            caption="Energy and carbon by state of the GPUs, with ranges; busy: used or without telemetry, idle: all "
            "others. Measured: energy read at the GPUs, without servers and cooling. Embodied carbon is separate",
        )


COST_TABLES = {
    "tenant": "Cost by team", "bucket": "Cost by bucket of GPU-hours",
    "end": "Cost of allocated GPU-hours, by end state of jobs",
}  # fmt: skip
"""Captions of the tables of cost, by their names."""


def _total_text(found: CostReview, total: Decimal) -> str:
    """The tables that sum to the total, and the spread of the list prices."""
    sums = (
        f"The charge lines, and the tables by team and by bucket, sum to {money_text(total, found.currency)} "
        f"{found.currency}{found.price_basis} ({found.rate_text}). The table by end state covers allocated GPU-hours "
        "only."
    )
    if found.price is None or found.price_basis != BASES[LIST_PRICE]:
        return sums
    low, high = (float(total) * side / found.price.value for side in (found.price.low, found.price.high))
    return (
        f"{sums} The list price is the {found.price.source.split(':')[0]} of public clouds, host included: "
        f"{price_text(found.price)}, or {low:,.0f} to {high:,.0f} {found.currency} in total. This is the spread of "
        "offers, not the uncertainty of your cost; commitments and specialist clouds cost less."
    )


def prices(found: CostReview) -> Section:
    """Dated prices for the GPU model: own prices first, then the list."""
    table = price_rows(found)
    about = "Your rates come before list prices; each has its unit, date and source."
    return page.section("Prices", page.paragraph(about), page.table(table, caption="Price book"))


def commitments(found: PurchasePlan, renewed: HardwareRefresh | None = None) -> Section:
    """Purchases, reservations and rentals of the months ahead, and when a newer GPU model pays off."""
    costs, begun = found.costs, found.begin
    ways = costs.filter(~pl.col("option").str.starts_with(" ")).rename({"option": "tenant"})
    return page.section(
        "Buy, reserve or rent",
        page.paragraph(found.advice_sentence),
        *(page.note(one) for one in found.notes),
        page.figure(
            plots.plot_costs(ways, unit=found.currency, title="Cost by purchase option"),
            title=found.scope,
            alt="Mean cost over demand scenarios; for the cheapest mix also CVaR (10 %).",
            numbers=costs,
        ),
        page.table(begun, caption="Start dates") if begun.height else "",
        "" if renewed is None else page.paragraph(renewed.advice_sentence),
    )


def burst_jobs(burst: BurstPlan | None) -> Section:
    """Jobs to send to rented GPUs, the most expensive first."""
    title = "Jobs for rented GPUs"
    if burst is None:
        return page.section(title, page.paragraph("No rules: name a file of jobs that may run on rented GPUs."))
    notes = (page.note(text) for text in burst.notes)
    costliest = burst.jobs.sort(burst.jobs.columns[-1], descending=True, maintain_order=True).head(MOST_JOBS)
    table = page.table(costliest, caption="Jobs to send to rented GPUs, the most expensive")
    return page.section(title, page.paragraph(burst.advice_sentence), *notes, table)


def savings(found: Comparison) -> Section:
    """Capacity freed by the recommendation, and its financial impact."""
    one = found.decision
    if one.saving.value is None:
        return page.section("Savings", page.paragraph(one.saving.reason or "No capacity is freed."))
    return page.section(
        "Savings",
        page.paragraph(one.sentence),
        *(page.paragraph(text) for text in one.financial_impact.basis.split("\n")),
    )


def savings_record(months: tuple[SavingsMonth, ...]) -> Section:
    """Savings of earlier reports, promised and realised, and their differences."""
    came, standing = list(evaluate_promises(months)), baseline_table(months)
    title = "Savings promised and realised"
    if not came:
        last = months[-1]
        waits = "savings cannot be measured without a node list (installed GPUs)"
        if last.seen.measured:
            waits = "the report of a later month shows the realised savings"
        said = f"{last.month} promises {last.promise.gpu_hours:,.0f} GPU-hours per week; {waits}."
        return page.section(title, page.paragraph(said))
    one = came[-1]
    if not any(each.promised or each.realised for each in came):
        still = (
            f"No month before {one.next_month} promised savings, and none had fewer GPU-hours than "
            f"{standing['month'][0]}, the frozen baseline. Submitted work was {one.demand_ratio:.2f} times "
            f"that of {one.month}."
        )
        return page.section(title, page.paragraph(still))
    steps = [("promised", one.promised, one.low, one.high), *((_STEPS[name], getattr(one, name), None, None)
             for name in _STEPS), ("realised", one.realised, None, None)]  # fmt: skip
    schema = {"step": pl.String} | dict.fromkeys(("amount", "low", "high"), pl.Float64)
    frame = pl.DataFrame(steps, schema=schema, orient="row")
    parts = ", ".join(f"{part.gpu_hours:,.0f} by {part.lever}" for part in one.levers)
    known = standing["saved_usd"].null_count() < standing.height
    impact = f", {money_text(standing['total_usd'][-1], 'USD')} USD" if known else ""
    said = (
        f"{one.month} promised {one.promised:,.0f} GPU-hours per week; the data of {one.next_month} show "
        f"{one.realised:,.0f}: {parts}. Submitted work was {one.demand_ratio:.2f} times that of {one.month}. Against "
        f"{standing['month'][0]}, the frozen baseline, savings realised so far are "
        f"{standing['saved_gpu_hours'].sum():,.0f} GPU-hours{impact}."
    )
    return page.section(
        title,
        page.paragraph(said),
        page.figure(
            plots.plot_waterfall(frame, unit="GPU-hours per week"),
            title=f"Promised in {one.month}, realised in {one.next_month}",
            alt="Steps from promised to realised: demand, longer waits, measures not carried out.",
            numbers=frame,
            formats=dict.fromkeys(("amount", "low", "high"), _TWO),
        ),
        page.table(savings_table(months), caption="Savings per week, promised and realised: GPU-hours and money"),
        page.table(standing, caption="Each month against the first, the frozen baseline"),
    )


_STEPS = {"demand": "demand", "service": "jobs waited longer", "not_carried_out": "not carried out"}


HEADINGS = {
    "cutoff": "cutoff", "slots": "intervals evaluated", "mae": "MAE [instances]",
    "naive_mae": "MAE of the naive baseline [instances]", "coverage_90": "coverage of the 90 % interval",
    "cost": "cost per instance", "naive_cost": "cost per instance, naive baseline",
}  # fmt: skip


def expected(source: DemandHistory, horizon: int, *, seed: int = 1) -> Section:
    """Expected GPUs of running and new jobs, and the work left in running jobs."""
    fan = source.fan(horizon, seed=seed)
    last = fan.row(-1, named=True)
    total = last["still_running"] + last["to_come"]
    left = source.running().select(tenant="unique_id", cost="gpu_hours_left")
    return page.section(
        "Running and new jobs",
        page.figure(
            plots.plot_fan(fan),
            title=f"GPUs expected, {_named(source)}",
            alt=f"Of the {total:,.0f} GPUs expected at the end, jobs that run today have "
            f"{last['still_running']:,.0f}. Dotted lines: 90 % interval of the sample paths, before calibration.",
            numbers=fan,
        ),
        page.figure(
            plots.plot_costs(left, unit="GPU-hours left", title="Work left in running jobs"),
            title="Work left in running jobs",
            alt="Expected GPU-hours left in jobs that are running.",
            numbers=source.running(),
        ),
    )


def past_errors(judged: EvaluatedBacktest) -> Section:
    """Error of each model and coverage of its interval at past cutoffs."""
    scores = fold_scores(judged)
    mean = mean_scores(scores)
    told = {row["model"]: row for row in mean.iter_rows(named=True)}
    chosen, naive = told[CHOSEN_MODEL_NAME], told["Naive"]
    compared = "no error can be measured"
    if chosen["mase"] is not None and naive["mase"] is not None:
        compared = f"its error was {chosen['mase']:.2f}, that of the naive baseline {naive['mase']:.2f}"
    return page.section(
        "Forecast errors",
        page.figure(
            plots.plot_backtest_scores(scores.filter(pl.col("mase").is_not_null())),
            title="Error and coverage at past cutoffs",
            alt=f"{CHOSEN_MODEL_NAME!r} is the model chosen by earlier cutoffs: {compared} (MASE); its 90 % interval "
            f"covered {percent_text(chosen['coverage_90'] or 0)} of the values.",
            numbers=mean,
        ),
    )


def decision(source: DemandHistory, horizon: int, gap: int, price: float, *, seed: int = 1) -> Section:
    """The quantile to plan at."""
    curve = source.cost_curve(horizon, gap, price, seed=seed)
    best = curve.filter("best").row(0, named=True)
    return page.section(
        "Capacity to plan",
        page.figure(
            plots.plot_cost_curve(curve),
            title="Cost of planning at each quantile",
            alt=f"A GPU-hour short costs {price:g} planned ones: plan at {percent_text(best['quantile'])}, "
            f"{best['planned']:,.0f} GPUs on average.",
            numbers=curve,
        ),
    )


def calendar(source: DemandHistory, horizon: int, gap: int, price: float, capacity: float) -> Section:
    """GPUs to plan day by day, as a chart and a table."""
    table = source.plan_calendar(horizon, gap, price)
    most = table.sort("planned", "day", descending=[True, False]).row(0, named=True)
    over = table.filter(pl.col("planned") > capacity).height
    return page.section(
        "Calendar",
        page.figure(
            plots.plot_peaks(table.select("day", gpus="planned"), gpus=round(capacity)),
            title=f"GPUs to plan on each day, {_named(source)}",
            alt=f"Peak on {day_text(most['day'])}: {most['planned']:,.0f} GPUs; {count_text(over, 'day')} above the "
            f"{capacity:,.0f} installed.",
            numbers=table,
        ),
        page.table(
            table,
            caption="Busiest interval of each day; low and high: 90 % interval of the sample paths",
            formats=dict.fromkeys(("planned", "expected", "low", "high"), ",.0f"),
            headings={"planned": "GPUs to plan"},
        ),
    )


def forecast_record(ledger: pl.DataFrame) -> Section:
    """Errors of the forecasts of earlier reports, and the cost of planning by them."""
    record = score_forecasts(ledger)
    if record.is_empty():
        text = f"{count_text(ledger['cutoff'].n_unique(), 'forecast')} recorded; a later report shows the error."
        return page.fold("Past forecasts", page.paragraph(text), about=text, appendix=True)
    mean = record.select(pl.col("mae", "naive_mae", "cost", "naive_cost", "coverage_90").mean()).row(0, named=True)
    told = f"{count_text(record.height, 'earlier forecast')}"
    text = (
        f"{told}: MAE {mean['mae']:.2f} instances, naive baseline {mean['naive_mae']:.2f}; the 90 % interval "
        f"covered {percent_text(mean['coverage_90'])} of the values. Planning by them cost {mean['cost']:.2f} per "
        f"instance needed, by the naive baseline {mean['naive_cost']:.2f}."
    )
    shown = record.with_columns(pl.col("cutoff").dt.strftime("%Y-%m-%d"))
    formats = dict.fromkeys(("mae", "naive_mae", "cost", "naive_cost"), ".2f") | {"coverage_90": ".0%"}
    table = page.table(shown, caption="Forecasts of earlier reports", formats=formats, headings=HEADINGS)
    return page.fold("Past forecasts", page.paragraph(text), table, about=told, appendix=True)


def _named(source: DemandHistory) -> str:
    """Name of what is summed up, for people."""
    return "all GPUs" if source.whole.startswith(f"{ALL_TENANTS_POOL_NAME}/") else source.whole
