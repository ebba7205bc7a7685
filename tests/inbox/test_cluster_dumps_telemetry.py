"""Telemetry, kube-state-metrics and bills in the forms that real clusters produce, with the values counted by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.catalog import facts
from gpuplanner.errors import TraceFormatError
from gpuplanner.inbox import Dataset, read
from gpuplanner.inbox.bills.summary import summarise, unknown_types
from gpuplanner.inbox.registry import foreign_form
from gpuplanner.inbox.together import add_together, parts_of
from gpuplanner.study import describe

CASES = Path(__file__).parent / "cluster_dumps"
T0 = 1772431200
"""2 March 2026, 06:00 UTC."""
Json = dict[str, Any]


def case(folder: Path, *names: str) -> list[Path]:
    """Files of cases, unpacked as they were written."""
    found = []
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = CASES / f"{name}.gz"
        path.write_bytes(
            gzip.decompress(packed.read_bytes()) if packed.exists() else (CASES / name).read_bytes()
        )
        found.append(path)
    return found


def described(files: Iterable[Path], folder: Path) -> Json:
    """What ``describe --json`` says once all files are in one folder."""
    add_together(parts_of(list(files)), folder)
    return describe(str(folder)).to_dict()


def answer(path: Path, *series: tuple[Json, list[tuple[float, object]]], **more: object) -> Path:
    """An answer of Prometheus to a range query."""
    found = [
        {"metric": labels, "values": [[at, str(value)] for at, value in values]} for labels, values in series
    ]
    text = {"status": "success", "data": {"resultType": "matrix", "result": found}, **more}
    path.write_text(json.dumps(text))
    return path


def hours(value: object, first_h: float, last_h: float, step_s: int = 60) -> list[tuple[float, object]]:
    """A value every step between two hours."""
    return [(at, value) for at in range(round(T0 + first_h * 3600), round(T0 + last_h * 3600), step_s)]


def pods(path: Path, node: Json, *found: tuple[str, float, float]) -> Path:
    """A dump of one node and pods that asked for one GPU on it from one hour to another."""

    def text(hour: float) -> str:
        return datetime.fromtimestamp(T0 + hour * 3600, UTC).isoformat()

    items: list[Json] = [node]
    for name, first, last in found:
        about = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": text(first)}
        main = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": text(first)}
        ended = {"terminated": {"exitCode": 0, "startedAt": text(first), "finishedAt": text(last)}}
        status = {"phase": "Succeeded", "startTime": text(first), "conditions": [bound]}
        status |= {"containerStatuses": [{"name": "main", "state": ended}]}
        spec = {"nodeName": "k1", "containers": [main]}
        items.append({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": status})
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def node(**labels: str) -> Json:
    """A node of one A100, as its labels and its number of devices have it."""
    devices = labels.get("nvidia.com/gpu.replicas", "1")
    about = {
        "name": "k1",
        "labels": {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    }
    about["labels"] |= labels  # type: ignore[operator]
    seen = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-03-03T06:00:00Z"}
    status = {
        "capacity": {"nvidia.com/gpu": devices},
        "allocatable": {"nvidia.com/gpu": devices},
        "conditions": [seen],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "status": status}


# What looks like something else


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kubernetes/16-opencost/allocation.json", "OpenCost.*kubectl get pods,jobs,nodes -A -o json"),
        ("kubernetes/17-ksm/vllm.prom", "inference server.*DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        ("kubernetes/17-ksm/wide.txt", "kubectl printed.*-o json"),
        ("slurm/24-nvidia-smi-xml/smi.xml", "nvidia-smi -q -x.*--query-gpu=timestamp,index,name"),
        ("slurm/24-nvidia-smi-xml/smi_L.txt", "nvidia-smi -L.*--query-gpu=timestamp,index,name"),
        ("slurm/25-rocm-smi-csv/rocm.csv", "rocm-smi.*device-metrics-exporter"),
        ("slurm/38-exporter-pages/slurm_exporter.txt", "prometheus-slurm-exporter.*sacct .*--duplicates"),
    ],
)
def test_other_forms_are_named_with_what_to_run(tmp_path: Path, name: str, words: str):
    (path,) = case(tmp_path, name)
    for call in (lambda: read("auto", path), lambda: parts_of([path])):
        with pytest.raises(TraceFormatError, match=words) as error:
            call()
        assert "philly" not in str(error.value)


def test_forms_of_others_are_none_of_ours(tmp_path: Path):
    """No file that is read looks like a form that is not, and every form has a source."""
    assert facts("foreign_forms")["source"].null_count() == 0
    for name in ("kubernetes/18-amd-exporter/metrics.prom", "kubernetes/19-bills/cur-legacy.csv"):
        (path,) = case(tmp_path, name)
        assert foreign_form(path.read_text().splitlines()[:20]) is None


# Bills


def gpu_hours(found: Dataset) -> dict[str, float]:
    """GPU-hours by instance type, of lines of which GPUs are known."""
    table = summarise(found.tables["charges"]).filter(pl.col("gpu_hours") > 0)
    rows = table.group_by("x_InstanceType").agg(pl.col("gpu_hours").sum()).rows()
    return {str(name): float(count) for name, count in rows}


AWS = {"p5.48xlarge": 1920.0, "p4d.24xlarge": 1920.0, "g5.12xlarge": 400.0}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("focus10-aws.csv", AWS),  # times without a zone
        ("focus10-aws-z.csv", AWS),
        ("focus10-aws-ms.csv", AWS),
        ("cur-legacy.csv", {"p5.48xlarge": 192.0, "p4de.24xlarge": 192.0, "ml.p5.48xlarge": 80.0}),
        ("azure-ea.csv", {"Standard_ND96isr_H100_v5": 1920.0}),
        ("azure-empty-period.csv", {"Standard_ND96isr_H100_v5": 1920.0}),
        ("gcp.jsonl", {"a3-highgpu-8g": 960.0}),
    ],
)
def test_gpu_hours_of_bills(tmp_path: Path, name: str, expected: dict[str, float]):
    (path,) = case(tmp_path, f"kubernetes/19-bills/{name}")
    found = read("auto", path)
    assert gpu_hours(found) == pytest.approx(expected)
    assert found.rejects.is_empty()


def test_times_of_focus_without_a_zone_are_utc(tmp_path: Path):
    plain, zoned = case(
        tmp_path, "kubernetes/19-bills/focus10-aws.csv", "kubernetes/19-bills/focus10-aws-z.csv"
    )
    found = read("focus", plain)
    assert found.quality.filter(check="times without a zone")["rows"].to_list() == [34]
    assert found.tables["charges"].equals(read("focus", zoned).tables["charges"])


@pytest.mark.parametrize("name", ["focus-oci.csv", "focus-oci-s.csv"])
def test_oci_names_its_shape_in_the_type_of_the_resource(tmp_path: Path, name: str):
    """Ten days of eight H100, in GPU-hours; the times of one have no seconds."""
    (path,) = case(tmp_path, f"kubernetes/19-bills/{name}")
    found = read("focus", path)
    assert found.tables["charges"]["x_InstanceType"].unique().to_list() == ["BM.GPU.H100.8"]
    table = summarise(found.tables["charges"])
    assert table["gpu_hours"].sum() == 1920
    assert table["gpu_model"].unique().to_list() == ["H100-80GB-SXM5"]


def test_lines_that_speak_of_gpus_and_are_not_known_are_listed(tmp_path: Path):
    """SageMaker on a type of next year, and a GPU product without a type: a warning, and both in the table."""
    (path,) = case(tmp_path, "kubernetes/19-bills/focus10-aws-z.csv")
    text = path.read_text().replace("BoxUsage:p5.48xlarge", "Train:ml.p9.48xlarge", 3)
    text = text.replace("Usage,,,Usage-Based", "Usage,,NVIDIA Omniverse GPU lease,Usage-Based", 1)
    path.write_text(text)
    found = read("focus", path)
    unknown = unknown_types(found.tables["charges"])
    assert unknown.select("x_InstanceType", "lines").rows() == [("ml.p9.48xlarge", 3)]
    assert found.quality.filter(pl.col("check").str.contains("speak of GPUs"))["rows"].to_list() == [3]
