"""Cost, energy and carbon of a month by tenant, bucket, GPU model and job, as ``gpuplanner cost`` shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import polars as pl
from polars.dataframe.group_by import GroupBy

from gpuplanner.core.errors import VerificationError
from gpuplanner.core.output_column_headings import read_table_headings, replace_codes_by_text, text_of_code
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.units_and_number_formats import (
    GRAMS_PER_KILOGRAM,
    UNALLOCATED_TEAM,
    money_text,
    period_text,
    split_amount,
)
from gpuplanner.core.units_and_number_formats import round_money as to_cents
from gpuplanner.cost.cost_over_time import spread_cost, tabulate_teams_over_time
from gpuplanner.cost.period_costs import RATE_NOT_SET, Money, load_price_book, money
from gpuplanner.cost.price_book import OWNED_LOT_KEYS
from gpuplanner.cost.showback import BILL, CENTS_DTYPE, INVOICER_NAME, LIST_PRICE, OWN_RATE, split_cost
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice
from gpuplanner.ingest.bills.bill_summary import add_gpu_hours
from gpuplanner.usage.allocated_hours import FAILED_JOB_STATES, allocated_by_state
from gpuplanner.usage.job_classes import classify_jobs
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import History, history
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import LedgerWindow, jobs_with_gpus, match_gpu_models

MAX_BILL_DIFFERENCE_SHARE = 0.01
"""Largest difference between the GPU-hours of a bill and the installed ones, as a share of the installed [0-1]."""
UNIT_COST_LABELS = read_table_headings("unit costs")
"""Labels of the unit costs (per job, GPU-hour, tokens), then of the costs of failed and repeated work, by JSON key."""
UNIT_COST_COLUMNS: dict[str, Any] = {
    "name": pl.String, "cost": CENTS_DTYPE, "basis": pl.String, "total_cost": CENTS_DTYPE, "number_of_units": pl.Float64
}  # fmt: skip
"""Columns of the table of unit costs: ``cost`` is the ``total_cost`` of its ``basis`` over ``number_of_units``."""
BASIS_PHRASES = {
    LIST_PRICE: " at list price", OWN_RATE: " at your rate", BILL: " at the effective (amortized) cost of the bill"
}  # fmt: skip
"""Phrase that follows an amount, by the basis of the cost."""
COST_TABLE_TITLES = {
    "tenant": "Cost by team", "bucket": "Cost by bucket of GPU-hours", "end": "Cost by end state of jobs",
    "ownership": "Cost by ownership", "gpu_model": "Cost by GPU model", "job": "Cost by job",
    "user": "Cost by user", "partition": "Cost by partition", "project": "Cost by project",
    "tier": "Cost by tier", "job_class": "Cost by job class",
}  # fmt: skip
"""Titles of the cost tables on page, terminal and workbook, by the column that they group by."""
JOB_COST_GROUPS = ("user", "partition", "project", "tier", "job_class")
"""Columns of jobs by which the cost of teams is split; unallocated GPU-hours stay a line of their own."""
NO_GROUP_LABEL = "not stated"
"""Group of jobs whose source states none, and of GPU-hours reserved for a team that ran no job."""
PAGE_COST_TABLES = ("tenant", "bucket", "end")
"""Columns that group the cost tables of the page and of every workbook."""
SERVING_JOB_CLASSES = ("service", "inference")
"""Job classes of inference services, whose cost is divided by tokens."""
PRICE_COLUMNS: dict[str, Any] = {
    "kind": pl.String, "price": pl.Float64, "unit": pl.String, "date": pl.String, "source": pl.String,
    "used_for_this_cost": pl.Boolean,
}  # fmt: skip
"""Columns of the table of prices of a GPU model, see :func:`price_rows`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CostReview(Money):
    """Cost, energy and carbon of a month; ``total`` is None if no GPU has a price.

    - ``scenario``: Month, prices and time zone.
    - ``period``: First and last instant of the month, ISO 8601.
    - ``by_tenant``, ``by_ownership``, ``by_bucket``, ``by_gpu_model``: Cost by column; each sums to the total.
    - ``by_end``, ``by_job``: Cost of the tenants by end state of their job attempts, and by job.
    - ``unit_costs``: Cost of a unit of work by JSON key, as text [currency].
    - ``units``: The same with total cost and number of units, columns :data:`UNIT_COST_COLUMNS`.
    - ``job_history``: Jobs of the month.
    """

    scenario: Scenario
    period: tuple[str, str]
    total: Decimal | None
    currency: str
    by_tenant: pl.DataFrame
    by_ownership: pl.DataFrame
    by_bucket: pl.DataFrame
    by_gpu_model: pl.DataFrame
    by_end: pl.DataFrame
    by_job: pl.DataFrame
    unit_costs: dict[str, str | None]
    units: pl.DataFrame
    job_history: History

    @property
    def carbon_at_yearly_mean_kg(self) -> float | None:
        """Location-based carbon at the yearly mean factor of the region [kg CO2e]."""
        grams = None if self.energy is None else self.energy.value * self.carbon.gco2e_per_kwh
        return None if grams is None else round(grams / GRAMS_PER_KILOGRAM, 6)

    @cached_property
    def by_job_group(self) -> dict[str, pl.DataFrame]:
        """Cost by each of :data:`JOB_COST_GROUPS`, and the unallocated GPU-hours; each table sums to the total."""
        return _cost_by_job_group(self.job_history, self.costs)

    def spread_over_time(self, every: str) -> pl.DataFrame:
        """Cost by team and month or week, see :func:`gpuplanner.cost.cost_over_time.spread_cost`; no row unpriced."""
        table = spread_cost(self.costs, scenario_ledger(self.scenario), ["team", every], tz=self.scenario.tz)
        return table.filter(self.total is not None)

    def by_team_over_time(self, every: str) -> pl.DataFrame:
        """Cost by team with a column for each week or month, to the cent; see :func:`tabulate_teams_over_time`."""
        return tabulate_teams_over_time(self.costs, self.spread_over_time(every), every, self.currency)

    @property
    def sums(self) -> dict[str, str]:
        """Columns of cost tables that sum to a total, with their names in files, which have the currency."""
        return {"cost": f"cost_{self.currency.lower()}", "gpu_hours": "gpu_hours", "energy_kwh": "energy_kwh"}

    def table_by(self, by: str) -> pl.DataFrame:
        """Table of the cost by a column, with codes: of tenant, of :data:`JOB_COST_GROUPS`, job and others."""
        table: pl.DataFrame = self.by_job_group[by] if by in JOB_COST_GROUPS else getattr(self, f"by_{by}")
        return table

    @property
    def price_basis(self) -> str:
        """Phrase for the basis of the amounts: list price, own rate or bill."""
        return price_basis_phrase(self.costs)

    @property
    def hourly_cost(self) -> float:
        """Mean cost of an installed GPU-hour [currency/GPU h]."""
        return 0.0 if self.price is None else self.price.value

    @property
    def rate_text(self) -> str:
        """Mean cost of an installed GPU-hour and its components, which sum to it.

        It has as many decimals as its product with the GPU-hours needs, which is the total cost to the cent.
        """
        decimals = max(len(f"{self.costs['PricingQuantity'].sum():.0f}") + 2, 4)
        rate = to_cents(self.hourly_cost, decimals)
        amounts = zip(self.rate_parts, split_amount(rate, [*self.rate_parts.values()]), strict=True)
        parts = ", ".join(f"{text_of_code(name)} {hourly_price_text(part, decimals)}" for name, part in amounts if part)
        text = (
            f"{hourly_price_text(rate, decimals)} {self.currency} per installed GPU-hour{': ' if parts else ''}{parts}"
        )
        if self.price is None or BASIS_PHRASES[LIST_PRICE] not in self.price_basis:
            return text
        is_of_period = self.period[0][:10] <= self.price.date[-10:] <= self.period[1][:10]
        return f"{text}; list price of {self.price.date}{'' if is_of_period else ', not of this period'}"

    @property
    def total_text(self) -> str:
        """Sentence with the total cost, its period, basis and rate."""
        amount = f"{money_text(self.total or Decimal(), self.currency)} {self.currency}{self.price_basis}"
        hours = float(self.costs["PricingQuantity"].sum())
        unset = "; your rate is not set" if any(text.startswith(RATE_NOT_SET) for text in self.missing) else ""
        return (
            f"Cost of {hours:,.0f} installed GPU-hours, {period_text(*self.period)}: {amount} ({self.rate_text}{unset})"
        )

    @property
    def partial_month_text(self) -> str:
        """Sentence on a billing period, in calendar months, that is observed in part; empty otherwise."""
        kinds = ("Charge", "Billing")
        spans = ((pl.col(f"{kind}PeriodEnd") - pl.col(f"{kind}PeriodStart")).max().alias(kind) for kind in kinds)
        observed_h, month_h = self.costs.select(spans).select(pl.all().dt.total_hours()).row(0)
        text = f"The month is observed in part, {observed_h} of {month_h} h: costs are of these hours alone"
        return text if observed_h != month_h else ""

    @property
    def unallocated_text(self) -> str:
        """Sentence that splits the cost of unallocated GPUs by ledger bucket; empty if no GPU-hour is unallocated."""
        sums = _sum_costs_by(_sort_by_bucket(self.costs.filter(SubAccountId=UNALLOCATED_TEAM)), "bucket", "x_Bucket")
        label_costs = ((text_of_code(row[0]).removeprefix("unallocated, "), row[1]) for row in sums.iter_rows())
        parts = " + ".join(f"{name} {money_text(cost, self.currency)}" for name, cost in label_costs)
        amount = f"{money_text(Decimal(str(sums['cost'].sum())), self.currency)} {self.currency}"
        return f"Unallocated {amount} ({sums['gpu_hours'].sum():,.0f} GPU-hours) = {parts}." if parts else ""

    def breakdown(self, by: str) -> pl.DataFrame:
        """Table of the cost by a column, with labels for codes, the share of each row and a row ``Total``.

        Parameters
        ----------
        by : str
            Name after ``by_`` of a cost table, such as tenant, user or job; jobs get no share and no total.
        """
        table = self.table_by(by)
        if by == "job" or table.is_empty():
            return table
        total = table.select(pl.lit("Total").alias(table.columns[0]), pl.selectors.numeric().sum())
        if by in JOB_COST_GROUPS:
            table = table.with_columns(pl.col(by).replace(UNALLOCATED_TEAM, text_of_code(UNALLOCATED_TEAM)))
        rows = pl.concat([replace_codes_by_text(table), total.select(table.columns)], how="vertical_relaxed")
        cost = pl.col("cost").cast(pl.Float64)
        return rows.with_columns(share=(cost / cost.last()).fill_nan(None))

    @property
    def unit_cost_texts(self) -> dict[str, str]:
        """Known costs of a unit of work, then of unsuccessful and repeated work, by label, with their currency."""
        costs = dict(self.units.select("name", "cost").iter_rows()) | self.work_costs
        return {label: f"{money_text(cost, self.currency)} {self.currency}" for label, cost in costs.items()}

    @property
    def yearly_mean_carbon_text(self) -> str:
        """Location-based carbon at the yearly mean of the grid; empty where hourly factors do not change it."""
        location, yearly = self.carbon_kg["location"], self.carbon_at_yearly_mean_kg
        is_same = location is None or yearly is None or round(location.value) == round(yearly)
        return "" if is_same else f"{yearly:,.0f} kg at the yearly mean"

    @property
    def work_costs(self) -> dict[str, Decimal]:
        """Known costs of unsuccessful and of repeated work, by label: parts of the total, not costs of a unit."""
        costs = ((label, self.unit_costs.get(name)) for name, label in UNIT_COST_LABELS.items())
        return {label: Decimal(cost) for label, cost in costs if cost is not None and not label.startswith("cost per")}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of ``cost --json``; amounts of money are text, to the cent."""
        tables = ("by_tenant", "by_ownership", "by_bucket", "by_gpu_model", "by_end")
        return {
            "name": self.scenario.name,
            "period": {"from": self.period[0], "to": self.period[1]},
            "total": self.total,
            "currency": self.currency,
            "price_basis": self.price_basis.strip(),
            **{name: getattr(self, name).to_dicts() for name in tables},
            **{f"by_{name}": table.to_dicts() for name, table in self.by_job_group.items()},
            **{f"by_team_and_{every}": self.spread_over_time(every).to_dicts() for every in ("month", "week")},
            "unit_costs": self.unit_costs,
            "energy_kwh": None if self.energy is None else self.energy.value,
            "energy_range_kwh": self.energy,
            "energy_by_state": self.states.select("state", "gpu_hours", "^(energy|counted)_.*$").to_dicts(),
            "carbon_kg": self.carbon_kg,
            "carbon_at_yearly_mean_kg": self.carbon_at_yearly_mean_kg,
            "price": None if self.price is None else vars(self.price) | {"components": self.rate_parts},
            "missing": list(self.missing),
        }


def cost_review(scenario: Scenario, charges: pl.DataFrame | None = None) -> CostReview:
    """Review cost, energy and carbon of the month of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Month, prices and fleet.
    charges : polars.DataFrame, optional
        Charge lines of a bill, whose total is then split instead of the price of the GPUs.

    Returns
    -------
    CostReview
        Totals and tables.

    Raises
    ------
    VerificationError
        If the bill is for other GPU-hours than the installed ones, or has charge lines that gpuplanner exported.

    Examples
    --------
    >>> found = cost_review(Scenario(month="2026-02", price_per_gpu_hour=2.0))
    >>> str(found.total), found.by_tenant["tenant"][-1], found.by_tenant["cost"].sum() == found.total
    ('86016.00', '__unallocated__', True)
    """
    job_history, period_money = history(scenario), money(scenario)
    if charges is not None:
        costs = _apply_bill(period_money.costs, charges, scenario.currency)
        rate = float(costs["EffectiveCost"].sum()) / float(costs["PricingQuantity"].sum())
        price = GpuHourPrice(rate, rate, rate, scenario.currency, BILL, job_history.end.date().isoformat())
        missing = tuple(text for text in period_money.missing if not text.startswith(RATE_NOT_SET))
        period_money = replace(period_money, costs=costs, price=price, missing=missing, rate_parts={}, used_rows=())
    costs = period_money.costs
    total = Decimal(str(costs["EffectiveCost"].sum())) if costs.height else None
    by_tenant = _sum_costs_by(costs, "tenant", "SubAccountName")
    tenant_costs = by_tenant.filter(pl.col("tenant") != UNALLOCATED_TEAM)
    cost_of_tenants = Decimal(str(tenant_costs["cost"].sum() or 0))
    attempts = allocated_by_state(job_history.trace.jobs, start=job_history.begin, end=job_history.end)
    attempts = attempts.filter(pl.col("gpu_hours") > 0, total is not None)
    by_end = split_cost(cost_of_tenants, attempts, by="state", weight="gpu_hours")
    unit_costs, units = ({}, []) if total is None else _unit_costs(period_money, total, by_end, job_history)
    return CostReview(
        **vars(period_money),
        scenario=scenario,
        period=(job_history.begin.isoformat(), job_history.end.isoformat()),
        total=total,
        currency=scenario.currency,
        by_tenant=by_tenant,
        by_ownership=_sum_costs_by(costs, "ownership", "x_Ownership"),
        by_bucket=_sum_costs_by(_sort_by_bucket(costs), "bucket", "x_Bucket"),
        by_gpu_model=_sum_costs_by(costs, "gpu_model", "x_GpuModel"),
        by_end=by_end.cast({"state": pl.String}),
        by_job=_cost_by_job(job_history, tenant_costs) if total is not None else pl.DataFrame(),
        unit_costs=unit_costs,
        units=pl.DataFrame(units, schema=UNIT_COST_COLUMNS, orient="row"),
        job_history=job_history,
    )


def _apply_bill(costs: pl.DataFrame, charges: pl.DataFrame, currency: str) -> pl.DataFrame:
    """Replace the costs of charge lines by shares of a bill's effective and billed cost, in proportion to those costs.

    Raises :class:`VerificationError` if the GPU-hours of the bill are not those installed, or if it is no invoice but
    charge lines of this package.

    Parameters
    ----------
    costs : polars.DataFrame
        Charge lines of the installed GPUs, table ``schemas.Costs``.
    charges : polars.DataFrame
        Charge lines of the bill.
    currency : str
        Lines of the bill in other currencies are ignored.
    """
    bill_lines = add_gpu_hours(charges.filter(BillingCurrency=currency))
    if (bill_lines["ProviderName"] == INVOICER_NAME).any():
        got = f"charge lines that cost --focus wrote (ProviderName {INVOICER_NAME!r})"
        todo = "Import the bill of the provider: gpuplanner ingest focus FILES -o BILL."
        raise VerificationError("bill", "the charge lines of an invoice", got, todo)
    installed, billed = float(costs["PricingQuantity"].sum()), float(bill_lines["gpu_hours"].sum())
    if costs.is_empty() or abs(billed - installed) > MAX_BILL_DIFFERENCE_SHARE * installed:
        line_name = pl.coalesce("x_InstanceType", "ChargeDescription", "ServiceName")
        kinds = bill_lines.group_by(line_name.alias("line"), maintain_order=True).agg(pl.col("EffectiveCost").sum())
        largest = kinds.sort(pl.col("EffectiveCost").abs(), "line", descending=[True, False]).head(3)
        largest_costs = largest.select("EffectiveCost", "line").iter_rows()
        line_texts = [f"{amount:.2f} {currency} {name}" for amount, name in largest_costs]
        lines_text = "; ".join(line_texts) or "none"
        got = f"{billed:,.1f} GPU-hours ({_months_text(bill_lines)}); its largest lines: {lines_text}"
        todo = "Give the bill of the same GPUs and the same period, in the currency of the scenario."
        expected = f"a bill of the {installed:,.1f} installed GPU-hours ({_months_text(costs)})"
        raise VerificationError("bill", expected, got, todo)
    weights = costs["EffectiveCost"].cast(pl.Float64).to_list()
    effective_cost, billed_cost = (
        pl.Series(split_amount(to_cents(float(bill_lines[column].sum())), weights), dtype=CENTS_DTYPE)
        for column in ("EffectiveCost", "BilledCost")
    )
    parts = {"ContractedCost": effective_cost, "EffectiveCost": effective_cost, "BilledCost": billed_cost}
    return costs.with_columns(**parts, x_PriceBasis=pl.lit(BILL))


def _months_text(lines: pl.DataFrame) -> str:
    """Name the first and last month in which charge lines begin."""
    months = lines["ChargePeriodStart"].dt.strftime("%Y-%m")
    return " to ".join(dict.fromkeys((str(months.min()), str(months.max())))) if len(months) else "no lines"


def price_basis_phrase(costs: pl.DataFrame) -> str:
    """Phrase for the basis of the amounts of charge lines; empty without lines.

    Examples
    --------
    >>> price_basis_phrase(pl.DataFrame({"x_PriceBasis": ["own rate", "list price"]}))
    ' at list price and at your rate'
    """
    bases = costs["x_PriceBasis"].unique().to_list()
    return " and".join(words for basis, words in BASIS_PHRASES.items() if basis in bases)


def price_text(price: GpuHourPrice) -> str:
    """Text of a price per GPU-hour, with the lowest and highest offer if it is the median of several.

    Examples
    --------
    >>> price_text(GpuHourPrice(12.29, 6.88, 15.977, "USD", "list", "2026-08-03"))
    '12.29 USD per GPU-hour (offers from 6.88 to 15.977)'
    """
    value, low, high = (hourly_price_text(amount) for amount in (price.value, price.low, price.high))
    offers = f" (offers from {low} to {high})" if low != high else ""
    return f"{value} {price.currency} per GPU-hour{offers}"


def hourly_price_text(rate: float | Decimal, decimals: int = 4) -> str:
    """Format a price per GPU-hour with two to so many decimals, since it is multiplied by many hours.

    Examples
    --------
    >>> hourly_price_text(12.29), hourly_price_text(15.977)
    ('12.29', '15.977')
    """
    figure = f"{rate:,.{decimals}f}"
    return figure[: 2 - decimals] + figure[2 - decimals :].rstrip("0")


def price_rows(review: CostReview) -> pl.DataFrame:
    """Tabulate all prices of the GPU model, those of the price book first.

    The columns are :data:`PRICE_COLUMNS`; ``used_for_this_cost``: whether the review uses the price.
    """
    book, gpu_model, end = load_price_book(review.scenario), review.job_history.fleet.name, review.job_history.end
    at_list = set(review.costs.filter(x_PriceBasis=LIST_PRICE)["x_Ownership"])
    # List prices and the assumed price of electricity are in USD.
    has_usd = at_list or ("electricity" in review.rate_parts and not book.electricity)
    currencies = {row.currency for row in review.used_rows} | ({"USD"} if has_usd else set())
    exchanges = (book.find_exchange_rate(code, review.currency, end) for code in currencies - {review.currency})
    used = {*review.used_rows, *exchanges}
    rented = (row for row in book.prices if row.gpu_model == gpu_model)
    rows: list[tuple[Any, ...]]
    rows = [(row.kind, row.per_gpu_hour, f"{row.currency} per GPU h", row.begin, row.source, row) for row in rented]
    for lot in book.lots_of(gpu_model):
        lot_text = ", ".join(f"{name} {getattr(lot, name):g}" for name in OWNED_LOT_KEYS[5:10])
        rows.append(("owned", lot.capex, f"{lot.currency} per GPU", lot.bought, f"{lot.source}: {lot_text}", lot))
    power = book.electricity
    rows += [("electricity", row.per_kwh, f"{row.currency} per kWh", row.begin, row.source, row) for row in power]
    rates = ((f"{row.to_currency} per {row.from_currency}", row) for row in book.rates)
    rows += [("exchange", row.rate, unit, row.date, row.source, row) for unit, row in rates]
    terms = at_list & {"spot"} | ({"on_demand"} if at_list - {"spot"} else set())
    own_rows = pl.DataFrame([(*row[:-1], row[-1] in used) for row in rows], schema=PRICE_COLUMNS, orient="row")
    listed = facts("gpu_prices").filter(pl.col("gpu_model") == pl.lit(gpu_model, pl.String))
    list_rows = listed.sort("term", "cloud", "region", "instance_type").select(
        kind="term", price="price_per_gpu_hour", unit=pl.format("{} per GPU h", "currency"),
        date=pl.col("date").cast(pl.String),
        source=pl.format("{} {} {}", "cloud", "region", "instance_type"),
        used_for_this_cost=pl.col("term").is_in(terms),
    )  # fmt: skip
    return pl.concat([own_rows, list_rows])


def _sum_costs_by(costs: pl.DataFrame, name: str, column: str) -> pl.DataFrame:
    """Sum ``cost``, ``gpu_hours`` and ``energy_kwh`` of charge lines by a column, called ``name`` in the result."""
    return _sum_costs(costs.group_by(pl.col(column).alias(name), maintain_order=True))


def _sum_costs(groups: GroupBy) -> pl.DataFrame:
    """Sum ``cost``, ``gpu_hours`` and ``energy_kwh`` [kWh] of groups of charge lines; unknown energy stays null."""
    return groups.agg(
        cost=pl.col("EffectiveCost").sum(),
        gpu_hours=pl.col("PricingQuantity").sum().round(6),
        energy_kwh=pl.when(pl.col("x_EnergyKwh").count() > 0).then(pl.col("x_EnergyKwh").sum().round(6)),
    )


def _sort_by_bucket(costs: pl.DataFrame) -> pl.DataFrame:
    """Sort charge lines by ledger bucket, in the order of :data:`GPU_TIME_BUCKETS`."""
    return costs.sort(pl.col("x_Bucket").cast(pl.Enum(GPU_TIME_BUCKETS)), maintain_order=True)


def _cost_by_job_group(job_history: History, costs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Split the charge lines over the groups of :data:`JOB_COST_GROUPS`, so that each table sums to the total cost.

    The lines of a team and GPU model are split by the allocated GPU-hours of its jobs on that model in the period.

    Parameters
    ----------
    job_history : History
        Jobs and period.
    costs : polars.DataFrame
        Charge lines, table ``schemas.Costs``.

    Returns
    -------
    dict of str to polars.DataFrame
        Table by group, largest cost first, unallocated GPU-hours last.
    """
    trace, window = job_history.trace, LedgerWindow(job_history.begin, job_history.end)
    jobs = trace.jobs.with_columns(job_class=classify_jobs(trace.jobs, samples=trace.samples)["job_class"])
    jobs, _ = match_gpu_models(jobs_with_gpus(jobs, window), job_history.fleet.installed.inventory)
    groups = {by: pl.col(by) if by in jobs.columns else pl.lit(None) for by in JOB_COST_GROUPS}
    jobs = jobs.filter(pl.col("start_time").is_not_null()).select(
        SubAccountName=pl.col("tenant").cast(pl.String),
        x_GpuModel="board",
        allocated=pl.col("gpus") * window.overlap_h("start_time", "end_time"),
        **{by: group.cast(pl.String).fill_null(NO_GROUP_LABEL) for by, group in groups.items()},
    )
    keys, tables = ["SubAccountName", "x_GpuModel"], {}
    line_sums = _sum_costs(costs.group_by(keys, maintain_order=True))
    for by in JOB_COST_GROUPS:
        hours = jobs.group_by(*keys, by, maintain_order=True).agg(pl.col("allocated").sum())
        parts = line_sums.join(hours.filter(pl.col("allocated") > 0).sort(by), on=keys, how="left", nulls_equal=True,
                               maintain_order="left_right")  # fmt: skip
        share = (pl.col("allocated") / pl.col("allocated").sum().over(keys)).fill_null(1.0)
        is_unallocated = pl.col("SubAccountName") == UNALLOCATED_TEAM
        group = pl.when(is_unallocated).then(pl.lit(UNALLOCATED_TEAM)).otherwise(pl.col(by).fill_null(NO_GROUP_LABEL))
        parts = parts.with_columns(group.alias(by), pl.col("gpu_hours", "energy_kwh") * share, share=share)
        lines = parts.partition_by(keys, maintain_order=True)
        cents = [cost for line in lines for cost in split_amount(line["cost"][0], line["share"].to_list())]
        parts = parts.with_columns(EffectiveCost=pl.Series(cents, dtype=CENTS_DTYPE)).rename(
            {"gpu_hours": "PricingQuantity", "energy_kwh": "x_EnergyKwh"}
        )
        sums = _sum_costs(parts.group_by(by, maintain_order=True))
        tables[by] = sums.sort(pl.col(by) == UNALLOCATED_TEAM, "cost", by, descending=[False, True, False])
    return tables


