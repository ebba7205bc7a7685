"""Nodes that were down or drained in the ledger: GPUs that nobody could have, beside what jobs still held there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import TABLES, Inventory, Jobs
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.installed_capacity import out_of_service_gpus
from gpuplanner.usage.period_accounts import dataset_ledger

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
BUCKET = TABLES["out_of_service"].columns()["bucket"].dtype
HEADER = "Cluster|NodeName|TimeStart|TimeEnd|State|Reason"


def hours(number):
    return NINE + timedelta(hours=float(number))


def jobs_of(*rows):
    """Rows of (start, end, GPUs, nodes) in hours; an open end runs on."""
    frame = pl.DataFrame([
        {"job_id": str(number), "attempt": 1, "tenant": "t", "state": "COMPLETED", "gpus": float(gpus),
         "submit_time": hours(start), "start_time": hours(start), "end_time": None if end is None else hours(end),
         "node_list": names}
        for number, (start, end, gpus, names) in enumerate(rows)
    ], infer_schema_length=None)  # fmt: skip
    return conform(frame, Jobs, source="test")


def nodes_of(*sizes):
    frame = pl.DataFrame({"node": [f"n{number}" for number in range(len(sizes))], "gpus": sizes})
    return conform(frame, Inventory, source="test")


def events(*rows):
    schema = {"node": pl.String, "start_time": pl.Datetime("us", "UTC"), "end_time": pl.Datetime("us", "UTC"),
              "gpus": pl.Float64, "bucket": BUCKET, "tenant": pl.String}  # fmt: skip
    return pl.DataFrame(
        [(node, hours(a), None if b is None else hours(b), gpus, *(why or ["down" if gpus is None else "reconfiguring",
          None])) for node, a, b, gpus, *why in rows], schema=schema, orient="row",
    )  # fmt: skip


def down_by_hour(out, of):
    return [
        sum(
            gpus
            for start, end, gpus in out.filter(bucket="down").select("start_time", "end_time", "gpus").iter_rows()
            if start <= hours(at) and hours(at) < end
        )
        for at in of
    ]


def test_a_drained_node_goes_on_with_its_jobs_and_what_they_leave_is_nobodys():
    jobs = jobs_of((0, 3, 8, "n1"), (0, 2, 4, "n[0-1]"))
    out = out_of_service_gpus(events(("n1", 1, 5, None)), jobs, nodes_of(8, 16), hours(0), hours(8))
    assert down_by_hour(out, range(7)) == [0, 6, 8, 16, 16, 0, 0]


def test_random_spells_are_those_of_a_count_hour_by_hour():
    draw = np.random.default_rng(3)
    for _ in range(60):
        sizes = draw.integers(1, 9, 3).tolist()
        busy, rows = [[0] * 24 for _ in sizes], []
        for _ in range(int(draw.integers(0, 12))):
            node, start = int(draw.integers(3)), int(draw.integers(0, 20))
            end, gpus = start + int(draw.integers(1, 5)), int(draw.integers(1, 4))
            if all(busy[node][at] + gpus <= sizes[node] for at in range(start, end)):
                rows.append((start, end, gpus, f"n{node}"))
                for at in range(start, end):
                    busy[node][at] += gpus
        shut = [(f"n{draw.integers(4)}", int(a), None if b > 22 else int(a + b), None)
                for a, b in draw.integers(0, 24, (4, 2))]  # fmt: skip
        jobs = jobs_of(*rows) if rows else jobs_of((0, 1, 1, "n9")).clear()
        out = out_of_service_gpus(events(*shut), jobs, nodes_of(*sizes), hours(0), hours(24))
        expected = [
            sum(
                sizes[node] - busy[node][at]
                for node in range(3)
                if any(name == f"n{node}" and a <= at < (24 if b is None else b) for name, a, b, _ in shut)
            )
            for at in range(24)
        ]
        assert down_by_hour(out, range(24)) == pytest.approx(expected)


def test_the_ledger_closes_with_nodes_that_are_down():
    jobs = jobs_of((0, 3, 8, "n1"))
    trace = Dataset(
        {"jobs": jobs, "out_of_service": events(("n1", 1, 5, None))}, pl.DataFrame(), pl.DataFrame(), {"source": "test"}
    )
    by = dict(dataset_ledger(trace, hours(0), hours(8), nodes_of(8, 16)).group_by("bucket").agg(
        pl.col("gpu_hours").sum()).iter_rows())  # fmt: skip
    assert by["down"] == pytest.approx(2 * 8 + 2 * 16)
    assert sum(by.values()) == pytest.approx(24 * 8)


def test_where_jobs_and_closed_nodes_are_more_than_there_is_jobs_are_believed():
    jobs = jobs_of((0, 4, 12, None), (0, 4, 8, "n0"))  # 12 GPUs somewhere, though n1 is said to be down
    out = out_of_service_gpus(events(("n1", 1, 3, None)), jobs, nodes_of(8, 16), hours(0), hours(4))
    assert down_by_hour(out, range(4)) == [0, 4, 4, 0]
    trace = Dataset(
        {"jobs": jobs, "out_of_service": events(("n1", 1, 3, None))}, pl.DataFrame(), pl.DataFrame(), {"source": "test"}
    )
    by = dataset_ledger(trace, hours(0), hours(4), nodes_of(8, 16))
    assert by["gpu_hours"].sum() == pytest.approx(24 * 4)


def test_events_of_slurm_are_read_in_their_zone(tmp_path):
    path = tmp_path / "events.txt"
    lines = [
        HEADER,
        "c||2026-03-02T08:00:00|Unknown||Cluster registered",
        "c|n1|2026-03-02T10:00:00|2026-03-02T12:30:00|DOWN*|power",
        "c|n2|2026-03-02T11:00:00|Unknown|IDLE+DRAIN|disk",
        "c|n3|2026-03-02T11:00:00|2026-03-02T11:05:00|IDLE|back",
    ]
    path.write_text("\n".join(lines) + "\n")
    found = read("auto", [path], tz="Europe/Oslo")
    assert found.table.select("node", "start_time", "end_time", "gpus", "bucket").rows() == [
        ("n1", NINE, hours(2.5), None, "down"), ("n2", hours(1), None, None, "down"),
    ]  # fmt: skip
    assert found.rejects.height == 2
    with pytest.raises(TraceFormatError, match="a stated time zone"):
        read("slurm-events", [path])


def test_of_a_reserved_node_what_jobs_leave_is_kept_for_its_team_unless_it_is_down():
    jobs = jobs_of((0, 2, 6, "n1"), (3, 4, 4, "n0"))
    shut = events(("n1", 0, 4, None, "reserved", "t"), ("n1", 3, 5, None), ("n0", 0, 4, 2.0, "reserved", "t"))
    trace = Dataset({"jobs": jobs, "out_of_service": shut}, pl.DataFrame(), pl.DataFrame(), {"source": "test"})
    booked = dataset_ledger(trace, hours(0), hours(6), nodes_of(8, 8))
    by = {
        (tenant, bucket): gpu_hours
        for tenant, bucket, gpu_hours in booked.group_by("tenant", pl.col("bucket").cast(pl.String))
        .agg(pl.col("gpu_hours").sum())
        .iter_rows()
    }
    # Of n1: 2 + 2 + 8 of three hours, then it is down. Of n0 two of eight, which the team holds of the pool at 0, 1, 3.
    assert by["t", "reserved"] == pytest.approx(12 + 2)
    assert by["-", "down"] == pytest.approx(16)
    assert sum(by.values()) == pytest.approx(16 * 6)


RESERVATIONS = """\
ReservationName=demo StartTime=2026-03-02T10:00:00 EndTime=2026-03-02T12:00:00 Duration=02:00:00
   Nodes=n[1-2] NodeCnt=2 CoreCnt=64 Features=(null) PartitionName=gpu Flags=SPEC_NODES
   TRES=cpu=128,gres/gpu=8
   Users=(null) Groups=(null) Accounts=vision Licenses=(null) State=ACTIVE BurstBuffer=(null)

