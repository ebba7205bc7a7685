"""Energy, carbon and cost of the past month, as far as price and power of its board are known."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.catalog import has_price, parameter
from gpuplanner.cost import (
    CarbonFactor,
    PowerModel,
    Price,
    carbon_factor,
    carbon_kg,
    facility_kwh,
    gpu_hour_price,
    gpu_kwh,
    power_model,
    showback,
)
from gpuplanner.errors import GeometryError, ScenarioError
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import Costs, empty
from gpuplanner.study.past.accounts import ledger
from gpuplanner.study.past.fleet import PlannedFleet
from gpuplanner.study.past.history import history
from gpuplanner.study.stages import stage

WORKED = ("used", "unobserved", "held_idle")
"""Buckets in which a job was on the GPU."""


@dataclass(frozen=True, eq=False)
class Money:
    """Costs of the past, with what they rest on; None where nothing is known.

    ``missing`` says in sentences what is not stated, and why.
    """

    price: Price | None
    power: PowerModel | None
    carbon: CarbonFactor
    pue: float
    costs: pl.DataFrame
    energy_kwh: float | None
    carbon_kg: float | None
    missing: tuple[str, ...] = ()


@stage
def money(scenario: Scenario) -> Money:
    """Price the month behind, as far as price and power of the board are known."""
    known = history(scenario)
    price = price_of(scenario, known.fleet)
    power = power_of(known.fleet)
    factor = carbon_factor(scenario.carbon_region)
    pue = pue_of(scenario)
    booked = known.fleet.hours_of(ledger(scenario))
    month_kwh = None if power is None else _month_kwh(booked, known.jobs, power, pue)
    month_kg = None if month_kwh is None else carbon_kg(month_kwh, factor)["operational_kg"]
    period = {"start": known.begin, "end": known.end}
    return Money(
        price=price,
        power=power,
        carbon=factor,
        pue=pue,
        costs=empty(Costs)
        if price is None
        else showback(booked, price, **period, energy_kwh=month_kwh, carbon_kg=month_kg),
        energy_kwh=month_kwh,
        carbon_kg=month_kg,
        missing=_missing(known.fleet, price, power),
    )


def price_of(scenario: Scenario, fleet: PlannedFleet) -> Price | None:
    """The scenario's own price, else the list price of the board, if it has one."""
    own = scenario.price_usd_per_gpu_hour
    if own > 0:
        return gpu_hour_price(fleet.board.name, own=own, currency=scenario.currency)
    if fleet.name is None or not fleet.in_catalogue or not has_price(fleet.name):
        return None
    return gpu_hour_price(fleet.name, currency=scenario.currency)


def pue_of(scenario: Scenario) -> float:
    """Energy of the building over that of its machines: the scenario's own, else the catalogue's."""
    return scenario.pue or parameter("pue").value


def power_of(fleet: PlannedFleet) -> PowerModel | None:
    """The law of power of the board to plan for; None where the catalogue has none."""
    if fleet.name is None or not fleet.in_catalogue:
        return None
    try:
        return power_model(fleet.name)
    except (GeometryError, ScenarioError):
        return None


def _missing(fleet: PlannedFleet, price: Price | None, power: PowerModel | None) -> tuple[str, ...]:
    board = fleet.name if fleet.in_catalogue else "a board that is not known"
    found = []
    if price is None:
        found.append(
            f"No money is stated: the catalogue has no list price of {board}. Give your own with "
            "--set price_usd_per_gpu_hour=…"
        )
    if power is None:
        found.append(f"No energy and no carbon is stated: the catalogue has no power rating of {board}.")
    return tuple(found)


def _month_kwh(booked: pl.DataFrame, jobs: pl.DataFrame, power: PowerModel, pue: float) -> float:
    """Facility energy of the ledger's GPU-hours; activity is the mean over jobs, weighed by GPU time."""
    hours = dict(booked.group_by("bucket").agg(pl.col("gpu_hours").sum()).iter_rows())
    powered = sum(float(value) for name, value in hours.items() if name != "down")
    resident = sum(float(hours.get(name, 0.0)) for name in WORKED)
    seen = jobs.filter(pl.col("sm_activity").is_not_null())
    weight = seen["gpus"] * seen["run_s"]
    total = float(weight.sum())
    activity = float((seen["sm_activity"] * weight).sum()) / total if total > 0 else 1.0
    gpu_energy = gpu_kwh(
        power, powered_gpu_hours=powered, resident_gpu_hours=resident, active_gpu_hours=activity * resident
    )
    return facility_kwh(gpu_energy, host_factor=parameter("host_factor").value, pue=pue)
