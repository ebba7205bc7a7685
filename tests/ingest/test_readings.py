"""What is read beside jobs: occupancy, quotas, gauges, requests, steps, distributions, nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.public.request_traces import read_azure_llm
from gpuplanner.ingest.public.usage_and_request_series import (
    read_distributions,
    read_genai,
    read_helios_quotas,
    read_helios_sequence,
)
from gpuplanner.ingest.slurm.node_records import read_nodes
from gpuplanner.ingest.source_registry import read

File = Callable[..., Path]

SEQUENCE = "time,total_gpu_num,running_gpu_num,pending_gpu_num,idle_gpu_num,gpu_utilization\n"


def checks(reading: Dataset) -> dict[str, int]:
    return dict(reading.quality["check", "rows"].iter_rows())


def test_a_sequence_is_a_series_of_its_pool(file: File, tmp_path: Path):
    for pool in ("vc1", "vc2"):
        (tmp_path / pool).mkdir()
    rows = "2020-05-01 00:00:00,64,59,0,5,0.922\n2020-05-01 00:01:00,64,64,8,0,1.0\n"
    late = "2020-05-01 00:00:00,16,4,,12,0.25\n2020-05-01 00:01:00,16,4,,12,0.25\n2020-05-01 00:04:00,16,8,,7,0.7\n"
    paths = [file(SEQUENCE + text, f"{vc}/cluster_sequence_vc.csv") for vc, text in (("vc1", rows), ("vc2", late))]
    reading = read_helios_sequence(paths)
    assert reading.table["pool", "allocated", "pending"].rows() == [
        ("vc1", 59, 0),
        ("vc1", 64, 8),
        ("vc2", 4, None),
        ("vc2", 4, None),
        ("vc2", 8, None),
    ]
    assert reading.table["time"][0] == datetime(2020, 4, 30, 16, tzinfo=UTC)
    assert reading.summary()["allocated_hours"] == pytest.approx((59 + 64 + 4 + 4 + 8) / 60)
    assert checks(reading) == {
        "gap in the series": 1,
        "running and idle GPUs are not the total": 1,
        "gpu_utilization is not running / total": 1,
    }


def test_rows_of_a_sequence_that_cannot_be_are_rejected(file: File):
    rows = (
        "2020-05-01 00:00:00,64,59,0,5,0.922\n2020-05-01 00:00:00,64,59,0,5,0.922\n"
        "2020-05-01 00:01:00,64,1.5,0,5,0.9\n2020-05-01 00:02:00,-8,0,0,0,0\n2020-05-01 00:03:00,8,9,0,0,1.0\n"
    )
    reading = read_helios_sequence([file(SEQUENCE + rows)])
    assert dict(reading.rejects["row", "reason"].iter_rows()) == {
        3: "the same pool and time as an earlier row",
        4: "not a whole number",
        5: "total_gpu_num: below 0",
    }
    assert checks(reading)["more allocated than installed"] == 1


def test_a_pool_of_no_gpus_did_not_exist(file: File):
    text = "date,vc1,vc2,total\n2020-04-01,112,0,112\n2020-04-02,8,8,17\n2020-04-02,8,8,16\n2020-04-03,-8,8,16\n"
    reading = read_helios_quotas([file(text)])
    assert reading.table.rows() == [
        (date(2020, 4, 1), "vc1", 112),
        (date(2020, 4, 2), "vc1", 8),
        (date(2020, 4, 2), "vc2", 8),
    ]
    assert dict(reading.rejects["row", "reason"].iter_rows()) == {
        4: "the same day as an earlier row",
        5: "vc1: below 0",
    }
    assert checks(reading)["total is not the sum of the pools"] == 1
    assert (reading.summary()["rows_in"], reading.summary()["gpu_days"]) == (4, 128)


def test_only_the_name_of_a_gauge_file_tells_its_metric(file: File):
    text = "value,timestamp_anon,container_ip\n40.0,1662858720.0,23b8\n130.0,1662858777.0,23b8\n"
    duty = read_genai([file(text, "pod_gpu_duty_cycle_anon.csv")])
    assert dict(duty.rejects["row", "reason"].iter_rows()) == {3: "value: above what its unit allows"}
    memory = read_genai([file(text, "pod_gpu_memory_used_bytes_anon.csv")])
    assert (memory.table.height, memory.table["unit"][0]) == (2, "bytes")
    with pytest.raises(TraceFormatError, match="expected a file named pod_gpu_duty_cycle"):
        read_genai([file(text, "series.csv")])
    assert any("scaled its clock" in note for note in duty.provenance["notes"])


def test_requests_of_the_whole_service_have_no_container(file: File):
    text = "timestamp_anon,value,container_ip,request_type\n1.0,0.09,,API Requests\n1.0,0.1,NULL,Generative Requests\n"
    reading = read_genai([file(text, "qps.csv")])
    assert reading.table["subject"].null_count() == 2
    assert checks(reading)["reading of the whole service"] == 2


def test_requests_need_a_stated_zone(file: File):
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    path = file(header + "2023-11-16 18:15:46.6805907,374,44\r\n2023-11-16 18:15:40.0,1.5,44\r\n", "conv.csv")
    with pytest.raises(TraceFormatError, match="expected a stated time zone"):
        read("azure-llm", path)
    reading = read_azure_llm([path], tz="America/New_York")
    assert reading.table["time"][0] == datetime(2023, 11, 16, 23, 15, 46, 680590, tzinfo=UTC)
    assert reading.table["service"].to_list() == ["conv"]
    assert reading.rejects["reason"].to_list() == ["not a whole number of tokens"]


def test_a_distribution_is_called_one(file: File):
    text = "x,x__cdf_pct,y,y__cdf_pct\n1,0,5,0\n2,50,,\n1.5,60,6,40\n3,100,7,\n4,100,8,100\n"
    reading = read_distributions([file(text, "d.csv")])
    assert reading.table.rows() == [
        ("d: x", 1.0, 0.0),
        ("d: x", 2.0, 50.0),
        ("d: x", 4.0, 100.0),
        ("d: y", 5.0, 0.0),
        ("d: y", 8.0, 100.0),
    ]
    assert reading.rejects["row"].to_list() == [4, 5]
    (finding,) = reading.quality.filter(pl.col("check") == "a distribution")["effect"]
    assert finding.startswith("a distribution, not a time series")


def test_an_inventory_has_no_rejects(file: File):
    reading = read_nodes([file("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,4,192,0\nH800,8,192,1\n")])
    assert (reading.kind, reading.summary()["gpus"], reading.summary()["models"]) == ("inventory", 12, 2)
    with pytest.raises(TraceFormatError, match="line 3: the same node again"):
        read_nodes([file("node,gpus,gpu_model\nn1,8,H100\nn1,8,H100\n")])
    told = checks(read_nodes([file("sn,gpu,model\nn1,0,\nn2,8,G2\n")]))
    assert told == {"node without GPUs": 1, "unknown GPU type of nodes": 1}


def test_a_dataset_of_one_kind_takes_the_place_of_one_of_another(file: File, tmp_path: Path):
    folder = write_dataset(read_nodes([file("node,gpus,gpu_model\nn1,8,H100\n")]), tmp_path / "out")
    trace = read("itp", file("job_id,submission_time,duration,num_gpu\na,0,7200,8\n"))
    write_dataset(trace, folder)
    assert open_dataset(folder).jobs.equals(trace.jobs)
    assert open_dataset(folder).inventory is None
