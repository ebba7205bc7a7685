"""Parsers for pods and Jobs: their GPU requests, run times and queues, and the quotas of queues."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.hardware.catalog import list_resource_names, list_sharing_systems
from gpuplanner.ingest.delimited_rows import raise_fault
from gpuplanner.ingest.kubernetes.api_objects import (
    MAX_MEMORY_REQUEST_MIB,
    ApiObject,
    classify_unread_resource,
    get_object,
    get_objects,
    object_name,
    parse_bounded_quantity,
    parse_count,
    parse_gpu_resource,
    parse_quantity,
    read_condition,
    read_time,
    spec_and_annotations,
    to_text,
)
from gpuplanner.ingest.source_fields import source_values

GPU_FRACTION_KEY = "boards"
"""Key, beside resource names, of the GPU fractions that a pod requests, summed over its GPUs. [GPUs]"""

GPU_MEMORY_KEY = "MiB of GPUs"
"""Key of GPU memory that a pod requests without a share of compute, by annotation or by slices of nos. [MiB]"""

MEMORY_FRACTION_KEY = "GPUs by memory"
"""Key of the fraction of GPU memory that goes with the compute share of :data:`GPU_FRACTION_KEY`. [GPUs]"""

MEMORY_BESIDE_CORES_KEY = "MiB beside cores"
"""Key of the GPU memory that goes with the compute share of :data:`GPU_FRACTION_KEY`, if stated in MiB. [MiB]"""

NON_RESOURCE_REQUEST_KEYS = (GPU_FRACTION_KEY, MEMORY_FRACTION_KEY, MEMORY_BESIDE_CORES_KEY, GPU_MEMORY_KEY)
"""All keys of GPU requests that are not names of extended resources."""

FULL_GPU_PERCENT = 100
"""Requested percent of the compute, or memory, of a GPU that are one full GPU."""

MIB_PER_MEMORY_UNIT = {
    "MiB": Fraction(1),
    "GiB": Fraction(1024),
    "256 MiB": Fraction(256),
    "bytes": Fraction(1, 1024**2),
}
"""Unit in which an extended resource counts GPU memory → MiB."""

NODE_DEFINED_MEMORY_UNIT = "of the node"
"""Unit of a GPU memory resource that only the node defines: one GPU is the capacity divided by the number of GPUs."""

NOS_MEMORY_SLICE_PATTERN = re.compile(r"nvidia\.com/gpu-(\d{1,4})gb")
"""Extended resource of nos: memory slices of a GPU, by size in GB (nos, docs/getting-started-mps@12e0a72)."""


@dataclass(frozen=True)
class SharingResources:
    """Extended resources of one GPU sharing system, such as HAMi; None where it lacks the resource.

    - ``number``: Number of GPUs of which a container gets a fraction each; without it, the fractions are of one GPU.
    - ``cores``, ``memory``, ``memory_percentage``: Size of the fraction of each GPU: percent of its compute, amount of
      memory, percent of its memory.
    - ``memory_unit``: Unit of ``memory``: one of :data:`MIB_PER_MEMORY_UNIT`, or :data:`NODE_DEFINED_MEMORY_UNIT`.
    """

    number: str | None
    cores: str | None
    memory: str | None
    memory_percentage: str | None
    memory_unit: str

    def size_resources(self) -> list[str]:
        """Return the extended resources that state the size of a GPU fraction: cores, memory, memory percentage."""
        return [name for name in (self.cores, self.memory, self.memory_percentage) if name]


@functools.cache
def sharing_resources() -> tuple[SharingResources, ...]:
    """Return the extended resources of each GPU sharing system in the catalogue."""
    absent = (None, None)
    return tuple(
        SharingResources(
            system.get("number", absent)[0],
            system.get("cores", absent)[0],
            system.get("memory", absent)[0],
            system.get("memory_percentage", absent)[0],
            system.get("memory", absent)[1] or "MiB",
        )
        for system in list_sharing_systems()
    )


@functools.cache
def gpu_memory_resources() -> frozenset[str]:
    """Return the extended resources of GPU memory, in MiB except those of :func:`node_defined_memory_units`."""
    return frozenset(words.memory for words in sharing_resources() if words.memory)


@functools.cache
def node_defined_memory_units() -> Mapping[str, str]:
    """Return GPU memory resource → its unit, for resources that only the node can convert into a fraction of a GPU."""
    return {
        words.memory: words.memory_unit
        for words in sharing_resources()
        if words.memory and words.memory_unit.startswith(NODE_DEFINED_MEMORY_UNIT)
    }


RESERVATION_ANNOTATION_KEY = "run.ai/reserve_for_gpu_index"
"""Annotation of the pods with which Run:ai reserves a full GPU for the pods that share it."""

RESERVATION_NAMESPACES = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of the pods with which KAI and Run:ai reserve a full GPU for the pods that share it."""

