"""Ways to run a fleet, when it is full, and costs."""

from __future__ import annotations

import itertools

import polars as pl

from gpuplanner import report as plots
from tests.report.charts.conftest import HOSTILE


def layers(spec, mark):
    return [part for part in spec["layer"] if part["mark"]["type"] == mark]


def rows_of(spec, part):
    return spec["datasets"][part["data"]["name"]]


def test_axis_of_minutes_is_linear_and_the_zone_ends_at_the_limit(frontier):
    spec = plots.chart_spec(plots.plot_frontier(frontier, limit=10.0))
    (zone,) = layers(spec, "rect")
    assert rows_of(spec, zone) == [{"from": 0.0, "to": 10.0}]
    line = layers(spec, "line")[0]["encoding"]
    assert line["x"]["scale"]["domain"] == [0, 60]
    assert "type" not in line["x"]["scale"]
    low, high = line["y"]["scale"]["domain"]
    assert 0 < low <= 6500.0
    assert high >= 9000.0


def test_every_way_has_its_name_at_its_mark_and_no_two_touch(frontier):
    spec = plots.chart_spec(plots.plot_frontier(frontier, names={"pools": "mixed pools", "today": "as today"}))
    said = next(part for part in layers(spec, "text") if part["encoding"]["text"]["field"] == "label")
    rows = rows_of(spec, said)
    assert {row["name"] for row in rows} == {"as today", "mixed pools", HOSTILE[0]}
    low, high = layers(spec, "line")[0]["encoding"]["y"]["scale"]["domain"]
    places = sorted((high - row["label_y"]) / (high - low) * spec["height"] for row in rows)
    assert all(after - before >= 30 for before, after in itertools.pairwise(places))
    assert all(0 <= place <= spec["height"] for place in places)
    assert all(row["label_x"] > 10.0 for row in rows)


def test_only_the_recommended_way_is_in_colour(frontier):
    spec = plots.chart_spec(plots.plot_frontier(frontier, best="pools"))
    rows = [row for rows in spec["datasets"].values() for row in rows if "look" in row]
    assert {row["policy"] for row in rows if row["look"] == "best"} == {"pools"}


def test_a_wait_curve_has_its_ring_today_and_its_dot_where_it_is_recommended(wait_curve):
    limits = pl.DataFrame({"job_size": ["1 GPU"], "limit_minutes": [30.0]})
    spec = plots.chart_spec(plots.plot_wait_curve(wait_curve, today=16, recommended=32, limits=limits))
    assert len(spec["concat"]) == 2
    for panel in spec["concat"]:
        ring, dot = (
            [(row["layout"], row["gpus"]) for row in rows_of(spec, part)]
            for part in panel["layer"] if part["mark"]["type"] == "point"
        )  # fmt: skip
        assert (ring, dot) == ([("today", 16)], [("recommended", 32)])
    text = plots.wait_curve_text(wait_curve, today=16, recommended=32)
    assert text == "Jobs on 1 GPU: p95 60 min on 16 GPUs today, 0 min on 32 recommended."


def test_jobs_that_never_start_are_triangles_at_the_top_edge(wait_curve):
    limits = pl.DataFrame({"job_size": ["1 GPU"], "limit_minutes": [30.0]})
    frame = wait_curve.with_columns(
        pl.when(pl.col("gpus") > 8).then(pl.col(name)).alias(name) for name in ("p95_minutes", "low", "high")
    )
    spec = plots.chart_spec(plots.plot_wait_curve(frame, today=16, recommended=32, limits=limits))
    for panel in spec["concat"]:
        marks = {str(part["mark"].get("shape")): part for part in panel["layer"] if part["mark"]["type"] == "point"}
        assert [row["gpus"] for row in rows_of(spec, marks["triangle-up"])] == [8]
        drawn = [row for part in panel["layer"] if part["mark"]["type"] == "line" for row in rows_of(spec, part)]
        assert {row["gpus"] for row in drawn} == {16, 32}
        top = panel["layer"][-1]["encoding"]["y"]["scale"]["domain"][1]
        assert all(row["p95_minutes"] < top for row in drawn)


def test_costs_add_up_and_stand_by_size(costs):
    spec = plots.chart_spec(plots.plot_costs(costs, unit="EUR", top=2))
    (values,) = spec["datasets"].values()
    assert sum(row["amount"] for row in values) == 100.0
    order = spec["layer"][0]["encoding"]["y"]["sort"]
    assert order == ["=1+1", 'a"b.c[d]\\e', "2 others"]
