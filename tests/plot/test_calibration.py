"""Charts of calibration: minutes, the largest groups, and causes in their order."""

from __future__ import annotations

import polars as pl

from gpuplanner import plot

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