def _cost_by_job(job_history: History, tenant_costs: pl.DataFrame) -> pl.DataFrame:
    """Split the cost of each tenant over its jobs by their allocated GPU-hours in the period."""
    overlap_h = LedgerWindow(job_history.begin, job_history.end).overlap_h("start_time", "end_time")
    hours = job_history.trace.jobs.filter(pl.col("start_time").is_not_null()).select(
        "job_id", pl.col("tenant").cast(pl.String), gpu_hours=pl.col("gpus") * overlap_h
    )  # fmt: skip
    parts = [
        split_cost(cost, hours.filter((pl.col("tenant") == tenant) & (pl.col("gpu_hours") > 0)), by="job_id",
                  weight="gpu_hours").select(pl.lit(tenant).alias("tenant"), pl.all())
        for tenant, cost in tenant_costs.select("tenant", "cost").iter_rows()
    ]  # fmt: skip
    return pl.concat(parts) if parts else pl.DataFrame()


def _unit_costs(
    period_money: Money, total: Decimal, cost_by_end: pl.DataFrame, job_history: History
) -> tuple[dict[str, str | None], list[tuple[str, Decimal, str, Decimal, float]]]:
    """Cost of each unit of work, and cost of failed and of repeated work.

    The total, idle GPUs included, is divided by the delivered units; tokens bear the cost of inference services.

    Parameters
    ----------
    period_money : Money
        Charge lines of the period.
    total : decimal.Decimal
        Cost of the installed GPUs. [currency]
    cost_by_end : polars.DataFrame
        Cost of the tenants by end state.
    job_history : History
        Jobs and requests of the period.

    Returns
    -------
    dict of str to str or None
        Costs by JSON key, as text [currency]; None where the units are not known.
    list of tuple
        Rows of :data:`UNIT_COST_COLUMNS`: amount, its basis and the number of units.
    """
    begin, end = job_history.begin, job_history.end
    jobs, window = job_history.trace.jobs, LedgerWindow(begin, end)
    # As in all hours and waits, jobs on an unknown number of GPUs do not count.
    run_jobs = jobs.filter(pl.col("gpus") > 0, pl.col("start_time") < end, pl.col("end_time").fill_null(end) > begin)
    completed_jobs = run_jobs.filter(pl.col("state").cast(pl.String) == "COMPLETED").height
    at_work = period_money.costs.filter(pl.col("x_Bucket").is_in(["used", "no_telemetry"]))
    delivered = float(at_work["PricingQuantity"].sum())
    known_ends = cost_by_end.filter(pl.col("state").cast(pl.String) != "UNKNOWN")
    is_lost = pl.col("state").cast(pl.String).is_in(FAILED_JOB_STATES)
    lost_cost = known_ends.filter(is_lost)["cost"].sum() or Decimal("0.00")
    allocated_hours = pl.col("gpus") * window.overlap_h("start_time", "end_time")
    all_hours = float(run_jobs.select(allocated_hours.sum()).item() or 0.0)
    hourly_charge = float(cost_by_end["cost"].sum()) / max(all_hours, 1e-9)

    # Cost of the run jobs that a filter selects.
    def cost_of(job_filter: pl.Expr) -> float:
        return hourly_charge * float(run_jobs.filter(job_filter).select(allocated_hours.sum()).item() or 0.0)

    units: dict[str, float] = {
        "run": run_jobs.height,
        "successful_run": completed_jobs,
        "gpu_hour_delivered": delivered,
    }
    unit_costs = {name: str(to_cents(float(total) / count)) if count else None for name, count in units.items()}
    # If no source reports end states, the cost of failed work is unknown, not zero; so is that of repeated work.
    unit_costs["work_that_failed"] = None if known_ends.is_empty() and cost_by_end.height else str(lost_cost)
    is_repeat = pl.col("attempt") > 1
    has_repeats = run_jobs.filter(is_repeat).height
    unit_costs["work_that_was_redone"] = str(to_cents(cost_of(is_repeat))) if has_repeats else None
    if (requests := job_history.trace.tables.get("requests")) is not None:
        period_requests = requests.filter(pl.col("time").is_between(begin, end, closed="left"))
        tokens = float(period_requests.select(pl.sum_horizontal("prompt_tokens", "generated_tokens").sum()).item() or 0)
        serving_cost = cost_of(pl.col("job_class").is_in(SERVING_JOB_CLASSES))
        unit_costs["million_tokens"] = str(to_cents(serving_cost / tokens * 1e6)) if tokens and serving_cost else None
        units["million_tokens"] = tokens / 1e6
    rows = []
    for name in (name for name in units if unit_costs[name] is not None):
        cost, count = Decimal(str(unit_costs[name])), units[name]
        basis, amount = "all installed GPU-hours, unallocated ones included", total
        if name == "million_tokens":
            basis, amount = "allocated GPU-hours of these jobs", to_cents(float(cost) * count)
        has_use = name != "gpu_hour_delivered" or "used" in at_work["x_Bucket"]
        label = UNIT_COST_LABELS[name] if has_use else "cost per allocated GPU-hour (no telemetry)"
        rows.append((label, cost, basis, amount, float(count)))
    return unit_costs, rows
