"""Layout charts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.core.errors import SchemaError
from gpuplanner.report.policy_and_layout_charts import MAX_CALENDAR_ROWS, MAX_NAMED_LAYOUTS


def rows(spec: dict) -> pl.DataFrame:
    (values,) = spec["datasets"].values()
    return pl.DataFrame(values, infer_schema_length=None)


def test_one_row_per_gpu_in_order_of_node_and_number(layout_plan):
    spec = plots.chart_spec(plots.plot_layout_calendar(layout_plan))
    bars, cuts = spec["layer"]
    names = bars["encoding"]["y"]["sort"]
    assert len(names) == 4
    assert names[-2:] == ["n1 · 0", "n1 · 1"]
    assert bars["encoding"]["x"]["field"] == "slot_start"
    assert bars["encoding"]["x2"]["field"] == "slot_end"
    assert {"filter": "datum.changed"} in cuts["transform"]
    assert rows(spec)["changed"].sum() == 1


def test_a_plan_without_a_change_has_a_chart_of_its_own_size(layout_plan):
    """An empty layer with a legend made Vega draw the chart millions of pixels high."""
    calm = plots.plot_layout_calendar(layout_plan.with_columns(changed=pl.lit(False)))
    assert "shape" not in str(plots.chart_spec(calm))
    height = float(re.search(r'height="([\d.]+)"', plots.chart_to_svg(calm)).group(1))
    assert height < 400


def test_a_large_fleet_is_sent_to_the_counts(layout_plan):
    one = layout_plan.head(1)
    fleet = pl.concat([one.with_columns(gpu=pl.lit(n, pl.Int32)) for n in range(MAX_CALENDAR_ROWS + 1)])
    with pytest.raises(SchemaError, match="plot_layout_counts"):
        plots.plot_layout_calendar(fleet)


def test_slots_that_do_not_change_are_merged(counts):
    drawn = rows(plots.chart_spec(plots.plot_layout_counts(counts)))
    hours = [(row["start"][11:13], row["end"][11:13], row["shown"], row["gpus"]) for row in drawn.to_dicts()]
    assert hours == [
        ("00", "12", "gpu", 4),
        ("12", "18", "gpu", 3),
        ("12", "18", "1g.10gb:7", 1),
        ("18", "00", "gpu", 4),
    ]


def test_gpu_hours_are_kept_when_layouts_are_many():
    start = datetime(2026, 10, 1, tzinfo=UTC)
    frame = pl.DataFrame(
        [(start + timedelta(hours=h), f"layout-{n}", (h + n) % 3) for h in range(5) for n in range(40)],
        schema=["slot_start", "layout", "gpus"],
        orient="row",
    )
    drawn = rows(plots.chart_spec(plots.plot_layout_counts(frame)))
    assert drawn["shown"].n_unique() == MAX_NAMED_LAYOUTS + 1
    assert "30 others" in drawn["shown"].to_list()
    begin, end = (drawn[name].str.to_datetime("%Y-%m-%dT%H:%M:%SZ") for name in ("start", "end"))
    hours = (end - begin).dt.total_hours()
    assert (drawn["gpus"] * hours).sum() == frame["gpus"].sum()
