"""Policies, savings and costs."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pytest

from gpuplanner import plot
from gpuplanner.errors import SchemaError
from gpuplanner.plot import prepare, theme


def test_policies_differ_by_place_shape_and_colour(policies):
    spec = plot.chart_spec(plot.plot_policies(policies))
    first, second = spec["concat"]
    assert (first["title"]["text"], second["title"]["text"]) == ("queueing delay", "energy")
    mark = first["layer"][1]["encoding"]
    assert mark["y"]["sort"] == policies["policy"].unique(maintain_order=True).to_list()
    assert len(set(mark["shape"]["scale"]["range"])) == 3
    assert len(set(mark["color"]["scale"]["range"])) == 3
    assert mark["x"]["title"] == "[h]"
    assert first["layer"][0]["encoding"]["x2"]["field"] == "high"


def test_pinned_policies_are_outlines_beside_those_that_were_found():
    points = {
        "policy": ["today", "a", "a"],
        "gpu_hours": [9.0, 5.0, 6.0],
        "wait_over_target": [1.0, 0.5, 0.7],
    }
    frame = pl.DataFrame(points | {"kind": ["today", "tuned", "pinned"]})
    spec = plot.chart_spec(plot.plot_frontier(frame))
    line, pinned, found, _ = spec["layer"]
    assert (pinned["mark"]["filled"], found["mark"]["filled"]) == (False, True)
    assert pinned["transform"] == [{"filter": "datum.kind == 'pinned'"}]
    assert line["transform"] == found["transform"] == [{"filter": "datum.kind != 'pinned'"}]
    assert plot.frontier_text(frame) == "today: 9 GPU-hours a week; a: 5."


def test_waterfall_walks_from_the_baseline_to_the_plan(savings):
    spec = plot.chart_spec(plot.plot_savings(savings))
    (values,) = spec["datasets"].values()
    bars = [(row["name"], row["before"], row["after"], row["kind"], row["label"]) for row in values]
    assert bars == [
        ("as installed", 0.0, 100.0, "needed", "100"),
        ("cutting", 100.0, 60.0, "saved", "−40"),
        ("waiting", 60.0, 70.0, "added", "+10"),
        ("plan", 0.0, 70.0, "needed", "70 (−30%)"),
    ]


def test_a_baseline_alone_is_no_plan(savings):
    spec = plot.chart_spec(plot.plot_savings(savings.head(1)))
    (values,) = spec["datasets"].values()
    assert [row["name"] for row in values] == ["as installed"]


def test_costs_add_up_and_stand_by_size(costs):
    spec = plot.chart_spec(plot.plot_costs(costs, unit="EUR", top=2))
    (values,) = spec["datasets"].values()
    assert sum(row["amount"] for row in values) == 100.0
    order = spec["layer"][0]["encoding"]["y"]["sort"]
    assert order == ["=1+1", 'a"b.c[d]\\e', "2 others"]


def test_costs_take_decimals_and_the_colours_given():
    frame = pl.DataFrame({"tenant": ["a"], "cost": [Decimal("1.25")]})
    spec = plot.chart_spec(plot.plot_costs(frame, unit="USD", colours={"a": "#123456"}))
    assert spec["layer"][0]["encoding"]["color"]["scale"]["range"] == ["#123456"]


def test_a_chart_refuses_more_rows_than_it_can_show():
    with pytest.raises(SchemaError, match=f"at most {prepare.MAX_ROWS} rows"):
        prepare.to_data(pl.DataFrame({"x": range(prepare.MAX_ROWS + 1)}), where="plot_x")


def test_titles_of_empty_charts_are_those_of_full_ones(policies):
    full, empty = plot.plot_policies(policies), plot.plot_policies(policies.clear())
    assert plot.chart_spec(full)["title"] == plot.chart_spec(empty)["title"]


def test_saying_keeps_text_as_text():
    chart = theme.saying("<b>", title="t")
    assert "&lt;b&gt;" in plot.chart_to_svg(chart)
