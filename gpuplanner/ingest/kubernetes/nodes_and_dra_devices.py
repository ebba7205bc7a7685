"""Readers for nodes and devices of Dynamic Resource Allocation (DRA), and the inventory made from them."""

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
from gpuplanner.hardware.catalog import list_resource_names, match_gpu_models
from gpuplanner.ingest.kubernetes.api_objects import (
    GPU_LIKE_PATTERN,
    ApiObject,
    get_object,
    get_objects,
    object_name,
    parse_count,
    read_time,
    to_text,
)
from gpuplanner.ingest.kubernetes.node_gpus import NodeGpus, read_node_gpus
from gpuplanner.ingest.kubernetes.node_labels import MIG_CONFIG_LABEL_KEY, partitions_in_mode
from gpuplanner.ingest.source_fields import source_values

MIG_PROFILE_SELECTOR_PATTERN = re.compile(r"\.profile\s*==\s*['\"]([^'\"]+)['\"]")
"""Condition of a CEL selector (DRA) that requires a MIG profile, as in ``.profile == '1g.10gb'``."""

MIG_SELECTOR_PATTERN = re.compile(r"\.type\s*==\s*['\"]mig['\"]")
"""Condition of a CEL selector (DRA) that requires MIG instances: ``.type == 'mig'``."""

NVIDIA_DRA_DRIVER = "gpu.nvidia.com"
"""NVIDIA's DRA driver for GPUs; names of its MIG devices contain ``mig`` (NVIDIA/k8s-dra-driver-gpu)."""
QUOTED_TEXT_PATTERN = re.compile(r"['\"]([^'\"]+)['\"]")
"""A text in quotation marks within a CEL selector (DRA), such as the name of a driver."""

FULL_GPU_DEVICE_CLASS_KIND = "full GPUs"
"""Value of :attr:`DeviceClass.kind`: the devices are full GPUs."""

MIG_DEVICE_CLASS_KIND = "MIG instances"
"""Value of :attr:`DeviceClass.kind`: the devices are MIG instances."""

NO_GPU_DEVICE_CLASS_KIND = "no GPU"
"""Value of :attr:`DeviceClass.kind`: the devices are no GPUs."""

UNKNOWN_DEVICE_CLASS_KIND = "not known"
"""Value of :attr:`DeviceClass.kind`: the devices may be GPUs, which its selectors do not tell."""


@dataclass(frozen=True)
class DraDevice:
    """One GPU, or part of a GPU, that a DRA driver offers in a ResourceSlice.

    - ``key``: Driver, pool and name of the device.
    - ``node``: Node that it is on.
    - ``gpu_id``: Identity of the GPU that it is, or is part of; None for a part without its parent.
    - ``model``, ``profile``: GPU model; MIG profile, None for a full GPU.
    - ``partitions``: Number of partitions of the AMD GPU of which it is one; 1 for other devices, 0 if unknown.
    """

    key: tuple[str, str, str]
    node: str | None
    gpu_id: str | None
    model: str | None
    profile: str | None
    partitions: int = 1


@dataclass(frozen=True)
class DeviceClass:
    """A DeviceClass of DRA: whether it is of full GPUs, MIG instances or no GPUs, their MIG profile and DRA driver."""

    kind: str
    profile: str | None = None
    driver: str | None = None


@dataclass(frozen=True)
class ClaimedGpus:
    """GPUs that are allocated to a ResourceClaim (DRA), or requested by a claim without allocation.

    - ``gpus``: Number of GPUs or MIG instances; None if unknown.
    - ``profile``, ``model``: MIG profile and GPU model, if all devices have the same.
    - ``unread``: Device classes, or drivers, whose devices may be GPUs and are not in the catalogue.
    - ``classes``: Device classes of GPUs that it requests, else the drivers of its devices.
    """

    gpus: Fraction | int | None
    profile: str | None
    model: str | None
    unread: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceRequest:
    """Devices of one DeviceClass that a ResourceClaim requests, and the MIG profile that its selector names, if any.

    Their number is None if it is open until allocation.
    """

    device_class: str
    number: int | None
    profile: str | None


@dataclass(frozen=True)
class DeviceClaim:
    """A ResourceClaim, or the claim that a ResourceClaimTemplate makes for each pod.

    - ``allocated``: Keys of the devices allocated to it, of all drivers; empty while it is pending.
    - ``requests``: Devices that it requests.
    """

    allocated: tuple[tuple[str, str, str], ...]
    requests: tuple[DeviceRequest, ...]


