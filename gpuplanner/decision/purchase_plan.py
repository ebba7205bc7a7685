"""What to buy or reserve, and which jobs go to rented GPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.column_headings import code_in_words
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import make_file_error, read_list, read_number, read_yaml, require_keys
from gpuplanner.core.step_functions import waiting_since
from gpuplanner.core.units import (
    HOURS_PER_WEEK,
    SECONDS_PER_HOUR,
    kwh_from_watt_hours,
    money_text,
    percent_text,
    split_amount,
)
from gpuplanner.core.units import round_money as to_cents
from gpuplanner.cost.capacity_portfolio import (
    HOURS_PER_MONTH,
    Offer,
    Portfolio,
    Rent,
    choose_portfolio,
    cost_of_term,
    reserve_level,
    spot_overhead,
)
from gpuplanner.cost.energy_and_carbon import Facility, state_watts
from gpuplanner.cost.period_costs import book_of, money, on_demand_price, ownerships, per_kwh_of, rate_of
from gpuplanner.cost.showback import CENTS, NOT_STATED
from gpuplanner.decision.comparison_record import compared
from gpuplanner.decision.decision_types import Decision, WeeklyGrowth
from gpuplanner.forecast.demand_changes import MIN_GROWTH_WEEKS, WEEKS_IN_YEAR, fit_growth
from gpuplanner.hardware.catalog import find_parameter, resolve_gpu_model
from gpuplanner.planner.linear_model import LinearModel, SearchEffort
from gpuplanner.planner.milp_solver import solve
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS
from gpuplanner.usage.job_history import History, history
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.requested_demand import mean_occupancy

WEEK = int(HOURS_PER_WEEK)
TERMS = {"reserved_1y": 12, "reserved_3y": 36}
DAYS_PER_MONTH = 30.4375


@dataclass(frozen=True, eq=False)
class Purchase:
    """A portfolio and its assumptions: ``margin`` is GPU-hours that the decision provisions per allocated GPU-hour.

    - ``observed_gpus``, ``mean_gpus``: GPUs allocated on average in the record, and demanded over the months.
    - ``growth_per_week``: Growth of the submitted work, as in the report; ``value`` is None for the stated reason.
    - ``decision``: Recommendation of the report, whose number of GPUs the portfolio pays for.
    - ``peak_gpus``: GPUs that the recommended policy provisions in an hour at most; infinite where it is unknown.
    - ``unstated_gpus``: Installed GPUs whose ownership is not stated: taken as owned, and no advice is given.
    - ``load_duration_gpus``: GPUs that the load-duration rule commits for one term, all hours alike.
    - ``exhaustion``: Date when capacity is exhausted; None without one.
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
    load_duration_gpus: int
    exhaustion: str | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The object ``portfolio`` of ``cost --json``."""
        found = self.portfolio
        return {
            "months": self.months, "currency": self.currency, "action": self.action, "held_gpus": self.held_gpus,
            "begin": self.begin.to_dicts(), "exhaustion": self.exhaustion,
            "committed_gpus": found.committed.tolist(), "cost": round(found.cost, 2), "risk": round(found.risk, 2),
            "load_duration_gpus": self.load_duration_gpus, "all_on_demand": round(found.all_rented, 2),
            "all_reserved_at_the_mean": round(found.all_reserved, 2),
            "gap": round(found.gap, 9), "coverage": round(found.coverage, 6),
            "utilisation": round(found.utilisation, 6),
            "margin": round(self.margin, 6), "growth_per_week": self.growth_per_week.value,
            "recommended_gpus": self.decision.gpus, "unstated_gpus": self.unstated_gpus,
            "observed_gpus": round(self.observed_gpus, 6), "mean_gpus": round(self.mean_gpus, 6),
            "offers": self.offers, "rent": self.rent, "notes": list(self.notes),
        }  # fmt: skip

    @property
    def costs(self) -> pl.DataFrame:
        """``option, cost``: the cheapest mix with its parts, and single options; beyond the GPUs that are owned."""
        one, by_name = self.portfolio, {offer.name: offer for offer in self.offers}
        parts = dict.fromkeys((f"  of which {name}" for name, _ in one.begun), 0.0)
        for (name, month), gpus in one.begun.items():
            parts[f"  of which {name}"] += gpus * cost_of_term(by_name[name], month, self.months)
        options = {"cheapest mix": one.cost} | parts | {"  of which on demand and spot": one.cost - sum(parts.values())}
        options |= {"cheapest mix, CVaR (10 %)": one.risk, "on demand only": one.all_rented}
        options |= {"mean demand reserved, rest on demand": one.all_reserved}
        return pl.DataFrame({"option": list(options), "cost": list(options.values())})

    @property
    def scope(self) -> str:
        """What the costs are of."""
        beyond = f" beyond the {self.held_gpus:,.0f} owned GPUs" if self.held_gpus else ""
        return f"Cost of capacity{beyond}, {self.months} months, {self.currency}, undiscounted"

    @property
    def sentence(self) -> str:
        """The demand assumed, the advice with its saving, and how well commitments are used."""
        one = self.portfolio
        exhausted = "" if self.exhaustion is None else f" Capacity is exhausted on {self.exhaustion}."
        weekly, advice = self.growth_per_week, "Cheapest option for this capacity"
        growth = f"growth unknown ({weekly.reason})"
        if weekly.value is not None:
            flat = "" if _slope(weekly) else ", not certain: taken as none"
            growth = f"growth {percent_text(weekly.value, '+.1f')} per week, from the record{flat}"
        if self.unstated_gpus or weekly.value is None:
            advice = "Flat-demand case, no purchase advice; the cheapest option is"
        if self.unstated_gpus:
            advice = (
                f"Ownership of {self.unstated_gpus:,.0f} GPUs is not stated; they are taken as owned, so this is no "
                "purchase advice (--set ownership=owned, reserved or rented). The cheapest option is"
            )
        demand = (
            f"{self.observed_gpus:,.1f} allocated in the record, times {self.margin:.2f} GPUs provisioned per "
            f"allocated GPU{f', at most {self.peak_gpus:,.0f} in an hour' if self.peak_gpus < math.inf else ''}"
        )
        if self.decision.gpus > self.decision.fleet_gpus:
            demand = f"in every hour the {self.decision.gpus:,} GPUs that meet the wait limit"
        begun = ", ".join(f"{gpus:,.0f} GPUs {kind} in month {month}" for kind, month, gpus in self.begin.iter_rows())
        report = self.decision.sentence.partition(". ")[0].rstrip(".")
        saved = percent_text(1 - one.cost / one.all_rented, ".1f") if one.all_rented else ""
        saves = f" ({begun}); saves {one.all_rented - one.cost:,.0f} {self.currency} ({saved}) against on demand only"
        return (
            f"Number of GPUs, as in the report: {report}. Capacity assumed over {self.months} months: "
            f"mean {self.mean_gpus:,.1f} GPUs ({demand}), {growth}. {advice}: {self.action}"
            f"{saves if begun and saved else ''}. Owned and committed GPUs cover "
            f"{percent_text(one.coverage)} of this capacity, which needs {percent_text(one.utilisation)} of them on "
            f"average; optimality gap {percent_text(one.gap, '.2f')}. Only costs are compared: no queue wait is "
            f"simulated here.{exhausted}"
        )

    @property
    def begin(self) -> pl.DataFrame:
        """``kind, month, gpus``: what is begun when, the first month as 1."""
        rows = [(kind, month + 1, gpus) for (kind, month), gpus in self.portfolio.begun.items()]
        schema = {"kind": pl.String, "month": pl.Int64, "gpus": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def action(self) -> str:
        """What is done in the first month: buy, reserve, or rent; wait where today's GPUs are enough."""
        now = {kind for (kind, month) in self.portfolio.begun if month == 0}
        if now:
            return "buy" if "owned" in now else "reserve"
        later = " and commit later" if self.portfolio.begun else ""
        return "rent" + later if self.portfolio.coverage < 1 else "wait: today's GPUs are enough"


