"""What a pod asks for: full GPUs, instances, and shares of GPUs in the words of each way to share them."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from gpuplanner.catalog.cluster_words import resource_words, sharing_systems
from gpuplanner.inbox.core.lines.rows import refuse
from gpuplanner.inbox.kubernetes.objects import (
    MAX_MEMORY_MIB,
    Object,
    count,
    gpu_resource,
    part,
    parts,
    quantity,
    text,
    unread_kind,
    within,
)
from gpuplanner.schemas.domain import MAX_GPUS_PER_JOB

BOARDS = "boards"
"""Key of the sum of shares of boards that a pod asks for, beside the names of resources."""

MEMORY_MIB = "MiB of boards"
"""Key of the memory [MiB] of boards by which alone an annotation or a slice of nos says the share of a pod."""

BOARDS_BY_MEMORY = "boards by memory"
BOARDS_MIB = "MiB beside cores"
"""Keys of the memory that goes with :data:`BOARDS`: its share of boards, and MiB where it is named so."""

PARTS = (BOARDS, BOARDS_BY_MEMORY, BOARDS_MIB, MEMORY_MIB)
"""All keys that are no resources."""

ENTIRE = 100
"""Percent of a board."""

MIB_PER_UNIT = {
    "MiB": Fraction(1),
    "GiB": Fraction(1024),
    "256 MiB": Fraction(256),
    "bytes": Fraction(1, 1024**2),
}
"""Units in which resources count memory → MiB."""

OF_NODE = "of the node"
"""Unit of memory that only the node says: its capacity over its GPUs is one GPU."""

MEMORY_SLICE = re.compile(r"nvidia\.com/gpu-(\d{1,4})gb")
"""Resources of nos: a slice of so many GB of a GPU (nebuly-ai/nos, docs/getting-started-mps@12e0a72)."""


@dataclass(frozen=True)
class ShareWords:
    """Resource names of one way to share boards; None where it has none.

    - ``number``: Boards that a container gets a part of; without it, the parts are of one board.
    - ``cores``, ``memory``, ``memory_percentage``: Part of each of these boards: percent of its compute, memory and
      percent of its memory.
    - ``memory_unit``: Unit of ``memory``, one of :data:`MIB_PER_UNIT`, or as the node says (:data:`OF_NODE`).
    """

    number: str | None
    cores: str | None
    memory: str | None
    memory_percentage: str | None
    memory_unit: str

    def parts(self) -> list[str]:
        """The names that say how large the part is."""
        return [name for name in (self.cores, self.memory, self.memory_percentage) if name]


@functools.cache
def share_words() -> tuple[ShareWords, ...]:
    """The ways to share boards that the catalogue knows."""
    none = (None, None)
    return tuple(
        ShareWords(
            system.get("number", none)[0],
            system.get("cores", none)[0],
            system.get("memory", none)[0],
            system.get("memory_percentage", none)[0],
            system.get("memory", none)[1] or "MiB",
        )
        for system in sharing_systems()
    )


@functools.cache
def memory_words() -> frozenset[str]:
    """Resources that stand for memory of a board: in MiB, but for :func:`node_memory_words`."""
    return frozenset(words.memory for words in share_words() if words.memory)


@functools.cache
def node_memory_words() -> Mapping[str, str]:
    """Resources whose memory only the node can translate into a share of a board, and their units."""
    return {
        words.memory: words.memory_unit
        for words in share_words()
        if words.memory and words.memory_unit.startswith(OF_NODE)
    }


RESERVED_INDEX = "run.ai/reserve_for_gpu_index"
RESERVATIONS = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of the pods that hold a whole GPU for those that share it."""

NOTHING: Object = MappingProxyType({})


