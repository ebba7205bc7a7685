"""Telemetry, kube-state-metrics and bills in the forms that real clusters produce, with the values counted by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError, TraceFormatError
from gpuplanner.decision.study_pipeline import summarize_dataset
from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.bills.bill_summary import find_unknown_types, summarise_bill
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files, add_sources, group_files_by_source
from gpuplanner.ingest.quality_report import check_text
from gpuplanner.ingest.source_registry import find_foreign_form, read
from gpuplanner.usage.dataset_description_and_data_quality import describe
from gpuplanner.usage.demand_by_phase_and_late_demand_test import phases_of_jobs

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
        path.write_bytes(gzip.decompress(packed.read_bytes()) if packed.exists() else (CASES / name).read_bytes())
        found.append(path)
    return found


def described(files: Iterable[Path], folder: Path) -> Json:
    """What ``describe --json`` says once all files are in one folder."""
    add_sources(group_files_by_source(list(files)), folder)
    return describe(str(folder)).to_dict()


def answer(path: Path, *series: tuple[Json, list[tuple[float, object]]], **more: object) -> Path:
    """An answer of Prometheus to a range query."""
    found = [{"metric": labels, "values": [[at, str(value)] for at, value in values]} for labels, values in series]
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
    about = {"name": "k1", "labels": {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}
    about["labels"] |= labels  # type: ignore[operator]
    seen = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-03-03T06:00:00Z"}
    status = {"capacity": {"nvidia.com/gpu": devices}, "allocatable": {"nvidia.com/gpu": devices}, "conditions": [seen]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "status": status}


# Telemetry joined to jobs


@pytest.mark.parametrize(
    ("dumps", "expected"),
    [
        ("04-dcgm-exported/prom.json", 192.0),
        ("04-dcgm-exported/prom-honor.json", 192.0),
        ("05-dcgm-hostname/prom.json", 192.0),
        *((f"04-dcgm-exported/prom-step{step}.json", 192.0) for step in (30, 60, 120, 300, 600)),
    ],
)
def test_all_hours_are_matched_and_used(tmp_path: Path, dumps: str, expected: float):
    """24 jobs of 2 GPUs for 4 hours, all at work at 50 %: at every step, and whatever the scrape calls the labels."""
    files = case(tmp_path, f"kubernetes/{dumps.partition('/')[0]}/dump.json", f"kubernetes/{dumps}")
    told = described(files, tmp_path / "out")
    assert told["telemetry"]["matched_gpu_hours"] == pytest.approx(expected, abs=1e-9)
    assert told["used_gpu_hours"] == pytest.approx(expected, abs=1e-9)
    assert told["gpu_hours"] == pytest.approx(expected, abs=1e-9)
    assert told["installed_gpus"] == 4
    assert told["coverage by node"]["node"].to_list() == ["kworker-1"]
    data = open_dataset(tmp_path / "out")
    phases = phases_of_jobs(data.samples, data.jobs)
    assert (phases["run_s"] * phases["gpus"]).sum() / 3600 == pytest.approx(expected, abs=1e-9)
    active = told["GPU-hours by time limit, allocated and active"]
    assert active["sm_active_gpu_hours"].sum() == pytest.approx(expected / 2, abs=1e-9)
    assert active["with_activity_share"].to_list() == pytest.approx([1.0, 1.0])
    assert not [each for each in told["warnings"] if "gaps" not in each["what"] and "node-days" not in each["what"]]


def test_idle_series_of_the_exporter_are_no_jobs(tmp_path: Path):
    """Some scrapes have exported_pod, others only the exporter's own pod (NVIDIA/dcgm-exporter, issue 237)."""
    own = {"pod": "nvidia-dcgm-exporter-7k2p", "namespace": "gpu-operator", "container": "exporter", "job": "dcgm"}
    gpu = {"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpu": "0", "Hostname": "k1", **own}
    workload = {"exported_pod": "a", "exported_namespace": "ns"}
    metrics = answer(tmp_path / "p.json", (gpu | workload, hours(0.5, 0, 2)), (gpu, hours(0.0, 2, 5)))
    told = described([pods(tmp_path / "d.json", node(), ("a", 0, 2)), metrics], tmp_path / "out")
    assert told["telemetry"]["matched_gpu_hours"] == pytest.approx(2.0, abs=1e-9)
    assert told["telemetry"]["by_reason"]["no job on the node then"] == pytest.approx(3.0, abs=1e-9)
    assert told["used_gpu_hours"] == pytest.approx(2.0, abs=1e-9)


