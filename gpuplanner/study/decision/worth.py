"""What a saving is worth to who pays for the GPUs: electricity to an owner, the price to who rents by the hour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from gpuplanner.catalog import parameter
from gpuplanner.cost import PowerModel, Price, facility_kwh, gpu_kwh
from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware.abilities import ownership_of
from gpuplanner.paths import OWNED, RENTED, RESERVED
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.types import Saving, Worth
from gpuplanner.units import HOURS_PER_WEEK, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

UNKNOWN = "unknown"
DOLLARS = "USD"
NextPurchase = tuple[date | str | None, date | str | None]
"""Date of the next purchase under today's way and under the recommended one, ISO text too; None: not in sight."""


def worth_of(
    saving: Saving,
    *,
    gpus_freed_at_peak: int,
    fleet_gpus: int,
    ownership: str | None,
    power: PowerModel | None = None,
    usd_per_kwh: float | None = None,
    price: Price | None = None,
    billing_step_s: float | None = None,
    rentals_per_week: float = 0.0,
    value_freed_at: float | None = None,
    next_purchase: NextPurchase | None = None,
    idle_gpu_hours_per_week: float | None = None,
    returnable: bool | None = None,
    pue: float | None = None,
) -> Worth:
    """What a saving is worth, and a sentence for each part of it.

    An owner saves the electricity of the hours in which GPUs are off, and has GPUs for other work; no rental price
    is counted, unless `value_freed_at` asks for one. Who rents by the hour saves the price of the hours, to the step
    that is billed. A reservation is paid until its term ends, whoever uses it.

    Examples
    --------
    >>> from gpuplanner.cost import power_model
    >>> law = power_model("H100-80GB-SXM5")
    >>> found = worth_of(
    ...     Saving(1000.0), gpus_freed_at_peak=6, fleet_gpus=24, ownership="owned",
    ...     power=law, usd_per_kwh=0.10, pue=1.5, next_purchase=("2027-11-13", "2028-03-02"),
    ... )
    >>> round(found.usd_per_week, 2), round(found.kwh_per_week, 1)
    (10.5, 105.0)
    >>> for sentence in found.basis.split(". "):
    ...     print(sentence)
    6 of 24 GPUs are free for other work at peak
    Electricity: 105 kWh a week (1,000 GPU-hours off, 70 W idle, PUE 1.5), 10.50 USD at 0.1 USD per kWh
    The next purchase moves from 13 Nov 2027 to 2 Mar 2028.
    """
    stated = {
        "value_freed_at": value_freed_at, "usd_per_kwh": usd_per_kwh, "billing_step_s": billing_step_s,
        "rentals_per_week": rentals_per_week, "idle_gpu_hours_per_week": idle_gpu_hours_per_week,
    }  # fmt: skip
    _check(gpus_freed_at_peak, fleet_gpus, stated)
    hours = max(saving.value or 0.0, 0.0)
    off = hours if idle_gpu_hours_per_week is None else idle_gpu_hours_per_week
    pue = parameter("pue").value if pue is None else pue
    # What other work runs in is not off.
    off = 0.0 if value_freed_at is not None else off
    account = _Account(
        saving=saving,
        hours=hours,
        freed=gpus_freed_at_peak,
        fleet=fleet_gpus,
        power=power,
        kwh=_kwh(power, off, pue),
        off=off,
        pue=pue,
        usd_per_kwh=usd_per_kwh,
        price=price,
        step_s=billing_step_s,
        rentals=rentals_per_week,
        value=value_freed_at,
        purchase=next_purchase,
        returnable=returnable,
    )
    return account.stated_for(ownership_of(ownership))


def usd_per_kwh_of(scenario: Scenario) -> float:
    """What a kWh costs the owner: the scenario's own, else the catalogue's.

    Examples
    --------
    >>> usd_per_kwh_of(Scenario(price_usd_per_kwh=0.2)), usd_per_kwh_of(Scenario())
    (0.2, 0.122)
    """
    own = scenario.price_usd_per_kwh
    return parameter("electricity_usd_per_kwh").value if own is None else own