def pod_gpus(spec: Object, annotations: Object = NOTHING) -> dict[str, Fraction]:
    """GPUs that a pod holds: the larger of what its containers and its start-up need.

    Init containers run one after another, each beside the sidecars (init containers with
    ``restartPolicy: Always``) that stand before it; sidecars run on beside the containers.

    A container that names, for each of its GPUs, percent of the cores (``nvidia.com/gpucores``) holds that part of
    the boards, else the part of their memory that it names. A request of GPUs alone is of whole ones, unless the
    device plugin noted smaller parts on the pod. The annotations of KAI count where no container asks. Resources that
    look like GPUs and are not known stay under their own names.

    References
    ----------
    Kubernetes, *Sidecar Containers*, "Resource sharing within containers".
    Project-HAMi/HAMi, docs/config.md@15c0bd24: ``resourceMem``, ``resourceCores``, ``defaultCores`` (0 fits anywhere,
    100 is the entire board); issue 302: cores and memory are of each GPU. volcano-sh/volcano,
    pkg/scheduler/api/devices/config/vgpu.go. NVIDIA/KAI-Scheduler, docs/gpu-sharing/README.md@82d69adb, and
    pkg/common/constants. The words and their units stand in ``gpu_resources.csv``.

    Examples
    --------
    >>> ask = lambda **words: {"resources": {"limits": {f"nvidia.com/{name}": n for name, n in words.items()}}}
    >>> pod_gpus({"initContainers": [ask(gpu=4)], "containers": [ask(gpu=1), ask(gpu="1")]})
    {'nvidia.com/gpu': Fraction(4, 1)}
    >>> pod_gpus({"containers": [ask(gpu=2, gpumem=10240, gpucores=30)]})
    {'boards': Fraction(3, 5), 'MiB beside cores': Fraction(20480, 1)}
    >>> pod_gpus({"containers": [{}]}, {"gpu-fraction": "0.5"})
    {'boards': Fraction(1, 2), 'boards by memory': Fraction(1, 2)}
    >>> pod_gpus({"containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": 10}}}]})
    {'aliyun.com/gpu-mem': Fraction(10, 1)}
    """
    running, most = Counter[str](), Counter[str]()
    for container in parts(spec, "initContainers"):
        own = _requests(container)
        most |= running + own
        running += own if container.get("restartPolicy") == "Always" else Counter()
    for container in parts(spec, "containers"):
        running += _requests(container)
    asked: Mapping[str, Any] = most | running  # a Counter adds fractions as well as whole numbers
    if not asked:
        return _fraction(annotations)
    return _as_noted(dict(asked), annotations)


def other_resources(spec: Object) -> dict[str, Fraction]:
    """Extended resources that a pod asks for and that do not look like GPUs; a DeviceClass may say that they are.

    Examples
    --------
    >>> other_resources({"containers": [{"resources": {"limits": {"cpu": 4, "site.example/h100": 2}}}]})
    {'site.example/h100': Fraction(2, 1)}
    """
    found = Counter[str]()
    for container in parts(spec, "containers"):
        for name, value in part(part(container, "resources"), "limits").items():
            if "/" in name and not (gpu_resource(name) or unread_kind(name)):
                found[name] += Fraction(quantity(value, name))  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


def asks_for_parts(asks: Mapping[str, Fraction]) -> bool:
    """True if boards are shared by what a pod asks for.

    Examples
    --------
    >>> asks_for_parts({BOARDS: Fraction(3, 10)}), asks_for_parts({"nvidia.com/gpu": Fraction(1)})
    (True, False)
    """
    return BOARDS in asks or MEMORY_MIB in asks or not memory_words().isdisjoint(asks)


def holds_for_others(about: Object) -> bool:
    """True for the pod that keeps a whole GPU for the pods of KAI or Run:ai that share it.

    References
    ----------
    NVIDIA/KAI-Scheduler, pkg/binder/binding/resourcereservation/resource_reservation.go@5149a97a.
    """
    return text(about.get("namespace")) in RESERVATIONS or RESERVED_INDEX in part(about, "annotations")


def _requests(container: Object) -> Counter[str]:
    """GPUs of one container; for extended resources a limit is a request."""
    resources = part(container, "resources")
    both = {**part(resources, "limits"), **part(resources, "requests")}
    found = Counter[str]()
    for words in share_words():
        for_parts_alone = words.number is not None and gpu_resource(words.number) is None
        if any(name in both for name in words.parts()) or (for_parts_alone and words.number in both):
            found.update(_shares(both, words))
    for name, value in both.items():
        if match := MEMORY_SLICE.fullmatch(name):
            found[MEMORY_MIB] += Fraction(count(value, name)) * int(match[1]) * 1024  # type: ignore[assignment]
        elif gpu_resource(name):
            found[name] += Fraction(count(value, name))  # type: ignore[assignment]
        elif unread_kind(name):
            found[name] += Fraction(quantity(value, name))  # type: ignore[assignment]
    return found


