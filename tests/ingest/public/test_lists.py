"""Job lists that count seconds: censored instances, spot jobs, simulators' inputs."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.public import job_lists as job_tables
from gpuplanner.ingest.public.philly_miso_pai_supercloud_traces import read_miso
from gpuplanner.ingest.source_registry import detect_source, read
from tests.examples import examples

File = Callable[..., Path]
ZERO = datetime(1970, 1, 1, tzinfo=UTC)

DLRM = """\
instance_sn,role,app_name,gpu_request,creation_time,scheduled_time,deletion_time
both,HN,a,1,,,
left,HN,a,2,,,3600.0
right,HN,b,1,1800.0,1810.0,
whole,CN,b,0,1800.0,1810.0,5400.0
waits,HN,b,1,1800.0,,
gone,HN,b,1,1800.0,,2000.0
odd,XN,b,1,1800.0,1810.0,5400.0
cpu,CN,b,1,1800.0,1810.0,5400.0
back,HN,b,1,1800.0,1810.0,1805.0
"""


def test_lifetimes_are_cut_at_both_ends(file: File):
    trace = job_tables.DLRM_TRACE([file(DLRM)])
    rows = {row["job_id"]: row for row in trace.jobs.iter_rows(named=True)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "both": "RUNNING",
        "left": "UNKNOWN",
        "right": "RUNNING",
        "whole": "UNKNOWN",
        "waits": "PENDING",
        "gone": "UNKNOWN",
        "cpu": "UNKNOWN",
    }
    assert rows["left"]["submit_time"] == rows["left"]["start_time"] == ZERO
    assert rows["right"]["end_time"] is None
    assert rows["gone"]["start_time"] is None
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {8: "role: not one of CN, HN", 10: "end before start"}
    # both: 1 GPU for 5400 s; left: 2 for 3600; right: 1 for 3590; cpu: 1 for 3590
    assert trace.provenance["gpu_hours"] == pytest.approx((5400 + 7200 + 3590 + 3590) / 3600)
    found = dict(trace.quality["check", "rows"].iter_rows())
    assert found["existed before the trace began"] == 2
    assert found["running when the observation ended"] == 2
    assert (found["ran on CPU nodes (role CN)"], found["a GPU on a CPU node"]) == (2, 1)


@pytest.mark.data
def test_the_public_instances_are_censored_as_its_readme_says(public_data: Path):
    path = public_data / "alibaba_gpu_v2025" / "disaggregated_DLRM_trace.csv.gz"
    trace = job_tables.DLRM_TRACE([path], origin="2025-01-01T00:00:00Z")
    with gzip.open(path, "rt", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = dict(trace.quality["check", "rows"].iter_rows())
    assert found["existed before the trace began"] == sum(not row["creation_time"] for row in rows) == 4526
    assert found["running when the observation ended"] == sum(not row["deletion_time"] for row in rows) == 5319
    assert found["no GPU"] == sum(row["role"] == "CN" for row in rows) == 9164
    assert "dates relative to a start that was not given (--origin)" not in found
    assert trace.summary()["span_start"] == "2025-01-01T00:00:00Z"


def test_spot_jobs_hold_the_gpus_of_all_their_workers(file: File):
    header = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
    rows = "1,13,A10,20,1,1,0,3600,HP\n2,57,A100-SXM4-80GB,15,0.5,16,7200,3600,Spot\n3,5,A10,1,1,1,0,x,HP\n"
    trace = job_tables.SPOT_TRACE([file(header + rows)])
    assert trace.jobs["gpus", "tenant", "tier"].rows() == [(1.0, "13", "guaranteed"), (8.0, "57", "best_effort")]
    assert trace.provenance["gpu_hours"] == 9.0
    assert trace.rejects["reason"].to_list() == ["duration: not a number"]


def test_a_simulators_list_keeps_its_seconds(file: File):
    trace = job_tables.SIMULATOR_TRACE(
        [file("job_id,submit_time,duration,num_gpus\n0,25,12,1\n1,31,8828,2\n", "syn.csv")]
    )
    assert trace.jobs["submit_time"].to_list() == [ZERO + timedelta(seconds=25), ZERO + timedelta(seconds=31)]
    assert trace.provenance["gpu_hours"] == pytest.approx((12 + 2 * 8828) / 3600)
    assert trace.jobs["tenant"].unique().to_list() == ["syn"]
    assert any("second 0 was set to 1970-01-01" in note for note in trace.provenance["notes"])


def test_arrivals_and_run_times_of_miso_are_joined(file: File):
    paths = [
        file('{"0": 120, "1": 121.5, "2": -1, "4": true}', "trace_4.json"),
        file('{"0": 346, "1": null, "3": 5, "2": 7}', "exp_4.json"),
    ]
    trace = read_miso(paths)
    assert detect_source(paths[0]) == detect_source(paths[1]) == "miso"
    assert trace.jobs["job_id"].to_list() == ["0", "1"]
    assert trace.jobs["end_time"].to_list() == [ZERO + timedelta(seconds=466), None]
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {
        3: "arrival: below 0",
        4: "arrival: not a number",
        5: "arrival: missing",
    }
    assert "number of GPUs not known" in trace.quality["check"].to_list()
    for wrong in ([paths[0]], [paths[0], paths[0]], [*paths, paths[1]], []):
        with pytest.raises(TraceFormatError, match=r"expected one trace_\*\.json and one exp_\*\.json"):
            read_miso(wrong)


@settings(max_examples=examples(30), deadline=None)
@given(text=st.one_of(st.binary(max_size=40), st.from_regex(r"\{\"0\": [0-9eE.+-]{1,8}\}").map(str.encode)))
def test_a_damaged_miso_file_is_an_error_or_a_full_account(text: bytes):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "trace_1.json", Path(folder) / "exp_1.json"]
        paths[0].write_bytes(text)
        paths[1].write_text('{"0": 346, "1": 5}')
        try:
            trace = read_miso(paths)
        except TraceFormatError:
            return
    assert trace.summary()["rows_in"] == trace.jobs.height + trace.rejects.height


@pytest.mark.data
def test_the_public_jobs_of_miso(public_data: Path):
    paths = [public_data / "miso_mig" / name for name in ("trace_100.json", "exp_100.json")]
    trace = read("auto", paths)
    runs = (trace.jobs["end_time"] - trace.jobs["start_time"]).dt.total_seconds()
    assert trace.summary()["rows_in"] == trace.jobs.height == 100  # data README
    assert runs.sum() == sum(json.loads(paths[1].read_text()).values()) == 312_232