def test_the_node_of_the_scrape_comes_before_the_host_name(tmp_path: Path):
    """The host name is the exporter's pod; the relabelled node is known (kube-prometheus: kubernetes_node)."""
    labels = {"__name__": "DCGM_FI_PROF_SM_ACTIVE", "gpu": "0", "Hostname": "gpu-metrics-exporter-x7"}
    labels |= {"kubernetes_node": "k1", "instance": "10.0.0.7:9400"}
    metrics = answer(tmp_path / "p.json", (labels, hours(0.5, 0, 2)))
    told = described([pods(tmp_path / "d.json", node(), ("a", 0, 2)), metrics], tmp_path / "out")
    assert told["telemetry"]["by_reason"] == {
        "one job was allocated all devices of the node": pytest.approx(2.0, abs=1e-9)
    }


def test_series_of_several_pods_are_one_gpu_that_they_share(tmp_path: Path):
    """Three pods of four replicas, each told the whole GPU's activity (NVIDIA/dcgm-exporter, issues 340 and 587).

    The GPU is observed for 10 hours; a quarter each for 10, 10 and 5 hours is 6.25 GPU-hours, all of them used.
    """
    shared = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    found = [("p1", 0.0, 10.0), ("p2", 0.0, 10.0), ("p3", 5.0, 10.0)]
    gpu = {"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpu": "0", "Hostname": "k1", "pod": "dcgm-exporter-dev-78z52"}
    series = [
        (gpu | {"exported_pod": name, "exported_namespace": "ns", "vgpu": str(place)}, hours(0.714, first, last))
        for place, (name, first, last) in enumerate(found)
    ]
    dump = pods(tmp_path / "d.json", node(**shared), *found)
    told = described([dump, answer(tmp_path / "p.json", *series)], tmp_path / "out")
    assert told["gpu_hours"] == pytest.approx(6.25)
    assert told["used_gpu_hours"] == pytest.approx(6.25, abs=1e-9)
    assert told["telemetry"]["matched_gpu_hours"] == pytest.approx(10.0, abs=1e-9)
    assert not [check for check in told["quality"]["check"] if "same reading" in check or "another value" in check]
    data = open_dataset(tmp_path / "out")
    with pytest.raises(SchemaError, match="samples with a job_id"):  # what each of them did is not known
        phases_of_jobs(data.samples.filter(job_evidence="shared"), data.jobs)
    # Of 5 hours two share the GPU, of 5 more three: nobody was more active than the part that it held.
    active = told["GPU-hours by time limit, allocated and active"]["sm_active_gpu_hours"].item()
    assert active == pytest.approx(0.714 * 6.25, abs=1e-9)


def test_pods_that_share_a_gpu_may_stand_in_files_of_their_own(tmp_path: Path):
    """A query for each namespace: the order in which the answers come changes nothing."""
    gpu = {"__name__": "DCGM_FI_PROF_SM_ACTIVE", "gpu": "0", "Hostname": "k1", "namespace": "ns"}
    files = [answer(tmp_path / f"{name}.json", (gpu | {"pod": name}, hours(0.5, 0, 1))) for name in ("a", "b")]
    seen = []
    for order in (files, files[::-1]):
        folder = tmp_path / order[0].stem
        for path in order:
            added = add_files("prometheus", [path], folder)
        seen.append(added.dataset.samples)
        assert added.dataset.rejects.is_empty()
    assert seen[0]["job_id"].unique().to_list() == ["ns/a,ns/b"]
    assert seen[0].equals(seen[1])


