"""A section of the monthly report about its own past: what was forecast in earlier months, and what came."""

from __future__ import annotations

import polars as pl

from gpuplanner.report import page, tables
from gpuplanner.report.section import Section
from gpuplanner.study.forecast_ledger import record_of

HEADINGS = {
    "cutoff": "forecast from",
    "slots": "slots that have come",
    "mae": "error, instances",
    "naive_mae": "error of the last value",
    "coverage_90": "in the 90 % interval",
    "cost": "cost as planned",
    "naive_cost": "cost for the last value",
}


def forecast_record(ledger: pl.DataFrame) -> Section:
    """How wrong the forecasts of earlier reports were, and what planning by them cost against the last value."""
    record = record_of(ledger)
    if record.is_empty():
        waits = (
            f"{ledger['cutoff'].n_unique()} forecast is written down"
            if ledger.height
            else "None is written down"
        )
        text = f"{waits}; a later report says what came of it."
        return Section(page.fold("Past forecasts", page.paragraph(text)))
    mean = record.select(pl.col("mae", "naive_mae", "cost", "naive_cost", "coverage_90").mean()).row(
        0, named=True
    )
    told = "Of the one earlier forecast" if record.height == 1 else f"Over {record.height} earlier forecasts"
    text = (
        f"{told} the error was {mean['mae']:.2f} instances, that of the last value "
        f"{mean['naive_mae']:.2f}; the 90 % interval held {mean['coverage_90']:.0%} of the slots. What was planned "
        f"cost {mean['cost']:.2f} per instance needed, planning for the last value {mean['naive_cost']:.2f}."
    )
    shown = record.with_columns(pl.col("cutoff").dt.strftime("%Y-%m-%d"))
    formats = dict.fromkeys(("mae", "naive_mae", "cost", "naive_cost"), ".2f") | {"coverage_90": ".0%"}
    table = tables.table(shown, caption="Forecasts of earlier reports", formats=formats, headings=HEADINGS)
    return Section(page.fold("Past forecasts", page.paragraph(text), table))
