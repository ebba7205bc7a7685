"""Acme job tables: two clusters whose columns mean different things."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuplanner.ingest.public.job_lists import ACME_TRACE

File = Callable[..., Path]

# The examples of the source's README, in the columns of each table.
SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,\
2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778469,u5907,1,8,128,SFT,COMPLETED,2023-03-01 00:23:58+08:00,\
2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,21544.0
"""
KALOS = """\
job_id,user,node_num,gpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
dlctk696s0jbvitv,uf794,8,64,Pretrain,FAILED,2023-05-17 11:00:58+00:00,\
2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,18,10,1152.0
dlc1t2ypl09b8qtp,uf794,8,64,Other,CANCELLED,2023-05-17 11:28:42+00:00,\
2023-05-17 11:28:54+00:00,2023-05-17 11:30:04+00:00,82,12.0,5248.0
"""
REDUCED = "job_id,gpu_num,submit_time,duration,queue\n"


def checks(trace) -> dict[str, int]:
    return dict(trace.quality["check", "rows"].iter_rows())


def test_the_duration_of_seren_is_run_time(file: File):
    trace = ACME_TRACE([file(SEREN)])
    assert trace.jobs["tenant"].unique().to_list() == ["seren"]
    assert trace.provenance["gpu_hours"] == pytest.approx((936 + 21544) / 3600)  # its own gpu_time
    assert trace.jobs["submit_time"][0] == datetime(2023, 2, 28, 16, 18, 22, tzinfo=UTC)  # +08:00
    assert trace.jobs["job_class"].to_list() == ["other", "fine-tuning"]
    assert not [name for name in checks(trace) if "Kalos" in name or "duration" in name]


def test_the_duration_of_kalos_contains_the_queue(file: File):
    trace = ACME_TRACE([file(KALOS)])
    assert trace.jobs["tenant"].unique().to_list() == ["kalos"]
    assert trace.provenance["gpu_hours"] == pytest.approx(64 * (8 + 70) / 3600)  # not 64 x (18 + 82)
    assert checks(trace)["duration contains the queue (Kalos)"] == 2
    assert checks(trace)["gpu_time counts the queue as GPU time (Kalos)"] == 2
    assert "duration is not what it is elsewhere in its cluster" not in checks(trace)
    assert trace.jobs["state"].to_list() == ["FAILED", "CANCELLED"]


def test_a_reduced_table_gives_the_same_run_times_as_the_whole_one(file: File):
    rows = [line.split(",") for line in KALOS.splitlines()[1:]]
    lines = [",".join((row[0], row[3], row[6], row[9], row[10])) for row in rows]
    whole, reduced = ACME_TRACE([file(KALOS)]), ACME_TRACE([file(REDUCED + "\n".join(lines) + "\n", "r.csv")])
    assert reduced.jobs["job_id", "start_time", "end_time"].equals(whole.jobs["job_id", "start_time", "end_time"])
    assert reduced.provenance["gpu_hours"] == whole.provenance["gpu_hours"]
    assert reduced.jobs["state"].unique().to_list() == ["UNKNOWN"]
    numbered = ACME_TRACE([file(REDUCED + "5778432,8,2023-03-01 00:18:22+08:00,117,32\n", "s.csv")])
    assert numbered.jobs["end_time"][0] - numbered.jobs["start_time"][0] == timedelta(seconds=117)