def test_what_is_not_matched_is_told_and_counts_in_the_use_of_the_fleet(tmp_path: Path):
    """The label names pods of another cluster: nothing matched, a warning that names a job and the label."""
    gpu = {"__name__": "DCGM_FI_PROF_SM_ACTIVE", "gpu": "0", "Hostname": "k1", "namespace": "ns", "pod": "other"}
    metrics = answer(tmp_path / "p.json", (gpu, hours(0.5, 0, 2)))
    told = described([pods(tmp_path / "d.json", node(), ("a", 0, 2)), metrics], tmp_path / "out")
    assert told["telemetry"]["matched_gpu_hours"] == 0
    assert told["used_gpu_hours"] == pytest.approx(2.0, abs=1e-9)
    (warning,) = [each for each in told["warnings"] if "not in the list of jobs" in each["what"]]
    assert warning["gpu_hours"] == pytest.approx(2.0, abs=1e-9)
    assert "ns/other" in warning["what"]
    assert "exported_pod" in warning["what"]
    match = "0 GPU-hours of telemetry matched to jobs; job named by the source, and not in the list of jobs: 2"
    assert summarize_dataset(str(tmp_path / "out")).telemetry == match


def test_a_mean_over_the_step_is_of_the_time_before(tmp_path: Path):
    """The answer to avg_over_time has no name; of six values the first is of the five minutes before 06:05."""
    gpu = {"gpu": "0", "Hostname": "k1", "namespace": "ns", "pod": "a"}
    values = [(T0 + 300 * (n + 1), 0.5) for n in range(6)]
    path = answer(tmp_path / "p.json", (gpu, values), query="avg_over_time(DCGM_FI_PROF_SM_ACTIVE{gpu!=''}[5m])")
    found = read("prometheus", path)
    assert found.samples["time"].dt.timestamp("ms").to_list() == [1000 * (T0 + 300 * n) for n in range(6)]
    assert found.samples["activity_source"].unique().to_list() == ["profiling"]
    assert found.provenance["gpu_hours"] == pytest.approx(0.5)
    energy = answer(tmp_path / "e.json", (gpu, [(at, 120_000_000) for at, _ in values]))
    power = read("prometheus", energy, query="increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])").samples
    assert power["power_w"].to_list() == [400.0] * 6  # 120 kJ in 300 s


@pytest.mark.parametrize("query", ["avg by (namespace, pod) (DCGM_FI_PROF_SM_ACTIVE)", None])
def test_an_answer_without_names_says_what_to_give(tmp_path: Path, query: str | None):
    (path,) = case(tmp_path, "kubernetes/17-ksm/aggregated.json")
    words = "no GPU number in the labels" if query else "differ by namespace, pod only.*--query"
    with pytest.raises(TraceFormatError, match=words):
        read("auto", path, query=query)


# Metrics of exporters


def test_metric_names_in_lower_case(tmp_path: Path):
    """Two GPUs read every minute for five hours."""
    (path,) = case(tmp_path, "kubernetes/17-ksm/dcgm-lower.json")
    found = read("prometheus", path)
    assert found.provenance["rows_kept"] == found.samples.height == 600
    assert found.provenance["gpu_hours"] == pytest.approx(10.0)
    assert found.samples["sm_activity"].unique().to_list() == [0.4]
    assert found.samples["job_id"].unique().sort().to_list() == ["default/svc-0", "default/svc-1"]


def test_pages_and_answers_of_the_amd_exporter(tmp_path: Path):
    """Eight MI300X: 24 readings of a page, and activity every minute for five hours."""
    page, answers = case(tmp_path, "kubernetes/18-amd-exporter/metrics.prom", "kubernetes/18-amd-exporter/range.json")
    found = read("auto", page, origin="2026-03-02T06:00:00Z")
    assert found.provenance["rows_kept"] == 24
    assert found.samples["sm_activity"].to_list() == pytest.approx([0.9 - 0.01 * gpu for gpu in range(8)])
    assert found.samples["memory_used_gib"].unique().to_list() == [150_000 / 1024]
    assert found.samples["power_w"].unique().to_list() == [620.0]
    assert found.samples["job_id"].to_list() == [f"llm/run-0{gpu % 2}" for gpu in range(8)]
    later = read("auto", answers)
    assert later.samples.height == 2400
    assert later.provenance["gpu_hours"] == pytest.approx(40.0)


