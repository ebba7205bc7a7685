"""What a saving is worth to who pays for the GPUs: electricity to an owner, the price to who rents by the hour."""

from __future__ import annotations

import polars as pl

from gpuplanner.catalog.loader import parameter
from gpuplanner.cost.energy import PowerModel, facility_kwh, gpu_kwh
from gpuplanner.hardware.list_prices import Price
from gpuplanner.hardware.abilities import RETURNED, ownership_of, scenario_abilities
from gpuplanner.paths import OWNED, RENTED, RESERVED
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.types import Exhaustion, NextPurchase, Saving, Worth
from gpuplanner.study.future.money import book_of, per_kwh_of, power_of, price_of, pue_of
from gpuplanner.study.past.history import history
from gpuplanner.units import counted, day_text

UNKNOWN = "unknown"
Amount = tuple[float | None, str]
"""Dollars a week that are paid less, None where nobody knows, and the sentence on them."""


def worth_of(
    saving: Saving,
    *,
    gpus_freed_at_peak: int,
    fleet_gpus: int,
    ownership: str | None,
    power: PowerModel | None,
    usd_per_kwh: float,
    price: Price | None,
    next_purchase: NextPurchase | None,
    powered_down_gpu_hours: float,
    pue: float,
) -> Worth:
    """What a saving is worth, and a sentence for each part of it.

    An owner saves the electricity of the hours in which GPUs are off, and has GPUs for other work; no rental price
    is counted. Who rents by the hour saves the price of the hours. A reservation is paid until its term ends, whoever
    uses it.

    Examples
    --------
    >>> from gpuplanner.cost.energy import power_model
    >>> law = power_model("H100-80GB-SXM5")
    >>> found = worth_of(
    ...     Saving(1000.0), gpus_freed_at_peak=6, fleet_gpus=24, ownership="owned",
    ...     power=law, usd_per_kwh=0.10, price=None, powered_down_gpu_hours=1000.0, pue=1.5,
    ...     next_purchase=NextPurchase("2027-11-13", "2027-08-15", 8, 240000.0),
    ... )
    >>> round(found.usd_per_week, 2), round(found.kwh_per_week, 1)
    (10.5, 105.0)
    >>> for sentence in found.basis.split(". "):
    ...     print(sentence)
    6 of 24 GPUs are released, counted here as powered down; other work may take them instead
    Electricity: 105 kWh a week (1,000 GPU-hours off, 70 W idle, PUE 1.5), 10.50 USD at 0.1 USD per kWh
    The next purchase, of 8 GPUs or more, 240,000 USD, is due on 13 Nov 2027: order by 15 Aug 2027.
    """
    hours = max(saving.value or 0.0, 0.0)
    kwh = electricity_kwh(power, powered_down_gpu_hours, pue)
    none = f"No saving is stated: {(saving.reason or 'there is none').rstrip('.')}"
    owned = _electricity(powered_down_gpu_hours, power, kwh, pue, usd_per_kwh)
    rented = _rent(hours, price)
    reserved = "Nothing is paid less: no GPU is released"
    if gpus_freed_at_peak:
        gpus = counted(gpus_freed_at_peak, "GPU")
        reserved = f"0 USD until the term ends; then {gpus} need not be reserved again"
    if saving.value is None:
        owned = rented = None, none
    released, upcoming = _released(gpus_freed_at_peak, fleet_gpus), _upcoming(next_purchase)
    cases = {
        OWNED: (owned[0], _text(released, owned[1], upcoming)),
        RENTED: (rented[0], _text(rented[1])),
        RESERVED: (0.0, _text(released, reserved, upcoming)),
    }
    payer = ownership_of(ownership)
    if payer is None:
        said = f"{hours:,.0f} GPU-hours a week; nobody says who pays for the GPUs."
        lines = (f"If {case}: {text}" for case, (_, text) in cases.items())
        return Worth(UNKNOWN, None, "\n".join([_text(none) if saving.value is None else said, *lines]))
    known = kwh if payer == OWNED and saving.value is not None else None
    return Worth(payer, *cases[payer], known, None if payer == RENTED else next_purchase)


