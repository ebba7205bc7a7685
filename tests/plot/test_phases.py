"""One job over time."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner import plot


def samples_drawn(spec: dict) -> pl.DataFrame:
    frames = (pl.DataFrame(values) for values in spec["datasets"].values())
    return next(frame for frame in frames if "sm_activity" in frame.columns)


def test_a_panel_for_each_quantity_that_was_measured(samples):
    spec = plot.chart_spec(plot.plot_phases(samples))
    titles = [panel["layer"][-1]["encoding"]["y"]["title"] for panel in spec["concat"]]
    assert titles == ["SM activity [0-1]", "memory used [GiB]"]


def test_bins_show_mean_and_extremes(samples):
    drawn = samples_drawn(plot.chart_spec(plot.plot_phases(samples)))
    assert drawn.height <= 401
    assert drawn["sm_activity"].median() == 0.5
    assert drawn["sm_activity_high"].max() == 1.0
    assert drawn["sm_activity"].max() < 1.0


def test_phases_are_bands_with_names_and_spikes_are_marks(samples, phases):
    spikes = pl.DataFrame({"time": samples["time"].gather([0])})
    spec = plot.chart_spec(plot.plot_phases(samples, phases, spikes))
    first, second = spec["concat"]
    marks = [layer["mark"]["type"] for layer in first["layer"]]
    assert marks == ["rect", "area", "line", "text", "point"]
    assert [layer["mark"]["type"] for layer in second["layer"]] == ["rect", "area", "line"]
    assert first["layer"][0]["encoding"]["fill"]["scale"]["domain"] == phases["label"].to_list()
    svg = plot.chart_to_svg(plot.plot_phases(samples, phases, spikes))
    assert "<script" not in svg
    assert "training" in svg


def test_no_phases_and_no_spikes_leave_the_lines(samples, phases):
    spikes = pl.DataFrame(schema={"time": samples.schema["time"]})
    spec = plot.chart_spec(plot.plot_phases(samples, phases.clear(), spikes))
    assert [layer["mark"]["type"] for layer in spec["concat"][0]["layer"]] == ["area", "line"]


def test_one_sample_can_be_drawn(samples):
    assert "<svg" in plot.chart_to_svg(plot.plot_phases(samples.head(1)))


def test_samples_without_any_measure_say_so(samples):
    bare = samples.with_columns(sm_activity=None, memory_used_gib=None, power_w=None)
    assert "The job has no samples." in plot.chart_to_svg(plot.plot_phases(bare))


@pytest.mark.parametrize("seconds", [600, 3000])
def test_time_of_every_bin_lies_within_the_job(samples, seconds):
    part = samples.head(2 * seconds)
    drawn = samples_drawn(plot.chart_spec(plot.plot_phases(part)))
    assert drawn["time"].min() == "2026-10-01T00:00:00Z"
