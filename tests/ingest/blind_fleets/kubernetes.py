"""Clusters of Kubernetes as ``kubectl get pods,jobs,nodes -o json`` prints them, with the GPU-hours that they hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from tests.ingest.blind_fleets.truth import Units

BEGIN_S = int(datetime(2026, 3, 2, 6, tzinfo=UTC).timestamp())
SNAPSHOT_S = 2 * 86_400
# gpu_model: (GFD product, MiB of a board, MIG layouts of one board)
A100_40 = ("NVIDIA-A100-SXM4-40GB", 40960, {"1g.5gb": 7, "2g.10gb": 3, "3g.20gb": 2})
A100_80 = ("NVIDIA-A100-SXM4-80GB", 81920, {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2})
A100_80_PCIE = ("NVIDIA-A100-80GB-PCIe", 81920, {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2})
H100 = ("NVIDIA-H100-80GB-HBM3", 81559, {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1})
H200 = ("NVIDIA-H200", 143771, {"1g.18gb": 7, "3g.71gb": 2})
L4 = ("NVIDIA-L4", 23034, {})
L40S = ("NVIDIA-L40S", 46068, {})
T4 = ("Tesla-T4", 15360, {})
V100 = ("Tesla-V100-SXM2-16GB", 16384, {})
A10 = ("NVIDIA-A10", 23028, {})
A10G = ("NVIDIA-A10G", 23028, {})
# provider: (instance type, boards, board, labels of the provider)
SHAPES: dict[str, list[tuple[str, int, tuple[str, int, dict[str, int]], dict[str, str]]]] = {
    "eks": [
        ("p5.48xlarge", 8, H100, {}),
        ("p4d.24xlarge", 8, A100_40, {}),
        ("p4de.24xlarge", 8, A100_80, {}),
        ("g5.12xlarge", 4, A10G, {}),
        ("g6e.12xlarge", 4, L40S, {}),
        ("g4dn.xlarge", 1, T4, {}),
        ("p3.8xlarge", 4, V100, {}),
    ],
    "gke": [
        ("a2-highgpu-1g", 1, A100_40, {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}),
        ("a2-ultragpu-2g", 2, A100_80, {"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}),
        ("a3-highgpu-8g", 8, H100, {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}),
        ("g2-standard-24", 2, L4, {"cloud.google.com/gke-accelerator": "nvidia-l4"}),
        ("n1-standard-16", 4, T4, {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}),
    ],
    "aks": [
        ("Standard_NC24ads_A100_v4", 1, A100_80_PCIE, {}),
        ("Standard_NC96ads_A100_v4", 4, A100_80_PCIE, {}),
        ("Standard_ND96asr_v4", 8, A100_40, {}),
        ("Standard_NC64as_T4_v3", 4, T4, {}),
        ("Standard_ND96isr_H100_v5", 8, H100, {}),
    ],
    "oci": [
        ("BM.GPU.H100.8", 8, H100, {}),
        ("BM.GPU4.8", 8, A100_40, {}),
        ("VM.GPU.A10.2", 2, A10, {}),
        ("BM.GPU.L40S.4", 4, L40S, {}),
        ("BM.GPU.H200.8", 8, H200, {}),
    ],
    "coreweave": [
        ("gd-8xh100ib-i128", 8, H100, {"gpu.nvidia.com/class": "H100_NVLINK_80GB", "gpu.nvidia.com/vram": "81"}),
        ("gd-8xa100-i128", 8, A100_80, {"gpu.nvidia.com/class": "A100_NVLINK_80GB", "gpu.nvidia.com/vram": "81"}),
        ("gd-8xh200ib-i128", 8, H200, {"gpu.nvidia.com/class": "H200", "gpu.nvidia.com/vram": "143"}),
    ],
    "lambda": [
        ("gpu_8x_h100_sxm5", 8, H100, {}),
        ("k3s", 4, A100_40, {}),
        ("rke2", 2, L40S, {}),
        ("bare-metal", 8, A100_80, {}),
    ],
}


@dataclass
class Pool:
    """Units of a node that are asked for by one resource."""

    resource: str
    share: Fraction
    units: Units
    extra: dict[str, str] = field(default_factory=dict)


@dataclass
class Node:
    """A node: labels, annotations, capacity, its pools and boards."""

    name: str
    provider: str
    sharing: str
    boards: int
    labels: dict[str, str]
    capacity: dict[str, str]
    pools: list[Pool]
    annotations: dict[str, str] = field(default_factory=dict)
    gone: bool = False


def pool(resource: str, count: int, share: Fraction = Fraction(1), **extra: str) -> Pool:
    """Pool of alike units."""
    return Pool(resource, share, Units([share] * count), extra)


def discovery_labels(product: str, boards: int, memory_mib: int) -> dict[str, str]:
    """Labels of GPU feature discovery on a node whose GPUs are not shared."""
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(boards),
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.machine": "Standard-PC",
    }


def provider_labels(provider: str, instance: str, boards: int, labels: dict[str, str], product: str) -> dict[str, str]:
    """Labels that the provider sets without GPU feature discovery."""
    out = {"node.kubernetes.io/instance-type": instance, "kubernetes.io/os": "linux", **labels}
    if provider == "gke":
        out |= {"cloud.google.com/gke-accelerator-count": str(boards), "cloud.google.com/gke-gpu": "true"}
    if provider == "aks":
        out |= {"kubernetes.azure.com/accelerator": "nvidia", "accelerator": "nvidia"}
    if provider == "coreweave":
        out |= {"gpu.nvidia.com/count": str(boards), "gpu.nvidia.com/model": labels["gpu.nvidia.com/class"]}
    return out


@st.composite
def gpu_node(draw: st.DrawFn, name: str, provider: str, sharing: str) -> Node:
    """One node of a provider with one way of sharing."""
    shapes = SHAPES[provider]
    if sharing.startswith("mig"):
        shapes = [shape for shape in shapes if shape[2][2]]
    instance, boards, (product, memory, layouts), own = draw(st.sampled_from(shapes))
    labels = provider_labels(provider, instance, boards, own, product)
    gfd = provider == "lambda" or (sharing not in ("gke", "hami", "gpu-mem") and draw(st.booleans()))
    gfd = gfd and not (provider == "gke" and sharing in ("replicas", "mig_single"))
    found = discovery_labels(product, boards, memory)
    replicas = draw(st.sampled_from((2, 3, 4, 8, 10)))
    capacity, pools, annotations = {"nvidia.com/gpu": str(boards)}, [pool("nvidia.com/gpu", boards)], {}

    if sharing == "whole" and provider == "eks" and draw(st.booleans()):
        labels |= {"karpenter.k8s.aws/instance-gpu-count": str(boards), "karpenter.sh/nodepool": "gpu"}
        labels |= {
            "karpenter.k8s.aws/instance-gpu-name": KARPENTER[product],
            "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia",
        }
        labels |= {"karpenter.k8s.aws/instance-gpu-memory": str(memory)}
    if sharing in ("replicas", "mps") and provider == "gke":
        strategy = "mps" if sharing == "mps" else "time-sharing"
        labels |= {"cloud.google.com/gke-gpu-sharing-strategy": strategy}
        labels |= {"cloud.google.com/gke-max-shared-clients-per-gpu": str(replicas)}
        capacity = {"nvidia.com/gpu": str(boards * replicas)}
        pools = [pool("nvidia.com/gpu", boards * replicas, Fraction(1, replicas))]
    elif sharing in ("replicas", "mps"):
        gfd = True
        renamed = draw(st.booleans())
        resource = "nvidia.com/gpu.shared" if renamed else "nvidia.com/gpu"
        found |= {"nvidia.com/gpu.replicas": str(replicas)}
        found |= {"nvidia.com/gpu.sharing-strategy": "mps" if sharing == "mps" else "time-slicing"}
        found["nvidia.com/gpu.product"] = product if renamed else product + "-SHARED"
        capacity = {"nvidia.com/gpu": "0", resource: str(boards * replicas)}
        pools = [pool(resource, boards * replicas, Fraction(1, replicas))]
    elif sharing in ("mig_single", "mig_shared"):
        profile, each = draw(st.sampled_from(sorted(layouts.items())))
        share = Fraction(int(profile[0]), 7)
        clients = replicas if sharing == "mig_shared" else 1
        count = boards * each * clients
        if provider == "gke":
            labels |= {"cloud.google.com/gke-gpu-partition-size": profile}
            if clients > 1:
                labels |= {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}
                labels |= {"cloud.google.com/gke-max-shared-clients-per-gpu": str(clients)}
        else:
            gfd = True
            suffix = "-SHARED" if clients > 1 else ""
            found |= {"nvidia.com/gpu.product": f"{product}-MIG-{profile}{suffix}", "nvidia.com/mig.capable": "true"}
            found |= {"nvidia.com/gpu.count": str(boards * each), "nvidia.com/gpu.memory": str(memory // 8)}
            found |= {"nvidia.com/gpu.slices.gi": profile[0], "nvidia.com/gpu.slices.ci": profile[0]}
            found |= {"nvidia.com/gpu.replicas": str(clients)}
            found |= {"nvidia.com/gpu.sharing-strategy": "time-slicing" if clients > 1 else "none"}
        capacity = {"nvidia.com/gpu": str(count)}
        pools = [pool("nvidia.com/gpu", count, share / clients)]
    elif sharing == "mig_mixed":
        gfd = True
        cut = draw(st.integers(1, boards))
        chosen = draw(st.lists(st.sampled_from(sorted(layouts)), min_size=cut, max_size=cut))
        counts: dict[str, int] = {}
        for profile in chosen:
            counts[profile] = counts.get(profile, 0) + layouts[profile]
        found |= {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.capable": "true"}
        capacity = {"nvidia.com/gpu": str(boards - cut)}
        pools = [pool("nvidia.com/gpu", boards - cut)] if cut < boards else []
        for profile, count in counts.items():
            found |= {f"nvidia.com/mig-{profile}.count": str(count), f"nvidia.com/mig-{profile}.replicas": "1"}
            found |= {f"nvidia.com/mig-{profile}.product": f"{product}-MIG-{profile}"}
            capacity[f"nvidia.com/mig-{profile}"] = str(count)
            pools.append(pool(f"nvidia.com/mig-{profile}", count, Fraction(int(profile[0]), 7)))
    elif sharing == "hami":
        split = 10
        parts = draw(st.sampled_from((2, 4, 8)))
        entries = [f"GPU-{name}-{i},{split},{memory},100,NVIDIA-{product},0,true" for i in range(boards)]
        annotations = {"hami.io/node-nvidia-register": ":".join(entries) + ":", "hami.io/node-handshake": "Reported"}
        capacity = {"nvidia.com/gpu": str(boards * split)}
        share = Fraction(memory // parts, memory)
        amount = {"nvidia.com/gpumem": str(memory // parts)}
        if draw(st.booleans()):
            cores = draw(st.sampled_from((10, 25, 50)))
            amount["nvidia.com/gpucores"] = str(cores)
            share = Fraction(cores, 100)  # compute counts where it is stated
        fit = min(parts, int(1 / share))
        pools = [Pool("nvidia.com/gpu", share, Units([share] * (boards * fit)), amount)]
    elif sharing == "gpu-mem":
        each_gib = memory // 1024
        capacity = {"aliyun.com/gpu-count": str(boards), "aliyun.com/gpu-mem": str(boards * each_gib)}
        labels |= {"gpushare": "true"}
        wanted = draw(st.integers(1, each_gib))
        share = Fraction(wanted, each_gib)
        pools = [
            Pool(
                "aliyun.com/gpu-mem",
                share,
                Units([share] * (boards * (each_gib // wanted))),
                {"aliyun.com/gpu-mem": str(wanted)},
            )
        ]
    elif sharing == "amd":
        labels = {
            "node.kubernetes.io/instance-type": draw(
                st.sampled_from(("BM.GPU.MI300X.8", "Standard_ND96isr_MI300X_v5", "bare-metal"))
            )
        }
        mode, parts = draw(
            st.sampled_from((("spx_nps1", 1), ("cpx_nps1", 8), ("cpx_nps4", 8), ("dpx_nps1", 2), ("qpx_nps1", 4)))
        )
        labels |= {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": f"{192 // parts}G"}
        labels |= {"amd.com/gpu.device-id": "74a1", "amd.com/gpu.cu-count": str(304 // parts)}
        labels |= {"amd.com/gpu.compute-memory-partition": mode, "amd.com/gpu.compute-partitioning-supported": "true"}
        resource = "amd.com/gpu" if draw(st.booleans()) or parts == 1 else f"amd.com/{mode}"
        boards, gfd = 8, False
        capacity = {resource: str(8 * parts)}
        pools = [pool(resource, 8 * parts, Fraction(1, parts))]
    return Node(name, provider, sharing, boards, labels | (found if gfd else {}), capacity, pools, annotations)


KARPENTER = {
    H100[0]: "h100",
    A100_40[0]: "a100",
    A100_80[0]: "a100",
    A10G[0]: "a10g",
    L40S[0]: "l40s",
    T4[0]: "t4",
    V100[0]: "v100",
}
SHARINGS = ("whole", "replicas", "mps", "mig_single", "mig_shared", "mig_mixed", "hami", "gpu-mem", "amd")


def instant(seconds: int) -> str:
    """A time as the API server prints it."""
    return datetime.fromtimestamp(BEGIN_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_object(node: Node) -> dict[str, Any]:
    """A node as the API server prints it."""
    allocatable = {"cpu": "95", "pods": "110", **node.capacity}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ready |= {"lastHeartbeatTime": instant(SNAPSHOT_S), "lastTransitionTime": instant(-90_000)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {"kubernetes.io/hostname": node.name, **node.labels},
            "annotations": node.annotations,
            "creationTimestamp": instant(-90_000),
        },
        "spec": {},
        "status": {
            "capacity": {"cpu": "96", "pods": "110", **node.capacity},
            "allocatable": allocatable,
            "conditions": [ready],
        },
    }
