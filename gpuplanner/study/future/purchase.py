"""What to buy, reserve or rent: the portfolio over paths of the fleet that the decision needs, at stated prices."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.catalog.loader import find_any_board, parameter
from gpuplanner.cost.footprint import Facility
from gpuplanner.cost.footprint import state_watts
from gpuplanner.cost.portfolio import (
    HOURS_PER_MONTH,
    Offer,
    Portfolio,
    Rent,
    choose_portfolio,
    reserve_level,
    spot_overhead,
)
from gpuplanner.demand.growth import FEWEST_WEEKS, fit_growth
from gpuplanner.errors import ScenarioError, message
from gpuplanner.ledger.views import HELD_BUCKETS
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.record import compared
from gpuplanner.study.future.money import book_of, money, on_demand_price, ownerships, per_kwh_of, rate_of
from gpuplanner.study.past.accounts import (ledger)
from gpuplanner.study.past.history import History, history
from gpuplanner.units import HOURS_PER_WEEK, kwh_from_watt_hours

PATHS = 50
WEEK = int(HOURS_PER_WEEK)
TERMS = {"reserved_1y": 12, "reserved_3y": 36}
DAYS_PER_MONTH = 30.4375


@dataclass(frozen=True, eq=False)
class Purchase:
    """A portfolio with what it rests on: ``margin`` is GPU-hours that the decision has on for each that jobs hold.

    ``load_duration_gpus`` are what the rule of the load-duration curve would commit for one term, all hours alike;
    ``exhaustion`` is the date when capacity is exhausted; None without one.
    """

    months: int
    currency: str
    held_gpus: float
    margin: float
    growth_per_year: float | None
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
            "margin": round(self.margin, 6), "growth_per_year": self.growth_per_year,
            "offers": self.offers, "rent": self.rent, "notes": list(self.notes),
        }  # fmt: skip

    @property
    def costs(self) -> pl.DataFrame:
        """``way_to_pay, cost``: the mix and the plain ways."""
        one = self.portfolio
        ways = {
            "this mix": one.cost, "its dearest tenth": one.risk, "all on demand": one.all_rented,
            "all reserved at the mean": one.all_reserved,
        }  # fmt: skip
        return pl.DataFrame({"way_to_pay": list(ways), "cost": list(ways.values())})

    @property
    def sentence(self) -> str:
        """What is done, how well commitments are used, the rule of one term, and when capacity is exhausted."""
        one = self.portfolio
        exhausted = "" if self.exhaustion is None else f" Capacity is exhausted on {self.exhaustion}."
        return (
            f"Over {self.months} months: {self.action}. Commitments cover {one.coverage:.0%} of demand and are used "
            f"{one.utilisation:.0%}; no mix is cheaper by more than {one.gap:.2%}. The load-duration rule says "
            f"{self.load_duration_gpus:,} GPUs for one term, those that are held among them.{exhausted}"
        )

    @property
    def begin(self) -> pl.DataFrame:
        """``kind, month, gpus``: what is begun when, the first month as 1."""
        rows = [(kind, month + 1, gpus) for (kind, month), gpus in self.portfolio.begun.items()]
        schema = {"kind": pl.String, "month": pl.Int64, "gpus": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def action(self) -> str:
        """What is done in the first month: buy, reserve, or rent; wait where nothing is begun at all."""
        now = {kind for (kind, month) in self.portfolio.begun if month == 0}
        if now:
            return "buy" if "owned" in now else "reserve"
        later = " and commit later" if self.portfolio.begun else ""
        return "wait" + later if self.portfolio.coverage < 1 else "wait: what is there is enough"


def purchase(scenario: Scenario, months: int, *, risk: float = 0.0) -> Purchase:
    """Choose what to commit over the months to come, for the fleet that the decision has on, not for demand alone."""
    known, decided = history(scenario), compared(scenario)
    price = on_demand_price(scenario, known.fleet, "portfolio")
    row = decided.row(decided.winner) or decided.today
    busy = None if row is None else row.busy_gpu_hours
    margin = max(row.gpu_hours / busy, 1.0) if row is not None and row.gpu_hours and busy else 1.0
    demand, growth = demand_paths(_hours(scenario, known, margin), months, seed=scenario.seed)
    owners = ownerships(scenario, known, ledger(scenario))
    share = float(owners.filter(ownership="owned")["share"].mean() or 0.0)  # type: ignore[arg-type]
    held = known.fleet.gpus * share
    offers, notes = _offers(scenario, known, price.value)
    rent = rented(scenario, known, price.value, scenario.spot_share)
    if growth is None:
        notes.append(
            f"Fewer than {FEWEST_WEEKS} weeks are known: no growth is counted, weeks come as they were."
        )
    if held:
        notes.append(f"{held:,.0f} GPUs are owned and stay: their cost is not part of these sums.")
    found = choose_portfolio(
        demand, offers, rent, unit=known.fleet.node_size, held=[held] * months, risk=risk,
        gap=max(scenario.gap_target, 1e-4), time_limit_s=scenario.time_limit_s, seed=scenario.seed,
    )  # fmt: skip
    hours = np.concatenate([one.ravel() for one in demand])
    rule = reserve_level(hours, min(offer.per_gpu_month for offer in offers) / HOURS_PER_MONTH, price.value)
    ends = decided.exhaustion.date
    return Purchase(
        months, scenario.currency, held, margin, growth, tuple(offers), rent, found, rule, ends, tuple(notes)
    )


def _hours(scenario: Scenario, known: History, margin: float) -> NDArray[np.float64]:
    """GPUs that the decision has on for those that jobs held in each hour behind."""
    booked = known.fleet.hours_of(ledger(scenario))
    held = pl.when(pl.col("bucket").cast(pl.String).is_in(HELD_BUCKETS)).then("gpu_hours").otherwise(0.0)
    return booked.group_by("hour").agg(gpus=held.sum()).sort("hour")["gpus"].to_numpy() * margin


def demand_paths(
    hours: NDArray[np.float64], months: int, *, seed: int, paths: int = PATHS
) -> tuple[list[NDArray[np.float64]], float | None]:
    """GPUs wanted in the hours of each month, path by path: weeks of the past, at levels drawn by the law of growth.

    Beside them the growth a year that the law says; None where too few weeks are known, which then come as they were.

    Examples
    --------
    >>> found, growth = demand_paths(np.full(336, 8.0), 2, seed=1, paths=3)
    >>> [one.shape for one in found], growth
    ([(3, 730), (3, 731)], None)
    """
    hours = hours if len(hours) >= WEEK else np.resize(hours, WEEK)
    weeks = hours[len(hours) % WEEK :].reshape(-1, WEEK)
    ahead = math.ceil(months * HOURS_PER_MONTH / WEEK)
    rng = np.random.default_rng(seed)
    drawn = weeks[rng.integers(len(weeks), size=(paths, ahead))]
    growth = None
    if len(weeks) >= FEWEST_WEEKS:
        law = fit_growth(weeks.mean(axis=1))
        growth = round(law.growth_per_year, 6)
        levels = law.paths(ahead, seed=seed, count=paths)
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
    """

    board: str
    speed: float
    currency: str
    months: tuple[RefreshMonth, ...]
    pays_from: int | None
    saves: float

    @property
    def sentence(self) -> str:
        """Whether it pays, and what an hour of today's work costs either way, first and last."""
        first, last = self.months[0], self.months[-1]
        when = "does not pay" if self.pays_from is None else f"pays from month {self.pays_from} on"
        return (
            f"{self.board}, {self.speed:g} of today's GPUs each, {when}: an hour of today's work costs "
            f"{first.today:.3f} {self.currency} and {first.newer:.3f} on it ({first.kind}), in month "
            f"{last.month} {last.today:.3f} and {last.newer:.3f} ({last.kind}); saved by then {self.saves:,.0f} "
            f"{self.currency}."
        )