def purchase(scenario: Scenario, months: int, *, risk: float = 0.0) -> Purchase:
    """Choose how to pay over the months to come for the GPUs that the decision recommends, not for demand alone."""
    known, decided = history(scenario), compared(scenario)
    price = on_demand_price(scenario, known.fleet, "portfolio")
    row = decided.row(decided.winner) or decided.today
    busy = None if decided.today is None else decided.today.busy_gpu_hours
    margin = max(row.gpu_hours / busy, 1.0) if row is not None and row.gpu_hours and busy else 1.0
    allocated, grows = _hours(scenario, known), decided.growth_per_week
    peak = math.inf if row is None or row.peak_gpus is None else float(row.peak_gpus)
    hours = np.minimum(allocated * margin, np.maximum(allocated, peak))
    slope, decision = _slope(grows), decided.decision
    drawn, _ = demand_paths(hours, months, seed=scenario.seed, slope=None if grows.value is None else slope)
    needed, passed, demand = float(decision.gpus) or math.inf, 0, []
    for paths in drawn:
        most = needed * np.exp(max(slope, 0.0) * (passed + np.arange(paths.shape[1])) / WEEK)[None, :]
        # GPUs that are bought for the wait limit are there in every hour, and no more than the report recommends.
        demand.append(most if decision.gpus > decision.fleet_gpus else np.minimum(paths, most))
        passed += paths.shape[1]
    owners = ownerships(scenario, known, scenario_ledger(scenario))
    owned, unstated = (
        known.fleet.gpus * float(owners.filter(ownership=kind)["share"].sum()) / owners["gpu_model"].n_unique()
        for kind in ("owned", NOT_STATED)
    )
    held = owned + unstated
    offers, notes = _offers(scenario, known, price.value)
    rent = rented(scenario, known, price.value, scenario.spot_share)
    if held:
        notes.append(f"The {held:,.0f} owned GPUs stay: their cost is not part of these sums.")
    found = choose_portfolio(
        demand, offers, rent, unit=known.fleet.node_size, held=[held] * months, risk=risk,
        gap=max(scenario.gap_target, 1e-4), time_limit_s=scenario.time_limit_s, seed=scenario.seed,
    )  # fmt: skip
    hours = np.concatenate([one.ravel() for one in demand])
    rule = reserve_level(hours, min(offer.per_gpu_month for offer in offers) / HOURS_PER_MONTH, price.value)
    ends = decided.exhaustion.date
    return Purchase(
        months, scenario.currency, held, margin, float(allocated.mean()), float(np.mean(hours)), grows, decision,
        float(max(allocated.max(initial=0.0), peak)), unstated, tuple(offers), rent, found, rule, ends, tuple(notes),
    )  # fmt: skip


