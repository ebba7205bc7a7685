"""Pods and Jobs of Kubernetes: when each held GPUs, how it ended, and which pods are one job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from gpuplanner.inbox.core.lines.rows import refuse
from gpuplanner.inbox.kubernetes.gpu_requests import other_resources, pod_gpus
from gpuplanner.inbox.kubernetes.objects import (
    Object,
    asked_of,
    condition,
    instant,
    name_of,
    part,
    parts,
    text,
)
from gpuplanner.inbox.kubernetes.queues import local_queue_of, queue_of
from gpuplanner.units import SECONDS_PER_HOUR

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
    "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "TIMEOUT", "FAILED", "CANCELLED",
    "UNKNOWN", "RUNNING", "PENDING", "COMPLETED",
)  # fmt: skip
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
    whose = {"tenant": queue_of(about) or namespace, "local_queue": local_queue_of(about)}
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
    made = {
        text(each.get("name")): text(each.get("resourceClaimName"))
        for each in parts(status, "resourceClaimStatuses")
    }
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
