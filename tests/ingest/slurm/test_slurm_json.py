"""Slurm accounting as JSON: versions of sacct --json against the same jobs as text, and Sonar."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.slurm.accounting import JOB_STEP_REASON, read_slurm

File = Callable[..., Path]
Json = dict[str, Any]

T0 = 1_756_706_400  # 2025-09-01T06:00:00Z
TEXT = f"""\
JobID|User|Account|QOS|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|NodeList|ReqTRES|AllocTRES
7|ann|bio|high|COMPLETED|{T0}|{T0}|{T0 + 600}|{T0 + 7800}|7200|240|n1|cpu=8,gres/gpu=2\
|cpu=8,gres/gpu=2,gres/gpu:a100=2,node=1
8_3|bob|law|normal|RUNNING|{T0 + 60}|{T0 + 60}|{T0 + 900}|Unknown|900||n[2-3]|gres/gpu=8|gres/gpu=8,node=2
8_[4-9]|bob|law|normal|PENDING|{T0 + 60}|{T0 + 60}|Unknown|Unknown|0|||gres/gpu=8|
9|ann|bio|high|CANCELLED|{T0 + 70}|{T0 + 70}|None|{T0 + 99}|0|60|None assigned|gres/gpu=1|
"""


def tres(*items: tuple[str, str, int]) -> list[Json]:
    return [{"type": kind, "name": name, "id": 1001, "count": count} for kind, name, count in items]


def job(number: int, state: str, *, user: str, account: str, qos: str, submit: int, start: int, end: int, elapsed: int,
        limit: int, nodes: str, allocated: list[Json], requested: list[Json], task: int | None = None,
        tasks: str = "") -> Json:  # fmt: skip
    """A job as Slurm 21.08 prints it."""
    return {
        "job_id": number if task is None else 100 + task,
        "array": {"job_id": number if tasks or task is not None else 0, "task_id": task, "task": tasks or None},
        "het": {"job_id": 0, "job_offset": None},
        "account": account,
        "user": user,
        "qos": qos,
        "nodes": nodes,
        "state": {"current": state, "reason": "None"},
        "time": {
            "elapsed": elapsed, "eligible": submit, "start": start, "end": end, "submission": submit,
            "suspended": 0, "limit": limit,
        },
        "tres": {"allocated": allocated, "requested": requested},
        "steps": [],
    }  # fmt: skip


CPU2 = tres(("cpu", "", 8), ("gres", "gpu", 2))
JOBS = [
    job(7, "COMPLETED", user="ann", account="bio", qos="high", submit=T0, start=T0 + 600, end=T0 + 7800, elapsed=7200,
        limit=240, nodes="n1", requested=CPU2,
        allocated=[*CPU2, *tres(("gres", "gpu:a100", 2), ("node", "", 1), ("energy", "", 0xFFFFFFFFFFFFFFFE))]),
    job(8, "RUNNING", user="bob", account="law", qos="normal", submit=T0 + 60, start=T0 + 900, end=0, elapsed=900,
        limit=0xFFFFFFFF, nodes="n[2-3]", requested=tres(("gres", "gpu", 8)),
        allocated=tres(("gres", "gpu", 8), ("node", "", 2)), task=3),
    job(8, "PENDING", user="bob", account="law", qos="normal", submit=T0 + 60, start=0, end=0, elapsed=0,
        limit=0xFFFFFFFE, nodes="", requested=tres(("gres", "gpu", 8)), allocated=[], tasks="4-9"),
    job(9, "CANCELLED", user="ann", account="bio", qos="high", submit=T0 + 70, start=0, end=T0 + 99, elapsed=0,
        limit=60, nodes="None assigned", requested=tres(("gres", "gpu", 1)), allocated=[]),
]  # fmt: skip
META = {
    "plugin": {"type": "openapi/dbv0.0.37"},
    "Slurm": {"version": {"major": 21, "minor": 8}, "release": "21.08.8-2"},
}


def newer(old: Json) -> Json:
    """The same job as Slurm 23.11 and 24.05 print it: lists of states, numbers that say whether they are set."""
    new = json.loads(json.dumps(old))
    limit = old["time"]["limit"]
    new["state"]["current"] = [old["state"]["current"]]
    new["time"]["limit"] = {"set": limit < 1 << 31, "infinite": limit == 0xFFFFFFFF, "number": limit % (1 << 31)}
    task = old["array"]["task_id"]
    new["array"]["task_id"] = {"set": task is not None, "infinite": False, "number": task or 0}
    new["array"]["task"] = old["array"]["task"] or ""
    new["het"]["job_offset"] = {"set": False, "infinite": False, "number": 0}
    return new


def read(file: File, jobs: list[Json], name: str = "sacct.json") -> Dataset:
    return read_slurm([file(json.dumps({"meta": META, "errors": [], "jobs": jobs}, indent=1), name)])


def test_every_version_of_json_equals_the_text(file: File):
    text = read_slurm([file(TEXT, "sacct.txt")])
    assert text.jobs["job_id"].to_list() == ["7", "8_3", "8_[4-9]", "9"]
    assert text.provenance["gpu_hours"] == pytest.approx(2 * 2 + 8 * 6900 / 3600)  # to the last end seen
    for jobs in (JOBS, [newer(each) for each in JOBS]):
        trace = read(file, jobs)
        assert trace.jobs.equals(text.jobs)
        assert trace.provenance["gpu_hours"] == text.provenance["gpu_hours"]
        assert trace.summary()["span_end"] == text.summary()["span_end"]


def test_a_start_that_is_the_time_of_eligibility_is_taken_from_the_elapsed_time(file: File):
    ended, running = (json.loads(json.dumps(each)) for each in JOBS[:2])
    for each in (ended, running):
        each["time"]["start"] = each["time"]["eligible"]
    ended["time"] |= {"suspended": 100, "elapsed": 7100}
    step_start = T0 + 905
    running["steps"] = [{"time": {"start": step_start, "elapsed": 895, "end": 0, "suspended": 0}, "state": "RUNNING"}]
    trace = read(file, [ended, running])
    assert [start.timestamp() for start in trace.jobs["start_time"]] == [T0 + 600, T0 + 900]
    finding = trace.quality.filter(check="the stated start is the time at which the job became eligible")
    assert finding["rows"].to_list() == [2]


def test_heterogeneous_jobs_keep_the_ids_of_their_parts(file: File):
    parts = [json.loads(json.dumps(JOBS[0])) for _ in range(2)]
    for offset, each in enumerate(parts):
        each["job_id"] = 70 + offset
        each["het"] = {"job_id": 70, "job_offset": {"set": True, "infinite": False, "number": offset}}
    assert read(file, parts).jobs["job_id"].to_list() == ["70+0", "70+1"]


@pytest.mark.data
def test_the_dump_of_fox_is_the_same_as_text_and_as_json_job_by_job(public_data: Path):
    text = read_slurm([public_data / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo")
    checked = read_slurm([public_data / "slurm" / "sonar_fox_2025.json"])  # its times carry their offset
    assert checked.summary()["rows_in"] == 301
    assert checked.rejects["reason"].to_list() == [JOB_STEP_REASON] * 179
    one, other = text.jobs.sort("job_id"), checked.jobs.sort("job_id")
    assert one.height == 122
    assert one.equals(other)
    assert checked.provenance["gpu_hours"] == text.provenance["gpu_hours"] == 933.3425
