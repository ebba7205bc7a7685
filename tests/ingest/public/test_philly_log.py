"""The Philly job log: attempts with their places."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuplanner.ingest.public.philly_miso_pai_supercloud_traces import read_philly_log

File = Callable[..., Path]


def place(ip: str, gpus: int) -> dict:
    return {"ip": ip, "gpus": [f"gpu{number}" for number in range(gpus)]}


def attempt(start: str | None, end: str | None, *places: dict) -> dict:
    return {"start_time": start, "end_time": end, "detail": list(places)}


def job(number: int, status: str, *attempts: dict, submitted: str = "2017-10-07 01:11:39") -> dict:
    known = {"status": status, "vc": "ee9e8c", "jobid": f"application_{number}", "attempts": list(attempts)}
    return known | {"submitted_time": submitted, "user": "ce2f4c"}


# The first is the example of the source's README.
LOG = [
    job(
        1,
        "Pass",
        attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", place("m47", 8)),
        attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12", place("m412", 8)),
    ),
    job(2, "Killed", attempt("2017-10-08 00:00:00", "2017-10-08 01:00:00", place("m1", 8), place("m2", 4))),
    job(3, "Failed"),
    job(4, "Pass", attempt("2017-10-09 00:00:00", None, place("m3", 1))),
    job(5, "Killed", attempt("None", "2017-10-09 01:00:00", place("m3", 1))),
    job(6, "Odd", attempt("2017-10-09 00:00:00", "2017-10-09 01:00:00", place("m3", 1))),
    {"jobid": "application_7", "status": "Pass"},
    job(8, "Pass", attempt("2017-10-09 02:00:00", "2017-10-09 01:00:00", place("m3", 1))),
    "not a job",
    job(9, "Pass", {"start_time": 5, "end_time": None, "detail": []}),
]


def test_each_attempt_is_a_row(file: File):
    trace = read_philly_log([file(json.dumps(LOG, indent=1), "cluster_job_log")])
    rows = trace.jobs.sort("job_id", "attempt").select("job_id", "attempt", "state", "gpus", "nodes", "node_list")
    assert [(name[-1], *rest) for name, *rest in rows.iter_rows()] == [
        ("1", 1, "FAILED", 8.0, 1, "m47"),
        ("1", 2, "COMPLETED", 8.0, 1, "m412"),
        ("2", 1, "CANCELLED", 12.0, 2, "m1,m2"),
        ("3", 1, "FAILED", None, None, None),
        ("4", 1, "RUNNING", 1.0, 1, "m3"),
        ("5", 1, "CANCELLED", 1.0, 1, "m3"),
    ]
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {
        6: "state: not one of Pass, Killed, Failed",
        7: "not a job as the source documents it",
        8: "end before start",
        9: "not a job as the source documents it",
        10: "not a job as the source documents it",
    }
    assert trace.summary()["rows_in"] == 11  # ten items, of which the first has two attempts


def test_hours_and_queues_by_hand(file: File):
    trace = read_philly_log([file(json.dumps(LOG), "cluster_job_log")])
    first = 8 * 74 + 8 * ((2 * 24 + 5) * 3600 + 39 * 60 + 42)  # 01:12:09-01:13:23; 07 01:13:30-09 06:53:12
    until = datetime(2017, 10, 9, 13, 53, 12, tzinfo=UTC)
    assert trace.summary()["span_end"] == "2017-10-09T13:53:12Z"
    still = (until - datetime(2017, 10, 9, 7, tzinfo=UTC)).total_seconds()
    assert trace.provenance["gpu_hours"] == pytest.approx((first + 12 * 3600 + still) / 3600)
    again = trace.jobs.filter(attempt=2)
    assert (again["start_time"] - again["submit_time"])[0].total_seconds() == 7  # since the first one ended
    found = trace.quality["check"].to_list()
    assert {"attempt followed by another", "never scheduled", "running when the observation ended"} <= set(found)


def test_a_list_and_lines_of_jobs_are_the_same(file: File):
    whole = read_philly_log([file(json.dumps(LOG[:5]), "a.json")])
    lines = read_philly_log([file("".join(json.dumps(each) + "\n" for each in LOG[:5]), "b.json")])
    assert whole.jobs.equals(lines.jobs)
