"""Pods that hold parts of GPUs, in the words of HAMi, Volcano and KAI, and nodes that offer more GPUs than boards."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.kubernetes.cluster_dump import RESERVATION_POD_REASON
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.ingest.kubernetes.gpu_requests import GPU_FRACTION_KEY, pod_gpu_requests
from gpuplanner.ingest.kubernetes.node_labels import read_gpu_register
from gpuplanner.ingest.kubernetes.nodes_and_dra_devices import read_node
from gpuplanner.ingest.quality_report import check_text

File = Callable[..., Path]
Json = dict[str, Any]

DAY = "2025-09-01T"
H100_MIB = 81559  # nvidia-smi of an H100 80GB HBM3
REGISTER = "hami.io/node-nvidia-register"


def gpu_model(number: int, memory: int = H100_MIB) -> str:
    return f"GPU-{number},10,{memory},100,NVIDIA-NVIDIA H100 80GB HBM3,0,true,{number},hami-core:"


def node(name: str, labels: Json | None = None, annotations: Json | None = None, gpus: str = "8") -> Json:
    about = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"{DAY}12:00:00Z"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": about,
        "status": {"capacity": {"nvidia.com/gpu": gpus}, "conditions": [beat]},
    }


def pod(name: str, limits: Json | None = None, annotations: Json | None = None, on: str = "n1", **about: Any) -> Json:
    """A pod that held its GPUs for two hours."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ads",
            "uid": name,
            "creationTimestamp": f"{DAY}08:00:00Z",
            "annotations": annotations or {},
            **about,
        },
        "spec": {"nodeName": on, "containers": [{"resources": {"limits": limits or {}}}]},
        "status": {
            "phase": "Succeeded",
            "startTime": f"{DAY}09:00:00Z",
            "containerStatuses": [{"state": {"terminated": {"finishedAt": f"{DAY}11:00:00Z"}}}],
        },
    }


def dump(file: File, *things: Json) -> Dataset:
    return read_kubernetes([file(json.dumps({"kind": "List", "items": list(things)}), "dump.json")])


def hami(**words: Any) -> Json:
    return {f"nvidia.com/{name.replace('_', '-')}": value for name, value in words.items()}


def volcano(**words: Any) -> Json:
    return {f"volcano.sh/vgpu-{name.replace('_', '-')}": value for name, value in words.items()}


@pytest.mark.parametrize(
    ("limits", "annotations", "gpus", "by_memory"),
    [
        (hami(gpu=1, gpumem=10240, gpucores=30), {}, 0.30, 10240 / H100_MIB),  # cores go before memory
        (hami(gpu=2, gpumem=10240, gpucores=30), {}, 0.60, 20480 / H100_MIB),  # both are of each GPU
        (hami(gpu=2, gpumem_percentage=10, gpucores=30), {}, 0.60, 0.20),
        (hami(gpu=2, gpucores=30), {}, 0.60, 2.0),  # who names no memory gets all of it
        (hami(gpu="1", gpumem="10240"), {}, 10240 / H100_MIB, 10240 / H100_MIB),
        (hami(gpu=1, gpumem=10240, gpucores=0), {}, 10240 / H100_MIB, 10240 / H100_MIB),  # 0 fits anywhere
        (hami(gpu=2, gpumem_percentage=50), {}, 1.0, 1.0),
        (hami(gpumem=10240), {}, 10240 / H100_MIB, 10240 / H100_MIB),  # one GPU where none is named
        (volcano(number=2, cores=25, memory=8000), {}, 0.50, 16000 / H100_MIB),
        (volcano(number=1, memory_percentage=10), {}, 0.10, 0.10),
        ({}, {"gpu-fraction": "0.5"}, 0.5, 0.5),
        ({}, {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "4"}, 1.0, 1.0),
        ({}, {"gpu-memory": "2000"}, 2000 / H100_MIB, 2000 / H100_MIB),
        ({}, {"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}, 4000 / H100_MIB, 4000 / H100_MIB),
        (hami(gpu=2), {"gpu-memory": "80Gi"}, 2.0, 2.0),  # a word of somebody else, beside a request
    ],
)
def test_a_part_of_a_gpu_counts_as_that_part(
    file: File, limits: Json, annotations: Json, gpus: float, by_memory: float
):
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": str(H100_MIB)}
    trace = dump(file, pod("a", limits, annotations), node("n1", labels))
    row = trace.jobs.row(0, named=True)
    assert row["gpus"] == pytest.approx(gpus, rel=1e-12)
    assert row["gpus_by_memory"] == pytest.approx(by_memory, rel=1e-12)
    assert row["instances"] is None
    assert row["gpu_model"] == "H100-80GB-SXM5"
    assert trace.provenance["gpu_hours"] == pytest.approx(2 * gpus, rel=1e-12)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 100)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 100), st.booleans()), max_size=3),
)
def test_parts_of_containers_add_up_and_start_up_counts_only_where_it_needs_more(
    main: list[tuple[int, int]], init: list[tuple[int, int, bool]]
):
    box = lambda gpus, cores: {"resources": {"limits": hami(gpu=gpus, gpucores=cores)}}  # noqa: E731
    spec = {
        "containers": [box(*each) for each in main],
        "initContainers": [
            {**box(gpus, cores), **({"restartPolicy": "Always"} if stays else {})} for gpus, cores, stays in init
        ],
    }
    beside, most = 0, 0
    for gpus, cores, stays in init:
        most = max(most, beside + gpus * cores)
        beside += gpus * cores if stays else 0
    most = max(most, beside + sum(gpus * cores for gpus, cores in main))
    assert pod_gpu_requests(spec)[GPU_FRACTION_KEY] == Fraction(most, 100)


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        (hami(gpu=1, gpucores=101), {}),
        (hami(gpu=1, gpumem="16Gi"), {}),  # read as bytes, more MiB than any board has
        (hami(gpu=1, gpumem_percentage=-5), {}),
        (hami(gpu="1.5", gpucores=50), {}),
        ({}, {"gpu-fraction": "1.5"}),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "x"}),
    ],
)
def test_what_is_no_part_is_a_reject_with_its_reason(file: File, limits: Json, annotations: Json):
    trace = dump(file, pod("good", hami(gpu=1)), pod("bad", limits, annotations))
    assert trace.jobs["job_id"].to_list() == ["ads/good"]
    assert trace.rejects.height == 1
    assert any(name in trace.rejects["reason"][0] for name in [*limits, *annotations])


