"""Page sections on cost and forecasts."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.units import counted, day_text, money_text
from gpuplanner.cost.cost_review import CostReview, price_rows
from gpuplanner.cost.energy_and_carbon import AMOUNTS
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.purchase_plan import BurstPlan, Purchase, Refresh
from gpuplanner.decision.track_record import SavingsMonth, outcomes, record_of, savings_table, standing_table
from gpuplanner.forecast.gpu_demand import Wanted
from gpuplanner.forecast.model_selection import CHOSEN, Judged, fold_scores, mean_scores
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import Section
from gpuplanner.usage.requested_demand import POOL

_TWO = ",.2f"
MOST_JOBS = 20
"""Most jobs of a table; all are in ``cost --json``."""


def month(found: CostReview) -> Section:
    """What the month cost, for whom and why, with energy and carbon."""
    return page.section("The month", *month_parts(found))


def month_parts(found: CostReview) -> Iterator[str]:
    """What a section on the cost of a period shows; what is not known is said in its place."""
    if found.total is not None:
        total = f"{money_text(found.total, found.currency)} {found.currency}"
        yield page.paragraph(
            f"The lines sum to {total}, the price of every installed GPU-hour; so does every table."
        )
    yield from (page.note(text) for text in found.missing)
    if found.total is not None:
        by_tenant = found.by_tenant.select("tenant", pl.col("cost").cast(pl.Float64))
        yield page.figure(
            plots.plot_costs(by_tenant, unit=found.currency),
            title="Cost by tenant",
            alt="What nobody held is a line of its own, not spread over tenants.",
            numbers=found.by_tenant,
        )
        yield page.table(found.by_bucket, caption="By what was done with the time: idle has its reason")
        yield page.table(found.by_end, caption="What tenants were charged, by how their attempts ended")
        yield page.answers(
            found.units_in_words, caption="What a unit of work cost, idle included", answer="cost"
        )
    if found.energy is not None and (location := found.carbon_kg["location"]) is not None:
        one = found.carbon
        yield page.paragraph(
            f"Energy {found.energy.value:,.0f} kWh at the building's meter (PUE {found.pue:g}), {location.value:,.0f} "
            f"kg CO2e operational; {found.carbon_at_yearly_mean_kg or 0.0:,.0f} kg at the yearly mean of "
            f"{one.gco2e_per_kwh:g} g/kWh ({one.region}, {one.method}, {one.year})."
        )
        yield page.table(
            found.states.select("state", "gpu_hours", f"^({'|'.join(('counted', *AMOUNTS))}).*$"),
            caption="Energy and carbon by the state of the GPUs, each with its range; the making of the boards apart. "
            "Counted is what boards drew by their own meters: servers, cooling and losses come on top",
        )


def prices(found: CostReview) -> Section:
    """Every dated price that could hold for the board: own ones first, then the list."""
    table = price_rows(found)
    about = "Own prices go before the list; each has its unit, its day and its source."
    return page.section("Prices", page.paragraph(about), page.table(table, caption="The price book"))


def commitments(found: Purchase, renewed: Refresh | None = None) -> Section:
    """What to buy, reserve or rent over the months to come, beside the plain ways; and when a newer board pays."""
    costs, begun = found.costs, found.begin
    ways = costs.rename({"way_to_pay": "tenant"})
    return page.section(
        "Buy, reserve or rent",
        page.paragraph(found.sentence),
        *(page.note(one) for one in found.notes),
        page.figure(
            plots.plot_costs(ways, unit=found.currency, title="Cost by way to pay"),
            title="This mix beside the plain ways",
            alt="The mean over paths of demand of each way, and of this mix the dearest tenth.",
            numbers=costs,
        ),
        page.table(begun, caption="What is begun when") if begun.height else "",
        "" if renewed is None else page.paragraph(renewed.sentence),
    )


def burst_jobs(burst: BurstPlan | None) -> Section:
    """Jobs to send to rented GPUs, the dearest first."""
    title = "Jobs for rented GPUs"
    if burst is None:
        return page.section(title, page.paragraph("No rules are given: name a file of jobs that may leave."))
    notes = (page.note(text) for text in burst.notes)
    dearest = burst.jobs.sort(burst.jobs.columns[-1], descending=True, maintain_order=True).head(MOST_JOBS)
    table = page.table(dearest, caption="Jobs to send to rented GPUs, the dearest")
    return page.section(title, page.paragraph(burst.sentence), *notes, table)


def savings(found: Comparison) -> Section:
    """What the recommendation frees, with the range of a week to come; what it is worth in words."""
    one = found.decision
    if one.saving.value is None:
        return page.section("Savings", page.paragraph(one.saving.reason or "Nothing is saved."))
    return page.section(
        "Savings",
        page.paragraph(one.sentence),
        *(page.paragraph(text) for text in one.worth.basis.split("\n")),
    )


def savings_record(months: tuple[SavingsMonth, ...]) -> Section:
    """What earlier reports promised to save, what the data of the months after show of it, and why they differ."""
    came, standing = list(outcomes(months)), standing_table(months)
    title = "Savings promised and realised"
    if not came:
        last = months[-1]
        waits = "nothing can be realised without a node list, which says what is installed"
        if last.seen.measured:
            waits = "the report of a later month says what came of it"
        said = f"{last.month} promises {last.promise.gpu_hours:,.0f} GPU-hours a week; {waits}."
        return page.section(title, page.paragraph(said))
    one = came[-1]
    if not any(each.promised or each.realised for each in came):
        still = (
            f"No month before {one.next_month} promised to save anything, and none had fewer GPU-hours than "
            f"{standing['month'][0]}, the frozen baseline. Work was {one.demand_ratio:.2f} times that of {one.month}."
        )
        return page.section(title, page.paragraph(still))
    steps = [("promised", one.promised, one.low, one.high), *((_STEPS[name], getattr(one, name), None, None)
             for name in _STEPS), ("realised", one.realised, None, None)]  # fmt: skip
    schema = {"step": pl.String} | dict.fromkeys(("amount", "low", "high"), pl.Float64)
    frame = pl.DataFrame(steps, schema=schema, orient="row")
    parts = ", ".join(f"{part.gpu_hours:,.0f} by {part.lever}" for part in one.levers)
    known = standing["saved_usd"].null_count() < standing.height
    worth = f", worth {money_text(standing['total_usd'][-1], 'USD')} USD" if known else ""
    said = (
        f"{one.month} promised {one.promised:,.0f} GPU-hours a week; the data of {one.next_month} show "
        f"{one.realised:,.0f}: {parts}. Work was {one.demand_ratio:.2f} times that of {one.month}. Against "
        f"{standing['month'][0]}, the frozen baseline, all that is realised so far is "
        f"{standing['saved_gpu_hours'].sum():,.0f} GPU-hours{worth}."
    )
    return page.section(
        title,
        page.paragraph(said),
        page.figure(
            plots.plot_waterfall(frame, unit="GPU-hours a week"),
            title=f"From what {one.month} promised to what {one.next_month} shows",
            alt="Steps from promised to realised: demand, service, and what was not carried out.",
            numbers=frame,
            formats=dict.fromkeys(("amount", "low", "high"), _TWO),
        ),
        page.table(
            savings_table(months), caption="Promises that came due, a week: hours and money, step by step"
        ),
        page.table(standing, caption="Each month beside the first, whose hours are the frozen baseline"),
    )


_STEPS = {"demand": "demand", "service": "jobs waited longer", "not_carried_out": "not carried out"}


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
    left = source.running().select(tenant="unique_id", cost="gpu_hours_left")
    return page.section(
        "What runs now, and what will come",
        page.figure(
            plots.plot_fan(fan),
            title=f"GPUs expected, {_named(source)}",
            alt=f"Of the {total:,.0f} GPUs expected at the end, {last['still_running']:,.0f} run today. The dotted "
            "lines hold 90 % of the sample paths, before they are corrected by past errors.",
            numbers=fan,
        ),
        page.figure(
            plots.plot_costs(left, unit="GPU-hours left", title="Work left in running jobs"),
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
    compared = "no error can be measured"
    if chosen["mase"] is not None and naive["mase"] is not None:
        compared = f"its error was {chosen['mase']:.2f}, that of the last value {naive['mase']:.2f}"
    return page.section(
        "How often it was wrong",
        page.figure(
            plots.plot_backtest_scores(scores.filter(pl.col("mase").is_not_null())),
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
            plots.plot_cost_curve(curve),
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
            plots.plot_peaks(table.select("day", gpus="planned"), gpus=round(capacity)),
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
        written = f"{ledger['cutoff'].n_unique()} forecast" if ledger.height else "None"
        waits = f"{written} is written down"
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