def read_resource_slice(resource_slice: ApiObject) -> Iterator[DraDevice]:
    """Read the GPUs of a ResourceSlice (``resource.k8s.io`` v1beta1, v1beta2 or v1).

    Parameters
    ----------
    resource_slice : mapping
        Object of kind ResourceSlice.

    Yields
    ------
    DraDevice
        Each GPU or part of one; devices of other drivers are left out.

    References
    ----------
    NVIDIA/k8s-dra-driver-gpu (types ``gpu`` and ``mig``); ROCm/k8s-gpu-dra-driver deviceinfo.go@2622427 (types
    ``amdgpu`` and ``amdgpu-partition``, with ``partitionProfile`` and ``parentPciAddr``).

    Examples
    --------
    >>> gpu = {"attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}}}
    >>> spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1"}}
    >>> [device.gpu_id for device in read_resource_slice({"spec": spec | {"devices": [{"name": "gpu-0"} | gpu]}})]
    ['GPU-1']
    """
    spec = get_object(resource_slice, "spec")
    driver = to_text(spec.get("driver")) or ""
    if driver not in list_resource_names("dra_driver", "full_gpu"):
        return
    pool, node = to_text(get_object(spec, "pool").get("name")) or "", to_text(spec.get("nodeName"))
    for device in get_objects(spec, "devices"):
        name = to_text(device.get("name")) or ""
        basic = get_object(device, "basic") or device  # v1beta1 wraps what later versions have at the top
        attributes = {
            key.rpartition("/")[2]: to_text(value.get("string"))
            for key, value in get_object(basic, "attributes").items()
            if isinstance(value, dict)
        }
        kind, model = attributes.get("type"), attributes.get("productName")
        if kind not in (None, "gpu", "mig", "amdgpu", "amdgpu-partition"):
            continue
        gpu_id: str | None = attributes.get("uuid") or f"{pool}/{name}"
        partitions = 1
        if kind == "mig":
            gpu_id = attributes.get("parentUUID")
        elif kind == "amdgpu-partition":
            partitions = partitions_in_mode(match_gpu_models(model or ""), attributes.get("partitionProfile") or "")
            gpu_id = f"{pool}/{attributes['parentPciAddr']}" if attributes.get("parentPciAddr") else None
        yield DraDevice(
            key=(driver, pool, name),
            node=node,
            gpu_id=gpu_id,
            model=model,
            profile=attributes.get("profile") if kind == "mig" else None,
            partitions=partitions,
        )


def read_device_class(spec: ApiObject) -> DeviceClass:
    """Read the ``spec`` of a DeviceClass: its devices are GPUs if its selectors name a DRA driver of GPUs.

    Examples
    --------
    >>> cel = {"expression": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"}
    >>> read_device_class({"selectors": [{"cel": cel}]}).kind
    'MIG instances'
    """
    expressions = _join_selectors(spec)
    quoted_words = QUOTED_TEXT_PATTERN.findall(expressions)
    gpu_drivers = [driver for driver in list_resource_names("dra_driver", "full_gpu") if driver in quoted_words]
    if gpu_drivers:
        profile = MIG_PROFILE_SELECTOR_PATTERN.search(expressions)
        instances = profile or MIG_SELECTOR_PATTERN.search(expressions)
        kind = MIG_DEVICE_CLASS_KIND if instances else FULL_GPU_DEVICE_CLASS_KIND
        return DeviceClass(kind, profile[1] if profile else None, gpu_drivers[0])
    drivers = re.findall(r"\.driver\s*==\s*['\"]([^'\"]+)['\"]", expressions)
    names_other_device = drivers and not any(map(GPU_LIKE_PATTERN.search, drivers))
    return DeviceClass(NO_GPU_DEVICE_CLASS_KIND if names_other_device else UNKNOWN_DEVICE_CLASS_KIND)