EMPTY_OBJECT: ApiObject = MappingProxyType({})
"""Immutable empty Kubernetes object, the default for annotations."""


def pod_gpu_requests(spec: ApiObject, annotations: ApiObject = EMPTY_OBJECT) -> dict[str, Fraction]:
    """Return the GPU requests of a pod: the larger of those of its containers and of its init containers.

    Init containers run one after another, each beside the sidecars (init containers with
    ``restartPolicy: Always``) listed before it; sidecars run on beside the containers.

    A container that names a percentage of the cores of each of its GPUs (``nvidia.com/gpucores``) requests that
    fraction of them, else the fraction of their memory that it names. A request of GPUs alone is of full GPUs, unless
    the device plugin noted smaller fractions on the pod. The annotations of KAI count where no container requests GPUs.

    Parameters
    ----------
    spec : mapping
        Specification of the pod.
    annotations : mapping
        Annotations of the pod.

    Returns
    -------
    dict of str to Fraction
        GPU resource or one of :data:`NON_RESOURCE_REQUEST_KEYS` → number. Resources that look like GPUs and are not in
        the catalogue stay under their own names.

    References
    ----------
    Kubernetes, *Sidecar Containers*, "Resource sharing within containers".
    Project-HAMi/HAMi, docs/config.md@15c0bd24: ``resourceMem``, ``resourceCores``, ``defaultCores`` (0 fits anywhere,
    100 is the entire board); issue 302: cores and memory are of each GPU. volcano-sh/volcano,
    pkg/scheduler/api/devices/config/vgpu.go. NVIDIA/KAI-Scheduler, docs/gpu-sharing/README.md@82d69adb, and
    pkg/common/constants. Resource names and their units are in ``gpu_resources.csv``.

    Examples
    --------
    >>> ask = lambda **words: {"resources": {"limits": {f"nvidia.com/{name}": n for name, n in words.items()}}}
    >>> pod_gpu_requests({"initContainers": [ask(gpu=4)], "containers": [ask(gpu=1), ask(gpu="1")]})
    {'nvidia.com/gpu': Fraction(4, 1)}
    >>> pod_gpu_requests({"containers": [ask(gpu=2, gpumem=10240, gpucores=30)]})
    {'boards': Fraction(3, 5), 'MiB beside cores': Fraction(20480, 1)}
    >>> pod_gpu_requests({"containers": [{}]}, {"gpu-fraction": "0.5"})
    {'boards': Fraction(1, 2), 'GPUs by memory': Fraction(1, 2)}
    >>> pod_gpu_requests({"containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": 10}}}]})
    {'aliyun.com/gpu-mem': Fraction(10, 1)}
    """
    running_gpus = Counter[str]()
    peak = Counter[str]()
    for container in get_objects(spec, "initContainers"):
        container_gpus = _container_requests(container)
        peak |= running_gpus + container_gpus
        running_gpus += container_gpus if container.get("restartPolicy") == "Always" else Counter()
    for container in get_objects(spec, "containers"):
        running_gpus += _container_requests(container)
    requested: Mapping[str, Any] = peak | running_gpus  # a Counter adds fractions as well as whole numbers
    if not requested:
        return _annotated_fractions(annotations)
    return _apply_plugin_annotations(dict(requested), annotations)


