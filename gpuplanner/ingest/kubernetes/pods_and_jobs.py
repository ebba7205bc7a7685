"""Pods, jobs and gangs of pods, read from their objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.ingest.delimited_rows import raise_fault
from gpuplanner.ingest.kubernetes.api_objects import (
    ApiObject,
    get_object,
    get_objects,
    object_name,
    read_condition,
    read_time,
    spec_and_annotations,
    to_text,
)
from gpuplanner.ingest.kubernetes.gpu_requests import other_extended_resources, pod_gpu_requests
from gpuplanner.ingest.kubernetes.queue_quotas import KUEUE_QUEUE_LABEL_KEY, queue_name
from gpuplanner.ingest.source_fields import source_values

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
    - ``claim_by_resource``: Extended resource → ResourceClaim that the scheduler made for it, of a DeviceClass.
    """

    state: str
    node: str | None
    copies: int
    other_requests: Mapping[str, Fraction]
    claims: tuple[tuple[str | None, str | None], ...]
    claim_by_resource: Mapping[str, str]


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
    """Read the requests of a pod or pod template: GPUs, other resources, claims and priority, as fields of PodOrJob.

    References
    ----------
    Kubernetes 1.34, *Extended resource allocation by DRA*: ``extendedResourceClaimStatus`` of a pod.
    """
    spec, annotations = spec_and_annotations(pod)
    claim_statuses = get_objects(status, "resourceClaimStatuses")
    claim_names = {to_text(entry.get("name")): to_text(entry.get("resourceClaimName")) for entry in claim_statuses}
    claims = []
    for entry in get_objects(spec, "resourceClaims"):
        source = get_object(entry, "source") or entry  # v1alpha2 wraps the two names
        claim = to_text(source.get("resourceClaimName")) or claim_names.get(to_text(entry.get("name")))
        template = to_text(source.get("resourceClaimTemplateName"))
        claims += [(claim, template)] if claim or template else []
    made_by_scheduler = get_object(status, "extendedResourceClaimStatus")
    scheduler_claim = to_text(made_by_scheduler.get("resourceClaimName")) or ""
    mapped = [to_text(entry.get("resourceName")) or "" for entry in get_objects(made_by_scheduler, "requestMappings")]
    return {
        "gpu_requests": pod_gpu_requests(spec, annotations),
        "other_requests": other_extended_resources(spec),
        "claims": tuple(claims),
        "claim_by_resource": dict.fromkeys(mapped, scheduler_claim),
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