def _slope(weekly: WeeklyGrowth) -> float:
    """Growth of the logarithm of the work a week; 0 where the interval does not exclude none, as in the report."""
    return math.log1p(weekly.value or 0.0) if (weekly.low or 0.0) * (weekly.high or 0.0) > 0 else 0.0


def _hours(scenario: Scenario, known: History) -> NDArray[np.float64]:
    """GPUs allocated in each hour of the record."""
    booked = known.fleet.hours_of(scenario_ledger(scenario))
    held = pl.when(pl.col("bucket").cast(pl.String).is_in(ALLOCATED_BUCKETS)).then("gpu_hours").otherwise(0.0)
    return booked.group_by("hour").agg(gpus=held.sum()).sort("hour")["gpus"].to_numpy()


def demand_paths(
    hours: NDArray[np.float64], months: int, *, seed: int, paths: int = 50, slope: float | None = math.nan
) -> tuple[list[NDArray[np.float64]], float | None]:
    """GPUs demanded in the hours of each month, path by path: weeks of the past, at levels drawn by the law of growth.

    Beside them the growth a year by this law; None where ``slope`` is None or too few weeks are known: weeks are drawn
    as they were. A ``slope`` of the logarithm a week takes the place of the growth of the law.

    Examples
    --------
    >>> found, growth = demand_paths(np.full(336, 8.0), 2, seed=1, paths=3)
    >>> [one.shape for one in found], growth
    ([(3, 730), (3, 731)], None)
    """
    hours = hours if len(hours) >= WEEK else np.resize(hours, WEEK)
    weeks = hours[len(hours) % WEEK :].reshape(-1, WEEK)
    ahead = math.ceil(months * HOURS_PER_MONTH / WEEK)
    drawn = weeks[np.random.default_rng(seed).integers(len(weeks), size=(paths, ahead))]
    growth = None
    if len(weeks) >= MIN_GROWTH_WEEKS and slope is not None:
        law = fit_growth(weeks.mean(axis=1))
        growth = round(law.growth_per_year, 6)
        levels = law.paths(ahead, seed=seed, count=paths)
        if math.isfinite(slope):
            levels = levels * np.exp(
                (slope - math.log1p(law.growth_per_year) / WEEKS_IN_YEAR) * np.arange(1, ahead + 1)
            )
        drawn = drawn * (levels / np.maximum(drawn.mean(axis=2), 1e-9))[:, :, None]
    flat = drawn.reshape(paths, -1)
    edges = np.round(np.arange(months + 1) * HOURS_PER_MONTH).astype(int)
    return [flat[:, first:last] for first, last in itertools.pairwise(edges)], growth


