"""Energy, carbon and cost of the past month and of every policy, and what each step saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.catalog import has_price, parameter
from gpuplanner.cost import (
    STEPS,
    WHOLE_STEPS,
    CarbonFactor,
    PowerModel,
    Price,
    carbon_factor,
    carbon_kg,
    facility_kwh,
    gpu_hour_price,
    gpu_kwh,
    power_model,
    savings_table,
    showback,
)
from gpuplanner.errors import GeometryError, ScenarioError
from gpuplanner.metrics import mean_interval
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import Costs, empty
from gpuplanner.study.future.proof import proof
from gpuplanner.study.past.accounts import ledger
from gpuplanner.study.past.fleet import PlannedFleet
from gpuplanner.study.past.history import history
from gpuplanner.study.stages import stage
from gpuplanner.units import HOURS_PER_WEEK

WORKED = ("used", "unobserved", "held_idle")
"""Buckets in which a job was on the GPU."""


@dataclass(frozen=True, eq=False)
class Money:
    """Costs of the past and savings of the future, with what they rest on; None where nothing is known.

    ``missing`` says in sentences what is not stated, and why.
    """

    price: Price | None
    power: PowerModel | None
    carbon: CarbonFactor
    pue: float
    costs: pl.DataFrame
    energy_kwh: float | None
    carbon_kg: float | None
    savings: pl.DataFrame
    missing: tuple[str, ...] = ()


@stage("price_usd_per_gpu_hour", "carbon_region", "pue", "currency", after=(history, ledger))
def past_money(scenario: Scenario) -> Money:
    """Price the month behind, as far as price and power of the board are known; without savings."""
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
        savings=pl.DataFrame(),
        missing=_missing(known.fleet, price, power),
    )


@stage(after=(past_money, proof))
def money(scenario: Scenario) -> Money:
    """Price the month behind and the plan ahead, as far as price and power of the board are known."""
    behind = past_money(scenario)
    savings = savings_table(
        _priced(proof(scenario), behind.power, behind.carbon, behind.pue),
        behind.price,
        interval=_interval,
        weeks=scenario.horizon_slots * scenario.slot_hours / HOURS_PER_WEEK,
        steps=STEPS if history(scenario).fleet.can_be_cut else WHOLE_STEPS,
    )
    return replace(behind, savings=savings)


def price_of(scenario: Scenario, fleet: PlannedFleet) -> Price | None:
    """The scenario's own price, else the list price of its board; None where no board is known or none is listed."""
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


def _priced(runs: pl.DataFrame, power: PowerModel | None, factor: CarbonFactor, pue: float) -> pl.DataFrame:
    """GPU-hours, energy and carbon of every run; the last two null without a law of power."""
    hours = runs.select("policy", "replication", gpu_hours="provisioned_gpu_hours")
    if power is None:
        nothing = pl.lit(None, pl.Float64)
        return hours.with_columns(energy_kwh=nothing, carbon_kg=nothing)
    energy = energy_of_runs(runs, power, pue)
    carbon = [carbon_kg(kwh, factor)["operational_kg"] for kwh in energy]
    return hours.with_columns(
        energy_kwh=energy,
        carbon_kg=pl.Series(carbon, dtype=pl.Float64),
    )


def energy_of_runs(runs: pl.DataFrame, power: PowerModel, pue: float) -> pl.Series:
    """Energy at the building's meter of every run of :func:`~gpuplanner.study.future.proof.proof` [kWh]."""
    host = parameter("host_factor").value
    energy = [
        facility_kwh(
            gpu_kwh(power, powered_gpu_hours=on, resident_gpu_hours=resident, active_gpu_hours=active),
            host_factor=host,
            pue=pue,
        )
        for on, resident, active in runs.select(
            "provisioned_gpu_hours", "resident_gpu_hours", "active_gpu_hours"
        ).iter_rows()
    ]
    return pl.Series("energy_kwh", energy, dtype=pl.Float64)


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    found = mean_interval(values)
    low = found.mean if found.low is None else found.low
    high = found.mean if found.high is None else found.high
    return found.mean, low, high