def test_memory_of_a_board_that_is_not_known_leaves_the_share_unknown_and_names_the_board(file: File):
    trace = dump(file, pod("a", hami(gpu=1, gpumem=4096)), node("n1", {"nvidia.com/gpu.product": "Odd-Board-7"}))
    assert trace.jobs["gpus"].to_list() == [None]
    told = trace.quality.filter(check=check_text("kubernetes: unresolved shares")).row(0, named=True)
    assert told["rows"] == 1
    assert "nvidia.com/gpumem on Odd-Board-7" in told["effect"]


@pytest.mark.parametrize(
    ("product", "gib"),
    [
        ("NVIDIA-H100-80GB-HBM3", 80),
        ("NVIDIA-A100-SXM4-40GB", 40),
        ("Tesla-T4", 16),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", None),  # a GPU is then an instance
        ("nvidia-a100", None),  # 40 or 80
        ("Odd-Board-7", None),
    ],
)
def test_the_catalogue_knows_the_memory_where_no_label_tells_it(product: str, gib: int | None):
    told = read_node(node("n1", {"nvidia.com/gpu.product": product})).memory_mib
    assert told == (None if gib is None else gib * 1024)


def test_a_waiting_pod_counts_by_the_boards_of_the_cluster_if_they_are_alike(file: File):
    waiting = pod("a", hami(gpu=1, gpumem=8156))
    waiting["spec"].pop("nodeName")
    waiting["status"] = {"phase": "Pending"}
    large, small = {"nvidia.com/gpu.memory": "81560"}, {"nvidia.com/gpu.memory": "40960"}
    alike = dump(file, waiting, node("n1", large), node("n2", large), node("cpu", gpus="0"))
    assert alike.jobs["gpus"].to_list() == [0.1]
    assert dump(file, waiting, node("n1", large), node("n2", small)).jobs["gpus"].to_list() == [None]