def other_extended_resources(spec: ApiObject) -> dict[str, Fraction]:
    """Return the extended resources of a pod that do not look like GPUs; a DeviceClass may define them as GPUs.

    Examples
    --------
    >>> other_extended_resources({"containers": [{"resources": {"limits": {"cpu": 4, "site.example/h100": 2}}}]})
    {'site.example/h100': Fraction(2, 1)}
    """
    requests = Counter[str]()
    for container in get_objects(spec, "containers"):
        for name, value in get_object(get_object(container, "resources"), "limits").items():
            if "/" in name and not (parse_gpu_resource(name) or classify_unread_resource(name)):
                requests[name] += Fraction(parse_quantity(value, name))  # type: ignore[assignment]
    return dict(requests)  # type: ignore[arg-type]


def requests_gpu_fractions(requests: Mapping[str, Fraction]) -> bool:
    """Whether the GPU requests of a pod include fractions of GPUs, by compute or by memory.

    Examples
    --------
    >>> [requests_gpu_fractions({name: Fraction(1)}) for name in (GPU_FRACTION_KEY, "nvidia.com/gpu")]
    [True, False]
    """
    return GPU_FRACTION_KEY in requests or GPU_MEMORY_KEY in requests or not gpu_memory_resources().isdisjoint(requests)


def is_reservation_pod(metadata: ApiObject) -> bool:
    """Whether the metadata are of a pod with which KAI or Run:ai reserves a full GPU for the pods that share it.

    References
    ----------
    NVIDIA/KAI-Scheduler, pkg/binder/binding/resourcereservation/resource_reservation.go@5149a97a.
    """
    annotations = get_object(metadata, "annotations")
    return to_text(metadata.get("namespace")) in RESERVATION_NAMESPACES or RESERVATION_ANNOTATION_KEY in annotations


def _container_requests(container: ApiObject) -> Counter[str]:
    """Return GPU resource or key of a GPU fraction → number that a container requests; a limit is a request."""
    resources = get_object(container, "resources")
    requests = {**get_object(resources, "limits"), **get_object(resources, "requests")}
    gpus = Counter[str]()
    for sharing in sharing_resources():
        names = sharing.size_resources()
        if sharing.number is not None and parse_gpu_resource(sharing.number) is None:
            names.append(sharing.number)  # units of this resource are always fractions
        if not requests.keys().isdisjoint(names):
            gpus.update(_pop_gpu_fractions(requests, sharing))
    for name, value in requests.items():
        if match := NOS_MEMORY_SLICE_PATTERN.fullmatch(name):
            gpus[GPU_MEMORY_KEY] += Fraction(parse_count(value, name)) * int(match[1]) * 1024  # type: ignore[assignment]
        elif parse_gpu_resource(name):
            gpus[name] += Fraction(parse_count(value, name))  # type: ignore[assignment]
        elif classify_unread_resource(name):
            gpus[name] += Fraction(parse_quantity(value, name))  # type: ignore[assignment]
    return gpus


def _pop_gpu_fractions(requests: dict[str, Any], sharing: SharingResources) -> dict[str, Fraction]:
    """Remove the requests for fractions of GPUs from the requests of a container, and return them.

    Parameters
    ----------
    requests : dict
        Resource → quantity; those of the sharing system are removed in place.
    sharing : SharingResources
        Extended resources of one GPU sharing system.

    Returns
    -------
    dict of str to Fraction
        One of :data:`NON_RESOURCE_REQUEST_KEYS`, or the memory resource → GPUs, MiB, or units of the resource.
    """
    sizes = {name: requests.pop(name) for name in sharing.size_resources() if name in requests}
    if sharing.number is not None and sharing.number in requests:
        has_count = True
        number = Fraction(parse_count(requests.pop(sharing.number), sharing.number))
    else:
        has_count = False
        number = Fraction(bool(sizes))

    max_percent = FULL_GPU_PERCENT if sharing.number else FULL_GPU_PERCENT * MAX_GPUS_PER_JOB
    cores = percentage = Fraction(0)
    if sharing.cores:
        cores = parse_bounded_quantity(sizes, sharing.cores, max_percent)
    if sharing.memory_percentage:
        percentage = parse_bounded_quantity(sizes, sharing.memory_percentage, max_percent)
    memory = _requested_memory(sizes, sharing)
    if not has_count and sizes and not (cores or percentage or memory):
        return {}
    if memory and not (cores or percentage):
        return {str(sharing.memory): number * memory}

    fraction = (cores or percentage or FULL_GPU_PERCENT) / Fraction(FULL_GPU_PERCENT)
    if memory and sharing.memory_unit != NODE_DEFINED_MEMORY_UNIT:
        return {GPU_FRACTION_KEY: number * fraction, MEMORY_BESIDE_CORES_KEY: number * memory}
    # In HAMi, a container that names no memory gets all of it.
    memory_fraction = percentage / FULL_GPU_PERCENT if percentage else max(fraction, Fraction(1))
    return {GPU_FRACTION_KEY: number * fraction, MEMORY_FRACTION_KEY: number * memory_fraction}