def _shares(both: dict[str, Any], words: ShareWords) -> dict[str, Fraction]:
    """Take the parts of boards that a container asks for out of its requests."""
    own = {name: both.pop(name) for name in words.parts() if name in both}
    named = words.number is not None and words.number in both
    number = Fraction(count(both.pop(words.number), words.number)) if named else Fraction(bool(own))  # type: ignore[arg-type]
    most = ENTIRE if words.number else ENTIRE * MAX_GPUS_PER_JOB
    cores = within(own, words.cores, most) if words.cores else Fraction(0)
    percentage = within(own, words.memory_percentage, most) if words.memory_percentage else Fraction(0)
    memory = _memory(own, words)
    if not named and own and not (cores or percentage or memory):
        return {}
    if memory and not (cores or percentage):
        return {str(words.memory): number * memory}
    part = (cores or percentage or ENTIRE) / Fraction(ENTIRE)
    # Who names no memory gets all of it, HAMi says; who names percent and MiB is refused there.
    if memory and words.memory_unit != OF_NODE:
        return {BOARDS: number * part, BOARDS_MIB: number * memory}
    by_memory = percentage / ENTIRE if percentage else max(part, Fraction(1))
    return {BOARDS: number * part, BOARDS_BY_MEMORY: number * by_memory}


def _memory(own: Object, words: ShareWords) -> Fraction:
    """Memory that a container names, in MiB or as the node counts it; 0 where it names none."""
    if words.memory is None or words.memory not in own:
        return Fraction(0)
    value = own[words.memory]
    mib = Fraction(quantity(value, words.memory)) * MIB_PER_UNIT.get(words.memory_unit, Fraction(1))
    if not 0 <= mib <= MAX_MEMORY_MIB:
        refuse(f"{words.memory}: {str(value)[:40]!r} is not between 0 and {MAX_MEMORY_MIB} MiB")
    return mib


def _as_noted(asked: dict[str, Fraction], annotations: Object) -> dict[str, Fraction]:
    """What a pod asks for, as the device plugin noted it on the pod where that says more."""
    for name, resource in resource_words("pod_annotation", "units_of_gpu").items():
        units = within(annotations, name, MAX_MEMORY_MIB)
        if units and resource in asked:
            share = asked.pop(resource) / units
            asked = asked | {BOARDS: share, BOARDS_BY_MEMORY: share}
    noted = next(
        (
            words
            for name in resource_words("pod_annotation", "allocated")
            if (words := text(annotations.get(name)))
        ),
        "",
    )
    devices = [fields for each in re.split("[:;]", noted) if len(fields := each.split(",")) == 4]
    whole = asked.keys() == {"nvidia.com/gpu"}
    if not (whole and devices and all(mib.isdigit() and cores.isdigit() for _, _, mib, cores in devices)):
        return asked
    found = Counter[str]()
    for _, _, mib, cores in devices:
        if int(cores):
            found[BOARDS] += Fraction(int(cores), ENTIRE)  # type: ignore[assignment]
            found[BOARDS_MIB] += Fraction(int(mib))  # type: ignore[assignment]
        else:
            found[MEMORY_MIB] += Fraction(int(mib))  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


def _fraction(annotations: Object) -> dict[str, Fraction]:
    """Parts of boards that the annotations of a pod ask for."""
    share_word, memory_word, devices_word = (
        next(iter(resource_words("pod_annotation", role)))
        for role in ("fraction", "fraction_memory", "fraction_devices")
    )
    share = within(annotations, share_word, 1)
    memory = within(annotations, memory_word, MAX_MEMORY_MIB)
    if not share and not memory:
        return {}
    number = count(annotations.get(devices_word, 1), devices_word)
    return (
        {BOARDS: number * share, BOARDS_BY_MEMORY: number * share} if share else {MEMORY_MIB: number * memory}
    )
