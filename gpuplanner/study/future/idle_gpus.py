"""What becomes of GPUs that a plan does not need, and what an hour of one costs.

Who owns a GPU pays for its power while it is idle, and nothing else: it is parked, and keeps its layout. Who rents it
by the hour pays for it all until it is given back, and so it is released. Where a path starts and stops nodes, they
come back without a layout, whoever owns them.
"""

from __future__ import annotations

import polars as pl

from gpuplanner.catalog.loader import has_price, parameter
from gpuplanner.hardware.list_prices import gpu_hour_price
from gpuplanner.scenario import Scenario
from gpuplanner.study.future.money import power_of, pue_of
from gpuplanner.study.past.fleet import PlannedFleet

GOES = ("autoscaler", "slurm")
"""Paths on which a node that is not needed is stopped."""
BY_THE_HOUR = ("on_demand", "spot")
"""Kinds of ownership that end when a GPU is given back."""


def idle_gpus(scenario: Scenario, fleet: PlannedFleet) -> tuple[float | None, str]:
    """Price of an hour of a parked GPU, as a share of one that is on, and why; None where idle GPUs are released.

    Examples
    --------
    >>> from gpuplanner.study.past.history import history
    >>> parked_price, basis = idle_gpus(Scenario(), history(Scenario()).fleet)
    >>> print(round(parked_price, 5), basis)
    0.00108 owned, 70 W idle x PUE 1.56 x 0.122 USD/kWh, of 12.29 USD list price an hour
    >>> idle_gpus(Scenario(path="autoscaler"), history(Scenario()).fleet)
    (None, 'autoscaler stops nodes that are not needed')
    """
    if scenario.path in GOES:
        return None, f"{scenario.path} stops nodes that are not needed"
    if _rented(fleet):
        return None, "rented by the hour: a parked GPU would cost as much as one that is on"
    power = power_of(fleet)
    if power is None or fleet.name is None or not has_price(fleet.name):
        return 0.0, "owned; what its power costs beside a GPU-hour is not known"
    pue, electricity = pue_of(scenario), parameter("electricity_usd_per_kwh").value
    list_price = gpu_hour_price(fleet.name).value
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