@dataclass(frozen=True)
class RefreshMonth:
    """What an hour of today's work costs in a month, and what it would cost on a newer board, bought as ``kind``."""

    month: int
    today: float
    newer: float
    kind: str


@dataclass(frozen=True)
class Refresh:
    """When a newer board pays: from ``pays_from`` on, a month (1-based) after which its work stays the cheaper one.

    - ``speed``: GPUs of today whose work one of the newer does.
    - ``saves``: What it saves from that month to the last, for the GPUs that are installed.
    - ``today_basis``: What the cost of today's GPUs consists of.
    """

    gpu_model: str
    speed: float
    currency: str
    months: tuple[RefreshMonth, ...]
    pays_from: int | None
    saves: float
    today_basis: str

    @property
    def sentence(self) -> str:
        """Whether it pays, and what a GPU-hour of today's work costs either way, first and last."""
        first, last = self.months[0], self.months[-1]
        advice = f"Replace today's GPUs by {self.gpu_model} from month {self.pays_from} on"
        saved = f" Saved by month {last.month}: {self.saves:,.0f} {self.currency}."
        if self.pays_from is None:
            advice, saved = f"Keep today's GPUs, {self.gpu_model} does not pay off", ""
        return (
            f"{advice}. A GPU-hour of today's work costs {first.today:.3f} {self.currency} in month 1 and "
            f"{last.today:.3f} in month {last.month} ({self.today_basis}); the same work on {self.gpu_model}, at "
            f"{self.speed:g} times the speed, costs {first.newer:.3f} ({code_in_words(first.kind)}) and "
            f"{last.newer:.3f} ({code_in_words(last.kind)}).{saved}"
        )


def refresh(scenario: Scenario, months: int, gpu_model: str, speed: float) -> Refresh:
    """Hold today's board against a newer one, month by month, at dated prices.

    Of owned boards the purchase is spent: what ends with them is space, support, staff and electricity. A newer board
    costs all that it costs, as the cheapest way to have it, for each of today's GPUs whose work it does.
    """
    known, book = history(scenario), book_of(scenario)
    known.fleet.require_board("refresh")
    newer, mine = resolve_gpu_model(gpu_model), str(known.fleet.name)
    states, per_kwh = money(scenario).states, per_kwh_of(scenario, known)
    busy = float(states.filter(state="busy")["gpu_hours"].sum()) / max(float(states["gpu_hours"].sum()), 1e-9)
    owners = ownerships(scenario, known, scenario_ledger(scenario)).group_by("ownership").agg(pl.col("share").sum())
    mode = owners.sort("share", "ownership")["ownership"][-1]
    rows = []
    for month in range(months):
        begin = known.end + timedelta(days=month * DAYS_PER_MONTH)
        end = begin + timedelta(days=DAYS_PER_MONTH)

        def hourly(name: str, way: str, begin: datetime = begin, end: datetime = end) -> float | None:
            own = name == mine and scenario.price_usd_per_gpu_hour > 0
            rate = None if own else book.rate(name, way, scenario.currency, begin, end)
            power = _kwh_per_hour(scenario, name, busy) * per_kwh if way == "owned" else 0.0
            if name == mine and way == "owned":
                parts = {} if rate is None else rate.parts or {}
                return power + sum(cost for part, cost in parts.items() if part != "depreciation")
            if rate is None and way not in (*TERMS, "owned"):
                asked = scenario if name == mine else scenario.but(price_usd_per_gpu_hour=0.0)
                rate = rate_of(asked, known, name, way)
            return None if rate is None else rate.price.value + power

        kinds = (*TERMS, "on_demand", "owned")
        ways = {way: cost for way in kinds if (cost := hourly(newer, way)) is not None}
        now = hourly(mine, mode)
        if not ways or now is None:
            lacks = newer if not ways else mine
            raise ScenarioError("refresh", f"prices of {lacks}", "none", "Give them in a price book.")
        cheapest = min(ways, key=lambda way: (ways[way], way))
        rows.append(RefreshMonth(month + 1, now, ways[cheapest] / speed, cheapest))
    dear = [row.month for row in rows if row.newer >= row.today]
    first = max(dear, default=0) + 1
    worth = sum(row.today - row.newer for row in rows[first - 1 :]) * known.fleet.gpus * HOURS_PER_MONTH
    basis = f"price of {code_in_words(mode)} GPUs"
    if mode == "owned":
        basis = (
            "avoidable cost: electricity, and space, support and staff of the price book; the purchase price is sunk"
        )
    return Refresh(newer, speed, scenario.currency, tuple(rows), first if first <= months else None, worth, basis)