def read_claim(spec: ApiObject, status: ApiObject) -> DeviceClaim:
    """Read the ``spec`` of a ResourceClaim or of its template, and the ``status`` of a claim, which has its allocation.

    Examples
    --------
    >>> exactly = {"deviceClassName": "gpu.nvidia.com", "count": 2}
    >>> read_claim({"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}, {}).requests
    (DeviceRequest(device_class='gpu.nvidia.com', number=2, profile=None),)
    """
    allocation_results = get_objects(get_object(get_object(status, "allocation"), "devices"), "results")
    allocated = [
        (str(result["driver"]), to_text(result.get("pool")) or "", to_text(result.get("device")) or "")
        for result in allocation_results
        if to_text(result.get("driver")) and not result.get("adminAccess")
    ]
    requests = []
    for request in get_objects(get_object(spec, "devices"), "requests"):
        # v1beta1 has these fields at the top. Of several alternatives, the first gives the class of devices.
        choices = get_objects(request, "firstAvailable")
        exactly = choices[0] if choices else get_object(request, "exactly") or request
        if exactly.get("adminAccess"):
            continue
        is_open_count = bool(choices) or exactly.get("allocationMode") == "All"
        device_count = None if is_open_count else parse_count(exactly.get("count", 1), "count")
        class_name = to_text(exactly.get("deviceClassName")) or ""
        profile = MIG_PROFILE_SELECTOR_PATTERN.search(_join_selectors(exactly))
        requests.append(DeviceRequest(class_name, device_count, profile and profile[1]))
    return DeviceClaim(tuple(allocated), tuple(requests))


def find_device_class(name: str, classes: Mapping[str, DeviceClass]) -> DeviceClass:
    """Find a DeviceClass of DRA by name: in the catalogue, else in `classes`, those of the dump; else of unknown kind.

    Examples
    --------
    >>> find_device_class("mig.nvidia.com", {}).kind, find_device_class("compute-domain-daemon.nvidia.com", {}).kind
    ('MIG instances', 'no GPU')
    """
    for role, kind in (
        ("full_gpu", FULL_GPU_DEVICE_CLASS_KIND),
        ("mig", MIG_DEVICE_CLASS_KIND),
        ("no_device", NO_GPU_DEVICE_CLASS_KIND),
    ):
        if any(fnmatchcase(name, pattern) for pattern in list_resource_names("device_class", role)):
            is_nvidia = name.endswith(".nvidia.com")
            return DeviceClass(kind, driver=NVIDIA_DRA_DRIVER if is_nvidia else name)
    return classes.get(name, DeviceClass(UNKNOWN_DEVICE_CLASS_KIND))


def _join_selectors(spec: ApiObject) -> str:
    """Join the CEL expressions of the selectors of a DeviceClass or a device request."""
    cels = [get_object(selector, "cel") for selector in get_objects(spec, "selectors")]
    return " ".join(to_text(cel.get("expression")) or "" for cel in cels)


def count_claimed_gpus(
    claim: DeviceClaim, devices: Mapping[tuple[str, str, str], DraDevice], classes: Mapping[str, DeviceClass]
) -> ClaimedGpus:
    """Count the GPUs that are allocated to a ResourceClaim, or that it requests while it has no allocation.

    Parameters
    ----------
    claim : DeviceClaim
        The claim.
    devices : mapping of (str, str, str) to DraDevice
        Devices of the ResourceSlices in the dump, by key.
    classes : mapping of str to DeviceClass
        Device classes of the dump, by name.

    Returns
    -------
    ClaimedGpus
    """
    requests = [(request, find_device_class(request.device_class, classes)) for request in claim.requests]
    gpu_kinds = (FULL_GPU_DEVICE_CLASS_KIND, MIG_DEVICE_CLASS_KIND)
    gpu_requests = [(request, kind) for request, kind in requests if kind.kind in gpu_kinds]
    profiles = {request.profile or kind.profile for request, kind in gpu_requests}
    profile = profiles.pop() if len(profiles) == 1 else None
    requested_classes = {request.device_class for request, _ in gpu_requests}
    class_names = tuple(sorted(requested_classes or {driver for driver, _, _ in claim.allocated}))
    if not claim.allocated:
        needs_profile = profile is None and any(kind.kind == MIG_DEVICE_CLASS_KIND for _, kind in gpu_requests)
        if needs_profile:
            offered = {device.profile for device in devices.values() if device.profile}
            profile = offered.pop() if len(offered) == 1 else None
        unknown = {request.device_class for request, kind in requests if kind.kind == UNKNOWN_DEVICE_CLASS_KIND}
        unread = tuple(sorted(unknown))
        numbers = [request.number for request, _ in gpu_requests]
        known_numbers = [number for number in numbers if number is not None]
        is_certain = not unread and len(known_numbers) == len(numbers) and not (needs_profile and profile is None)
        gpus = sum(known_numbers) if is_certain else None
        return ClaimedGpus(gpus, profile, None, unread, class_names)

    drivers = list_resource_names("dra_driver", "full_gpu")
    gpu_keys = [key for key in claim.allocated if key[0] in drivers]
    other_drivers = {driver for driver, _, _ in claim.allocated if driver not in drivers}
    unread = tuple(sorted(filter(GPU_LIKE_PATTERN.search, other_drivers)))
    known_devices = [devices.get(key) for key in gpu_keys]
    found_profiles = {device.profile if device else profile for device in known_devices}
    models = {device.model for device in known_devices if device}
    requests_instances = any(kind.kind == MIG_DEVICE_CLASS_KIND for _, kind in requests)
    partitions = [
        device.partitions if device else _unlisted_partitions(key, profile, instances=requests_instances)
        for key, device in zip(gpu_keys, known_devices, strict=True)
    ]
    return ClaimedGpus(
        gpus=None if unread or 0 in partitions else sum((Fraction(1, share) for share in partitions), Fraction(0)),
        profile=found_profiles.pop() if len(found_profiles) == 1 else None,
        model=models.pop() if len(models) == 1 else None,
        unread=unread,
        classes=class_names,
    )


