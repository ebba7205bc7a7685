"""From the requested GPUs to the recommended ones, step by step, each with its reason."""

from __future__ import annotations

import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.forecast.rolling_demand_forecast import (
    OUTLOOK_STAGE_BY_VIEW,
    at_quantile,
    demand_by_view,
    gpu_fraction_of_series,
)
from gpuplanner.usage.planning_history import History, history

RECONCILIATION_SCHEMA = {"step": pl.String, "gpus": pl.Float64, "reason": pl.String}
"""Columns of the table of :func:`reconcile_gpus`."""


def reconcile_gpus(scenario: Scenario, comparison: Comparison) -> pl.DataFrame:
    """Tabulate how the number of recommended GPUs follows from the requested ones.

    Parameters
    ----------
    scenario : Scenario
        Data, horizon and quantile of the forecast.
    comparison : Comparison
        Policies and decision of the scenario.

    Returns
    -------
    polars.DataFrame
        ``step, gpus, reason``: GPUs in use at the busiest interval if no job waited, as requested and rightsized; the
        forecast of the latter; the installed and the recommended GPUs, and the difference to release or to buy. [GPU]
        Null where a step is not known.
    """
    decision, job_history = comparison.decision, history(scenario)
    demand = demand_by_view(scenario)
    days = scenario.horizon_intervals * scenario.interval_hours / 24
    forecast = at_quantile(OUTLOOK_STAGE_BY_VIEW["rightsized"](scenario).to_cover, scenario.quantile)
    change = decision.gpus - decision.fleet_gpus
    reason = decision.reason or decision.sentence
    is_decided = decision.action != "none"
    rows = [
        (
            "requested at peak",
            _peak_gpus(demand["requested"], job_history),
            "busiest interval of the recent record if no job waited",
        ),
        ("rightsized at peak", _peak_gpus(demand["rightsized"], job_history), "the same on recommended profiles"),
        (
            f"forecast, p{100 * scenario.quantile:g}",
            _peak_gpus(forecast, job_history),
            f"rightsized demand in the busiest interval of the next {days:g} days",
        ),
        ("installed", float(decision.fleet_gpus) or None, "nodes of the data"),
        ("recommended", float(decision.gpus) if is_decided else None, reason),
        (
            "to buy" if change > 0 else "to release or power down",
            float(abs(change)) if is_decided else None,
            "whole nodes: jobs need idle GPUs on the same node, and waits must stay within their limits",
        ),
    ]
    return pl.DataFrame(rows, schema=RECONCILIATION_SCHEMA, orient="row")


def _peak_gpus(demand: pl.DataFrame, job_history: History) -> float | None:
    """Return the most GPUs that the instances of a table ``unique_id, ds, y`` take up at once; None without rows."""
    gpus = (pl.col("y") * gpu_fraction_of_series(demand, job_history)).sum()
    by_interval = demand.group_by("ds", maintain_order=True).agg(gpus=gpus)
    return None if by_interval.is_empty() else float(by_interval["gpus"].max())  # type: ignore[arg-type]
