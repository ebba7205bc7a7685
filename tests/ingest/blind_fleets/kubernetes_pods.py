"""Pods on nodes of Kubernetes, and the fleets that they make."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from tests.ingest.blind_fleets.kubernetes import (
    SHAPES,
    SHARINGS,
    SNAPSHOT_S,
    Node,
    Pool,
    gpu_node,
    instant,
    node_object,
)
from tests.ingest.blind_fleets.truth import Fleet

PROVIDERS = tuple(SHAPES)


@dataclass
class Pod:
    """A pod, the GPU-hours that it holds, and its object."""

    name: str
    node: Node | None
    share: Fraction
    hours: Fraction
    body: dict[str, Any]
    extra: list[dict[str, Any]] = field(default_factory=list)


def requests(pool: Pool, amount: int) -> dict[str, str]:
    """Limits of a container that asks for units of a pool."""
    if pool.resource == "aliyun.com/gpu-mem":
        return dict(pool.extra)
    return {pool.resource: str(amount), **pool.extra}


def container(name: str, limits: dict[str, str]) -> dict[str, Any]:
    """A container with equal requests and limits."""
    return {"name": name, "image": "x/y:1", "resources": {"limits": limits, "requests": dict(limits)} if limits else {}}


def terminated(name: str, start_s: int, end_s: int, failed: bool = False) -> dict[str, Any]:
    """Status of a container that ended."""
    state = {"reason": "Error" if failed else "Completed", "exitCode": int(failed)}
    return {
        "name": name,
        "state": {"terminated": {**state, "startedAt": instant(start_s), "finishedAt": instant(end_s)}},
    }


def pod_object(
    name: str, node: str | None, created_s: int, containers: list[dict[str, Any]], status: dict[str, Any]
) -> dict[str, Any]:
    """A pod as the API server prints it."""
    spec: dict[str, Any] = {"containers": containers, "restartPolicy": "Never"}
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "creationTimestamp": instant(created_s)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


@st.composite
def gpu_pod(draw: st.DrawFn, number: int, nodes: list[Node]) -> Pod | None:
    """A pod that holds GPUs on one of the nodes, or None where none is left before the snapshot."""
    node = draw(st.sampled_from(nodes))
    pool = draw(st.sampled_from(node.pools))
    name = f"p-{number:03d}"
    created_s = draw(st.integers(0, 60_000))
    run_s = draw(st.integers(1, 40_000))
    memory = pool.resource == "aliyun.com/gpu-mem"  # a pod asks for memory of one GPU
    shared = memory or (
        pool.share < 1 and not pool.resource.startswith("nvidia.com/mig") and node.sharing not in ("mig_single", "amd")
    )
    amount = 1 if shared else draw(st.integers(1, len(pool.units.shares)))
    indices = sorted(range(len(pool.units.shares)), key=lambda i: pool.units.free_s[i])[:amount]
    start_s = pool.units.take(indices, created_s + draw(st.integers(0, 30)), run_s)
    if start_s >= SNAPSHOT_S:
        return None
    held_s = min(run_s, SNAPSHOT_S - start_s)
    share = pool.share * amount
    containers = [container("main", requests(pool, amount))]
    if draw(st.integers(0, 4)) == 0:
        containers.append(container("log", {}))
    status: dict[str, Any] = {
        "startTime": instant(start_s),
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": instant(start_s)}],
    }
    if start_s + run_s > SNAPSHOT_S:
        running = [
            {"name": c["name"], "ready": True, "state": {"running": {"startedAt": instant(start_s)}}}
            for c in containers
        ]
        status |= {"phase": "Running", "containerStatuses": running}
    else:
        failed = draw(st.integers(0, 3)) == 0
        ends = [terminated("main", start_s, start_s + run_s, failed)]
        # A helper that ends earlier frees no GPU.
        ends += [terminated("log", start_s, start_s + run_s // 2)] if len(containers) > 1 else []
        status |= {"phase": "Failed" if failed else "Succeeded", "containerStatuses": ends}
    body = pod_object(name, node.name, created_s, containers, status)
    if draw(st.integers(0, 4)) == 0 and not shared:
        body["spec"]["initContainers"] = [container("fetch", requests(pool, draw(st.integers(1, amount))))]
    extra = []
    if draw(st.integers(0, 4)) == 0:
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": f"job-{number}",
            "uid": f"uid-job-{number}",
            "controller": True,
        }
        body["metadata"]["ownerReferences"] = [owner]
        body["metadata"]["labels"] = {"job-name": f"job-{number}", "batch.kubernetes.io/job-name": f"job-{number}"}
        template = {"metadata": {}, "spec": {"containers": containers, "restartPolicy": "Never"}}
        job_status: dict[str, Any] = {"startTime": instant(created_s)}
        if status["phase"] == "Succeeded":
            job_status |= {"succeeded": 1, "completionTime": instant(start_s + run_s + 2)}
        metadata = {
            "name": f"job-{number}",
            "namespace": "lab",
            "uid": f"uid-job-{number}",
            "creationTimestamp": instant(created_s),
        }
        spec = {"parallelism": 1, "completions": 1, "template": template}
        extra = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec, "status": job_status}]
    return Pod(name, node, share, share * Fraction(held_s, 3600), body, extra)


def cpu_pod(number: int) -> Pod:
    """A pod without GPUs that nobody counts."""
    end = terminated("main", 100, 900)
    status = {"phase": "Succeeded", "startTime": instant(100), "containerStatuses": [end]}
    return Pod(
        f"c-{number}",
        None,
        Fraction(0),
        Fraction(0),
        pod_object(f"c-{number}", None, 90, [container("main", {"cpu": "1"})], status),
    )


def fleet_of(nodes: list[Node], pods: list[Pod]) -> Fleet:
    """The dump and the truth of a cluster."""
    items = [node_object(n) for n in nodes if not n.gone]
    items += [o for pod in pods for o in (pod.body, *pod.extra)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=0)
    hours = sum((p.hours for p in pods), Fraction(0))
    notes = [f"{n.name}:{n.provider}/{n.sharing}" for n in nodes]
    return Fleet({"dump.json": text}, hours, sum(n.boards for n in nodes if not n.gone), notes=notes)


@st.composite
def parts(
    draw: st.DrawFn, sharings: tuple[str, ...] = SHARINGS, providers: tuple[str, ...] = PROVIDERS
) -> tuple[list[Node], list[Pod]]:
    """Nodes of one provider, and pods."""
    provider = draw(st.sampled_from(providers))
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        sharing = draw(st.sampled_from(sharings))
        nodes.append(draw(gpu_node(f"{provider}-{number}", provider, sharing)))
    pods = [draw(gpu_pod(number, nodes)) for number in range(draw(st.integers(1, 10)))]
    return nodes, [p for p in pods if p is not None]


@st.composite
def kubernetes_fleets(draw: st.DrawFn) -> Fleet:
    """Clusters in documented forms, without a fault."""
    nodes, pods = draw(parts())
    return fleet_of(nodes, pods)


Mutation = Callable[[st.DrawFn, list[Node], list[Pod]], Fleet]
