"""ITP job tables, whole and damaged."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuplanner.errors import TraceFormatError
from gpuplanner.inbox.public.job_tables import ITP

File = Callable[..., Path]

FAULTY = """\
job_id,submission_time,duration,num_gpu
a,100,3600,64
b,200.5,1800,1
c,,1800,1
d,-1,1800,1
e,300,x,1
f,300,1e99,1
g,300,10,-4
h,300,10,1;
,300,10,1
a,400,10,2
i,500,10
j,500,10,1,1
k,600,,8
l,700,10,
m,1e12,10,1
n,inf,10,1
"o",800,10,"2"
"p,q",900,10,2
"r,900,10,2
"""


def test_each_faulty_row_is_rejected_with_its_line_and_reason(file: File):
    trace = ITP([file(FAULTY, "cluster09.csv")])
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {
        4: "submission_time: missing",
        5: "submission_time: below 0",
        6: "duration: not a number",
        7: "duration: above 3.15576e+09",
        8: "num_gpu: below 0",
        9: "num_gpu: not a number",
        10: "job_id: missing",
        11: "the same job and attempt as an earlier row",
        12: "fewer fields than columns",
        13: "more fields than columns",
        16: "submission_time: above 3.15576e+09",
        17: "submission_time: not a number",
        20: "a quotation mark that is not closed",
    }
    assert trace.jobs["job_id"].to_list() == ["a", "b", "k", "l", "o", "p,q"]
    assert trace.jobs["tenant"].unique().to_list() == ["cluster09"]
    assert trace.jobs["submit_time"][1] == datetime(2021, 3, 4, 0, 3, 20, 500_000, tzinfo=UTC)
    # the first "a" was kept: 64 GPUs for an hour; b: half an hour; o and p,q: 2 GPUs for 10 s
    assert trace.provenance["gpu_hours"] == pytest.approx(64 + 0.5 + 40 / 3600)


def test_faults_above_one_row_in_a_hundred_are_grave(file: File):
    rows = "".join(f"j{number},{number},600,1\n" for number in range(300))
    header = "job_id,submission_time,duration,num_gpu\n"
    few = ITP([file(header + rows + "x,1,600,-1\n")])
    many = ITP([file(header + rows + "".join(f"x{n},1,600,-1\n" for n in range(4)), "b.csv")])
    name = "rejected: num_gpu: below 0"
    assert dict(few.quality["check", "severity"].iter_rows())[name] == "warning"
    assert dict(many.quality["check", "severity"].iter_rows())[name] == "error"


def test_the_origin_can_be_given(file: File):
    path = file("job_id,submission_time,duration,num_gpu\na,60,600,1\n")
    assert ITP([path], origin="2022-01-01T01:00:00+01:00").summary()["span_start"] == "2022-01-01T00:01:00Z"


def test_the_same_file_twice_is_refused(file: File):
    text = "job_id,submission_time,duration,num_gpu\na,60,600,1\n"
    with pytest.raises(TraceFormatError, match="expected different files"):
        ITP([file(text, "one.csv"), file(text, "two.csv")])


def test_files_of_one_name_are_told_apart_by_their_folder(file: File, tmp_path: Path):
    text = "job_id,submission_time,duration,num_gpu\n{},60,600,1\nbad\n"
    for month in ("jan", "feb"):
        (tmp_path / month).mkdir()
    trace = ITP([file(text.format(month), f"{month}/c1.csv") for month in ("jan", "feb")])
    assert trace.rejects["file"].to_list() == ["feb/c1.csv", "jan/c1.csv"]
    assert [entry["name"] for entry in trace.provenance["files"]] == ["jan/c1.csv", "feb/c1.csv"]


README_ROWS = {"cluster01": 1595, "cluster02": 5778, "cluster03": 3011, "cluster06": 2396, "cluster07": 12699}
"""Row counts that the data README states."""


@pytest.mark.data
def test_the_public_traces(public_data: Path):
    paths = sorted((public_data / "itp").glob("cluster0*.csv.gz"))
    trace = ITP(paths)
    rows = {}
    for path in paths:
        with gzip.open(path, "rt", newline="") as stream:
            rows[path.name.split(".")[0]] = list(csv.DictReader(stream))
    counts = dict(trace.jobs.group_by("tenant").len().iter_rows())
    assert counts == {tenant: len(jobs) for tenant, jobs in rows.items()}
    assert counts == README_ROWS
    every = [job for jobs in rows.values() for job in jobs]
    hours = sum(int(job["duration"]) * int(job["num_gpu"]) for job in every) / 3600
    assert trace.provenance["gpu_hours"] == pytest.approx(hours, rel=1e-12)
    first = min(int(job["submission_time"]) for job in every)
    assert trace.jobs["submit_time"][0] == datetime(2021, 3, 4, tzinfo=UTC) + timedelta(seconds=first)
    assert trace.rejects.is_empty()
    assert "start not in the source" in trace.quality["check"].to_list()
