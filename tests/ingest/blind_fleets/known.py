"""Inputs that were silently wrong, each with its truth; of those not repaired a test fails as soon as one is right."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from tests.ingest.blind_fleets.kubernetes import Node, discovery_labels, instant, node_object
from tests.ingest.blind_fleets.kubernetes_pods import container, pod_object, terminated
from tests.ingest.blind_fleets.kubernetes_shares import HBM3, claim, gpu_device, mig_device, slice_of
from tests.ingest.blind_fleets.truth import Fault, Fleet

SACCT = "JobID|User|Account|Partition|State|Submit|Start|End|NodeList|AllocTRES"
WHOLE = {"nvidia.com/gpu": "1"}


def sacct_row(job: int, node: str, tres: str, begin_s: int = 0, end_s: int = 3600) -> str:
    """One job that ended, from the beginning of March."""
    times = "|".join(str(1_772_410_000 + seconds) for seconds in (begin_s, begin_s, end_s))
    return f"{job}|u1|optics|gpu|COMPLETED|{times}|{node}|cpu=8,{tres},node=1"


def slurm(rows: list[str], nodes: dict[str, str], gpu_hours: int, gpus: int, fault: Fault | None = None) -> Fleet:
    """A cluster of Slurm by hand."""
    listed = "\n\n".join(f"NodeName={name} Arch=x86_64\n   Gres={gres}" for name, gres in nodes.items())
    files = {"sacct.txt": "\n".join([SACCT, *rows]) + "\n", "nodes.txt": listed + "\n"}
    return Fleet(files, Fraction(gpu_hours), gpus, fault)


def node(name: str, labels: dict[str, str], capacity: dict[str, str], seen_s: int = 172_800) -> dict[str, Any]:
    """A node by hand, with the second of its last heartbeat."""
    body = node_object(Node(name, "", "", 0, labels, capacity, []))
    body["status"]["conditions"][0]["lastHeartbeatTime"] = instant(seen_s)
    return body


def pod(name: str, limits: dict[str, str], start_s: int, end_s: int | None, owner: str = "") -> dict[str, Any]:
    """A pod on node n1 that ended, or runs."""
    running = {"name": "main", "state": {"running": {"startedAt": instant(start_s)}}}
    ends = [terminated("main", start_s, end_s) if end_s is not None else running]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": instant(start_s)}
    status = {"phase": "Running" if end_s is None else "Succeeded", "startTime": instant(start_s)}
    body = pod_object(
        name,
        "n1",
        start_s,
        [container("main", limits)],
        {**status, "conditions": [scheduled], "containerStatuses": ends},
    )
    if owner:
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-{owner}", "controller": True}
        body["metadata"]["ownerReferences"] = [reference]
    return body


def claiming_pod(name: str, source: dict[str, str], start_s: int, end_s: int) -> dict[str, Any]:
    """A pod that uses a claim, or one made from a template."""
    body = pod(name, {}, start_s, end_s)
    body["spec"]["resourceClaims"] = [{"name": "g", **source}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}
    return body


def dump(*items: dict[str, Any]) -> str:
    """Objects as kubectl prints them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=1)


