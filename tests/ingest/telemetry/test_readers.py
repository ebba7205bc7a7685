"""What each reader makes of its source, by values that were worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.metric_definitions import parse_devices

File = Callable[..., Path]
ORIGIN = {"origin": "2026-01-01T00:00:00Z"}
Text = Callable[[str], str]


def test_a_page_of_the_exporter(file: File, good_text: Text):
    samples = read("dcgm-exporter", file(good_text("dcgm-exporter")), **ORIGIN).samples
    facts = samples.select("node", "gpu", "instance", "profile", "job_id", "sm_activity", "activity_source")
    assert facts.rows() == [
        ("n1", 0, None, None, "77", 0.25, "profiling"),
        ("n1", 0, 9, "1g.10gb", "a/b", 0.875, "profiling"),
        ("n1", 1, None, None, None, 0.99, "legacy"),
    ]
    assert samples["memory_used_gib"].to_list() == [2.0, None, None]
    assert samples["power_w"].null_count() == 3


def test_pages_follow_each_other_by_the_interval(file: File, good_text: Text):
    text = good_text("dcgm-exporter")
    paths = [file(text, f"{number}.prom") for number in range(3)]
    telemetry = read("dcgm-exporter", paths, interval_s=20, **ORIGIN)
    assert telemetry.samples["time"].unique().dt.second().to_list() == [0, 20, 40]
    assert telemetry.provenance["gpu_hours"] == pytest.approx(2 * 60 / 3600)
    with pytest.raises(TraceFormatError, match="or an interval"):
        read("dcgm-exporter", paths, **ORIGIN)


@pytest.mark.parametrize(("stamp", "end"), [("1775006190174", ""), ("1775006190.174", "# EOF\n")])
def test_times_are_milliseconds_in_prometheus_text_and_seconds_in_openmetrics(file: File, stamp: str, end: str):
    text = f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",hostname="n1"}} 400.5 {stamp}\n{end}'
    telemetry = read("dcgm-exporter", file(text))
    assert telemetry.samples["time"][0] == datetime(2026, 4, 1, 1, 16, 30, 174000, tzinfo=UTC)


def test_hostile_labels_do_not_move_a_sample(file: File):
    labels = r'pod="x\",gpu=\"7\"},hostname=\"evil\"",gpu="0",hostname="n1"'
    page = f'DCGM_FI_DEV_POWER_USAGE{{{labels}}} 400\nDCGM_FI_DEV_POWER_USAGE{{pod=",gpu=",gpu="1"}} 300\n'
    samples = read("dcgm-exporter", file(page, "n9.prom"), **ORIGIN).samples
    assert samples.select("node", "gpu", "power_w").rows() == [("n1", 0, 400.0), ("n9", 1, 300.0)]


def test_faulty_samples_of_a_page_are_rejected_with_their_reason(file: File):
    page = """\
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 400
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 400
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 401
DCGM_FI_DEV_POWER_USAGE{gpu="1"} four
DCGM_FI_DEV_POWER_USAGE{gpu="1"} -1
DCGM_FI_DEV_POWER_USAGE{gpu="1",modelName="NVIDIA H100 80GB HBM3"} 841
DCGM_FI_DEV_FB_USED{gpu="1",modelName="NVIDIA H100 80GB HBM3"} 81921
DCGM_FI_DEV_POWER_USAGE{gpu="2",GPU_I_PROFILE="1g.5gb"} 1
DCGM_FI_DEV_POWER_USAGE 1
DCGM_FI_DEV_POWER_USAGE{gpu="x"} 1
DCGM_FI_DEV_POWER_USAGE{gpu="3",gpu="4"} 1
DCGM_FI_DEV_POWER_USAGE{gpu="3" 1
node_load1 0.5
DCGM_FI_DEV_POWER_USAGE{gpu="5"} +Inf
"""
    telemetry = read("dcgm-exporter", file(page), **ORIGIN)
    assert dict(telemetry.rejects["row", "reason"].iter_rows()) == {
        2: "the same reading again",
        3: "another value for the same device and time as an earlier row",
        4: "the value is not a number",
        5: "power: below 0",
        6: "power: above 1.2 x the power limit of the GPU",
        7: "memory_used: more than the GPU has",
        8: "a MIG instance without its number",
        9: "no GPU number in the labels",
        10: "no GPU number in the labels",
        11: "labels that cannot be read",
        12: "not a sample of the text format",
        13: "not a GPU metric",
        14: "the value is not a number",
    }
    assert telemetry.samples.select("gpu", "power_w").rows() == [(0, 400.0)]


def test_readings_of_one_round_are_one_sample(file: File, good_text: Text):
    samples = read("dcgm-csv", file(good_text("dcgm-csv"))).samples
    assert samples.select(pl.col("time").dt.minute(), "sm_activity", "memory_used_gib").rows() == [
        (42, 0.98, 1.0),
        (43, 0.0, None),
    ]


def test_readings_faster_than_a_round_are_not_mixed(file: File):
    rows = [
        f'2026-01-01T00:00:{second:02d}Z,{metric},0,nvidia0,n1,{value},"Hostname=""n1"",gpu=""0"""'
        for second in range(6)
        for metric, value in (("DCGM_FI_DEV_GPU_UTIL", second), ("DCGM_FI_DEV_POWER_USAGE", 100 + second))
    ]
    header = "timestamp,metric_name,gpu_id,device,Hostname,value,labels_raw"
    samples = read("dcgm-csv", file("\n".join([header, *rows]) + "\n")).samples
    assert samples["sm_activity"].to_list() == [second / 100 for second in range(6)]
    assert samples["power_w"].to_list() == [100.0 + second for second in range(6)]