def _unlisted_partitions(key: tuple[str, str, str], profile: str | None, *, instances: bool) -> int:
    """Return how many such devices are one GPU, for an allocated device that no ResourceSlice lists; 0 if unknown.

    It is 1 for a full GPU, and for a MIG instance of a known profile, which is counted as an instance; 0 for a part of
    unknown size.

    Parameters
    ----------
    key : tuple of str
        Driver, pool and name of the device.
    profile : str or None
        MIG profile that its claim selects.
    instances : bool
        Whether its claim requests a class of MIG instances.
    """
    is_part = instances or "mig" in key[2] or key[0] != NVIDIA_DRA_DRIVER
    return 0 if is_part and profile is None else 1


MIG_CONFIG_STATE_LABEL_KEY = "nvidia.com/mig.config.state"
"""Node label of the GPU operator with the state of MIG partitioning: ``success``, ``pending``, ``failed``."""

NVLINK_CLIQUE_LABEL_KEY = "nvidia.com/gpu.clique"
"""Node label with the NVLink clique of its GPUs (multi-node NVLink domain)."""

CLOSING_TAINT_KEYS = frozenset(
    f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable", "out-of-service")
)
"""Taints of a node that accepts no new pods (Kubernetes, Well-Known Labels, Annotations and Taints)."""

OWNERSHIP_BY_LABEL = source_values("kubernetes ownership")
"""Label of a cloud node, as ``key=value`` → ownership in the inventory: ``spot``, ``on_demand`` or ``reserved``."""


@dataclass(frozen=True)
class Node(NodeGpus):
    """A Kubernetes node with its GPUs, state and labels.

    - ``name``: Name of the node.
    - ``config_state``: State of its MIG partitioning, such as ``pending``; None if that is done.
    - ``closed_reason``: Why it accepts no new pods: ``"cordoned"``, ``"not ready"``; None if it does.
    - ``closed_since``: Since when, if a taint or a condition has the time.
    - ``domain``, ``ownership``: NVLink clique; how the node is paid for.
    - ``installed``, ``last_heartbeat``: When the node joined the cluster; its latest heartbeat.
    - ``labels``: Its labels, by which ResourceFlavors of Kueue select it.
    """

    name: str
    config_state: str | None = None
    closed_reason: str | None = None
    closed_since: datetime | None = None
    domain: str | None = None
    ownership: str | None = None
    installed: datetime | None = None
    last_heartbeat: datetime | None = None
    labels: ApiObject = field(default_factory=dict)


def read_node(node: ApiObject) -> Node:
    """Read a Kubernetes object of kind Node: its GPUs, whether it accepts pods, ownership and heartbeat.

    Examples
    --------
    >>> labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    >>> node = read_node({"metadata": {"name": "n1", "labels": labels}})
    >>> node.gpus, node.model
    (8, 'NVIDIA-H100-80GB-HBM3')
    """
    metadata, status = get_object(node, "metadata"), get_object(node, "status")
    labels = get_object(metadata, "labels")
    state = to_text(labels.get(MIG_CONFIG_STATE_LABEL_KEY))
    heartbeats = [read_time(entry, "lastHeartbeatTime") for entry in get_objects(status, "conditions")]
    capacity, allocatable = get_object(status, "capacity"), get_object(status, "allocatable")
    gpus = read_node_gpus(labels, get_object(metadata, "annotations"), capacity, allocatable)
    closed_reason, closed_since = _read_closed_state(node)
    stated_labels = {f"{key}={value}" for key, value in labels.items()}
    return Node(
        **vars(gpus),
        name=object_name(node),
        config_state=state if to_text(labels.get(MIG_CONFIG_LABEL_KEY)) and state != "success" else None,
        closed_reason=closed_reason,
        closed_since=closed_since,
        domain=to_text(labels.get(NVLINK_CLIQUE_LABEL_KEY)),
        ownership=next((kind for label, kind in OWNERSHIP_BY_LABEL.items() if label in stated_labels), None),
        installed=read_time(metadata, "creationTimestamp"),
        last_heartbeat=max((beat for beat in heartbeats if beat), default=None),
        labels=labels,
    )


