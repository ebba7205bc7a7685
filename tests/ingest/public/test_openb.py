"""OpenB pod and node lists, whole and damaged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuplanner.ingest.public.job_lists import OPENB_TRACE

File = Callable[..., Path]

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
FAULTY = f"""\
{HEADER}
a,12000,16384,1,1000,,LS,Running,0,36000,0
b,6000,12288,1,460,V100M16|V100M32,Burstable,Failed,3600,10800,3600
c,8000,30517,2,1000,,BE,Succeeded,0,7200,3600
d,8000,30517,0,0,,Guaranteed,Running,0,7200,3600
e,8000,30517,1,500,,LS,Pending,100,200,
f,8000,30517,1,500,,LS,Evicted,100,200,150
g,8000,30517,1,1500,,LS,Failed,100,200,150
h,8000,30517,-1,-1000,,LS,Failed,100,200,150
i,8000,30517,1,500,,LS,Failed,100,200,50
j,8000,30517,1,500,,LS,Failed,100,150,200
k,8000,30517,1,500,,LS,Pending,100,50,
l,8000,30517,1,500,,LS,Failed,,200,150
m,8000,30517,1,500,,LS,Failed,100,200
a,8000,30517,1,500,,LS,Failed,100,200,150
n,8000,30517,,500,,,,100,,150
o,8000,30517,one,500,,LS,Failed,100,200,150
p,8000,30517,1,500,,LS,Failed,100,200,1e40
q,8000,30517,1,500,,LS,Failed,100,200,150,9
"""


def test_each_faulty_row_is_rejected_with_its_line_and_reason(file: File):
    trace = OPENB_TRACE([file(FAULTY)])
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {
        7: "pod_phase: not one of Succeeded, Failed, Pending, Running, Unknown",
        8: "gpu_milli: above 1000",
        9: "num_gpu: below 0; gpu_milli: below 0",
        10: "start before submission",
        11: "end before start",
        12: "end before submission",
        13: "creation_time: missing",
        14: "fewer fields than columns",
        15: "the same job and attempt as an earlier row",
        17: "num_gpu: not a number",
        18: "scheduled_time: above 3.15576e+09",
        19: "more fields than columns",
    }
    assert trace.summary()["rows_in"] == 18


def test_phases_shares_and_times(file: File):
    jobs = OPENB_TRACE([file(FAULTY)]).jobs
    rows = {row["job_id"]: row for row in jobs.iter_rows(named=True)}
    zero = datetime(1970, 1, 1, tzinfo=UTC)
    states = {name: (row["state"], row["gpus"], row["tier"]) for name, row in rows.items()}
    assert states == {
        "a": ("RUNNING", 1.0, "ls"),  # deleted at the last instant: it still ran
        "b": ("FAILED", 0.46, "burstable"),
        "c": ("COMPLETED", 2.0, "be"),
        "d": ("UNKNOWN", 0.0, "guaranteed"),  # deleted while running: how it ended is not told
        "e": ("PENDING", 0.5, "ls"),
        "n": ("UNKNOWN", None, None),
    }
    assert rows["a"]["end_time"] is None
    assert rows["b"]["gpu_model"] == "V100M16|V100M32"
    assert (rows["e"]["start_time"], rows["e"]["end_time"]) == (None, zero + timedelta(seconds=200))


def test_relative_dates_are_marked_unless_an_origin_is_given(file: File):
    path = file(FAULTY)
    check = "dates relative to a start that was not given (--origin)"
    assert check in OPENB_TRACE([path]).quality["check"].to_list()
    moved = OPENB_TRACE([path], origin="2023-01-01T00:00:00+08:00")
    assert check not in moved.quality["check"].to_list()
    assert moved.summary()["span_start"] == "2022-12-31T16:00:00Z"
    assert moved.provenance["origin"] == "2022-12-31T16:00:00Z"


def test_lists_without_times_are_pods_that_wait(file: File):
    path = file("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,12000,16384,4,1000\nb,6000,12288,1,460\nc,1,1,x,1\n")
    trace = OPENB_TRACE([path])
    assert trace.jobs["job_id", "gpus", "state"].rows() == [("a", 4.0, "PENDING"), ("b", 0.46, "PENDING")]
    assert trace.jobs["start_time"].null_count() == 2
    assert trace.provenance["gpu_hours"] == 0.0
    assert trace.quality.row(0, named=True)["check"] == "rejected: num_gpu: not a number"
    assert dict(trace.quality["check", "rows"].iter_rows())["no times in the source"] == 2


def test_nodes_become_the_inventory(file: File):
    nodes = file("sn,cpu_milli,memory_mib,gpu,model\nn2,1,1,8,G2\nn1,1,1,0,\n", "nodes.csv")
    trace = OPENB_TRACE([file(FAULTY)], nodes=nodes)
    assert trace.inventory is not None
    assert trace.inventory["node", "gpus", "gpu_model"].rows() == [("n1", 0, None), ("n2", 8, "G2")]
    assert [entry["name"] for entry in trace.provenance["files"]] == ["trace.csv", "nodes.csv"]
    assert trace.summary()["rows_in"] == 18  # nodes are not jobs


@pytest.mark.data
def test_the_public_default_list_has_897_pending_pods_of_149_days(public_data: Path):
    trace = OPENB_TRACE([public_data / "alibaba_gpu_v2023" / "openb_pod_list_default.csv.gz"])
    assert (trace.jobs["state"] == "PENDING").sum() == 897  # data README
    assert trace.jobs.filter(state="PENDING")["start_time"].null_count() == 897
    span = datetime.fromisoformat(trace.summary()["span_end"]) - datetime(1970, 1, 1, tzinfo=UTC)
    assert span.days == 149