@dataclass(frozen=True)
class _Account:
    """One saving with every price that may bear on it."""

    saving: Saving
    hours: float
    freed: int
    fleet: int
    power: PowerModel | None
    kwh: float | None
    off: float
    pue: float
    usd_per_kwh: float | None
    price: Price | None
    step_s: float | None
    rentals: float
    value: float | None
    purchase: NextPurchase | None
    returnable: bool | None

    def stated_for(self, ownership: str | None) -> Worth:
        """The worth to who pays in this way; a line for each way where nobody says which it is."""
        cases = {
            OWNED: _text(self.peak(), self.owned(), self.next()),
            RENTED: _text(self.rented()),
            RESERVED: _text(self.peak(), self.reserved(), self.next()),
        }
        if ownership is None:
            lines = (f"If {case}: {text}" for case, text in cases.items())
            return Worth(UNKNOWN, None, "\n".join([self.nobody_says(), *lines]))
        sums = {OWNED: self.owned_usd, RENTED: self.rented_usd, RESERVED: self.reserved_usd}
        kwh = self.kwh if ownership == OWNED and self.saving.value is not None else None
        return Worth(ownership, sums[ownership](), cases[ownership], kwh)

    def nobody_says(self) -> str:
        if self.saving.value is None:
            return _text(self.none_stated())
        return f"{self.hours:,.0f} GPU-hours a week; nobody says who pays for the GPUs."

    def peak(self) -> str:
        if not self.freed:
            return f"None of the {self.fleet} GPUs is free for other work at peak"
        verb = "is" if self.freed == 1 else "are"
        return f"{self.freed:,} of {self.fleet:,} GPUs {verb} free for other work at peak"

    def next(self) -> str | None:
        if self.purchase is None:
            return None
        before, after = (_day(one) for one in self.purchase)
        if before is None and after is None:
            return None
        if before is None:
            return f"The next purchase comes on {after}; under today's way none is in sight"
        if after is None:
            return f"The next purchase, due on {before}, is no longer in sight"
        if before == after:
            return f"The next purchase stays on {before}"
        return f"The next purchase moves from {before} to {after}"

    def owned_usd(self) -> float | None:
        if self.saving.value is None:
            return None
        if self.value is not None:
            return self.value * self.hours
        if self.kwh == 0:
            return 0.0
        return None if self.kwh is None or self.usd_per_kwh is None else self.kwh * self.usd_per_kwh

    def owned(self) -> str:
        if self.saving.value is None:
            return self.none_stated()
        if self.value is not None:
            return f"{self.freed_hours()}; other work runs in them, so that no electricity is saved"
        if not self.off:
            return "No electricity is saved: no GPU is off"
        if self.power is None or self.kwh is None:
            return f"{self.off:,.0f} GPU-hours a week are off; their electricity is not known for this board"
        how = f"{self.off:,.0f} GPU-hours off, {self.power.idle_w:.0f} W idle, PUE {self.pue:g}"
        energy = f"Electricity: {self.kwh:,.0f} kWh a week ({how})"
        if self.usd_per_kwh is None:
            return f"{energy}; its price is not stated"
        return f"{energy}, {self.kwh * self.usd_per_kwh:,.2f} USD at {self.usd_per_kwh:g} USD per kWh"

    def rounded_up(self) -> float:
        """Hours that are paid for although nobody uses them: half a step for each rental that ends."""
        return min(self.rentals * (self.step_s or 0.0) / 2 / SECONDS_PER_HOUR, self.hours)

    def rented_usd(self) -> float | None:
        if self.returnable is False:
            return 0.0
        if self.price is None or self.saving.value is None:
            return None
        return _dollars((self.hours - self.rounded_up()) * self.price.value, self.price)

    def rented(self) -> str:
        if self.returnable is False:
            return "Nothing is paid less: the GPUs cannot be given back"
        if self.saving.value is None:
            return self.none_stated()
        if self.price is None:
            return f"{self.hours:,.0f} GPU-hours a week less are rented; their price is not stated"
        lost = self.rounded_up()
        amount = (self.hours - lost) * self.price.value
        text = f"{amount:,.0f} {self.price.currency} a week: {self.hours:,.0f} GPU-hours"
        text += f", less {lost:,.0f} of steps begun," if lost >= 0.5 else ""
        return (
            f"{text} at {self.price.value:,.2f} {self.price.currency} ({self.price.source}), {self.billed()}"
        )

    def billed(self) -> str:
        if self.step_s is None:
            return "billed as used: no billing step is stated"
        if self.step_s <= 1:
            return "billed by the second"
        if self.step_s == SECONDS_PER_MINUTE:
            return "billed by the minute"
        if self.step_s == SECONDS_PER_HOUR:
            return "billed by the hour"
        return f"billed in steps of {self.step_s / SECONDS_PER_MINUTE:g} min"

    def reserved_usd(self) -> float | None:
        if self.value is not None and self.saving.value is not None:
            return self.value * self.hours
        if not self.returnable or not self.freed:
            return 0.0
        return None if self.price is None else _dollars(self.freed_all_week() * self.price.value, self.price)

    def freed_all_week(self) -> float:
        return self.freed * HOURS_PER_WEEK

    def reserved(self) -> str:
        if self.value is not None and self.saving.value is not None:
            return f"{self.freed_hours()}; the reservation is paid as before"
        if not self.freed:
            return "Nothing is paid less: no GPU is free all week"
        if not self.returnable:
            return f"0 USD until the term ends; then {_gpus(self.freed)} need not be reserved again"
        if self.price is None:
            return f"{_gpus(self.freed)} can be given back; their price is not stated"
        amount = self.freed_all_week() * self.price.value
        return (
            f"{amount:,.0f} {self.price.currency} a week: {_gpus(self.freed)} can be given back for all hours at "
            f"{self.price.value:,.2f} {self.price.currency} ({self.price.source})"
        )

    def freed_hours(self) -> str:
        value = self.value or 0.0
        return f"{value * self.hours:,.0f} USD a week: {self.hours:,.0f} freed GPU-hours at {value:,.2f} USD, as asked"

    def none_stated(self) -> str:
        return f"No saving is stated: {(self.saving.reason or 'there is none').rstrip('.')}"


