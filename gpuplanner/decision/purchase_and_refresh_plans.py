"""Purchase plan, with its commitments to buy or reserve, and hardware refresh."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.output_column_headings import text_of_code
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, gpus_text, kwh_from_watt_hours, percent_text
from gpuplanner.cost.capacity_portfolio import (
    HOURS_PER_MONTH,
    Offer,
    Portfolio,
    Rent,
    choose_portfolio,
    compare_payments,
    cost_of_term,
    spot_overhead,
)
from gpuplanner.cost.energy_and_carbon import Facility, state_watts
from gpuplanner.cost.monthly_cost_review import hourly_price_text
from gpuplanner.cost.period_costs import (
    Period,
    find_price_per_kwh,
    find_rate,
    load_price_book,
    money,
    ownership_shares,
    require_on_demand_rate,
)
from gpuplanner.cost.price_book import BillingTerms
from gpuplanner.cost.showback import NOT_STATED, Rate
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.decision_types import Decision, WeeklyGrowth
from gpuplanner.forecast.growth_and_announced_demand import MIN_GROWTH_WEEKS, WEEKS_IN_YEAR, fit_growth
from gpuplanner.hardware.catalog import find_parameter, resolve_gpu_model
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import History, history

WEEK_HOURS = int(HOURS_PER_WEEK)
"""Hours of a week, as an integer."""
COMMITMENT_MONTHS = {"reserved_1y": 12, "reserved_3y": 36}
"""Term of each kind of reservation [months]."""
PURCHASE_LIFE_MONTHS = 60
"""Months in which a stated purchase price is written off."""
MEAN_MONTH_DAYS = 30.4375
"""Mean length of a month [days]."""


@dataclass(frozen=True, eq=False)
class PurchasePlan:
    """Portfolio of commitments for the months ahead, and its assumptions.

    - ``months``: Months planned.
    - ``currency``: Currency of all amounts.
    - ``held_gpus``: GPUs that are owned already.
    - ``margin``: GPU-hours that the decision provisions per allocated GPU-hour.
    - ``observed_gpus``, ``mean_gpus``: GPUs allocated on average in the record, and demanded over the months.
    - ``growth_per_week``: Growth of the submitted work, as in the report; ``value`` is None for the stated reason.
    - ``decision``: Recommendation of the report, whose number of GPUs the portfolio pays for.
    - ``peak_gpus``: GPUs that the recommended policy provisions in an hour at most; infinite where it is unknown.
    - ``unstated_gpus``: Installed GPUs whose ownership is not stated: taken as owned, and no advice is given.
    - ``offers``, ``rent``: Commitments on offer, and prices of GPUs by the hour.
    - ``portfolio``: The cheapest mix.
    - ``exhaustion``: Date when capacity is exhausted; None without one.
    - ``notes``: Sentences on the assumptions.
    """

    months: int
    currency: str
    held_gpus: float
    margin: float
    observed_gpus: float
    mean_gpus: float
    growth_per_week: WeeklyGrowth
    decision: Decision
    peak_gpus: float
    unstated_gpus: float
    offers: tuple[Offer, ...]
    rent: Rent
    portfolio: Portfolio
    exhaustion: str | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the object ``mix`` of ``cost --json``."""
        mix = self.portfolio
        return {
            "months": self.months, "currency": self.currency, "action": self.action, "held_gpus": self.held_gpus,
            "begin": self.begin.to_dicts(), "exhaustion": self.exhaustion,
            "committed_gpus": mix.committed.tolist(), "cost": round(mix.cost, 2), "risk": round(mix.risk, 2),
            "all_rented": round(mix.all_rented, 2),
            "all_reserved_at_the_mean": round(mix.all_reserved, 2),
            "gap": round(mix.gap, 9), "coverage": round(mix.coverage, 6),
            "utilisation": round(mix.utilisation, 6),
            "margin": round(self.margin, 6), "growth_per_week": self.growth_per_week.value,
            "recommended_gpus": self.decision.gpus, "unstated_gpus": self.unstated_gpus,
            "observed_gpus": round(self.observed_gpus, 6), "mean_gpus": round(self.mean_gpus, 6),
            "offers": self.offers, "rent": self.rent, "notes": list(self.notes),
        }  # fmt: skip

    @property
    def costs(self) -> pl.DataFrame:
        """Table ``option, cost``: the chosen mix with its parts, and single options; empty if owned GPUs are enough."""
        mix, offers_by_name = self.portfolio, {offer.name: offer for offer in self.offers}
        parts = dict.fromkeys((f"  of which {name}" for name, _ in mix.begun), 0.0)
        for (name, month), gpus in mix.begun.items():
            parts[f"  of which {name}"] += gpus * cost_of_term(offers_by_name[name], month, self.months)
        options = {self.mix_name: mix.cost} | parts
        options |= {f"  of which {self.rent_name}": mix.cost - sum(parts.values())}
        options |= {f"{self.mix_name}, CVaR (10 %)": mix.risk, f"{self.rent_name} only": mix.all_rented}
        options |= {f"mean demand reserved in whole nodes, rest {self.rent_name}": mix.all_reserved}
        frame = pl.DataFrame({"option": list(options), "cost": list(options.values())})
        return frame if any(options.values()) else frame.clear()

    @property
    def payments(self) -> pl.DataFrame:
        """Table of :func:`compare_payments` for one GPU in use all the time, whether it is needed or not."""
        table = compare_payments(self.offers, self.rent, gpus=1, used_fraction=1.0, months=self.months)
        return table.select(pl.col("option").str.replace_all("_", " "), "cost", "break_even_fraction")

    @property
    def rent_name(self) -> str:
        """Label of GPUs rented by the hour: on demand, and spot where it is used."""
        return text_of_code(self.rent.price_kind)

    @property
    def mix_name(self) -> str:
        """Label of the chosen mix: cheapest on average, or chosen with ``--risk``, which also weighs the CVaR."""
        return "cheapest mix" if self.portfolio.objective == self.portfolio.cost else "mix chosen with --risk"

    @property
    def scope(self) -> str:
        """Title of the cost table: GPUs left out, months and currency."""
        beyond = f" beyond the {self.held_gpus:,.0f} owned GPUs" if self.held_gpus else ""
        return f"Cost of capacity{beyond}, {self.months} months, {self.currency}, undiscounted"

    @property
    def advice_sentence(self) -> str:
        """Assumed demand, the advice with its saving, and the utilization of commitments, as sentences."""
        mix, weekly_growth = self.portfolio, self.growth_per_week
        growth_text = "growth unknown, taken as none"
        if weekly_growth.value is not None:
            flat = "" if weekly_growth.log_slope else ", not certain: taken as none"
            growth_text = f"growth {percent_text(weekly_growth.value, '+.1f')} per week, from the record{flat}"
        doubts = [] if weekly_growth.value is not None else [f"growth is unknown ({weekly_growth.reason})"]
        if self.unstated_gpus:
            doubts.append(
                f"the ownership of {gpus_text(self.unstated_gpus)} is not stated and they are taken as owned (--set "
                "ownership=owned, reserved or rented)"
            )
        no_advice = f" It is no purchase advice: {' and '.join(doubts)}." if doubts else ""
        demand = f"mean {gpus_text(self.mean_gpus)}, in every hour the {self.decision.gpus:,} that meet the wait limit"
        if self.decision.gpus <= self.decision.fleet_gpus:
            limit_text = f", but at most {self.peak_gpus:,.0f}" if self.peak_gpus < math.inf else ""
            demand = (
                f"weeks of the record drawn at random, with {gpus_text(self.observed_gpus)} allocated on average; each "
                f"hour needs {self.margin:.2f} times its allocated GPUs (headroom of the recommendation, from the "
                f"simulation){limit_text}: mean {gpus_text(self.mean_gpus)}"
            )
        report = self.decision.sentence.partition(". ")[0].rstrip(".")
        starts = ", ".join(
            f"{gpus_text(gpus)} ({text_of_code(kind)}) from month {month}"
            for kind, month, gpus in self.begin.iter_rows()
        )
        # Of the amounts as the table prints them.
        saved_amount = f"{round(mix.all_rented) - round(mix.cost):,} {self.currency}"
        saved_share = percent_text(1 - mix.cost / max(mix.all_rented, 1e-9), ".1f")
        nothing = (
            f"; rented or reserved, nothing is paid beyond them: 0 {self.currency}" if self.costs.is_empty() else ""
        )
        saves = f"; it saves {saved_amount} ({saved_share}) against {self.rent_name} only"
        return (
            f"Recommended: {self.decision.gpus:,} GPUs ({report}). Capacity compared over {self.months} months: "
            f"{demand}; {growth_text}. For this demand, the {self.mix_name} is to {self.action}"
            f"{f': {starts}{saves}' if starts else nothing}.{no_advice} Owned and committed GPUs: coverage "
            f"{percent_text(mix.coverage)} of this demand, utilization {percent_text(mix.utilisation)}, headroom "
            f"included; optimality gap {percent_text(mix.gap, '.2f')}. "
            "Only costs are compared: no queue wait is simulated here."
            f"{'' if self.exhaustion is None else f' Capacity is exhausted on {self.exhaustion}.'}"
        )

    @property
    def begin(self) -> pl.DataFrame:
        """Table ``kind, month, gpus`` of commitments by the month in which they begin, from 1."""
        rows = [(kind, month + 1, gpus) for (kind, month), gpus in self.portfolio.begun.items()]
        schema = {"kind": pl.String, "month": pl.Int64, "gpus": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def action(self) -> str:
        """Action of the first month: buy, reserve, or rent; buy nothing where today's GPUs are enough."""
        now = {kind for (kind, month) in self.portfolio.begun if month == 0}
        if now:
            return "buy" if "owned" in now else "reserve"
        later = " and commit later" if self.portfolio.begun else ""
        enough = f"buy nothing, the {self.held_gpus:,.0f} owned GPUs are enough"
        return "rent" + later if self.portfolio.coverage < 1 else enough


def plan_purchase(scenario: Scenario, months: int, *, risk: float = 0.0) -> PurchasePlan:
    """Choose how to pay over the months ahead for the GPUs that the decision recommends, instead of bare demand.

    Parameters
    ----------
    scenario : Scenario
        Data, prices and growth.
    months : int
        Months to plan.
    risk : float
        Weight of the CVaR (10 %) in the objective. [0-1]

    Returns
    -------
    PurchasePlan
    """
    job_history, comparison = history(scenario), compare_policies(scenario)
    offers, rent, notes = _list_offers_and_rent(scenario, job_history, months)
    row = comparison.find_row(comparison.winner) or comparison.today
    busy = None if comparison.today is None else comparison.today.busy_gpu_hours
    margin = max(row.gpu_hours / busy, 1.0) if row is not None and row.gpu_hours and busy else 1.0
    allocated, weekly_growth = _allocated_gpus_by_hour(scenario, job_history), comparison.growth_per_week
    peak_gpus = math.inf if row is None or row.peak_gpus is None else float(row.peak_gpus)
    provisioned_gpus = np.minimum(allocated * margin, np.maximum(allocated, peak_gpus))
    log_growth, decision = weekly_growth.log_slope, comparison.decision
    known_growth = None if weekly_growth.value is None else log_growth
    drawn_months = draw_demand_paths(provisioned_gpus, months, seed=scenario.seed, log_growth=known_growth)
    needed_gpus, past_hours, demand = float(decision.gpus) or math.inf, 0, []
    for paths in drawn_months:
        weeks = (past_hours + np.arange(paths.shape[1])) / WEEK_HOURS
        max_gpus = needed_gpus * np.exp(max(log_growth, 0.0) * weeks)[None, :]
        # GPUs that are bought for the wait limit are there in every hour, and no more than the report recommends.
        demand.append(max_gpus if decision.gpus > decision.fleet_gpus else np.minimum(paths, max_gpus))
        past_hours += paths.shape[1]
    owners = ownership_shares(scenario, job_history, scenario_ledger(scenario))
    owned, unstated_gpus = (
        job_history.fleet.gpus * float(owners.filter(ownership=kind)["share"].sum()) / owners["gpu_model"].n_unique()
        for kind in ("owned", NOT_STATED)
    )
    owned_gpus = owned + unstated_gpus
    if not any(offer.name == "owned" for offer in offers):
        notes.append("Buying is not compared: state a purchase in a price book.")
    if (node_size := job_history.fleet.node_size) > 1:
        notes.append(f"GPUs are committed in whole nodes of {node_size}.")
    if owned_gpus:
        notes.append(f"The {owned_gpus:,.0f} owned GPUs stay; no amount here includes their cost.")
    portfolio = choose_portfolio(
        demand, offers, rent, unit=node_size, existing_gpus=[owned_gpus] * months, risk=risk,
        gap_target=max(scenario.gap_target, 1e-4), time_limit_s=scenario.time_limit_s, work_limit=scenario.work_limit,
        seed=scenario.seed,
    )  # fmt: skip
    hourly_demand = np.concatenate([month_demand.ravel() for month_demand in demand])
    return PurchasePlan(
        months, scenario.currency, owned_gpus, margin, float(allocated.mean()), float(np.mean(hourly_demand)),
        weekly_growth, decision, float(max(allocated.max(initial=0.0), peak_gpus)), unstated_gpus, tuple(offers), rent,
        portfolio, comparison.exhaustion.date, tuple(notes),
    )  # fmt: skip


def compare_ways_to_pay(
    scenario: Scenario,
    months: int,
    gpus: int,
    *,
    used_fraction: float | None = None,
    purchase_price: float | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Compare buying, reserving and renting more GPUs of the fleet's model, see :func:`compare_payments`.

    Parameters
    ----------
    scenario : Scenario
        Data and prices.
    months : int
        Months compared.
    gpus : int
        GPUs needed beyond those of today.
    used_fraction : float, optional
        Share of the hours in which they are used; default: the allocated share of today's GPU-hours. [0-1]
    purchase_price : float, optional
        Price of a GPU with its share of the node, written off in :data:`PURCHASE_LIFE_MONTHS`; default: the price book.
        [currency per GPU]

    Returns
    -------
    tuple of polars.DataFrame and list of str
        Options, the cheapest first, and sentences on the assumptions.
    """
    job_history = history(scenario)
    offers, rent, notes = _list_offers_and_rent(scenario, job_history, months)
    if used_fraction is None:
        used_fraction = float(_allocated_gpus_by_hour(scenario, job_history).mean()) / job_history.fleet.gpus
    if purchase_price is not None:
        electricity, costs_left_out = 0.0, "electricity, space and staff"
        if (gpu_model := job_history.fleet.name) is not None and job_history.fleet.in_catalogue:
            kwh = _facility_kwh_per_gpu_hour(scenario, gpu_model, used_fraction)
            electricity = kwh * find_price_per_kwh(scenario, job_history) * HOURS_PER_MONTH
            costs_left_out = "space and staff"
        lead_months = math.ceil(scenario.purchase_lead_days / MEAN_MONTH_DAYS)
        offers = [offer for offer in offers if offer.name != "owned"]
        per_month = purchase_price / PURCHASE_LIFE_MONTHS + electricity
        offers.append(Offer("owned", per_month, PURCHASE_LIFE_MONTHS, lead_months, 0.5, upfront=purchase_price))
        notes.append(
            f"Bought GPUs are written off in {PURCHASE_LIFE_MONTHS} months; half of the rest after the months shown is "
            f"lost. Left out: {costs_left_out}."
        )
    elif not any(offer.name == "owned" for offer in offers):
        notes.append("Buying is not compared: state purchase_price=, or a purchase in a price book.")
    used = percent_text(used_fraction)
    notes.append(f"GPUs are used {used} of the hours; {text_of_code(rent.price_kind)} only these are paid.")
    node_size = job_history.fleet.node_size
    return compare_payments(offers, rent, gpus=gpus, used_fraction=used_fraction, months=months, unit=node_size), notes


def _allocated_gpus_by_hour(scenario: Scenario, job_history: History) -> NDArray[np.float64]:
    """Sum the GPUs allocated in each hour of the record, shape (n_hours,)."""
    ledger = job_history.fleet.hours_of(scenario_ledger(scenario))
    allocated = pl.when(pl.col("bucket").cast(pl.String).is_in(ALLOCATED_BUCKETS)).then("gpu_hours").otherwise(0.0)
    return ledger.group_by("hour").agg(gpus=allocated.sum()).sort("hour")["gpus"].to_numpy()


def draw_demand_paths(
    hourly_gpus: NDArray[np.float64], months: int, *, seed: int, log_growth: float | None, n_paths: int = 50
) -> list[NDArray[np.float64]]:
    """Draw sample paths of the GPUs demanded in the hours of each month: past weeks, scaled by growth.

    Parameters
    ----------
    hourly_gpus : array of float, shape (n_hours,)
        GPUs demanded in each hour of the record.
    months : int
        Months to draw.
    seed : int
        Seed of the draws.
    log_growth : float or None
        Growth of the logarithm of the demand a week; None: weeks are drawn unscaled, as where few weeks are known.
    n_paths : int
        Sample paths.

    Returns
    -------
    list of array of float, shape (n_paths, n_hours of the month)
        GPUs by path and hour.

    Examples
    --------
    >>> [hours.shape for hours in draw_demand_paths(np.full(336, 8.0), 2, seed=1, log_growth=None, n_paths=3)]
    [(3, 730), (3, 731)]
    """
    hourly_gpus = hourly_gpus if len(hourly_gpus) >= WEEK_HOURS else np.resize(hourly_gpus, WEEK_HOURS)
    weeks = hourly_gpus[len(hourly_gpus) % WEEK_HOURS :].reshape(-1, WEEK_HOURS)
    n_weeks = math.ceil(months * HOURS_PER_MONTH / WEEK_HOURS)
    drawn = weeks[np.random.default_rng(seed).integers(len(weeks), size=(n_paths, n_weeks))]
    if len(weeks) >= MIN_GROWTH_WEEKS and log_growth is not None:
        growth_model = fit_growth(weeks.mean(axis=1))
        weekly_levels = growth_model.paths(n_weeks, seed=seed, count=n_paths)
        extra = log_growth - math.log1p(growth_model.growth_per_year) / WEEKS_IN_YEAR
        weekly_levels = weekly_levels * np.exp(extra * np.arange(1, n_weeks + 1))
        drawn = drawn * (weekly_levels / np.maximum(drawn.mean(axis=2), 1e-9))[:, :, None]
    hourly_paths = drawn.reshape(n_paths, -1)
    edges = np.round(np.arange(months + 1) * HOURS_PER_MONTH).astype(int)
    return [hourly_paths[:, first:last] for first, last in itertools.pairwise(edges)]


@dataclass(frozen=True)
class RefreshMonth:
    """Cost of a GPU-hour of today's work in one month, on today's GPUs and on a newer GPU model.

    - ``month``: Month, from 1.
    - ``today``, ``newer``: Cost on today's GPUs and on the newer ones, per GPU-hour of today.
    - ``kind``: Cheapest way to have the newer GPUs, such as ``owned`` or ``on_demand``.
    """

    month: int
    today: float
    newer: float
    kind: str


@dataclass(frozen=True)
class HardwareRefresh:
    """Comparison of today's GPUs with a newer GPU model, month by month.

    - ``gpu_model``, ``speed``: The newer model, and how many of today's GPUs one of it replaces.
    - ``currency``: Currency of all amounts.
    - ``months``: Cost of a GPU-hour by month.
    - ``pays_from``: First month (from 1) after which the newer model stays cheaper; None: never.
    - ``saves``: Amount saved from that month to the last, for all installed GPUs.
    - ``today_basis``: Components of the cost of today's GPUs.
    """

    gpu_model: str
    speed: float
    currency: str
    months: tuple[RefreshMonth, ...]
    pays_from: int | None
    saves: float
    today_basis: str

    @property
    def advice_sentence(self) -> str:
        """Whether to replace today's GPUs, and the cost of a GPU-hour on both models, as sentences."""
        first, last = self.months[0], self.months[-1]
        advice = f"Replace today's GPUs by {self.gpu_model} from month {self.pays_from} on"
        saved = f" Saved by month {last.month}: {self.saves:,.0f} {self.currency}."
        if self.pays_from is None:
            advice, saved = f"Keep today's GPUs, {self.gpu_model} does not pay off", ""
        return (
            f"{advice}. A GPU-hour of today's work costs {first.today:.3f} {self.currency} in month 1 and "
            f"{last.today:.3f} in month {last.month} ({self.today_basis}); the same work on {self.gpu_model}, at "
            f"{self.speed:g} times the speed, costs {first.newer:.3f} ({text_of_code(first.kind)}) and "
            f"{last.newer:.3f} ({text_of_code(last.kind)}).{saved}"
        )


def plan_refresh(scenario: Scenario, months: int, gpu_model: str, speed: float) -> HardwareRefresh:
    """Compare today's GPU model with a newer one, month by month, at dated prices.

    The purchase price of owned GPUs is sunk: their avoidable cost is space, support, staff and electricity. A newer GPU
    costs its full price, by the cheapest offer, for each of today's GPUs whose work it does.

    Parameters
    ----------
    scenario : Scenario
        Data and prices.
    months : int
        Months to compare.
    gpu_model : str
        The newer GPU model, or an alias of it.
    speed : float
        Today's GPUs whose work one newer GPU does.

    Returns
    -------
    HardwareRefresh

    Raises
    ------
    ScenarioError
        If one of the two models has no price.
    """
    job_history, price_book = history(scenario), replace(load_price_book(scenario), bridges_gaps=True)
    job_history.fleet.require_catalogue_model("refresh")
    newer_model, current_model = resolve_gpu_model(gpu_model), str(job_history.fleet.name)
    states, per_kwh = money(scenario).states, find_price_per_kwh(scenario, job_history)
    busy = float(states.filter(state="busy")["gpu_hours"].sum()) / max(float(states["gpu_hours"].sum()), 1e-9)
    owners = ownership_shares(scenario, job_history, scenario_ledger(scenario))
    owners = owners.group_by("ownership", maintain_order=True).agg(pl.col("share").sum())
    ownership = owners.sort("share", "ownership")["ownership"][-1]
    rows = []
    for month in range(months):
        begin, end = (job_history.end + timedelta(days=count * MEAN_MONTH_DAYS) for count in (month, month + 1))

        def hourly_cost(name: str, kind: str, period: Period = (begin, end)) -> float | None:
            has_own_price = name == current_model and scenario.price_per_gpu_hour > 0
            rate = None if has_own_price else price_book.find_rate(name, kind, scenario.currency, *period)
            power = _facility_kwh_per_gpu_hour(scenario, name, busy) * per_kwh if kind == "owned" else 0.0
            if name == current_model and kind == "owned":
                parts = {} if rate is None else rate.parts or {}
                return power + sum(cost for part, cost in parts.items() if part != "depreciation")
            if rate is None and kind not in (*COMMITMENT_MONTHS, "owned"):
                priced_scenario = scenario if name == current_model else scenario.but(price_per_gpu_hour=0.0)
                rate = find_rate(priced_scenario, job_history, name, kind, period=period)
            return None if rate is None else rate.price.value + power

        kinds = (*COMMITMENT_MONTHS, "on_demand", "owned")
        cost_by_kind = {kind: cost for kind in kinds if (cost := hourly_cost(newer_model, kind)) is not None}
        current_cost = hourly_cost(current_model, ownership)
        if not cost_by_kind or current_cost is None:
            unpriced_model = newer_model if not cost_by_kind else current_model
            raise ScenarioError("refresh", f"prices of {unpriced_model}", "none", "Give them in a price book.")
        cheapest_kind = min(cost_by_kind, key=lambda kind: (cost_by_kind[kind], kind))
        rows.append(RefreshMonth(month + 1, current_cost, cost_by_kind[cheapest_kind] / speed, cheapest_kind))
    unprofitable_months = [row.month for row in rows if row.newer >= row.today]
    pays_from = max(unprofitable_months, default=0) + 1
    savings = sum(row.today - row.newer for row in rows[pays_from - 1 :]) * job_history.fleet.gpus * HOURS_PER_MONTH
    basis = f"price of {text_of_code(ownership)} GPUs"
    if ownership == "owned":
        basis = "avoidable cost: electricity, and space, support, staff of the price book; the purchase price is sunk"
    first_month = pays_from if pays_from <= months else None
    return HardwareRefresh(newer_model, speed, scenario.currency, tuple(rows), first_month, savings, basis)


def _facility_kwh_per_gpu_hour(scenario: Scenario, gpu_model: str, busy_share: float) -> float:
    """Facility energy of a GPU-hour [kWh], of a GPU that is busy for a share of it."""
    watts = state_watts(gpu_model, None)
    mean_w = busy_share * watts["busy"].value + (1 - busy_share) * watts["idle"].value
    return kwh_from_watt_hours(mean_w) * Facility.from_catalog(scenario.pue).factor("value")


def _list_offers_and_rent(scenario: Scenario, job_history: History, months: int) -> tuple[list[Offer], Rent, list[str]]:
    """List commitments and rent at the prices of the months after the record.

    Commitments are those of the price book, else a one-year reservation at the usual discount of the catalogue.

    Parameters
    ----------
    scenario : Scenario
        Prices.
    job_history : History
        GPU model and end of the record.
    months : int
        Months of the plan.

    Returns
    -------
    tuple of list of Offer, Rent and list of str
        Offers, prices by the hour, and sentences on them.
    """
    gpu_model = job_history.fleet.name if job_history.fleet.in_catalogue else None
    period = (job_history.end, job_history.end + timedelta(days=months * MEAN_MONTH_DAYS))
    on_demand = require_on_demand_rate(scenario, job_history, "purchase plan", period)
    hourly_price, price_texts = on_demand.price.value, [_describe_price("on_demand", on_demand)]
    book, offers, notes = replace(load_price_book(scenario), bridges_gaps=True), [], []
    for kind in (*COMMITMENT_MONTHS, "reserved"):
        if gpu_model is None or kind not in book.kinds_of(gpu_model):
            continue
        rate = book.find_rate(gpu_model, kind, scenario.currency, *period)
        if rate is None:
            notes.append(
                f"The row {text_of_code(kind)} of the price book is no offer: it does not hold in these months."
            )
            continue
        stated_months = math.ceil(book.find_billing_terms(gpu_model, kind, *period).minimum_h / HOURS_PER_MONTH - 1e-9)
        term = max(COMMITMENT_MONTHS.get(kind, 0), stated_months)
        days_ahead = date.fromisoformat(min(row.begin for row in rate.rows)) - period[0].date()
        first_month = max(round(days_ahead / timedelta(days=MEAN_MONTH_DAYS)), 0)
        if term:
            offers.append(Offer(kind, rate.price.value * HOURS_PER_MONTH, term, first_month=first_month))
            price_texts.append(_describe_price(kind, rate))
        else:
            notes.append("The row reserved of the price book is no offer: it states no minimum_term_h.")
    on_demand_terms = find_billing_terms(scenario, job_history, "on_demand", period)
    if max(on_demand_terms.step_h, on_demand_terms.minimum_h) > 1:
        notes.append(f"On-demand GPUs are billed {on_demand_terms.text}; these sums count rent by the hour.")
    if not offers:
        guide = find_parameter("discount_reserved_1y")
        per_month = hourly_price * (1 - guide.value) * HOURS_PER_MONTH
        offers.append(Offer("reserved_1y", per_month, COMMITMENT_MONTHS["reserved_1y"]))
        notes.append(
            f"The one-year reservation is assumed to be {100 * guide.value:g} % below on demand: {guide.source} "
            f"({guide.date}), not a list price. State your contract in a price book."
        )
    purchase_lots = book.lots_of(gpu_model)
    owned = find_rate(scenario, job_history, gpu_model, "owned", period=period) if purchase_lots else None
    if owned is not None:
        states = money(scenario).states
        kwh_per_gpu_hour = float(states["energy_kwh"].sum()) / max(float(states["gpu_hours"].sum()), 1e-9)
        hourly_cost = owned.price.value + kwh_per_gpu_hour * find_price_per_kwh(scenario, job_history)
        lead_months = math.ceil(scenario.purchase_lead_days / MEAN_MONTH_DAYS)
        term_months = round(12 * purchase_lots[-1].life_years)
        lot, per_month = purchase_lots[-1], hourly_cost * HOURS_PER_MONTH
        written_off = book.convert(lot.capex * (1 - lot.residual), lot.currency, scenario.currency, job_history.end)
        offers.append(Offer("owned", per_month, term_months, lead_months, lost_share=0.5, upfront=written_off))
        notes.append(
            f"GPUs to buy are counted at their monthly cost over {term_months} months of service (depreciation, yearly "
            f"costs and electricity), not as cash, and rented for the {lead_months} months until delivery: the cost "
            "has this rent, the break even is of the later months; of the depreciation that remains after the months "
            "shown, half is added as a loss on resale (assumed)."
        )
    notes.append(
        f"Month 1 begins on {period[0].astimezone(ZoneInfo(scenario.tz)):%Y-%m-%d}. Prices per GPU-hour are means "
        f"over these months, where one that ends stays as it is: {'; '.join(price_texts)}."
    )
    rent = price_rented_gpus(scenario, job_history, hourly_price, scenario.spot_share, period)
    return offers, rent, notes + _list_spot_notes(scenario, rent)


def _describe_price(kind: str, rate: Rate) -> str:
    """Describe a price per GPU-hour with the rows of the price book behind it, else with its source and date."""
    basis = ", ".join(row.text for row in rate.rows) or f"{rate.price.source.partition(':')[0]}, {rate.price.date}"
    return f"{text_of_code(kind)} {hourly_price_text(rate.price.value)} {rate.price.currency} ({basis})"


def price_rented_gpus(
    scenario: Scenario, job_history: History, hourly_price: float, spot_share: float, period: Period
) -> Rent:
    """Price GPUs by the hour: on demand, and spot for a share of the load, with the overhead of interruptions.

    Parameters
    ----------
    scenario : Scenario
        Prices and spot interruptions a day.
    job_history : History
        GPU model and period.
    hourly_price : float
        Price on demand [currency / GPU h].
    spot_share : float
        Share of the load that may run on spot. [0-1]
    period : tuple of datetime
        First instant of the time in which they are rented, and the first one after it.

    Returns
    -------
    Rent
    """
    spot_rate = None
    if spot_share and job_history.fleet.in_catalogue:
        spot_rate = find_rate(scenario, job_history, job_history.fleet.name, "spot", period=period)
    if spot_rate is None:
        return Rent(hourly_price)
    checkpoint, restart = find_parameter("checkpoint_s").value, find_parameter("restart_s").value
    interruptions_per_hour = scenario.spot_interruptions_per_day / 24
    overhead_share = spot_overhead(interruptions_per_hour, checkpoint_s=checkpoint, restart_s=restart)
    return Rent(hourly_price, spot_rate.price.value, spot_share, overhead_share)


def _list_spot_notes(scenario: Scenario, rent: Rent) -> list[str]:
    """Name share, price and interruptions of spot GPUs, or why they are not counted; empty without a share for them."""
    if not scenario.spot_share:
        return []
    share = f"{percent_text(scenario.spot_share)} of the load (spot_share)"
    if rent.spot is None:
        return [f"Spot is not counted for {share}: no spot price is known. State one in a price book."]
    use, useful_hour = f"Spot is not counted for {share}, as it is not cheaper", ""
    if rent.price_kind != "on_demand":
        use, useful_hour = f"Spot serves {share}", f"; an hour of useful work costs {rent.spot_price:.3f}"
    return [
        f"{use}: spot {rent.spot:.3f}, on demand {rent.on_demand:.3f} {scenario.currency} per GPU-hour; "
        f"{scenario.spot_interruptions_per_day:g} interruptions of a job per day (spot_interruptions_per_day) waste "
        f"{percent_text(rent.spot_overhead, '.1f')} of the hours{useful_hour}."
    ]


def find_billing_terms(scenario: Scenario, job_history: History, kind: str, period: Period) -> BillingTerms:
    """Find how GPUs rented in a period are billed by the price book; by the second at the scenario's own rate."""
    if scenario.price_per_gpu_hour > 0:
        return BillingTerms()
    return load_price_book(scenario).find_billing_terms(job_history.fleet.name, kind, *period)
