"""Usage by partition, GPU model and job class, counted by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.output_column_headings import column_heading
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Inventory
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage import describe
from gpuplanner.usage.grouped_usage import UsageFilter, group_ledger, group_utilization, group_waits

JOBS = """job_id,user,team,project,partition,class,submit,start,end,gpus,gpu_model,state
1,ada,vision,atlas,prod,pretraining,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,2026-03-01T10:00:00Z,2,H100-80GB-SXM5,COMPLETED
2,bob,vision,,dev,evaluation,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,2026-03-01T04:00:00Z,1,A100-80GB,COMPLETED
3,cyd,speech,atlas,prod,evaluation,2026-03-01T00:00:00Z,2026-03-01T10:00:00Z,2026-03-01T20:00:00Z,2,A100-80GB,COMPLETED
"""
ACTIVITY = {"1": 0.9, "2": 0.0, "3": None}
"""Mean SM activity of each job: used, idle, and no telemetry."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("usage")
    (folder / "jobs.csv").write_text(JOBS)
    nodes = pl.DataFrame({"node": ["h1", "a1"], "gpu_model": ["H100-80GB-SXM5", "A100-80GB"], "gpus": [2, 2]})
    jobs = read("job-table", folder / "jobs.csv")
    active = pl.col("job_id").replace_strict(ACTIVITY, return_dtype=pl.Float64)
    tables = {
        "jobs": jobs.jobs.with_columns(sm_activity=active),
        "inventory": check_table(nodes, Inventory, source="n"),
    }
    return jobs.with_tables(**tables)


def test_describe_has_run_times_and_utilization_of_each_partition_model_and_class(dataset: Dataset, tmp_path: Path):
    write_dataset(dataset, tmp_path / "data")
    tables = describe(str(tmp_path / "data")).tables
    columns = ("gpu_hours", "median_run_h", "used_fraction")
    found = {
        word: {
            row[word]: tuple(row[name] for name in columns)
            for row in tables[f"allocated GPU-hours and queue waits by {column_heading(word)}"].iter_rows(named=True)
        }
        for word in ("partition", "board", "job_class")
    }
    assert found["partition"] == {"prod": (40.0, 10.0, 1.0), "dev": (4.0, 4.0, 0.0)}
    # Of the A100 jobs, one is idle for 4 GPU-hours and one is not measured: no run of 10 h and 4 h is the middle.
    assert found["board"] == {"A100-80GB": (24.0, 10.0, 0.0), "H100-80GB-SXM5": (20.0, 10.0, 1.0)}
    assert found["job_class"] == {"evaluation": (24.0, 10.0, 0.0), "pretraining": (20.0, 10.0, 1.0)}


def test_groups_of_jobs_sum_to_the_allocated_hours(dataset: Dataset):
    by_class = group_ledger(dataset, "job_class")
    assert dict(by_class.select("job_class", "gpu_hours").iter_rows()) == {"evaluation": 24.0, "pretraining": 20.0}
    by_project = group_utilization(dataset, ["partition", "project"])
    rows = {row[:2]: row[3] for row in by_project.iter_rows()}
    assert rows == {("dev", None): 4.0, ("prod", "atlas"): 40.0}
    assert by_project["allocated_fraction"].null_count() == 2
    allocated = group_ledger(dataset, "team").filter(pl.col("team") != "Unallocated")
    assert allocated.select("used", "allocated_idle", "no_telemetry").sum().row(0) == (20.0, 4.0, 20.0)


def test_a_job_class_is_a_filter(dataset: Dataset):
    evaluation = UsageFilter(job_class="evaluation")
    teams = group_ledger(dataset, "team", usage_filter=evaluation)
    assert dict(teams.select("team", "gpu_hours").iter_rows()) == {"speech": 20.0, "vision": 4.0}
    waits = group_waits(dataset, "project", usage_filter=evaluation)
    assert dict(waits.select("project", "wait_hours").iter_rows()) == {None: 0.0, "atlas": 10.0}


def test_rules_name_classes_that_the_source_lacks(dataset: Dataset):
    names = pl.Series(["train_7b", "OOD Jupyter", "OOD Jupyter"])
    unnamed = dataset.with_tables(jobs=dataset.jobs.with_columns(job_class=pl.lit(None, pl.String), job_name=names))
    by_class = group_ledger(unnamed, "job_class")
    assert dict(by_class.select("job_class", "gpu_hours").iter_rows())["interactive"] == 24.0


def test_layouts_and_drained_nodes_of_a_dump_are_shown(tmp_path: Path):
    lines = (
        "NodeName=gn01 Gres=gpu:a100:4 State=IDLE+DRAIN",
        "   Reason=fan broken [root@2026-03-02T09:00:00]",
        "",
        "NodeName=gn02 Gres=gpu:a100_3g.20gb:2,gpu:a100:3 State=IDLE",
    )
    (tmp_path / "nodes.txt").write_text("\n".join(lines) + "\n\n")
    write_dataset(read("auto", tmp_path / "nodes.txt", tz="UTC"), tmp_path / "data")
    tables = describe(str(tmp_path / "data")).tables
    layouts = tables["MIG layouts of nodes"]
    assert layouts.select("first_node", "layouts", "gpus").rows() == [("gn02", "gpu;gpu;gpu;3g.20gb:2", 4)]
    [row] = tables["nodes out of service"].rows(named=True)
    assert (row["node"], row["bucket"], row["gpus"]) == ("gn01", "down", "all of the node")
    assert row["start_time"].isoformat() == "2026-03-02T09:00:00+00:00"
