"""Charts of calibration: valid, calm about nothing, and the same message in words."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import polars as pl
import pytest

from gpuplanner import plot
from gpuplanner.errors import SchemaError

QUANTILES = pl.DataFrame(
    {
        "level": [0.0, 0.5, 0.95, 1.0],
        "observed_s": [0.0, 0.0, 3600.0, 1e6],
        "simulated_s": [0.0, 30.0, 1800.0, 9e5],
    }
)
GROUPS = pl.DataFrame(
    {
        "tenant": ["<b>b</b>", "a"],
        "jobs": [5, 9],
        "observed_mean_s": [600.0, 60.0],
        "simulated_mean_s": [60.0, 90.0],
    }
)
CAUSES = pl.DataFrame(
    {
        "cause": ["too few free", "free, but not together", "scheduler latency"],
        "share": [0.3, 0.7, 0.001],
        "hours": [30.0, 70.0, 0.1],
        "jobs": [4, 9, 0],
    }
)
CASES = {
    "quantiles": (plot.plot_wait_quantiles, QUANTILES),
    "groups": (lambda frame: plot.plot_wait_groups(frame, "tenant"), GROUPS),
    "causes": (plot.plot_wait_causes, CAUSES),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_charts_are_drawn_for_wide_and_narrow_pages(case):
    draw, frame = case
    text = json.dumps(plot.chart_spec(draw(frame)))
    assert '"tooltip": [' in text
    assert '"url"' not in text
    for width in (1000, 360):
        drawn = float(ET.fromstring(plot.chart_to_svg(draw(frame), width=width)).attrib["width"])
        assert 0.75 * width < drawn <= 1.12 * width


def test_nothing_is_said_to_be_nothing_and_missing_columns_are_named(case):
    draw, frame = case
    assert ".</text>" in plot.chart_to_svg(draw(frame.clear()))
    with pytest.raises(SchemaError, match="expected columns '"):
        draw(pl.DataFrame({"x": [1]}))


def values(chart):
    """Rows of all data sets of a chart."""
    return [row for rows in plot.chart_spec(chart)["datasets"].values() for row in rows]


def test_waits_are_shown_in_minutes():
    rows = [row for row in values(plot.plot_wait_quantiles(QUANTILES)) if "level" in row]
    assert rows[2] == {"level": 0.95, "observed_s": 60.0, "simulated_s": 30.0}


def test_groups_beyond_the_largest_are_left_out_and_names_stay_text():
    chart = plot.plot_wait_groups(GROUPS, "tenant", top=1)
    assert {row["group"] for row in values(chart)} == {"a"}
    assert "<b>" not in plot.chart_to_svg(plot.plot_wait_groups(GROUPS, "tenant"))


def test_causes_keep_their_order_and_their_shares():
    spec = plot.chart_spec(plot.plot_wait_causes(CAUSES))
    assert spec["layer"][0]["encoding"]["y"]["sort"] == CAUSES["cause"].to_list()
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 1]


def test_words_name_what_the_charts_show():
    assert "95 %, 30.0 and 60.0 min" in plot.wait_quantiles_text(QUANTILES)
    assert plot.wait_groups_text(GROUPS, "tenant").startswith("Farthest apart: <b>b</b>, 1.0 min simulated")
    assert (
        plot.wait_causes_text(CAUSES) == "Of all waiting 70% is: free, but not together; 30%: too few free."
    )
