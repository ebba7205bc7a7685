"""MIT Supercloud: integer states and resources, ids that collide."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.public.philly_miso_pai_supercloud_traces import read_supercloud

File = Callable[..., Path]

HEADER = "id_job,id_array_task,id_user,nodelist,state,timelimit,mem_req,time_submit,time_start,time_end,tres_alloc"
T0 = 1609535912


def rows(file: File, *lines: str) -> Dataset:
    return read_supercloud([file("\n".join([HEADER, *lines]) + "\n")])


def row(
    tres: str = "1=4,4=1,1002=2", *, number: str = "5.1e12", state: int = 3, limit: int = 60, nodes: str = "n1"
) -> str:
    return f'{number},4294967294,4.2e13,"[{nodes!r}]",{state},{limit},9.22337e+18,{T0},{T0 + 60},{T0 + 3660},"{tres}"'


@pytest.mark.parametrize(
    ("tres", "gpus", "model"),
    [
        ("1=4,2=34000,4=1,5=4,1002=1", 1, "volta"),
        ("1=4,4=1,1001=2", 2, "tesla"),
        ("1001=2,1002=1", 3, "tesla|volta"),
        ("1=20,2=170000,3=18446744073709551614,4=1,5=20", 0, None),
    ],
)
def test_codes_of_resources(file: File, tres: str, gpus: int, model: str | None):
    assert rows(file, row(tres)).jobs.select("gpus", "gpu_model").rows() == [(gpus, model)]


@pytest.mark.parametrize(
    ("number", "state"),
    [(0, "PENDING"), (1, "RUNNING"), (2, "RUNNING"), (3, "COMPLETED"), (4, "CANCELLED"), (5, "FAILED"), (6, "TIMEOUT"),
     (7, "NODE_FAIL"), (8, "PREEMPTED"), (9, "NODE_FAIL"), (10, "TIMEOUT"), (11, "OUT_OF_MEMORY")],
)  # fmt: skip
def test_numbers_of_states(file: File, number: int, state: str):
    assert rows(file, row(state=number)).jobs["state"].to_list() == [state]


def test_what_is_unknown_is_rejected_not_guessed(file: File):
    trace = rows(file, row(), row(state=12), row("1=4,1003=2"), row("1=4,1002"), row("1=4,1002=-1"))
    tres = "tres: not a list of code=count with known codes"
    assert trace.rejects["row", "reason"].rows() == [
        (3, "state: not a number of a state of Slurm"),
        (4, tres),
        (5, tres),
        (6, tres),
    ]


def test_ids_that_collide_are_made_unique_and_said(file: File):
    trace = rows(file, row(), row(number="6e12"), row())
    ids = [f"{number}-42000000000000-{T0}" for number in (5100000000000, 6000000000000, 5100000000000)]
    assert trace.jobs["job_id"].to_list() == [*ids[:2], f"{ids[2]}#2"]
    finding = trace.quality.filter(check="the same job id, user and second of submission on several rows")
    assert finding.select("severity", "rows").row(0) == ("warning", 1)


def test_a_job_keeps_its_name_while_it_lives(file: File):
    """Running in the first export, done in the second, which is believed."""
    running = row(state=1).replace(str(T0 + 3660), "0")
    first = file("\n".join([HEADER, running, row(number="6e12")]) + "\n", "one.csv")
    second = file("\n".join([HEADER, row(), row(number="7e12").replace(str(T0 + 3660), str(T0 + 9000))]), "two.csv")
    for order in ([first, second], [second, first]):
        trace = read_supercloud(order)
        states = dict(trace.jobs["job_id", "state"].iter_rows())
        assert {name.partition("-")[0]: state for name, state in states.items()} == {
            "5100000000000": "COMPLETED",
            "6000000000000": "COMPLETED",
            "7000000000000": "COMPLETED",
        }
        assert trace.rejects["file", "row", "reason"].rows() == [("one.csv", 2, "repeated by a later export")]


@pytest.mark.data
def test_the_public_table_equals_a_count_by_hand(public_data: Path):
    path = public_data / "supercloud" / "slurm-log-queueing-clean.csv.gz"
    with gzip.open(path, "rt") as stream:
        table = list(csv.DictReader(stream))
    trace = read_supercloud([path])
    assert trace.summary()["rows_in"] == len(table) == 5776 == trace.jobs.height
    held = 0
    volta = []
    for line in table:
        resources = dict(item.split("=") for item in line["tres_alloc"].split(","))
        gpus = int(resources.get("1002", 0))
        assert "1001" not in resources
        if gpus:
            volta.append(gpus)
            held += gpus * (int(line["time_end"]) - int(line["time_start"]))
    assert (len(volta), sum(volta)) == (401, 486)
    jobs = trace.jobs.filter(pl.col("gpus") > 0)
    assert (jobs.height, jobs["gpus"].sum()) == (401, 486)
    assert jobs["gpu_model"].unique().to_list() == ["volta"]
    assert trace.provenance["gpu_hours"] == pytest.approx(held / 3600)
    assert round(trace.provenance["gpu_hours"], 3) == 6657.183
    states = {
        "3": "COMPLETED",
        "4": "CANCELLED",
        "5": "FAILED",
        "6": "TIMEOUT",
        "7": "NODE_FAIL",
        "11": "OUT_OF_MEMORY",
    }
    expected = Counter(states[line["state"]] for line in table)
    assert dict(trace.jobs["state"].value_counts().iter_rows()) == expected
    assert trace.jobs["time_limit_s"].null_count() == sum(line["timelimit"] == "4294967295" for line in table) == 2050
    assert trace.jobs["job_id"].n_unique() == 5776
    assert not trace.jobs["job_id"].str.contains("#").any()  # id, array task, user and submission tell all apart