def _requested_memory(sizes: ApiObject, sharing: SharingResources) -> Fraction:
    """Return the GPU memory that a container requests per GPU [MiB]; 0 if it requests none.

    Where the device plugin of each node defines the size of a unit, the number of units is returned.
    """
    if sharing.memory is None or sharing.memory not in sizes:
        return Fraction(0)
    value = sizes[sharing.memory]
    mib = Fraction(parse_quantity(value, sharing.memory)) * MIB_PER_MEMORY_UNIT.get(sharing.memory_unit, Fraction(1))
    if not 0 <= mib <= MAX_MEMORY_REQUEST_MIB:
        raise_fault(f"{sharing.memory}: {str(value)[:40]!r} is not between 0 and {MAX_MEMORY_REQUEST_MIB} MiB")
    return mib


def _apply_plugin_annotations(requests: dict[str, Fraction], annotations: ApiObject) -> dict[str, Fraction]:
    """Replace GPU requests of a pod by the allocation that its device plugin noted on it, where that is more exact.

    Parameters
    ----------
    requests : dict of str to Fraction
        GPU resource, or one of :data:`NON_RESOURCE_REQUEST_KEYS` → number.
    annotations : mapping
        Annotations of the pod.
    """
    for name, resource in list_resource_names("pod_annotation", "units_of_gpu").items():
        units = parse_bounded_quantity(annotations, name, MAX_MEMORY_REQUEST_MIB)
        if units and resource in requests:
            share = requests.pop(resource) / units
            requests = requests | {GPU_FRACTION_KEY: share, MEMORY_FRACTION_KEY: share}
    device_lists = (to_text(annotations.get(name)) for name in list_resource_names("pod_annotation", "allocated"))
    device_list = next(filter(None, device_lists), "")
    devices = [fields for device_text in re.split("[:;]", device_list) if len(fields := device_text.split(",")) == 4]
    requests_full_gpus = requests.keys() == {"nvidia.com/gpu"}
    if not (requests_full_gpus and devices and all(mib.isdigit() and cores.isdigit() for _, _, mib, cores in devices)):
        return requests
    allocated = Counter[str]()
    for _, _, mib, cores in devices:
        if int(cores):
            allocated[GPU_FRACTION_KEY] += Fraction(int(cores), FULL_GPU_PERCENT)  # type: ignore[assignment]
            allocated[MEMORY_BESIDE_CORES_KEY] += Fraction(int(mib))  # type: ignore[assignment]
        else:
            allocated[GPU_MEMORY_KEY] += Fraction(int(mib))  # type: ignore[assignment]
    return dict(allocated)  # type: ignore[arg-type]


def _annotated_fractions(annotations: ApiObject) -> dict[str, Fraction]:
    """Read the GPU fractions or GPU memory that a pod requests by annotations of KAI, by keys of this module."""
    roles = ("fraction", "fraction_memory", "fraction_devices")
    fraction_key, memory_key, count_key = (next(iter(list_resource_names("pod_annotation", role))) for role in roles)
    share = parse_bounded_quantity(annotations, fraction_key, 1)
    memory = parse_bounded_quantity(annotations, memory_key, MAX_MEMORY_REQUEST_MIB)
    if not share and not memory:
        return {}
    number = parse_count(annotations.get(count_key, 1), count_key)
    if not share:
        return {GPU_MEMORY_KEY: number * memory}
    return {GPU_FRACTION_KEY: number * share, MEMORY_FRACTION_KEY: number * share}


