"""Time out of service by the log of changes, and where it ends up in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger

START = datetime(2026, 11, 2, 8, tzinfo=UTC)
HEAD = "time,change,node,gpus,event\n"


def log(folder: Path, *events: tuple[int, str, str]) -> Path:
    """A log of events: minutes after eight, node, and what."""
    path = folder / "changes.csv"
    lines = [f"{START + timedelta(minutes=at):%Y-%m-%dT%H:%M:%SZ},c,{node},8,{event}\n" for at, node, event in events]
    path.write_text(HEAD + "".join(lines))
    return path


def test_beginnings_and_ends_are_paired_by_node(tmp_path: Path) -> None:
    """n1 stopped and was gone on with; n2 has not come back; an end without a beginning says nothing."""
    events = [(0, "n1", "begin"), (1, "n2", "begin"), (3, "n1", "begin"), (5, "n1", "end"), (5, "n3", "end")]
    events += [(60, "n1", "begin"), (62, "n1", "end"), (63, "n1", "end")]
    found = read("changes", log(tmp_path, *events)).tables["out_of_service"]
    times = (pl.col("start_time", "end_time") - START).dt.total_minutes()
    minutes = found.select("node", times).rows()
    assert minutes == [("n1", 0, 5), ("n2", 1, None), ("n1", 60, 62)]


def test_it_is_booked_as_reconfiguring_and_the_ledger_closes(tmp_path: Path) -> None:
    out = read("auto", log(tmp_path, (0, "n1", "begin"), (15, "n1", "end"))).tables["out_of_service"]
    nodes = pl.DataFrame({"node": ["n1", "n2"], "gpus": [8, 8]})
    jobs = pl.DataFrame(
        {"job_id": ["a"], "attempt": 1, "tenant": "t", "state": "COMPLETED", "gpus": 8.0, "submit_time": START,
         "start_time": START, "end_time": START + timedelta(hours=1), "node_list": "n2"}
    )  # fmt: skip
    ledger = gpu_time_ledger(jobs, nodes, start=START, end=START + timedelta(hours=1), out_of_service=out)
    hours = dict(ledger.select("bucket", "gpu_hours").iter_rows())
    assert hours["reconfiguring"] == pytest.approx(2.0)
    assert ledger["gpu_hours"].sum() == pytest.approx(16.0)
