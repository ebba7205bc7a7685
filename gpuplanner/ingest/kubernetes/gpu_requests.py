"""GPU requests of pods: full GPUs, MIG instances, fractions and memory, in the resources of each device plugin."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.hardware.catalog import list_resource_names, list_sharing_systems
from gpuplanner.ingest.delimited_rows import raise_fault
from gpuplanner.ingest.kubernetes.api_objects import (
    MAX_MEMORY_REQUEST_MIB,
    ApiObject,
    classify_unread_resource,
    get_object,
    get_objects,
    parse_bounded_quantity,
    parse_count,
    parse_gpu_resource,
    parse_quantity,
    to_text,
)

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