def test_partitions_of_amd_gpus_are_not_idle(tmp_path: Path):
    """In CPX the first partition alone is told (ROCm/device-metrics-exporter, metricslist); in a VM it is NA."""
    gpu = 'gpu_compute_partition_type="cpx",hostname="am1",serial_number="S0"'
    lines = [
        f'amd_gpu_gfx_activity{{gpu_id="{n}",gpu_partition_id="{n}",{gpu}}} {80 if n == 0 else 0}' for n in range(8)
    ]
    lines.append('amd_gpu_gfx_activity{gpu_id="0",gpu_partition_id="NA",hostname="vm1"} 83')
    lines += ['gpu_package_power{gpu_id="0",gpu_partition_id="0",hostname="am1"} 0', "go_goroutines 12"]
    (tmp_path / "am1.prom").write_text("\n".join([*lines, ""]))
    found = read("auto", tmp_path / "am1.prom", origin="2026-03-02T06:00:00Z")
    assert found.samples.select("node", "gpu", "sm_activity", "power_w").rows() == [
        ("am1", 0, 0.8, None),
        ("vm1", 0, 0.83, None),
    ]
    assert found.quality.filter(check=check_text("metrics: other partitions"))["rows"].item() == 7
    assert found.rejects.is_empty()


def test_xgmi_counters_become_rates(tmp_path: Path):
    """Two links, 2 and 4 GB in 10 s each way: 0.6 GB/s received, as much sent; nothing is known after a reset."""
    labels = {"gpu_id": "0", "gpu_partition_id": "0", "hostname": "am1"}
    series = [
        ({"__name__": f"gpu_xgmi_link_{way}", "link_index": str(link), **labels},
         [(T0, 0), (T0 + 10, gb * 1_000_000), (T0 + 20, 5)])
        for way in ("rx", "tx") for link, gb in ((0, 2), (1, 4))
    ]  # fmt: skip
    found = read("prometheus", answer(tmp_path / "p.json", *series))
    assert found.samples["nvlink_gb_s"].to_list() == [None, pytest.approx(1.2), None]


@pytest.mark.parametrize(
    ("values", "expected", "warned"),
    [
        ([0, 45, 100], [0.0, 0.45, 1.0], False),  # DCGM before 4.7
        ([0, 0.45, 1], [0.0, 0.45, 1.0], False),  # 4.7 and later
        ([0, 1, 1], [0.0, 1.0, 1.0], True),
    ],
)
def test_the_unit_of_the_utilisation_ratio_is_that_of_its_values(
    tmp_path: Path, values: list[float], expected: list[float], warned: bool
):
    """One name, two units: DCGM_FI_DEV_GPU_UTIL_RATIO is field 203 in percent before DCGM 4.7, a share since."""
    labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL_RATIO", "gpu": "0", "Hostname": "n1"}
    points = [(T0 + 60 * n, value) for n, value in enumerate(values)]
    found = read("prometheus", answer(tmp_path / "p.json", (labels, points)))
    assert found.samples["sm_activity"].to_list() == pytest.approx(expected)
    assert (check_text("metrics: unit not known") in found.quality["check"]) == warned


def test_a_node_whose_unit_does_not_show_is_read_as_the_others(tmp_path: Path):
    """n1 is in percent; 1 on n2 is then 1 %, and no GPU at full work."""
    labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL_RATIO", "gpu": "0"}
    series = [(labels | {"Hostname": name}, [(T0, value)]) for name, value in (("n1", 80), ("n2", 1))]
    found = read("prometheus", answer(tmp_path / "p.json", *series))
    assert found.samples["sm_activity"].to_list() == pytest.approx([0.8, 0.01])
    assert check_text("metrics: unit not known") not in found.quality["check"]


