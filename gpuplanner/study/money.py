"""Energy, carbon and cost of the past month and of every policy, and what each step saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from gpuplanner.catalog import parameter
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
    savings_table,
    showback,
)
from gpuplanner.metrics import mean_interval
from gpuplanner.scenario import Scenario
from gpuplanner.study.history import history
from gpuplanner.study.past import ledger
from gpuplanner.study.proof import proof
from gpuplanner.study.stage import stage
from gpuplanner.units import HOURS_PER_WEEK

WORKED = ("used", "unobserved", "held_idle")
"""Buckets in which a job was on the GPU."""


@dataclass(frozen=True, eq=False)
class Money:
    """Costs of the past and savings of the future, with what they rest on."""

    price: Price
    power: PowerModel
    carbon: CarbonFactor
    pue: float
    costs: pl.DataFrame
    energy_kwh: float
    carbon_kg: float
    savings: pl.DataFrame


@stage("price_usd_per_gpu_hour", "carbon_region", "pue", "currency", after=(proof,))
def money(scenario: Scenario) -> Money:
    """Price the month behind and the plan ahead."""
    known = history(scenario)
    price = gpu_hour_price(scenario.board, own=scenario.price_usd_per_gpu_hour, currency=scenario.currency)
    power = power_model(scenario.board)
    factor = carbon_factor(scenario.carbon_region)
    pue = scenario.pue or parameter("pue").value
    booked = ledger(scenario)
    month_kwh = _month_kwh(booked, known.jobs, power, pue)
    month_kg = carbon_kg(month_kwh, factor)["operational_kg"]
    return Money(
        price=price,
        power=power,
        carbon=factor,
        pue=pue,
        costs=showback(
            booked, price, start=known.begin, end=known.end, energy_kwh=month_kwh, carbon_kg=month_kg
        ),
        energy_kwh=month_kwh,
        carbon_kg=month_kg,
        savings=savings_table(
            _priced(proof(scenario), power, factor, pue),
            price,
            interval=_interval,
            weeks=scenario.horizon_slots * scenario.slot_hours / HOURS_PER_WEEK,
        ),
    )


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


def _priced(runs: pl.DataFrame, power: PowerModel, factor: CarbonFactor, pue: float) -> pl.DataFrame:
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
    carbon = [carbon_kg(kwh, factor)["operational_kg"] for kwh in energy]
    return runs.select(
        "policy",
        "replication",
        gpu_hours="provisioned_gpu_hours",
        energy_kwh=pl.Series(energy, dtype=pl.Float64),
        carbon_kg=pl.Series(carbon, dtype=pl.Float64),
    )


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    found = mean_interval(values)
    low = found.mean if found.low is None else found.low
    high = found.mean if found.high is None else found.high
    return found.mean, low, high
