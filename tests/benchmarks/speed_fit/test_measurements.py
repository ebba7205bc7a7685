"""Readers: what they say, what they refuse, and an independent summary."""

from __future__ import annotations

import json

import polars as pl
import pytest
from speed_fit import measurements, relative_speeds

from gpuplanner.core.errors import TraceFormatError

HEADER = "Mig instance,Batch size,Workload Number,Throughput,Latency"


def parvagpu(folder, *rows):
    files = folder / "parvagpu" / "prof_data"
    files.mkdir(parents=True)
    (files / "net.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return folder


def miso(folder, logs):
    root = folder / "miso_mig"
    (root / "logs").mkdir(parents=True)
    (root / "feasible").mkdir()
    for name in ("1g_5gb", "2g_10gb", "3g_20gb", "4g_20gb", "7g_40gb"):
        (root / "feasible" / f"{name}.json").write_text(json.dumps({"net": [] if name == "1g_5gb" else [8]}))
    for name, epochs in logs.items():
        (root / "logs" / name).write_text(json.dumps(epochs))
    return folder


def test_warm_up_is_dropped_and_what_does_not_fit_is_not_slow(tmp_path):
    folder = miso(tmp_path, {"7g.40gb_net_train8.json": {"0": [9.0] + [0.1] * 9, "1": [9.0] + [0.2] * 9}})
    rows = measurements(folder).select("profile", "outcome", "step_s", "step_spread").rows()
    assert rows[0] == ("1g.5gb", "does not fit", None, None)
    assert rows[1] == ("2g.10gb", "not measured", None, None)
    assert rows[4] == ("7g.40gb", "measured", pytest.approx(0.15), pytest.approx(1 / 3))


def test_speeds_are_relative_to_the_full_profile_with_neighbours_in_batch_size(tmp_path):
    folder = parvagpu(tmp_path, "1,8,1,100,0.08", "7,8,1,400,0.02", "7,16,1,400,0.04", "1,16,1,0,0")
    (row,) = relative_speeds(measurements(folder)).to_dicts()
    assert row["speed"] == pytest.approx(0.25)
    assert row["fraction"] == pytest.approx(14 / 98)
    assert (row["batch"], row["other_batch"], row["other_step_s"]) == (8, 16, pytest.approx(0.04))


@pytest.mark.data
def test_step_times_are_those_of_the_published_summary(published, public_data):
    summary = pl.read_csv(public_data / "miso_mig" / "step_time_summary.csv")
    ours = published.filter(source="miso", outcome="measured")
    both = ours.join(summary, left_on=["profile", "model", "batch"], right_on=["slice", "model", "batch_size"])
    assert both.height == ours.height == summary.height
    assert both.select((pl.col("step_s") / pl.col("median_step_s") - 1).abs().max()).item() < 0.005


@pytest.mark.data
def test_a_missing_log_is_a_batch_size_that_does_not_fit(published):
    miso_rows = published.filter(source="miso")
    assert miso_rows.filter(outcome="not measured").is_empty()
    out = miso_rows.filter(outcome="does not fit").select("model", "batch", "profile").rows()
    assert ("bert", 8, "2g.10gb") in out
    assert len(out) == 9


def test_measurements_of_ones_own_stand_beside_the_public_ones(tmp_path):
    parvagpu(tmp_path, "1,8,1,100,0.08", "7,8,1,500,0.016")
    (tmp_path / "own").mkdir()
    with pytest.raises(TraceFormatError, match=r"own: expected CSV files"):
        measurements(tmp_path)
    rows = ["kind,gpu_model,model,batch,profile,step_s", "inference,A100-80GB,mine,8,1g.10gb,0.4"]
    (tmp_path / "own" / "ours.csv").write_text("\n".join([*rows, "inference,A100-80GB,mine,8,7g.80gb,0.1"]) + "\n")
    found = measurements(tmp_path)
    assert found.group_by("source").len().sort("source").rows() == [("ours", 2), ("parvagpu", 2)]
    speeds = relative_speeds(found).filter(model="mine")
    assert speeds.select("compute_slices", "speed").rows() == [(1, 0.25)]
