"""One job over time."""

from __future__ import annotations

import polars as pl

from gpuplanner import report as plots


def samples_drawn(spec: dict) -> pl.DataFrame:
    frames = (pl.DataFrame(values) for values in spec["datasets"].values())
    return next(frame for frame in frames if "sm_activity" in frame.columns)


def test_bins_show_mean_and_extremes(samples):
    drawn = samples_drawn(plots.chart_spec(plots.plot_phases(samples)))
    assert drawn.height <= 401
    assert drawn["sm_activity"].median() == 0.5
    assert drawn["sm_activity_high"].max() == 1.0
    assert drawn["sm_activity"].max() < 1.0


def test_phases_are_bands_with_names_and_spikes_are_marks(samples, phases):
    spikes = pl.DataFrame({"time": samples["time"].gather([0])})
    spec = plots.chart_spec(plots.plot_phases(samples, phases, spikes))
    first, second = spec["concat"]
    marks = [layer["mark"]["type"] for layer in first["layer"]]
    assert marks == ["rect", "area", "line", "text", "point"]
    assert [layer["mark"]["type"] for layer in second["layer"]] == ["rect", "area", "line"]
    assert first["layer"][0]["encoding"]["fill"]["scale"]["domain"] == phases["label"].to_list()
    svg = plots.chart_to_svg(plots.plot_phases(samples, phases, spikes))
    assert "<script" not in svg
    assert "training" in svg
