"""Slurm accounting: public dumps compared job by job, and everything that sacct prints besides."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.hardware.catalog import export_command
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.slurm.accounting import JOB_STEP_REASON, read_slurm
from gpuplanner.ingest.slurm.accounting_fields import (
    DUPLICATE_SUBMISSION_REASON,
    parse_duration_s,
    parse_slurm_state,
    parse_tres,
)
from gpuplanner.ingest.source_registry import read

File = Callable[..., Path]

HEADER = "JobID|Account|State|Submit|Start|End|NodeList|AllocTRES|JobName"
DAY = "2025-09-01T"
FAULTY = f"""\
{HEADER}
1|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu:a100=2,gres/gpu=2,node=1|one|with|bars
1.batch|bio|COMPLETED|{DAY}09:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu:a100=2,gres/gpu=2|batch
1.extern|bio|COMPLETED|{DAY}09:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu:a100=2,gres/gpu=2|extern
1.0|bio|COMPLETED|{DAY}09:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu:a100=2,gres/gpu=2|python
2|bio|LOST|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|x
3|bio|COMPLETED|yesterday|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|x
4|bio|COMPLETED|Unknown|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|x
5|bio|COMPLETED|{DAY}08:00:00|{DAY}25:00:00|{DAY}11:00:00|n1|gres/gpu=1|x
6|bio|COMPLETED|{DAY}10:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|x
7|bio|COMPLETED|{DAY}08:00:00|{DAY}11:00:00|{DAY}09:00:00|n1|gres/gpu=1|x
8|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=many|x
9|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|billing=32,cp|x
10|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00
{HEADER}
11|bio|COMPLETED|2025-03-30T02:30:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|x
12|bio|COMPLETED|1025-03-30T02:30:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|x
13|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=100001|x
1|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu:a100=2,gres/gpu=2|again
14|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|bell\a
"""


def table(file: File, *rows: str, header: str = HEADER, tz: str | None = "UTC", name: str = "a.txt") -> Dataset:
    return read_slurm([file("\n".join([header, *rows]) + "\n", name)], tz=tz)


def test_each_row_that_is_no_readable_job_is_rejected_with_its_line_and_reason(file: File):
    trace = read_slurm([file(FAULTY)], tz="Europe/Oslo")
    skip = "not a time, or one that the clocks of Europe/Oslo skip"
    assert dict(trace.rejects["row", "reason"].iter_rows()) == {
        **dict.fromkeys((3, 4, 5), JOB_STEP_REASON),
        6: "State: not a state of Slurm",
        7: f"Submit: {skip}",
        8: "Submit: missing",
        9: f"Start: {skip}",
        10: "start before submission",
        11: "end before start",
        12: "TRES: not a list of name=value",
        13: "TRES: not a list of name=value",
        14: "fewer fields than columns",
        15: "the header line again",
        16: f"Submit: {skip}",
        17: "Submit: not between 1970 and 2100",
        18: "GPUs: above 100000",
        19: DUPLICATE_SUBMISSION_REASON,
        20: "a control character",
    }
    assert trace.jobs["job_id"].to_list() == ["1"]
    assert trace.provenance["gpu_hours"] == 4.0
    steps = trace.quality.filter(check=f"rejected: {JOB_STEP_REASON}")
    assert steps["severity", "rows"].row(0) == ("info", 3)


def test_times_need_a_zone_unless_they_carry_one(file: File):
    row = f"1|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu=1|x"
    with pytest.raises(TraceFormatError, match=r"expected a stated time zone.*--tz Europe/Oslo or --tz UTC"):
        table(file, row, tz=None)
    offset = table(file, row.replace(":00|", ":00+02:00|"), tz=None)
    epoch = table(file, "1|bio|COMPLETED|1756706400|1756710000|1756717200|n1|gres/gpu=1|x", tz=None, name="b")
    oslo = table(file, row, tz="Europe/Oslo", name="c")
    assert offset.jobs.equals(oslo.jobs)
    assert epoch.jobs.equals(oslo.jobs)
    assert oslo.summary()["span_start"] == "2025-09-01T06:00:00Z"


def test_fields_in_any_order_and_case_and_with_open_line_ends(file: File):
    row = f"gres/gpu=3|{DAY}11:00:00|1|{DAY}08:00:00|{DAY}09:00:00|COMPLETED|"
    trace = table(file, row, header="reqtres|end|JOBID|submit|start|state|")  # as sacct --parsable ends lines
    assert trace.provenance["gpu_hours"] == 6.0
    assert trace.jobs["tenant"].to_list() == ["unknown"]
    assert "no account" in trace.quality["check"].to_list()


T0 = 1756706400
FULL = {"JobID": "7", "State": "COMPLETED", "Submit": T0, "Eligible": T0 + 60, "Start": T0 + 600, "End": T0 + 7800,
        "ElapsedRaw": 7200, "Elapsed": "02:00:00", "AllocTRES": "gres/gpu=2"}  # fmt: skip


@pytest.mark.parametrize(
    ("left_out", "check"),
    [
        ([], None),
        (["End"], "end not in the source"),
        (["End", "ElapsedRaw"], "end not in the source"),
        (["Start"], "start not in the source"),
        (["Submit"], "submission not in the source"),
        (["Submit", "Eligible"], "submission not in the source"),
    ],
)
def test_times_that_a_field_list_leaves_out_follow_from_the_others(file: File, left_out: list[str], check: str | None):
    fields = {name: str(value) for name, value in FULL.items() if name not in left_out}
    trace = table(file, "|".join(fields.values()), header="|".join(fields), tz=None)
    row = trace.jobs.row(0, named=True)
    assert (row["start_time"].timestamp(), row["end_time"].timestamp()) == (T0 + 600, T0 + 7800)
    submit = T0 if "Submit" not in left_out else T0 + 60 if "Eligible" not in left_out else T0 + 600
    assert row["submit_time"].timestamp() == submit
    assert trace.provenance["gpu_hours"] == 4.0
    assert [name for name in trace.quality["check"] if "not in the source" in name] == ([check] if check else [])


def test_a_derived_end_is_left_open_for_jobs_that_run_or_wait(file: File):
    header = "JobIDRaw|State|Submit|Start|ElapsedRaw|AllocTRES"
    trace = table(
        file,
        f"1|RUNNING|{T0}|{T0}|3600|gres/gpu=1",
        f"2|PENDING|{T0}|Unknown|0|gres/gpu=1",
        f"3|CANCELLED by 5|{T0}|None|0|gres/gpu=1",
        header=header,
        tz=None,
    )
    assert trace.jobs["job_id"].to_list() == ["1", "2", "3"]
    assert trace.jobs["end_time"].null_count() == 3
    assert trace.provenance["gpu_hours"] == 1.0


def test_a_field_list_without_a_header_can_be_named(file: File):
    rows = "".join(f"{number}|COMPLETED|{T0}|{T0}|{T0 + 3600}|gres/gpu={number}|a|b\n" for number in (1, 2))
    names = ["JobID", "State", "Submit", "Start", "End", "AllocTRES", "JobName"]
    trace = read("slurm", file(rows), columns=names)
    assert trace.summary()["rows_in"] == trace.jobs.height == 2
    assert trace.summary()["gpu_hours"] == 3.0


def test_a_renamed_column_is_named_with_its_nearest(file: File):
    with pytest.raises(TraceFormatError, match=r"'AllocTRES' may be 'AllocTRESs' here"):
        table(file, "", header="JobID|State|Submit|Start|End|AllocTRESs")


def test_missing_fields_are_all_named(file: File):
    with pytest.raises(
        TraceFormatError,
        match=r"'Submit' or 'Eligible' or 'Start', 'Start' or 'End', .*'AllocTRES' or 'ReqTRES' of slurm",
    ):
        table(file, "1|x|COMPLETED", header="JobID|JobName|State")


def test_a_bar_inside_the_only_free_text_is_part_of_it_and_elsewhere_rejected_not_misread(file: File):
    header = "JobID|JobName|State|Submit|Start|End|AllocTRES"
    good = f"1|x|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|gres/gpu=1"
    trace = table(file, good, good.replace("1|x", "2|x|y"), header=header)
    assert trace.jobs["job_id", "job_name"].rows() == [("1", "x"), ("2", "x|y")]
    two = table(file, good + "|a", good.replace("1|x", "2|x|y") + "|a|b|c", header=f"{header}|Comment")
    assert two.jobs["job_id"].to_list() == ["1"]  # of two free texts nobody knows which has it, and the last takes all
    assert two.rejects["reason"].str.starts_with("Submit: not a time").to_list() == [True]


def test_arrays_and_requeued_jobs_keep_their_attempts_apart(file: File):
    trace = table(
        file,
        f"5_1|bio|COMPLETED|{DAY}08:00:00|{DAY}08:10:00|{DAY}09:00:00|n1|gres/gpu=1|x",
        f"5_2|bio|NODE_FAIL|{DAY}08:00:00|{DAY}08:10:00|{DAY}08:20:00|n1|gres/gpu=1|x",
        f"5_2|bio|COMPLETED|{DAY}08:20:00|{DAY}08:30:00|{DAY}09:00:00|n2|gres/gpu=1|x",
        f"5_[3-9]|bio|PENDING|{DAY}08:00:00|Unknown|Unknown|None assigned||x",
    )
    assert trace.jobs.sort("job_id", "attempt")["job_id", "attempt"].rows() == [
        ("5_1", 1),
        ("5_2", 1),
        ("5_2", 2),
        ("5_[3-9]", 1),
    ]
    assert "array of waiting tasks on one row" in trace.quality["check"].to_list()


def test_of_two_dumps_of_a_job_the_one_that_knows_its_end_counts(file: File):
    running = f"1|bio|RUNNING|{DAY}08:00:00|{DAY}09:00:00|Unknown|n1|gres/gpu=1|x"
    waiting = f"1|bio|PENDING|{DAY}08:00:00|Unknown|Unknown|None assigned||x"
    ended = f"1|bio|FAILED|{DAY}08:00:00|{DAY}09:00:00|{DAY}10:00:00|n1|gres/gpu=1|x"
    months = [file(f"{HEADER}\n{row}\n", name) for name, row in (("a", waiting), ("b", running), ("c", ended))]
    trace = read_slurm(months, tz="UTC")
    assert trace.jobs["state"].to_list() == ["FAILED"]
    assert trace.rejects["file", "reason"].rows() == [
        ("a", DUPLICATE_SUBMISSION_REASON),
        ("b", DUPLICATE_SUBMISSION_REASON),
    ]


def test_a_running_job_counts_up_to_the_moment_sacct_ran(file: File):
    header = HEADER.replace("JobName", "ElapsedRaw")
    trace = table(
        file,
        f"1|bio|RUNNING|{DAY}08:00:00|{DAY}09:00:00|Unknown|n1|gres/gpu=2|7200",
        f"2|bio|SUSPENDED|{DAY}08:00:00|{DAY}10:00:00|Unknown|n1|gres/gpu=1|3600",
        header=header,
    )
    assert trace.summary()["span_end"] == "2025-09-01T11:00:00Z"
    assert trace.provenance["gpu_hours"] == 2 * 2 + 1
    assert trace.jobs["state"].to_list() == ["RUNNING", "RUNNING"]


def test_a_job_that_never_had_a_node_has_no_start(file: File):
    # Older versions print the time of the cancellation as the start.
    trace = table(file, f"1|bio|CANCELLED by 5|{DAY}08:00:00|{DAY}09:00:00|{DAY}09:00:00|None assigned|gres/gpu=1|x")
    assert trace.jobs["start_time", "node_list"].row(0) == (None, None)
    assert trace.quality.filter(check="ended without ever starting").height == 1


def test_elapsed_time_that_contradicts_the_clock_is_reported(file: File):
    header = HEADER.replace("JobName", "Elapsed")
    row = "1|bio|COMPLETED|2025-10-26T00:00:00|2025-10-26T01:00:00|2025-10-26T04:00:00|n1|gres/gpu=1|04:00:00"
    name = "elapsed time is not end - start"
    assert name not in table(file, row, header=header, tz="Europe/Oslo").quality["check"].to_list()
    assert name in table(file, row, header=header, tz="UTC", name="b").quality["check"].to_list()


def test_a_mig_instance_counts_its_share_and_tells_the_board(file: File):
    trace = table(file, f"1|bio|COMPLETED|{DAY}08:00:00|{DAY}09:00:00|{DAY}11:00:00|n1|gres/gpu:a100_3g.20gb=1|x")
    told = trace.jobs["gpus", "gpus_by_memory", "instances", "gpu_model", "profile_requested"].row(0)
    assert told == (3 / 7, 4 / 8, 1, "A100-40GB", "3g.20gb")
    assert "MIG instances counted as shares of GPUs" in trace.quality["check"].to_list()


@pytest.mark.parametrize(
    ("text", "gpus", "devices", "nodes"),
    [
        ("billing=32,cpu=32,gres/gpu:a100=4,gres/gpu=4,mem=128G,node=1", 4, "a100=4", 1),
        ("gres/gpu:a100=2,gres/gpu:v100=1", 3, "a100=2,v100=1", None),
        ("cpu=8,mem=24000M,node=12", 0, None, 12),
        ("gres/gpu=2,gres/gpumem=40G,gres/gpuutil=80", 2, None, None),
        ("gres/gpu:nvidia_a100_1g.5gb=3", 3, "nvidia_a100_1g.5gb=3", None),
        ("gres/gpu:h100_1g.10gb.me=1", 1, "h100_1g.10gb.me=1", None),
        ("gres/gpu:a100_3g.20gb=1,gres/gpu:a100_1g.5gb=1", 2, "a100_1g.5gb=1,a100_3g.20gb=1", None),
    ],
)
def test_gpus_of_a_tres_text(text: str, gpus: int, devices: str | None, nodes: int | None):
    tres = parse_tres(text)
    assert (tres.gpus, tres.devices, tres.nodes) == (gpus, devices, nodes)


@pytest.mark.parametrize("text", ["", "cpu", "cpu=", "=8", "gres/gpu=-1", "gres/gpu=1.5", "node=9999999999", "a,b=1"])
def test_what_is_no_tres_text_is_refused(text: str):
    with pytest.raises(ValueError):
        parse_tres(text)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 380693", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("DEADLINE", "TIMEOUT"),
        ("SUSPENDED", "RUNNING"),
        ("REQUEUED", "PREEMPTED"),
        ("REQUEUE+", None),
        ("completed", None),
    ],
)
def test_states(text: str, state: str | None):
    assert parse_slurm_state(text) == state


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("00:00:24", 24.0),
        ("10-13:27:06", 912_426.0),
        ("01:30", 90.0),
        ("00:01.413", 1.413),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_durations(text: str, value: float | None):
    assert pl.select(parse_duration_s(pl.lit(text))).item() == value


def instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.data
def test_the_fox_dump_equals_what_was_checked_by_hand_upstream(public_data: Path):
    trace = read_slurm([public_data / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo")
    assert trace.summary()["rows_in"] == 301
    assert trace.jobs.height == 122
    assert trace.rejects["reason"].to_list() == [JOB_STEP_REASON] * 179
    text = (public_data / "slurm" / "sonar_fox_2025.json").read_text()
    expected = {
        str(job["job_id"]): job for job in json.loads(text)["data"]["attributes"]["slurm_jobs"] if "job_step" not in job
    }
    assert set(trace.jobs["job_id"]) == expected.keys()
    snapshot = datetime.fromisoformat(trace.summary()["span_end"])
    hours = 0.0
    for job in trace.jobs.iter_rows(named=True):
        want = expected[job["job_id"]]
        assert job["state"] == want["job_state"].split()[0]
        assert job["submit_time"] == instant(want["submit_time"])
        assert job["start_time"] == instant(want.get("start_time"))
        assert job["end_time"] == instant(want.get("end_time"))
        assert (job["user"], job["tenant"]) == (want["user_name"], want["account"])
        # The JSON adds 2 to numbers: there, 0 is "not set" and 1 "without limit".
        assert job["time_limit_s"] == want["time_limit"] - 2
        assert job["node_list"] == ",".join(want.get("nodes", [])) or job["node_list"] is None
        resources = dict(item.split("=") for item in want.get("allocated_resources", "").split(",") if item)
        assert job["gpus"] == (float(resources.get("gres/gpu", 0)) if resources else None)
        models = [name.split(":")[1] for name in resources if name.startswith("gres/gpu:")]
        catalogue = {"a100_80": "A100-80GB", "l40s": "L40S", "a40": "A40"}  # a100 may have 40 or 80 GB
        assert job["gpu_model"] == (catalogue.get(models[0], models[0]) if models else None)
        if job["start_time"] is not None:
            held = ((job["end_time"] or snapshot) - job["start_time"]).total_seconds()
            # sacct filled in ElapsedRaw row by row, within a second of the snapshot.
            assert abs(held - want["sacct"]["ElapsedRaw"]) <= 1
            hours += (job["gpus"] or 0) * held / 3600
    assert trace.provenance["gpu_hours"] == pytest.approx(hours)
    assert trace.summary()["span_start"] == "2025-09-07T20:16:06Z"  # 22:16:06, UTC+2


@pytest.mark.data
def test_the_phillips_dump_has_two_gpu_jobs(public_data: Path):
    path = public_data / "slurm" / "sacct_phillips_2016.log.gz"
    trace = read_slurm([path], tz="UTC")
    with gzip.open(path, "rt") as stream:
        rows = [line.rstrip("\n").split("|", 25) for line in stream]
    assert trace.summary()["rows_in"] == len(rows) == trace.jobs.height == 4285
    gpu_rows = [row for row in rows if "gres/gpu=" in row[22]]
    assert len(gpu_rows) == 2
    assert trace.jobs.filter(pl.col("gpus") > 0)["job_id"].to_list() == [row[0] for row in gpu_rows]
    hours = sum(
        int(row[22].split("gres/gpu=")[1].split(",")[0])
        * (datetime.fromisoformat(row[13]) - datetime.fromisoformat(row[12])).total_seconds()
        for row in gpu_rows
    )
    assert trace.provenance["gpu_hours"] == pytest.approx(hours / 3600)
    first = trace.jobs.row(0, named=True)
    assert (first["tier"], first["tenant"], first["user"], first["nodes"]) == ("chestnut", "chaff", "noror", 1)
    assert first["time_limit_s"] == 37 * 86400 + 14 * 3600
    never = sum(row[24] == "None assigned" for row in rows)
    assert trace.jobs["start_time"].null_count() == never


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        # The formats of sacct without --format, of sacct --long, and a file without header whose fields are unknown.
        ("JobID|JobName|Partition|Account|AllocCPUS|State|ExitCode\n7|a|gpu|x|1|COMPLETED|0:0\n", "'AllocTRES'"),
        ("JobID|NTasks|Elapsed|State|AllocTRES\n7||05:00:00|COMPLETED|cpu=8,gres/gpu=2\n", "'Submit' or 'Eligible'"),
        ("7|COMPLETED|h100|1775469600|1775476800|7200|cpu=32,gres/gpu=8,node=1\n", "'State', 'JobID' or 'JobIDRaw'"),
        ("billing=32,gres/gpu=8|7|CANCELLED by 7|2026-03-02T08:00:00\n", "'State', 'JobID' or 'JobIDRaw'"),
    ],
)
@pytest.mark.parametrize("source", ["auto", "slurm"])
def test_accounting_without_times_names_the_columns_and_the_command(
    text: str, missing: str, source: str, file: Callable[..., Path]
):
    with pytest.raises(TraceFormatError) as found:
        read(source, file(text), tz="UTC")
    assert missing in str(found.value)
    assert f"run {export_command('sacct')}" in str(found.value)
