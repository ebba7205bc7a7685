"""The inventory of a Kubernetes cluster, with devices of Dynamic Resource Allocation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from fractions import Fraction

import polars as pl

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import TABLES, Inventory
from gpuplanner.hardware.catalog import boards_called, resource_words
from gpuplanner.ingest.kubernetes.api_objects import (
    GPU_LIKE,
    Object,
    count,
    instant,
    name_of,
    part,
    parts,
    text,
)
from gpuplanner.ingest.kubernetes.node_gpus import CONFIG, NodeGpus, gpus_of_node, partitions_in_mode

PROFILE_SELECTOR = re.compile(r"\.profile\s*==\s*['\"]([^'\"]+)['\"]")
MIG_SELECTOR = re.compile(r"\.type\s*==\s*['\"]mig['\"]")
NVIDIA_DRIVER = "gpu.nvidia.com"
"""Driver whose devices that are parts of a GPU have ``mig`` in their names (NVIDIA/k8s-dra-driver-gpu)."""
QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")

FULL, INSTANCES, NO_GPU, UNKNOWN = "full GPUs", "MIG instances", "no GPU", "not known"
"""What the devices of a class are."""


@dataclass(frozen=True)
class ClaimedDevice:
    """One device that a driver offers.

    - ``key``: Driver, pool and name.
    - ``node``: Node that it is on.
    - ``board``: Identity of the GPU that it is, or is part of; None for a part that does not say.
    - ``model``, ``profile``: Board; MIG profile, None for a whole GPU.
    - ``parts``: Devices of an AMD GPU in its partition mode, of which this is one; 0 if their number is not known.
    """

    key: tuple[str, str, str]
    node: str | None
    gpu_model: str | None
    model: str | None
    profile: str | None
    parts: int = 1


@dataclass(frozen=True)
class DeviceClass:
    """What the devices of a class are, by the selectors of its object; the profile where these name one."""

    kind: str
    profile: str | None = None


@dataclass(frozen=True)
class Held:
    """What a claim holds or asks for.

    - ``gpus``: GPUs, or MIG instances; None if their number is not known.
    - ``profile``, ``model``: MIG profile and board, if all devices have the same.
    - ``unread``: Device classes, or drivers, whose devices may be GPUs and are not known.
    - ``classes``: Device classes of GPUs that it asks for, else the drivers of its devices.
    """

    gpus: Fraction | int | None
    profile: str | None
    model: str | None
    unread: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceRequest:
    """Devices of one class that a claim asks for; None as their number: it is not known before allocation."""

    device_class: str
    number: int | None
    profile: str | None


@dataclass(frozen=True)
class DeviceClaim:
    """A ResourceClaim, or the claim that a ResourceClaimTemplate makes for each pod.

    - ``allocated``: Keys of the devices allocated to it, of all drivers; empty while it waits.
    - ``asked``: What it asks for.
    """

    allocated: tuple[tuple[str, str, str], ...]
    asked: tuple[DeviceRequest, ...]


def read_slice(resource_slice: Object) -> Iterator[ClaimedDevice]:
    """Read the GPUs of a ResourceSlice (``resource.k8s.io`` v1beta1, v1beta2 or v1).

    References
    ----------
    NVIDIA/k8s-dra-driver-gpu (types ``gpu`` and ``mig``); ROCm/k8s-gpu-dra-driver deviceinfo.go@2622427 (types
    ``amdgpu`` and ``amdgpu-partition``, with ``partitionProfile`` and ``parentPciAddr``).

    Examples
    --------
    >>> gpu = {"attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}}}
    >>> spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1"}}
    >>> [device.gpu_model for device in read_slice({"spec": spec | {"devices": [{"name": "gpu-0"} | gpu]}})]
    ['GPU-1']
    """
    spec = part(resource_slice, "spec")
    driver = text(spec.get("driver")) or ""
    if driver not in resource_words("dra_driver", "full_gpu"):
        return
    pool, node = text(part(spec, "pool").get("name")) or "", text(spec.get("nodeName"))
    for device in parts(spec, "devices"):
        name = text(device.get("name")) or ""
        basic = part(device, "basic") or device  # v1beta1 wraps what later versions have at the top
        words = {
            key.rpartition("/")[2]: text(value.get("string"))
            for key, value in part(basic, "attributes").items()
            if isinstance(value, dict)
        }
        kind, model = words.get("type"), words.get("productName")
        if kind not in (None, "gpu", "mig", "amdgpu", "amdgpu-partition"):
            continue
        gpu_model: str | None = words.get("uuid") or f"{pool}/{name}"
        pieces = 1
        if kind == "mig":
            gpu_model = words.get("parentUUID")
        elif kind == "amdgpu-partition":
            pieces = partitions_in_mode(boards_called(model or ""), words.get("partitionProfile") or "")
            gpu_model = f"{pool}/{words['parentPciAddr']}" if words.get("parentPciAddr") else None
        yield ClaimedDevice(
            key=(driver, pool, name),
            node=node,
            gpu_model=gpu_model,
            model=model,
            profile=words.get("profile") if kind == "mig" else None,
            parts=pieces,
        )


def read_class(spec: Object) -> DeviceClass:
    """Read the specification of a DeviceClass: GPUs where its selectors name a driver of GPUs.

    Examples
    --------
    >>> cel = {"expression": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"}
    >>> read_class({"selectors": [{"cel": cel}]}).kind
    'MIG instances'
    """
    words = " ".join(text(part(each, "cel").get("expression")) or "" for each in parts(spec, "selectors"))
    named = set(QUOTED.findall(words))
    if not named.isdisjoint(resource_words("dra_driver", "full_gpu")):
        profile = PROFILE_SELECTOR.search(words)
        instances = profile or MIG_SELECTOR.search(words)
        return DeviceClass(INSTANCES if instances else FULL, profile[1] if profile else None)
    drivers = re.findall(r"\.driver\s*==\s*['\"]([^'\"]+)['\"]", words)
    return DeviceClass(NO_GPU if drivers and not any(map(GPU_LIKE.search, drivers)) else UNKNOWN)


def read_claim(spec: Object, status: Object) -> DeviceClaim:
    """Read the specification of a claim or template, and the status of a claim.

    Examples
    --------
    >>> exactly = {"deviceClassName": "gpu.nvidia.com", "count": 2}
    >>> read_claim({"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}, {}).asked
    (DeviceRequest(device_class='gpu.nvidia.com', number=2, profile=None),)
    """
    listed = parts(part(part(status, "allocation"), "devices"), "results")
    results = [
        (str(each["driver"]), text(each.get("pool")) or "", text(each.get("device")) or "")
        for each in listed
        if text(each.get("driver")) and not each.get("adminAccess")
    ]
    asked = []
    for request in parts(part(spec, "devices"), "requests"):
        # v1beta1 has these fields at the top; of alternatives the first says what class of devices it is about.
        choices = parts(request, "firstAvailable")
        exactly = choices[0] if choices else part(request, "exactly") or request
        if exactly.get("adminAccess"):
            continue
        open_number = bool(choices) or exactly.get("allocationMode") == "All"
        number = None if open_number else count(exactly.get("count", 1), "count")
        asked.append(DeviceRequest(text(exactly.get("deviceClassName")) or "", number, _profile(exactly)))
    return DeviceClaim(tuple(results), tuple(asked))


def class_of(name: str, classes: Mapping[str, DeviceClass]) -> DeviceClass:
    """What the devices of a class are: as the catalogue says, else as its object in the dump does.

    Examples
    --------
    >>> class_of("mig.nvidia.com", {}).kind, class_of("compute-domain-daemon.nvidia.com", {}).kind
    ('MIG instances', 'no GPU')
    """
    for role, kind in (("full_gpu", FULL), ("mig", INSTANCES), ("no_device", NO_GPU)):
        if any(fnmatchcase(name, pattern) for pattern in resource_words("device_class", role)):
            return DeviceClass(kind)
    return classes.get(name, DeviceClass(UNKNOWN))


def _profile(request: Object) -> str | None:
    """MIG profile that a request selects."""
    for selector in parts(request, "selectors"):
        match = PROFILE_SELECTOR.search(text(part(selector, "cel").get("expression")) or "")
        if match:
            return match[1]
    return None


def held(
    claim: DeviceClaim,
    devices: Mapping[tuple[str, str, str], ClaimedDevice],
    classes: Mapping[str, DeviceClass],
) -> Held:
    """What a claim holds, or asks for while it holds nothing.

    Parameters
    ----------
    claim : DeviceClaim
        The claim.
    devices : mapping
        Key → device of the ResourceSlices in the dump.
    classes : mapping
        Name → device class of the dump.
    """
    asked = [(request, class_of(request.device_class, classes)) for request in claim.asked]
    of_gpus = [(request, kind) for request, kind in asked if kind.kind in (FULL, INSTANCES)]
    profiles = {request.profile or kind.profile for request, kind in of_gpus}
    profile = profiles.pop() if len(profiles) == 1 else None
    named = {request.device_class for request, _ in of_gpus} or {driver for driver, _, _ in claim.allocated}
    class_names = tuple(sorted(named))
    if not claim.allocated:
        unknown = profile is None and any(kind.kind == INSTANCES for _, kind in of_gpus)
        if unknown:
            offered = {device.profile for device in devices.values() if device.profile}
            profile = offered.pop() if len(offered) == 1 else None
        unread = tuple(sorted({request.device_class for request, kind in asked if kind.kind == UNKNOWN}))
        numbers = [request.number for request, _ in of_gpus]
        known = [number for number in numbers if number is not None]
        sure = not unread and len(known) == len(numbers) and not (unknown and profile is None)
        gpus = sum(known) if sure else None
        return Held(gpus, profile, None, unread, class_names)
    drivers = resource_words("dra_driver", "full_gpu")
    mine = [key for key in claim.allocated if key[0] in drivers]
    others = {driver for driver, _, _ in claim.allocated if driver not in drivers}
    unread = tuple(sorted(filter(GPU_LIKE.search, others)))
    known_devices = [devices.get(key) for key in mine]
    found = {device.profile if device else profile for device in known_devices}
    models = {device.model for device in known_devices if device}
    instances = any(kind.kind == INSTANCES for _, kind in asked)
    shares = [
        device.parts if device else _unlisted_parts(key, profile, instances=instances)
        for key, device in zip(mine, known_devices, strict=True)
    ]
    return Held(
        gpus=None if unread or 0 in shares else sum((Fraction(1, share) for share in shares), Fraction(0)),
        profile=found.pop() if len(found) == 1 else None,
        model=models.pop() if len(models) == 1 else None,
        unread=unread,
        classes=class_names,
    )


def _unlisted_parts(key: tuple[str, str, str], profile: str | None, *, instances: bool) -> int:
    """Parts of which a device is one that no ResourceSlice lists any more; 0 where it may be a part of a GPU.

    Parameters
    ----------
    key : tuple of str
        Driver, pool and name of the device.
    profile : str or None
        MIG profile that its claim selects.
    instances : bool
        Whether its claim asks for a class of MIG instances.
    """
    is_part = instances or "mig" in key[2] or key[0] != NVIDIA_DRIVER
    return 0 if is_part and profile is None else 1


STATE = "nvidia.com/mig.config.state"
CLIQUE = "nvidia.com/gpu.clique"

CLOSING = frozenset(
    f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable", "out-of-service")
)
"""Taints of a node that takes nothing new: Kubernetes, Well-Known Labels, Annotations and Taints."""

OWNERSHIP = {
    ("karpenter.sh/capacity-type", "spot"): "spot",
    ("karpenter.sh/capacity-type", "on-demand"): "on_demand",
    ("karpenter.sh/capacity-type", "reserved"): "reserved",
    ("eks.amazonaws.com/capacityType", "SPOT"): "spot",
    ("eks.amazonaws.com/capacityType", "ON_DEMAND"): "on_demand",
    ("cloud.google.com/gke-spot", "true"): "spot",
    ("kubernetes.azure.com/scalesetpriority", "spot"): "spot",
}
"""Label and value of cloud nodes → how they are paid for."""


@dataclass(frozen=True)
class Node(NodeGpus):
    """What one node tells, beside its GPUs.

    - ``name``: Name of the node.
    - ``config_state``: State of the MIG configuration, where it is not done.
    - ``closed``, ``since``: Why it takes no new jobs: ``"cordoned"``, ``"not ready"``; None if it does. And since when,
      where a taint or a condition says it.
    - ``domain``, ``ownership``: Fabric clique; how the node is paid for.
    - ``installed``, ``seen``: When the node joined, and when it was last heard of.
    - ``labels``: Its labels, by which flavors of Kueue select it.
    """

    name: str
    config_state: str | None = None
    closed: str | None = None
    since: datetime | None = None
    domain: str | None = None
    ownership: str | None = None
    installed: datetime | None = None
    seen: datetime | None = None
    labels: Object = field(default_factory=dict)


def read_node(node: Object) -> Node:
    """Read an object of kind Node.

    Examples
    --------
    >>> labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    >>> node = read_node({"metadata": {"name": "n1", "labels": labels}})
    >>> node.gpus, node.model
    (8, 'NVIDIA-H100-80GB-HBM3')
    """
    about, status = part(node, "metadata"), part(node, "status")
    labels = part(about, "labels")
    state = text(labels.get(STATE))
    beats = [instant(each, "lastHeartbeatTime") for each in parts(status, "conditions")]
    capacity, allocatable = part(status, "capacity"), part(status, "allocatable")
    gpus = gpus_of_node(labels, part(about, "annotations"), capacity, allocatable)
    closed, since = _closed(node)
    return Node(
        **vars(gpus),
        name=name_of(node),
        config_state=state if text(labels.get(CONFIG)) and state != "success" else None,
        closed=closed,
        since=since,
        domain=text(labels.get(CLIQUE)),
        ownership=next((kind for (key, value), kind in OWNERSHIP.items() if labels.get(key) == value), None),
        installed=instant(about, "creationTimestamp"),
        seen=max((beat for beat in beats if beat), default=None),
        labels=labels,
    )


def _closed(node: Object) -> tuple[str | None, datetime | None]:
    """Why a node takes no new jobs, and since when; it still has its GPUs."""
    spec = part(node, "spec")
    words = ["cordoned"] if spec.get("unschedulable") is True else []
    told = [each for each in parts(part(node, "status"), "conditions") if each.get("type") == "Ready"]
    since = [instant(each, "timeAdded") for each in parts(spec, "taints") if each.get("key") in CLOSING]
    if told and told[-1].get("status") != "True":
        words.append("not ready")
        since.append(instant(told[-1], "lastTransitionTime"))
    known = min((each for each in since if each), default=None)
    return ", ".join(words) or None, known if words else None


def inventory_of(nodes: Mapping[str, Node], devices: Iterable[ClaimedDevice]) -> tuple[pl.DataFrame | None, list[str]]:
    """Inventory of the nodes that have GPUs."""
    boards: dict[str, dict[str, str | None]] = {}
    partitioned: set[str] = set()  # nodes of which a driver offers instances, cut already or on demand
    for device in devices:
        if device.node is not None and device.gpu_model is not None:
            boards.setdefault(device.node, {})[device.gpu_model] = device.model
            if device.profile is not None:
                partitioned.add(device.node)
    rows, unknown = [], []
    for name in sorted({*nodes, *boards}):
        node, listed = nodes.get(name, Node(name)), boards.get(name, {})
        gpus = len(listed) or node.gpus
        if gpus is None:
            unknown.append(name)
        elif gpus:
            models = dict.fromkeys(model for model in listed.values() if model)
            rows.append(
                {
                    "node": name,
                    "gpu_model": node.model or "|".join(models) or None,
                    "gpus": gpus,
                    "nvlink_domain": node.domain,
                    "ownership": node.ownership,
                    "installed": node.installed,
                    "layouts": node.layouts if gpus == node.gpus else None,
                    "mig_enabled": node.mig or name in partitioned,
                }
            )
    if unknown or not rows:
        return None, unknown
    types = {"installed": pl.Datetime("us", "UTC"), "layouts": pl.String()}
    table = pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)
    return conform(table, Inventory, where="nodes"), unknown


def closed_of(nodes: Mapping[str, Node], devices: Iterable[ClaimedDevice]) -> pl.DataFrame | None:
    """GPUs that take nothing new, since when; None where no dump says so.

    Whole nodes that are closed, and GPUs that a node has and does not offer. Where nothing says since when, it is
    since the node was last heard of: before, it may have taken jobs.
    """
    claimed = {device.node for device in devices}
    rows = []
    for name, node in sorted(nodes.items()):
        start = node.since or node.seen
        withheld = None if node.closed else float(node.withheld)
        is_closed = node.closed or (node.withheld and name not in claimed)
        is_known = node.gpus or (node.gpus is None and node.since)
        if is_known and is_closed and start is not None:
            rows.append({"node": name, "start_time": start, "gpus": withheld, "bucket": "down"})
    table = pl.DataFrame(rows, schema_overrides={"gpus": pl.Float64}, infer_schema_length=None)
    return conform(table, TABLES["out_of_service"], where="nodes") if rows else None
