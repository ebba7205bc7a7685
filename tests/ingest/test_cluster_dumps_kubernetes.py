"""Dumps of Kubernetes in the forms that real clusters produce, with the values counted by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.decision.data_correction import find_correction
from gpuplanner.hardware.catalog import match_gpu_models
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.kubernetes.node_labels import read_gpu_register
from gpuplanner.ingest.quality_report import check_text
from gpuplanner.ingest.source_registry import read

CASES = Path(__file__).parent / "cluster_dumps" / "kubernetes"
GPU = "nvidia.com/gpu"
TYPE = "node.kubernetes.io/instance-type"
Json = dict[str, Any]


def doubt(name: str) -> str:
    """The text of a check on Kubernetes dumps."""
    return check_text(f"kubernetes: {name}")


def read_case(case: str, folder: Path) -> Dataset:
    """Read a file of a case, unpacked as it was written."""
    path = CASES / case
    if not path.exists():
        path = folder / path.name
        path.write_bytes(gzip.decompress((CASES / f"{case}.gz").read_bytes()))
    return read("auto", path)


def installed(found: Dataset) -> dict[str, int]:
    """GPUs of the inventory by model."""
    assert found.inventory is not None
    rows = found.inventory.group_by("gpu_model").agg(pl.col("gpus").sum()).rows()
    return {str(model): int(gpus) for model, gpus in rows}


def by_model(found: Dataset) -> dict[str, float]:
    """GPU-hours of the jobs by model."""
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    rows = found.jobs.group_by("gpu_model").agg((pl.col("gpus") * hours).sum()).rows()
    return {str(model): gpu_hours for model, gpu_hours in rows}


def grave(found: Dataset) -> dict[str, int]:
    """Warnings and errors of the quality report with their rows, but for days without a job."""
    rows = found.quality.filter(pl.col("severity") != "info", ~pl.col("check").str.contains("no submission"))
    return dict(rows.select("check", "rows").rows())


@pytest.mark.parametrize(
    ("case", "gpus", "gpu_hours"),
    [
        ("01-gke-timesharing/dump.json", {"L4": 2}, 30),
        ("03-eks-karpenter/dump.json", {"H100-80GB-SXM5": 24}, 1125),
        ("07-amd-dra/dump.json", {"MI300X": 16}, 420),
        ("09-4pd-vgpu/dump.json", {"A100-40GB": 8}, 80),
        ("10-aliyun-gpushare/dump.json", {"V100-32GB-SXM2": 8}, 2400 / 31),
        ("20-kueue/gfd-flavors.json", {"H100-80GB-SXM5": 16, "L4": 4}, 3280),
        ("20-kueue/gke-flavors.json", {"H100-80GB-SXM5": 16, "L4": 4}, 3280),
        ("20-kueue/stuck.json", {"H100-80GB-SXM5": 16, "L4": 4}, 3440),
        ("21-dra-dynmig/dump.json", {"H100-80GB-SXM5": 2}, 80),
        ("21-dra-dynmig/v1beta1.json", {"H100-80GB-SXM5": 2}, 80),
        ("21-dra-dynmig/ownclass.json", {"H100-80GB-SXM5": 2}, 560),
        ("23-mixed-shared/dump.json", {"A100-40GB": 2}, 65),
        ("25-gangs/dump.json", {"H100-80GB-SXM5": 32}, 4392),
        ("25-gangs/dump.yaml", {"H100-80GB-SXM5": 32}, 4392),
        ("26-amd-cpx/single.json", {"MI300X": 8}, 180),
        ("28-volcano-register/dump.json", {"A100-80GB": 2}, 7),
        ("27-dra-extended-resource/dump.json", {"H100-80GB-SXM5": 4}, 23),
        ("27-dra-extended-resource/mixed.json", {"H100-80GB-SXM5": 4, "L40S": 4}, 73),
    ],
)
def test_gpus_and_gpu_hours_are_those_counted_by_hand(
    case: str, gpus: dict[str, int], gpu_hours: float, tmp_path: Path
):
    found = read_case(case, tmp_path)
    assert installed(found) == gpus
    assert found.provenance["gpu_hours"] == pytest.approx(gpu_hours, rel=1e-9)
    assert grave(found) == {}


@pytest.mark.parametrize(
    ("case", "gpus"), [("nodes-eksmng.json", {"A100-80GB": 16}), ("nodes-aks.json", {"H100-80GB-SXM5": 16})]
)
def test_instance_types_alone_name_model_and_number(case: str, gpus: dict[str, int], tmp_path: Path):
    assert installed(read_case(f"03-eks-karpenter/{case}", tmp_path)) == gpus


def test_flavors_name_their_model_by_any_node_label(tmp_path: Path):
    for case in ("gfd-flavors.json", "gke-flavors.json"):
        found = read_case(f"20-kueue/{case}", tmp_path)
        assert by_model(found) == pytest.approx({"H100-80GB-SXM5": 3200, "L4": 80})
        assert found.quotas is not None
        assert [match_gpu_models(word) for word in found.quotas["gpu_model"]] == [("H100-80GB-SXM5",), ("L4",)]
    stuck = read_case("20-kueue/stuck.json", tmp_path).jobs.filter(job_id="res/stuck")
    assert stuck.select("gpus", "state", "attempt").rows() == [(8.0, "PREEMPTED", 1)]


def test_shared_units_that_no_label_explains_stop_every_recommendation(tmp_path: Path):
    found = read_case("08-bottlerocket-shared/dump.json", tmp_path)
    assert installed(found) == {"H100-80GB-SXM5": 8}
    assert grave(found) == {doubt("unknown replicas"): 40, "number of GPUs not known": 40}
    correction = find_correction(found)
    assert correction is not None
    assert correction.share == 1.0
    assert "br-1: nvidia.com/gpu.shared 128 on 8 GPUs" in correction.finding
    assert "nvidia.com/gpu.replicas" in correction.remedy


@pytest.mark.parametrize(("case", "gpu_hours"), [("dump.json", 240.0), ("only.json", 0.0)])
def test_accelerators_that_are_no_gpus_are_named_with_pods_and_devices(case: str, gpu_hours: float, tmp_path: Path):
    found = read_case(f"12-gaudi-mixed/{case}", tmp_path)
    assert found.provenance["gpu_hours"] == gpu_hours
    [(check, rows, effect, hours)] = found.quality.filter(severity="warning")[
        "check", "rows", "effect", "gpu_hours"
    ].rows()
    assert (check, rows, hours) == ("habana.ai/gaudi is not read", 20, None)
    assert "20 pods requested it, and 1 node had 8 devices" in effect


# Further forms, each of a public source named beside it.


def node(name: str, labels: Json, capacity: Json, **more: Json) -> Json:
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-03-03T00:00:00Z"}
    status = {"capacity": {"cpu": "96", **capacity}, "conditions": [ready], **more.get("status", {})}
    about = {"name": name, "labels": labels, "annotations": more.get("annotations", {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": more.get("spec", {}), "status": status}


def pod(name: str, on: str, limits: Json, **more: Any) -> Json:
    """A pod that held what it asked for during ten hours."""
    about = {"name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-03-02T07:00:00Z"}
    ended = {"terminated": {"finishedAt": "2026-03-02T18:00:00Z"}}
    spec = {"nodeName": on, "containers": [{"resources": {"limits": limits}}], **more.get("spec", {})}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-02T08:00:00Z"}
    status = {"phase": "Succeeded", "conditions": [bound], "containerStatuses": [{"state": ended}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about | more.get("metadata", {}),
        "spec": spec,
        "status": status | more.get("status", {}),
    }


def dump(folder: Path, *things: Json) -> Dataset:
    path = folder / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(things)}))
    return read("kubernetes", path)


EKS = "eks.amazonaws.com/instance-gpu-"
KARPENTER = "karpenter.k8s.aws/instance-gpu-"
GKE = "cloud.google.com/gke-"


@pytest.mark.parametrize(
    ("labels", "capacity", "model", "gpus"),
    [
        # AWS EKS guide, EKS Auto Mode: labels of a managed node.
        ({f"{EKS}name": "l40s", f"{EKS}count": "4", f"{EKS}memory": "45776"}, {GPU: "4"}, "L40S", 4),
        # Karpenter, reference/instance-types.md: p4de.24xlarge, whose name of the GPU is that of the p4d too.
        (
            {f"{KARPENTER}name": "a100", f"{KARPENTER}count": "8", f"{KARPENTER}memory": "81920"},
            {GPU: "8"}, "A100-80GB", 8,
        ),
        # OKE has no label for GPUs: the shape is the instance type (kubernetes/autoscaler, oci GPULabel).
        ({TYPE: "BM.GPU.H100.8"}, {GPU: "8"}, "H100-80GB-SXM5", 8),
        # CoreWeave, advanced label selectors.
        (
            {"gpu.nvidia.com/class": "A100_NVLINK_80GB", "gpu.nvidia.com/count": "8", "gpu.nvidia.com/vram": "81"},
            {GPU: "8"}, "A100-80GB", 8,
        ),
        # GKE, N1 machine with attached GPUs: the machine type says nothing of them.
        (
            {f"{GKE}accelerator": "nvidia-tesla-t4", f"{GKE}accelerator-count": "2", TYPE: "n1-standard-8"},
            {GPU: "2"}, "T4", 2,
        ),
        # AKS node auto-provisioning (karpenter-provider-azure, labels.go): the size decides the memory.
        (
            {"karpenter.azure.com/sku-gpu-name": "A100", TYPE: "Standard_NC48ads_A100_v4"},
            {GPU: "2"}, "A100-80GB", 2,
        ),
    ],
)  # fmt: skip
def test_labels_of_providers_name_model_and_number(labels: Json, capacity: Json, model: str, gpus: int, tmp_path: Path):
    found = dump(tmp_path, node("n1", labels, capacity), pod("a", "n1", {GPU: "1"}))
    assert installed(found) == {model: gpus}
    assert by_model(found) == {model: 10.0}
    assert grave(found) == {}


MI300X = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
QGPU = "tke.cloud.tencent.com/qgpu"
HAMI_AMD = '[{"count":10,"devmem":196608,"devcore":304,"type":"AMD_Instinct_MI300X_VF"}]'


@pytest.mark.parametrize(
    ("machine", "limits", "annotations", "gpus", "gpu_hours"),
    [
        # GKE, node pool with 1g.5gb partitions that three clients share: 2 GPUs x 7 instances x 3 clients.
        (
            node("n1", {f"{GKE}accelerator": "nvidia-tesla-a100", f"{GKE}accelerator-count": "2",
                        f"{GKE}gpu-partition-size": "1g.5gb", f"{GKE}max-shared-clients-per-gpu": "3"}, {GPU: "42"}),
            {GPU: "1"}, {}, 2, 10 / 7 / 3,
        ),
        # ROCm/k8s-device-plugin, configuration.md: resource naming strategy "mixed".
        (node("n1", MI300X, {"amd.com/cpx_nps4": "64"}), {"amd.com/cpx_nps4": "4"}, {}, 8, 5.0),
        (node("n1", MI300X | {"amd.com/gpu.cu-count": "152"}, {"amd.com/gpu": "16"}), {"amd.com/gpu": "1"}, {}, 8, 5.0),
        (
            node("n1", {"amd.com/gpu.product-name": "AMD_Instinct_MI300A", "amd.com/gpu.compute-memory-partition":
                        "spx_nps1"}, {"amd.com/gpu": "4"}),
            {"amd.com/gpu": "2"}, {}, 4, 20.0,
        ),
        # HAMi on AMD: the annotation lists one MI300X VF, of which the pod gets a quarter of the compute units.
        (
            node("n1", {}, {"amd.com/gpu": "10"}, annotations={"hami.io/node-amd-register": HAMI_AMD}),
            {"amd.com/gpu": "1", "amd.com/gpumem": "65536", "amd.com/gpucores": "25"}, {}, 1, 2.5,
        ),
        # HAMi: the operator's defaults stand in the annotation of the pod alone.
        (
            node("n1", {f"{GPU}.product": "Tesla-T4"}, {GPU: "20"},
                 annotations={"hami.io/node-nvidia-register": "GPU-1,10,15360,100,NVIDIA-Tesla T4,0,true:"
                                                              "GPU-2,10,15360,100,NVIDIA-Tesla T4,0,true:"}),
            {GPU: "1"}, {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3840,40:;"}, 2, 4.0,
        ),
        # Tencent qGPU (document 457/59103): percent of a card, and memory in GB.
        (
            node("n1", {TYPE: "GN10Xp"}, {f"{QGPU}-core": "400", f"{QGPU}-memory": "128"}),
            {f"{QGPU}-core": "30", f"{QGPU}-memory": "8"}, {}, 4, 3.0,
        ),
        # Volcano vGPU whose plugin counts memory by a factor: units of the node are what share says.
        (
            node("n1", {f"{GPU}.product": "Tesla-T4", f"{GPU}.count": "2"},
                 {"volcano.sh/vgpu-number": "20", "volcano.sh/vgpu-memory": "30"},
                 annotations={"volcano.sh/node-vgpu-register": "GPU-1,10,15360,100,NVIDIA-Tesla T4,0,true:"
                                                               "GPU-2,10,15360,100,NVIDIA-Tesla T4,0,true:"}),
            {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "5"}, {}, 2, 10 / 3,
        ),
        # Koordinator, DeviceShare: percent of cores and of memory of one GPU, 200 for two of them.
        (
            node("n1", {"node.koordinator.sh/gpu-model": "NVIDIA-H20"}, {"koordinator.sh/gpu-core": "800", GPU: "8"}),
            {"koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200"}, {}, 8, 20.0,
        ),
    ],
)  # fmt: skip
def test_shared_gpus_count_as_boards_and_their_jobs_by_share(
    machine: Json, limits: Json, annotations: Json, gpus: int, gpu_hours: float, tmp_path: Path
):
    one = pod("a", "n1", limits, metadata={"annotations": annotations})
    found = dump(tmp_path, machine, one)
    assert sum(installed(found).values()) == gpus
    assert found.provenance["gpu_hours"] == pytest.approx(gpu_hours, rel=1e-9)
    assert grave(found) == {}


def test_pods_that_reserve_gpus_for_fractions_are_no_jobs(tmp_path: Path):
    # NVIDIA/KAI-Scheduler, docs/gpu-sharing: a reservation pod holds the GPU that two pods share.
    reserved = pod("gpu-reservation-n1", "n1", {GPU: "1"}, metadata={"namespace": "kai-resource-reservation"})
    halves = [pod(name, "n1", {}, metadata={"annotations": {"gpu-fraction": "0.5"}}) for name in "ab"]
    labels = {f"{GPU}.product": "NVIDIA-L40S", f"{GPU}.count": "4"}
    found = dump(tmp_path, node("n1", labels, {GPU: "4"}), reserved, *halves)
    assert found.jobs.height == 2
    assert found.provenance["gpu_hours"] == 10.0


def test_seven_gpus_on_an_instance_of_one_are_its_instances(tmp_path: Path):
    # AKS, multi-instance GPU: NC24ads_A100_v4 with MIG1g has seven nvidia.com/gpu.
    found = dump(tmp_path, node("n1", {TYPE: "Standard_NC24ads_A100_v4"}, {GPU: "7"}), pod("a", "n1", {GPU: "1"}))
    assert installed(found) == {"A100-80GB": 1}
    assert found.provenance["gpu_hours"] == pytest.approx(10 / 7, rel=1e-9)
    assert found.quality.filter(check=doubt("shared units"))["severity", "rows"].rows() == [("info", 1)]


@pytest.mark.parametrize(
    ("labels", "units", "gpu_hours", "warned"),
    [
        (
            {TYPE: "g5.12xlarge"},
            "40",
            1.0,
            {doubt("assumed shares"): 1},
        ),  # time-slicing, as an A10G has no instances, or HAMi
        ({TYPE: "Standard_ND96isr_MI300X_v5"}, "64", 1.25, {}),  # CPX, by the modes of the MI300X
        (
            {TYPE: "p4d.24xlarge"},
            "24",
            0.0,
            {doubt("unknown replicas"): 1, "number of GPUs not known": 1},
        ),  # 2g or a third
        (
            {TYPE: "g5.12xlarge"},
            "10",
            0.0,
            {doubt("unknown replicas"): 1, "number of GPUs not known": 1},
        ),  # not so many each
        (
            {f"{GPU}.product": "NVIDIA-L40S"},
            "64",
            0.0,
            {doubt("too many GPUs"): 1, doubt("unknown GPU count"): 1, "number of GPUs not known": 1},
        ),
        (
            {"accelerator": "nvidia-l40s"},
            "8",
            10.0,
            {doubt("unconfirmed GPUs"): 1},
        ),  # a label set by hand, and no number
        ({TYPE: "p5.48xlarge", f"{GPU}.product": "Tesla-T4"}, "8", 10.0, {doubt("other models"): 1}),
        ({TYPE: "g5.12xlarge", f"{KARPENTER}count": "8"}, "8", 10.0, {doubt("other counts"): 1}),
        ({TYPE: "g6f.large"}, "1", 10.0, {doubt("vGPU"): 1}),
        (
            {f"{GPU}.product": "NVIDIA-A10-4Q", "nvidia.com/vgpu.present": "true"},
            "1",
            10.0,
            {doubt("vGPU"): 1, "unknown GPU type": 1, "unknown GPU type of nodes": 1},
        ),
        ({TYPE: "p5.48xlarge"}, "7", 10.0, {doubt("withheld GPUs"): 1}),
    ],
)
def test_capacity_is_checked_against_everything_else_that_is_said(
    labels: Json, units: str, gpu_hours: float, warned: dict[str, int], tmp_path: Path
):
    resource = "amd.com/gpu" if "MI300X" in str(labels) else GPU
    found = dump(tmp_path, node("n1", labels, {resource: units}), pod("a", "n1", {resource: "1"}))
    assert found.provenance["gpu_hours"] == pytest.approx(gpu_hours, rel=1e-9)
    assert grave(found) == warned


def test_instances_that_do_not_fit_on_the_gpus_are_a_warning(tmp_path: Path):
    labels = {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3", f"{GPU}.count": "2"}
    machine = node("n1", labels, {"nvidia.com/mig-1g.10gb": "15"})
    found = dump(tmp_path, machine, pod("a", "n1", {"nvidia.com/mig-1g.10gb": "1"}))
    assert found.provenance["gpu_hours"] == pytest.approx(10 / 7)
    assert grave(found) == {doubt("other counts"): 1}


def test_gpus_that_a_node_does_not_offer_are_out_of_service_and_installed(tmp_path: Path):
    labels = {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3", f"{GPU}.count": "8"}
    added = [{"key": "node.kubernetes.io/unschedulable", "timeAdded": "2026-03-02T12:00:00Z"}]
    nodes = [
        node("ill", labels, {GPU: "8"}, status={"allocatable": {GPU: "6"}}),
        node("fallen", labels | {TYPE: "p5.48xlarge", f"{GPU}.count": "7"}, {GPU: "7"}),
        node("closed", labels, {GPU: "8"}, spec={"unschedulable": True, "taints": added}),
    ]
    found = dump(tmp_path, *nodes, pod("a", "ill", {GPU: "6"}))
    assert installed(found) == {"H100-80GB-SXM5": 24}
    out = found.tables["out_of_service"].select("node", pl.col("start_time").dt.hour(), "gpus").rows()
    assert sorted(out) == [("closed", 12, None), ("fallen", 0, 1.0), ("ill", 0, 2.0)]
    assert grave(found) == {doubt("withheld GPUs"): 2}
    assert found.quality.filter(check=check_text("nodes: closed"))["rows"].to_list() == [1]


KUEUE = {"apiVersion": "kueue.x-k8s.io/v1beta1"}


def test_the_queue_label_of_kueue_says_whose_a_pod_is(tmp_path: Path):
    label = {"labels": {"kueue.x-k8s.io/queue-name": "main"}}
    other = pod("b", "n1", {GPU: "1"}, metadata={"namespace": "art", "labels": {"kueue.x-k8s.io/queue-name": "solo"}})
    leads = {"kind": "LocalQueue", "metadata": {"name": "main", "namespace": "team"}, "spec": {"clusterQueue": "lab"}}
    found = dump(tmp_path, pod("a", "n1", {GPU: "1"}, metadata=label), other, KUEUE | leads)
    assert dict(found.jobs.select("job_id", "tenant").rows()) == {"team/a": "lab", "art/b": "solo"}


def test_a_flavor_without_a_label_of_gpus_is_what_its_nodes_are(tmp_path: Path):
    labels = {"pool": "fast", f"{GPU}.product": "Tesla-T4-SHARED", f"{GPU}.replicas": "4", f"{GPU}.count": "1"}
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {"nodeLabels": {"pool": "fast"}}}
    given = {"name": "main", "count": 2, "flavors": {GPU: "f"}, "resourceUsage": {GPU: "2"}}
    done = [
        {"type": "Admitted", "status": "True", "lastTransitionTime": "2026-03-02T08:00:00Z"},
        {"type": "Finished", "status": "True", "reason": "Succeeded", "lastTransitionTime": "2026-03-02T18:00:00Z"},
    ]
    template = {"spec": {"containers": [{"resources": {"limits": {GPU: "1"}}}]}}
    workload = {
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "team", "uid": "w", "creationTimestamp": "2026-03-02T07:00:00Z"},
        "spec": {"podSets": [{"name": "main", "count": 2, "template": template}]},
        "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [given]}, "conditions": done},
    }
    found = dump(tmp_path, node("n1", labels, {GPU: "4"}), KUEUE | flavor, KUEUE | workload)
    assert by_model(found) == {"T4": 5.0}


RESOURCE = {"apiVersion": "resource.k8s.io/v1"}


def devices(driver: str, *listed: Json) -> Json:
    offered = [
        {"name": f"d{number}", "attributes": {key: {"string": value} for key, value in one.items()}}
        for number, one in enumerate(listed)
    ]
    spec = {"driver": driver, "nodeName": "n1", "pool": {"name": "n1"}, "devices": offered}
    return RESOURCE | {"kind": "ResourceSlice", "metadata": {"name": driver}, "spec": spec}


def claim(name: str, device_class: str, *allocated: tuple[str, str]) -> Json:
    results = [{"driver": driver, "pool": "n1", "device": device} for driver, device in allocated]
    return RESOURCE | {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}},
        "status": {"allocation": {"devices": {"results": results}}} if results else {},
    }


def claiming(name: str, *claims: str) -> Json:
    return pod(name, "n1", {}, spec={"resourceClaims": [{"name": each, "resourceClaimName": each} for each in claims]})


def test_partitions_of_amd_and_channels_of_a_compute_domain(tmp_path: Path):
    # ROCm/k8s-gpu-dra-driver deviceinfo.go: four partitions of one MI300X in QPX; NVIDIA: IMEX channels are no GPUs.
    part = {"type": "amdgpu-partition", "productName": "AMD_Instinct_MI300X_OAM", "partitionProfile": "qpx_nps1"}
    slices = devices("gpu.amd.com", *[part | {"parentPciAddr": "0000:01:00.0"}] * 4)
    one = claim("one", "gpu.amd.com", ("gpu.amd.com", "d0"))
    channel = claim("imex", "compute-domain-default-channel.nvidia.com", ("compute-domain.nvidia.com", "channel-0"))
    found = dump(tmp_path, slices, one, channel, claiming("a", "one", "imex"), claiming("b", "imex"))
    assert installed(found) == {"MI300X": 1}
    assert found.jobs["job_id"].to_list() == ["team/a"]
    assert found.provenance["gpu_hours"] == 2.5
    assert grave(found) == {}


def test_an_extended_resource_stands_for_its_device_class(tmp_path: Path):
    # Kubernetes, Dynamic Resource Allocation: DeviceClass with extendedResourceName.
    cel = {"expression": "device.driver == 'gpu.nvidia.com'"}
    site = {"kind": "DeviceClass", "metadata": {"name": "big"},
            "spec": {"extendedResourceName": "site.example/big", "selectors": [{"cel": cel}]}}  # fmt: skip
    by_name = pod("b", "n1", {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"})
    found = dump(tmp_path, RESOURCE | site, pod("a", "n1", {"site.example/big": "2", "rdma/hca": "1"}), by_name)
    assert found.provenance["gpu_hours"] == 30.0


def extended(name: str, resource: str, expression: str) -> Json:
    spec = {"extendedResourceName": resource, "selectors": [{"cel": {"expression": expression}}]}
    return RESOURCE | {"kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def test_the_claim_of_the_scheduler_counts_before_the_resource_that_it_covers(tmp_path: Path):
    # Kubernetes 1.34, KEP-5004: the device of the claim is a MIG instance, which its class and resource leave open.
    mig = {"type": "mig", "productName": "NVIDIA A100-SXM4-80GB", "profile": "3g.40gb", "parentUUID": "GPU-1"}
    site = extended("site", "site.example/part", "device.driver == 'gpu.nvidia.com'")
    claimed = {"extendedResourceClaimStatus": {
        "resourceClaimName": "c", "requestMappings": [{"resourceName": "site.example/part", "requestName": "r"}]
    }}  # fmt: skip
    a = pod("a", "n1", {"site.example/part": "1", GPU: "1"}, status=claimed)
    full = {"type": "gpu", "productName": "NVIDIA A100-SXM4-80GB", "uuid": "GPU-2"}
    slices = devices("gpu.nvidia.com", mig, full)
    found = dump(tmp_path, slices, site, claim("c", "site", ("gpu.nvidia.com", "d0")), a)
    assert found.provenance["gpu_hours"] == pytest.approx(10 * (1 + 3 / 7))


def test_an_extended_resource_of_parts_of_unknown_size_is_named(tmp_path: Path):
    part = extended("part", "site.example/part", "device.attributes['gpu.nvidia.com'].type == 'mig'")
    found = dump(tmp_path, part, pod("a", "n1", {"site.example/part": "1"}))
    assert grave(found) == {"site.example/part is not read": 1, "number of GPUs not known": 1}


@pytest.mark.parametrize(
    ("things", "named"),
    [
        # KubeVirt names a vGPU by its profile (NVIDIA/kubevirt-gpu-device-plugin).
        ([pod("a", "n1", {"nvidia.com/NVIDIA_A10-12Q": "1"})], "nvidia.com/NVIDIA_A10-12Q is not read"),
        ([pod("a", "n1", {"gpu.intel.com/i915": "1"})], "gpu.intel.com/i915 is not read"),
        ([claim("c", "h100.site.example"), claiming("a", "c")], "h100.site.example is not read"),
    ],
)
def test_what_may_be_a_gpu_is_a_warning_and_its_hours_stay_open(things: list[Json], named: str, tmp_path: Path):
    labels = {f"{GPU}.product": "NVIDIA-L40S", f"{GPU}.count": "8"}
    found = dump(tmp_path, node("n1", labels, {GPU: "8"}), *things, *(pod(name, "n1", {GPU: "4"}) for name in "xy"))
    assert grave(found)[named] == 1
    assert found.provenance["gpu_hours"] == 80.0
    # Ten hours of one device beside eighty known: below a fifth, and beside one known pod of one GPU above it.
    assert find_correction(found) is None
    few = dump(tmp_path, node("n1", labels, {GPU: "8"}), *things, pod("x", "n1", {GPU: "1"}))
    correction = find_correction(few)
    assert correction is not None
    assert correction.share == pytest.approx(0.5)
    assert named in correction.finding


def test_without_nodes_nobody_knows_whether_gpus_are_shared(tmp_path: Path):
    found = dump(tmp_path, pod("a", "n1", {GPU: "2"}))
    assert found.provenance["gpu_hours"] == 20.0
    assert grave(found) == {doubt("no node in the dump"): 1}


@pytest.mark.parametrize(("count", "gpus", "doubts"), [("6", 8, 1), ("8", 8, 0), ("9", 9, 0)])
def test_instances_count_on_the_gpus_that_they_take_where_a_label_is_stale(
    count: str, gpus: int, doubts: int, tmp_path: Path
):
    # NVIDIA/mig-parted: gpu.count of gpu-feature-discovery lags behind a change from mixed to other layouts.
    capacity = {GPU: "6", "nvidia.com/mig-1g.18gb": "7", "nvidia.com/mig-3g.71gb": "2"}
    labels = {f"{GPU}.product": "NVIDIA-H200", f"{GPU}.count": count}
    found = dump(tmp_path, node("n1", labels, capacity), pod("a", "n1", {"nvidia.com/mig-3g.71gb": "1"}))
    assert installed(found) == {"H200-141GB": gpus}
    contradicting = found.quality.filter(check=doubt("other counts"))
    assert contradicting.height == doubts
    assert all("the first number counts as installed" in text for text in contradicting["effect"])
    assert all("that need 8 GPUs on 6 GPUs" in text for text in contradicting["example"])


@pytest.mark.parametrize(
    ("entry", "gpu_type"),
    [
        # volcano-sh/devices: with and without a mode behind the health of the GPU; HAMi has percent of compute.
        ("10,81920,NVIDIA-A100-SXM4-80GB,true,hami-core", "NVIDIA-A100-SXM4-80GB"),
        ("10,81920,NVIDIA-NVIDIA A100-SXM4-80GB,true", "NVIDIA-NVIDIA A100-SXM4-80GB"),
        ("10,81920,100,NVIDIA-A100-SXM4-80GB,0,true,0,hami-core", "NVIDIA-A100-SXM4-80GB"),
        ("10,81920", None),
    ],
)
def test_the_register_of_a_device_plugin_names_its_type(entry: str, gpu_type: str | None):
    annotations = {"volcano.sh/node-vgpu-register": f"GPU-1,{entry}:GPU-2,{entry}:"}
    assert read_gpu_register(annotations) == (None if gpu_type is None else (2, 81920, gpu_type))


HALF_T4 = {GPU: "1", "nvidia.com/gpumem": "8192"}
T4S = node("n1", {f"{GPU}.product": "Tesla-T4", f"{GPU}.count": "4"}, {GPU: "4"})


@pytest.mark.parametrize(
    ("things", "gpu_hours", "check", "named"),
    [
        ([T4S, pod("a", "gone", {GPU: "2"})], 20.0, doubt("node not in the dump"), f"1 pod requested {GPU};"),
        # 8192 MiB are half of the 16 GiB of the catalogue; a T4 shows 15,360 MiB of them.
        ([T4S, pod("a", "n1", HALF_T4)], 5.0, doubt("unstated GPU memory"), "1 pod requested nvidia.com/gpumem;"),
        ([pod("a", "n1", HALF_T4)], 0.0, doubt("unresolved shares"), "1 pod requested nvidia.com/gpumem on a GPU"),
        # A claim keeps its device, and the ResourceSlice went with the node.
        (
            [claim("c", "mig.nvidia.com", ("gpu.nvidia.com", "gpu-0-mig-19-0-1")), claiming("a", "c")],
            0.0, doubt("unresolved shares"), "1 pod requested devices of mig.nvidia.com;",
        ),
    ],
)  # fmt: skip
def test_shares_that_the_dump_does_not_settle_are_named_with_resource_and_pods(
    things: list[Json], gpu_hours: float, check: str, named: str, tmp_path: Path
):
    found = dump(tmp_path, *things)
    assert found.provenance["gpu_hours"] == gpu_hours
    [(rows, effect)] = found.quality.filter(check=check, severity="warning")["rows", "effect"].rows()
    assert (rows, effect[: len(named)]) == (1, named)


def test_network_devices_and_tpus_are_no_gpus(tmp_path: Path):
    tpu = pod("t", "n1", {"google.com/tpu": "4"})
    one = pod("a", "n1", {GPU: "1", "nvidia.com/hostdev": "1", "vpc.amazonaws.com/efa": "4"})
    found = dump(tmp_path, node("n1", {TYPE: "p5.48xlarge"}, {GPU: "8", "nvidia.com/hostdev": "4"}), one, tpu)
    assert found.provenance["gpu_hours"] == 10.0
    assert grave(found) == {"google.com/tpu is not read": 1}