QUEUE_LABEL_KEYS = ("kai.scheduler/queue", "runai/queue", "volcano.sh/queue-name")
"""Pod labels that name the queue of KAI, Run:ai or Volcano."""

QUEUE_ANNOTATION_KEY = "scheduling.volcano.sh/queue-name"
"""Pod annotation that names the queue of Volcano."""

KUEUE_QUEUE_LABEL_KEY = "kueue.x-k8s.io/queue-name"
"""Label of a Job or pod that names its LocalQueue (Kueue, Labels and Annotations)."""

UNLIMITED_QUOTA = -1.0
"""Number by which KAI marks a queue quota without limit."""


def queue_name(metadata: ApiObject) -> str | None:
    """Return the queue of KAI, Run:ai or Volcano that the metadata of a pod name; None if none.

    Examples
    --------
    >>> queue_name({"labels": {"kai.scheduler/queue": "vision"}})
    'vision'
    """
    labels = get_object(metadata, "labels")
    values = [
        *(labels.get(key) for key in QUEUE_LABEL_KEYS),
        get_object(metadata, "annotations").get(QUEUE_ANNOTATION_KEY),
    ]
    return next((queue for value in values if (queue := to_text(value))), None)


def parent_queue(queue: ApiObject) -> str | None:
    """Return the name of the parent of a Queue (KAI, Volcano), whose quota its children share; None if it has none."""
    spec = get_object(queue, "spec")
    return to_text(spec.get("parentQueue")) or to_text(spec.get("parent"))


def read_queue_quotas(queue: ApiObject) -> list[dict[str, Any]]:
    """Read the GPU quotas of a Queue of KAI or Volcano.

    Parameters
    ----------
    queue : mapping
        Object of kind Queue.

    Returns
    -------
    list of dict
        Rows of the table of quotas. [GPUs]

    References
    ----------
    NVIDIA/KAI-Scheduler, docs/queues (quota, limit and overQuotaWeight; -1 is without limit); volcano-sh/apis,
    pkg/apis/scheduling/v1beta1/types.go (deserved, guarantee, capability, weight).

    Examples
    --------
    >>> spec = {"parentQueue": "research", "resources": {"gpu": {"quota": 8, "limit": -1, "overQuotaWeight": 2}}}
    >>> row = read_queue_quotas({"metadata": {"name": "vision"}, "spec": spec})[0]
    >>> row["cohort"], row["nominal"], row["borrow"], row["weight"]
    ('research', 8.0, None, 2.0)
    """
    spec = get_object(queue, "spec")
    gpu = get_object(get_object(spec, "resources"), "gpu")
    queue_fields: dict[str, Any] = {"tenant": object_name(queue), "cohort": parent_queue(queue), "flavor": None}
    if gpu:
        queue_fields |= {"resource": "gpu", "profile": None, "weight": _read_queue_amount(gpu, "overQuotaWeight")}
        return [queue_fields | _quota_amounts(_read_queue_amount(gpu, "quota"), _read_queue_amount(gpu, "limit"))]
    deserved, capability, guarantee = (get_object(spec, name) for name in ("deserved", "capability", "guarantee"))
    guaranteed = get_object(guarantee, "resource")
    queue_fields |= {"weight": _read_queue_amount(spec, "weight")}
    rows = []
    for name in dict.fromkeys([*deserved, *guaranteed, *capability]):
        kind = parse_gpu_resource(name)
        if kind is not None:
            nominal = _read_queue_amount(deserved, name) or _read_queue_amount(guaranteed, name)
            lend = None
            if nominal is not None and name in guaranteed:
                lend = nominal - (_read_queue_amount(guaranteed, name) or 0.0)
            amounts = _quota_amounts(nominal, _read_queue_amount(capability, name), lend)
            rows.append(queue_fields | {"resource": name, "profile": kind.profile} | amounts)
    return rows


def _quota_amounts(nominal: float | None, limit: float | None, lend: float | None = None) -> dict[str, float | None]:
    """Return ``nominal``, ``borrow`` and ``lend`` of a queue from its quota and hard limit, all in GPUs."""
    borrow = None if limit is None else max(0.0, limit - (nominal or 0.0))
    return {"nominal": nominal, "borrow": borrow, "lend": lend}


