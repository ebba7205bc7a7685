"""What of a scenario can be wrong is said before anything is read: a walk takes minutes."""

from __future__ import annotations

from gpuplanner.catalog.loader import facts, has_price
from gpuplanner.cost.energy import carbon_factor
from gpuplanner.hardware.list_prices import gpu_hour_price
from gpuplanner.errors import GpuPlannerError, ScenarioError, message
from gpuplanner.intervals import slot_ticks
from gpuplanner.scenario import Scenario


def check_options(scenario: Scenario) -> None:
    """Refuse a scenario that cannot be evaluated whatever the data hold; all faults are named at once.

    Examples
    --------
    >>> check_options(Scenario(currency="EUR"))
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: currency: expected USD, the currency of the list prices; got EUR. Set ...
    """
    faults = []
    for check in (_region, _currency, _grid):
        try:
            check(scenario)
        except GpuPlannerError as error:
            faults.append(str(error))
    if faults:
        raise ScenarioError(" ".join(faults))


def _region(scenario: Scenario) -> None:
    carbon_factor(scenario.carbon_region)


def _currency(scenario: Scenario) -> None:
    """Without a price of one's own nothing is converted; whose board it is may not be known yet."""
    if scenario.price_usd_per_gpu_hour > 0:
        return
    if scenario.board and has_price(scenario.board):
        gpu_hour_price(scenario.board, currency=scenario.currency)
    listed = facts("gpu_prices")["currency"].unique().sort().to_list()
    if scenario.currency not in listed:
        expected = f"{' or '.join(listed)}, the currency of the list prices"
        todo = "Set price_usd_per_gpu_hour to your own price in that currency."
        raise ScenarioError(message("currency", expected, scenario.currency, todo))


def _grid(scenario: Scenario) -> None:
    slot_ticks(scenario.slot_hours, where="scenario")
