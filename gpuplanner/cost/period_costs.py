"""Cost, energy and carbon of a period, and what idle GPUs cost.

Who owns a GPU pays for its power while it is idle, and nothing else: it is parked, and keeps its layout. Who rents it
by the hour pays for it all until it is given back, and so it is released. Where a path starts and stops nodes, they
come back without a layout, whoever owns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import GeometryError, GpuPlannerError, ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import OWNERSHIP_RENTED
from gpuplanner.core.schema_checks import make_empty_table
from gpuplanner.core.schemas import Costs
from gpuplanner.core.stage_cache import stage
from gpuplanner.core.units import kwh_from_watt_hours
from gpuplanner.cost.energy_and_carbon import (
    AMOUNTS,
    Facility,
    RangedAmount,
    by_state,
    footprint,
    measured_energy,
    read_grid,
    state_watts,
    total_of,
)
from gpuplanner.cost.price_book import PriceBook, read_price_book
from gpuplanner.cost.showback import LIST_PRICE, NOT_STATED, Rate, showback
from gpuplanner.hardware.catalog import (
    find_parameter,
    has_list_price,
    mig_model_names,
    non_mig_model_names,
    resolve_gpu_model,
)
from gpuplanner.hardware.power_and_carbon import (
    GpuHourPrice,
    GpuPowerModel,
    GridCarbonIntensity,
    find_carbon_factor,
    find_gpu_hour_price,
    make_power_model,
)
from gpuplanner.usage.job_history import History, history
from gpuplanner.usage.occupancy import LedgerWindow
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planned_fleet import PlannedFleet

LINES = ("tenant", "gpu_model", "bucket", "ownership")
ON_DEMAND = "on_demand"
RATE_NOT_SET = "Your rate per GPU-hour is not set"
_INSTANT = pl.Datetime("us", "UTC")
_OF_NODES: dict[str, pl.DataType] = {
    "gpu_model": pl.String(), "ownership": pl.String(), "installed": _INSTANT, "retired": _INSTANT
}  # fmt: skip
"""Columns of an inventory that need not be there."""
Boards = Mapping[str | None, str | None]
"""Board of the catalogue by the word of the ledger; None where there is none."""


@dataclass(frozen=True, eq=False)
class Money:
    """Costs of the past and their basis; None where nothing is known.

    ``states`` is energy and carbon by the state of the GPU, each with its range; ``missing`` says in sentences what is
    not stated, and why; ``rate_parts`` are the components of the rate of owned GPUs, where all GPUs have that rate.
    """

    price: GpuHourPrice | None
    power: GpuPowerModel | None
    carbon: GridCarbonIntensity
    pue: float
    costs: pl.DataFrame
    states: pl.DataFrame
    energy_kwh: float | None
    carbon_kg: float | None
    missing: tuple[str, ...] = ()
    rate_parts: Mapping[str, float] = field(default_factory=dict)


@stage
def money(scenario: Scenario) -> Money:
    """Price the month behind, as far as price and power of each board are known."""
    known = history(scenario)
    booked = scenario_ledger(scenario)
    boards = boards_of(known.fleet, booked)
    owners = ownerships(scenario, known, booked)
    rates = {
        (word, kind): rate
        for word, kind in owners.select("gpu_model", "ownership").iter_rows()
        if (rate := rate_of(scenario, known, boards[word], kind)) is not None
    }
    powered = {
        word: gpu_model if gpu_model is not None and _law(gpu_model) else None for word, gpu_model in boards.items()
    }
    measured = _measured(known, powered)
    rows = footprint(
        booked, powered, activity=activity(scenario), facility=Facility.of(scenario.pue),
        grid=grid_of(scenario, known, booked["hour"]), measured=measured,
    )  # fmt: skip
    costs = make_empty_table(Costs)
    if rates:
        shares = rows.join(owners, on="gpu_model", nulls_equal=True, maintain_order="left")
        parts = shares.with_columns(pl.col("gpu_hours", *AMOUNTS) * pl.col("share"))
        costs = showback(parts.select(*LINES, "gpu_hours", *AMOUNTS), rates, start=known.begin, end=known.end)
    kinds = {kind for (_, kind), rate in rates.items() if rate.basis == LIST_PRICE}
    at_list = sorted(kinds & {"owned", "reserved"})
    states = by_state(rows, measured)
    energy, carbon = total_of(states, "energy_kwh"), total_of(states, "location_kg")
    return Money(
        price=price_of(scenario, known.fleet),
        power=power_of(known.fleet),
        carbon=find_carbon_factor(scenario.carbon_region),
        pue=pue_of(scenario),
        costs=costs,
        states=states,
        energy_kwh=None if energy is None else energy.value,
        carbon_kg=None if carbon is None else carbon.value,
        missing=(
            *_missing(booked, boards, {word for word, _ in rates}, at_list),
            *_unused_lots(scenario, boards, rates),
        ),
        rate_parts=next(iter(rates.values())).parts or {} if len(rates) == 1 else {},
    )


def boards_of(fleet: PlannedFleet, booked: pl.DataFrame) -> Boards:
    """Which board of the catalogue each word of a ledger is; in a what-if all are the one that is asked for."""
    words = booked["gpu_model"].unique().sort().to_list()
    if fleet.chosen or fleet.pool is None:
        return dict.fromkeys(words, fleet.name if fleet.in_catalogue else None)
    return {word: None if word is None else _known(word) for word in words}


def ownerships(scenario: Scenario, known: History, booked: pl.DataFrame) -> pl.DataFrame:
    """``gpu_model, ownership, share``: of the installed hours of each board of a ledger, who pays for which share."""
    words = booked.select(pl.col("gpu_model").unique().sort())
    if scenario.ownership is not None:
        kind = ON_DEMAND if scenario.ownership == OWNERSHIP_RENTED else scenario.ownership
        return words.with_columns(ownership=pl.lit(kind), share=pl.lit(1.0))
    nodes = known.fleet.installed.inventory
    absent = {name: kind for name, kind in _OF_NODES.items() if name not in nodes.columns}
    hours = nodes.with_columns(pl.lit(None, kind).alias(name) for name, kind in absent.items()).select(
        pl.col("gpu_model").cast(pl.String),
        pl.col("ownership").cast(pl.String).fill_null(NOT_STATED),
        hours=pl.col("gpus") * LedgerWindow(known.begin, known.end).overlap_h("installed", "retired"),
    )
    parts = []
    for word in words["gpu_model"]:
        mine = hours.filter(pl.col("gpu_model").str.to_lowercase() == word.lower()) if word else hours
        mine = mine if mine["hours"].sum() > 0 else hours
        mine = mine.group_by("ownership").agg(share=pl.col("hours").sum()).filter(pl.col("share") > 0)
        named = mine.sort("ownership").select(pl.lit(word, pl.String).alias("gpu_model"), pl.all())
        parts.append(named.with_columns(pl.col("share") / pl.col("share").sum()))
    return pl.concat(parts)


def rate_of(scenario: Scenario, known: History, gpu_model: str | None, kind: str) -> Rate | None:
    """What an installed GPU-hour of a board costs under an ownership; None where nothing says so.

    The scenario's own price counts for every GPU; else what the price book says; else what the catalogue lists, of spot
    GPUs the spot price. What an owner paid is in no list: the list price then is what renting would cost.
    """
    book, currency = book_of(scenario), scenario.currency
    if kind == NOT_STATED and scenario.price_usd_per_gpu_hour <= 0 and (kinds := book.kinds_of(gpu_model)):
        name, rows = Path(str(scenario.price_book)).name, " and ".join(kinds)
        todo = "Add --set ownership=owned, reserved or rented, or give the scenario.yaml that start wrote."
        raise ScenarioError(name, f"the ownership of the {gpu_model} GPUs, to use its rows {rows}", "none stated", todo)
    listed = _listed(book, gpu_model, ON_DEMAND, currency, known.end)
    own = scenario.price_usd_per_gpu_hour
    if own > 0:
        found = Rate(find_gpu_hour_price(gpu_model or known.fleet.gpu_model.name, own_price=own, currency=currency))
    elif gpu_model is not None and (said := book.rate(gpu_model, kind, currency, known.begin, known.end)) is not None:
        found = said
        if kind == "owned" and not book.electricity:
            found = replace(said, per_kwh=per_kwh_of(scenario, known))
    else:
        price = _listed(book, gpu_model, "spot", currency, known.end) if kind == "spot" else listed
        if price is None and gpu_model is not None and has_list_price(gpu_model):
            find_gpu_hour_price(gpu_model, currency=currency)  # which says what is missing
        if price is None:
            return None
        found = Rate(price, basis=LIST_PRICE)
    return replace(found, listed=None if listed is None else listed.value)


def price_of(scenario: Scenario, fleet: PlannedFleet) -> GpuHourPrice | None:
    """Price of a GPU-hour of the board to plan for: the scenario's own, else the book's, else the list's."""
    rate = rate_of(scenario, history(scenario), fleet.name if fleet.in_catalogue else None, ON_DEMAND)
    return None if rate is None else rate.price


