"""From the requested GPUs to the recommended ones, step by step, each with its reason."""

from __future__ import annotations

import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.forecast.rolling_demand_forecast import OUTLOOK_STAGE_BY_VIEW, at_quantile, demand_by_view
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.usage.study_history import history

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
    decision, gpu_model = comparison.decision, history(scenario).fleet.gpu_model
    demand = demand_by_view(scenario)
    view = "requested" if "requested" in demand else "whole"
    days = scenario.horizon_intervals * scenario.interval_hours / 24
    forecast = at_quantile(OUTLOOK_STAGE_BY_VIEW["rightsized"](scenario).to_cover, scenario.quantile)
    forecast = forecast.with_columns(profile=pl.col("unique_id").str.split("/").list.last())
    change = decision.gpus - decision.fleet_gpus
    reason = decision.reason or decision.sentence
    is_decided = decision.action != "none"
    rows = [
        (
            "requested at peak",
            _peak_gpus(demand[view], gpu_model),
            "busiest interval of the recent record if no job waited",
        ),
        ("rightsized at peak", _peak_gpus(demand["rightsized"], gpu_model), "the same on recommended profiles"),
        (
            f"forecast, p{100 * scenario.quantile:g}",
            _peak_gpus(forecast, gpu_model),
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


def _peak_gpus(demand: pl.DataFrame, gpu_model: GpuModel) -> float | None:
    """Return the most GPUs that instances take up in an interval of a table ``ds, profile, y``; None without rows."""
    names = demand["profile"].unique().to_list()
    share = pl.col("profile").replace_strict({name: gpu_model.gpu_fraction(name) for name in names})
    by_interval = demand.group_by("ds").agg(gpus=(pl.col("y") * share).sum())
    peak = by_interval["gpus"].max()
    return None if peak is None else float(peak)  # type: ignore[arg-type]