@pytest.mark.parametrize(
    ("line", "column", "expected"),
    [
        ('DCGM_FI_DEV_FB_USED_BYTES{gpu="0"} 8589934592', "memory_used_gib", 8.0),
        ('DCGM_FI_DEV_BOARD_POWER_WATTS{gpu="0"} 312.5', "power_w", 312.5),
        ('DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{gpu="0"} 5000', "energy_counter_j", 5000.0),
        ('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 5000', "energy_counter_j", 5.0),
        ('gpu_energy_consumed{gpu_id="0"} 5000000', "energy_counter_j", 5.0),
        ('slurm_job_power_gpu{gpu="0",slurmjobid="7"} 250000', "power_w", 250.0),
        ('slurm_job_memory_usage_gpu{gpu="0",slurmjobid="7"} 2147483648', "memory_used_gib", 2.0),
        ('nvidia_gpu_duty_cycle{minor_number="0",jobid="7"} 55', "sm_activity", 0.55),
        ('nvidia_gpu_power_usage_milliwatts{minor_number="0"} 90000', "power_w", 90.0),
    ],
)
def test_units_are_those_of_the_exporter(tmp_path: Path, line: str, column: str, expected: float):
    """Units as the sources of the catalogue have them: mJ, uJ or J; mW or W; bytes or MiB; percent or shares."""
    (tmp_path / "n1.prom").write_text(line + "\n")
    found = read("dcgm-exporter", tmp_path / "n1.prom", origin="2026-03-02T06:00:00Z")
    assert found.samples[column].to_list() == [expected]
    assert found.samples["node"].to_list() == ["n1"]


def test_series_that_name_their_gpu_by_uuid_are_joined_with_its_description(tmp_path: Path):
    """utkuozdemir/nvidia_gpu_exporter, testdata: index and name stand in nvidia_smi_gpu_info alone."""
    lines = [
        'nvidia_smi_gpu_info{uuid="df6e7a7c",index="3",name="NVIDIA A100-SXM4-80GB"} 1',
        'nvidia_smi_utilization_gpu_ratio{uuid="df6e7a7c"} 0.38',
    ]
    (tmp_path / "n1.prom").write_text("\n".join([*lines, ""]))
    found = read("auto", tmp_path / "n1.prom", origin="2026-03-02T06:00:00Z")
    assert found.samples.select("gpu", "sm_activity").rows() == [(3, 0.38)]
    assert found.provenance["boards"] == ["NVIDIA A100-SXM4-80GB"]


@pytest.mark.parametrize(("more", "source"), [([], "legacy"), (["slurm_job_tensor_gpu"], "profiling")])
def test_what_slurm_job_exporter_reads_shows_by_its_metrics(tmp_path: Path, more: list[str], source: str):
    """Its utilisation is that of the SMs with DCGM, which alone gives tensor activity; with NVML the legacy counter."""
    labels = '{gpu="0",slurmjobid="40001",gpu_type="NVIDIA A100-SXM4-40GB"}'
    lines = [f"slurm_job_utilization_gpu{labels} 87", *(f"{name}{labels} 12" for name in more)]
    (tmp_path / "n1.prom").write_text("\n".join([*lines, 'slurm_job_memory_usage{slurmjobid="40001"} 5', ""]))
    found = read("auto", tmp_path / "n1.prom", origin="2026-03-02T06:00:00Z")
    assert found.samples.select("job_id", "sm_activity", "activity_source").rows() == [("40001", 0.87, source)]
    assert "slurm_job_memory_usage" in found.provenance["notes"][-1]


def test_pages_of_exporters_on_slurm_nodes(tmp_path: Path):
    amd, slurm = case(
        tmp_path, "slurm/38-exporter-pages/amd_exporter.txt", "slurm/38-exporter-pages/slurm_job_exporter.txt"
    )
    found = read("auto", amd, origin="2026-03-02T06:00:00Z").samples
    assert found.select("node", "job_id", "sm_activity", "power_w").rows() == [("am01", "5", 0.97, 640.0)]
    found = read("auto", slurm, origin="2026-03-02T06:00:00Z", node="n1").samples
    assert found.select("gpu", "job_id", "sm_activity").rows() == [(0, "40001", 0.87), (1, "40001", 0.03)]
    assert found["memory_used_gib"][0] == 2.1e10 / 1024**3


