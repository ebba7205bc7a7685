"""Demand and forecast charts."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner import plot
from gpuplanner.errors import SchemaError
from gpuplanner.plot import prepare


def rows(spec: dict) -> pl.DataFrame:
    (values,) = spec["datasets"].values()
    return pl.DataFrame(values, infer_schema_length=None)


def test_panels_are_the_largest_profiles_first(demand, forecast):
    spec = plot.chart_spec(plot.plot_demand(demand, forecast))
    assert spec["facet"]["sort"] == ["gpu", "1g.10gb"]
    assert spec["spec"]["layer"][1]["encoding"]["x"]["scale"]["type"] == "utc"
    assert plot.chart_spec(plot.plot_demand(demand, top=1))["facet"]["sort"] == ["gpu"]


def test_binning_keeps_the_mean(demand):
    drawn = rows(plot.chart_spec(plot.plot_demand(demand, by="unique_id", history_days=20)))
    for series in demand["unique_id"].unique():
        shown = drawn.filter(panel=series)["y"].mean()
        assert shown == pytest.approx(demand.filter(unique_id=series)["y"].mean(), rel=0.01)


def test_forecast_of_a_panel_is_the_sum_of_its_series(demand, forecast):
    drawn = rows(plot.chart_spec(plot.plot_demand(demand, forecast))).filter(kind="forecast")
    assert set(drawn["y"]) == {30.0}
    assert set(drawn["low"]) == {21.0}
    assert set(drawn["high"]) == {39.0}
    assert drawn["ds"].min() == "2026-10-21T00:00:00Z"


def test_a_line_alone_needs_no_legend_and_the_axis_says_what_is_counted(demand, forecast):
    alone = plot.chart_spec(plot.plot_demand(demand, unit="GPUs"))["spec"]["layer"][0]["encoding"]
    assert (alone["color"]["legend"], alone["y"]["title"]) == (None, "GPUs")
    both = plot.chart_spec(plot.plot_demand(demand, forecast))["spec"]["layer"][1]["encoding"]
    assert both["color"].get("legend", {}) is not None


def test_only_the_end_of_the_history_is_shown(demand):
    drawn = rows(plot.chart_spec(plot.plot_demand(demand, history_days=2)))
    assert drawn["ds"].min() == "2026-10-19T00:00:00Z"


def test_a_long_history_is_binned_until_it_is_small(demand):
    drawn = rows(plot.chart_spec(plot.plot_demand(demand, by="unique_id", history_days=1000)))
    assert drawn.height <= prepare.MAX_ROWS


def test_two_models_for_one_series_are_refused(demand, forecast):
    with pytest.raises(SchemaError, match="one model per series"):
        plot.plot_demand(demand, pl.concat([forecast, forecast]))


def test_models_stand_in_order_of_their_error(scores):
    spec = plot.chart_spec(plot.plot_backtest_scores(scores))
    left, right = spec["concat"]
    assert left["layer"][0]["encoding"]["y"]["sort"] == ["good", "bad"]
    assert left["layer"][1]["encoding"]["x"]["datum"] == 1.0
    assert right["layer"][1]["encoding"]["x"]["datum"] == 0.9


def test_series_without_a_score_leave_the_others_in_place(scores):
    unknown = scores.with_columns(mase=pl.when(pl.col("model") == "good").then("mase"))
    assert "good" in plot.chart_to_svg(plot.plot_backtest_scores(unknown))