def _kwh_per_hour(scenario: Scenario, gpu_model: str, busy: float) -> float:
    """Energy of a GPU-hour at the meter, busy for such a share of it."""
    watts = state_watts(gpu_model, None)
    mean = busy * watts["busy"].value + (1 - busy) * watts["idle"].value
    return kwh_from_watt_hours(mean) * Facility.of(scenario.pue).factor("value")


def _offers(scenario: Scenario, known: History, on_demand: float) -> tuple[list[Offer], list[str]]:
    """What can be committed: as the price book says, else a one-year reservation at the catalogue's guidance."""
    gpu_model, notes = known.fleet.name if known.fleet.in_catalogue else None, []
    book = book_of(scenario)
    offers = []
    for kind, term in TERMS.items():
        rate = None if gpu_model is None else book.rate(gpu_model, kind, scenario.currency, known.begin, known.end)
        if rate is not None:
            offers.append(Offer(kind, rate.price.value * HOURS_PER_MONTH, term))
    if not offers:
        guide = find_parameter("discount_reserved_1y")
        per_month = on_demand * (1 - guide.value) * HOURS_PER_MONTH
        offers.append(Offer("reserved_1y", per_month, TERMS["reserved_1y"]))
        notes.append(
            f"The one-year reservation is assumed to be {percent_text(guide.value)} below on demand: {guide.source} "
            f"({guide.date}), not a list price. State your contract in a price book."
        )
    lots = book.lots_of(gpu_model)
    owned = None if gpu_model is None or not lots else rate_of(scenario, known, gpu_model, "owned")
    if owned is not None:
        states = money(scenario).states
        kwh = float(states["energy_kwh"].sum()) / max(float(states["gpu_hours"].sum()), 1e-9)
        hourly = owned.price.value + kwh * per_kwh_of(scenario, known)
        lead = math.ceil(scenario.purchase_lead_days / DAYS_PER_MONTH)
        months = round(12 * lots[-1].life_years)
        offers.append(Offer("owned", hourly * HOURS_PER_MONTH, months, lead, lost_share=0.5))
        notes.append(
            f"GPUs to buy are counted at their monthly cost over {months} months of service (depreciation, yearly "
            "costs and electricity), not as cash; of the cost after the months shown, half is counted as lost."
        )
    return offers, notes


def rented(scenario: Scenario, known: History, on_demand: float, spot_share: float) -> Rent:
    """GPUs by the hour: on demand, and spot for a share of the load, with what its interruptions waste."""
    rate = None
    if spot_share and known.fleet.in_catalogue:
        rate = rate_of(scenario, known, known.fleet.name, "spot")
    if rate is None:
        return Rent(on_demand)
    checkpoint, restart = find_parameter("checkpoint_s").value, find_parameter("restart_s").value
    often = scenario.spot_interruptions_per_day / 24
    wasted = spot_overhead(often, checkpoint_s=checkpoint, restart_s=restart)
    return Rent(on_demand, rate.price.value, spot_share, wasted)


