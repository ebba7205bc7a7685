"""The Philly job table, whole and damaged."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Jobs
from gpuplanner.ingest.public.job_lists import PHILLY_TRACE

File = Callable[..., Path]

FAULTY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 06:13:03,2951.0,1,2951.0,6214e9
2017-10-09 06:13:36,2759.0,1,2759.0

2017-10-09 06:16:03,2766.0,1,2766.0,6214e9,extra
2017-10-09T06:16:03,2766.0,1,2766.0,6214e9
2017-10-09 06:17:03,-5,1,-5,6214e9
2017-10-09 06:18:03,abc,1,2766.0,6214e9
2017-10-09 06:19:03,2766.0,-1,2766.0,6214e9
2017-10-09 06:20:03,2766.0,1000000,2766.0,6214e9
2017-10-09 06:21:03,2766.0,nan,2766.0,6214e9
2017-10-09 06:22:03,2766.0,1,2766.0,
,2766.0,1,2766.0,6214e9
timestamp,duration,num_gpus,gpu_time,cluster
2017-02-30 06:22:03,2766.0,1,2766.0,6214e9
2017-03-12 02:30:00,2766.0,1,2766.0,6214e9
2017-10-09 06:23:03,,2,,6214e9
2017-10-09 06:24:03,60.0,,,6214e9
2017-10-09 06:25:03,60.0,0,0.0,6214e9
2017-10-09 06:26:03,60.0,2,60.0,6214e9
2017-11-05 01:30:00,3600.0,1,3600.0,6214e9
"""


def test_each_faulty_row_is_rejected_with_its_line_and_reason(file: File):
    trace = PHILLY_TRACE([file(FAULTY)])
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {
        3: "fewer fields than columns",
        5: "more fields than columns",
        6: "timestamp: not a time like %Y-%m-%d %H:%M:%S",
        7: "duration: below 0; gpu_time: below 0",
        8: "duration: not a number",
        9: "num_gpus: below 0",
        10: "num_gpus: above 100000",
        11: "num_gpus: not a number",
        12: "cluster: missing",
        13: "timestamp: missing",
        14: "the header line again",
        15: "timestamp: not a time like %Y-%m-%d %H:%M:%S",
        16: "timestamp: the clocks of America/Los_Angeles skip it",
    }
    assert trace.rejects["raw"].to_list()[4] == "2017-10-09 06:18:03,abc,1,2766.0,6214e9"
    assert trace.rejects["file"].unique().to_list() == ["trace.csv"]
    assert trace.summary()["rows_in"] == 19
    assert trace.jobs["job_id"].to_list() == [
        "philly-1507554783-6214e9-1-2951",
        "philly-1507555383-6214e9-2-",
        "philly-1507555443-6214e9--60",
        "philly-1507555503-6214e9-0-60",
        "philly-1507555563-6214e9-2-60",
        "philly-1509870600-6214e9-1-3600",
    ]


def test_missing_stays_missing_and_is_reported(file: File):
    trace = PHILLY_TRACE([file(FAULTY)])
    unended, uncounted = trace.jobs.row(1, named=True), trace.jobs.row(2, named=True)
    assert unended["end_time"] is None
    assert uncounted["gpus"] is None
    found = dict(trace.quality["check", "rows"].iter_rows())
    assert found["ended without an end time"] == 1
    assert found["number of GPUs not known"] == 1
    assert found["no GPU"] == 1
    assert found["gpu_time is not duration × num_gpus"] == 1
    assert found["blank lines"] == 1
    # 2951 s × 1 + 60 s × 0 + 60 s × 2 + 3600 s × 1
    assert trace.provenance["gpu_hours"] == pytest.approx((2951 + 120 + 3600) / 3600)


def test_the_hour_that_the_clock_showed_twice(file: File):
    trace = PHILLY_TRACE([file(FAULTY)])
    assert trace.jobs["submit_time"][-1] == datetime(2017, 11, 5, 8, 30, tzinfo=UTC)  # PDT, UTC-7
    assert trace.jobs["end_time"][-1] == datetime(2017, 11, 5, 9, 30, tzinfo=UTC)
    assert dict(trace.quality["check", "rows"].iter_rows())["local time that the clock showed twice"] == 1


def test_equal_rows_of_a_file_are_different_jobs_and_of_two_files_the_same(file: File):
    header, row = "timestamp,duration,num_gpus,cluster\n", "2017-10-09 06:00:00,3600.5,1,a\n"
    first, second = (file(header + row * 3, "one.csv"), file(header + row + row.replace("06:", "07:"), "two.csv"))
    trace = PHILLY_TRACE([first, second])
    name = "philly-1507554000-a-1-3600.5"
    assert sorted(trace.jobs["job_id"]) == [name, f"{name}#2", f"{name}#3", "philly-1507557600-a-1-3600.5"]
    assert trace.rejects["file", "reason"].rows() == [("one.csv", "repeated by a later export")]
    assert trace.provenance["gpu_hours"] == pytest.approx(4 * 3600.5 / 3600)


@pytest.mark.data
def test_the_public_trace(public_data: Path):
    path = public_data / "philly" / "philly.csv.gz"
    trace = PHILLY_TRACE([path])
    with gzip.open(path, "rt", newline="") as stream:
        rows = [row for row in csv.reader(stream) if row][1:]
    # The data README counts 53,258 with the empty last line, which is no job.
    assert trace.summary()["rows_in"] == len(rows) == trace.jobs.height == 53_257
    hours = sum(float(row[1]) * int(row[2]) for row in rows) / 3600
    assert trace.provenance["gpu_hours"] == pytest.approx(hours, rel=1e-12)
    # README: 2017-09-04 10:30:41 .. 2017-12-22 07:41:13, local; UTC-7 before 5 November, UTC-8 after.
    assert trace.summary()["span_start"] == "2017-09-04T17:30:41Z"
    assert trace.jobs["submit_time"][-1] == datetime(2017, 12, 22, 15, 41, 13, tzinfo=UTC)
    assert check_table(trace.jobs, Jobs, source="jobs").equals(trace.jobs)
    assert trace.jobs["submit_time"].is_sorted()
    single = (trace.jobs["gpus"] == 1).sum() / trace.jobs.height
    assert single > 0.93
    assert not trace.quality.filter(pl.col("severity") == "error").height
