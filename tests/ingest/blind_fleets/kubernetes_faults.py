"""Dumps of Kubernetes as they come: labels lost or left over, nodes gone, unknown resources, pods that never ended."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.ingest.blind_fleets.kubernetes import SNAPSHOT_S, Node, instant
from tests.ingest.blind_fleets.kubernetes_pods import Pod, container, fleet_of, parts, pod_object, terminated
from tests.ingest.blind_fleets.truth import Fault, Fleet

FOREIGN = (
    "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron", "huawei.com/Ascend910", "example.com/gpu",
    "nvidia.com/rtx-2080", "gpu.intel.com/i915", "nvidia.com/mig-9g.99gb", "amd.com/xpx_nps9", "nvidia.com/GRID_X9-4Q",
)  # fmt: skip


def on(pods: list[Pod], *nodes: Node) -> list[Pod]:
    """Pods on these nodes."""
    names = {n.name for n in nodes}
    return [p for p in pods if p.node is not None and p.node.name in names]


@st.composite
def labels_missing(draw: st.DrawFn) -> Fleet:
    """A node of shared GPUs lost all labels and annotations that say so."""
    nodes, pods = draw(parts())
    node = draw(st.sampled_from(nodes))
    concerned = on(pods, node)
    assume(concerned)
    node.labels = {"node.kubernetes.io/instance-type": draw(st.sampled_from(("k3s", "bare-metal", "")))}
    node.annotations = {}
    fleet = fleet_of(nodes, pods)
    fleet.fault = Fault(
        f"labels missing {node.sharing}",
        (node.name, "label", "model"),
        frozenset({len(concerned), 1, len(on(pods, *nodes))}),
    )
    return fleet


@st.composite
def sharing_labels_missing(draw: st.DrawFn) -> Fleet:
    """A node kept the labels of its provider and lost those of sharing: capacity and boards no longer fit."""
    nodes, pods = draw(parts(("replicas", "mps", "mig_single", "mig_shared", "mig_mixed")))
    node = draw(st.sampled_from(nodes))
    concerned = on(pods, node)
    assume(concerned)
    lost = ("sharing-strategy", "max-shared-clients", "partition-size", "nvidia.com/gpu.", "nvidia.com/mig")
    node.labels = {
        k: v for k, v in node.labels.items() if not any(word in k for word in lost) or k.startswith("gpu.nvidia.com")
    }
    fleet = fleet_of(nodes, pods)
    words = (node.name, "nvidia.com/gpu", "label", "model")
    fleet.fault = Fault(
        f"sharing labels missing {node.sharing}", words, frozenset({len(concerned), 1, len(on(pods, *nodes))})
    )
    return fleet


@st.composite
def labels_contradict(draw: st.DrawFn) -> Fleet:
    """Labels of the provider and of GPU feature discovery name different boards or numbers."""
    nodes, pods = draw(parts(("whole", "replicas", "mig_single")))
    node = nodes[0]
    concerned = on(pods, node)
    assume(concerned)
    change = draw(
        st.sampled_from(
            (
                {"nvidia.com/gpu.replicas": "6"},
                {"nvidia.com/gpu.count": "3"},
                {"nvidia.com/gpu.product": "Tesla-T4"},
                {"cloud.google.com/gke-accelerator": "nvidia-tesla-p100"},
                {"cloud.google.com/gke-accelerator-count": "3"},
                {"karpenter.k8s.aws/instance-gpu-count": "3", "karpenter.k8s.aws/instance-gpu-name": "t4"},
                {"node.kubernetes.io/instance-type": "g4dn.xlarge"},
                {"gpu.nvidia.com/class": "Tesla_V100", "gpu.nvidia.com/count": "3"},
                {
                    "cloud.google.com/gke-max-shared-clients-per-gpu": "5",
                    "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                },
                {"cloud.google.com/gke-gpu-partition-size": "1g.5gb"},
                {"amd.com/gpu.compute-memory-partition": "cpx_nps1"},
                {"nvidia.com/gpu.product": "MIG-INVALID"},
                {"nvidia.com/mig.config.state": "failed", "nvidia.com/mig.config": "all-1g.10gb"},
            )
        )
    )
    node.labels |= change
    fleet = fleet_of(nodes, pods)
    words = (node.name, *change, *change.values(), "contradict", "differ")
    fleet.fault = Fault(
        f"contradiction {sorted(change)}", words, frozenset({len(concerned), 1, node.boards, len(on(pods, *nodes))})
    )
    return fleet


@st.composite
def unknown_resources(draw: st.DrawFn) -> Fleet:
    """Pods ask for a resource that is no GPU of the catalogue."""
    nodes, pods = draw(parts())
    assume(pods)
    resource = draw(st.sampled_from(FOREIGN))
    number = draw(st.integers(1, 3))
    node = nodes[0]
    node.capacity[resource] = "8"
    fleet_before = fleet_of(nodes, pods)
    for i in range(number):
        status = {
            "phase": "Succeeded",
            "startTime": instant(1000),
            "containerStatuses": [terminated("main", 1000, 4600)],
        }
        body = pod_object(f"x-{i}", node.name, 990, [container("main", {resource: "2"})], status)
        pods.append(Pod(f"x-{i}", node, Fraction(2), Fraction(1), body))
    fleet = fleet_of(nodes, pods)
    # Equal is only who warns: nobody can know these hours.
    fleet.gpu_hours, fleet.installed_gpus = Fraction(-1), fleet_before.installed_gpus
    fleet.fault = Fault(
        f"resource {resource}",
        (resource, resource.split("/")[1].removeprefix("mig-")),
        frozenset({number, 8, 2 * number}),
    )
    return fleet


@st.composite
def nodes_gone(draw: st.DrawFn) -> Fleet:
    """The autoscaler removed a node, its pods are still there; or the dump has no nodes at all."""
    nodes, pods = draw(parts())
    everything = draw(st.booleans())
    lost = nodes if everything else [draw(st.sampled_from(nodes))]
    concerned = on(pods, *lost)
    assume(concerned)
    for pod in list(pods):
        if pod in concerned and pod.body["status"]["phase"] == "Running":
            pods.remove(pod)
    concerned = on(pods, *lost)
    assume(concerned)
    for node in lost:
        node.gone = True
    fleet = fleet_of(nodes, pods)
    if len(lost) == len(nodes):
        fleet.installed_gpus = None
    words = ("node", *(n.name for n in lost), *(p.resource for n in lost for p in n.pools))
    kinds = sorted({n.sharing for n in lost})
    resources = [next(iter(c["resources"]["limits"])) for p in concerned for c in p.body["spec"]["containers"][:1]]
    groups = {len(on(concerned, n)) for n in lost} | {resources.count(r) for r in resources}
    groups |= {sum(1 for p in concerned if p.share == s) for s in {p.share for p in concerned}}
    shared = [p for p in concerned if p.share < 1 or (p.node and p.node.sharing != "whole")]
    fleet.fault = Fault(
        f"nodes gone {kinds if len(kinds) == 1 else 'several'}",
        words,
        frozenset({len(concerned), len(shared), len(lost), *groups} - {0}),
    )
    return fleet


@st.composite
def pods_odd(draw: st.DrawFn) -> Fleet:
    """Pods that wait, were evicted, are being deleted, or whose containers left no end."""
    nodes, pods = draw(parts(("whole",)))
    node = nodes[0]
    form = draw(
        st.sampled_from(
            (
                "pending",
                "gated",
                "evicted",
                "evicted_condition",
                "deleting",
                "unknown",
                "admission",
                "finished_without_end",
            )
        )
    )
    start_s = max(f for n in nodes for p in n.pools for f in p.units.free_s)
    assume(start_s + 8000 < SNAPSHOT_S)
    hours: Fraction | None = Fraction(0)
    limits = {"nvidia.com/gpu": "1"}
    status: dict[str, Any] = {
        "startTime": instant(start_s),
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": instant(start_s)}],
    }
    running = [{"name": "main", "ready": True, "state": {"running": {"startedAt": instant(start_s)}}}]
    name: str | None = node.name
    metadata: dict[str, Any] = {}
    if form in ("pending", "gated"):
        reason = "SchedulingGated" if form == "gated" else "Unschedulable"
        waiting = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": instant(start_s)}
        status, name = {"phase": "Pending", "conditions": [waiting]}, None
    elif form == "evicted":
        status, hours = (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource",
                "startTime": instant(start_s),
            },
            None,
        )
    elif form == "evicted_condition":
        ended = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "lastTransitionTime": instant(start_s + 7200),
        }
        status |= {"phase": "Failed", "reason": "Evicted", "conditions": [*status["conditions"], ended]}
        hours = Fraction(2)
    elif form == "deleting":
        metadata = {"deletionTimestamp": instant(SNAPSHOT_S + 30), "deletionGracePeriodSeconds": 30}
        status |= {"phase": "Running", "containerStatuses": running}
        hours = Fraction(SNAPSHOT_S - start_s, 3600)
    elif form == "unknown":
        status |= {"phase": "Unknown", "reason": "NodeLost", "containerStatuses": running}
        hours = None
    elif form == "admission":
        status = {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed",
            "startTime": instant(start_s),
        }
        hours = Fraction(0)
    else:
        status |= {"phase": "Succeeded"}
        hours = None
    body = pod_object("odd", name, start_s, [container("main", limits)], status)
    body["metadata"] |= metadata
    pods.append(Pod("odd", node, Fraction(1), hours or Fraction(0), body))
    fleet = fleet_of(nodes, pods)
    if hours is None:
        fleet.gpu_hours = Fraction(-1)
    fleet.fault = Fault(f"pod {form}", ("odd", "evict", "end", "start", "phase", "unknown"), frozenset({1}))
    return fleet


@st.composite
def mixed_vendors(draw: st.DrawFn) -> Fleet:
    """Labels of another vendor or provider were left on a node."""
    nodes, pods = draw(parts(("whole", "replicas", "mig_mixed", "amd")))
    node = nodes[0]
    assume(on(pods, node))
    left = draw(
        st.sampled_from(
            (
                {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
                {"gpu.nvidia.com/class": "H100_NVLINK_80GB"},
                {"cloud.google.com/gke-accelerator": "nvidia-l4"},
                {"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-32GB"},
                {"nvidia.com/gpu.deploy.device-plugin": "true", "feature.node.kubernetes.io/pci-10de.present": "true"},
                {"karpenter.k8s.aws/instance-gpu-name": "l4"},
                {"accelerator": "nvidia"},
            )
        )
    )
    node.labels = left | node.labels
    fleet = fleet_of(nodes, pods)
    fleet.fault = Fault(
        f"left over {sorted(left)}",
        (node.name, *left, *left.values()),
        frozenset({len(on(pods, node)), 1, node.boards}),
    )
    return fleet


@st.composite
def cpu_only_with_labels(draw: st.DrawFn) -> Fleet:
    """A node whose driver failed has the labels of GPUs and none to allocate."""
    nodes, pods = draw(parts(("whole",)))
    assume(len(nodes) > 1)
    node = nodes[-1]
    assume(not on(pods, node))
    node.capacity = draw(st.sampled_from(({}, {"nvidia.com/gpu": "0"})))
    fleet = fleet_of(nodes, pods)
    fleet.fault = Fault(
        "no device plugin", (node.name, "nvidia.com/gpu", "label", "capacity"), frozenset({1, node.boards})
    )
    return fleet


FAULTS = (
    labels_missing, sharing_labels_missing, labels_contradict, unknown_resources, nodes_gone, pods_odd, mixed_vendors,
    cpu_only_with_labels,
)  # fmt: skip


@st.composite
def faulty_kubernetes_fleets(draw: st.DrawFn) -> Fleet:
    """A dump with one fault."""
    return draw(FAULTS[draw(st.integers(0, len(FAULTS) - 1))]())
