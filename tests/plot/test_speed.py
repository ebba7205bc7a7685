"""Charts of speeds: every point is drawn where it belongs, and what does not fit has no mark."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner import plot
from gpuplanner.errors import SchemaError
from gpuplanner.plot.sizing import plot_speed_accuracy, plot_speeds


def accuracy_rows() -> pl.DataFrame:
    rows = [
        ("1g", "telemetry", "<b>", 0.2, 0.25),
        ("2g", "telemetry", "b", 0.4, 0.38),
        ("1g", "two", "c", 1.1, 1.0),
    ]
    return pl.DataFrame(rows, schema=["panel", "series", "name", "speed", "predicted"], orient="row")


def speed_rows() -> pl.DataFrame:
    rows = [("b", "3g", 0.6, 0.5, 0.7), ("b", "gpu", 1.0, 1.0, 1.0)]
    rows += [("a", "1g", 0.3, 0.2, 0.4), ("a", "3g", 0.6, 0.5, 0.7), ("a", "gpu", 1.0, 1.0, 1.0)]
    names = ["job_class", "profile", "speed", "speed_low", "speed_high"]
    return pl.DataFrame(rows, schema=names, orient="row")


def test_the_diagonal_reaches_as_far_as_the_points():
    spec = plot.chart_spec(plot_speed_accuracy(accuracy_rows()))
    ends = [row["at"] for rows in spec["datasets"].values() for row in rows if "at" in row]
    assert set(ends) == {0.0, 1.1}
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["1g", "2g"]


def test_profiles_keep_their_order_where_the_first_class_does_not_fit_all():
    spec = plot.chart_spec(plot_speeds(speed_rows()))
    domains = [
        layer["encoding"]["x"]["scale"]["domain"] for panel in spec["concat"] for layer in panel["layer"]
    ]
    assert domains == [["1g", "3g", "gpu"]] * 4
    rows = [row for rows in spec["datasets"].values() for row in rows]
    assert ("b", "1g") not in {(row["job_class"], row["profile"]) for row in rows}


@pytest.mark.parametrize(
    ("chart", "frame"), [(plot_speed_accuracy, accuracy_rows()), (plot_speeds, speed_rows())]
)
def test_charts_are_drawn_or_say_why_not(chart, frame):
    assert plot.chart_to_svg(chart(frame)).startswith("<svg")
    assert "No " in plot.chart_to_svg(chart(frame.clear()))
    with pytest.raises(SchemaError, match="speed"):
        chart(frame.drop("speed"))