def _check(freed: int, fleet: int, stated: dict[str, float | None]) -> None:
    if not 0 <= freed <= fleet:
        got = f"{freed} of {fleet}"
        raise ScenarioError(
            message("worth", "GPUs free at peak among those of the fleet", got, "Count them anew.")
        )
    below = {
        name: value for name, value in stated.items() if value is not None and not 0 <= value < float("inf")
    }
    if below:
        got = ", ".join(f"{name} {value:g}" for name, value in below.items())
        raise ScenarioError(message("worth", "figures not below 0", got, "Change them."))


def _kwh(power: PowerModel | None, off: float, pue: float) -> float | None:
    """Energy that GPUs would have drawn idle. Hosts are left out: what they draw idle has no source."""
    if not off:
        return 0.0
    if power is None:
        return None
    idle = gpu_kwh(power, powered_gpu_hours=off, resident_gpu_hours=0.0, active_gpu_hours=0.0)
    return facility_kwh(idle, host_factor=1.0, pue=pue)


def _text(*parts: str | None) -> str:
    return " ".join(f"{part}." for part in parts if part)


def _gpus(count: int) -> str:
    return f"{count:,} GPU" if count == 1 else f"{count:,} GPUs"


def _dollars(amount: float, price: Price) -> float | None:
    """An amount, if it is in dollars: others stand in the sentence."""
    return amount if price.currency == DOLLARS else None


def _day(when: date | str | None) -> str | None:
    if when is None:
        return None
    found = date.fromisoformat(when) if isinstance(when, str) else when
    return f"{found.day} {_MONTHS[found.month - 1]} {found.year}"


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