def refresh(scenario: Scenario, months: int, board: str, speed: float) -> Refresh:
    """Hold today's board against a newer one, month by month, at dated prices.

    Of owned boards the purchase is spent: what ends with them is space, support, staff and electricity. A newer board
    costs all that it costs, as the cheapest way to have it, for each of today's GPUs whose work it does.
    """
    known, book = history(scenario), book_of(scenario)
    known.fleet.require_board("refresh")
    newer, mine = find_any_board(board), str(known.fleet.name)
    states, per_kwh = money(scenario).states, per_kwh_of(scenario, known)
    busy = float(states.filter(state="busy")["gpu_hours"].sum()) / max(float(states["gpu_hours"].sum()), 1e-9)
    owners = ownerships(scenario, known, ledger(scenario)).group_by("ownership").agg(pl.col("share").sum())
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
            todo = "Give them in a price book."
            raise ScenarioError(message("refresh", f"prices of {lacks}", "none", todo))
        cheapest = min(ways, key=lambda way: (ways[way], way))
        rows.append(RefreshMonth(month + 1, now, ways[cheapest] / speed, cheapest))
    dear = [row.month for row in rows if row.newer >= row.today]
    first = max(dear, default=0) + 1
    saved = sum(row.today - row.newer for row in rows[first - 1 :])
    worth = saved * known.fleet.gpus * HOURS_PER_MONTH
    return Refresh(newer, speed, scenario.currency, tuple(rows), first if first <= months else None, worth)


