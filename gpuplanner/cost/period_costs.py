"""Cost, energy and carbon of a period, and the price of idle GPUs.

An idle GPU that is owned costs its power only: it stays powered on and keeps its MIG layout. A GPU that is rented by
the hour costs its full price until it is released. Where an actuator stops idle nodes, they start again without a
layout, whoever owns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import GeometryError, GpuPlannerError, ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schema_checks import add_absent_columns, make_empty_table
from gpuplanner.core.schemas import Costs
from gpuplanner.core.setting_rules_and_controls import OWNERSHIP_RENTED
from gpuplanner.core.stage_cache_and_data_folders import stage
from gpuplanner.core.units_and_number_formats import gpu_figure_text, gpus_text, kwh_from_watt_hours, percent_text
from gpuplanner.cost.energy_and_carbon import (
    FOOTPRINT_AMOUNTS,
    RANGE_ENDS,
    Facility,
    RangedAmount,
    footprint,
    measured_energy,
    read_carbon_file,
    state_watts,
    sum_amount,
    sum_by_state,
)
from gpuplanner.cost.price_book import ON_DEMAND, OWNED, SPOT, OwnedLot, PowerRow, PriceBook, read_price_book
from gpuplanner.cost.showback import LIST_PRICE, NOT_STATED, Rate, find_charged_price, showback
from gpuplanner.hardware.catalog import find_parameter, has_list_price, resolve_gpu_model
from gpuplanner.hardware.power_carbon_and_prices import (
    GpuHourPrice,
    GpuPowerModel,
    GridCarbonIntensity,
    find_carbon_factor,
    find_gpu_hour_price,
    make_power_model,
)
from gpuplanner.ingest.dataset import SourceFacts
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import History, history
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import LedgerWindow
from gpuplanner.usage.study_fleet import PlannedFleet

CHARGE_LINE_KEYS = ("tenant", "gpu_model", "bucket", "ownership")
"""Columns by which GPU-hours are grouped to charge lines."""
RATE_NOT_SET = "Your rate per GPU-hour is not set"
"""Beginning of the sentence that list prices replace missing own rates."""
_UTC_TIME_DTYPE = pl.Datetime("us", "UTC")
"""Polars type of times: microseconds, UTC."""
_OPTIONAL_NODE_COLUMNS: dict[str, pl.DataType] = {
    "gpu_model": pl.String(), "ownership": pl.String(), "installed": _UTC_TIME_DTYPE, "retired": _UTC_TIME_DTYPE
}  # fmt: skip
"""Columns that an inventory of nodes may lack, with their types."""
Period = tuple[datetime, datetime]
"""First instant of a period, and the first one after it, UTC."""
GpuModels = Mapping[str | None, str | None]
"""Name of a GPU model in the catalogue by its label in the ledger; None where it is not in the catalogue."""


@dataclass(frozen=True, eq=False)
class Money:
    """Costs, energy and carbon of a past period and their basis; None where they are not known.

    - ``price``: Mean price of a GPU-hour of the charge lines: times their GPU-hours it is their cost.
    - ``power``: Power model of the planned GPU model.
    - ``carbon``: Carbon intensity of the grid of the region.
    - ``pue``: Power usage effectiveness.
    - ``costs``: Charge lines, table ``schemas.Costs``.
    - ``states``: GPU-hours, energy and carbon by state of the GPU, each with its range.
    - ``kwh_per_gpu_hour``: Facility energy of a GPU-hour of the planned GPU model that is allocated (``busy``) or not
      (``idle``), as the energy of the period has it; a state without hours is absent [kWh per GPU-hour].
    - ``missing``: Sentences on missing prices and power ratings.
    - ``rate_parts``: Components of ``price``, if it has several, see
      :func:`gpuplanner.cost.showback.find_charged_price`.
    - ``used_rows``: Rows of the price book behind the cost, see :mod:`gpuplanner.cost.price_book`.
    """

    price: GpuHourPrice | None
    power: GpuPowerModel | None
    carbon: GridCarbonIntensity
    pue: float
    costs: pl.DataFrame
    states: pl.DataFrame
    kwh_per_gpu_hour: Mapping[str, RangedAmount] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    rate_parts: Mapping[str, float] = field(default_factory=dict)
    used_rows: tuple[Any, ...] = ()

    @property
    def energy(self) -> RangedAmount | None:
        """Facility energy [kWh]."""
        return sum_amount(self.states, "energy_kwh")

    @property
    def carbon_kg(self) -> dict[str, RangedAmount | None]:
        """Carbon by ``location``, ``market`` (both from hourly factors) and ``embodied`` [kg CO2e]."""
        return {name: sum_amount(self.states, f"{name}_kg") for name in ("location", "market", "embodied")}


@stage
def money(scenario: Scenario) -> Money:
    """Compute cost, energy and carbon of the month of a scenario, where price and power of the GPU models are known.

    A pool that the scenario names has its part of those of all pools, so that the pools sum to the whole.

    Parameters
    ----------
    scenario : Scenario
        Month, fleet, prices and carbon factors.

    Returns
    -------
    Money
        Charge lines and sums.
    """
    all_pools, fleet = scenario.but(pool=None), history(scenario).fleet
    job_history, ledger = history(all_pools), scenario_ledger(all_pools)
    gpu_models = gpu_models_of(job_history.fleet, ledger)
    ownership = ownership_shares(scenario, job_history, ledger)
    rates = {
        (label, kind): rate
        for label, kind in ownership.select("gpu_model", "ownership").iter_rows()
        if (rate := find_rate(scenario, job_history, gpu_models[label], kind)) is not None
    }
    models_with_power = {
        label: name if name is not None and _power_model(name) else None for label, name in gpu_models.items()
    }
    measured_power = _measure_power(job_history, models_with_power)
    rows = footprint(
        ledger, models_with_power, activity=mean_activity(all_pools), facility=Facility.from_catalog(scenario.pue),
        grid=carbon_by_hour(scenario, job_history, ledger["hour"]), measured=measured_power,
    )  # fmt: skip
    costs = make_empty_table(Costs)
    if rates:
        shares = rows.join(ownership, on="gpu_model", nulls_equal=True, maintain_order="left")
        parts = shares.with_columns(pl.col("gpu_hours", *FOOTPRINT_AMOUNTS) * pl.col("share"))
        parts = parts.select(*CHARGE_LINE_KEYS, "gpu_hours", *FOOTPRINT_AMOUNTS)
        costs = showback(parts, rates, start=job_history.begin, end=job_history.end)
        # Calendar months of the time zone: bills are by month, also where a month is observed in part.
        begin, end = (pl.col(f"ChargePeriod{side}").dt.convert_time_zone(scenario.tz) for side in ("Start", "End"))
        last_month = (end - timedelta(microseconds=1)).dt.truncate("1mo")
        months = {"BillingPeriodStart": begin.dt.truncate("1mo"), "BillingPeriodEnd": last_month.dt.offset_by("1mo")}
        costs = costs.with_columns(time.dt.convert_time_zone("UTC").alias(name) for name, time in months.items())
        if job_history.trace.source_facts.uncounted_gpu_hours:
            note = pl.when(x_Bucket="unallocated").then(pl.lit(" or on an unknown number of GPUs"))
            costs = costs.with_columns(pl.col("ChargeDescription") + note.otherwise(pl.lit("")))
    book_texts = [*_check_price_book_rows(scenario, gpu_models, rates, ledger)]
    if scenario.pool is not None:
        rows, ledger = fleet.hours_of(rows), fleet.hours_of(ledger)
        gpu_models = {label: gpu_models[label] for label in ledger["gpu_model"].unique().sort()}
        costs = costs.filter(pl.col("x_GpuModel").is_in([*gpu_models], nulls_equal=True))
        rates = {(label, kind): rate for (label, kind), rate in rates.items() if label in gpu_models}
    at_list = sorted({kind for (_, kind), rate in rates.items() if rate.basis == LIST_PRICE} & {"owned", "reserved"})
    states = sum_by_state(rows, measured_power)
    price, rate_parts = find_charged_price(costs, rates)
    return Money(
        price=price,
        power=find_power_model(fleet),
        carbon=find_carbon_factor(scenario.carbon_region),
        pue=find_pue(scenario),
        costs=costs,
        states=states,
        kwh_per_gpu_hour=sum_kwh_per_gpu_hour(rows, models_with_power, fleet.name),
        missing=(
            *_missing_texts(ledger, gpu_models, {label for label, _ in rates}, at_list),
            *book_texts,
            *filter(None, [uncounted_text(job_history.trace.source_facts)]),
        ),
        rate_parts=rate_parts,
        used_rows=tuple(row for rate in rates.values() for row in rate.rows),
    )


def uncounted_text(facts: SourceFacts) -> str:
    """Sentence on the GPU-hours of jobs that no team is charged for; empty without any.

    Examples
    --------
    >>> facts = SourceFacts(source="slurm", rows_in=2, rows_kept=2, rows_rejected=0, span_start=None, span_end=None,
    ...                     gpu_hours=90.0, unresolved_gpu_hours=10.0)
    >>> uncounted_text(facts)[:83]
    'Unallocated includes about 10 GPU-hours of jobs, 10 % of those allocated in the who'
    """
    hours = facts.uncounted_gpu_hours
    return "" if not hours else (
        f"Unallocated includes about {hours:,.0f} GPU-hours of jobs, {percent_text(hours / (facts.gpu_hours + hours))} "
        "of those allocated in the whole record: no team is charged for them, as their GPUs are contradictory or not "
        "recorded (estimated with one GPU a job)."
    )  # fmt: skip


def gpu_models_of(fleet: PlannedFleet, ledger: pl.DataFrame) -> GpuModels:
    """Map each GPU label of a ledger to a catalogue name, or None; in a what-if all labels to the planned model."""
    labels = ledger["gpu_model"].unique().sort().to_list()
    if fleet.chosen or fleet.pool is None:
        return dict.fromkeys(labels, fleet.name if fleet.in_catalogue else None)
    return {label: None if label is None else _catalog_name(label) for label in labels}


def ownership_shares(scenario: Scenario, job_history: History, ledger: pl.DataFrame) -> pl.DataFrame:
    """Share of the installed GPU-hours of each GPU model by ownership.

    Parameters
    ----------
    scenario : Scenario
        Its ownership, if stated, holds for all GPUs.
    job_history : History
        Inventory of the nodes and the period.
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.

    Returns
    -------
    polars.DataFrame
        ``gpu_model, ownership, share`` [0-1]; the shares of a GPU model sum to 1.
    """
    labels = ledger.select(pl.col("gpu_model").unique().sort())
    if scenario.ownership is not None:
        kind = ON_DEMAND if scenario.ownership == OWNERSHIP_RENTED else scenario.ownership
        return labels.with_columns(ownership=pl.lit(kind), share=pl.lit(1.0))
    hours = add_absent_columns(job_history.fleet.installed.inventory, _OPTIONAL_NODE_COLUMNS).select(
        pl.col("gpu_model").cast(pl.String),
        pl.col("ownership").cast(pl.String).fill_null(NOT_STATED),
        hours=pl.col("gpus") * LedgerWindow(job_history.begin, job_history.end).overlap_h("installed", "retired"),
    )
    parts = []
    for label in labels["gpu_model"]:
        label_hours = hours.filter(pl.col("gpu_model").str.to_lowercase() == label.lower()) if label else hours
        label_hours = (label_hours if label_hours["hours"].sum() > 0 else hours).filter(pl.col("hours") > 0)
        sums = label_hours.group_by("ownership", maintain_order=True).agg(share=pl.col("hours").sum()).sort("ownership")
        share = pl.col("share") / pl.col("share").sum()
        parts.append(sums.select(pl.lit(label, pl.String).alias("gpu_model"), "ownership", share))
    return pl.concat(parts)


def find_rate(
    scenario: Scenario, job_history: History, gpu_model: str | None, kind: str, *, period: Period | None = None
) -> Rate | None:
    """Find the rate of an installed GPU-hour: of the scenario, else of the price book, else of the catalogue.

    No list has the cost of owning a GPU: the list price is then the cost of renting it.

    Parameters
    ----------
    scenario : Scenario
        Own price, price book and currency.
    job_history : History
        Period of the rate.
    gpu_model : str, optional
        Name in the catalogue; None: unknown.
    kind : str
        Ownership, such as ``owned``, ``on_demand`` or ``spot``.
    period : tuple of datetime, optional
        Period for which no GPU is charged at the rate, so that rows of the price book need not cover it; None: the
        period of the history, which they must cover.

    Returns
    -------
    Rate or None
        The rate [currency per GPU-hour]; None without a price.
    """
    book, currency = replace(load_price_book(scenario), bridges_gaps=period is not None), scenario.currency
    if kind == NOT_STATED and scenario.price_per_gpu_hour <= 0 and (kinds := book.kinds_of(gpu_model)):
        name, rows = Path(str(scenario.price_book)).name, " and ".join(kinds)
        todo = "Add --set ownership=owned, reserved or rented, or give the scenario.yaml that start wrote."
        raise ScenarioError(name, f"the ownership of the {gpu_model} GPUs, to use its rows {rows}", "none stated", todo)
    list_price = _find_list_price(book, gpu_model, ON_DEMAND, currency, job_history.end)
    own_price = scenario.price_per_gpu_hour
    begin, end = period or (job_history.begin, job_history.end)
    if own_price > 0:
        rate = Rate(find_gpu_hour_price(gpu_model or "", own_price=own_price, currency=currency))
    elif gpu_model is not None and (book_rate := book.find_rate(gpu_model, kind, currency, begin, end)) is not None:
        rate = book_rate
        if kind == "owned" and not book.electricity:
            rate = replace(book_rate, per_kwh=find_price_per_kwh(scenario, job_history))
    else:
        price = _find_list_price(book, gpu_model, "spot", currency, job_history.end) if kind == "spot" else list_price
        if price is None and gpu_model is not None and has_list_price(gpu_model):
            find_gpu_hour_price(gpu_model, currency=currency)  # raises: no price in this currency
        if price is None:
            return None
        rate = Rate(price, basis=LIST_PRICE)
    return replace(rate, listed=None if list_price is None else list_price.value)


def find_price(scenario: Scenario, fleet: PlannedFleet, job_history: History | None = None) -> GpuHourPrice | None:
    """Find the price of a GPU-hour of the planned GPU model: of the scenario, else the price book, else the catalogue.

    Parameters
    ----------
    scenario : Scenario
        Own price, price book and currency.
    fleet : PlannedFleet
        Fleet with the planned GPU model.
    job_history : History, optional
        Period of the price; None: history of the scenario.

    Returns
    -------
    GpuHourPrice or None
        The price [currency per GPU-hour]; None without one.
    """
    gpu_model = fleet.name if fleet.in_catalogue else None
    job_history = job_history or history(scenario)
    rate = find_rate(scenario, job_history, gpu_model, ON_DEMAND, period=(job_history.begin, job_history.end))
    return None if rate is None else rate.price


def require_on_demand_rate(scenario: Scenario, job_history: History, purpose: str, period: Period) -> Rate:
    """Find the on-demand rate of the planned GPU model; without one raise ScenarioError that names `purpose`."""
    gpu_model = job_history.fleet.name if job_history.fleet.in_catalogue else None
    rate = find_rate(scenario, job_history, gpu_model, ON_DEMAND, period=period)
    if rate is None:
        todo = "Set your rate with --set price_per_gpu_hour=… or a price book."
        raise ScenarioError(purpose, "an on-demand price of the GPU model", "none", todo)
    return rate


def load_price_book(scenario: Scenario) -> PriceBook:
    """Read the price book of a scenario; an empty one if it names none."""
    return PriceBook() if scenario.price_book is None else read_price_book(scenario.price_book)


def find_price_per_kwh(scenario: Scenario, job_history: History, currency: str | None = None) -> float:
    """Find the price of electricity: of the scenario, else the price book, else the catalogue.

    Parameters
    ----------
    scenario : Scenario
        Own price, price book and currency.
    job_history : History
        Period of the price.
    currency : str, optional
        ISO 4217 code. [default: currency of the scenario]

    Returns
    -------
    float
        Price. [currency per kWh]
    """
    book, wanted_currency = load_price_book(scenario), currency or scenario.currency
    own_price = scenario.price_usd_per_kwh
    if own_price is None:
        book_price = book.mean_price_per_kwh(wanted_currency, job_history.begin, job_history.end)
        if book_price is not None:
            return book_price
    usd = find_parameter("electricity_usd_per_kwh").value if own_price is None else own_price
    return book.convert(usd, "USD", wanted_currency, job_history.end)


def _find_list_price(
    book: PriceBook, gpu_model: str | None, term: str, currency: str, time: datetime
) -> GpuHourPrice | None:
    """List price of a GPU model for a ``term`` (on_demand or spot); None without one, or without an exchange rate."""
    if gpu_model is None or not has_list_price(gpu_model, term=term):
        return None
    price = find_gpu_hour_price(gpu_model, term=term)
    try:
        prices = (price.value, price.low, price.high)
        value, low, high = (book.convert(amount, price.currency, currency, time) for amount in prices)
    except ScenarioError:
        return None
    return replace(price, value=value, low=low, high=high, currency=currency)


def estimate_energy(scenario: Scenario, *, busy_gpu_hours: float, idle_gpu_hours: float) -> RangedAmount | None:
    """Estimate the facility energy of allocated and unallocated GPU-hours of the planned GPU model.

    A GPU-hour takes as much as in the energy of the period, so that both agree on the same hours; a state that the
    period does not have takes the power of the model.

    Parameters
    ----------
    scenario : Scenario
        Fleet and PUE.
    busy_gpu_hours, idle_gpu_hours : float
        GPU-hours that are allocated to jobs, and powered-on ones that are not. [h]

    Returns
    -------
    RangedAmount or None
        Energy [kWh]; None if the power of the GPU model is not known.
    """
    job_history = history(scenario)
    if find_power_model(job_history.fleet) is None or job_history.fleet.name is None:
        return None
    watts = state_watts(job_history.fleet.name, mean_activity(scenario).get(""))
    facility, observed = Facility.from_catalog(scenario.pue), money(scenario).kwh_per_gpu_hour
    sides = dict.fromkeys(RANGE_ENDS.values(), 0.0)
    for state, gpu_hours in (("busy", busy_gpu_hours), ("idle", idle_gpu_hours)):
        for side in sides:
            modelled_kwh = kwh_from_watt_hours(getattr(watts[state], side)) * facility.factor(side)
            sides[side] += gpu_hours * getattr(observed.get(state), side, modelled_kwh)
    return RangedAmount(**sides)


def sum_kwh_per_gpu_hour(rows: pl.DataFrame, gpu_models: GpuModels, gpu_model: str | None) -> dict[str, RangedAmount]:
    """Divide the energy of a footprint by its GPU-hours, of those allocated to jobs and of the powered-on others.

    Parameters
    ----------
    rows : polars.DataFrame
        Table of :func:`footprint`.
    gpu_models : mapping
        Name in the catalogue by label of the ledger.
    gpu_model : str, optional
        Name of the GPU model whose hours count.

    Returns
    -------
    dict of str to RangedAmount
        ``busy`` and ``idle``; a state without hours is absent. [kWh per GPU-hour]
    """
    labels = [label for label, name in gpu_models.items() if name is not None and name == gpu_model]
    powered = rows.filter(pl.col("gpu_model").is_in(labels, nulls_equal=True), pl.col("state") != "off")
    is_allocated = pl.col("bucket").cast(pl.String).is_in(ALLOCATED_BUCKETS)
    states = powered.with_columns(state=pl.when(is_allocated).then(pl.lit("busy")).otherwise(pl.lit("idle")))
    sums = states.group_by("state", maintain_order=True).agg(
        pl.col("gpu_hours").sum(), *(pl.col(f"energy_kwh{side}").sum() for side in RANGE_ENDS)
    )
    return {
        row["state"]: RangedAmount(*(row[f"energy_kwh{side}"] / row["gpu_hours"] for side in RANGE_ENDS))
        for row in sums.filter(pl.col("gpu_hours") > 0).iter_rows(named=True)
    }


def find_pue(scenario: Scenario) -> float:
    """Power usage effectiveness of the scenario, else of the catalogue."""
    return scenario.pue or find_parameter("pue").value


def find_power_model(fleet: PlannedFleet) -> GpuPowerModel | None:
    """Power model of the planned GPU model; None if it is not in the catalogue."""
    return _power_model(fleet.name) if fleet.name is not None and fleet.in_catalogue else None


def _measure_power(job_history: History, gpu_models: GpuModels) -> pl.DataFrame | None:
    """Measured mean power by tenant and GPU state (busy, idle) [W]; None if the readings do not apply.

    That is without power readings, with several GPU models, or if the scenario plans another GPU model than was used.
    """
    samples, labels = job_history.trace.samples, list(gpu_models)
    power_model = None if len(labels) != 1 or gpu_models[labels[0]] is None else find_power_model(job_history.fleet)
    if samples is None or power_model is None or job_history.fleet.chosen or not samples["power_w"].count():
        return None
    period_samples = samples.filter(pl.col("time").is_between(job_history.begin, job_history.end, closed="left"))
    power = measured_energy(period_samples, job_history.trace.jobs, idle_w=power_model.idle_w)
    return power.with_columns(gpu_model=pl.lit(labels[0], pl.String))


def carbon_by_hour(scenario: Scenario, job_history: History, hours: pl.Series) -> pl.DataFrame:
    """Carbon intensity of each hour: of the scenario's file, else the mean of the region.

    The market-based factor comes from the file, else from the contract in the price book, else it is the
    location-based one.

    Parameters
    ----------
    scenario : Scenario
        Carbon file, region and price book.
    job_history : History
        Period of the contract.
    hours : polars.Series
        Hours, with repetitions.

    Returns
    -------
    polars.DataFrame
        ``hour``, ``location_g``, ``market_g`` [g CO2e per kWh] and ``pue``.
    """
    if scenario.carbon_file is not None:
        grid = read_carbon_file(scenario.carbon_file, hours)
    else:
        mean, blank = find_carbon_factor(scenario.carbon_region).gco2e_per_kwh, pl.lit(None, pl.Float64)
        all_hours = pl.DataFrame({"hour": hours.unique().sort()})
        grid = all_hours.with_columns(location_g=mean, market_g=blank, pue=blank)
    contract = load_price_book(scenario).mean_market_g(job_history.begin, job_history.end)
    return grid.with_columns(pl.coalesce("market_g", pl.lit(contract, pl.Float64), "location_g"))


@stage
def mean_activity(scenario: Scenario) -> Mapping[str, float]:
    """Mean SM activity by tenant, weighted by GPU time [0-1]; the empty name stands for all jobs."""
    jobs = history(scenario).jobs.filter(pl.col("sm_activity").is_not_null())
    weight = pl.col("gpus") * pl.col("run_s")
    mean = (pl.col("sm_activity") * weight).sum() / weight.sum()
    means = {str(name): value for name, value in jobs.group_by("tenant", maintain_order=True).agg(mean).iter_rows()}
    means |= {"": jobs.select(mean).item()}
    finite_means = {name: value for name, value in means.items() if value is not None and value == value}
    return {name: min(float(value), 1.0) for name, value in finite_means.items()}


def _catalog_name(label: str) -> str | None:
    """Name in the catalogue of a GPU model label; None if it is not there."""
    with suppress(GpuPlannerError):
        return resolve_gpu_model(label)
    return None


def _power_model(gpu_model: str) -> GpuPowerModel | None:
    """Power model of a GPU model; None if the catalog has none."""
    with suppress(GeometryError, ScenarioError):
        return make_power_model(gpu_model)
    return None


def _missing_texts(
    ledger: pl.DataFrame, gpu_models: GpuModels, priced_labels: set[str | None], list_price_kinds: Sequence[str]
) -> tuple[str, ...]:
    """Sentences on GPU models without a price or a power rating, and on ownerships without an own rate.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    gpu_models : mapping
        Name in the catalogue by label of the ledger.
    priced_labels : set of str or None
        Labels that have a rate.
    list_price_kinds : sequence of str
        Ownerships that are valued at the list price though the GPUs are owned or reserved.
    """
    hours = dict(ledger.group_by("gpu_model", maintain_order=True).agg(pl.col("gpu_hours").sum()).iter_rows())
    names = {label: name or "an unknown GPU model" for label, name in gpu_models.items()}
    if len(gpu_models) > 1:
        stated = {label: gpu_models[label] or label or name for label, name in names.items()}
        names = {label: f"{name} ({hours[label]:,.0f} GPU-hours)" for label, name in stated.items()}
    unpriced = ", ".join(name for label, name in names.items() if label not in priced_labels)
    unrated = ", ".join(names[label] for label, name in gpu_models.items() if name is None or not _power_model(name))
    texts = []
    if unpriced:
        begin = "The" if priced_labels else "No money is stated: the"
        texts.append(f"{begin} catalog has no list price of {unpriced}. Set your rate with --set price_per_gpu_hour=…")
    if unrated:
        texts.append(f"No energy and no carbon is stated: the catalog has no power rating of {unrated}.")
    if list_price_kinds:
        texts.append(
            f"{RATE_NOT_SET} for the {' and '.join(list_price_kinds)} GPUs: costs are at the public on-demand "
            "list price, neither invoiced nor your cost. Set it in a price book (gpuplanner catalog example prices > "
            "prices.yaml) or with --set price_per_gpu_hour=…"
        )
    return tuple(texts)


def _check_price_book_rows(
    scenario: Scenario, models: GpuModels, rates: Mapping[tuple[str | None, str], Rate], ledger: pl.DataFrame
) -> Iterator[str]:
    """Yield a sentence for each price of the price book without effect on this cost, or of another number of GPUs.

    Prices of one GPU model and ownership count as one: the others of them have their dates.

    Parameters
    ----------
    scenario : Scenario
        Price book and own rate.
    models : mapping
        Name in the catalogue by GPU model of the ledger.
    rates : mapping
        Rate by GPU model of the ledger and ownership.
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.

    Raises
    ------
    ScenarioError
        If the book has owned GPUs, but none of the fleet's models.
    """
    book, file = load_price_book(scenario), Path(str(scenario.price_book)).name
    book_models = {lot.gpu_model for lot in book.owned} | {row.gpu_model for row in book.prices}
    if scenario.price_per_gpu_hour > 0:
        if book_models:
            yield f"{file}: no row is used for this cost: price_per_gpu_hour replaces them."
        return
    lots = {lot.gpu_model for lot in book.owned}
    owned = {str(models[word]) for word, kind in rates if kind == "owned"}
    if lots and owned and not lots & owned:
        todo = "Correct gpu_model, or add a row."
        raise ScenarioError(f"{file}, owned", f"a row of {', '.join(sorted(owned))}", ", ".join(sorted(lots)), todo)
    used_rows = dict.fromkeys(row for rate in rates.values() for row in rate.rows)
    begin = ledger.select(pl.col("hour").min().dt.strftime("%Y-%m-%d")).item()
    for lot in (row for row in used_rows if isinstance(row, OwnedLot) and row.bought > begin):
        yield f"{file}: owned, {lot.gpu_model}: {gpus_text(lot.gpus)} bought on {lot.bought} are charged from {begin}."
    hours = ledger.group_by("gpu_model", maintain_order=True).agg(pl.col("gpu_hours").sum() / pl.col("hour").n_unique())
    for label, gpus in hours.iter_rows():
        booked = sum(lot.gpus for lot in book.lots_of(models[label]))
        if booked and (label, "owned") in rates and abs(booked - gpus) >= 1:
            counts = f"{gpus_text(booked)}, the cluster {gpu_figure_text(gpus)} on average"
            yield f"{file}: owned, {models[label]}, has {counts}; its rate is applied to all of the cluster."
    used = {(row.gpu_model, getattr(row, "kind", OWNED)) for row in used_rows if not isinstance(row, PowerRow)}
    for gpu_model, kind in ((name, kind) for name in sorted(book_models) for kind in book.kinds_of(name)):
        ownership = kind.removesuffix("_1y").removesuffix("_3y")
        reason = f"the cluster has no GPUs of this model with ownership {ownership}; on its days --months has it"
        if gpu_model not in models.values():
            reason = "the cluster has no GPUs of this model"
        elif (gpu_model, ownership) in {(models[label], label_kind) for label, label_kind in rates}:
            reason = f"its {ownership} GPUs have the price of another term; on its days --months has it"
        if (gpu_model, kind) not in used:
            yield f"{file}: the row {kind}, {gpu_model}, is not used for this cost: {reason}."
    if not used_rows.keys() & {*book.electricity} and book.electricity:
        yield f"{file}: electricity is not used for this cost: it is added to the rows of owned GPUs alone."


def idle_gpu_price(scenario: Scenario, fleet: PlannedFleet) -> tuple[float | None, str]:
    """Price of an hour of an idle, powered-on GPU as a share of its price per GPU-hour, and its basis.

    Parameters
    ----------
    scenario : Scenario
        Actuator and PUE.
    fleet : PlannedFleet
        GPU model and inventory.

    Returns
    -------
    tuple of float or None, and str
        Share [0-1], None if the actuator stops idle nodes or they are rented; and a phrase with the reason.

    Examples
    --------
    >>> from gpuplanner.usage.planning_history import history
    >>> parked_price, basis = idle_gpu_price(Scenario(), history(Scenario()).fleet)
    >>> print(round(parked_price, 5), basis)
    0.00108 owned, 70 W idle x PUE 1.56 x 0.122 USD/kWh, of 12.29 USD list price an hour
    >>> idle_gpu_price(Scenario(actuator="autoscaler"), history(Scenario()).fleet)
    (None, 'autoscaler stops nodes that are not needed')
    """
    if scenario.actuator in ("autoscaler", "slurm"):  # they shut down idle nodes
        return None, f"{scenario.actuator} stops nodes that are not needed"
    if _is_mostly_rented(fleet):
        return None, "rented by the hour: an idle GPU costs as much as a busy one"
    power = find_power_model(fleet)
    if power is None or fleet.name is None or not has_list_price(fleet.name):
        return 0.0, "owned; the cost of its power against a GPU-hour is not known"
    pue, electricity = find_pue(scenario), find_parameter("electricity_usd_per_kwh").value
    list_price = find_gpu_hour_price(fleet.name).value
    watts = f"{power.idle_w:.0f} W idle x PUE {pue:g} x {electricity:g} USD/kWh"
    basis = f"owned, {watts}, of {list_price:.2f} USD list price an hour"
    return min(1.0, power.idle_w / 1000 * pue * electricity / list_price), basis


def _is_mostly_rented(fleet: PlannedFleet) -> bool:
    """Whether most GPUs of the inventory are rented by the hour."""
    inventory = fleet.installed.inventory
    if "ownership" not in inventory.columns:
        return False
    rented = pl.col("gpus").filter(pl.col("ownership").is_in((ON_DEMAND, SPOT))).sum()
    return bool(inventory.select(2 * rented > pl.col("gpus").sum()).item())