def _read_queue_amount(api_object: ApiObject, name: str) -> float | None:
    """Read a quota, limit [GPUs] or weight from a field of a Queue; None if it is missing or unlimited."""
    value = api_object.get(name)
    amount = UNLIMITED_QUOTA if value is None or value == UNLIMITED_QUOTA else float(parse_quantity(value, name))
    return None if amount < 0 else amount


MAX_GANG_SPREAD = timedelta(seconds=60)
"""Longest time between the starts, and between the ends, of the pods of one gang."""

SERVICE_OWNER_KINDS = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node"})
"""Kinds of controllers whose pods are replicas of a service: each pod is a job of its own."""

STATE_BY_FAILURE_REASON = source_values("kubernetes failure")
"""Reason in the status of a failed pod → job state."""

STATE_BY_DISRUPTION_REASON = source_values("kubernetes disruption")
"""Reason of the condition DisruptionTarget of a failed pod → job state."""

GANG_STATE_PRECEDENCE = (
    *("NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT", "FAILED", "CANCELLED"),
    *("UNKNOWN", "RUNNING", "PENDING", "COMPLETED"),
)
"""Job states by precedence: the state of a gang is the first of them that one of its pods has."""


Owner = tuple[str, str, str]
"""Kind, name and uid of the controller of a Kubernetes object."""


@dataclass(frozen=True)
class ObjectLocation:
    """Where a Kubernetes object is in the files of a dump.

    - ``file``: Number of the file, from 0.
    - ``item``: Number of the object in the file, from 1.
    - ``raw``: Kind and name for the reject table. A dump contains secrets, so the object itself is not kept.
    """

    file: int
    item: int
    raw: str


@dataclass(frozen=True)
class WorkloadObject:
    """Fields that pods, Jobs and Kueue Workloads have in common.

    - ``location``, ``owner``, ``submit``: Its place in the dump, its controller, and when it was created.
    - ``tenant``: Its queue of KAI, Run:ai or Volcano, else its namespace.
    - ``project``: Project that its label ``project`` names.
    - ``local_queue``: LocalQueue of Kueue that its label names.
    - ``start``, ``end``: When it was bound to its node or admitted, so that its GPUs were allocated; when its last
      container ended.
    - ``gpu_requests``: GPU resource, or key of a GPU fraction → number, for one pod, or all pods of a Workload.
    - ``tier``: Its priority class.
    - ``limit_s``: Its deadline [s], not yet checked.
    """

    location: ObjectLocation
    kind: str
    namespace: str
    name: str
    uid: str
    owner: Owner | None
    submit: datetime
    tenant: str
    project: str | None
    local_queue: str | None
    start: datetime | None
    end: datetime | None
    gpu_requests: Mapping[str, Fraction]
    tier: str | None
    limit_s: object

    @property
    def hours(self) -> float:
        """Run time [h]; 0 if it has not started or not ended."""
        return (self.end - self.start).total_seconds() / SECONDS_PER_HOUR if self.start and self.end else 0.0


@dataclass(frozen=True)
class PodOrJob(WorkloadObject):
    """A pod, or a Job of ``batch/v1``.

    - ``state``: State in the job table.
    - ``node``: Node that the pod is bound to.
    - ``copies``: Pods that a Job runs at once; 1 for a pod.
    - ``other_requests``: Extended resources that do not look like GPUs → number, for one pod.
    - ``claims``: ResourceClaims of one pod: name, None if not created yet, and template, None if made from none.
    """

    state: str
    node: str | None
    copies: int
    other_requests: Mapping[str, Fraction]
    claims: tuple[tuple[str | None, str | None], ...]


