"""The cost of a month by tenant and bucket, as ``gpuplanner cost`` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from gpuplanner.core.column_headings import cells_in_words, code_in_words
from gpuplanner.core.errors import VerificationError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.units import GRAMS_PER_KILOGRAM, UNALLOCATED_TEAM, money_text, split_amount
from gpuplanner.core.units import round_money as to_cents
from gpuplanner.cost.energy_and_carbon import RangedAmount, total_of
from gpuplanner.cost.period_costs import RATE_NOT_SET, Money, book_of, money
from gpuplanner.cost.price_book import LOT, PriceBook
from gpuplanner.cost.showback import BILL, CENTS, LIST_PRICE, OWN_RATE, allocated
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.power_and_carbon import STATED_PRICE_SOURCE_TEXT, GpuHourPrice, GridCarbonIntensity
from gpuplanner.ingest.bills.bill_summary import add_gpu_hours
from gpuplanner.usage.allocated_hours import FAILED_JOB_STATES, allocated_by_state
from gpuplanner.usage.job_history import History, history
from gpuplanner.usage.occupancy import LedgerWindow

BILL_CLOSES = 0.01
"""A bill for GPU-hours that differ from those installed by a larger share is refused."""
UNITS = {
    "run": "cost per job attempt", "successful_run": "cost per completed job",
    "gpu_hour_delivered": "cost per allocated GPU-hour not known to be idle",
    "million_tokens": "cost per million tokens",
    "work_that_failed": "cost of unsuccessful jobs (failed, timed out, out of memory, preempted, cancelled)",
    "work_that_was_redone": "cost of repeated attempts",
}  # fmt: skip
"""Units of work, then parts of the cost, in words."""
UNIT_COLUMNS: dict[str, Any] = {
    "name": pl.String, "cost": CENTS, "basis": pl.String, "cost_of_the_basis": CENTS, "divided_by": pl.Float64
}  # fmt: skip
"""Of the sheet of unit costs: a cost is that of the basis over a number of units, 1 for a sum."""
BASES = {LIST_PRICE: " at list price", OWN_RATE: " at your rate", BILL: " as billed"}
"""Bases of a cost, to stand behind an amount."""
SERVING = ("service", "inference")
"""Classes of jobs that answer requests."""
PRICE_COLUMNS = ("kind", "price", "unit", "date", "source")


@dataclass(frozen=True, eq=False)
class CostReview:
    """A month of money, energy and carbon; ``total`` is None where no GPU has a price.

    ``by_tenant``, ``by_ownership``, ``by_bucket`` and ``by_board`` sum to the total, to the cent; ``by_end`` and
    ``by_job`` are what tenants were charged, split by how their attempts ended, and by job. Carbon of
    the grid at the yearly mean of the region stands beside that by hour.
    """

    name: str
    gpu_model: str | None
    book: PriceBook
    period: tuple[str, str]
    total: Decimal | None
    currency: str
    price: GpuHourPrice | None
    by_tenant: pl.DataFrame
    by_ownership: pl.DataFrame
    by_bucket: pl.DataFrame
    by_board: pl.DataFrame
    by_end: pl.DataFrame
    by_job: pl.DataFrame
    unit_costs: dict[str, str | None]
    units: pl.DataFrame
    energy: RangedAmount | None
    states: pl.DataFrame
    carbon_kg: dict[str, RangedAmount | None]
    carbon_at_yearly_mean_kg: float | None
    carbon: GridCarbonIntensity
    pue: float
    costs: pl.DataFrame
    missing: tuple[str, ...]
    rate_parts: Mapping[str, float]

    @property
    def price_basis(self) -> str:
        """Basis of the amounts, to stand behind them: list price, your rate or a bill."""
        return basis_of(self.costs)

    @property
    def rate_text(self) -> str:
        """Mean cost of an installed GPU-hour, with the components of the rate of owned GPUs."""
        rate = float(self.total or 0) / max(float(self.costs["PricingQuantity"].sum()), 1e-9)
        parts = {name: part for name, part in self.rate_parts.items() if part and BASES[BILL] != self.price_basis}
        parts |= {"electricity": rate - sum(parts.values())} if parts else {}
        components = ", ".join(f"{name} {part:.3f}" for name, part in parts.items())
        figure = f"{rate:,.4f}"
        figure = figure[:-2] + figure[-2:].rstrip("0")
        return f"{figure} {self.currency} per installed GPU-hour{': ' if components else ''}{components}"

    @property
    def total_text(self) -> str:
        """The total with its period, basis and rate."""
        begin, end = (day[:10] for day in self.period)
        amount = f"{money_text(self.total or Decimal(), self.currency)} {self.currency}{self.price_basis}"
        hours = float(self.costs["PricingQuantity"].sum())
        unset = "; your rate is not set" if any(text.startswith(RATE_NOT_SET) for text in self.missing) else ""
        return f"Cost of {hours:,.0f} installed GPU-hours, {begin} to {end} (UTC): {amount} ({self.rate_text}{unset})"

    @property
    def bridge(self) -> str:
        """Buckets that the unallocated cost of the table by team is the sum of; empty without unallocated hours."""
        sums = _summed(_by_bucket_order(self.costs.filter(SubAccountId=UNALLOCATED_TEAM)), "bucket", "x_Bucket")
        named = ((code_in_words(row[0]).removeprefix("unallocated, "), row[1]) for row in sums.iter_rows())
        parts = " + ".join(f"{name} {money_text(cost, self.currency)}" for name, cost in named)
        amount = f"{money_text(Decimal(str(sums['cost'].sum())), self.currency)} {self.currency}"
        return f"Unallocated {amount} ({sums['gpu_hours'].sum():,.0f} GPU-hours) = {parts}." if parts else ""

    def breakdown(self, by: str) -> pl.DataFrame:
        """One of the tables with words for codes, the share of each row, and a row ``Total``; jobs as they are."""
        table: pl.DataFrame = getattr(self, f"by_{by}")
        if by == "job" or table.is_empty():
            return table
        total = table.select(pl.lit("Total").alias(table.columns[0]), pl.selectors.numeric().sum())
        rows = pl.concat([cells_in_words(table), total.select(table.columns)], how="vertical_relaxed")
        cost = pl.col("cost").cast(pl.Float64)
        return rows.with_columns(share=(cost / cost.last()).fill_nan(None))

    @property
    def units_in_words(self) -> dict[str, str]:
        """What each unit of work cost that is known, with its currency."""
        known = self.units.select("name", "cost").iter_rows()
        return {name: f"{money_text(much, self.currency)} {self.currency}" for name, much in known}

    def to_dict(self) -> dict[str, Any]:
        """The object of ``cost --json``: amounts of money as text, to the cent."""
        tables = ("by_tenant", "by_ownership", "by_bucket", "by_board", "by_end")
        return {
            "name": self.name,
            "period": {"from": self.period[0], "to": self.period[1]},
            "total": self.total,
            "currency": self.currency,
            "price_basis": self.price_basis.strip(),
            **{name: getattr(self, name).to_dicts() for name in tables},
            "unit_costs": self.unit_costs,
            "energy_kwh": None if self.energy is None else self.energy.value,
            "energy_range_kwh": self.energy,
            "energy_by_state": self.states.select("state", "gpu_hours", "^(energy|counted)_.*$").to_dicts(),
            "carbon_kg": self.carbon_kg,
            "carbon_at_yearly_mean_kg": self.carbon_at_yearly_mean_kg,
            "price": self.price,
            "missing": list(self.missing),
        }


def cost_review(scenario: Scenario, charges: pl.DataFrame | None = None) -> CostReview:
    """Review the month behind; with the charge lines of a bill, its total is what tenants share.

    Examples
    --------
    >>> found = cost_review(Scenario(month="2026-02", price_usd_per_gpu_hour=2.0))
    >>> str(found.total), found.by_tenant["tenant"][-1], found.by_tenant["cost"].sum() == found.total
    ('86016.00', '__unallocated__', True)
    """
    known, priced = history(scenario), money(scenario)
    costs = priced.costs if charges is None else _billed(priced.costs, charges, scenario.currency)
    total = Decimal(str(costs["EffectiveCost"].sum())) if costs.height else None
    by_tenant = _summed(costs, "tenant", "SubAccountName")
    held = by_tenant.filter(pl.col("tenant") != UNALLOCATED_TEAM)
    to_tenants = Decimal(str(held["cost"].sum() or 0))
    attempts = allocated_by_state(known.trace.jobs, start=known.begin, end=known.end)
    attempts = attempts.filter(pl.col("gpu_hours") > 0, total is not None)
    by_end = allocated(to_tenants, attempts, by="state", weight="gpu_hours")
    unit_costs, units = ({}, []) if total is None else _unit_costs(priced, total, by_end, known)
    return CostReview(
        name=scenario.name,
        gpu_model=known.fleet.name,
        book=book_of(scenario),
        period=(known.begin.isoformat(), known.end.isoformat()),
        total=total,
        currency=scenario.currency,
        price=priced.price,
        by_tenant=by_tenant,
        by_ownership=_summed(costs, "ownership", "x_Ownership"),
        by_bucket=_summed(_by_bucket_order(costs), "bucket", "x_Bucket"),
        by_board=_summed(costs, "gpu_model", "x_GpuModel"),
        by_end=by_end.cast({"state": pl.String}),
        by_job=_by_job(known.trace.jobs, held, known.begin, known.end) if total is not None else pl.DataFrame(),
        unit_costs=unit_costs,
        units=pl.DataFrame(units, schema=UNIT_COLUMNS, orient="row"),
        energy=total_of(priced.states, "energy_kwh"),
        states=priced.states,
        carbon_kg={scope: total_of(priced.states, f"{scope}_kg") for scope in ("location", "market", "embodied")},
        carbon_at_yearly_mean_kg=None
        if priced.energy_kwh is None
        else round(priced.energy_kwh * priced.carbon.gco2e_per_kwh / GRAMS_PER_KILOGRAM, 6),
        carbon=priced.carbon,
        pue=priced.pue,
        costs=costs,
        missing=tuple(text for text in priced.missing if charges is None or not text.startswith(RATE_NOT_SET)),
        rate_parts=priced.rate_parts,
    )  # fmt: skip


def _billed(costs: pl.DataFrame, charges: pl.DataFrame, currency: str) -> pl.DataFrame:
    """The lines with what a bill says that they cost in all; a bill for other GPU-hours is refused."""
    mine = add_gpu_hours(charges.filter(BillingCurrency=currency))
    installed, billed = float(costs["PricingQuantity"].sum()), float(mine["gpu_hours"].sum())
    if costs.is_empty() or abs(billed - installed) > BILL_CLOSES * installed:
        what = pl.coalesce("x_InstanceType", "ChargeDescription", "ServiceName")
        largest = mine.sort(pl.col("EffectiveCost").abs(), descending=True).head(3)
        costs_of = largest.select("EffectiveCost", what).iter_rows()
        told = [f"{much:.2f} {currency} {name}" for much, name in costs_of]
        got = f"{billed:,.1f}, {billed - installed:+,.1f}; its largest lines: {'; '.join(told) or 'none'}"
        todo = "Give the bill of the same GPUs and the same period, in the currency of the scenario."
        raise VerificationError("bill", f"{installed:,.1f} GPU-hours, as are installed", got, todo)
    total = to_cents(float(mine["EffectiveCost"].sum()))
    shares = split_amount(total, costs["EffectiveCost"].cast(pl.Float64).to_list())
    cost = pl.Series(shares, dtype=CENTS)
    return costs.with_columns(
        ContractedCost=cost, EffectiveCost=cost, BilledCost=cost, x_PriceBasis=pl.lit(BILL)
    )  # fmt: skip


def basis_of(costs: pl.DataFrame) -> str:
    """Basis of the amounts of charge lines, to stand behind them; empty without lines.

    Examples
    --------
    >>> basis_of(pl.DataFrame({"x_PriceBasis": ["own rate", "list price"]}))
    ' at list price and at your rate'
    """
    bases = costs["x_PriceBasis"].unique().to_list()
    return " and".join(words for basis, words in BASES.items() if basis in bases)


def price_text(price: GpuHourPrice) -> str:
    """A price of a GPU-hour, with the lowest and the highest offer where it is the median of several.

    Examples
    --------
    >>> price_text(GpuHourPrice(12.29, 6.88, 15.98, "USD", "list", "2026-08-03"))
    '12.29 USD per GPU-hour (offers from 6.88 to 15.98)'
    """
    wide = f" (offers from {price.low:,.2f} to {price.high:,.2f})" if price.low != price.high else ""
    return f"{price.value:,.2f} {price.currency} per GPU-hour{wide}"


def price_rows(found: CostReview) -> pl.DataFrame:
    """Every price of the GPU model, own ones first: :data:`PRICE_COLUMNS`, and whether it is used for this cost."""
    book, gpu_model = found.book, found.gpu_model
    mine = (row for row in book.prices if row.gpu_model == gpu_model)
    rows = [(row.kind, row.per_gpu_hour, f"{row.currency} per GPU h", row.begin, row.source) for row in mine]
    lots = ((lot, ", ".join(f"{name} {getattr(lot, name):g}" for name in LOT[5:10])) for lot in book.lots_of(gpu_model))
    rows += [("owned", lot.capex, f"{lot.currency} per GPU", lot.bought, f"{lot.source}: {of}") for lot, of in lots]
    power = book.electricity
    rows += [("electricity", row.per_kwh, f"{row.currency} per kWh", row.begin, row.source) for row in power]
    rates = ((f"{row.to_currency} per {row.from_currency}", row) for row in book.rates)
    rows += [("exchange", row.rate, unit, row.date, row.source) for unit, row in rates]
    overridden = found.price is not None and found.price.source == STATED_PRICE_SOURCE_TEXT
    owners = {basis: set(found.costs.filter(x_PriceBasis=basis)["x_Ownership"]) for basis in BASES}
    used = set() if overridden else owners[OWN_RATE] | ({"electricity", "exchange"} if owners[OWN_RATE] else set())
    terms = owners[LIST_PRICE] & {"spot"} | ({"on_demand"} if owners[LIST_PRICE] - {"spot"} else set())
    schema = dict.fromkeys(PRICE_COLUMNS, pl.String) | {"price": pl.Float64}
    kind = pl.col("kind").str.replace("_[13]y$", "")
    own = pl.DataFrame(rows, schema=schema, orient="row").with_columns(used_for_this_cost=kind.is_in(used))
    listed = facts("gpu_prices").filter(pl.col("gpu_model") == pl.lit(gpu_model, pl.String))
    told = listed.sort("term", "cloud", "region", "instance_type").select(
        kind="term", price="price_per_gpu_hour", unit=pl.format("{} per GPU h", "currency"),
        date=pl.col("date").cast(pl.String),
        source=pl.format("{} {} {}", "cloud", "region", "instance_type"),
        used_for_this_cost=pl.col("term").is_in(terms),
    )  # fmt: skip
    return pl.concat([own, told])


def _summed(costs: pl.DataFrame, name: str, column: str) -> pl.DataFrame:
    """``cost``, ``gpu_hours`` and ``energy_kwh`` by a column of the charge lines, in the order of the lines."""
    return costs.group_by(pl.col(column).alias(name), maintain_order=True).agg(
        cost=pl.col("EffectiveCost").sum(),
        gpu_hours=pl.col("PricingQuantity").sum().round(6),
        energy_kwh=pl.when(pl.col("x_EnergyKwh").count() > 0).then(pl.col("x_EnergyKwh").sum().round(6)),
    )


def _by_bucket_order(costs: pl.DataFrame) -> pl.DataFrame:
    """Charge lines in the order of the buckets of the ledger."""
    return costs.sort(pl.col("x_Bucket").cast(pl.Enum(GPU_TIME_BUCKETS)), maintain_order=True)


def _by_job(jobs: pl.DataFrame, tenants: pl.DataFrame, begin: datetime, end: datetime) -> pl.DataFrame:
    """What each tenant was charged, split over its jobs by the GPU-hours that they held in the window."""
    hours = jobs.filter(pl.col("start_time").is_not_null()).select(
        "job_id", pl.col("tenant").cast(pl.String),
        gpu_hours=pl.col("gpus") * LedgerWindow(begin, end).overlap_h("start_time", "end_time"),
    )  # fmt: skip
    parts = [
        allocated(cost, hours.filter((pl.col("tenant") == tenant) & (pl.col("gpu_hours") > 0)), by="job_id",
                  weight="gpu_hours").select(pl.lit(tenant).alias("tenant"), pl.all())
        for tenant, cost in tenants.select("tenant", "cost").iter_rows()
    ]  # fmt: skip
    return pl.concat(parts) if parts else pl.DataFrame()


def _unit_costs(
    priced: Money, total: Decimal, ends: pl.DataFrame, known: History
) -> tuple[dict[str, str | None], list[tuple[str, Decimal, str, Decimal, float]]]:
    """What a unit of work cost, idle included: the whole bill over what was delivered; and what was spent for nothing.

    Beside it the rows of :data:`UNIT_COLUMNS`, which say what is divided by what.

    Tokens bear what services and inference were charged; redone work is what attempts after the first one were.
    """
    jobs, window = known.trace.jobs, LedgerWindow(known.begin, known.end)
    ran = jobs.filter(pl.col("start_time") < known.end, pl.col("end_time").fill_null(known.end) > known.begin)
    done = ran.filter(pl.col("state").cast(pl.String) == "COMPLETED").height
    at_work = priced.costs.filter(pl.col("x_Bucket").is_in(["used", "no_telemetry"]))
    delivered = float(at_work["PricingQuantity"].sum())
    said = ends.filter(pl.col("state").cast(pl.String) != "UNKNOWN")
    lost = said.filter(pl.col("state").cast(pl.String).is_in(FAILED_JOB_STATES))["cost"].sum() or Decimal("0.00")
    held = pl.col("gpus") * window.overlap_h("start_time", "end_time")
    charged = float(ends["cost"].sum()) / max(float(ran.select(held.sum()).item() or 0.0), 1e-9)

    def cost_of(which: pl.Expr) -> float:
        return charged * float(ran.filter(which).select(held.sum()).item() or 0.0)

    units: dict[str, float] = {"run": ran.height, "successful_run": done, "gpu_hour_delivered": delivered}
    found = {name: str(to_cents(float(total) / count)) if count else None for name, count in units.items()}
    # Where no source says how jobs ended, what failed is not known: that is not zero. Nor is what was redone.
    found["work_that_failed"] = None if said.is_empty() and ends.height else str(lost)
    again = pl.col("attempt") > 1
    found["work_that_was_redone"] = str(to_cents(cost_of(again))) if ran.filter(again).height else None
    if (asked := known.trace.tables.get("requests")) is not None:
        there = asked.filter(pl.col("time").is_between(known.begin, known.end, closed="left"))
        tokens = float(there.select(pl.sum_horizontal("prompt_tokens", "generated_tokens").sum()).item() or 0)
        serving = cost_of(pl.col("job_class").is_in(SERVING))
        found["million_tokens"] = str(to_cents(serving / tokens * 1e6)) if tokens and serving else None
        units["million_tokens"] = tokens / 1e6
    rows = []
    for name in (name for name, value in found.items() if value is not None):
        cost, count, whole = Decimal(str(found[name])), units.get(name, 1.0), name in tuple(units)[:3]
        basis = "all installed GPU-hours, unallocated ones included" if whole else "allocated GPU-hours of these jobs"
        rows.append((UNITS[name], cost, basis, total if whole else to_cents(float(cost) * count), float(count)))
    return found, rows