def test_a_node_log(file: File, good_text: Text):
    telemetry = read("node-csv", file(good_text("node-csv"), "n7.csv"))
    first, second, _ = telemetry.samples.to_dicts()
    assert (first["node"], first["gpu"], first["sm_activity"], first["tensor_activity"]) == ("n7", 0, 0.45, 0.11)
    assert (first["pcie_gb_s"], first["nvlink_gb_s"], first["memory_used_gib"]) == (1.5, 0.0, 40.0)
    assert second["pcie_gb_s"] is None
    assert "node named after the file" in telemetry.quality["check"].to_list()


def test_nvidia_smi_with_units(file: File, good_text: Text):
    samples = read("nvidia-smi", file(good_text("nvidia-smi")), tz="UTC").samples
    assert samples.select("gpu", "sm_activity", "memory_used_gib", "power_w", "activity_source").rows() == [
        (0, 0.98, 40.0, 631.25, "legacy"),
        (1, None, 0.5, None, "none"),
        (0, 0.97, 40.0, 630.0, "legacy"),
    ]


def test_nvidia_smi_without_units_and_without_header(file: File, good_text: Text):
    whole = good_text("nvidia-smi")
    bare = whole.replace(" %,", ",").replace(" MiB,", ",").replace(" W\n", "\n")
    titles, _, body = bare.partition("\n")
    columns = tuple(title.split("[")[0].strip() for title in titles.split(","))
    with_units = read("nvidia-smi", file(whole), tz="UTC").samples
    assert read("nvidia-smi", file(bare), tz="UTC").samples.equals(with_units)
    assert read("nvidia-smi", file(body), tz="UTC", columns=columns).samples.equals(with_units)
    gib = whole.replace("memory.used [MiB]", "memory.used [GiB]").replace(" MiB, 81559", " GiB, 81559")
    gib = gib.replace("40960 GiB", "40 GiB").replace("512 GiB", "0.5 GiB")
    assert read("nvidia-smi", file(gib), tz="UTC").samples.equals(with_units)


def test_a_query_without_gpu_numbers_needs_one(file: File):
    text = "timestamp, power.draw [W]\n2026/07/14 09:00:26.500, 70 W\n"
    with pytest.raises(TraceFormatError, match="expected a column 'index' or 'gpu'"):
        read("nvidia-smi", file(text), tz="UTC")
    assert read("nvidia-smi", file(text), tz="UTC", gpu=3).samples["gpu"].to_list() == [3]


def test_mixed_zones_are_read_each_in_its_own(file: File):
    text = """\
timestamp,index,power.draw
2025-09-08T17:26:50+08:00,0,70
2025-09-08T09:26:51Z,0,71
1757323612,0,72
2025/09/08 11:26:53.000,0,73
yesterday,0,74
"""
    telemetry = read("nvidia-smi", file(text), tz="Europe/Oslo")
    assert telemetry.samples["time"].dt.second().to_list() == [50, 51, 52, 53]
    assert telemetry.samples["time"].dt.hour().unique().to_list() == [9]
    assert telemetry.rejects["reason"].to_list() == ["the time cannot be read, or has no zone"]
    with pytest.raises(TraceFormatError, match="expected times with their zone; got '2025/09/08 11:26:53"):
        read("nvidia-smi", file(text))