def read_metadata_fields(api_object: ApiObject, location: ObjectLocation) -> dict[str, Any]:
    """Read the fields of a :class:`WorkloadObject` that are in the metadata of an object.

    Parameters
    ----------
    api_object : mapping
        A pod, Job or Workload.
    location : ObjectLocation
        Its place in the dump.

    Returns
    -------
    dict
        Field of :class:`WorkloadObject` → value.

    Examples
    --------
    >>> about = {"name": "a", "creationTimestamp": "2025-09-01T08:00:00Z"}
    >>> who = read_metadata_fields({"kind": "Job", "metadata": about}, ObjectLocation(0, 1, ""))
    >>> who["kind"], who["namespace"], who["name"]
    ('Job', 'default', 'a')
    """
    metadata = get_object(api_object, "metadata")
    kind = to_text(api_object.get("kind")) or "Pod"
    name = object_name(api_object)
    namespace = to_text(metadata.get("namespace")) or "default"
    submit = read_time(metadata, "creationTimestamp") or raise_fault("metadata.creationTimestamp: missing")
    return {
        "location": location,
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "uid": to_text(metadata.get("uid")) or f"{kind} {namespace}/{name} {submit}",
        "owner": read_controller(api_object),
        "submit": submit,
        "tenant": queue_name(metadata) or namespace,
        "project": to_text(get_object(metadata, "labels").get("project")),
        "local_queue": to_text(get_object(metadata, "labels").get(KUEUE_QUEUE_LABEL_KEY)),
    }


def read_pod(pod: ApiObject, location: ObjectLocation) -> PodOrJob:
    """Read a Kubernetes object of kind Pod: its requests, state, node, and the start and end of its GPU allocation."""
    spec, status = get_object(pod, "spec"), get_object(pod, "status")
    bound, _, bound_time = read_condition(status, "PodScheduled")
    node = to_text(spec.get("nodeName"))
    start = (bound_time if bound else None) or (read_time(status, "startTime") if node else None)
    phase = to_text(status.get("phase")) or "Unknown"
    has_ended = phase in ("Succeeded", "Failed")
    return PodOrJob(
        **read_metadata_fields(pod, location),
        **_read_requests(pod, status),
        start=start,
        end=_pod_end(status) if has_ended else None,
        state=_pod_state(status, phase, start is not None),
        node=node,
        copies=1,
        limit_s=spec.get("activeDeadlineSeconds"),
    )


def read_job(job: ApiObject, location: ObjectLocation) -> PodOrJob:
    """Read a Kubernetes object of kind Job (``batch/v1``), which stands for its pods where a dump lacks them."""
    spec, status = get_object(job, "spec"), get_object(job, "status")
    failed, reason, failed_at = read_condition(status, "Failed")
    complete, _, complete_at = read_condition(status, "Complete")
    parallelism = spec.get("parallelism", 1)
    if type(parallelism) is not int or not 0 <= parallelism <= 1_000_000:
        raise_fault(f"parallelism: {str(parallelism)[:40]!r} is no number of pods")
    start = read_time(status, "startTime")
    if failed:
        state = "TIMEOUT" if reason == "DeadlineExceeded" else "FAILED"
    elif complete:
        state = "COMPLETED"
    else:
        state = "RUNNING" if start and status.get("active") and not spec.get("suspend") else "PENDING"
    return PodOrJob(
        **read_metadata_fields(job, location),
        **_read_requests(get_object(spec, "template"), {}),
        start=None if state == "PENDING" else start,
        end=failed_at if failed else read_time(status, "completionTime") or complete_at if complete else None,
        state=state,
        node=None,
        copies=parallelism,
        limit_s=spec.get("activeDeadlineSeconds"),
    )


def read_controller(api_object: ApiObject) -> Owner | None:
    """Return kind, name and uid of the controller among the owner references of an object; None if it has none."""
    for reference in get_objects(get_object(api_object, "metadata"), "ownerReferences"):
        if reference.get("controller"):
            return tuple(to_text(reference.get(name)) or "" for name in ("kind", "name", "uid"))  # type: ignore[return-value]
    return None