ReservationName=root_3 StartTime=2026-03-02T10:00:00 EndTime=2026-03-02T11:00:00 Duration=01:00:00
   Nodes=n3 NodeCnt=1 CoreCnt=64 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES
   TRES=cpu=64
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null)

ReservationName=seats StartTime=2026-03-02T10:00:00 EndTime=2026-03-02T11:00:00 Duration=01:00:00
   Nodes=(null) NodeCnt=0 CoreCnt=0 Flags=LICENSE_ONLY Users=bob Accounts=(null) Licenses=matlab:2 State=ACTIVE
"""


def test_reservations_of_slurm_are_read_beside_its_events(tmp_path):
    plan, log = tmp_path / "reservations.txt", tmp_path / "events.txt"
    plan.write_text(RESERVATIONS)
    log.write_text(f"{HEADER}\nc|n1|2026-03-02T10:00:00|2026-03-02T12:30:00|DOWN*|power\n")
    found = read("auto", [plan], tz="Europe/Oslo")
    assert found.table.select("node", "start_time", "end_time", "gpus", "bucket", "tenant").rows() == [
        ("n1", NINE, hours(2), 4.0, "reserved", "vision"), ("n2", NINE, hours(2), 4.0, "reserved", "vision"),
        ("n3", NINE, hours(1), None, "down", None),
    ]  # fmt: skip
    assert found.rejects["reason"].to_list() == ["nodes: none, or not such as n[1-4]"]
    with pytest.raises(TraceFormatError, match="the time zone of scontrol"):
        read("slurm-reservations", [plan])
    for path in (plan, log):
        both = add_files("auto", [path], tmp_path / "data", tz="Europe/Oslo").dataset
    assert both.tables["out_of_service"].group_by("bucket").len().sort("bucket")["len"].to_list() == [2, 2]
    plan.write_text(RESERVATIONS.replace("n3", "n4"))
    again = add_files("auto", [plan], tmp_path / "data", tz="Europe/Oslo", replace_source=True).dataset
    assert sorted(again.tables["out_of_service"]["node"]) == ["n1", "n1", "n2", "n4"]
