"""What a pod asks for: whole GPUs, instances, and shares of boards in the words of HAMi, Volcano and KAI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from gpuplanner.inbox.kubernetes.objects import (
    MAX_MEMORY_MIB,
    Object,
    count,
    gpu_resource,
    part,
    parts,
    text,
    within,
)

BOARDS = "boards"
"""Key of the sum of shares of boards that a pod asks for, beside the names of resources."""

MEMORY_MIB = "MiB of boards"
"""Key of the memory [MiB] of boards that a pod asks for where that alone says its share."""

BOARDS_BY_MEMORY = "boards by memory"
BOARDS_MIB = "MiB beside cores"
"""Keys of the memory that goes with :data:`BOARDS`: its share of boards, and MiB where it is named so."""

PARTS = (BOARDS, BOARDS_BY_MEMORY, BOARDS_MIB, MEMORY_MIB)
"""All keys that are no resources."""

ENTIRE = 100
"""Percent of a board."""


@dataclass(frozen=True)
class ShareWords:
    """Resource names of one way to share boards.

    - ``number``: Boards that a container gets a part of.
    - ``cores``, ``memory``, ``memory_percentage``: Part of each of these boards: percent of its compute, MiB and
      percent of its memory.
    """

    number: str
    cores: str
    memory: str
    memory_percentage: str

    def parts(self) -> tuple[str, str, str]:
        """The names that say how large the part is."""
        return self.cores, self.memory, self.memory_percentage


HAMI = ShareWords(
    "nvidia.com/gpu", "nvidia.com/gpucores", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
)
VOLCANO = ShareWords(
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-cores",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
)
SHARE_WORDS = (HAMI, VOLCANO)

FRACTION = "gpu-fraction"
FRACTION_MEMORY = "gpu-memory"
FRACTION_DEVICES = "gpu-fraction-num-devices"
"""Annotations of KAI and Run:ai."""

RESERVED_INDEX = "run.ai/reserve_for_gpu_index"
RESERVATIONS = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of the pods that hold a whole GPU for those that share it."""

NOTHING: Object = MappingProxyType({})


def pod_gpus(spec: Object, annotations: Object = NOTHING) -> dict[str, Fraction]:
    """GPUs that a pod holds: the larger of what its containers and its start-up need.

    Init containers run one after another, each beside the sidecars (init containers with
    ``restartPolicy: Always``) that stand before it; sidecars run on beside the containers.

    A container that names, for each of its GPUs, percent of the cores (``nvidia.com/gpucores``) holds that part of
    the boards, else the part of their memory that it names. A request of GPUs alone is of whole ones, as HAMi
    reads it unless its operator has set ``defaultMem``. The annotations of KAI count where no container asks.

    References
    ----------
    Kubernetes, *Sidecar Containers*, "Resource sharing within containers".
    Project-HAMi/HAMi, docs/config.md@15c0bd24: ``resourceMem``, ``resourceCores``, ``defaultCores`` (0 fits anywhere,
    100 is the entire board); issue 302: cores and memory are of each GPU. volcano-sh/volcano,
    pkg/scheduler/api/devices/config/vgpu.go. NVIDIA/KAI-Scheduler, docs/gpu-sharing/README.md@82d69adb, and
    pkg/common/constants.

    Examples
    --------
    >>> ask = lambda **words: {"resources": {"limits": {f"nvidia.com/{name}": n for name, n in words.items()}}}
    >>> pod_gpus({"initContainers": [ask(gpu=4)], "containers": [ask(gpu=1), ask(gpu="1")]})
    {'nvidia.com/gpu': Fraction(4, 1)}
    >>> pod_gpus({"containers": [ask(gpu=2, gpumem=10240, gpucores=30)]})
    {'boards': Fraction(3, 5), 'MiB beside cores': Fraction(20480, 1)}
    >>> pod_gpus({"containers": [{}]}, {"gpu-fraction": "0.5"})
    {'boards': Fraction(1, 2), 'boards by memory': Fraction(1, 2)}
    """
    running, most = Counter[str](), Counter[str]()
    for container in parts(spec, "initContainers"):
        own = _requests(container)
        most |= running + own
        running += own if container.get("restartPolicy") == "Always" else Counter()
    for container in parts(spec, "containers"):
        running += _requests(container)
    asked: Mapping[str, Any] = most | running  # a Counter adds fractions as well as whole numbers
    return dict(asked) or _fraction(annotations)


def asks_for_parts(asks: Mapping[str, Fraction]) -> bool:
    """True if boards are shared by what a pod asks for.

    Examples
    --------
    >>> asks_for_parts({BOARDS: Fraction(3, 10)}), asks_for_parts({"nvidia.com/gpu": Fraction(1)})
    (True, False)
    """
    return BOARDS in asks or MEMORY_MIB in asks


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
    for words in SHARE_WORDS:
        shared = gpu_resource(words.number) is None  # so named for its parts alone
        if shared or any(name in both for name in words.parts()):
            number = Fraction(count(both.pop(words.number), words.number)) if words.number in both else None
            found.update(_shares(both, words, number))
    found.update({name: Fraction(count(value, name)) for name, value in both.items() if gpu_resource(name)})
    return found


def _shares(both: Object, words: ShareWords, number: Fraction | None) -> dict[str, Fraction]:
    """Parts of boards that a container asks for; one board where it does not say how many."""
    cores = within(both, words.cores, ENTIRE)
    percentage = within(both, words.memory_percentage, ENTIRE)
    memory = within(both, words.memory, MAX_MEMORY_MIB)
    if number is None:
        number = Fraction(1 if cores or percentage or memory else 0)
    if memory and not (cores or percentage):
        return {MEMORY_MIB: number * memory}
    part = (cores or percentage or ENTIRE) / Fraction(ENTIRE)
    # Who names no memory gets all of it, HAMi says; who names percent and MiB is refused there.
    beside = (
        {BOARDS_MIB: number * memory}
        if memory
        else {BOARDS_BY_MEMORY: number * (percentage or ENTIRE) / ENTIRE}
    )
    return {BOARDS: number * part, **beside}


def _fraction(annotations: Object) -> dict[str, Fraction]:
    """Parts of boards that the annotations of a pod ask for."""
    share = within(annotations, FRACTION, 1)
    memory = within(annotations, FRACTION_MEMORY, MAX_MEMORY_MIB)
    if not share and not memory:
        return {}
    number = count(annotations.get(FRACTION_DEVICES, 1), FRACTION_DEVICES)
    return (
        {BOARDS: number * share, BOARDS_BY_MEMORY: number * share} if share else {MEMORY_MIB: number * memory}
    )
