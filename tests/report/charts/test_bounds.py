"""Cost against bound: where bars end and where the rule stands."""

from __future__ import annotations

import json

import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.report.policy_and_layout_charts import ABOVE_BOUND_LABEL


def bars(frame: pl.DataFrame) -> dict[str, list[tuple[float, float]]]:
    """Ends of the parts of each bar, by plan."""
    spec = plots.chart_spec(plots.plot_bounds(frame))
    rows = next(rows for rows in spec["datasets"].values() if "method" in rows[0])
    ends: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        ends.setdefault(row["method"], []).append((row["start"], row["end"]))
    return ends


def test_each_bar_is_parted_at_the_bound_and_ends_at_the_cost(bounds):
    found = bars(bounds)
    assert found["static"] == [(0, 6973.3), (6973.3, 9618.7)]
    assert found["auto"] == [(0, 6973.3), (6973.3, 6985.9)]
    assert "dp" not in found


def test_a_plan_at_the_bound_has_nothing_above_it():
    best = pl.DataFrame({"method": ["auto"], "objective": [5.0], "bound": [5.0], "gap": [0.0]})
    assert bars(best) == {"auto": [(0, 5)]}
    assert ABOVE_BOUND_LABEL not in plots.chart_to_svg(plots.plot_bounds(best))


def test_without_a_bound_nothing_is_said_of_one(bounds):
    unknown = bounds.with_columns(bound=pl.lit(None, pl.Float64), gap=pl.lit(None, pl.Float64))
    spec = json.dumps(plots.chart_spec(plots.plot_bounds(unknown)))
    assert '"rule"' not in spec
    assert "gap 0" not in spec
    assert bars(unknown)["auto"] == [(0, pytest.approx(6985.9))]