# Kube-state-metrics


def test_requests_and_capacity_are_jobs_and_inventory(tmp_path: Path):
    """Twelve pods of two GPUs for five hours each, on two nodes of eight."""
    page, requests = case(tmp_path, "kubernetes/17-ksm/metrics.prom", "kubernetes/17-ksm/requests.json")
    told = described([requests], tmp_path / "requests")
    assert (told["facts"]["jobs"], told["gpu_hours"]) == (12, pytest.approx(120.0, abs=1e-9))
    assert told["used_gpu_hours"] is None  # nobody measured it
    assert [each["count"] for each in told["warnings"] if "without their phase" in each["what"]] == [12]
    told = described([page], tmp_path / "page")
    assert (told["facts"]["jobs"], told["installed_gpus"], told["gpu_hours"]) == (12, 16, 0.0)
    assert [each["count"] for each in told["warnings"] if "without times" in each["what"]] == [12]
    told = described([page, requests], tmp_path / "both")
    assert (told["facts"]["jobs"], told["installed_gpus"]) == (12, 16)
    assert told["gpu_hours"] == pytest.approx(120.0, abs=1e-9)


def test_a_month_of_phases_owners_and_labels(tmp_path: Path):
    """kube-state-metrics, docs/metrics: phases, init containers, MIG, a pod that failed, one deleted, one that waits.

    train-0 and train-1 run together for 3 h on 4 GPUs each, of which the init container of one asked for as many; slice
    holds a seventh of a GPU for 2 h and fails; gone ran for an hour when it was deleted; late never ran; done is over
    and still listed. 24 + 2/7 + 1 + 2 GPU-hours.
    """

    def of_pod(name: str, first: float, last: float, **labels: str) -> tuple[Json, list[tuple[float, object]]]:
        metric = {"__name__": "kube_pod_container_resource_requests", "namespace": "ml", "pod": name, "uid": name}
        own = {"container": "main", "resource": "nvidia_com_gpu", "node": "g1"}
        return metric | own | labels, hours(labels.pop("value", "1"), first, last)

    def phase(name: str, word: str, first: float, last: float) -> tuple[Json, list[tuple[float, object]]]:
        metric = {"__name__": "kube_pod_status_phase", "namespace": "ml", "pod": name, "uid": name, "phase": word}
        return metric, hours(1, first, last)

    series = [
        *(of_pod(name, 0, 3, value="4") for name in ("train-0", "train-1")),
        ({**of_pod("train-0", 0, 3)[0], "__name__": "kube_pod_init_container_resource_requests"}, hours(4, 0, 3)),
        *(phase(name, "Running", 0, 3) for name in ("train-0", "train-1")),
        *(
            ({"__name__": "kube_pod_owner", "namespace": "ml", "pod": name, "owner_kind": "Job", "owner_name": "train"},
             hours(1, 0, 3))
            for name in ("train-0", "train-1")
        ),
        of_pod("slice", 1, 5, resource="nvidia_com_mig_1g_10gb", node="g2"),
        phase("slice", "Pending", 1, 2), phase("slice", "Running", 2, 4), phase("slice", "Failed", 4, 5),
        of_pod("gone", 0, 1), phase("gone", "Running", 0, 1),
        of_pod("late", 4, 6, node=""), phase("late", "Pending", 4, 6),
        of_pod("done", 0, 6), phase("done", "Running", 0, 2), phase("done", "Succeeded", 2, 6),
    ]  # fmt: skip
    for name, labels in (("g1", {"label_nvidia_com_gpu_product": "NVIDIA-H100-80GB-HBM3"}), ("g2", {})):
        device = "nvidia_com_gpu" if labels else "nvidia_com_mig_1g_10gb"
        product = {"label_nvidia_com_gpu_product": "NVIDIA-H100-80GB-HBM3"}
        series += [
            ({"__name__": "kube_node_status_capacity", "node": name, "resource": device},
             hours("14" if name == "g2" else "16", 0, 6)),
            ({"__name__": "kube_node_labels", "node": name, **product, **({} if labels else {
                "label_nvidia_com_gpu_count": "2"})}, hours(1, 0, 6)),
            ({"__name__": "kube_node_spec_unschedulable", "node": name}, hours(0, 0, 6)),
        ]  # fmt: skip
    cpu = {"resource": "cpu", "node": "c1"}
    series += [
        ({"__name__": "kube_pod_container_resource_requests", "namespace": "ml", "pod": "web", **cpu}, hours(4, 0, 6)),
        ({"__name__": "kube_node_status_capacity", **cpu}, hours(64, 0, 6)),
    ]
    told = described([answer(tmp_path / "ksm.json", *series)], tmp_path / "out")
    assert told["warnings"] == []
    assert told["gpu_hours"] == pytest.approx(24 + 2 / 7 + 1 + 2, abs=1e-9)
    assert told["installed_gpus"] == 18
    jobs = read("kube-state-metrics", tmp_path / "ksm.json").jobs
    states = dict(jobs.select("job_id", pl.col("state").cast(pl.String)).rows())
    assert states == {
        "ml/train": "COMPLETED", "ml/slice": "FAILED", "ml/gone": "COMPLETED", "ml/late": "PENDING",
        "ml/done": "COMPLETED",
    }  # fmt: skip
    waits = jobs.filter(job_id="ml/slice").select(pl.col("start_time") - pl.col("submit_time")).item()
    assert waits == timedelta(hours=1)


