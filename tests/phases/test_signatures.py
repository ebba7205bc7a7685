"""Signatures: the rules on built counters, and what they say of measured runs whose nature is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner import plot
from gpuplanner.errors import ScenarioError
from gpuplanner.inbox import read
from gpuplanner.phases import find_phases
from gpuplanner.phases.signatures import (
    BOUNDS,
    Counters,
    advice,
    load_thresholds,
    signature,
    signatures_by_class,
    signatures_of,
)

BOARD = "H100-80GB-SXM5"
QUIET = {
    "sm_activity": 0.1,
    "tensor_activity": 0.02,
    "dram_activity": 0.05,
    "pcie_gb_s": 0.1,
    "nvlink_gb_s": 0.0,
}
BUSY = {
    "sm_activity": 0.9,
    "tensor_activity": 0.6,
    "dram_activity": 0.3,
    "pcie_gb_s": 0.5,
    "nvlink_gb_s": 100.0,
}


def bound(base=QUIET, *, gpus=1, **changes):
    means = base | {"activity_source": "profiling", "idle_share": 0.0} | changes
    return signature(Counters(**means), gpus=gpus, nvlink_peak_gb_s=900.0).bound


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (BUSY, {}, "compute"),
        (BUSY, {"tensor_activity": 0.0}, "compute"),  # single or double precision fills the SMs as well
        (BUSY, {"dram_activity": 0.75}, "memory-bandwidth"),
        (BUSY, {"dram_activity": 0.75, "tensor_activity": 0.92}, "compute"),
        (QUIET, {"sm_activity": 0.01}, "idle"),
        (QUIET, {"sm_activity": 0.01, "pcie_gb_s": 5.0}, "input"),
        (QUIET, {"pcie_gb_s": 1.5}, "input"),
        (QUIET, {"idle_share": 0.5}, "input"),
        (QUIET, {}, "launch"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": 90.0, "gpus": 8}, "interconnect"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": 9.0, "gpus": 8}, "launch"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": 54.0, "gpus": 8}, "mixed"),  # 6 % is no limit
        (QUIET, {"sm_activity": 0.6}, "mixed"),
        (QUIET, {"sm_activity": None}, "cannot tell"),
        (BUSY, {"tensor_activity": None}, "cannot tell"),
        (BUSY, {"dram_activity": None}, "cannot tell"),
        (QUIET, {"pcie_gb_s": None}, "cannot tell"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": None, "gpus": 8}, "cannot tell"),
        (QUIET, {"sm_activity": 0.4, "nvlink_gb_s": None}, "launch"),  # one GPU has nobody to exchange with
        (BUSY, {"activity_source": "engine"}, "cannot tell"),
        (BUSY, {"activity_source": "legacy"}, "cannot tell"),
    ],
)
def test_rules(base, changes, expected):
    assert bound(base, **changes) == expected


@pytest.mark.parametrize("nvlink", [0.0, 5.0, 18.0, 30.0, 55.0, 89.0])
def test_links_that_were_read_and_are_far_from_their_limit_are_not_the_bound(nvlink):
    """However low the SM activity is; the same job may carry more where it computes."""
    for sm in (0.06, 0.2, 0.31, 0.49):
        assert bound(sm_activity=sm, nvlink_gb_s=nvlink, gpus=8) in ("launch", "mixed")
    means = QUIET | {"activity_source": "profiling", "sm_activity": 0.46, "nvlink_gb_s": nvlink}
    found = signature(Counters(**means), gpus=8, nvlink_peak_gb_s=900.0)
    assert f"NVLink {nvlink:.3g} GB/s = {100 * nvlink / 900:.0f} % of 900" in found.evidence


def test_every_bound_has_advice_and_every_figure_a_source():
    assert advice()["bound"].to_list() == list(BOUNDS)
    assert advice().null_count().sum_horizontal()[0] == 0
    for row in load_thresholds().values():
        assert row.source
        assert row.unit
        assert row.date
    sourced = [row for row in load_thresholds().values() if "own choice" not in row.source]
    assert len(sourced) == 10


def test_thresholds_can_be_moved_by_name():
    moved = load_thresholds({"bound_dram": 0.2})
    means = QUIET | {"dram_activity": 0.3, "activity_source": "profiling"}
    assert signature(Counters(**means)).bound == "launch"
    assert signature(Counters(**means), thresholds=moved).bound == "memory-bandwidth"
    with pytest.raises(ScenarioError, match="bound_dram"):
        load_thresholds({"bound_dramm": 0.2})


def test_low_power_and_occupancy_are_told():
    means = BUSY | {"activity_source": "profiling", "power_share": 0.2, "sm_occupancy": 0.4}
    assert (
        "occupancy 0.4, power 20 % of the limit (too little for a busy GPU)"
        in signature(Counters(**means)).evidence
    )


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
    by_job = signatures_of(samples, BOARD, jobs=jobs)
    assert by_job.select("job_id", "bound", "gpus").rows() == [("0", "launch", 1), ("1", "compute", 4)]
    assert by_job["hours"].to_list() == pytest.approx([1.0, 1.0])
    assert by_job["power_share"].to_list() == pytest.approx([0.5, 0.5])
    by_phase = signatures_of(samples, BOARD, by=("job_id", "phase"))
    assert by_phase.height == 4
    by_class = signatures_by_class(by_job, jobs)
    assert by_class.select("job_class", "bound", "gpu_hours", "share").rows() == [
        ("a", "compute", pytest.approx(4.0), 1.0),
        ("b", "launch", pytest.approx(1.0), 1.0),
    ]
    svg = plot.chart_to_svg(plot.plot_signatures(by_class))
    assert "bound by" in svg
    assert "No job was sampled." in plot.chart_to_svg(plot.plot_signatures(by_class.clear()))


def test_occupancy_is_told_where_it_was_read():
    """It decides nothing: no published rule turns occupancy into a bound; a reader of the evidence wants it."""
    noon = datetime(2026, 2, 2, 12, tzinfo=UTC)
    rows = [
        {
            "time": noon + timedelta(minutes=n),
            "node": "n1",
            "gpu": 0,
            "job_id": job,
            "activity_source": "profiling",
        }
        | {"sm_activity": 0.9, "tensor_activity": 0.6, "dram_activity": 0.3, "sm_occupancy": occupancy}
        for job, read in (("with", (0.125, 0.375, None)), ("without", (None, None)))
        for n, occupancy in enumerate(read)
    ]
    found = signatures_of(pl.DataFrame(rows), BOARD)
    assert found["bound"].to_list() == ["compute", "compute"]
    assert [", occupancy 0.25" in evidence for evidence in found["evidence"]] == [True, False]


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
    row = signatures_of(read_run(public_data, run), BOARD).row(0, named=True)
    assert row["bound"] == expected
    assert said in row["evidence"]


@pytest.mark.data
def test_a_utilisation_of_99_percent_is_not_busy_compute(public_data):
    """In the steady phase of t13 the legacy counter reads 99 while tensor activity is 0.11."""
    path = public_data / "h100_runs" / "t13_node0_telemetry.csv.gz"
    log = pl.read_csv(path, infer_schema_length=None).filter(phase="steady")
    assert log["gpu_util_pct"].mean() > 99
    assert log["tensor_active"].mean() == pytest.approx(0.11, abs=0.01)
    start, end = (
        pl.from_epoch(pl.Series([log["timestamp"].min(), log["timestamp"].max()]), time_unit="s")
    ).to_list()
    steady = read_run(public_data, "t13_node0").filter(
        pl.col("time").is_between(start.replace(tzinfo=UTC), end.replace(tzinfo=UTC))
    )
    assert signatures_of(steady, BOARD)["bound"].to_list() == ["interconnect"]
    legacy = steady.with_columns(
        sm_activity=pl.lit(0.99),
        activity_source=pl.lit("legacy"),
        **dict.fromkeys(("tensor_activity", "dram_activity"), pl.lit(None, pl.Float64)),
    )
    found = signatures_of(legacy, BOARD).row(0, named=True)
    assert found["bound"] == "cannot tell"
    assert "0.99 of the time some kernel ran" in found["evidence"]


@pytest.mark.data
def test_exporter_pages_without_profiling_fields_cannot_tell(public_data):
    samples = read("auto", public_data / "dcgm" / "dcgm_metrics_20250718_134233.csv.gz").samples
    each = samples.with_columns(job_id=pl.concat_str("node", "gpu"))
    assert set(signatures_of(each, BOARD)["bound"]) == {"cannot tell"}
