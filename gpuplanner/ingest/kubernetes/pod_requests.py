"""GPU requests of pods, their run times, queues and quotas."""

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
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.hardware.catalog import resource_words, sharing_systems
from gpuplanner.ingest.delimited_rows import refuse
from gpuplanner.ingest.kubernetes.api_objects import (
    MAX_MEMORY_MIB,
    Object,
    asked_of,
    condition,
    count,
    gpu_resource,
    instant,
    name_of,
    part,
    parts,
    quantity,
    text,
    unread_kind,
    within,
)

BOARDS = "boards"
"""Key of the sum of shares of boards that a pod asks for, beside the names of resources."""

MEMORY_MIB = "MiB of GPUs"
"""Key of the memory [MiB] of boards by which alone an annotation or a slice of nos says the share of a pod."""

BOARDS_BY_MEMORY = "GPUs by memory"
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
    {'boards': Fraction(1, 2), 'GPUs by memory': Fraction(1, 2)}
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
    notes = (text(annotations.get(name)) for name in resource_words("pod_annotation", "allocated"))
    noted = next(filter(None, notes), "")
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
    if not share:
        return {MEMORY_MIB: number * memory}
    return {BOARDS: number * share, BOARDS_BY_MEMORY: number * share}


LABELS = ("kai.scheduler/queue", "runai/queue", "volcano.sh/queue-name")
ANNOTATION = "scheduling.volcano.sh/queue-name"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a job or pod of Kueue: its LocalQueue (Kueue, Labels and Annotations)."""
UNLIMITED = -1.0


def queue_of(about: Object) -> str | None:
    """Queue that the metadata of a pod name; None if none.

    Examples
    --------
    >>> queue_of({"labels": {"kai.scheduler/queue": "vision"}})
    'vision'
    """
    labels = part(about, "labels")
    named = [*(labels.get(key) for key in LABELS), part(about, "annotations").get(ANNOTATION)]
    return next((word for value in named if (word := text(value))), None)


def parent_of(queue: Object) -> str | None:
    """Queue above one; what it has is shared by those below."""
    spec = part(queue, "spec")
    return text(spec.get("parentQueue")) or text(spec.get("parent"))


def queue_rows(queue: Object) -> list[dict[str, Any]]:
    """Quotas for GPUs of an object of kind Queue, for the table of quotas.

    References
    ----------
    NVIDIA/KAI-Scheduler, docs/queues (quota, limit and overQuotaWeight; -1 is without limit); volcano-sh/apis,
    pkg/apis/scheduling/v1beta1/types.go (deserved, guarantee, capability, weight).

    Examples
    --------
    >>> spec = {"parentQueue": "research", "resources": {"gpu": {"quota": 8, "limit": -1, "overQuotaWeight": 2}}}
    >>> row = queue_rows({"metadata": {"name": "vision"}, "spec": spec})[0]
    >>> row["cohort"], row["nominal"], row["borrow"], row["weight"]
    ('research', 8.0, None, 2.0)
    """
    spec = part(queue, "spec")
    gpu = part(part(spec, "resources"), "gpu")
    known: dict[str, Any] = {"tenant": name_of(queue), "cohort": parent_of(queue), "flavor": None}
    if gpu:
        known |= {"resource": "gpu", "profile": None, "weight": _limit(gpu, "overQuotaWeight")}
        return [known | _amounts(_limit(gpu, "quota"), _limit(gpu, "limit"))]
    deserved, most_of, least = (part(spec, name) for name in ("deserved", "capability", "guarantee"))
    kept, known = part(least, "resource"), known | {"weight": _limit(spec, "weight")}
    rows = []
    for name in dict.fromkeys([*deserved, *kept, *most_of]):
        kind = gpu_resource(name)
        if kind is not None:
            own = _limit(deserved, name) or _limit(kept, name)
            lend = None if own is None or name not in kept else own - (_limit(kept, name) or 0.0)
            amounts = _amounts(own, _limit(most_of, name), lend)
            rows.append(known | {"resource": name, "profile": kind.profile} | amounts)
    return rows


def _amounts(nominal: float | None, most: float | None, lend: float | None = None) -> dict[str, float | None]:
    borrow = None if most is None else max(0.0, most - (nominal or 0.0))
    return {"nominal": nominal, "borrow": borrow, "lend": lend}


def _limit(owner: Object, name: str) -> float | None:
    """An amount; None where there is none, or no limit."""
    value = owner.get(name)
    amount = UNLIMITED if value is None or value == UNLIMITED else float(quantity(value, name))
    return None if amount < 0 else amount


GANG_SPREAD = timedelta(seconds=60)
"""Pods of one owner that start, and end, within this time of each other are one gang."""

SERVERS = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node"})
"""Kinds of owners whose pods serve side by side: each is a job of its own."""

FAILURES = {
    **dict.fromkeys(("Evicted", "Preempting"), "PREEMPTED"),
    "DeadlineExceeded": "TIMEOUT",
    **dict.fromkeys(("NodeLost", "NodeShutdown", "NodeAffinity", "Shutdown", "Terminated"), "NODE_FAIL"),
    "UnexpectedAdmissionError": "NODE_FAIL",
}
"""Reason of a failed pod → state."""

DISRUPTIONS = {
    "PreemptionByScheduler": "PREEMPTED",
    "EvictionByEvictionAPI": "PREEMPTED",
    "DeletionByTaintManager": "NODE_FAIL",
    "DeletionByPodGC": "NODE_FAIL",
    "TerminationByKubelet": "NODE_FAIL",
}
"""Reason of the condition DisruptionTarget → state."""

WORST = (
    *("NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT", "FAILED", "CANCELLED"),
    *("UNKNOWN", "RUNNING", "PENDING", "COMPLETED"),
)
"""States of the pods of a gang: the first that one of them is in is the state of the gang."""


Owner = tuple[str, str, str]
"""Kind, name and uid of a controller."""


@dataclass(frozen=True)
class PodPlace:
    """Where an object stands, and its name for the reject table: a dump holds secrets, so no more of it."""

    file: int
    item: int
    raw: str


@dataclass(frozen=True)
class Thing:
    """What pods, Jobs and Workloads tell alike.

    - ``place``, ``owner``, ``submit``: Where it stands, who controls it, when it was made.
    - ``tenant``: Whose it is: its queue, or namespace.
    - ``local_queue``: The LocalQueue of Kueue that its label names.
    - ``start``, ``end``: When it was bound to its node or admitted, from when it holds its GPUs; when its last
      container ended.
    - ``asks``: GPU resource → number, for one pod or all of a Workload, and its shares of boards.
    - ``tier``: Its priority class.
    - ``limit_s``: Its deadline [s].
    """

    place: PodPlace
    kind: str
    namespace: str
    name: str
    uid: str
    owner: Owner | None
    submit: datetime
    tenant: str
    local_queue: str | None
    start: datetime | None
    end: datetime | None
    asks: Mapping[str, Fraction]
    tier: str | None
    limit_s: object

    @property
    def hours(self) -> float:
        """Hours that it ran; 0 where it has not begun or ended [h]."""
        return (self.end - self.start).total_seconds() / SECONDS_PER_HOUR if self.start and self.end else 0.0


@dataclass(frozen=True)
class Holding(Thing):
    """What a pod or Job tells of itself.

    - ``state``: Ours.
    - ``node``: Node that it is on.
    - ``copies``: Pods that a Job runs at once; 1 for a pod.
    - ``others``: Other extended resources → number, for one pod.
    - ``claims``: Names of the ResourceClaims that one pod uses, each with the template that it is made from; None where
      it is not made yet, or from no template.
    """

    state: str
    node: str | None
    copies: int
    others: Mapping[str, Fraction]
    claims: tuple[tuple[str | None, str | None], ...]


def identity(thing: Object, place: PodPlace) -> dict[str, Any]:
    """Who an object is: fields of a :class:`Thing`, from the metadata of an object.

    Examples
    --------
    >>> about = {"name": "a", "creationTimestamp": "2025-09-01T08:00:00Z"}
    >>> who = identity({"kind": "Job", "metadata": about}, PodPlace(0, 1, ""))
    >>> who["kind"], who["namespace"], who["name"]
    ('Job', 'default', 'a')
    """
    about, kind = part(thing, "metadata"), text(thing.get("kind")) or "Pod"
    name, namespace = name_of(thing), text(about.get("namespace")) or "default"
    submit = instant(about, "creationTimestamp") or refuse("metadata.creationTimestamp: missing")
    uid = text(about.get("uid")) or f"{kind} {namespace}/{name} {submit}"
    known = {"place": place, "kind": kind, "namespace": namespace, "name": name, "uid": uid}
    local_queue = text(part(about, "labels").get(KUEUE_LABEL))
    whose = {"tenant": queue_of(about) or namespace, "local_queue": local_queue}
    return {**known, "owner": owner_of(thing), "submit": submit, **whose}


def read_pod(pod: Object, place: PodPlace) -> Holding:
    """Read an object of kind Pod."""
    spec, status = part(pod, "spec"), part(pod, "status")
    bound, _, since = condition(status, "PodScheduled")
    node = text(spec.get("nodeName"))
    start = (since if bound else None) or (instant(status, "startTime") if node else None)
    phase = text(status.get("phase")) or "Unknown"
    over = phase in ("Succeeded", "Failed")
    return Holding(
        **identity(pod, place),
        **_asks(pod, status),
        start=start,
        end=_end(status) if over else None,
        state=_state(status, phase, start is not None),
        node=node,
        copies=1,
        limit_s=spec.get("activeDeadlineSeconds"),
    )


def read_job(job: Object, place: PodPlace) -> Holding:
    """Read an object of kind Job (``batch/v1``): all that is left where its pods are not in the dump."""
    spec, status = part(job, "spec"), part(job, "status")
    failed, reason, failed_at = condition(status, "Failed")
    complete, _, complete_at = condition(status, "Complete")
    together = spec.get("parallelism", 1)
    if type(together) is not int or not 0 <= together <= 1_000_000:
        refuse(f"parallelism: {str(together)[:40]!r} is no number of pods")
    start = instant(status, "startTime")
    if failed:
        state = "TIMEOUT" if reason == "DeadlineExceeded" else "FAILED"
    elif complete:
        state = "COMPLETED"
    else:
        state = "RUNNING" if start and status.get("active") and not spec.get("suspend") else "PENDING"
    return Holding(
        **identity(job, place),
        **_asks(part(spec, "template"), {}),
        start=None if state == "PENDING" else start,
        end=failed_at if failed else instant(status, "completionTime") or complete_at if complete else None,
        state=state,
        node=None,
        copies=together,
        limit_s=spec.get("activeDeadlineSeconds"),
    )


def owner_of(thing: Object) -> Owner | None:
    """Kind, name and uid of the controller of an object."""
    for each in parts(part(thing, "metadata"), "ownerReferences"):
        if each.get("controller"):
            return tuple(text(each.get(name)) or "" for name in ("kind", "name", "uid"))  # type: ignore[return-value]
    return None


def gangs(pods: Iterable[Holding]) -> list[list[Holding]]:
    """Part the pods of one owner into gangs: pods that started and ended together, or wait together.

    Examples
    --------
    >>> gangs([])
    []
    """
    found: list[list[Holding]] = []
    # Two pods whose ends lie in one minute, or in two next to each other, may be together. Pods come in the
    # order of their starts, so the last gang of each minute is the only one that can still grow.
    last: dict[tuple[bool, int], list[Holding]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.start or pod.submit, pod.name)):
        waits = pod.state == "PENDING"
        minute = -1 if pod.end is None else int(pod.end.timestamp() // GANG_SPREAD.total_seconds())
        near = [minute] if pod.end is None else [minute, minute - 1, minute + 1]
        near_gangs = [last[waits, each] for each in near if (waits, each) in last]
        gang = next((gang for gang in near_gangs if _together(gang[0], pod)), None)
        if gang is None:
            gang = last[waits, minute] = []
            found.append(gang)
        gang.append(pod)
    return found


def _together(one: Holding, other: Holding) -> bool:
    """True if two pods that both wait, or both do not, began and ended within the spread."""
    pairs = [(one.start, other.start), (one.end, other.end)]
    if one.start is None and other.start is None:
        pairs.append((one.submit, other.submit))
    return all(
        first == second or (first is not None and second is not None and abs(first - second) <= GANG_SPREAD)
        for first, second in pairs
    )


def _asks(pod: Object, status: Object) -> dict[str, Any]:
    """What a pod asks for: GPUs, claims or the templates from which these are still to be made, and a priority."""
    spec, notes = asked_of(pod)
    claim_statuses = parts(status, "resourceClaimStatuses")
    made = {text(each.get("name")): text(each.get("resourceClaimName")) for each in claim_statuses}
    claims = []
    for each in parts(spec, "resourceClaims"):
        source = part(each, "source") or each  # v1alpha2 wraps the two names
        claim = text(source.get("resourceClaimName")) or made.get(text(each.get("name")))
        template = text(source.get("resourceClaimTemplateName"))
        claims += [(claim, template)] if claim or template else []
    tier = text(spec.get("priorityClassName"))
    asked = {"asks": pod_gpus(spec, notes), "others": other_resources(spec)}
    return {**asked, "claims": tuple(claims), "tier": tier}


def _statuses(status: Object) -> list[Object]:
    return [
        part(part(each, "state"), "terminated")
        for name in ("initContainerStatuses", "containerStatuses")
        for each in parts(status, name)
    ]


def _end(status: Object) -> datetime | None:
    """When the last container ended; of a pod that was taken away before any ran, when that was decided."""
    ends = [end for each in _statuses(status) if (end := instant(each, "finishedAt"))]
    return max(ends, default=condition(status, "DisruptionTarget")[2])


def _state(status: Object, phase: str, bound: bool) -> str:
    if phase in ("Pending", "Running"):
        return "RUNNING" if bound else "PENDING"
    if phase != "Failed":
        return "COMPLETED" if phase == "Succeeded" else "UNKNOWN"
    disrupted, why, _ = condition(status, "DisruptionTarget")
    if disrupted and why in DISRUPTIONS:
        return DISRUPTIONS[why]
    out_of_memory = any(each.get("reason") == "OOMKilled" for each in _statuses(status))
    return FAILURES.get(text(status.get("reason")) or "", "OUT_OF_MEMORY" if out_of_memory else "FAILED")