def _read_closed_state(node: ApiObject) -> tuple[str | None, datetime | None]:
    """Read why a node accepts no new pods (``cordoned``, ``not ready``) and since when; (None, None) if it does."""
    spec = get_object(node, "spec")
    reasons = ["cordoned"] if spec.get("unschedulable") is True else []
    conditions = get_objects(get_object(node, "status"), "conditions")
    ready_conditions = [entry for entry in conditions if entry.get("type") == "Ready"]
    closing_taints = [taint for taint in get_objects(spec, "taints") if taint.get("key") in CLOSING_TAINT_KEYS]
    closing_times = [read_time(taint, "timeAdded") for taint in closing_taints]
    if ready_conditions and ready_conditions[-1].get("status") != "True":
        reasons.append("not ready")
        closing_times.append(read_time(ready_conditions[-1], "lastTransitionTime"))
    first_time = min(filter(None, closing_times), default=None)
    return ", ".join(reasons) or None, first_time if reasons else None


def make_inventory(nodes: Mapping[str, Node], devices: Iterable[DraDevice]) -> tuple[pl.DataFrame | None, list[str]]:
    """Make the inventory table of the Kubernetes nodes that have GPUs.

    Parameters
    ----------
    nodes : mapping of str to Node
        Nodes by name.
    devices : iterable of DraDevice
        DRA devices, which take precedence for the number of GPUs of their nodes.

    Returns
    -------
    inventory : polars.DataFrame or None
        Table ``schemas.Inventory``; None if no node has GPUs, or the number of one is unknown.
    nodes_without_count : list of str
        Nodes whose number of GPUs is unknown.
    """
    models_by_gpu: dict[str, dict[str, str | None]] = {}
    partitioned: set[str] = set()  # nodes whose driver offers MIG instances, existing ones or on demand
    for device in devices:
        if device.node is not None and device.gpu_id is not None:
            models_by_gpu.setdefault(device.node, {})[device.gpu_id] = device.model
            if device.profile is not None:
                partitioned.add(device.node)
    rows = []
    nodes_without_count = []
    for name in sorted({*nodes, *models_by_gpu}):
        node = nodes.get(name, Node(name))
        node_models = models_by_gpu.get(name, {})
        gpus = len(node_models) or node.gpus
        if gpus is None:
            nodes_without_count.append(name)
        elif gpus:
            models = dict.fromkeys(model for model in node_models.values() if model)
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
    if nodes_without_count or not rows:
        return None, nodes_without_count
    types = {"installed": pl.Datetime("us", "UTC"), "layouts": pl.String()}
    table = pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)
    return conform(table, Inventory, source="nodes"), nodes_without_count


def make_out_of_service_table(nodes: Mapping[str, Node], devices: Iterable[DraDevice]) -> pl.DataFrame | None:
    """Make the table ``out_of_service``: nodes that accept no new pods, and GPUs that a node does not offer.

    Parameters
    ----------
    nodes : mapping of str to Node
        Nodes by name.
    devices : iterable of DraDevice
        DRA devices; their nodes offer GPUs by claims, so that GPUs missing from the capacity are not out of service.

    Returns
    -------
    polars.DataFrame or None
        Start [UTC] and GPUs of each outage. A node whose closing time is unknown is out since its latest heartbeat,
        as it may have accepted pods before. None if there is no outage.
    """
    nodes_with_devices = {device.node for device in devices}
    rows = []
    for name, node in sorted(nodes.items()):
        start = node.closed_since or node.last_heartbeat
        withheld = None if node.closed_reason else float(node.withheld)
        is_closed = node.closed_reason or (node.withheld and name not in nodes_with_devices)
        is_known = node.gpus or (node.gpus is None and node.closed_since)
        if is_known and is_closed and start is not None:
            rows.append({"node": name, "start_time": start, "gpus": withheld, "bucket": "down"})
    table = pl.DataFrame(rows, schema_overrides={"gpus": pl.Float64}, infer_schema_length=None)
    return conform(table, TABLES["out_of_service"], source="nodes") if rows else None
