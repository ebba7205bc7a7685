"""Signatures: the rules on built counters, and what they say of measured runs whose nature is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.core.serialization import read_packaged_rows
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.bottlenecks import (
    BOTTLENECK_NAMES,
    Counters,
    advice,
    bottlenecks_by_class,
    classify_bottlenecks,
    signature,
)
from gpuplanner.usage.job_phases import find_phases

BOARD = "H100-80GB-SXM5"
QUIET = {"sm_activity": 0.1, "tensor_activity": 0.02, "dram_activity": 0.05, "pcie_gb_s": 0.1, "nvlink_gb_s": 0.0}
BUSY = {"sm_activity": 0.9, "tensor_activity": 0.6, "dram_activity": 0.3, "pcie_gb_s": 0.5, "nvlink_gb_s": 100.0}


def bound(base=QUIET, *, gpus=1, **changes):
    means = base | {"activity_source": "profiling", "idle_share": 0.0} | changes
    return signature(Counters(**means), gpus=gpus, nvlink_peak_gb_s=900.0).bound


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (BUSY, {}, "compute"),
        (BUSY, {"tensor_activity": 0.0}, "compute"),  # single or double precision fills the SMs as well
        (BUSY, {"dram_activity": 0.75}, "memory-bandwidth"),
        (QUIET, {"sm_activity": 0.01}, "idle"),
        (QUIET, {"sm_activity": 0.01, "pcie_gb_s": 5.0}, "input"),
        (QUIET, {"idle_share": 0.5}, "input"),
        (QUIET, {}, "launch"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": 90.0, "gpus": 8}, "interconnect"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": 9.0, "gpus": 8}, "launch"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": 54.0, "gpus": 8}, "mixed"),  # 6 % is no limit
        (QUIET, {"sm_activity": 0.6}, "mixed"),
        (QUIET, {"sm_activity": None}, "unclear"),
        (BUSY, {"tensor_activity": None}, "unclear"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": None, "gpus": 8}, "unclear"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": None}, "launch"),  # one GPU has nobody to exchange with
        (BUSY, {"activity_source": "engine"}, "unclear"),
    ],
)
def test_rules(base, changes, expected):
    assert bound(base, **changes) == expected


def test_every_bound_has_advice_and_every_figure_a_source():
    assert advice()["bound"].to_list() == list(BOTTLENECK_NAMES)
    assert advice().null_count().sum_horizontal()[0] == 0
    thresholds = read_packaged_rows("gpuplanner.usage", "bottleneck_thresholds.csv")
    for row in thresholds:
        assert row["source"]
        assert row["unit"]
        assert row["date"]
    sourced = [row for row in thresholds if "own choice" not in row["source"]]
    assert len(sourced) == 10


def make_samples():
    begin = datetime(2026, 2, 2, 9, tzinfo=UTC)
    rows = [
        {"time": begin + timedelta(minutes=minute), "node": "n", "gpu": gpu, "job_id": str(gpu)}
        | (BUSY if gpu else QUIET)
        | {"phase": minute // 30, "power_w": 350.0, "activity_source": "profiling"}
        for gpu in (0, 1)
        for minute in range(60)
    ]
    return pl.DataFrame(rows)


def test_jobs_phases_and_classes():
    samples = make_samples()
    jobs = pl.DataFrame({"job_id": ["0", "1"], "job_class": ["b", "a"], "gpus": [1.0, 4.0]})
    by_job = classify_bottlenecks(samples, BOARD, jobs=jobs)
    assert by_job.select("job_id", "bound", "gpus").rows() == [("0", "launch", 1), ("1", "compute", 4)]
    assert by_job["hours"].to_list() == pytest.approx([1.0, 1.0])
    assert by_job["power_share"].to_list() == pytest.approx([0.5, 0.5])
    by_phase = classify_bottlenecks(samples, BOARD, by=("job_id", "phase"))
    assert by_phase.height == 4
    by_class = bottlenecks_by_class(by_job, jobs)
    assert by_class.select("job_class", "bound", "gpu_hours", "share").rows() == [
        ("a", "compute", pytest.approx(4.0), 1.0),
        ("b", "launch", pytest.approx(1.0), 1.0),
    ]
    svg = plots.chart_to_svg(plots.plot_signatures(by_class))
    assert "bound by" in svg
    assert "No job was sampled." in plots.chart_to_svg(plots.plot_signatures(by_class.clear()))


def read_run(folder, run):
    found = read("node-csv", folder / "h100_runs" / f"{run}_telemetry.csv.gz")
    return found.samples.with_columns(job_id=pl.lit(run))


@pytest.mark.data
@pytest.mark.parametrize(("run", "seconds"), [("t2", 4), ("t13_node0", 5)])
def test_measured_runs_end_with_a_cool_down(public_data, run, seconds):
    """Processes that have ended their work and still hold their memory: counted by hand in the last readings."""
    one = read_run(public_data, run)
    last = find_phases(one.filter(pl.col("gpu") == one["gpu"].min())).row(-1, named=True)
    assert last["label"] == "cool-down"
    assert (last["end"] - last["start"]).total_seconds() == pytest.approx(seconds, abs=2)


@pytest.mark.data
@pytest.mark.parametrize(("kept", "label"), [(1.0, "input-stall"), (0.5, "idle")])
def test_a_stall_planted_in_a_measured_run_is_found(public_data, kept, label):
    """A minute without activity: with the memory held it waits for input, with half of it other work goes on."""
    one = read_run(public_data, "t2")
    one = one.filter(pl.col("gpu") == one["gpu"].min()).sort("time")
    begin = one["time"].min() + timedelta(seconds=120)
    quiet = pl.col("time").is_between(begin, begin + timedelta(seconds=60))
    planted = one.with_columns(
        sm_activity=pl.when(quiet).then(0.0).otherwise("sm_activity"),
        power_w=pl.when(quiet).then(120.0).otherwise("power_w"),
        memory_used_gib=pl.when(quiet).then(kept * pl.col("memory_used_gib")).otherwise("memory_used_gib"),
    )
    stalls = find_phases(planted).filter(label=label)
    assert stalls.height == 1
    [(start, end)] = stalls.select("start", "end").rows()
    assert (end - start).total_seconds() == pytest.approx(60, abs=5)
    assert find_phases(one).filter(label=label).is_empty()


@pytest.mark.data
@pytest.mark.parametrize(
    ("run", "expected", "said"),
    [
        ("b1", "idle", "SM activity"),  # idle but loaded
        ("t2", "compute", "tensor 0.19"),  # small pretraining
        ("t6", "input", "idle in 84 % of the readings"),  # ZeRO-3 with offload: it waits for the host
        ("t13_node0", "interconnect", "NVLink"),  # tensor and pipeline parallel on two nodes
    ],
)
def test_measured_runs_are_what_their_names_say(public_data, run, expected, said):
    row = classify_bottlenecks(read_run(public_data, run), BOARD).row(0, named=True)
    assert row["bound"] == expected
    assert said in row["evidence"]


@pytest.mark.data
def test_a_utilisation_of_99_percent_is_not_busy_compute(public_data):
    """In the steady phase of t13 the legacy counter reads 99 while tensor activity is 0.11."""
    path = public_data / "h100_runs" / "t13_node0_telemetry.csv.gz"
    log = pl.read_csv(path, infer_schema_length=None).filter(phase="steady")
    assert log["gpu_util_pct"].mean() > 99
    assert log["tensor_active"].mean() == pytest.approx(0.11, abs=0.01)
    start, end = (pl.from_epoch(pl.Series([log["timestamp"].min(), log["timestamp"].max()]), time_unit="s")).to_list()
    steady = read_run(public_data, "t13_node0").filter(
        pl.col("time").is_between(start.replace(tzinfo=UTC), end.replace(tzinfo=UTC))
    )
    assert classify_bottlenecks(steady, BOARD)["bound"].to_list() == ["interconnect"]
    legacy = steady.with_columns(
        sm_activity=pl.lit(0.99),
        activity_source=pl.lit("legacy"),
        **dict.fromkeys(("tensor_activity", "dram_activity"), pl.lit(None, pl.Float64)),
    )
    found = classify_bottlenecks(legacy, BOARD).row(0, named=True)
    assert found["bound"] == "unclear"
    assert "0.99 of the time some kernel ran" in found["evidence"]