def test_own_labels_come_before_those_of_the_scrape(tmp_path: Path):
    """Without honorLabels pod, namespace and node are those of kube-state-metrics itself.

    Limits of GPUs equal the requests, and the scheduler's kube_pod_resource_request is their sum: eight GPUs, not 24.
    """
    metric = {"__name__": "kube_pod_container_resource_requests", "resource": "amd_com_gpu", "container": "kube-rbac"}
    metric |= {"pod": "prometheus-kube-state-metrics-0", "namespace": "monitoring", "node": "cpu-1"}
    own = {"exported_pod": "run", "exported_namespace": "llm", "exported_container": "main", "exported_node": "am1"}
    sums = {"__name__": "kube_pod_resource_request", "resource": "amd.com/gpu", "pod": "run", "namespace": "llm"}
    limits = own | {"__name__": "kube_pod_container_resource_limits"}
    series = ((metric | each, hours(8, 0, 2)) for each in (own, limits))
    found = read("auto", answer(tmp_path / "ksm.json", *series, (sums, hours(8, 0, 2))))
    assert found.jobs.select("job_id", "tenant", "gpus", "node_list").rows() == [("llm/run", "llm", 8.0, "am1")]
    assert found.summary()["gpu_hours"] == pytest.approx(16.0)


# What looks like something else


def test_lists_of_one_node_need_its_name_and_date_in_that_of_the_file(tmp_path: Path):
    (path,) = case(tmp_path, "slurm/24-nvidia-smi-xml/smi_L.txt")
    with pytest.raises(TraceFormatError, match=r"node and the date.*\$\(hostname\).*--query-gpu=timestamp,index,name"):
        read("auto", path)
    inventory = read("auto", path.rename(path.with_name(f"gn01-2026-03-06{path.suffix}"))).inventory
    assert inventory is not None
    node, model, layouts = inventory.select("node", "gpu_model", "layouts").row(0)
    assert (node, model, layouts.split(";")[0]) == ("gn01", "A100-80GB", "3g.40gb:2")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kubernetes/16-opencost/allocation.json", "OpenCost.*kubectl get pods,jobs,nodes -A -o json"),
        ("kubernetes/17-ksm/vllm.prom", "inference server.*DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        ("kubernetes/17-ksm/wide.txt", "kubectl printed.*-o json"),
        ("kubernetes/29-other-tools/describe.txt", "kubectl printed.*-o json"),
        ("kubernetes/29-other-tools/export.jsonl", "VictoriaMetrics.*gpuplanner scrape"),
        ("slurm/42-other-tools/gpustat.json", "gpustat --json.*--query-gpu=timestamp,index,name"),
        ("slurm/42-other-tools/amd.json", "amd-smi --json.*device-metrics-exporter"),
        ("slurm/42-other-tools/smi.txt", "nvidia-smi without options.*nvidia-smi -L.*--query-gpu=timestamp,index,name"),
        ("slurm/24-nvidia-smi-xml/smi.xml", "nvidia-smi -q -x.*nvidia-smi -L.*--query-gpu=timestamp,index,name"),
        ("slurm/25-rocm-smi-csv/rocm.csv", "rocm-smi.*device-metrics-exporter"),
        ("slurm/38-exporter-pages/slurm_exporter.txt", "prometheus-slurm-exporter.*sacct .*--duplicates"),
    ],
)
def test_other_forms_are_named_with_what_to_run(tmp_path: Path, name: str, words: str):
    (path,) = case(tmp_path, name)
    for call in (lambda: read("auto", path), lambda: group_files_by_source([path])):
        with pytest.raises(TraceFormatError, match=words) as error:
            call()
        assert "philly" not in str(error.value)