def template(device_class: str) -> dict[str, Any]:
    """A template of claims for one device of a class."""
    request = {"name": "g", "exactly": {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}}
    metadata = {"name": "t", "namespace": "lab"}
    spec = {"spec": {"devices": {"requests": [request]}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def job(name: str, pods: int, start_s: int, end_s: int) -> dict[str, Any]:
    """A Job that is complete, of pods of two GPUs."""
    pod_spec = {"containers": [container("main", {"nvidia.com/gpu": "2"})], "restartPolicy": "Never"}
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": instant(end_s)}
    status = {
        "startTime": instant(start_s),
        "completionTime": instant(end_s),
        "succeeded": pods,
        "conditions": [complete],
    }
    metadata = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "creationTimestamp": instant(start_s)}
    spec = {"parallelism": pods, "completions": pods, "template": {"metadata": {}, "spec": pod_spec}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec, "status": status}


def workload(owner: str, admitted_s: int, finished_s: int) -> dict[str, Any]:
    """The Workload that Kueue keeps of a Job of one pod of two GPUs."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": instant(s), "reason": kind, "message": ""}
        for kind, s in (("QuotaReserved", admitted_s), ("Admitted", admitted_s), ("Finished", finished_s))
    ]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-{owner}", "controller": True}
    metadata = {
        "name": f"job-{owner}-1a2b3",
        "namespace": "lab",
        "uid": f"w-{owner}",
        "creationTimestamp": instant(admitted_s),
    }
    pod_set = {
        "name": "main",
        "count": 1,
        "template": {"spec": {"containers": [container("main", {"nvidia.com/gpu": "2"})]}},
    }
    given = {
        "name": "main",
        "count": 1,
        "flavors": {"nvidia.com/gpu": "h100"},
        "resourceUsage": {"nvidia.com/gpu": "2"},
    }
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {**metadata, "ownerReferences": [reference]},
        "spec": {"active": True, "queueName": "main", "podSets": [pod_set]},
        "status": {"admission": {"clusterQueue": "main", "podSetAssignments": [given]}, "conditions": conditions},
    }


NODE = node("n1", {**discovery_labels(HBM3, 8, 81559)}, {"nvidia.com/gpu": "8"})
BARE = node("n1", {}, {})
BOARDS = slice_of("n1", "gpu.nvidia.com", [gpu_device(i) for i in range(8)])
INSTANCES = slice_of("n1", "gpu.nvidia.com", [mig_device(0, i, "1g.10gb") for i in range(7)])
SHARED_BY_4 = {
    "nvidia.com/gpu.product": f"{HBM3}-SHARED",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
FROM_TEMPLATE = {"resourceClaimTemplateName": "t"}
SHARED = {"resourceClaimName": "c-p1"}
LATE_POD = pod("j1-xyz", {"nvidia.com/gpu": "2"}, 1860, 3660, "j1")

KNOWN_SLURM = {
    # One job of 8 on a node of 8: set apart because only another node spells the model in full.
    "two spellings of one model": slurm(
        [
            sacct_row(1, "a1", "gres/gpu:a100=6,gres/gpu=6"),
            sacct_row(2, "a2", "gres/gpu:nvidia_a100-sxm4-40gb=1,gres/gpu=1"),
        ],
        {"a1": "gpu:a100:8", "a2": "gpu:nvidia_a100-sxm4-40gb:2"},
        7,
        10,
    ),
    # gres.conf(5) lists several types a node; each type of this one is held as often as it is there.
    "two types on one node, one of them elsewhere": slurm(
        [sacct_row(1, "a1", "gres/gpu:v100=2,gres/gpu=2"), sacct_row(2, "a1", "gres/gpu:h100=2,gres/gpu=2")],
        {"a1": "gpu:v100:2,gpu:h100:2", "a2": "gpu:h100:1"},
        4,
        5,
    ),
    # Accounting knows the node; the list of today does not.
    "node retired, another of its type kept": slurm(
        [sacct_row(1, "a1", "gres/gpu:a100=4,gres/gpu=4"), sacct_row(2, "a2", "gres/gpu:a100=4,gres/gpu=4")],
        {"a1": "gpu:a100:4"},
        8,
        4,
        Fault("node retired", ("a2", "node list", "not in the"), frozenset({1})),
    ),
    # The list of today says neither that the node was there nor how many shares its GPUs had.
    "shares on a node that is retired": slurm(
        [
            sacct_row(1, "a1", "gres/gpu:a100=4,gres/gpu=4"),
            sacct_row(2, "a2", "gres/gpu:a100=4,gres/gpu=4"),
            sacct_row(3, "a2", "gres/mps=25"),
        ],
        {"a1": "gpu:a100:4"},
        9,
        4,
        Fault("node retired", ("a2", "node list"), frozenset({2})),
    ),
    # All jobs are set apart: a traceback instead of a sentence.
    "every job larger than the inventory": slurm(
        [sacct_row(1, "a2", "gres/gpu:h100=8,gres/gpu=8")],
        {"a1": "gpu:h100:2"},
        8,
        2,
        Fault("too large", ("a2", "node list", "not in the", "quarantined"), frozenset({1})),
    ),
    # gres.conf(5) lets shards have types: 8 on two A100, 8 on one H100.
    "shards by type on a node of two types": slurm(
        [sacct_row(1, "a1", "gres/shard:a100=4,gres/shard=4")],
        {"a1": "gpu:a100:2,gpu:h100:1,shard:a100:8,shard:h100:8"},
        1,
        3,
        Fault("typed shards", ("shard",), frozenset({1})),
    ),
    # No server has 64 boards: slurmd lists each partition of MI300X in CPX mode as a GPU.
    "64 MI300X on one node": slurm(
        [sacct_row(1, "a1", "gres/gpu:mi300x=1,gres/gpu=1", 0, 28_800)],
        {"a1": "gpu:mi300x:64"},
        1,
        8,
        Fault("partitions", ("mi300x", "a1"), frozenset({1, 64})),
    ),
}


KNOWN_KUBERNETES = {
    # Pods may share a claim: the board is held until the last of them ends.
    "two pods share one claim": Fleet(
        {
            "dump.json": dump(
                BARE,
                BOARDS,
                claim("p1", "n1", "gpu.nvidia.com", "gpu.nvidia.com", ["gpu-0"]),
                claiming_pod("p1", SHARED, 0, 3600),
                claiming_pod("p2", SHARED, 0, 7200),
            )
        },
        Fraction(2),
        8,
    ),
    # The claims of ended pods are deleted; the class is of MIG devices, and the node has 1g.10gb alone.
    "template of a MIG device": Fleet(
        {"dump.json": dump(BARE, INSTANCES, template("mig.nvidia.com"), claiming_pod("p1", FROM_TEMPLATE, 0, 25_200))},
        Fraction(1),
        1,
        Fault("MIG class", ("mig.nvidia.com", "p1"), frozenset({1})),
    ),
    # kubectl get pods,jobs,nodes has no claims: the pod is left out without a word.
    "claims not in the dump": Fleet(
        {"dump.json": dump(NODE, claiming_pod("p1", FROM_TEMPLATE, 0, 7200), pod("p2", WHOLE, 0, 3600))},
        Fraction(3),
        8,
        Fault("no claims", ("resourceclaim", "claim", "p1"), frozenset({1})),
    ),
    # A pod of the first dump that is not in the second has ended in between.
    "pod gone in a later dump": Fleet(
        {
            "dump-1.json": dump(
                node("n1", NODE["metadata"]["labels"], {"nvidia.com/gpu": "8"}, 600), pod("p1", WHOLE, 0, None)
            ),
            "dump-2.json": dump(
                node("n1", NODE["metadata"]["labels"], {"nvidia.com/gpu": "8"}, 86_400),
                pod("p2", WHOLE, 82_800, 86_400),
            ),
        },
        Fraction(600, 3600) + 1,
        8,
        Fault("pod gone", ("p1", "gone", "end"), frozenset({1})),
    ),
    # Quota was reserved half an hour before the pod got its node.
    "pod starts long after its workload was admitted": Fleet(
        {"dump.json": dump(NODE, job("j1", 1, 60, 3661), workload("j1", 60, 3661), LATE_POD)}, Fraction(1), 8
    ),
    # Pods on removed nodes are collected; status.succeeded still counts them.
    "some pods of a Job collected": Fleet(
        {
            "dump.json": dump(
                NODE, job("j1", 4, 0, 3600), *(pod(f"j1-{i}", {"nvidia.com/gpu": "2"}, 0, 3600, "j1") for i in range(2))
            )
        },
        Fraction(8),
        8,
        Fault("pods collected", ("j1", "pods are gone"), frozenset({1, 2})),
    ),
    # What the node was in the first dump holds for the pods of the first dump.
    "GPUs shared since the second dump": Fleet(
        {
            "dump-1.json": dump(
                node("n1", NODE["metadata"]["labels"], {"nvidia.com/gpu": "8"}, 7200),
                pod("p1", {"nvidia.com/gpu": "8"}, 0, 3600),
            ),
            "dump-2.json": dump(
                node("n1", {**NODE["metadata"]["labels"], **SHARED_BY_4}, {"nvidia.com/gpu": "32"}, 14_400),
                pod("p2", WHOLE, 10_800, 14_400),
            ),
        },
        Fraction(33, 4),
        8,
        Fault("shared later", ("n1", "replicas"), frozenset({1, 2})),
    ),
}