def on_demand_price(scenario: Scenario, fleet: PlannedFleet, what: str) -> GpuHourPrice:
    """Price of the board on demand, for what cannot do without."""
    price = price_of(scenario, fleet)
    if price is None:
        todo = "Set your rate with --set price_usd_per_gpu_hour=… or a price book."
        raise ScenarioError(what, "an on-demand price of the GPU model", "none", todo)
    return price


def book_of(scenario: Scenario) -> PriceBook:
    """The scenario's price book; an empty one where it names none."""
    return PriceBook() if scenario.price_book is None else read_price_book(scenario.price_book)


def per_kwh_of(scenario: Scenario, known: History, currency: str | None = None) -> float:
    """What a kWh costs: the scenario's own, else the book's, else the catalogue's."""
    book, wanted = book_of(scenario), currency or scenario.currency
    own = scenario.price_usd_per_kwh
    said = book.per_kwh(wanted, known.begin, known.end) if own is None else None
    if said is not None:
        return said
    usd = find_parameter("electricity_usd_per_kwh").value if own is None else own
    return book.converted(usd, "USD", wanted, known.end)


def _listed(book: PriceBook, gpu_model: str | None, term: str, currency: str, when: datetime) -> GpuHourPrice | None:
    """The list price in a currency; None where the catalogue has none, or no rate leads from its currency."""
    if gpu_model is None or not has_list_price(gpu_model, term=term):
        return None
    price = find_gpu_hour_price(gpu_model, term=term)
    try:
        prices = (price.value, price.low, price.high)
        value, low, high = (book.converted(one, price.currency, currency, when) for one in prices)
    except ScenarioError:
        return None
    return replace(price, value=value, low=low, high=high, currency=currency)


