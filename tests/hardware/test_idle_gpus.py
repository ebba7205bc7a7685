"""What becomes of GPUs that a plan does not need: owned ones are parked at the price of their power, others go."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.cost.period_costs import idle_gpu_price
from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.hardware.power_carbon_and_prices import find_gpu_hour_price, make_power_model
from gpuplanner.usage.planning_history import history


def owned_as(kinds: list[str | None]):
    """The sample's fleet, its first nodes owned so."""
    fleet = history(Scenario()).fleet
    inventory = fleet.installed.inventory
    ownership = pl.Series([*kinds, *[None] * (inventory.height - len(kinds))], dtype=pl.String)
    inventory = inventory.with_columns(ownership=ownership)
    return replace(fleet, installed=replace(fleet.installed, inventory=inventory))


def test_an_owned_gpu_costs_its_power():
    pue, electricity = find_parameter("pue").value, find_parameter("electricity_usd_per_kwh").value
    gpu_model = "H100-80GB-SXM5"
    expected = make_power_model(gpu_model).idle_w / 1000 * pue * electricity / find_gpu_hour_price(gpu_model).value
    assert idle_gpu_price(Scenario(), owned_as(["owned"]))[0] == pytest.approx(expected)
    assert idle_gpu_price(Scenario(pue=1.0), owned_as(["owned"]))[0] == pytest.approx(expected / pue)


@pytest.mark.parametrize(
    ("kinds", "released"), [(["on_demand"] * 8, True), (["spot"] * 5, True), (["spot"] * 4, False)]
)
def test_what_is_rented_by_the_hour_is_given_back(kinds, released):
    parked_price, basis = idle_gpu_price(Scenario(), owned_as(kinds))
    assert (parked_price is None) == released
    assert ("rented by the hour" in basis) == released


def test_a_path_that_stops_nodes_gives_idle_gpus_back():
    scenario = Scenario(actuator="slurm")
    assert idle_gpu_price(scenario, history(scenario).fleet)[0] is None
