"""ITP job tables: grave faults, and files of one name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuplanner.ingest.public.job_lists import ITP_TRACE

File = Callable[..., Path]


def test_faults_above_one_row_in_a_hundred_are_grave(file: File):
    rows = "".join(f"j{number},{number},600,1\n" for number in range(300))
    header = "job_id,submission_time,duration,num_gpu\n"
    few = ITP_TRACE([file(header + rows + "x,1,600,-1\n")])
    many = ITP_TRACE([file(header + rows + "".join(f"x{n},1,600,-1\n" for n in range(4)), "b.csv")])
    name = "rejected: num_gpu: below 0"
    assert dict(few.quality["check", "severity"].iter_rows())[name] == "warning"
    assert dict(many.quality["check", "severity"].iter_rows())[name] == "error"


def test_files_of_one_name_are_told_apart_by_their_folder(file: File, tmp_path: Path):
    text = "job_id,submission_time,duration,num_gpu\n{},60,600,1\nbad\n"
    for month in ("jan", "feb"):
        (tmp_path / month).mkdir()
    trace = ITP_TRACE([file(text.format(month), f"{month}/c1.csv") for month in ("jan", "feb")])
    assert trace.rejects["file"].to_list() == ["feb/c1.csv", "jan/c1.csv"]
    assert [entry["name"] for entry in trace.provenance["files"]] == ["jan/c1.csv", "feb/c1.csv"]