def _kwh_per_hour(scenario: Scenario, board: str, busy: float) -> float:
    """Energy of a GPU-hour at the meter, busy for such a share of it."""
    watts = state_watts(board, None)
    mean = busy * watts["busy"].value + (1 - busy) * watts["idle"].value
    return kwh_from_watt_hours(mean) * Facility.of(scenario.pue).factor("value")


def _offers(scenario: Scenario, known: History, on_demand: float) -> tuple[list[Offer], list[str]]:
    """What can be committed: as the price book says, else a one-year reservation at the catalogue's guidance."""
    board, notes = known.fleet.name if known.fleet.in_catalogue else None, []
    book = book_of(scenario)
    offers = []
    for kind, term in TERMS.items():
        rate = None if board is None else book.rate(board, kind, scenario.currency, known.begin, known.end)
        if rate is not None:
            offers.append(Offer(kind, rate.price.value * HOURS_PER_MONTH, term))
    if not offers:
        guide = parameter("discount_reserved_1y")
        per_month = on_demand * (1 - guide.value) * HOURS_PER_MONTH
        offers.append(Offer("reserved_1y", per_month, TERMS["reserved_1y"]))
        notes.append(
            f"The one-year reservation is {guide.value:.0%} below on demand: {guide.source} ({guide.date}), "
            "not a list price. Name your own in a price book."
        )
    lots = book.lots_of(board)
    owned = None if board is None or not lots else rate_of(scenario, known, board, "owned")
    if owned is not None:
        states = money(scenario).states
        kwh = float(states["energy_kwh"].sum()) / max(float(states["gpu_hours"].sum()), 1e-9)
        hourly = owned.price.value + kwh * per_kwh_of(scenario, known)
        lead, months = (
            math.ceil(scenario.purchase_lead_days / DAYS_PER_MONTH),
            round(12 * lots[-1].life_years),
        )
        offers.append(Offer("owned", hourly * HOURS_PER_MONTH, months, lead, lost_share=0.5))
        notes.append("Of what an owned board still stands for at the end, half is taken to be lost.")
    return offers, notes


def rented(scenario: Scenario, known: History, on_demand: float, spot_share: float) -> Rent:
    """GPUs by the hour: on demand, and spot for a share of the load, with what its interruptions waste."""
    rate = None
    if spot_share and known.fleet.in_catalogue:
        rate = rate_of(scenario, known, known.fleet.name, "spot")
    if rate is None:
        return Rent(on_demand)
    checkpoint, restart = parameter("checkpoint_s").value, parameter("restart_s").value
    often = scenario.spot_interruptions_per_day / 24
    wasted = spot_overhead(often, checkpoint_s=checkpoint, restart_s=restart)
    return Rent(on_demand, rate.price.value, spot_share, wasted)