def group_gangs(pods: Iterable[PodOrJob]) -> list[list[PodOrJob]]:
    """Group the pods of one controller into gangs: pods that started and ended together, or are pending together.

    Parameters
    ----------
    pods : iterable of PodOrJob
        Pods of one controller, in any order.

    Returns
    -------
    list of list of PodOrJob
        Gangs in order of their first start.

    Examples
    --------
    >>> group_gangs([])
    []
    """
    all_gangs: list[list[PodOrJob]] = []
    # Two pods whose ends lie in the same minute, or in neighbouring minutes, may be of one gang. The loop follows
    # the order of starts, so only the latest gang of each minute can still grow.
    open_gangs: dict[tuple[bool, int], list[PodOrJob]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.start or pod.submit, pod.name)):
        is_pending = pod.state == "PENDING"
        minute = -1 if pod.end is None else int(pod.end.timestamp() // MAX_GANG_SPREAD.total_seconds())
        near_minutes = [minute] if pod.end is None else [minute, minute - 1, minute + 1]
        near_gangs = [open_gangs.get((is_pending, near_minute), []) for near_minute in near_minutes]
        gang = next((gang for gang in near_gangs if gang and _run_together(gang[0], pod)), None)
        if gang is None:
            gang = open_gangs[is_pending, minute] = []
            all_gangs.append(gang)
        gang.append(pod)
    return all_gangs


def _run_together(first_pod: PodOrJob, second_pod: PodOrJob) -> bool:
    """Whether two pods started and ended within :data:`MAX_GANG_SPREAD`, or, if neither started, were created so."""
    pairs = [(first_pod.start, second_pod.start), (first_pod.end, second_pod.end)]
    if first_pod.start is None and second_pod.start is None:
        pairs.append((first_pod.submit, second_pod.submit))
    return all(
        first_time == second_time
        or (first_time is not None and second_time is not None and abs(first_time - second_time) <= MAX_GANG_SPREAD)
        for first_time, second_time in pairs
    )


def _read_requests(pod: ApiObject, status: ApiObject) -> dict[str, Any]:
    """Read the requests of a pod or pod template: GPUs, other resources, claims and priority, as fields of PodOrJob."""
    spec, annotations = spec_and_annotations(pod)
    claim_statuses = get_objects(status, "resourceClaimStatuses")
    claim_names = {to_text(entry.get("name")): to_text(entry.get("resourceClaimName")) for entry in claim_statuses}
    claims = []
    for entry in get_objects(spec, "resourceClaims"):
        source = get_object(entry, "source") or entry  # v1alpha2 wraps the two names
        claim = to_text(source.get("resourceClaimName")) or claim_names.get(to_text(entry.get("name")))
        template = to_text(source.get("resourceClaimTemplateName"))
        claims += [(claim, template)] if claim or template else []
    return {
        "gpu_requests": pod_gpu_requests(spec, annotations),
        "other_requests": other_extended_resources(spec),
        "claims": tuple(claims),
        "tier": to_text(spec.get("priorityClassName")),
    }


def _terminated_states(status: ApiObject) -> list[ApiObject]:
    """Return the terminated states of the containers of a pod; empty objects for containers that did not end."""
    return [
        get_object(get_object(container_status, "state"), "terminated")
        for name in ("initContainerStatuses", "containerStatuses")
        for container_status in get_objects(status, name)
    ]


def _pod_end(status: ApiObject) -> datetime | None:
    """Return when the last container of a pod ended; if none ever ran, when the pod was disrupted."""
    ends = [end for terminated in _terminated_states(status) if (end := read_time(terminated, "finishedAt"))]
    return max(ends, default=read_condition(status, "DisruptionTarget")[2])


def _pod_state(status: ApiObject, phase: str, bound: bool) -> str:
    """Map phase and failure reasons of a pod to a job state; `bound` is whether it was scheduled to a node."""
    if phase in ("Pending", "Running"):
        return "RUNNING" if bound else "PENDING"
    if phase != "Failed":
        return "COMPLETED" if phase == "Succeeded" else "UNKNOWN"
    disrupted, reason, _ = read_condition(status, "DisruptionTarget")
    if disrupted and reason in STATE_BY_DISRUPTION_REASON:
        return STATE_BY_DISRUPTION_REASON[reason]
    out_of_memory = any(terminated.get("reason") == "OOMKilled" for terminated in _terminated_states(status))
    other_state = "OUT_OF_MEMORY" if out_of_memory else "FAILED"
    return STATE_BY_FAILURE_REASON.get(to_text(status.get("reason")) or "", other_state)