def test_the_hour_shown_twice_and_the_hour_skipped_are_rejected(file: File):
    text = "timestamp,index,power.draw\n" + "".join(
        f"{stamp},0,70\n"
        for stamp in ("2025/10/26 01:59:59", "2025/10/26 02:30:00", "2025/03/30 02:30:00", "2025/03/30 03:30:00")
    )
    telemetry = read("nvidia-smi", file(text), tz="Europe/Oslo")
    assert telemetry.rejects["row"].to_list() == [3, 4]
    assert telemetry.samples.height == 2


def test_dmon_calls_the_legacy_counter_sm(file: File, good_text: Text):
    samples = read("smi-dmon", file(good_text("smi-dmon")), **ORIGIN).samples
    assert samples.select(pl.col("time").dt.second(), "gpu", "sm_activity", "power_w", "memory_used_gib").rows() == [
        (0, 0, 1.0, 631.0, 2.0),
        (0, 1, None, 70.0, None),
        (1, 0, 0.99, 634.0, 2.0),
        (1, 1, None, 70.0, None),
    ]
    assert samples["activity_source"].to_list() == ["legacy", "none"] * 2


def test_dmon_with_profiling_counters_and_with_times(file: File):
    text = """\
#Date       Time        gpu    pwr  gract smutil anytensr
#YYYYMMDD   HH:MM:SS    Idx      W  GPM:%  GPM:%    GPM:%
 20260131   23:59:59      0    400     90     45       11
"""
    sample = read("smi-dmon", file(text), tz="UTC").samples.row(0, named=True)
    assert (sample["sm_activity"], sample["tensor_activity"]) == (0.45, 0.11)
    assert sample["activity_source"] == "profiling"
    assert sample["time"] == datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)


def test_pmon_lists_processes_and_rounds(file: File, good_text: Text):
    telemetry = read("smi-pmon", file(good_text("smi-pmon")), **ORIGIN)
    assert telemetry.processes is not None
    assert telemetry.processes.select(pl.col("time").dt.second(), "gpu", "pid", "command").rows() == [
        (0, 0, 11327, "NVIDIA Share.exe"),
        (0, 0, 11328, "memhog"),
        (1, 0, 11327, "NVIDIA Share.exe"),
    ]
    assert telemetry.samples.select(pl.col("time").dt.second(), "gpu").rows() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert telemetry.samples["activity_source"].unique().to_list() == ["none"]


def test_dcgmi_with_one_gpu_knows_the_parent_of_its_instances(file: File, good_text: Text):
    samples = read("dcgmi-dmon", file(good_text("dcgmi-dmon")), interval_s=10, **ORIGIN).samples
    assert samples.select(pl.col("time").dt.second(), "gpu", "instance", "sm_activity", "power_w").rows() == [
        (0, 0, None, None, 75.5),
        (0, 0, 0, 0.25, None),
        (10, 0, None, 0.5, 640.5),
        (10, 0, 0, 0.75, None),
    ]


def test_dcgmi_with_several_gpus_cannot_place_instances(file: File, good_text: Text):
    text = good_text("dcgmi-dmon") + "GPU 1     0.1   0.2   0.3   80\nGPU-CI 0  0.1   0.2   0.3   80\n"
    telemetry = read("dcgmi-dmon", file(text), **ORIGIN)
    assert telemetry.samples["instance"].null_count() == telemetry.samples.height == 3
    assert telemetry.rejects.height == 3


def test_apps_with_commas_in_their_names(file: File, good_text: Text):
    telemetry = read("smi-apps", file(good_text("smi-apps")), tz="UTC", gpu=2)
    assert telemetry.processes is not None
    assert telemetry.processes.select("gpu", "pid", "command", "memory_gib").rows() == [
        (2, 5268, "/opt/a, b/train.py", 1.0),
        (2, 5267, "ffmpeg", None),
    ]
    assert telemetry.samples["memory_used_gib"].to_list() == [None]


def test_an_empty_list_of_apps_is_an_answer(file: File, good_text: Text):
    header = good_text("smi-apps").splitlines()[0] + "\n"
    telemetry = read("smi-apps", file(header), tz="UTC", gpu=0)
    assert telemetry.processes is not None
    assert telemetry.processes.height == telemetry.samples.height == telemetry.provenance["rows_in"] == 0