def worth_for(
    scenario: Scenario,
    saving: Saving,
    *,
    freed: int,
    fleet_gpus: int,
    exhaustion: Exhaustion | None = None,
    gone: bool = False,
) -> Worth:
    """What a saving is worth by the scenario's prices and who owns the GPUs: nothing is played for it.

    A fleet that is exhausted is bought for; what a node of it costs is what the newest lot of the price book did. Hours
    that are ``gone`` draw no power, whatever the path can switch.
    """
    known = history(scenario)
    owned_as = scenario.ownership or stated_ownership(known.trace.inventory)
    upcoming = None
    if exhaustion is not None and exhaustion.date is not None and exhaustion.order_by is not None:
        gpus, lots = known.fleet.node_size, book_of(scenario).lots_of(known.fleet.name)
        capital = (lots[-1].capex * gpus, lots[-1].currency) if lots else ()
        upcoming = NextPurchase(exhaustion.date, exhaustion.order_by, gpus, *capital)
    off = saving.value or 0.0 if gone else powered_down_hours(scenario, saving.value or 0.0)
    return worth_of(
        saving, gpus_freed_at_peak=max(freed, 0), fleet_gpus=fleet_gpus, ownership=owned_as,
        power=power_of(known.fleet), usd_per_kwh=per_kwh_of(scenario, known, "USD"),
        price=price_of(scenario, known.fleet),
        powered_down_gpu_hours=max(off, 0.0), pue=pue_of(scenario), next_purchase=upcoming,
    )  # fmt: skip


def powered_down_hours(scenario: Scenario, saved_gpu_hours: float) -> float:
    """GPU-hours of a saving in which GPUs draw no power: all where nodes are switched or returned and stay idle."""
    able = scenario_abilities(scenario, history(scenario).fleet.board)
    stops = able.switches_nodes or able.returns == RETURNED
    return saved_gpu_hours if stops else 0.0


def usd_per_kwh_of(scenario: Scenario) -> float:
    """What a kWh costs the owner: the scenario's own, else the catalogue's.

    Examples
    --------
    >>> usd_per_kwh_of(Scenario(price_usd_per_kwh=0.2)), usd_per_kwh_of(Scenario())
    (0.2, 0.122)
    """
    own = scenario.price_usd_per_kwh
    return parameter("electricity_usd_per_kwh").value if own is None else own


def stated_ownership(inventory: pl.DataFrame | None) -> str | None:
    """Whose the GPUs are by the inventory, if it says one thing."""
    if inventory is None or "ownership" not in inventory.columns:
        return None
    stated = inventory["ownership"].cast(pl.String).drop_nulls().unique().to_list()
    return ownership_of(stated[0]) if len(stated) == 1 else None


def _electricity(
    off: float, power: PowerModel | None, kwh: float | None, pue: float, usd_per_kwh: float
) -> Amount:
    if not off:
        return 0.0, "No electricity is saved: no GPU is off"
    if power is None or kwh is None:
        return None, f"{off:,.0f} GPU-hours a week are off; their electricity is not known for this board"
    how = f"{off:,.0f} GPU-hours off, {power.idle_w:.0f} W idle, PUE {pue:g}"
    energy = f"Electricity: {kwh:,.0f} kWh a week ({how})"
    return kwh * usd_per_kwh, f"{energy}, {kwh * usd_per_kwh:,.2f} USD at {usd_per_kwh:g} USD per kWh"


def _rent(hours: float, price: Price | None) -> Amount:
    if price is None:
        return None, f"{hours:,.0f} GPU-hours a week less are rented; their price is not stated"
    amount = hours * price.value
    rate = f"{price.value:,.2f} {price.currency} ({price.source})"
    text = f"{amount:,.0f} {price.currency} a week: {hours:,.0f} GPU-hours at {rate}, billed as used"
    return amount if price.currency == "USD" else None, text


def _released(freed: int, fleet: int) -> str | None:
    if not freed:
        return None
    are = "is" if freed == 1 else "are"
    return f"{freed:,} of {fleet:,} GPUs {are} released, counted here as powered down; other work may take them instead"


def _upcoming(purchase: NextPurchase | None) -> str | None:
    if purchase is None:
        return None
    cost = "" if purchase.capital is None else f", {purchase.capital:,.0f} {purchase.currency}"
    due, order = day_text(purchase.date), day_text(purchase.order_by)
    return f"The next purchase, of {counted(purchase.gpus, 'GPU')} or more{cost}, is due on {due}: order by {order}"


def electricity_kwh(power: PowerModel | None, off: float, pue: float) -> float | None:
    """Energy [kWh] that GPUs would have drawn idle in the hours that they are off.

    Hosts are left out: their idle power has no source.
    """
    if not off:
        return 0.0
    if power is None:
        return None
    idle = gpu_kwh(power, powered_gpu_hours=off, resident_gpu_hours=0.0, active_gpu_hours=0.0)
    return facility_kwh(idle, host_factor=1.0, pue=pue)


def _text(*parts: str | None) -> str:
    return " ".join(f"{part}." for part in parts if part)