@pytest.mark.parametrize(("name", "kind"), [("nodepool", "NodePool"), ("resourcequota", "ResourceQuota")])
def test_configuration_alone_is_named_with_what_to_run(tmp_path: Path, name: str, kind: str):
    (path,) = case(tmp_path, f"kubernetes/17-ksm/{name}.yaml")
    with pytest.raises(TraceFormatError, match=f"kind '{kind}' alone.*kubectl get pods,jobs,nodes -A -o json"):
        read("auto", path)


def test_forms_of_others_are_none_of_ours(tmp_path: Path):
    """No file that is read looks like a form that is not, and every form has a source."""
    assert facts("foreign_forms")["source"].null_count() == 0
    for name in ("kubernetes/18-amd-exporter/metrics.prom", "kubernetes/19-bills/cur-legacy.csv"):
        (path,) = case(tmp_path, name)
        assert find_foreign_form(path.read_text().splitlines()[:20]) is None


# Bills


def gpu_hours(found: Dataset) -> dict[str, float]:
    """GPU-hours by instance type, of lines of which GPUs are known."""
    table = summarise_bill(found.tables["charges"]).filter(pl.col("gpu_hours") > 0)
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
    plain, zoned = case(tmp_path, "kubernetes/19-bills/focus10-aws.csv", "kubernetes/19-bills/focus10-aws-z.csv")
    found = read("focus", plain)
    assert found.quality.filter(check="times without a zone")["rows"].to_list() == [34]
    assert found.tables["charges"].equals(read("focus", zoned).tables["charges"])


@pytest.mark.parametrize("name", ["focus-oci.csv", "focus-oci-s.csv"])
def test_oci_names_its_shape_in_the_type_of_the_resource(tmp_path: Path, name: str):
    """Ten days of eight H100, in GPU-hours; the times of one have no seconds."""
    (path,) = case(tmp_path, f"kubernetes/19-bills/{name}")
    found = read("focus", path)
    assert found.tables["charges"]["x_InstanceType"].unique().to_list() == ["BM.GPU.H100.8"]
    table = summarise_bill(found.tables["charges"])
    assert table["gpu_hours"].sum() == 1920
    assert table["gpu_model"].unique().to_list() == ["H100-80GB-SXM5"]


def test_lines_that_speak_of_gpus_and_are_not_known_are_listed(tmp_path: Path):
    """SageMaker on a type of next year, and a GPU product without a type: a warning, and both in the table."""
    (path,) = case(tmp_path, "kubernetes/19-bills/focus10-aws-z.csv")
    text = path.read_text().replace("BoxUsage:p5.48xlarge", "Train:ml.p9.48xlarge", 3)
    text = text.replace("Usage,,,Usage-Based", "Usage,,NVIDIA Omniverse GPU lease,Usage-Based", 1)
    path.write_text(text)
    found = read("focus", path)
    unknown = find_unknown_types(found.tables["charges"])
    assert unknown.select("x_InstanceType", "lines").rows() == [("ml.p9.48xlarge", 3)]
    assert found.quality.filter(pl.col("check").str.contains("lines about GPUs"))["rows"].to_list() == [3]