def test_a_transcript_gives_its_queries(file: File, good_text: Text):
    whole, query = (read(name, file(good_text(name)), tz="UTC") for name in ("smi-transcript", "nvidia-smi"))
    assert whole.samples.equals(query.samples)
    with pytest.raises(TraceFormatError, match="no output under such a heading"):
        read("smi-transcript", file("#" * 30 + "\n# $ nvidia-smi -L\n"), tz="UTC")


def headed(text: str, *lines: str) -> str:
    """A transcript with lines at its head."""
    return "\n".join(["#" * 80, *lines, text])


@pytest.mark.parametrize(
    ("stated", "zone"),
    [("2026-07-14T09:00:25Z", "UTC"), ("2026-07-14T07:00:25Z", "+02:00"), ("2026-07-14T09:00:25+02:00", "+02:00")],
)
def test_a_transcript_that_states_an_instant_tells_its_zone(file: File, good_text: Text, stated: str, zone: str):
    path = file(headed(good_text("smi-transcript"), f"collected_at:   {stated}"))
    telemetry = read("smi-transcript", path)
    first = telemetry.samples["time"].min()
    assert isinstance(first, datetime)
    assert 0 <= (first - datetime.fromisoformat(stated)).total_seconds() < 300
    assert telemetry.provenance["time_zone"] == zone
    (row,) = telemetry.quality.filter(check="zone taken from the heading").rows()
    assert row[2:5] == (telemetry.samples.height, row[3], f"n1.txt: {zone}")
    with pytest.raises(TraceFormatError, match=r"The times show the offset [+-]\d\d:00: state such a zone"):
        read("smi-transcript", path, tz="Asia/Tokyo")


def test_an_answer_of_prometheus(file: File, good_text: Text):
    samples = read("prometheus", file(good_text("prometheus"))).samples
    assert samples.select(pl.col("time").dt.microsecond(), "sm_activity", "power_w").rows() == [
        (0, 0.5, 400.5),
        (250000, None, None),
        (0, 0.75, 401.0),
    ]


def test_points_of_another_form_are_rejected(file: File):
    odd: list[Any] = [[1775006190, 5], [True, "5"], ["a", "5"], [1], None, [1e300, "5"], [1775006191, "x"]]
    labels = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "hostname": "n1"}
    result = [
        {"metric": labels, "values": [[1775006190, "400"], *odd]},
        {"metric": {"__name__": "up", "instance": "a:1"}, "values": [[1775006190, "1"]]},
        {"metric": labels | {"gpu": 1}, "values": [[1775006190, "1"]]},
        "series",
        {"metric": labels},
    ]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    telemetry = read("prometheus", file(text))
    assert telemetry.samples["power_w"].to_list() == [400.0]
    assert telemetry.provenance["rows_in"] == 1 + telemetry.rejects.height == 1 + len(odd) + 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "a JSON answer"),
        ("[]", "a matrix or a vector; got resultType None"),
        ('{"status": "error", "errorType": "timeout", "error": "too long"}', "got timeout: too long"),
        ('{"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}', "'scalar'"),
        ('{"status": "success", "data": {"resultType": "matrix", "result": {}}}', "no list 'result'"),
        (r'{"data": {"resultType": "matrix", "result": [{"metric": {"gpu": "\ud800"}}]}}', "surrogates not allowed"),
        ('{"status": "success", "data": {"resultType": "matrix", "result": []}}', "got no rows"),
    ],
)
def test_what_is_no_answer_is_refused(file: File, text: str, words: str):
    with pytest.raises(TraceFormatError, match=words):
        read("prometheus", file(text))


def test_warnings_of_the_server_are_findings(file: File, good_text: Text):
    text = good_text("prometheus")[:-1] + ', "warnings": ["partial response"]}'
    quality = read("prometheus", file(text)).quality
    assert "the server warned: partial response" in quality["check"].to_list()


@pytest.mark.parametrize("word", ["", "0"])
def test_a_gpu_without_a_job_of_the_scheduler_has_none_or_that_of_its_pod(word: str):
    labels = {"hostname": "n1", "gpu": "0", "hpc_job": word}
    assert parse_devices([labels, labels | {"namespace": "ml", "pod": "train"}])["job_id"].to_list() == [
        None,
        "ml/train",
    ]