def test_a_node_of_hami_has_the_boards_that_its_plugin_lists_not_what_it_offers(file: File):
    """Eight boards offered ten times each are eight, and one with more memory than it has counts by that."""
    eight = {REGISTER: "".join(gpu_model(number) for number in range(8))}
    scaled = {
        REGISTER: json.dumps(
            [{"id": f"GPU-{n}", "count": 10, "devmem": 2 * H100_MIB, "devcore": 100} for n in range(2)]
        )
    }
    trace = dump(
        file,
        pod("a", hami(gpu=1, gpumem=H100_MIB)),
        pod("b", hami(gpu=1, gpumem=H100_MIB), on="n2"),
        node("n1", {}, eight, gpus="80"),
        node("n2", {"nvidia.com/gpu.memory": str(H100_MIB)}, scaled, gpus="20"),
    )
    assert trace.inventory is not None
    assert trace.inventory["gpus"].to_list() == [8, 2]
    assert trace.jobs.sort("job_id")["gpus"].to_list() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("labels", "annotations", "gpus"),
    [
        ({}, {REGISTER: "[" * 5000}, None),
        ({}, {REGISTER: '[{"id": "a", "devmem": -1}]'}, None),
        ({}, {"hami.io/node-handshake": "Requesting_2025-09-01 08:00:00"}, None),
        ({"nvidia.com/gpu.count": "8"}, {"hami.io/node-handshake": "Reported"}, 8),
        ({}, {"volcano.sh/node-vgpu-register": "GPU-1,4,4914,NVIDIA-RTX,true:GPU-2,4,4914,NVIDIA-RTX,true:"}, 2),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"}, {}, None),  # by how many is not told
    ],
)
def test_installed_gpus_are_never_the_units_that_are_offered(labels: Json, annotations: Json, gpus: int | None):
    assert read_node(node("n1", labels, annotations, gpus="80")).gpus == gpus


def test_a_node_whose_boards_are_not_told_is_named(file: File):
    trace = dump(file, pod("a", hami(gpu=1)), node("n1", {}, {REGISTER: "?"}, gpus="80"))
    assert trace.inventory is None
    assert trace.quality.filter(check=check_text("kubernetes: unknown GPU count"))["severity", "example"].rows() == [
        ("warning", "'n1'")
    ]


@given(st.text(max_size=60))
def test_any_list_of_boards_is_read_or_left(text: str):
    for name in (REGISTER, "volcano.sh/node-vgpu-register"):
        if text.isprintable():
            found = read_gpu_register({name: text})
            assert found is None or found[0] >= 1


def test_the_pod_that_keeps_a_gpu_for_those_that_share_it_does_not_count_beside_them(file: File):
    labels = {"nvidia.com/gpu.memory": str(H100_MIB)}
    trace = dump(
        file,
        pod("half", annotations={"gpu-fraction": "0.5"}),
        pod("quarter", annotations={"gpu-fraction": "0.25"}),
        pod("gpu-reservation-n1-x7k2p", hami(gpu=1), namespace="kai-resource-reservation"),
        pod("gpu-reservation-1", hami(gpu=1), {"run.ai/reserve_for_gpu_index": "0"}, namespace="own-name"),
        node("n1", labels),
    )
    assert trace.jobs["gpus"].sum() == 0.75
    assert trace.rejects["reason"].to_list() == [RESERVATION_POD_REASON, RESERVATION_POD_REASON]
    assert not trace.quality.filter(severity="error").height


def test_a_workload_of_kueue_counts_parts_too(file: File):
    """What Kueue adds up, gpus and gpumem over pods, cannot tell that the memory is of each GPU."""
    ask = hami(gpu=2, gpumem=10240, gpucores=30)
    pod_set = {"name": "main", "count": 3, "template": {"spec": {"containers": [{"resources": {"limits": ask}}]}}}
    given_to = {
        "name": "main",
        "count": 3,
        "flavors": {"nvidia.com/gpu": "h100"},
        "resourceUsage": {"nvidia.com/gpu": "6", "nvidia.com/gpumem": "30720"},
    }
    since = {"type": "Admitted", "status": "True", "lastTransitionTime": f"{DAY}09:00:00Z"}
    over = {"type": "Finished", "status": "True", "reason": "Succeeded", "lastTransitionTime": f"{DAY}11:00:00Z"}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "ads", "creationTimestamp": f"{DAY}08:00:00Z"},
        "spec": {"podSets": [pod_set]},
        "status": {"conditions": [since, over], "admission": {"clusterQueue": "q", "podSetAssignments": [given_to]}},
    }
    flavor = {
        "kind": "ResourceFlavor",
        "metadata": {"name": "h100"},
        "spec": {"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
    }
    row = dump(file, workload, flavor).jobs.row(0, named=True)
    assert row["gpus"] == pytest.approx(3 * 2 * 0.30, rel=1e-12)
    assert "H100" in row["gpu_model"]


def test_memory_alone_is_kept_apart_until_the_board_is_known():
    assert pod_gpu_requests({"containers": [{"resources": {"limits": hami(gpu=2, gpumem=1024)}}]}) == {
        "nvidia.com/gpumem": Fraction(2048)
    }