def energy_of_week(scenario: Scenario, *, busy_gpu_hours: float, idle_gpu_hours: float) -> RangedAmount | None:
    """Energy of GPU-hours of the planned board at the meter [kWh]; None where its power is not known."""
    known = history(scenario)
    if power_of(known.fleet) is None or known.fleet.name is None:
        return None
    watts = state_watts(known.fleet.name, activity(scenario).get(""))
    facility = Facility.of(scenario.pue)
    busy, idle = watts["busy"], watts["idle"]
    sides = []
    for side in ("value", "low", "high"):
        watt_hours = busy_gpu_hours * getattr(busy, side) + idle_gpu_hours * getattr(idle, side)
        sides.append(kwh_from_watt_hours(watt_hours) * facility.factor(side))
    return RangedAmount(*sides)


def pue_of(scenario: Scenario) -> float:
    """Energy of the building over that of its machines: the scenario's own, else the catalogue's."""
    return scenario.pue or find_parameter("pue").value


def power_of(fleet: PlannedFleet) -> GpuPowerModel | None:
    """The law of power of the board to plan for; None where the catalogue has none."""
    return _law(fleet.name) if fleet.name is not None and fleet.in_catalogue else None


def _measured(known: History, boards: Boards) -> pl.DataFrame | None:
    """Mean power by tenant and state where telemetry saw it; None without, or where boards cannot be told apart."""
    samples, words = known.trace.samples, list(boards)
    law = None if len(words) != 1 or boards[words[0]] is None else power_of(known.fleet)
    if samples is None or law is None or known.fleet.chosen or not samples["power_w"].count():
        return None
    there = samples.filter(pl.col("time").is_between(known.begin, known.end, closed="left"))
    found = measured_energy(there, known.trace.jobs, idle_w=law.idle_w)
    return found.with_columns(gpu_model=pl.lit(words[0], pl.String))


