"""Forms of sharing beyond labels: device plugins of other makers, annotations, claims of DRA, slices sold by clouds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.ingest.blind_fleets.kubernetes import instant
from tests.ingest.blind_fleets.kubernetes_pods import container, pod_object

HBM3 = "NVIDIA-H100-80GB-HBM3"
INSTANCE = "node.kubernetes.io/instance-type"


@dataclass(frozen=True)
class Form:
    """A node and a pod on it: what the pod asks for is ``share`` of a board."""

    share: Fraction
    boards: int | None
    capacity: dict[str, str]
    limits: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    node_notes: dict[str, str] = field(default_factory=dict)
    pod_notes: dict[str, str] = field(default_factory=dict)
    may_warn: tuple[str, ...] = ()
    objects: Callable[[str, str], list[dict[str, Any]]] | None = None
    change: Callable[[dict[str, Any]], None] | None = None


def register(memory_mib: int, boards: int) -> str:
    """Boards of a node as HAMi writes them."""
    return ":".join(f"GPU-{i},10,{memory_mib},100,NVIDIA-{HBM3},0,true" for i in range(boards)) + ":"


def register_json(memory_mib: int, boards: int) -> str:
    """Boards of a node as later versions of HAMi write them."""
    entry = {
        "count": 10,
        "devmem": memory_mib,
        "devcore": 100,
        "type": f"NVIDIA-{HBM3}",
        "numa": 0,
        "mode": "hami-core",
        "health": True,
    }
    return json.dumps([{"id": f"GPU-{i}", "index": i, **entry} for i in range(boards)])


def reservation(node: str, name: str) -> list[dict[str, Any]]:
    """The pod with which KAI takes the board that its fractions share: no job."""
    status = {
        "phase": "Running",
        "startTime": instant(0),
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": instant(0)}}}],
    }
    body = pod_object(f"gpu-reservation-{name}", node, 0, [container("main", {"nvidia.com/gpu": "1"})], status)
    body["metadata"]["namespace"] = "kai-resource-reservation"
    return [body]


def slice_of(node: str, driver: str, devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The devices of a node as a driver of DRA lists them."""
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": spec,
    }


def gpu_device(index: int) -> dict[str, Any]:
    """A whole board in a ResourceSlice of NVIDIA."""
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "uuid": {"string": f"GPU-{index}"},
    }
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": "81559Mi"}}}


def mig_device(index: int, number: int, profile: str) -> dict[str, Any]:
    """An instance in a ResourceSlice of NVIDIA."""
    attributes = {"type": {"string": "mig"}, "profile": {"string": profile}, "parentUUID": {"string": f"GPU-{index}"}}
    attributes |= {"productName": {"string": "NVIDIA H100 80GB HBM3"}, "uuid": {"string": f"MIG-{index}-{number}"}}
    return {"name": f"gpu-{index}-mig-{number}", "attributes": attributes, "capacity": {"memory": {"value": "9856Mi"}}}


def claim(
    name: str, node: str, device_class: str, driver: str, devices: list[str], admin: bool = False
) -> dict[str, Any]:
    """An allocated claim."""
    exactly: dict[str, Any] = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": len(devices)}
    if admin:
        exactly["adminAccess"] = True
    results = [
        {"request": "g", "driver": driver, "pool": node, "device": d, **({"adminAccess": True} if admin else {})}
        for d in devices
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"c-{name}", "namespace": "lab", "creationTimestamp": instant(0)},
        "spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": name}],
        },
    }


def uses_claim(body: dict[str, Any]) -> None:
    """Let the pod use the claim of its own name."""
    body["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": f"c-{body['metadata']['name']}"}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}


def whole_claim(count: int, admin: bool = False) -> Callable[[str, str], list[dict[str, Any]]]:
    """Claims of whole boards."""
    return lambda node, name: [
        claim(name, node, "gpu.nvidia.com", "gpu.nvidia.com", [f"gpu-{i}" for i in range(count)], admin)
    ]


def sidecar(body: dict[str, Any]) -> None:
    """Add an init container that runs as long as the pod, with a GPU of its own."""
    body["spec"]["initContainers"] = [{**container("side", {"nvidia.com/gpu": "1"}), "restartPolicy": "Always"}]


def second_container(body: dict[str, Any]) -> None:
    """Add a container with a GPU of its own."""
    body["spec"]["containers"].append(container("more", {"nvidia.com/gpu": "1"}))
