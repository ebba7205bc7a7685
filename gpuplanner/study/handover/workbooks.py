"""Workbooks of a study and of a review of a month, with the totals of their reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.cost.footprint import AMOUNTS
from gpuplanner.export.focus import FOCUS_TIME
from gpuplanner.export.workbook import Summary, write_workbook
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.frames import target_in_words
from gpuplanner.study.future.cost_review import CostReview, price_rows
from gpuplanner.study.study import Study
from gpuplanner.units import counted, three_figures

SHEETS = {
    "ledger_buckets": ("Ledger", ["gpu_hours"]),
    "ledger_tenants": ("Tenants", ["held_gpu_hours"]),
    "costs": ("Costs", []),
    "energy": ("Energy", ["gpu_hours", "energy_kwh", "location_kg", "market_kg", "embodied_kg"]),
    "policies": ("Policies", []),
    "waits": ("Waits", []),
    "wait_curve": ("Wait curve", []),
    "rightsizing": ("Right-sizing", ["jobs", "gpu_hours"]),
    "weeks": ("Weeks", []),
    "layout_plan": ("Layout plan", []),
    "layout_counts": ("Layout counts", []),
    "layout_changes": ("Layout changes", ["changes"]),
    "choice": ("Forecast models", []),
    "scores": ("Forecast scores", []),
    "quality": ("Data quality", []),
}
"""Tables of the workbook: name of the sheet, and the columns added up at its foot. What ``ingest`` reads as a bill has
none: its sums stand on a sheet of their own."""
NAMED = {
    "total_cost": "EffectiveCost", "total_gpu_hours": "PricingQuantity", "total_energy_kwh": "x_EnergyKwh",
    "total_carbon_kg": "x_CarbonKg",
}  # fmt: skip


def write_study_workbook(
    path: str | Path, study: Study, more: Mapping[str, pl.DataFrame] | None = None
) -> Path:
    """Write the tables of a study, and more sheets by name, as a workbook whose totals are those of the report."""
    there = {name: study.tables[name] for name in SHEETS if name in study.tables}
    sheets = {SHEETS[name][0]: table for name, table in there.items() if table.width} | dict(more or {})
    totals = {sheet: columns for sheet, columns in SHEETS.values() if columns and sheet in sheets}
    asked = study.scenario
    return _with_totals(
        path, sheets, title=asked.name, notes=notes(study), totals=totals, locale=asked.number_locale
    )


def write_cost_workbook(
    path: str | Path, found: CostReview, more: Mapping[str, pl.DataFrame] | None = None, *, locale: str = "en"
) -> Path:
    """Write a review of a month as a workbook for finance: charge lines as a bill is read, and what they sum to."""
    sheets = {
        "Costs": found.costs, "Tenants": found.by_tenant, "Reasons": found.by_bucket, "Ownership": found.by_ownership,
        "Ends": found.by_end, "Jobs": found.by_job, "Energy": found.states, "Prices": price_rows(found), **(more or {}),
    }  # fmt: skip
    told = {"Period": " to ".join(found.period), "Not stated": " ".join(found.missing) or "nothing"}
    totals = {"Energy": list(AMOUNTS)}
    there = {name: table for name, table in sheets.items() if table.width}
    return _with_totals(path, there, title=found.name, notes=told, totals=totals, locale=locale)


def _with_totals(
    path: str | Path,
    sheets: Mapping[str, pl.DataFrame],
    *,
    title: str,
    notes: Mapping[str, str],
    totals: Mapping[str, Sequence[str]],
    locale: str,
) -> Path:
    """A workbook whose charge lines stand as a reader of bills takes them, summed on a sheet of their own."""
    name, summary = SHEETS["costs"][0], None
    if name in sheets and sheets[name].height:
        lines = sheets[name].with_columns(pl.selectors.datetime().dt.strftime(FOCUS_TIME))
        sheets = {**sheets, name: lines}
        # What no line knows has no total: it is not zero.
        told = {total: column for total, column in NAMED.items() if lines[column].count()}
        summary = Summary(name, told, "EffectiveCost", "SubAccountName")
    return write_workbook(
        path, sheets, title=title, notes=notes, totals=totals, summary=summary, locale=locale
    )


def notes(study: Study) -> Mapping[str, str]:
    """What a reader of a file must know: period, baseline, price, sources, versions."""
    price, trace = study.provenance.price, study.provenance.read
    return {
        "Period": f"{study.headline.observed_from} to {study.headline.observed_to}",
        "Source": f"{trace.source}, {trace.rows_kept} of {trace.rows_in} rows kept",
        "Files read": "; ".join(
            f"{name}: sha256 {sha}" for name, sha in sorted(study.provenance.inputs.items())
        ),
        "Baseline": study.provenance.policies["today"],
        "Service": target_in_words(study.comparison),
        "Fleet": f"{study.headline.fleet_gpus} GPUs of {study.headline.board or study.headline.boards}, "
        f"{study.headline.fleet_note}; {study.headline.installed_gpus} installed",
        "Decision": study.decision.sentence,
        "How sure": " ".join(study.decision.how_sure),
        "Price": "none"
        if price is None
        else f"{price.value:.4f} {price.currency} a GPU-hour; {price.source}; {price.date}",
        "Carbon": f"{study.provenance.carbon.source}; {study.provenance.carbon.year}",
        "Scenario": "; ".join(_stated(study.scenario)) or "all as it is by default",
        **_plan_notes(study),
        "gpuplanner": str(study.provenance.gpuplanner),
    }


def _plan_notes(study: Study) -> Mapping[str, str]:
    """Status, cost and gap of the plan, and the solver's work."""
    plan = study.plan
    if plan is None:
        return {}
    result = (
        f"{plan.status}; {counted(len(plan.layouts), 'layout')}; it costs {three_figures(plan.objective or 0.0)} "
        f"GPU-hours, no plan less than {three_figures(plan.bound or 0.0)} ({plan.gap or 0.0:.2%})"
    )
    return {"Plan": result, "Search": study.provenance.search}


def _stated(scenario: Scenario) -> Iterator[str]:
    """What a scenario says otherwise than by default, field by field."""
    for name, (_, stated) in Scenario().diff(scenario).items():
        yield f"{name} = {stated}"