def grid_of(scenario: Scenario, known: History, hours: pl.Series) -> pl.DataFrame:
    """Carbon of each hour: by the file of the scenario, else the mean of the region; by contract as the book says."""
    if scenario.carbon_file is not None:
        grid = read_grid(scenario.carbon_file, hours)
    else:
        mean, blank = find_carbon_factor(scenario.carbon_region).gco2e_per_kwh, pl.lit(None, pl.Float64)
        every = pl.DataFrame({"hour": hours.unique().sort()})
        grid = every.with_columns(location_g=mean, market_g=blank, pue=blank)
    contract = book_of(scenario).market_g(known.begin, known.end)
    return grid.with_columns(pl.coalesce("market_g", pl.lit(contract, pl.Float64), "location_g"))


@stage
def activity(scenario: Scenario) -> Mapping[str, float]:
    """Mean SM activity of each tenant's jobs, weighed by GPU time; under no name that of all."""
    seen = history(scenario).jobs.filter(pl.col("sm_activity").is_not_null())
    weight = pl.col("gpus") * pl.col("run_s")
    mean = (pl.col("sm_activity") * weight).sum() / weight.sum()
    means = {str(name): value for name, value in seen.group_by("tenant").agg(mean).iter_rows()}
    means |= {"": seen.select(mean).item()}
    known = {name: value for name, value in means.items() if value is not None and value == value}
    return {name: min(float(value), 1.0) for name, value in known.items()}


def _known(word: str) -> str | None:
    try:
        name = resolve_gpu_model(word)
    except GpuPlannerError:
        return None
    return name if name in mig_model_names() or name in non_mig_model_names() else None


def _law(gpu_model: str) -> GpuPowerModel | None:
    try:
        return make_power_model(gpu_model)
    except (GeometryError, ScenarioError):
        return None


def _missing(booked: pl.DataFrame, boards: Boards, priced: set[str | None], owned: Sequence[str]) -> tuple[str, ...]:
    """What is not stated, board by board: no money of those that have no price, no energy without a rating."""
    hours = dict(booked.group_by("gpu_model").agg(pl.col("gpu_hours").sum()).iter_rows())
    without = {"price": [], "power": []}  # type: dict[str, list[str]]
    for word, gpu_model in boards.items():
        name = gpu_model or (word if word and len(boards) > 1 else "an unknown GPU model")
        text = f"{name} ({hours[word]:,.0f} GPU-hours)" if len(boards) > 1 else name
        if word not in priced:
            without["price"].append(text)
        if gpu_model is None or _law(gpu_model) is None:
            without["power"].append(text)
    some = "" if priced else "No money is stated: "
    found = []
    if without["price"]:
        found.append(
            f"{some}{'T' if not some else 't'}he catalogue has no list price of {', '.join(without['price'])}. "
            "Set your rate with --set price_usd_per_gpu_hour=…"
        )
    if without["power"]:
        told = f"the catalogue has no power rating of {', '.join(without['power'])}."
        found.append(f"No energy and no carbon is stated: {told}")
    if owned:
        found.append(
            f"{RATE_NOT_SET} for the {' and '.join(owned)} GPUs: costs are at the public on-demand "
            "list price, neither invoiced nor your cost. Set it in a price book or with --set price_usd_per_gpu_hour=…"
        )
    return tuple(found)


