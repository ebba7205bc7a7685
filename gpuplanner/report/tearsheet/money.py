"""Sections of the monthly report about cost, energy and carbon, and what all figures rest on."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page, tables
from gpuplanner.report.section import Section
from gpuplanner.study import Study

TITLE, ABOUT = "Cost, energy and carbon", "of the whole period, by team"


def costs(study: Study) -> Section:
    """Who pays for the period, energy and carbon; what is not known is said in its place."""
    table, figures = study.tables["costs"], study.headline
    missing = [page.paragraph(sentence) for sentence in study.provenance["not_stated"]]
    if figures["cost"] is None:
        energy = [page.paragraph(_energy(study))] if figures["energy_kwh"] is not None else []
        return Section(page.fold(TITLE, *missing, *energy, about=ABOUT))
    bars = table.select(tenant="SubAccountName", cost=pl.col("EffectiveCost").cast(pl.Float64))
    text = (
        f"The lines sum to {Decimal(figures['cost']):,.2f} {figures['currency']}, the price of every installed "
        f"GPU-hour{_of_pool(figures)}."
    )
    if figures["energy_kwh"] is not None:
        text += f" {_energy(study)}"
    chosen = [
        "SubAccountName",
        "PricingQuantity",
        "EffectiveCost",
        "BillingCurrency",
        "x_EnergyKwh",
        "x_CarbonKg",
    ]
    return Section(
        page.fold(
            TITLE,
            page.paragraph(text),
            *missing,
            page.figure(
                plot.plot_costs(bars, unit=figures["currency"]),
                title="Cost by tenant",
                alt="What nobody held is a line of its own, not spread over tenants.",
                table=table.select(name for name in chosen if table[name].null_count() < table.height),
            ),
            about=ABOUT,
        )
    )


def _of_pool(figures: Mapping[str, Any]) -> str:
    return "" if figures["fleet_gpus"] == figures["installed_gpus"] else f" of {figures['board']}"


def _energy(study: Study) -> str:
    figures, carbon = study.headline, study.provenance["carbon"]
    return (
        f"Energy {figures['energy_kwh']:,.0f} kWh at the building's meter (PUE {study.provenance['pue']:g}), "
        f"{figures['carbon_kg']:,.0f} kg CO2e operational at {carbon['gco2e_per_kwh']:g} g/kWh ({carbon['region']}, "
        f"{carbon['method']}, {carbon['year']})."
    )


def method(study: Study) -> Section:
    """What the figures rest on."""
    assumptions = pl.DataFrame(
        [{"assumption": name, **values} for name, values in study.provenance["assumptions"].items()]
    )
    return Section(
        page.fold(
            "What this rests on",
            tables.table(assumptions, caption="Assumed figures with range, source and date"),
            about="assumed figures, with their sources",
        )
    )