KEYS = ("stay", "spot", "data", "move")
DATA = ("tenant", "gib", "source")
MOVE = ("price", "unit", "gbit_per_s", "start_minutes", "source")
STAYS, SLOW = "may not leave", "would begin later than here"
LEAST_H = 1e-6
"""Overload of an hour below this many GPU-hours is none."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class BurstRules:
    """What a file says of leaving.

    - ``stay``, ``spot``: Tenants whose jobs may not leave, and those whose jobs bear interruptions.
    - ``gib``: Data that a job of a tenant takes along [GiB].
    - ``per_gib``, ``currency``: What moving a GiB costs, there and back.
    - ``gbit_per_s``, ``start_minutes``: How fast data move, and how long a rented machine takes to start.
    """

    stay: tuple[str, ...]
    spot: tuple[str, ...]
    gib: Mapping[str, float]
    per_gib: float
    currency: str
    gbit_per_s: float
    start_minutes: float
    source: str


@dataclass(frozen=True, eq=False)
class BurstPlan:
    """Jobs that go out so that what stays fits, at the least cost.

    - ``jobs``: ``job_id, tenant, submit_time, gpus, hours, kind, begins_minutes, gib, cost``, by submission.
    - ``stays``: ``reason, jobs, gpu_hours`` of the jobs of overloaded hours that cannot leave.
    - ``over_gpu_hours``, ``left_gpu_hours``: Wanted beyond what is installed, hour by hour, and what stays of it.
    - ``total``, ``gap``: What it costs, and by how much of it another choice could be cheaper.
    """

    jobs: pl.DataFrame
    stays: pl.DataFrame
    over_gpu_hours: float
    left_gpu_hours: float
    total: Decimal
    gap: float
    currency: str
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """How much was wanted beyond what there is, and what goes out for how much."""
        return (
            f"Demand above the installed capacity: {self.over_gpu_hours:,.1f} GPU-hours. Send {self.jobs.height:,} "
            f"jobs to rented GPUs for {money_text(self.total, self.currency)} {self.currency} (optimality gap "
            f"{percent_text(self.gap, '.2f')}); {self.left_gpu_hours:,.1f} GPU-hours stay above."
        )


def read_burst(path: str | Path) -> BurstRules:
    """Read the rules of leaving: lists ``stay``, ``spot`` and ``data``, and ``move``; see :class:`BurstRules`."""
    name = Path(path).name
    top = require_keys(read_yaml(path), KEYS, f"{name}, the file", 1, required_keys=("move",))
    data = read_list(top, "data", name)
    rows = [require_keys(one, DATA, f"{name}, data", line, required_keys=DATA) for one, line in data]
    move = require_keys(top["move"], MOVE, f"{name}, move", 1, required_keys=MOVE)
    currency, _, per = str(move["unit"]).partition(" per ")
    if per != "GiB":
        raise make_file_error(name, move.lines["unit"], "unit 'USD per GiB'", repr(move["unit"]))
    return BurstRules(
        stay=tuple(str(one) for one, _ in read_list(top, "stay", name)),
        spot=tuple(str(one) for one, _ in read_list(top, "spot", name)),
        gib={str(row["tenant"]): read_number(row, "gib", name, 0, 1e9) for row in rows},
        per_gib=read_number(move, "price", name, 0, 1e4),
        currency=currency,
        gbit_per_s=read_number(move, "gbit_per_s", name, 1e-6, 1e6),
        start_minutes=read_number(move, "start_minutes", name, 0, 1e5),
        source=str(move["source"]),
    )


def burst_plan(scenario: Scenario, rules: BurstRules) -> BurstPlan:
    """Choose the jobs of the month whose leaving costs least and lets the others begin when they are submitted.

    What is wanted is counted hour by hour, each job from its submission for as long as it ran; where jobs fit on nodes
    is not looked at.
    """
    known = history(scenario)
    price = on_demand_price(scenario, known.fleet, "burst")
    rent = rented(scenario, known, price.value, 1.0 if rules.spot else 0.0)
    per_gib = book_of(scenario).converted(rules.per_gib, rules.currency, scenario.currency, known.end)
    tenant, hours = pl.col("tenant").cast(pl.String), pl.col("run_s").fill_null(0.0) / SECONDS_PER_HOUR
    gib = tenant.replace_strict(dict(rules.gib), default=0.0, return_dtype=pl.Float64)
    spot = tenant.is_in(list(rules.spot))
    per_hour = pl.when(spot).then(rent.spot_price).otherwise(rent.on_demand)
    gbit_per_gib = 8 * 1.073741824
    begins = rules.start_minutes + gib * gbit_per_gib / rules.gbit_per_s / 60
    waited = (pl.col("start_time").fill_null(known.end) - waiting_since()).dt.total_seconds() / 60
    jobs = known.jobs.select(
        "job_id", tenant.alias("tenant"), "submit_time", "gpus", hours=hours,
        kind=pl.when(spot).then(pl.lit("spot")).otherwise(pl.lit("on_demand")), begins_minutes=begins, gib=gib,
        cost=pl.col("gpus") * (hours + rules.start_minutes / 60) * per_hour + gib * per_gib,
        from_h=(pl.col("submit_time") - known.begin).dt.total_seconds() / SECONDS_PER_HOUR,
        reason=pl.when(tenant.is_in(list(rules.stay))).then(pl.lit(STAYS)).when(begins >= waited).then(pl.lit(SLOW)),
    )  # fmt: skip
    begin, length, gpus, cost = (jobs[name].to_numpy() for name in ("from_h", "hours", "gpus", "cost"))
    until = int((known.end - known.begin).total_seconds() // SECONDS_PER_HOUR)
    over = wanted(begin, length, gpus, until) - known.fleet.installed.gpus
    effort = SearchEffort.begin(**scenario.search_limits)
    free = jobs["reason"].is_null().to_numpy()
    leave, left, bound = leavers(begin, length, gpus, cost, free, over, effort, gap=scenario.gap_target)
    out = jobs.filter(leave)
    exact = out["cost"].to_list()
    total, best = to_cents(sum(exact)), float(sum(exact))
    busy = np.flatnonzero(over > LEAST_H)
    there = np.zeros(len(free), bool)
    for hour in busy:
        there |= (begin < hour + 1) & (begin + length > hour)
    gpu_hours = (pl.col("gpus") * pl.col("hours")).sum()
    held = jobs.filter(there & ~free).group_by("reason").agg(jobs=pl.len(), gpu_hours=gpu_hours)
    return BurstPlan(
        jobs=out.with_columns(cost=pl.Series(split_amount(total, exact), dtype=CENTS))
        .drop("from_h", "reason").sort("submit_time", "job_id"),
        stays=held.sort("reason"),
        over_gpu_hours=float(over[busy].sum()),
        left_gpu_hours=left,
        total=total,
        gap=max(best - bound, 0.0) / best if best else 0.0,
        currency=scenario.currency,
        notes=(f"Rent: {price.source}.", f"Moving data: {rules.source}."),
    )  # fmt: skip


def leavers(
    begin: Array, hours: Array, gpus: Array, cost: Array, free: NDArray[np.bool_], over: Array, effort: SearchEffort,
    *, gap: float,
) -> tuple[NDArray[np.bool_], float, float]:  # fmt: skip
    """Jobs whose leaving covers the overload of each hour at the least cost, what is left of it, and a bound.

    Examples
    --------
    Two jobs of four GPUs overload one hour by three: the cheaper one goes.

    >>> one = np.ones(2)
    >>> found, left, bound = leavers(0 * one, one, 4 * one, np.array([9.0, 7.0]), one > 0, np.array([3.0]),
    ...                              SearchEffort.begin(), gap=0.0)
    >>> found.tolist(), left, round(bound, 3)
    ([False, True], 0.0, 7.0)
    """
    rows, left = [], 0.0
    for hour in np.flatnonzero(over > LEAST_H):
        shared = np.minimum(begin + hours, hour + 1) - np.maximum(begin, hour)
        mine = np.flatnonzero(free & (shared > 0))
        share = gpus[mine] * shared[mine]
        left += max(float(over[hour] - share.sum()), 0.0)
        rows.append((int(hour), mine, share, min(float(over[hour]), float(share.sum()))))
    movable = np.unique(np.concatenate([mine for _, mine, _, _ in rows])) if rows else np.zeros(0, np.int64)
    model = LinearModel()
    model.add_columns([f"j{job}" for job in movable], cost=cost[movable], high=np.ones(len(movable)))
    for number, mine, share, much in rows:
        model.add_row(f"h{number}", np.searchsorted(movable, mine), share, ">=", much - LEAST_H)
    found = solve(model, effort, gap=gap)
    if found.values is None:
        todo = "Give more work with --work-limit, or fewer jobs."
        raise ScenarioError("burst", "a choice of jobs", found.status, todo)
    leave = np.zeros(len(begin), bool)
    leave[movable[found.values > 0.5]] = True
    return leave, left, -np.inf if found.bound is None else found.bound


def wanted(begin: Array, hours: Array, gpus: Array, until: int) -> Array:
    """GPUs wanted on average in each of the hours from 0, by the exact integral.

    Examples
    --------
    >>> wanted(np.array([-1.0, 0.5]), np.array([1.5, 2.0]), np.array([4.0, 2.0]), 3).tolist()
    [3.0, 2.0, 1.0]
    """
    return np.asarray(mean_occupancy(begin, begin + hours, gpus, np.zeros(len(begin), np.int64), 1, until)[0])
