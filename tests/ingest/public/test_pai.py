"""PAI tables: tasks with shares of GPUs, joined to their jobs and instances."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.public.philly_miso_pai_supercloud_traces import PAI_COLUMNS_BY_TABLE, read_pai
from gpuplanner.ingest.source_registry import detect_source, read

File = Callable[..., Path]

TASKS = """\
j1,worker,4.0,Terminated,7200.0,10800.0,600.0,29.296875,50.0,T4
j1,ps,1.0,Terminated,7200.0,10800.0,600.0,29.296875,,CPU
j2,tensorflow,1.0,Failed,9000.0,12600.0,600.0,29.3,100.0,MISC
j3,worker,2.0,Running,12000.0,,600.0,29.3,100.0,V100
j4,worker,2.0,Waiting,,,600.0,29.3,100.0,
j5,worker,2.0,Waiting,,,600.0,29.3,100.0,
j6,worker,2.0,Lost,9000.0,,600.0,29.3,100.0,
j2,tensorflow,1.0,Failed,9000.0,12600.0,600.0,29.3,100.0,MISC
j7,worker,,Terminated,9000.0,9600.0,600.0,29.3,100.0,P100
j8,worker,1.0,Terminated,9000.0,9600.0,600.0,29.3,,P100
"""
JOBS = """\
j1,i1,u1,Terminated,3600.0,10800.0
j2,i2,u2,Failed,9000.0,12600.0
j3,i3,u1,Running,12000.0,
j4,i4,u3,Waiting,12000.0,
bad
"""
INSTANCES = """\
j1,worker,a,w1,i1,Terminated,7200.0,10800.0,m2
j1,worker,b,w2,i1,Terminated,7200.0,10800.0,m1
j1,worker,c,w3,i1,Terminated,7200.0,10800.0,m2
j1,ps,d,w4,i1,Terminated,7200.0,10800.0,m9
"""


def three(file: File) -> list[Path]:
    return [
        file(text, f"pai_{name}_table.csv")
        for name, text in zip(PAI_COLUMNS_BY_TABLE, (JOBS, TASKS, INSTANCES), strict=True)
    ]


def test_tasks_take_submissions_and_machines_from_the_other_tables(file: File):
    trace = read_pai(three(file))
    rows = {row["job_id"]: row for row in trace.jobs.iter_rows(named=True)}
    worker = rows["j1/worker"]
    assert (worker["gpus"], worker["tenant"], worker["nodes"], worker["node_list"]) == (2.0, "u1", 2, "m1,m2")
    assert worker["submit_time"] == datetime(1970, 1, 1, 1, tzinfo=UTC)
    assert worker["start_time"] == datetime(1970, 1, 1, 2, tzinfo=UTC)
    assert rows["j1/ps"]["gpus"] == 0.0  # of type CPU
    assert rows["j8/worker"]["gpus"] is None  # missing is not zero
    assert rows["j7/worker"]["gpus"] is None
    assert (rows["j4/worker"]["state"], rows["j4/worker"]["tenant"]) == ("PENDING", "u3")
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {
        6: "start_time: missing, and the submission is not known",
        7: "state: not one of Terminated, Failed, Running, Waiting",
        8: "the same job and attempt as an earlier row",
    }
    assert trace.summary()["rows_in"] == 10
    # j1: 2 GPUs for 1 h; j2: 1 for 1 h; j3: 2 from 12000 to the last instant, 12600
    assert trace.provenance["gpu_hours"] == pytest.approx(2 + 1 + 2 * 600 / 3600)


def test_a_header_line_changes_nothing(file: File):
    headed = file(",".join(PAI_COLUMNS_BY_TABLE["task"]) + "\n" + TASKS, "headed.csv")
    assert read_pai([headed]).jobs.equals(read_pai([file(TASKS)]).jobs)
    assert detect_source(headed) == "pai"


def test_the_tables_are_found_in_any_order(file: File):
    paths = three(file)
    assert all(detect_source(path) == "pai" for path in paths)
    whole = read("auto", paths)
    assert whole.summary() == read("auto", paths[::-1]).summary()
    with pytest.raises(TraceFormatError, match="expected pai_task_table, which holds the GPUs"):
        read_pai([paths[0]])
