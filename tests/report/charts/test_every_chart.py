"""What holds for every chart: valid, drawable, the same each time, calm about nothing and about bad names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, datetime

import altair as alt
import polars as pl
import pytest
import vl_convert

from gpuplanner import report as plots
from gpuplanner.core.errors import SchemaError
from tests.report.charts import test_fairness

CHARTS: dict[str, Callable[[pl.DataFrame], alt.Chart]] = {
    "ledger": plots.plot_ledger,
    "demand": plots.plot_demand,
    "scores": plots.plot_backtest_scores,
    "layout_plan": plots.plot_layout_calendar,
    "counts": plots.plot_layout_counts,
    "placements": lambda frame: plots.plot_placements(frame, memory_slices=8),
    "bounds": plots.plot_bounds,
    "policies": plots.plot_policies,
    "frontier": plots.plot_frontier,
    "wait_curve": lambda frame: plots.plot_wait_curve(
        frame, today=16, recommended=32, limits=pl.DataFrame({"job_size": ["1 GPU"], "limit_minutes": [30.0]})
    ),
    "use": lambda frame: plots.plot_use(frame, gpus=16),
    "peaks": lambda frame: plots.plot_peaks(frame, gpus=16),
    "costs": lambda frame: plots.plot_costs(frame, unit="USD"),
    "waterfall": lambda frame: plots.plot_waterfall(frame, unit="USD"),
    "samples": plots.plot_phases,
    "findings": plots.plot_quality,
    "coverage": plots.plot_coverage,
    "intake": plots.plot_intake,
    "held": plots.plot_allocated_activity,
    "ended": plots.plot_allocated_end_states,
    "memory_stack": plots.plot_memory_stack,
    "fan": plots.plot_fan,
    "cost_curve": plots.plot_cost_curve,
    "replicas": plots.plot_replicas,
}
NAMES = {
    "ledger": "tenant",
    "layout_plan": "node",
    "bounds": "method",
    "policies": "policy",
    "frontier": "policy",
    "costs": "tenant",
    "findings": "check",
    "coverage": "node",
    "intake": "what",
    "held": "tenant",
}


WITH_FRAMES = test_fairness.CASES


@pytest.fixture(params=[*CHARTS, *WITH_FRAMES, "tenants"])
def case(request: pytest.FixtureRequest) -> tuple[Callable[[pl.DataFrame], alt.Chart], pl.DataFrame]:
    if request.param in WITH_FRAMES:
        return WITH_FRAMES[request.param]
    if request.param == "tenants":
        return plots.plot_ledger_tenants, request.getfixturevalue("ledger")
    return CHARTS[request.param], request.getfixturevalue(request.param)


def test_specification_is_valid_titled_and_small(case):
    draw, frame = case
    spec = plots.chart_spec(draw(frame))
    alt.Chart.from_dict(spec)
    assert spec["title"]
    assert len(json.dumps(spec)) < 250_000


def test_svg_is_well_formed_and_fits_wide_and_narrow_pages(case):
    draw, frame = case
    for width in (1000, 360):
        root = ET.fromstring(plots.chart_to_svg(draw(frame), width=width))
        drawn = float(root.attrib["width"])
        assert 0.75 * width < drawn <= 1.12 * width


def test_same_frame_gives_same_bytes_in_any_order_of_drawing(case, request):
    draw, frame = case
    first = json.dumps(plots.chart_spec(draw(frame)))
    plots.plot_costs(request.getfixturevalue("costs"), unit="USD")
    assert json.dumps(plots.chart_spec(draw(frame))) == first


@pytest.mark.parametrize("name", ["ledger", "demand", "scores", "layout_plan", "counts", "costs", "samples"])
def test_order_of_rows_does_not_matter_where_it_has_no_meaning(name, request):
    frame = request.getfixturevalue(name)
    assert plots.chart_spec(CHARTS[name](frame)) == plots.chart_spec(CHARTS[name](frame.reverse()))


def test_empty_frame_says_so_in_a_chart(case):
    draw, frame = case
    svg = plots.chart_to_svg(draw(frame.clear()))
    assert re.search(r">(The|No|There)[^<]*\.</text>", svg)


def test_missing_columns_are_named(case):
    draw, _ = case
    with pytest.raises(SchemaError, match="expected columns '"):
        draw(pl.DataFrame({"x": [1]}))


def test_every_chart_has_tooltips(case):
    draw, frame = case
    assert '"tooltip": [' in json.dumps(plots.chart_spec(draw(frame)))


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_stay_text(name, request):
    svg = plots.chart_to_svg(CHARTS[name](request.getfixturevalue(name)), width=1400)
    assert "<script" not in svg
    if name != "ledger":
        assert "&lt;script&gt;" in svg


def test_nothing_is_fetched_and_no_selection_counters_leak(case):
    draw, frame = case
    text = json.dumps(plots.chart_spec(draw(frame)))
    assert '"url"' not in text
    assert "param_" not in text
    assert "view_" not in text


def test_importing_the_room_does_not_load_altair():
    code = "import gpuplanner.report, sys; sys.exit(any(m in sys.modules for m in ('altair', 'vl_convert')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_all_exist():
    assert all(hasattr(plots, name) for name in plots.__all__)
    assert dir(plots) == plots.__all__
    with pytest.raises(AttributeError, match="no attribute 'plot_pie'"):
        _ = plots.plot_pie


def test_every_chart_takes_the_width_of_its_frame(case):
    """The browser replaces the width of the layout; where it knows none, as here, the chart has that of the layout."""
    draw, frame = case
    spec = plots.chart_spec(draw(frame))
    shown = plots.interactive(spec, width=700)
    (patch,) = shown["usermeta"]["embedOptions"]["patch"]
    compiled = vl_convert.vegalite_to_vega(shown, vl_version="5.20")
    if patch["op"] == "replace":
        assert compiled["signals"].pop(0)["name"] == patch["value"]["name"]
    else:
        assert compiled["width"]
    compiled["signals"].insert(0, patch["value"])
    drawn, still = (
        float(ET.fromstring(svg).attrib["width"])
        for svg in (vl_convert.vega_to_svg(compiled), vl_convert.vegalite_to_svg(plots.fitted(spec, 700)))
    )
    # 720, the width of a frame that is out of sight, in place of 700.
    assert drawn == pytest.approx(still + 20, abs=4)


@pytest.mark.parametrize("brush", ["", "days"])
def test_a_time_axis_is_selected_once_also_after_altair(brush):
    """Altair repeats a selection that stands in a layer, and a browser then refuses the chart."""
    days = [datetime(2026, 2, day, tzinfo=UTC) for day in (1, 2)]
    rows = {"hour": days, "bucket": ["used"] * 2, "gpu_hours": [1.0] * 2}
    spec = plots.chart_spec(plots.plot_ledger(pl.DataFrame(rows)))
    shown = alt.Chart.from_dict(plots.interactive(spec, brush=brush)).to_dict()
    (param,) = shown["params"]
    assert param["name"] == (brush or "zoom")
    assert param.get("bind") == (None if brush else "scales")
    assert json.dumps(shown).count('"select"') == 1
    signals = [signal["name"] for signal in vl_convert.vegalite_to_vega(shown)["signals"]]
    assert signals.count(f"{param['name']}_x") <= 1
    assert "params" not in spec