def _unused_lots(scenario: Scenario, boards: Boards, rates: Mapping[tuple[str | None, str], Rate]) -> Iterator[str]:
    """Say which owned GPUs of the price book have no part in the cost; a book without those of the fleet is refused."""
    lots, name = {lot.gpu_model for lot in book_of(scenario).owned}, Path(str(scenario.price_book)).name
    owned = {str(boards[word]) for word, kind in rates if kind == "owned"}
    own_rate = scenario.price_usd_per_gpu_hour > 0
    if lots and owned and not lots & owned and not own_rate:
        todo = "Correct gpu_model, or add a row."
        raise ScenarioError(f"{name}, owned", f"a row of {', '.join(sorted(owned))}", ", ".join(sorted(lots)), todo)
    for gpu_model in sorted(lots if own_rate else lots - owned):
        reason = "the cluster has no owned GPUs of this model (with --months the row is an offer to buy)"
        if own_rate:
            reason = "price_usd_per_gpu_hour replaces it"
        yield f"{name}: the row owned, {gpu_model}, is not used for this cost: {reason}."


GOES = ("autoscaler", "slurm")
"""Paths on which a node that is not needed is stopped."""
BY_THE_HOUR = ("on_demand", "spot")
"""Kinds of ownership that end when a GPU is given back."""


def idle_gpus(scenario: Scenario, fleet: PlannedFleet) -> tuple[float | None, str]:
    """Price of an hour of a parked GPU, as a share of one that is on, and why; None where idle GPUs are released.

    Examples
    --------
    >>> from gpuplanner.usage.job_history import history
    >>> parked_price, basis = idle_gpus(Scenario(), history(Scenario()).fleet)
    >>> print(round(parked_price, 5), basis)
    0.00108 owned, 70 W idle x PUE 1.56 x 0.122 USD/kWh, of 12.29 USD list price an hour
    >>> idle_gpus(Scenario(actuator="autoscaler"), history(Scenario()).fleet)
    (None, 'autoscaler stops nodes that are not needed')
    """
    if scenario.actuator in GOES:
        return None, f"{scenario.actuator} stops nodes that are not needed"
    if _rented(fleet):
        return None, "rented by the hour: an idle GPU costs as much as a busy one"
    power = power_of(fleet)
    if power is None or fleet.name is None or not has_list_price(fleet.name):
        return 0.0, "owned; the cost of its power against a GPU-hour is not known"
    pue, electricity = pue_of(scenario), find_parameter("electricity_usd_per_kwh").value
    list_price = find_gpu_hour_price(fleet.name).value
    watts = f"{power.idle_w:.0f} W idle x PUE {pue:g} x {electricity:g} USD/kWh"
    basis = f"owned, {watts}, of {list_price:.2f} USD list price an hour"
    return min(1.0, power.idle_w / 1000 * pue * electricity / list_price), basis


def _rented(fleet: PlannedFleet) -> bool:
    """Whether the inventory says of most GPUs that they are rented by the hour."""
    inventory = fleet.installed.inventory
    if "ownership" not in inventory.columns:
        return False
    rented = pl.col("gpus").filter(pl.col("ownership").is_in(BY_THE_HOUR)).sum()
    return bool(inventory.select(2 * rented > pl.col("gpus").sum()).item())
