"""Demand and forecast charts."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner import report as plots


def rows(spec: dict) -> pl.DataFrame:
    (values,) = spec["datasets"].values()
    return pl.DataFrame(values, infer_schema_length=None)


def test_panels_are_the_largest_profiles_first(demand, forecast):
    spec = plots.chart_spec(plots.plot_demand(demand, forecast))
    assert spec["facet"]["sort"] == ["gpu", "1g.10gb"]
    assert spec["spec"]["layer"][1]["encoding"]["x"]["scale"]["type"] == "utc"
    assert plots.chart_spec(plots.plot_demand(demand, top=1))["facet"]["sort"] == ["gpu"]


def test_binning_keeps_the_mean(demand):
    drawn = rows(plots.chart_spec(plots.plot_demand(demand, by="unique_id", history_days=20)))
    for series in demand["unique_id"].unique():
        shown = drawn.filter(panel=series)["y"].mean()
        assert shown == pytest.approx(demand.filter(unique_id=series)["y"].mean(), rel=0.01)


def test_forecast_of_a_panel_is_the_sum_of_its_series(demand, forecast):
    drawn = rows(plots.chart_spec(plots.plot_demand(demand, forecast))).filter(kind="forecast")
    assert set(drawn["y"]) == {30.0}
    assert set(drawn["low"]) == {21.0}
    assert set(drawn["high"]) == {39.0}
    assert drawn["ds"].min() == "2026-10-21T00:00:00Z"
